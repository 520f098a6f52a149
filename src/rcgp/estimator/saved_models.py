"""Fitted models as JSON and tensors, and back.

An exact model keeps its data and hyperparameters to the bit; it is factorised again at the first prediction. A sparse
model does not keep its rows, so it keeps its factors: a few m x m matrices. A model read from a file is checked: a
file with a good checksum may still hold nonsense.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor, nn

from rcgp.chunked.fit import ChunkedFit
from rcgp.chunked.passes import ByLaw, Diagnose, Given, Link, Noise, Rule, View
from rcgp.core.sparse import SparsePosterior
from rcgp.estimator.output import ROW_ATTRIBUTES, Output, RowDiagnosis
from rcgp.models import RCGP
from rcgp.models.local_noise import POWERS, LocalNoise
from rcgp.saving import SavedModelError, describe, rebuild
from rcgp.saving.modules import build_constraint, build_prior, describe_constraint, describe_prior
from rcgp.training import FitReport, RobustReport, Round
from rcgp.weights import Constant, LawWeight, NoiseLaw, WeightFunction
from rcgp.weights.noise_law import FLAGGED, SCALES

__all__ = [
    "collect",
    "describe_exact",
    "describe_series",
    "describe_sparse",
    "rebuild_exact",
    "rebuild_series",
    "rebuild_sparse",
    "under",
]

_PARTS = {"kernel": gpytorch.kernels.Kernel, "mean": gpytorch.means.Mean, "weight": WeightFunction}
_FLOATS = tuple(name for name in ROW_ATTRIBUTES if name != "outliers")
_LOCAL = ("X", "squares", "counts")  # tensors of a local noise
_FACTORS = ("L_B", "root", "alpha")  # of a posterior, beside the L that all share
_NOISES = ("noise", "flags")  # of a Diagnose


def collect(place: str, described: tuple[dict[str, Any], dict[str, Tensor]], tensors: dict[str, Tensor]) -> Any:
    """The JSON of a described part; its tensors join the others under the name of its place."""
    description, own = described
    tensors.update({f"{place}.{key}": tensor for key, tensor in own.items()})
    return description


def under(place: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a place, by the rest of their names."""
    return {key.removeprefix(f"{place}."): value for key, value in tensors.items() if key.startswith(f"{place}.")}


# Exact models ---------------------------------------------------------------------------------------------------------


