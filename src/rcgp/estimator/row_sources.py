"""What a caller gives a sparse regressor as X and y: tables in memory, files, chunks or Dask collections, checked.

Rows to fit become chunks. Inputs to predict become blocks, read one at a time, or stay a Dask array. What cannot be
used is refused here, with what to do instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from rcgp.chunks import Chunks, check_kind, chunks_of
from rcgp.chunks.chunk import check_finite as check_finite_rows
from rcgp.chunks.chunk import names_of
from rcgp.estimator.contract import as_tensor, validated
from rcgp.models.validation import check_finite

__all__ = ["input_blocks", "is_table", "lazy_inputs", "pieces_of", "same_features", "table_of"]

# Rows of a memory-mapped file that are predicted at a time.
_BLOCK = 2**16


def is_table(X: Any, y: Any) -> bool:
    """Whether X is one table in memory, and not a file, a cluster's or in pieces."""
    if isinstance(X, str | os.PathLike | np.memmap) or hasattr(X, "__dask_graph__"):
        return False
    if isinstance(X, list | tuple) and any(isinstance(part, str | os.PathLike) for part in X):
        return False
    return y is not None or hasattr(X, "__array__") or hasattr(X, "shape")


def table_of(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Chunks:
    """Rows in memory, by the checks of scikit-learn, which note the features in the estimator."""
    check_kind(X, y)
    X, y, sample_weight = (_as_numpy(values) for values in (X, y, sample_weight))
    observed = np.asarray(y)
    if observed.ndim == 2 and observed.shape[1] > 1:
        raise ValueError(
            f"SparseRCGPRegressor has one output, got y with {observed.shape[1]} columns: fit a model for each, as "
            "sklearn.multioutput.MultiOutputRegressor does, or use RCGPRegressor"
        )
    if observed.dtype.kind == "f" and observed.ndim:  # before scikit-learn's check, which does not name the row
        check_finite(as_tensor(observed.reshape(len(observed), -1)[:, 0]), "y")
    X_, y_ = validated(estimator, X, y, y_numeric=True)
    check_finite(as_tensor(X_), "X", getattr(estimator, "feature_names_in_", None))
    if sample_weight is not None:
        sample_weight = _check_sample_weight(sample_weight, X_, dtype=np.float64, ensure_non_negative=True)
    return chunks_of(X_, y_, sample_weight)


def pieces_of(estimator: Any, X: Any, y: Any, sample_weight: Any, features: Sequence[str] | None) -> Chunks:
    """Rows that are read piece by piece, which checks them; notes the features in the estimator."""
    chunks = chunks_of(X, y, sample_weight, features=features)
    estimator.n_features_in_ = chunks.columns
    estimator.__dict__.pop("feature_names_in_", None)
    if chunks.names is not None:
        estimator.feature_names_in_ = np.array(chunks.names, dtype=object)
    return chunks


def same_features(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Chunks:
    """Rows of any kind with the features of the fit, in its order; of a Parquet file those columns are taken."""
    known = getattr(estimator, "feature_names_in_", None)
    files = isinstance(X, str | os.PathLike) or (isinstance(X, list | tuple) and _all_paths(X))
    features = [str(name) for name in known] if files and known is not None else None
    chunks = chunks_of(X, y, sample_weight, features=features)
    _check_features(estimator, chunks.columns, chunks.names)
    return chunks


def input_blocks(estimator: Any, X: Any) -> Iterator[Tensor]:
    """Inputs in memory, all at once, or of a memory-mapped file in blocks: finite, with the features of the fit."""
    _check_inputs(estimator, X)
    names = getattr(estimator, "feature_names_in_", None)
    if not isinstance(X, np.memmap) or X.ndim != 2 or len(X) <= _BLOCK:
        inputs = as_tensor(validated(estimator, X, reset=False))
        check_finite(inputs, "X", names)
        yield inputs
        return
    for start in range(0, len(X), _BLOCK):
        inputs = as_tensor(validated(estimator, X[start : start + _BLOCK], reset=False))
        check_finite_rows(inputs, "X", start, None if names is None else tuple(names))
        yield inputs


def lazy_inputs(estimator: Any, X: Any) -> Any:
    """A Dask collection as an array in blocks of rows, if it has the features of the fit."""
    if X.ndim != 2:
        raise ValueError(f"X must have rows and columns, got {X.ndim} dimensions")
    if not hasattr(X, "columns"):
        _check_features(estimator, X.shape[1], None)
        return X.rechunk({1: -1})
    _check_features(estimator, len(X.columns), names_of(X))
    return X.to_dask_array()


def _check_features(estimator: Any, columns: int, names: tuple[str, ...] | None) -> None:
    """Raise a ValueError unless there are as many features as in the fit, with the same names if they have any."""
    known = getattr(estimator, "feature_names_in_", None)
    expected = estimator.n_features_in_
    if names is not None and known is not None and list(names) != list(known):
        surplus, missing = ([n for n in some if n not in others] for some, others in ((names, known), (known, names)))
        parts = [f"{what} {found}" for what, found in (("not in the fit:", surplus), ("missing:", missing)) if found]
        raise ValueError(
            f"the feature names of X must be those of the fit, {list(known)}, got {list(names)} "
            f"({'; '.join(parts) or 'in another order'})"
        )
    if columns != expected:
        raise ValueError(f"X has {columns} features, but the model was fitted to {expected}")


def _check_inputs(estimator: Any, X: Any) -> None:
    """Raise a TypeError for rows that can be fitted and not predicted, saying how to predict them."""
    if isinstance(X, str | os.PathLike) or (isinstance(X, list | tuple) and _all_paths(X)):
        names = getattr(estimator, "feature_names_in_", None)
        columns = "" if names is None else f"[{[str(name) for name in names]}]"
        raise TypeError(
            f"predict reads no files: pass dask.dataframe.read_parquet({str(X)!r}){columns}, whose predictions are "
            "computed block by block, or read the file in pieces and predict each; 'rcgp predict' reads tables, too"
        )
    pieces = isinstance(X, list | tuple) and bool(X) and any(_holds_table(part) for part in X)
    if pieces or (not hasattr(X, "__len__") and not hasattr(X, "__array__") and hasattr(X, "__iter__")):
        raise TypeError("predict takes one table: predict each chunk, as in [model.predict(X) for X, y in chunks]")


def _all_paths(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | os.PathLike) for value in values)


def _holds_table(part: Any) -> bool:
    """Whether it is a table, or a pair that begins with one."""
    first = part[0] if isinstance(part, list | tuple) and len(part) in (2, 3) else part
    return len(getattr(first, "shape", ())) == 2


def _as_numpy(values: Any) -> Any:
    """A tensor as an array, all else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
