"""Parts of a saved estimator that every kind has: its parameters, and the report of its fit, as JSON and tensors."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import sklearn.gaussian_process.kernels as sk
from torch import Tensor, nn

from rcgp.estimator.kernels import known_kernels
from rcgp.saving import SavedModelError, describe, rebuild
from rcgp.training import AdaptiveReport, FitReport, Round
from rcgp.training.tails import Tail

__all__ = [
    "check_names",
    "check_per_row",
    "describe_report",
    "describe_value",
    "rebuild_part",
    "rebuild_report",
    "rebuild_value",
    "under",
    "with_text",
]


def check_names(estimator: Any) -> None:
    """Refuse feature names that are not one text for each feature."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and (
        len(names) != estimator.n_features_in_ or not all(isinstance(name, str) for name in names)
    ):
        raise SavedModelError("its names are not those of its features")


def check_per_row(estimator: Any, names: tuple[str, ...], rows: int) -> None:
    """Refuse attributes that do not say something of each row."""
    for name in names:
        column = getattr(estimator, f"{name}_")
        kind = "b" if name == "outliers" else "f"
        if column.shape[0] != rows or column.dtype.kind != kind:
            raise SavedModelError(f"its {name} are not what a fit gives")


def rebuild_part(name: str, cls: type[nn.Module], description: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """A module of a model, if it is of the class that it must be."""
    part = rebuild(description[name], under(name, tensors))
    if not isinstance(part, cls):
        raise SavedModelError(f"its {name} is a {type(part).__name__}")
    return part


def describe_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A parameter of the estimator as JSON; its tensors go among the others."""
    if name == "progress":
        return bool(value) and not callable(value)
    if name == "client":  # which belongs to a process
        return None
    if name == "random_state" and not isinstance(value, Integral):
        return None
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, sk.Kernel):
        return {"sklearn": _describe_sklearn(value)}
    if isinstance(value, nn.Module):
        described, held = describe(value)
        tensors.update({f"parameters.{name}.{key}": tensor for key, tensor in held.items()})
        return {"module": described}
    raise SavedModelError(f"{name}={value!r} cannot be saved: a function is code, and code is not saved")


def rebuild_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"sklearn"}:
        return _rebuild_sklearn(value["sklearn"])
    return rebuild(value["module"], under(f"parameters.{name}", tensors))


def _describe_sklearn(kernel: sk.Kernel) -> dict[str, Any]:
    """A kernel of scikit-learn as JSON: its class and parameters, if it is one that can be translated."""
    name = type(kernel).__name__
    if known_kernels().get(name) is not type(kernel):
        raise SavedModelError(f"the kernel {name} cannot be saved; those that can be are {', '.join(known_kernels())}")
    return {"class": name, **{key: _plain(value) for key, value in kernel.get_params(deep=False).items()}}


def _rebuild_sklearn(description: Any) -> sk.Kernel:
    values = dict(description)
    cls = known_kernels().get(values.pop("class"))
    if cls is None:
        raise SavedModelError(f"{description['class']!r} is not a kernel that can be saved")
    return cls(**{key: _unplain(value) for key, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, sk.Kernel):
        return {"kernel": _describe_sklearn(value)}
    if isinstance(value, str):
        return value
    if np.ndim(value):
        return {"array": np.asarray(value, dtype=np.float64).tolist(), "tuple": isinstance(value, tuple)}
    return {"number": float(value) if math.isfinite(value) else str(value)}


def _unplain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if "kernel" in value:
        return _rebuild_sklearn(value["kernel"])
    if "array" in value:
        return tuple(value["array"]) if value["tuple"] else np.array(value["array"])
    return float(value["number"])


def describe_report(report: FitReport) -> dict[str, Any]:
    """The report as JSON, which has no infinities: they are written as text."""
    fields: dict[str, Any] = with_text(dataclasses.asdict(report))
    return fields


def with_text(value: Any) -> Any:
    """Plain values as JSON has them: numbers that are not finite become text."""
    if isinstance(value, dict):
        return {key: with_text(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_text(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def rebuild_report(fields: dict[str, Any]) -> FitReport:
    values = {
        **fields,
        "starts": tuple(float(value) for value in fields["starts"]),
        "hyperparameters": {key: [float(value) for value in part] for key, part in fields["hyperparameters"].items()},
    }
    if "rounds" not in fields:
        return FitReport(**values)
    values["rounds"] = tuple(Round(**{**part, "score": float(part["score"])}) for part in fields["rounds"])
    values["reach"] = float(fields["reach"])
    values["tail"] = Tail(**{key: float(value) for key, value in fields["tail"].items()})
    return AdaptiveReport(**values)


def under(place: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a place, by what follows it."""
    return {key.removeprefix(f"{place}."): value for key, value in tensors.items() if key.startswith(f"{place}.")}
