"""Exact models as JSON and tensors, and back: of one output, of several together, and of series.

An exact model keeps its data and hyperparameters to the bit; it is factorised again at the first prediction. A model
read from a file is checked: a file with a good checksum may still hold nonsense.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rcgp.estimator.joint import OutputOf
from rcgp.estimator.output import Output, RowDiagnosis
from rcgp.estimator.saved_parts import (
    FLOATS,
    PARTS,
    as_json,
    check_local_noise,
    check_rows,
    collect,
    describe_local_noise,
    finite,
    rebuild_law,
    rebuild_local_noise,
    rebuild_part,
    rebuild_report,
    require,
    under,
)
from rcgp.models import RCGP, MultiOutputRCGP
from rcgp.models.coregion import CoregionKernel
from rcgp.models.local_noise import LocalFactor, LocalNoiseOfOutputs
from rcgp.models.means import OutputMeans
from rcgp.saving import SavedModelError, describe
from rcgp.saving.modules import build_constraint, build_prior, describe_constraint, describe_prior
from rcgp.training import FitReport
from rcgp.weights import ByOutput, Constant, LawWeight, NoiseLaw
from rcgp.weights.noise_law import FLAGGED

__all__ = ["describe_exact", "describe_series", "rebuild_exact", "rebuild_series"]


def describe_exact(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted models of an ``RCGPRegressor`` as JSON; their tensors join the others."""
    one_for_all = isinstance(estimator.models_[0], MultiOutputRCGP)
    if one_for_all and estimator.n_outputs_ == 1:
        raise SavedModelError("one output of a model of several cannot be saved by itself: save the model of all")
    outputs = []
    for i, output in enumerate(estimator._outputs):
        parts = [_described_rows(output)]
        if not one_for_all:
            parts.append(_described_model(output.model, output.report))
        outputs.append({key: value for part in parts for key, value in collect(f"outputs.{i}", part, tensors).items()})
    described = {"outputs": outputs, "output_names": estimator.output_names_}
    if not one_for_all:
        return described
    joint = _described_model(estimator.models_[0], estimator.fit_report_)
    return {**described, "joint": collect("joint", joint, tensors)}


