"""A fitted estimator as one file, and back: all that it takes to predict, to inspect and to fit again.

Each kind of estimator says in a file of its own what was fitted; here is what all have in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rcgp.estimator.regressor import RCGPRegressor
from rcgp.estimator.saved_exact import check_exact, describe_exact, rebuild_exact
from rcgp.estimator.saved_parts import check_names, describe_value, rebuild_value
from rcgp.estimator.saved_sparse import check_sparse, describe_sparse, rebuild_sparse
from rcgp.estimator.sparse import SparseRCGPRegressor
from rcgp.saving import SavedModelError, read_archive, write_archive

__all__ = ["load", "load_with_table", "save"]


@dataclass(frozen=True)
class _Kind:
    """How one kind of estimator is taken apart and put together.

    Attributes:
        cls: its class.
        describe: what was fitted, as JSON; tensors go into the dictionary given.
        rebuild: gives a new estimator what was fitted.
        check: refuses what no estimator that was fitted can be.
    """

    cls: type[Any]
    describe: Callable[[Any, dict[str, Tensor]], dict[str, Any]]
    rebuild: Callable[[Any, dict[str, Any], dict[str, Tensor]], None]
    check: Callable[[Any], None]


_KINDS = {
    "RCGPRegressor": _Kind(RCGPRegressor, describe_exact, rebuild_exact, check_exact),
    "SparseRCGPRegressor": _Kind(SparseRCGPRegressor, describe_sparse, rebuild_sparse, check_sparse),
}


def save(
    estimator: RCGPRegressor | SparseRCGPRegressor, path: str | os.PathLike[str], table: dict[str, Any] | None = None
) -> None:
    """Write a fitted estimator to one file, whole or not at all.

    Not kept: a ``progress`` function, a Dask ``client`` and a random generator given as ``random_state``, which are not
    part of the model.

    Args:
        estimator: fitted.
        path: the file to write; an earlier one is replaced when the new one is complete.
        table: how the training table became numbers, for those who predict from tables.

    Raises:
        SavedModelError: naming the part that cannot be saved because it is code (a function as mean, a kernel or
            weight class of one's own), or why the file cannot be written. Nothing is written then.
    """
    if not estimator.__sklearn_is_fitted__():
        raise SavedModelError("the model is not fitted yet: call fit before save")
    write_archive(path, *_contents(estimator, table))


def _contents(
    estimator: RCGPRegressor | SparseRCGPRegressor, table: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is written: a description and tensors."""
    kind, tensors = _kind_of(estimator), dict[str, Tensor]()
    parameters = {name: describe_value(value, name, tensors) for name, value in estimator.get_params(False).items()}
    names = getattr(estimator, "feature_names_in_", None)
    description = {
        "kind": kind,
        "parameters": parameters,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
        "table": table,
        **_KINDS[kind].describe(estimator, tensors),
    }
    return description, tensors


def _kind_of(estimator: RCGPRegressor | SparseRCGPRegressor) -> str:
    """The name of its kind; a class derived from one is saved as that."""
    return next(name for name, kind in _KINDS.items() if isinstance(estimator, kind.cls))


def load(path: str | os.PathLike[str]) -> RCGPRegressor | SparseRCGPRegressor:
    """Read a model that ``save`` of :class:`RCGPRegressor` or :class:`SparseRCGPRegressor` wrote.

    Its predictions are the same to the bit.

    Nothing in the file is executed: it holds text and numbers only.

    Args:
        path: the file.

    Returns:
        The fitted estimator.

    Raises:
        SavedModelError: for a file that is missing, damaged, of another program or of another version.
    """
    estimator: RCGPRegressor | SparseRCGPRegressor = load_with_table(path)[0]
    return estimator


def load_with_table(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """As :func:`load`, and what was saved with it as ``table``."""
    description, tensors = read_archive(path)
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SavedModelError(f"{os.fspath(path)!r} holds a {kind!r}, not a {' or a '.join(_KINDS)}")
    try:
        estimator = _rebuild(_KINDS[kind], description, tensors)
        return estimator, description.get("table")
    except SavedModelError as error:
        raise SavedModelError(f"{os.fspath(path)!r}: {error}") from error
    except Exception as error:  # a file with a good checksum may still hold nonsense
        raise SavedModelError(f"{os.fspath(path)!r} makes no sense: {error or type(error).__name__}") from error


def _rebuild(kind: _Kind, description: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    values = description["parameters"].items()
    estimator = kind.cls(**{name: rebuild_value(value, name, tensors) for name, value in values})
    estimator.n_features_in_ = int(description["n_features_in"])
    if description["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(description["feature_names_in"], dtype=object)
    kind.rebuild(estimator, description, tensors)
    check_names(estimator)
    kind.check(estimator)
    if _contents(estimator, None)[1].keys() != tensors.keys():
        raise SavedModelError("it holds tensors that nothing in it uses")
    return estimator