def describe_exact(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted models of an ``RCGPRegressor`` as JSON; their tensors join the others."""
    places = [f"outputs.{i}" for i in range(estimator.n_outputs_)]
    return {"outputs": [collect(place, _described(estimator, i), tensors) for i, place in enumerate(places)]}


def rebuild_exact(estimator: Any, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Set the fitted attributes of an ``RCGPRegressor``."""
    estimator._set_fitted(_rebuild_outputs(description, tensors, RCGP))
    _check_exact(estimator, estimator.n_features_in_)


def describe_series(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted models of an ``RCGPSeries`` as JSON; their tensors join the others."""
    clock, names = dataclasses.asdict(estimator.clock_), estimator.output_names_
    return {
        **describe_exact(estimator, tensors),
        "clock": clock,
        "output_names": names,
        "last": estimator.last_,
        "gap": estimator.gap_,
        "harmonics": estimator.models_[0].harmonics,
    }


def rebuild_series(estimator: Any, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Set the fitted attributes of an ``RCGPSeries``."""
    from rcgp.series import StateSpaceRCGP
    from rcgp.series.clock import Clock

    build = functools.partial(StateSpaceRCGP, harmonics=int(description["harmonics"]))
    clock, names = Clock(**description["clock"]), description["output_names"]
    clock.times(np.zeros(1))  # or an error for an origin that is none
    ends = float(description["last"]), float(description["gap"])
    estimator._set_fitted(_rebuild_outputs(description, tensors, build), clock, names, *ends)
    _require(names is None or len(names) == estimator.n_outputs_, "it does not have one name for each column")
    _check_exact(estimator, 1)


def _rebuild_outputs(
    description: dict[str, Any], tensors: dict[str, Tensor], build: Callable[..., RCGP]
) -> list[Output]:
    outputs = enumerate(description["outputs"])
    return [_rebuild_output(output, under(f"outputs.{i}", tensors), build) for i, output in outputs]


def _check_exact(estimator: Any, d: int) -> None:
    """Raise a SavedModelError for models of ``d`` inputs with shapes and values that no fit gives."""
    rows = len(np.atleast_1d(estimator.weights_))
    for model in estimator.models_:
        _require(model.train_X.shape[1] == d and len(model.train_y) <= rows, "its data do not fit together")
        _require(_finite((model.noise, *model.parameters())), "a hyperparameter is not a finite number")
        if isinstance(model.weight, LawWeight):
            _check_law_weight(model.weight, len(model.train_y))
        _check_local_noise(model.local_noise, d)
    _check_rows(estimator, rows)


def _described(estimator: Any, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One fitted model and its diagnosis of the rows."""

    def own(values: Any) -> Any:
        return values if estimator.n_outputs_ == 1 else values[index]

    model = estimator.models_[index]
    held: dict[str, Tensor] = {"train_X": model.train_X, "train_y": model.train_y, "raw_noise": model.raw_noise}
    if model.sample_weight is not None:
        held["sample_weight"] = model.sample_weight
    for name in _FLOATS:
        held[name] = torch.from_numpy(np.ascontiguousarray(own(getattr(estimator, f"{name}_").T)))
    prior = None
    if "noise_prior" in model._priors:
        prior = collect("noise_prior", describe_prior(model, "noise_prior", "the noise"), held)
    constraint = describe_constraint(model.raw_noise_constraint, "the noise")
    description = {
        **{name: collect(name, describe(getattr(model, name)), held) for name in _PARTS},
        **_describe_local_noise(model.local_noise, held),
        "noise_constraint": collect("noise_constraint", constraint, held),
        "noise_prior": prior,
        "noise_is_fitted": model.raw_noise.requires_grad,
        "report": _as_json(own(estimator.fit_report_)),
        "law": _as_json(own(estimator.noise_law_)),
        "doubts": list(own(estimator.doubts_)),
    }
    return description, held


def _rebuild_output(description: dict[str, Any], tensors: dict[str, Tensor], build: Callable[..., RCGP]) -> Output:
    kernel, mean, weight = (_rebuild_part(name, description, tensors) for name in _PARTS)
    # Set after the constructor, which would initialise a trainable threshold again.
    X, y = tensors["train_X"], tensors["train_y"]
    model = build(X, y, kernel=kernel, mean=mean, weight=Constant(), sample_weight=tensors.get("sample_weight"))
    model.weight = weight
    bounds, prior = under("noise_constraint", tensors), under("noise_prior", tensors)
    constraint = build_constraint(description["noise_constraint"], bounds.pop, model.raw_noise.shape, "the noise")
    model.register_constraint("raw_noise", constraint)
    with torch.no_grad():
        model.raw_noise.copy_(tensors["raw_noise"])
    model.raw_noise.requires_grad_(description["noise_is_fitted"])
    if description["noise_prior"] is not None:
        build_prior(model, "noise_prior", description["noise_prior"], prior.pop, "the noise")
    model.local_noise = _rebuild_local_noise(description, tensors)
    flags = (tensors["outlier_probability"] > FLAGGED).numpy()
    rows = RowDiagnosis(0, outliers=flags, **{name: tensors[name].numpy() for name in _FLOATS})
    law, doubts = _rebuild_law(description["law"]), tuple(str(doubt) for doubt in description["doubts"])
    return Output(model, _rebuild_report(description["report"]), law, doubts, rows)


def _check_law_weight(weight: LawWeight, rows: int) -> None:
    parts = (weight.mean, weight.variance, weight.local, weight.relative)
    positive = all(bool((part > 0).all()) for part in (weight.local, weight.relative))
    shaped = all(part.shape == (rows,) for part in parts)
    _require(shaped and positive and _finite(parts), "its weights are invalid")


# Sparse models --------------------------------------------------------------------------------------------------------


def describe_sparse(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted model of a ``SparseRCGPRegressor`` as JSON; its tensors join the others."""
    fitted: ChunkedFit = estimator.model_
    diagnose, view, rule = fitted.diagnose, fitted.diagnose.view, fitted.diagnose.rule
    held = {"Z": view.Z, "L": view.L, **_factors("posterior", diagnose.posterior)}
    description: dict[str, Any] = {name: _describe_noise(name, getattr(diagnose, name), held) for name in _NOISES}
    if isinstance(rule, ByLaw):
        description["links"] = [_describe_noise(f"link.{i}", link.noise, held) for i, link in enumerate(rule.links)]
        for i, link in enumerate(rule.links):
            held.update(_factors(f"link.{i}", link.posterior))
    elif isinstance(rule, Given):
        description["weight"] = collect("weight", describe(rule.weight), held)
        held["weight_variance"] = rule.variance
    if hasattr(estimator, "weights_"):
        held.update({name: torch.from_numpy(getattr(estimator, f"{name}_")) for name in ROW_ATTRIBUTES})
    description.update(
        kernel=collect("kernel", describe(view.kernel), held),
        mean=collect("mean", describe(view.prior_mean), held),
        **_describe_local_noise(view.local_noise, held),
        report=_as_json(fitted.report),
        polished=None if fitted.polished is None else _as_json(fitted.polished),
        rows=fitted.rows,
        fitted_rows=fitted.fitted_rows,
        doubts=list(fitted.doubts),
        trusted_spread=_as_json(fitted.trusted_spread),
        unseen=_as_json(fitted.unseen),
        seconds=fitted.seconds,
    )
    return {"model": collect("model", (description, held), tensors)}


def rebuild_sparse(estimator: Any, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Set the fitted attributes of a ``SparseRCGPRegressor``."""
    model, held = description["model"], under("model", tensors)
    kernel, mean = _rebuild_part("kernel", model, held), _rebuild_part("mean", model, held)
    view = View(mean, kernel, held["Z"], held["L"], _rebuild_local_noise(model, held))
    rule: Rule
    if "links" in model:
        laws = enumerate(model["links"])
        rule = ByLaw(
            tuple(Link(_posterior(f"link.{i}", held), _rebuild_noise(f"link.{i}", law, held)) for i, law in laws)
        )
    else:
        rule = Given(_rebuild_part("weight", model, held), held["weight_variance"])
    noise, flags = (_rebuild_noise(name, model[name], held) for name in _NOISES)
    fitted = ChunkedFit(
        diagnose=Diagnose(view, rule, _posterior("posterior", held), noise, flags),
        report=_rebuild_report(model["report"]),
        polished=None if model["polished"] is None else _rebuild_report(model["polished"]),
        rows=int(model["rows"]),
        fitted_rows=int(model["fitted_rows"]),
        doubts=tuple(str(doubt) for doubt in model["doubts"]),
        trusted_spread=float(model["trusted_spread"]),
        unseen=float(model["unseen"]),
        seconds={str(step): float(value) for step, value in model["seconds"].items()},
    )
    rows = RowDiagnosis(0, *(held[name].numpy() for name in ROW_ATTRIBUTES)) if "weights" in held else None
    estimator._set_fitted(fitted, rows)
    _check_sparse(fitted.diagnose, estimator.n_features_in_)
    if rows is not None:
        _check_rows(estimator, len(rows.weights))


def _check_sparse(diagnose: Diagnose, d: int) -> None:
    """Raise a SavedModelError for shapes and values that no fit gives."""
    view, rule = diagnose.view, diagnose.rule
    m, links = view.Z.shape[0], rule.links if isinstance(rule, ByLaw) else ()
    posteriors = [diagnose.posterior, *(link.posterior for link in links)]
    variances = [diagnose.noise.variance, diagnose.flags.variance, *(link.noise.variance for link in links)]
    if isinstance(rule, Given):
        variances.append(rule.variance)
    _require(isinstance(rule, Given) or bool(links), "it has no rule for its weights")
    shapes = [(view.Z, (m, d)), (view.L, (m, m)), *((variance, ()) for variance in variances)]
    for posterior in posteriors:
        shapes += [(posterior.L_B, (m, m)), (posterior.root, (m,)), (posterior.alpha, (m,))]
    _check_local_noise(view.local_noise, d)
    _require(m > 0 and all(tensor.shape == shape for tensor, shape in shapes), "its data do not fit together")
    numbers = [*(tensor for tensor, _ in shapes), *view.kernel.parameters(), *view.prior_mean.parameters()]
    _require(_finite(numbers, torch.float64), "a hyperparameter is not a finite number")
    diagonals = [factor.diagonal() for factor in (view.L, *(posterior.L_B for posterior in posteriors))]
    _require(all(bool((part > 0).all()) for part in (*variances, *diagonals)), "a variance in it is not positive")


def _describe_noise(place: str, noise: Noise, held: dict[str, Tensor]) -> dict[str, Any]:
    """A noise law as JSON; its variance joins the tensors."""
    held[f"{place}.variance"] = noise.variance
    law: dict[str, Any] = _as_json(noise.law)
    return law


def _rebuild_noise(place: str, law: dict[str, Any], held: dict[str, Tensor]) -> Noise:
    return Noise(_rebuild_law(law), held[f"{place}.variance"])


def _factors(place: str, posterior: SparsePosterior) -> dict[str, Tensor]:
    return {f"{place}.{name}": getattr(posterior, name) for name in _FACTORS}


def _posterior(place: str, held: dict[str, Tensor]) -> SparsePosterior:
    return SparsePosterior(held["L"], *(held[f"{place}.{name}"] for name in _FACTORS))


# Parts of both --------------------------------------------------------------------------------------------------------


def _rebuild_part(
    name: str, description: dict[str, Any], tensors: dict[str, Tensor], cls: type[nn.Module] | None = None
) -> Any:
    """A module of a model, if it is of the right class."""
    part = rebuild(description[name], under(name, tensors))
    _require(isinstance(part, cls or _PARTS[name]), f"its {name} is a {type(part).__name__}")
    return part


def _as_json(value: Any) -> Any:
    """Dataclasses and plain values as JSON, which has no infinities or NaN: they become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _as_json(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rebuild_report(fields: dict[str, Any]) -> FitReport:
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
    values["laws"] = tuple(_rebuild_law(law) for law in fields["laws"])
    for name in ("value", "evidence", "normal_evidence"):
        values[name] = float(fields[name])
    return RobustReport(**values)


def _rebuild_law(fields: dict[str, Any]) -> NoiseLaw:
    shares, outlier_share = tuple(float(share) for share in fields["shares"]), float(fields["outlier_share"])
    law = NoiseLaw(shares, outlier_share, float(fields["width"]))
    valid = len(shares) == len(SCALES) and min(*shares, outlier_share) >= 0.0 and law.width > 0.0
    _require(valid and abs(sum(shares) + outlier_share - 1.0) < 1e-6, "its noise law is invalid")
    return law


def _describe_local_noise(local: LocalNoise | None, held: dict[str, Tensor]) -> dict[str, Any]:
    """Local noise as JSON; its tensors join the others."""
    if local is None:
        return {}
    held.update({f"local.{name}": getattr(local, name) for name in _LOCAL})
    return {"local_kernel": collect("local_kernel", describe(local.kernel), held), "local_power": local.power}


def _rebuild_local_noise(description: dict[str, Any], tensors: dict[str, Tensor]) -> LocalNoise | None:
    if "local_kernel" not in description:
        return None
    kernel = _rebuild_part("local_kernel", description, tensors, gpytorch.kernels.Kernel)
    X, squares, counts = (tensors[f"local.{name}"] for name in _LOCAL)
    return LocalNoise(kernel, X, squares, counts, float(description["local_power"]))


def _check_local_noise(local: LocalNoise | None, d: int) -> None:
    if local is None:
        return
    n = len(local.counts)
    shaped = local.X.shape == (n, d) and local.squares.shape == (n,) and local.counts.shape == (n,)
    finite = _finite((local.X, local.squares, local.counts, *local.kernel.parameters()), torch.float64)
    positive = all(bool((part >= 0).all()) for part in (local.squares, local.counts))
    _require(local.power in POWERS and shaped and finite and positive, "its local noise is invalid")


def _check_rows(estimator: Any, rows: int) -> None:
    """Raise a SavedModelError unless each attribute of the rows has a value for each."""
    for name in ROW_ATTRIBUTES:
        values = getattr(estimator, f"{name}_")
        kind = "b" if name == "outliers" else "f"
        _require(values.shape[:1] == (rows,) and values.dtype.kind == kind, f"its {name} are invalid")


def _finite(tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> bool:
    """Whether all numbers are finite and, if given, of that type."""
    return all(bool(value.isfinite().all()) and value.dtype == (dtype or value.dtype) for value in tensors)


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        raise SavedModelError(complaint)