def rebuild_exact(estimator: Any, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Set the fitted attributes of an ``RCGPRegressor``."""
    d, names = estimator.n_features_in_, description.get("output_names")  # which older files do not have
    fits = names is None or (len(names) == len(description["outputs"]) and all(isinstance(name, str) for name in names))
    require(fits, "it does not have one name for each output")
    if "joint" not in description:
        estimator._set_fitted(_rebuild_outputs(description, tensors, RCGP), names)
        _check_exact(estimator, d)
        return
    model, report = _rebuild_model(description["joint"], under("joint", tensors), _build_joint)
    outputs = [
        Output(OutputOf(model, i), report, *_rebuild_rows(output, under(f"outputs.{i}", tensors)))
        for i, output in enumerate(description["outputs"])
    ]
    T = len(outputs)
    sizes = {
        len(model.mean.means),
        len(model.output_weights()),
        len(model.noise),
        *map(len, model.kernel.covariances()),
    }
    require(sizes == {T} and isinstance(model.weight, ByOutput | Constant), "its outputs do not fit together")
    estimator._set_fitted(outputs, names)
    _check_exact(estimator, d + 1)


def describe_series(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted models of an ``RCGPSeries`` as JSON; their tensors join the others."""
    clock = dataclasses.asdict(estimator.clock_)
    return {
        **describe_exact(estimator, tensors),
        "clock": clock,
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
    require(names is None or len(names) == estimator.n_outputs_, "it does not have one name for each column")
    _check_exact(estimator, 1)


def _rebuild_outputs(
    description: dict[str, Any], tensors: dict[str, Tensor], build: Callable[..., RCGP]
) -> list[Output]:
    outputs = []
    for i, output in enumerate(description["outputs"]):
        held = under(f"outputs.{i}", tensors)
        model, report = _rebuild_model(output, held, build)
        outputs.append(Output(model, report, *_rebuild_rows(output, held)))
    return outputs


def _build_joint(X: Tensor, y: Tensor, *, kernel: Any, mean: Any, **options: Any) -> MultiOutputRCGP:
    """A model of several outputs with inputs (x, t)."""
    require(
        isinstance(kernel, CoregionKernel) and isinstance(mean, OutputMeans), "it is not a model of several outputs"
    )
    model = MultiOutputRCGP(X[:, :-1], y, output=X[:, -1], **options)
    model.kernel, model.mean = kernel, mean
    return model


def _check_exact(estimator: Any, d: int) -> None:
    """Raise a SavedModelError for models of ``d`` inputs with shapes and values that no fit gives."""
    rows, cells = len(np.atleast_1d(estimator.weights_)), np.size(estimator.weights_) // len(estimator.models_)
    for model in estimator.models_:
        require(model.train_X.shape[1] == d and len(model.train_y) <= cells, "its data do not fit together")
        require(finite((model.noise, *model.parameters())), "a hyperparameter is not a finite number")
        for own, weight in zip(model.output_rows(), model.output_weights(), strict=True):
            if isinstance(weight, LawWeight):
                _check_law_weight(weight, len(model.train_y[own]))
        check_local_noise(model.local_noise, d)
    check_rows(estimator, rows)


def _described_rows(output: Output) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Law, doubts and diagnosis of the rows of one output."""
    held = {name: torch.from_numpy(getattr(output.rows, name)) for name in FLOATS}
    return {"law": as_json(output.law), "doubts": list(output.doubts)}, held


def _rebuild_rows(
    description: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[NoiseLaw, tuple[str, ...], RowDiagnosis]:
    flags = (tensors["outlier_probability"] > FLAGGED).numpy()
    rows = RowDiagnosis(0, outliers=flags, **{name: tensors[name].numpy() for name in FLOATS})
    return rebuild_law(description["law"]), tuple(str(doubt) for doubt in description["doubts"]), rows


def _described_model(model: RCGP, report: FitReport) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One fitted model and the report of its fit."""
    held: dict[str, Tensor] = {"train_X": model.train_X, "train_y": model.train_y, "raw_noise": model.raw_noise}
    if model.sample_weight is not None:
        held["sample_weight"] = model.sample_weight
    if isinstance(model, MultiOutputRCGP):
        held["observed"] = model.observed
    prior = None
    if "noise_prior" in model._priors:
        prior = collect("noise_prior", describe_prior(model, "noise_prior", "the noise"), held)
    constraint = describe_constraint(model.raw_noise_constraint, "the noise")
    description = {
        **{name: collect(name, describe(getattr(model, name)), held) for name in PARTS},
        "noise_constraint": collect("noise_constraint", constraint, held),
        "noise_prior": prior,
        "noise_is_fitted": model.raw_noise.requires_grad,
        "report": as_json(report),
    }
    if isinstance(model.local_noise, LocalNoiseOfOutputs):
        parts = enumerate(model.local_noise.outputs)
        description["local_outputs"] = [describe_local_noise(part, held, f"local.{i}") for i, part in parts]
    else:
        description.update(describe_local_noise(model.local_noise, held))
    return description, held


def _rebuild_model(
    description: dict[str, Any], tensors: dict[str, Tensor], build: Callable[..., RCGP]
) -> tuple[Any, FitReport]:
    kernel, mean, weight = (rebuild_part(name, description, tensors) for name in PARTS)
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
    if isinstance(model, MultiOutputRCGP):
        model.observed = tensors["observed"]
        require(model.observed.dtype == torch.bool and int(model.observed.sum()) == len(y), "its cells are invalid")
    if "local_outputs" in description:
        parts = enumerate(description["local_outputs"])
        local = tuple(rebuild_local_noise(part, tensors, f"local.{i}") for i, part in parts)
        require(None not in local and len(local) == len(model.output_rows()), "its local noise is invalid")
        model.local_noise = LocalNoiseOfOutputs(cast(tuple[LocalFactor, ...], local))
    else:
        model.local_noise = rebuild_local_noise(description, tensors)
    return model, rebuild_report(description["report"])


def _check_law_weight(weight: LawWeight, rows: int) -> None:
    parts = (weight.mean, weight.variance, weight.local, weight.relative)
    positive = all(bool((part > 0).all()) for part in (weight.local, weight.relative))
    shaped = all(part.shape == (rows,) for part in parts)
    require(shaped and positive and finite(parts), "its weights are invalid")
