"""The fitted models of an :class:`RCGPRegressor` as JSON and tensors.

The data and the hyperparameters are kept to the bit, not the factorisation: that is recomputed at the first prediction,
by the same operations on the same numbers.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rcgp.estimator.exact_answers import PER_ROW
from rcgp.estimator.output import Output
from rcgp.estimator.parameters import recipe
from rcgp.estimator.regressor import RCGPRegressor
from rcgp.estimator.saved_parts import (
    check_local,
    check_per_row,
    describe_law,
    describe_local,
    describe_report,
    rebuild_law,
    rebuild_local,
    rebuild_part,
    rebuild_report,
    under,
)
from rcgp.models import RCGP
from rcgp.saving import SavedModelError, describe
from rcgp.saving.attachments import build_constraint, build_prior, describe_constraint, describe_prior
from rcgp.weights import Constant, LawWeight, WeightFunction

__all__ = ["check_exact", "describe_exact", "rebuild_exact"]

_PARTS = {"kernel": gpytorch.kernels.Kernel, "mean": gpytorch.means.Mean, "weight": WeightFunction}


def describe_exact(estimator: RCGPRegressor, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What was fitted; its tensors go among the others."""
    return {"outputs": [_describe_output(estimator, i, tensors) for i in range(estimator.n_outputs_)]}


def rebuild_exact(estimator: RCGPRegressor, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give an estimator what was fitted."""
    outputs = [
        _rebuild_output(output, under(f"outputs.{i}", tensors)) for i, output in enumerate(description["outputs"])
    ]
    estimator._keep(outputs)


def check_exact(estimator: RCGPRegressor) -> None:
    """Refuse what no estimator that was fitted can be."""
    recipe(estimator)
    rows = len(np.atleast_1d(estimator.weights_))
    for model in estimator.models_:
        if model.train_X.shape[1] != estimator.n_features_in_ or len(model.train_y) > rows:
            raise SavedModelError("its data do not fit together")
        if not all(bool(value.isfinite().all()) for value in (model.noise, *model.parameters())):
            raise SavedModelError("a hyperparameter is not a finite number")
        if isinstance(model.weight, LawWeight):
            _check_law_weight(model.weight, len(model.train_y))
        check_local(model.local_noise, estimator.n_features_in_)
    check_per_row(estimator, PER_ROW, rows)


def _check_law_weight(weight: LawWeight, rows: int) -> None:
    """Refuse leave-one-out moments and factors that no fit gives."""
    parts = (weight.mean, weight.variance, weight.local, weight.relative)
    sound = all(part.shape == (rows,) and bool(part.isfinite().all()) for part in parts)
    if not sound or not all(bool((part > 0).all()) for part in (weight.local, weight.relative)):
        raise SavedModelError("its weights are not what a fit gives")


def _describe_output(estimator: RCGPRegressor, index: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """One fitted model and what it said of each row."""
    model, place = estimator.models_[index], f"outputs.{index}"
    held: dict[str, Tensor] = {"train_X": model.train_X, "train_y": model.train_y, "raw_noise": model.raw_noise}
    if model.sample_weight is not None:
        held["sample_weight"] = model.sample_weight
    for name in PER_ROW:
        column = getattr(estimator, f"{name}_")
        held[name] = torch.from_numpy(np.ascontiguousarray(column if estimator.n_outputs_ == 1 else column[:, index]))
    parts = {}
    for name in _PARTS:
        parts[name], inner = describe(getattr(model, name))
        held.update({f"{name}.{key}": tensor for key, tensor in inner.items()})
    constraint, bounds = describe_constraint(model.raw_noise_constraint, "the noise")
    held.update({f"noise_constraint.{key}": tensor for key, tensor in bounds.items()})
    prior = None
    if "noise_prior" in model._priors:
        prior, inner = describe_prior(model, "noise_prior", "the noise")
        held.update({f"noise_prior.{key}": tensor for key, tensor in inner.items()})
    parts.update(describe_local(model.local_noise, held))
    tensors.update({f"{place}.{key}": tensor for key, tensor in held.items()})
    law, doubts = (
        value if estimator.n_outputs_ == 1 else value[index] for value in (estimator.noise_law_, estimator.doubts_)
    )
    report = estimator.fit_report_ if estimator.n_outputs_ == 1 else estimator.fit_report_[index]
    return {
        **parts,
        "noise_constraint": constraint,
        "noise_prior": prior,
        "noise_is_fitted": model.raw_noise.requires_grad,
        "report": describe_report(report),
        "law": describe_law(law),
        "doubts": list(doubts),
    }


def _rebuild_output(description: dict[str, Any], tensors: dict[str, Tensor]) -> Output:
    kernel, mean, weight = (rebuild_part(name, cls, description, tensors) for name, cls in _PARTS.items())
    model = RCGP(
        tensors["train_X"],
        tensors["train_y"],
        kernel=kernel,
        mean=mean,
        weight=Constant(),  # a constructor starts a trainable threshold anew
        sample_weight=tensors.get("sample_weight"),
    )
    model.weight = weight
    bounds, prior = under("noise_constraint", tensors), under("noise_prior", tensors)
    shape = model.raw_noise.shape
    constraint = build_constraint(description["noise_constraint"], bounds.pop, shape, "the noise")
    model.register_constraint("raw_noise", constraint)
    with torch.no_grad():
        model.raw_noise.copy_(tensors["raw_noise"])
    model.raw_noise.requires_grad_(description["noise_is_fitted"])
    if description["noise_prior"] is not None:
        build_prior(model, "noise_prior", description["noise_prior"], prior.pop, "the noise")
    model.local_noise = rebuild_local(description, tensors)
    return Output(
        model,
        rebuild_report(description["report"]),
        rebuild_law(description["law"]),
        tuple(str(doubt) for doubt in description["doubts"]),
        **{name: tensors[name] for name in PER_ROW},
    )
