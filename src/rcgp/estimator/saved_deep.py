"""A fitted ``DeepRCGPRegressor`` as JSON and tensors, and back.

The file holds the numbers of the trained model, none of its classes: the parameters of the estimator say how it is
built. What is read is checked, since a file with a good checksum may still hold nonsense.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from rcgp.estimator.deep import FittedDeep
from rcgp.estimator.saved_parts import require, under
from rcgp.gpytorch import NoiseLawLikelihood
from rcgp.gpytorch.deep import DeepModel
from rcgp.gpytorch.deep_fit import DeepReport

__all__ = ["describe_deep", "rebuild_deep"]

_PARTS = ("model", "likelihood")
_UNITS = ("X_centre", "X_scale")
_ROWS = ("weights", "outlier_probability")
_POINTS = "model.hidden.0.variational_strategy.inducing_points", "model.last.variational_strategy.inducing_points"


def describe_deep(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted model as JSON; its tensors join the others."""
    fitted: FittedDeep = estimator.model_
    for part in _PARTS:
        tensors.update({f"{part}.{name}": value for name, value in _state(getattr(fitted, part)).items()})
    tensors.update({name: getattr(fitted, name) for name in _UNITS})
    tensors.update({name: torch.from_numpy(getattr(estimator, f"{name}_")) for name in _ROWS})
    return {
        "y_centre": fitted.y_centre,
        "y_scale": fitted.y_scale,
        "report": {**dataclasses.asdict(estimator.fit_report_), "scores": list(estimator.fit_report_.scores)},
        "doubts": list(estimator.doubts_),
    }


def rebuild_deep(estimator: Any, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Set the fitted attributes of a ``DeepRCGPRegressor``."""
    d, layers, rows = estimator.n_features_in_, int(estimator.n_layers), tensors["weights"]
    hidden = {name.split(".")[2] for name in tensors if name.startswith("model.hidden.")}
    require(len(hidden) == layers - 1, "its layers are not those of its parameters")
    m = tensors[_POINTS[layers == 1]].shape[-2]
    model = DeepModel(torch.eye(m, d, dtype=torch.float64), layers)
    likelihood = NoiseLawLikelihood(torch.zeros(len(rows), dtype=torch.float64))
    y_units = float(description["y_centre"]), float(description["y_scale"])
    fitted = FittedDeep(model, likelihood, tensors["X_centre"], tensors["X_scale"], *y_units)
    for part in _PARTS:
        _load(getattr(fitted, part), part, tensors)
    _check(fitted, rows, tensors["outlier_probability"], d)
    model.eval()
    likelihood.eval()
    report = DeepReport(**{**description["report"], "scores": tuple(map(float, description["report"]["scores"]))})
    doubts = tuple(str(doubt) for doubt in description["doubts"])
    estimator._set_fitted(fitted, report, doubts, *(tensors[name].numpy() for name in _ROWS))


def _state(module: nn.Module) -> dict[str, Tensor]:
    """The numbers of a module that training or its data decide: not infinite bounds, nor switches."""
    state = module.state_dict()
    return {
        name: value.detach().clone()
        for name, value in state.items()
        if value.is_floating_point() and bool(value.isfinite().all())
    }


def _load(module: nn.Module, part: str, tensors: dict[str, Tensor]) -> None:
    given, wanted = under(part, tensors), _state(module)
    require(given.keys() == wanted.keys(), f"its {part} has other parts than its parameters say")
    fits = all(given[name].shape == value.shape and given[name].dtype == value.dtype for name, value in wanted.items())
    require(fits, f"the tensors of its {part} do not fit together")
    require(all(bool(value.isfinite().all()) for value in given.values()), "a number in it is not finite")
    module.load_state_dict({**module.state_dict(), **given})


def _check(fitted: FittedDeep, weights: Tensor, probability: Tensor, d: int) -> None:
    """Raise a SavedModelError for shapes and values that no fit gives."""
    shaped = all(part.shape == (d,) for part in (fitted.X_centre, fitted.X_scale))
    require(shaped and weights.ndim == 1 and weights.shape == probability.shape, "its data do not fit together")
    law = fitted.likelihood
    positive = (fitted.X_scale, law.spread, law.width, law.noise, torch.tensor(fitted.y_scale))
    require(all(bool((part > 0).all()) for part in positive), "a scale in it is not positive")
    require(bool((law.counts >= 0).all()), "its noise law is invalid")
    numbers = (fitted.X_centre, fitted.X_scale, weights, probability, torch.tensor([fitted.y_centre, fitted.y_scale]))
    require(all(bool(part.isfinite().all()) for part in numbers), "a number in it is not finite")
