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

from rcgp.estimator.output import Output
from rcgp.estimator.parameters import recipe
from rcgp.estimator.regressor import RCGPRegressor
from rcgp.estimator.saved_parts import check_per_row, describe_report, rebuild_part, rebuild_report, under
from rcgp.models import RCGP
from rcgp.saving import SavedModelError, describe
from rcgp.saving.attachments import build_constraint, build_prior, describe_constraint, describe_prior
from rcgp.weights import Constant, WeightFunction

__all__ = ["check_exact", "describe_exact", "rebuild_exact"]

_PARTS = {"kernel": gpytorch.kernels.Kernel, "mean": gpytorch.means.Mean, "weight": WeightFunction}
_PER_ROW = ("weights", "outlier_scores", "outliers", "loo_mean", "loo_std")


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
    check_per_row(estimator, _PER_ROW, rows)


def _describe_output(estimator: RCGPRegressor, index: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """One fitted model and what it said of each row."""
    model, place = estimator.models_[index], f"outputs.{index}"
    held: dict[str, Tensor] = {"train_X": model.train_X, "train_y": model.train_y, "raw_noise": model.raw_noise}
    if model.sample_weight is not None:
        held["sample_weight"] = model.sample_weight
    for name in _PER_ROW:
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
    tensors.update({f"{place}.{key}": tensor for key, tensor in held.items()})
    report = estimator.fit_report_ if estimator.n_outputs_ == 1 else estimator.fit_report_[index]
    return {
        **parts,
        "noise_constraint": constraint,
        "noise_prior": prior,
        "noise_is_fitted": model.raw_noise.requires_grad,
        "report": None if report is None else describe_report(report),
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
    report = None if description["report"] is None else rebuild_report(description["report"])
    return Output(model, report, **{name: tensors[name] for name in _PER_ROW})
