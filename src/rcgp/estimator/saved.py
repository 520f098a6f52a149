"""A fitted estimator as one file, and back: all that it takes to predict, to inspect and to fit again.

The format of each kind of fitted model is in :mod:`rcgp.estimator.saved_exact` and
:mod:`rcgp.estimator.saved_sparse`.
"""

from __future__ import annotations

import math
import os
from importlib import import_module
from numbers import Integral
from typing import Any

import numpy as np
import sklearn.gaussian_process.kernels as sk
from torch import Tensor, nn

from rcgp.estimator.kernels import known_kernels
from rcgp.estimator.saved_deep import describe_deep, rebuild_deep
from rcgp.estimator.saved_exact import describe_exact, describe_series, rebuild_exact, rebuild_series
from rcgp.estimator.saved_parts import collect, under
from rcgp.estimator.saved_sparse import describe_sparse, rebuild_sparse
from rcgp.saving import SavedModelError, describe, read_archive, rebuild, write_archive

__all__ = ["load", "load_with_table", "save"]

# Module of the class, and functions that describe and rebuild the fitted model, for each kind of estimator. A class is
# imported when it is needed: that of series needs numba.
_KINDS: dict[str, tuple[str, Any, Any]] = {
    "DeepRCGPRegressor": ("rcgp.estimator.deep", describe_deep, rebuild_deep),
    "RCGPRegressor": ("rcgp.estimator.regressor", describe_exact, rebuild_exact),
    "RCGPSeries": ("rcgp.estimator.series", describe_series, rebuild_series),
    "SparseRCGPRegressor": ("rcgp.estimator.sparse", describe_sparse, rebuild_sparse),
}


