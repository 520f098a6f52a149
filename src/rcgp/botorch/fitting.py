"""Choosing the hyperparameters and the noise law of a BoTorch model.

Each model of a batch is taken out as an :class:`rcgp.RCGP` and fitted robustly. If that fit keeps a law
(:mod:`rcgp.training.robust`), law and hyperparameters are written back. Otherwise the model is an ordinary GP, and
BoTorch fits it exactly as it fits ``SingleTaskGP``: with the objective, the optimiser and the options that the caller
gave.

Models that share hyperparameters, or whose inputs are transformed by something learned, cannot be taken out: there the
law keeps its prior shares, and BoTorch's optimiser maximises the leave-one-out score under it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import gpytorch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import _fit_fallback  # what fit_gpytorch_mll does to models without a way of their own
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import ExactMarginalLogLikelihood

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.objective import LeaveOneOutObjective
from rcgp.botorch.singles import take_out, write_back
from rcgp.botorch.slices import Index, is_batched
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.models.defaults import robust_spread
from rcgp.training import FitError, FitReport, fit_robust
from rcgp.training import fit as fit_one
from rcgp.weights import Constant

__all__ = ["fit", "fit_for_botorch"]

# Iterations of a search at most, as in rcgp.fit; hardly any needs so many.
_ITERATIONS = 1000


def fit(model: SingleTaskRCGP, max_iterations: int = _ITERATIONS) -> list[FitReport]:
    """Choose hyperparameters and noise law of a model, as ``fit_gpytorch_mll`` does; a report for each of a batch.

    Args:
        model: the model, changed in place and in evaluation mode afterwards.
        max_iterations: limit on the iterations of each search.

    Returns:
        A report for each model of the batch, outputs last: a :class:`rcgp.training.RobustReport` where a noise law was
        learned. None where BoTorch's optimiser did it all: for constant weights, and where models share
        hyperparameters or an input transform is learned.

    Raises:
        FitError: where an objective can be computed at no point of a search; the model is as it was before.
        ModelFittingError: where all of BoTorch's attempts fail; likewise.
    """
    if not isinstance(model, SingleTaskRCGP):
        raise TypeError(f"model must be a SingleTaskRCGP, got {type(model).__name__}")
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    with _restored_on_error(model):
        limited = {"optimizer_kwargs": {"options": {"maxiter": max_iterations}}}
        return _fit(model, mll, max_iterations, limited if max_iterations < _ITERATIONS else {})


def fit_for_botorch(
    model: SingleTaskRCGP, mll: gpytorch.mlls.MarginalLogLikelihood, **kwargs: Any
) -> gpytorch.mlls.MarginalLogLikelihood:
    """What ``fit_gpytorch_mll(mll)`` does.

    Where the noise is normal, and with constant weights, BoTorch maximises the ``mll`` that it was given. With another
    weight function there is no marginal likelihood: an ``ExactMarginalLogLikelihood``, which a script written for
    ``SingleTaskGP`` has, stands for the paper's :class:`LeaveOneOutObjective`.

    Args:
        model: the model.
        mll: the objective, returned in evaluation mode.
        kwargs: those of ``fit_gpytorch_mll``: ``optimizer``, ``optimizer_kwargs``, ``closure``, ``max_attempts`` ...

    Raises:
        ModelFittingError: where the fit fails; the model is as it was before.
    """
    asked = {name: value for name, value in kwargs.items() if value is not None}
    try:
        with _restored_on_error(model):
            _fit(model, mll, _ITERATIONS, asked)
    except (FitError, NotPositiveDefiniteError) as error:
        raise ModelFittingError(str(error)) from error
    return mll.eval()


def _fit(
    model: SingleTaskRCGP, mll: gpytorch.mlls.MarginalLogLikelihood, max_iterations: int, asked: dict[str, Any]
) -> list[FitReport]:
    """Fit a model; ``asked`` is for BoTorch."""
    separable = _is_separable(model.eval())
    if isinstance(model.weight, Constant):
        _fit_fallback(mll, **asked)
    elif model.weight is None and separable:
        return _learn_laws(model, mll, max_iterations, asked)
    elif model.weight is None:
        model.law = model.prior_law()
        _maximise_score(model, mll, asked)
    elif separable and set(asked) <= {"optimizer_kwargs"} and not _options_beside_iterations(asked):
        return _fit_by_score(model, asked.get("optimizer_kwargs", {}).get("options", {}).get("maxiter", max_iterations))
    else:
        _maximise_score(model, mll, asked)
    return []


def _learn_laws(
    model: SingleTaskRCGP, mll: gpytorch.mlls.MarginalLogLikelihood, max_iterations: int, asked: dict[str, Any]
) -> list[FitReport]:
    """A robust fit of each model of the batch; BoTorch fits those whose noise is normal."""
    indices = _indices(model)
    singles = [take_out(model, index) for index in indices]
    reports = [fit_robust(single, local_noise=False, max_iterations=max_iterations) for single in singles]
    model.law = model.prior_law()
    model.law[..., :-1] = 0.0  # normal
    model.law[..., 0] = 1.0
    if any(report.law.is_normal for report in reports):
        _fit_fallback(mll, **asked)
        mll.eval()
    for index, single, report in zip(indices, singles, reports, strict=True):
        if not report.law.is_normal:
            write_back(model, index, single)
            law, spread = report.law, robust_spread(single.residual())
            model.law[index] = model.law.new_tensor([*law.shares, law.outlier_share, law.width / spread])
    return list(reports)


def _fit_by_score(model: SingleTaskRCGP, max_iterations: int) -> list[FitReport]:
    """The paper's leave-one-out objective, model by model of a batch."""
    singles = [take_out(model, index) for index in _indices(model)]
    reports = [fit_one(single, max_iterations=max_iterations) for single in singles]
    for index, single in zip(_indices(model), singles, strict=True):
        write_back(model, index, single)
    return reports


