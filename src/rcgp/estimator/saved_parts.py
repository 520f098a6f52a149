"""Parts of fitted models as JSON and tensors, and back: what exact and sparse models share in a file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.estimator.output import ROW_ATTRIBUTES
from rcgp.models.local_noise import POWERS, LocalFactor, LocalNoise, LocalNoiseOfOutputs
from rcgp.saving import SavedModelError, describe, rebuild
from rcgp.training import FitReport, RobustReport, Round
from rcgp.weights import NoiseLaw, WeightFunction
from rcgp.weights.noise_law import SCALES

__all__ = [
    "FLOATS",
    "PARTS",
    "as_json",
    "check_local_noise",
    "check_rows",
    "collect",
    "describe_local_noise",
    "finite",
    "rebuild_law",
    "rebuild_local_noise",
    "rebuild_part",
    "rebuild_report",
    "require",
    "under",
]

PARTS = {"kernel": gpytorch.kernels.Kernel, "mean": gpytorch.means.Mean, "weight": WeightFunction}
FLOATS = tuple(name for name in ROW_ATTRIBUTES if name != "outliers")
# Tensors of a local noise, and of one that varies in time.
_LOCAL, _IN_TIME = ("X", "squares", "counts"), ("times", "squares", "counts")


def collect(place: str, described: tuple[dict[str, Any], dict[str, Tensor]], tensors: dict[str, Tensor]) -> Any:
    """The JSON of a described part; its tensors join the others under the name of its place."""
    description, own = described
    tensors.update({f"{place}.{key}": tensor for key, tensor in own.items()})
    return description


def under(place: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a place, by the rest of their names."""
    return {key.removeprefix(f"{place}."): value for key, value in tensors.items() if key.startswith(f"{place}.")}


def rebuild_part(name: str, description: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """A module of a model, if it is of the right class."""
    part = rebuild(description[name], under(name, tensors))
    require(isinstance(part, PARTS[name]), f"its {name} is a {type(part).__name__}")
    return part


def as_json(value: Any) -> Any:
    """Dataclasses and plain values as JSON, which has no infinities or NaN: they become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_json(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def rebuild_report(fields: dict[str, Any]) -> FitReport:
    values = {
        **fields,
        "starts": tuple(float(value) for value in fields["starts"]),
        "hyperparameters": {key: [float(value) for value in part] for key, part in fields["hyperparameters"].items()},
    }
    if "rounds" not in fields:
        return FitReport(**values)
    values["rounds"] = tuple(
        Round(**{**part, **{name: float(part[name]) for name in ("evidence", "kept")}}) for part in fields["rounds"]
    )
    # Until version 0.2 there was one law.
    values["laws"] = tuple(rebuild_law(law) for law in fields.get("laws", [values.pop("law", None)]))
    for name in ("value", "evidence", "normal_evidence"):
        values[name] = float(fields[name])
    return RobustReport(**values)


def rebuild_law(fields: dict[str, Any]) -> NoiseLaw:
    shares, outlier_share = tuple(float(share) for share in fields["shares"]), float(fields["outlier_share"])
    law = NoiseLaw(shares, outlier_share, float(fields["width"]))
    valid = len(shares) == len(SCALES) and min(*shares, outlier_share) >= 0.0 and law.width > 0.0
    require(valid and abs(sum(shares) + outlier_share - 1.0) < 1e-6, "its noise law is invalid")
    return law


def describe_local_noise(local: LocalFactor | None, held: dict[str, Tensor], place: str = "local") -> dict[str, Any]:
    """Local noise of one output as JSON; its tensors join the others."""
    if local is None:
        return {}
    if not isinstance(local, LocalNoise):  # of a series
        held.update({f"{place}.{name}": getattr(local, name) for name in _IN_TIME})
        return {"local_timescale": local.timescale}  # type: ignore[attr-defined]
    held.update({f"{place}.{name}": getattr(local, name) for name in _LOCAL})
    return {"local_kernel": collect(f"{place}_kernel", describe(local.kernel), held), "local_power": local.power}


def rebuild_local_noise(
    description: dict[str, Any], tensors: dict[str, Tensor], place: str = "local"
) -> LocalFactor | None:
    if "local_timescale" in description:
        from rcgp.series.local_noise import NoiseInTime  # which needs numba

        times, squares, counts = (tensors[f"{place}.{name}"] for name in _IN_TIME)
        return NoiseInTime(times, squares, counts, float(description["local_timescale"]))
    if "local_kernel" not in description:
        return None
    kernel = rebuild(description["local_kernel"], under(f"{place}_kernel", tensors))
    require(isinstance(kernel, gpytorch.kernels.Kernel), "its local_kernel is not a kernel")
    X, squares, counts = (tensors[f"{place}.{name}"] for name in _LOCAL)
    return LocalNoise(kernel, X, squares, counts, float(description["local_power"]))


def check_local_noise(local: Any, d: int) -> None:
    """Raise a SavedModelError for a local noise of ``d`` inputs that no fit gives."""
    if local is None:
        return
    if isinstance(local, LocalNoiseOfOutputs):
        for part in local.outputs:
            check_local_noise(part, d)
        return
    n, values = len(local.counts), (local.squares, local.counts)
    if isinstance(local, LocalNoise):
        known = local.power in POWERS and local.X.shape == (n, d)
        numbers = (*values, local.X, *local.kernel.parameters())
    else:
        in_order = n > 0 and local.times.shape == (n,) and bool((local.times.diff() >= 0.0).all())
        known = d == 1 and local.timescale > 0.0 and in_order
        numbers = (*values, local.times)
    positive = all(part.shape == (n,) and bool((part >= 0).all()) for part in values)
    require(known and positive and finite(numbers, torch.float64), "its local noise is invalid")


def check_rows(estimator: Any, rows: int) -> None:
    """Raise a SavedModelError unless each attribute of the rows has a value for each."""
    for name in ROW_ATTRIBUTES:
        values = getattr(estimator, f"{name}_")
        kind = "b" if name == "outliers" else "f"
        require(values.shape[:1] == (rows,) and values.dtype.kind == kind, f"its {name} are invalid")


def finite(tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> bool:
    """Whether all numbers are finite and, if given, of that type."""
    return all(bool(value.isfinite().all()) and value.dtype == (dtype or value.dtype) for value in tensors)


def require(condition: bool, complaint: str) -> None:
    if not condition:
        raise SavedModelError(complaint)