def save(estimator: Any, path: str | os.PathLike[str], table: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator to one file, atomically.

    Left out, since they are not part of the model: a ``progress`` function, a Dask ``client``, a random generator
    given as ``random_state``, and the inducing points given as ``n_inducing`` (but their number, and
    ``inducing_points_``).

    Args:
        estimator: a fitted regressor.
        path: the file to write; an earlier one is replaced when the new one is complete.
        table: how the training table became numbers, for predictions from tables.

    Raises:
        SavedModelError: naming the part that cannot be saved because it is code (a function as mean, a user's
            kernel or weight class), or why the file cannot be written. Nothing is written then.
    """
    if not hasattr(estimator, "fit_report_"):
        raise SavedModelError("the model is not fitted yet: call fit before save")
    write_archive(path, *_contents(estimator, table))


def load(path: str | os.PathLike[str]) -> Any:
    """The fitted estimator in a file that ``save`` of one of the regressors, or of ``RCGPSeries``, wrote.

    Its predictions are the same to the bit. Nothing in the file is executed: it holds text and numbers only.

    Raises:
        SavedModelError: for a file that is missing, damaged, of another program or of another version.
    """
    return load_with_table(path)[0]


def load_with_table(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """As :func:`load`, with the ``table`` that was saved."""
    description, tensors = read_archive(path)
    kind = description.get("kind")
    if kind == "Stream":
        raise SavedModelError(f"{os.fspath(path)!r} holds a Stream: read it with rcgp.series.Stream.load")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SavedModelError(f"{os.fspath(path)!r} holds a {kind!r}, not a {' or a '.join(_KINDS)}")
    try:
        return _rebuild(kind, description, tensors), description.get("table")
    except SavedModelError as error:
        raise SavedModelError(f"{os.fspath(path)!r}: {error}") from error
    except ImportError:
        raise
    except Exception as error:  # a file with a good checksum may still hold nonsense
        raise SavedModelError(f"{os.fspath(path)!r} makes no sense: {error or type(error).__name__}") from error


def _contents(estimator: Any, table: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors of an estimator; a subclass is saved as the class of this package."""
    own = (cls.__name__ for cls in type(estimator).__mro__ if cls.__module__ == _KINDS.get(cls.__name__, ("",))[0])
    kind = next(own)
    describe_model = _KINDS[kind][1]
    tensors: dict[str, Tensor] = {}
    names = getattr(estimator, "feature_names_in_", None)
    description = {
        "kind": kind,
        "parameters": {
            name: _describe_value(value, name, tensors) for name, value in estimator.get_params(False).items()
        },
        "n_features_in": getattr(estimator, "n_features_in_", None),
        "feature_names_in": None if names is None else [str(name) for name in names],
        "table": table,
        **describe_model(estimator, tensors),
    }
    return description, tensors


def _rebuild(kind: str, description: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    module, _, rebuild_model = _KINDS[kind]
    cls = getattr(import_module(module), kind)
    values = description["parameters"].items()
    estimator = cls(**{name: _rebuild_value(value, name, tensors) for name, value in values})
    if description["n_features_in"] is not None:  # a series has none
        estimator.n_features_in_ = int(description["n_features_in"])
    names = description["feature_names_in"]
    if names is not None:
        if len(names) != estimator.n_features_in_ or not all(isinstance(name, str) for name in names):
            raise SavedModelError("it does not have one name for each feature")
        estimator.feature_names_in_ = np.array(names, dtype=object)
    estimator._check_parameters()
    rebuild_model(estimator, description, tensors)
    if _contents(estimator, None)[1].keys() != tensors.keys():
        raise SavedModelError("it holds tensors that nothing in it uses")
    return estimator


def _describe_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A parameter of the estimator as JSON; its tensors join the others."""
    if name == "progress":
        return bool(value) and not callable(value)
    if name == "periods":
        return [_describe_period(period) for period in value]
    if name == "client" or (name == "random_state" and not isinstance(value, Integral)):
        return None
    if name == "n_inducing" and np.ndim(value):
        return len(value)
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, sk.Kernel):
        return {"sklearn": _describe_sklearn(value)}
    if isinstance(value, nn.Module):
        return {"module": collect(f"parameters.{name}", describe(value), tensors)}
    raise SavedModelError(f"{name}={value!r} cannot be saved: a function is code, and code is not saved")


def _describe_period(period: Any) -> Any:
    """A length of a season: text or a number; a duration in seconds as text."""
    if isinstance(period, str):
        return period
    if hasattr(period, "total_seconds"):
        return f"{period.total_seconds():.12g}s"
    return f"{period / np.timedelta64(1, 's'):.12g}s" if isinstance(period, np.timedelta64) else float(period)


def _rebuild_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if name == "client" and value is not None:
        raise SavedModelError("it names a client, which is never saved")
    if not isinstance(value, dict):
        return value
    if set(value) == {"sklearn"}:
        return _rebuild_sklearn(value["sklearn"])
    return rebuild(value["module"], under(f"parameters.{name}", tensors))


def _describe_sklearn(kernel: sk.Kernel) -> dict[str, Any]:
    """Class and parameters of a scikit-learn kernel as JSON, if it can be translated."""
    name = type(kernel).__name__
    if known_kernels().get(name) is not type(kernel):
        raise SavedModelError(f"the kernel {name} cannot be saved; those that can be are {', '.join(known_kernels())}")
    return {"class": name, **{key: _plain(value) for key, value in kernel.get_params(deep=False).items()}}


def _rebuild_sklearn(description: Any) -> sk.Kernel:
    values = dict(description)
    cls = known_kernels().get(values.pop("class"))
    if cls is None:
        raise SavedModelError(f"{description['class']!r} is not a kernel that can be saved")
    return cls(**{key: _value(value) for key, value in values.items()})


def _plain(value: Any) -> Any:
    """A parameter of a scikit-learn kernel as JSON."""
    if isinstance(value, sk.Kernel):
        return {"kernel": _describe_sklearn(value)}
    if isinstance(value, str):
        return value
    if np.ndim(value):
        return {"array": np.asarray(value, dtype=np.float64).tolist(), "tuple": isinstance(value, tuple)}
    return {"number": float(value) if math.isfinite(value) else str(value)}


def _value(plain: Any) -> Any:
    """The parameter that :func:`_plain` described."""
    if isinstance(plain, str):
        return plain
    if "kernel" in plain:
        return _rebuild_sklearn(plain["kernel"])
    if "array" in plain:
        return tuple(plain["array"]) if plain["tuple"] else np.array(plain["array"])
    return float(plain["number"])
