"""Rows for a sparse regressor: tables in memory, files, chunks or Dask collections, checked.

Rows to fit become chunks. Inputs to predict become blocks, read one at a time, or stay a Dask array.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.chunks import Chunks, check_kind, chunks_of
from rcgp.chunks.chunk import check_finite, names_of
from rcgp.estimator.base import as_tensor, training_data, validated

__all__ = [
    "chunks_in_memory",
    "chunks_with_features",
    "evaluate_lazily",
    "input_blocks",
    "is_table",
    "refuse_stored",
    "stored_chunks",
]

Array = NDArray[np.float64]

# Rows of a memory-mapped file that are predicted at a time.
_BLOCK = 2**16


def is_table(X: Any, y: Any) -> bool:
    """Whether X is one table in memory, rather than files, chunks or a Dask collection."""
    if isinstance(X, str | os.PathLike | np.memmap) or hasattr(X, "__dask_graph__"):
        return False
    if isinstance(X, list | tuple) and any(isinstance(part, str | os.PathLike) for part in X):
        return False
    return y is not None or hasattr(X, "__array__") or hasattr(X, "shape")


def chunks_in_memory(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Chunks:
    """A table in memory as chunks."""
    check_kind(X, y)
    X, y, sample_weight = (
        values.detach().cpu().numpy() if isinstance(values, Tensor) else values for values in (X, y, sample_weight)
    )
    shape = np.asarray(y).shape
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(
            f"SparseRCGPRegressor has one output, got y with {shape[1]} columns: fit a model for each, as "
            "sklearn.multioutput.MultiOutputRegressor does, or use RCGPRegressor"
        )
    return chunks_of(*training_data(estimator, X, y, sample_weight))


def stored_chunks(estimator: Any, X: Any, y: Any, sample_weight: Any, features: Sequence[str] | None) -> Chunks:
    """Rows that are read, and checked, in chunks; sets the features of the estimator."""
    chunks = chunks_of(X, y, sample_weight, features=features)
    estimator.n_features_in_ = chunks.columns
    estimator.__dict__.pop("feature_names_in_", None)
    if chunks.names is not None:
        estimator.feature_names_in_ = np.array(chunks.names, dtype=object)
    return chunks


def chunks_with_features(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Chunks:
    """Rows of any kind with the features of the fit, in its order; of a Parquet file those columns are read."""
    known = getattr(estimator, "feature_names_in_", None)
    features = [str(name) for name in known] if _is_files(X) and known is not None else None
    chunks = chunks_of(X, y, sample_weight, features=features)
    _check_features(estimator, chunks.columns, chunks.names)
    return chunks


def input_blocks(estimator: Any, X: Any) -> Iterator[Tensor]:
    """Inputs in memory as one block, or a memory-mapped file in several: finite, with the features of the fit."""
    if not isinstance(X, np.memmap) or X.ndim != 2 or len(X) <= _BLOCK:
        yield estimator._inputs(X)
        return
    names = getattr(estimator, "feature_names_in_", None)
    for start in range(0, len(X), _BLOCK):
        inputs = as_tensor(validated(estimator, X[start : start + _BLOCK], reset=False))
        check_finite(inputs, "X", start, None if names is None else tuple(names))
        yield inputs


def evaluate_lazily(estimator: Any, X: Any, functions: Sequence[Callable[[Tensor], Tensor]]) -> list[Any]:
    """Functions from ``q x d`` inputs to ``q`` values at a Dask collection with the features of the fit, as arrays."""
    if X.ndim != 2:
        raise ValueError(f"X must have rows and columns, got {X.ndim} dimensions")
    framed, names = hasattr(X, "columns"), getattr(estimator, "feature_names_in_", None)
    _check_features(estimator, len(X.columns) if framed else X.shape[1], names_of(X) if framed else None)
    inputs = X.to_dask_array() if framed else X.rechunk({1: -1})
    names = None if names is None else tuple(map(str, names))
    tasks = [partial(_evaluate_block, function, names) for function in functions]
    return [inputs.map_blocks(task, drop_axis=1, dtype=np.float64, meta=np.empty(0)) for task in tasks]


def _evaluate_block(function: Callable[[Tensor], Tensor], names: tuple[str, ...] | None, block: Array) -> Array:
    """A function at the inputs of a block of a Dask array, which are checked here; ``names`` of features for errors."""
    inputs = as_tensor(block)
    check_finite(inputs, "X", 0, names, of=" of its block")
    with torch.no_grad():
        return function(inputs).numpy() if len(inputs) else np.empty(0)


def _check_features(estimator: Any, columns: int, names: tuple[str, ...] | None) -> None:
    """Raise a ValueError unless number and names of the features are those of the fit."""
    known = getattr(estimator, "feature_names_in_", None)
    if names is not None and known is not None and list(names) != list(known):
        surplus, missing = ([n for n in some if n not in others] for some, others in ((names, known), (known, names)))
        parts = [f"{what} {found}" for what, found in (("not in the fit:", surplus), ("missing:", missing)) if found]
        raise ValueError(
            f"the feature names of X must be those of the fit, {list(known)}, got {list(names)} "
            f"({'; '.join(parts) or 'in another order'})"
        )
    if columns != estimator.n_features_in_:
        raise ValueError(f"X has {columns} features, but the model was fitted to {estimator.n_features_in_}")


def refuse_stored(estimator: Any, X: Any) -> None:
    """Raise a TypeError for files and chunks, which can be fitted but not predicted; it says how to predict them."""
    if _is_files(X):
        names = getattr(estimator, "feature_names_in_", None)
        columns = "" if names is None else f"[{[str(name) for name in names]}]"
        raise TypeError(
            f"predict reads no files: pass dask.dataframe.read_parquet({str(X)!r}){columns}, whose predictions are "
            "computed block by block, or read the file in pieces and predict each; 'rcgp predict' reads tables, too"
        )
    chunks = isinstance(X, list | tuple) and any(_starts_with_table(part) for part in X)
    if chunks or (not hasattr(X, "__len__") and not hasattr(X, "__array__") and hasattr(X, "__iter__")):
        raise TypeError("predict takes one table: predict each chunk, as in [model.predict(X) for X, y in chunks]")


def _is_files(X: Any) -> bool:
    """Whether X is a path, or several."""
    paths = X if isinstance(X, list | tuple) else [X]
    return bool(paths) and all(isinstance(path, str | os.PathLike) for path in paths)


def _starts_with_table(part: Any) -> bool:
    """Whether it is a table, or a pair or triple that starts with one."""
    first = part[0] if isinstance(part, list | tuple) and len(part) in (2, 3) else part
    return len(getattr(first, "shape", ())) == 2