def _maximise_score(model: SingleTaskRCGP, mll: gpytorch.mlls.MarginalLogLikelihood, asked: dict[str, Any]) -> None:
    """The leave-one-out score by BoTorch's optimiser."""
    objective = mll if isinstance(mll, LeaveOneOutObjective) else LeaveOneOutObjective(model)
    if not _is_separable(model):  # left to itself BoTorch would take the models of a batch apart
        asked = {"optimizer": _jointly, **asked}
    _fit_fallback(objective, **asked)


def _jointly(objective: LeaveOneOutObjective, closure: Any = None, **kwargs: Any) -> Any:
    """BoTorch's L-BFGS-B on the sum over a batch."""
    parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    closure = closure or get_loss_closure_with_grads(objective, parameters)
    return fit_gpytorch_mll_scipy(objective, closure=closure, **kwargs)


@contextmanager
def _restored_on_error(model: SingleTaskRCGP) -> Iterator[None]:
    before = copy.deepcopy(model.state_dict())
    try:
        yield
    except BaseException:
        model.eval()
        model.load_state_dict(before)
        raise


def _indices(model: SingleTaskRCGP) -> list[Index]:
    return list(product(*(range(size) for size in model._aug_batch_shape)))


def _options_beside_iterations(asked: dict[str, Any]) -> bool:
    """Whether BoTorch's optimiser is asked for more than a number of iterations."""
    kwargs = asked.get("optimizer_kwargs", {})
    return bool(set(kwargs) - {"options"}) or bool(set(kwargs.get("options", {})) - {"maxiter"})


def _is_separable(model: SingleTaskRCGP) -> bool:
    """Whether each model of the batch has hyperparameters of its own, and no others."""
    batch = model._aug_batch_shape
    modules = [model.covar_module, model.mean_module, model.likelihood]
    shared = [] if model.weight is None or not batch else list(model.weight.parameters())
    transform = getattr(model, "input_transform", None)
    learned = [] if transform is None else [p for p in transform.parameters() if p.requires_grad]
    return all(is_batched(module, batch) for module in modules) and not shared and not learned
