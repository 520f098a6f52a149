"""Choosing the hyperparameters of a BoTorch model: our own searches, model by model of a batch, or BoTorch's.

A model of a batch is taken out as an :class:`rcgp.RCGP`, fitted there, and its hyperparameters are written back. Where
models share hyperparameters, or inputs are transformed by something that is learnt, that cannot be done: then BoTorch's
optimiser maximises the leave-one-out objective of all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import gpytorch
from botorch.exceptions.errors import ModelFittingError
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.fit import fit_gpytorch_mll_scipy

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.objective import LeaveOneOutObjective
from rcgp.botorch.singles import Single, take_out, write_back
from rcgp.botorch.slices import Index, is_batched
from rcgp.botorch.standardised import fit_standardised, may_be_standardised
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.training import FitError, FitReport, fit_trimmed
from rcgp.training import fit as fit_one

__all__ = ["fit", "fit_for_botorch"]


def fit(model: SingleTaskRCGP, max_iterations: int = 1000) -> list[FitReport]:
    """Choose the hyperparameters of a model: by evidence with adaptive centring, else by the paper's leave-one-out.

    What ``fit_gpytorch_mll`` does to this kind of model. If a fit fails the model is as it was before.

    Args:
        model: the model, changed in place and in evaluation mode afterwards.
        max_iterations: limit on the iterations of each search.

    Returns:
        A report for each model of the batch, outputs last; none where BoTorch's optimiser was needed, because models
        share hyperparameters or an input transform is learnt.

    Raises:
        FitError: where an objective can be computed at no point of a search.
    """
    if not isinstance(model, SingleTaskRCGP):
        raise TypeError(f"model must be a SingleTaskRCGP, got {type(model).__name__}")
    model.eval()
    if not _is_separable(model):
        _by_optimizer(model, _jointly, options={"maxiter": max_iterations})
        return []
    indices = list(product(*(range(size) for size in model._aug_batch_shape)))
    fitted = [_fit_single(model, index, max_iterations) for index in indices]
    for index, (single, _) in zip(indices, fitted, strict=True):
        write_back(model, index, single)
    return [report for _, report in fitted]


def fit_for_botorch(
    model: SingleTaskRCGP,
    mll: gpytorch.mlls.MarginalLogLikelihood,
    closure: Any = None,
    optimizer: Callable[..., Any] | None = None,
    closure_kwargs: dict[str, Any] | None = None,
    optimizer_kwargs: dict[str, Any] | None = None,
    **_: Any,
) -> gpytorch.mlls.MarginalLogLikelihood:
    """What ``fit_gpytorch_mll(mll)`` does: :func:`fit`, or BoTorch's optimiser if the caller asks for it.

    The marginal likelihood of a robust model is not defined. An ``ExactMarginalLogLikelihood``, which a script written
    for ``SingleTaskGP`` has, stands for the robust objective.

    Args:
        model: the model.
        mll: the objective, returned in evaluation mode.
        closure, optimizer, closure_kwargs, optimizer_kwargs: with any of them :class:`LeaveOneOutObjective` is
            maximised by the optimiser, BoTorch's L-BFGS-B by default.

    Raises:
        ModelFittingError: where the fit fails; the model is as it was before.
    """
    if closure_kwargs:
        raise ValueError("closure_kwargs are not supported for SingleTaskRCGP; give a closure that knows them")
    try:
        if closure is None and optimizer is None and not optimizer_kwargs:
            fit(model)
        else:
            _by_optimizer(model, optimizer or fit_gpytorch_mll_scipy, closure=closure, **(optimizer_kwargs or {}))
    except (FitError, NotPositiveDefiniteError) as error:
        raise ModelFittingError(str(error)) from error
    return mll.eval()


def _by_optimizer(model: SingleTaskRCGP, optimizer: Callable[..., Any], **kwargs: Any) -> None:
    before = copy.deepcopy(model.state_dict())
    objective = LeaveOneOutObjective(model).train()
    try:
        optimizer(objective, **kwargs)
    except BaseException:
        objective.eval()
        model.load_state_dict(before)
        raise
    objective.eval()


def _jointly(objective: LeaveOneOutObjective, **kwargs: Any) -> None:
    """BoTorch's L-BFGS-B on the sum over a batch: left to itself it would take the models of a batch apart."""
    parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    fit_gpytorch_mll_scipy(objective, closure=get_loss_closure_with_grads(objective, parameters), **kwargs)


def _is_separable(model: SingleTaskRCGP) -> bool:
    """Whether each model of the batch has hyperparameters of its own, and none is elsewhere."""
    batch = model._aug_batch_shape
    modules = [model.covar_module, model.mean_module, model.likelihood]
    shared = [] if model.weight is None or not batch else list(model.weight.parameters())
    transform = getattr(model, "input_transform", None)
    learnt = [] if transform is None else [p for p in transform.parameters() if p.requires_grad]
    return all(is_batched(module, batch) for module in modules) and not shared and not learnt


def _fit_single(model: SingleTaskRCGP, index: Index, max_iterations: int) -> tuple[Single, FitReport]:
    single = take_out(model, index)
    if model.weight is not None:
        return single, fit_one(single.model, max_iterations=max_iterations)
    if model.has_default_kernel and may_be_standardised(single.model):
        return fit_standardised(model, index, single.model, max_iterations)
    return single, fit_trimmed(single.model, max_iterations=max_iterations)
