"""Parts of a saved estimator that every kind has: its parameters, and the report of its fit, as JSON and tensors."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import Any

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from torch import Tensor, nn

from rcgp.estimator.kernels import known_kernels
from rcgp.models.local_noise import POWERS, LocalNoise
from rcgp.saving import SavedModelError, describe, rebuild
from rcgp.training import FitReport, RobustReport, Round
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import SCALES

__all__ = [
    "check_local",
    "check_names",
    "check_per_row",
    "describe_law",
    "describe_local",
    "describe_report",
    "describe_value",
    "rebuild_law",
    "rebuild_local",
    "rebuild_part",
    "rebuild_report",
    "rebuild_value",
    "under",
    "with_text",
]

# Tensors of a local noise.
_LOCAL = ("X", "squares", "counts")


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
        if column.shape[0] != rows or column.dtype.kind != "f":
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
    numbers = ("evidence", "kept")
    values["rounds"] = tuple(
        Round(**{**part, **{name: float(part[name]) for name in numbers}}) for part in fields["rounds"]
    )
    values["law"] = rebuild_law(fields["law"])
    for name in ("value", "evidence", "normal_evidence"):
        values[name] = float(fields[name])
    return RobustReport(**values)


def describe_law(law: NoiseLaw) -> dict[str, Any]:
    """A noise law as JSON."""
    fields: dict[str, Any] = with_text(dataclasses.asdict(law))
    return fields


def rebuild_law(fields: dict[str, Any]) -> NoiseLaw:
    """A noise law from JSON, if it is one."""
    law = NoiseLaw(
        tuple(float(share) for share in fields["shares"]), float(fields["outlier_share"]), float(fields["width"])
    )
    shares = (*law.shares, law.outlier_share)
    if len(shares) != len(SCALES) + 1 or min(shares) < 0.0 or not abs(sum(shares) - 1.0) < 1e-6 or not law.width > 0.0:
        raise SavedModelError("its noise law is none")
    return law


def describe_local(local: LocalNoise | None, held: dict[str, Tensor]) -> dict[str, Any]:
    """Noise that differs from place to place, as JSON; its tensors go among the others."""
    if local is None:
        return {}
    kernel, inner = describe(local.kernel)
    held.update({f"local_kernel.{key}": tensor for key, tensor in inner.items()})
    held.update({f"local.{name}": getattr(local, name) for name in _LOCAL})
    return {"local_kernel": kernel, "local_power": local.power}


def rebuild_local(description: dict[str, Any], tensors: dict[str, Tensor]) -> LocalNoise | None:
    """Noise that differs from place to place, where a description has it."""
    if "local_kernel" not in description:
        return None
    kernel = rebuild_part("local_kernel", gpytorch.kernels.Kernel, description, tensors)
    inputs, squares, counts = (tensors[f"local.{name}"] for name in _LOCAL)
    return LocalNoise(kernel, inputs, squares, counts, float(description["local_power"]))


def check_local(local: LocalNoise | None, d: int) -> None:
    """Refuse a local noise that no fit gives, in ``d`` inputs."""
    if local is None:
        return
    n = len(local.counts)
    shapes = [
        tensor.shape == shape for tensor, shape in ((local.X, (n, d)), (local.squares, (n,)), (local.counts, (n,)))
    ]
    numbers = (local.X, local.squares, local.counts, *local.kernel.parameters())
    finite = [value.dtype == torch.float64 and bool(value.isfinite().all()) for value in numbers]
    positive = [bool((part >= 0).all()) for part in (local.squares, local.counts)]
    if local.power not in POWERS or not all([*shapes, *finite, *positive]):
        raise SavedModelError("its local noise is none")


def under(place: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a place, by what follows it."""
    return {key.removeprefix(f"{place}."): value for key, value in tensors.items() if key.startswith(f"{place}.")}
