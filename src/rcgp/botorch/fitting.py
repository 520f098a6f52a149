"""Choosing the hyperparameters and the noise law of a BoTorch model.

Each model of a batch is taken out as an :class:`rcgp.RCGP` and fitted robustly. If that fit keeps a law
(:mod:`rcgp.training.robust`), law and hyperparameters are written back. Otherwise the model is an ordinary GP, and
BoTorch fits it as it fits ``SingleTaskGP``, with the caller's objective, optimiser and options.

Models that share hyperparameters, or whose input transform is learned, cannot be taken out: the law keeps its prior
shares, and BoTorch's optimiser maximises the leave-one-out score under it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import gpytorch
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import _fit_fallback  # what fit_gpytorch_mll does to models without custom_fit
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.training_data import Index, is_batched, sliced, write_slice
from rcgp.botorch.weighing import weigh
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.models import RCGP
from rcgp.models.defaults import Between, robust_spread
from rcgp.training import FitError, FitReport, fit_robust
from rcgp.training import fit as fit_one
from rcgp.weights import Constant

__all__ = ["LeaveOneOutObjective", "fit", "fit_for_botorch"]

# Iterations of a search at most, as in rcgp.fit; few searches need that many.
_ITERATIONS = 1000

# Values on a bound are moved off it by this relative margin: most constraints only approach their bounds.
_MARGIN = 1e-6


class LeaveOneOutObjective(ExactMarginalLogLikelihood):  # type: ignore[misc]
    """(Σ_i log p(y_i | all other observations) + log priors) / n for each model of a batch, as an ``mll``.

    With a weight function it is the paper's objective. With a noise law the density is that of the law, with its shares
    fixed, so that every observation has bounded influence on the hyperparameters.

    Args:
        likelihood: the model, or its likelihood followed by the model, as in GPyTorch.
        model: the model.

    Example:
        >>> import torch
        >>> from botorch import fit_gpytorch_mll
        >>> X = torch.rand(12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> model = SingleTaskRCGP(X, X.sin(), weight="imq")
        >>> objective = fit_gpytorch_mll(LeaveOneOutObjective(model))
        >>> objective.training
        False
    """

    model: SingleTaskRCGP

    def __init__(self, likelihood: GaussianLikelihood | SingleTaskRCGP, model: SingleTaskRCGP | None = None) -> None:
        if isinstance(likelihood, SingleTaskRCGP):
            model, likelihood = likelihood, likelihood.likelihood
        if not isinstance(model, SingleTaskRCGP):
            raise TypeError(f"LeaveOneOutObjective needs a SingleTaskRCGP, got {type(model).__name__}")
        super().__init__(likelihood, model)

    def forward(self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **_: Any) -> Tensor:
        """The objective, one number for each model of the batch. Cost O(n³).

        Args:
            function_dist: the prior at the training inputs: what the model returns in training mode.
            target: ``... x n`` observations, transformed.
        """
        model = self.model
        K, residual = function_dist.lazy_covariance_matrix.to_dense(), target - function_dist.mean
        weighed = weigh(model.training_inputs(), K, residual, model.row_noise(), model.weighing())
        value: Tensor = self._add_other_terms(weighed.leave_one_out_score(), params) / target.shape[-1]
        return value


def fit(model: SingleTaskRCGP, max_iterations: int = _ITERATIONS) -> list[FitReport]:
    """Fit hyperparameters and noise law, as ``fit_gpytorch_mll`` does, and report on each model of the batch.

    Args:
        model: the model, changed in place and left in evaluation mode.
        max_iterations: limit on the iterations of each search.

    Returns:
        A report for each model of the batch, outputs last: a :class:`rcgp.training.RobustReport` if the noise law is
        learned. Empty if only BoTorch's optimiser ran: for constant weights, shared hyperparameters or a learned input
        transform.

    Raises:
        FitError: if an objective is not finite at any point of a search. The model is unchanged.
        ModelFittingError: if all of BoTorch's attempts fail. The model is unchanged.
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
    """Fit a model for ``fit_gpytorch_mll(mll)``.

    If the noise is normal or the weights are constant, BoTorch maximises ``mll``. Other weight functions have no
    marginal likelihood: :class:`LeaveOneOutObjective` replaces an ``ExactMarginalLogLikelihood``.

    Args:
        model: the model.
        mll: the objective, returned in evaluation mode.
        kwargs: as for ``fit_gpytorch_mll``: ``optimizer``, ``optimizer_kwargs``, ``closure``, ``max_attempts`` ...

    Raises:
        ModelFittingError: if the fit fails. The model is unchanged.
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
    """Fit a model; ``asked`` are BoTorch's options."""
    separable = _is_separable(model.eval())
    if isinstance(model.weight, Constant):
        _fit_fallback(mll, **asked)
    elif model.weight is None and separable:
        return _learn_laws(model, mll, max_iterations, asked)
    elif model.weight is None:
        model.law = model.prior_law()
        _maximise_score(model, mll, asked)
    elif separable and _only_iterations(asked):
        asked_iterations = asked.get("optimizer_kwargs", {}).get("options", {}).get("maxiter", max_iterations)
        return _fit_by_score(model, asked_iterations)
    else:
        _maximise_score(model, mll, asked)
    return []


def _learn_laws(
    model: SingleTaskRCGP, mll: gpytorch.mlls.MarginalLogLikelihood, max_iterations: int, asked: dict[str, Any]
) -> list[FitReport]:
    """Fit each model of the batch robustly; BoTorch refits those with normal noise."""
    singles = _take_out_all(model)
    reports = [fit_robust(single, local_noise=False, max_iterations=max_iterations) for single in singles.values()]
    model.law = model.prior_law()
    model.law[..., :-1] = 0.0  # normal
    model.law[..., 0] = 1.0
    if any(report.law.is_normal for report in reports):
        _fit_fallback(mll, **asked)
        mll.eval()
    for (index, single), report in zip(singles.items(), reports, strict=True):
        if not report.law.is_normal:
            _write_back(model, index, single)
            law, spread = report.law, robust_spread(single.residual())
            model.law[index] = model.law.new_tensor([*law.shares, law.outlier_share, law.width / spread])
    return list(reports)


def _fit_by_score(model: SingleTaskRCGP, max_iterations: int) -> list[FitReport]:
    """Maximise the paper's leave-one-out objective of each model of the batch."""
    singles = _take_out_all(model)
    reports = [fit_one(single, max_iterations=max_iterations) for single in singles.values()]
    for index, single in singles.items():
        _write_back(model, index, single)
    return reports


def _maximise_score(model: SingleTaskRCGP, mll: gpytorch.mlls.MarginalLogLikelihood, asked: dict[str, Any]) -> None:
    """Maximise the leave-one-out score with BoTorch's optimiser."""
    objective = mll if isinstance(mll, LeaveOneOutObjective) else LeaveOneOutObjective(model)
    if not _is_separable(model):  # by default BoTorch fits the models of a batch one by one
        asked = {"optimizer": _jointly, **asked}
    _fit_fallback(objective, **asked)


def _jointly(objective: LeaveOneOutObjective, closure: Any = None, **kwargs: Any) -> Any:
    """Maximise the sum over a batch with BoTorch's L-BFGS-B."""
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


def _only_iterations(asked: dict[str, Any]) -> bool:
    """Whether BoTorch's options ask for at most a number of iterations."""
    kwargs = asked.get("optimizer_kwargs", {})
    options = kwargs.get("options", {})
    return set(asked) <= {"optimizer_kwargs"} and set(kwargs) <= {"options"} and set(options) <= {"maxiter"}


def _is_separable(model: SingleTaskRCGP) -> bool:
    """Whether no model of the batch shares a hyperparameter or learns an input transform."""
    batch = model._aug_batch_shape
    modules = [model.covar_module, model.mean_module, model.likelihood]
    shared = [] if model.weight is None or not batch else list(model.weight.parameters())
    transform = getattr(model, "input_transform", None)
    learned = [] if transform is None else [p for p in transform.parameters() if p.requires_grad]
    return all(is_batched(module, batch) for module in modules) and not shared and not learned


def _take_out_all(model: SingleTaskRCGP) -> dict[Index, RCGP]:
    """Each model of a batch, by its index."""
    return {index: _take_out(model, index) for index in product(*map(range, model._aug_batch_shape))}


def _take_out(batch: SingleTaskRCGP, index: Index) -> RCGP:
    """One model of a batch, in evaluation mode, as an :class:`rcgp.RCGP` in double precision."""
    shape, known = batch._aug_batch_shape, isinstance(batch.likelihood, FixedNoiseGaussianLikelihood)
    noise = batch.row_noise().detach().double()[index]
    single = RCGP(
        batch.train_inputs[0].double()[index],
        batch.train_targets.double()[index],
        kernel=sliced(batch.covar_module, shape, index).double(),
        mean=sliced(batch.mean_module, shape, index).double(),
        weight=Constant() if batch.weight is None else copy.deepcopy(batch.weight),
        noise=1.0 if known else float(noise[0]),
        sample_weight=noise.reciprocal() if known else None,
    )
    if known:
        single.raw_noise.requires_grad_(False)
        return single
    own = batch.likelihood.noise_covar
    lower = float(own.raw_noise_constraint.lower_bound)
    single.register_constraint("raw_noise", Between(lower, torch.inf))
    single.noise = _above(single.raw_noise_constraint, noise[0])
    single.raw_noise.requires_grad_(own.raw_noise.requires_grad)
    for name, _, prior, _, _ in own.named_priors():
        single.register_prior(name, copy.deepcopy(prior).double(), lambda module: module.noise, None)
    return single


def _write_back(batch: SingleTaskRCGP, index: Index, single: RCGP) -> None:
    """Write the hyperparameters of one model to the batch."""
    write_slice(batch.covar_module, index, single.kernel)
    write_slice(batch.mean_module, index, single.mean)
    if batch.weight is not None:
        write_slice(batch.weight, (), single.weight)
    if not isinstance(batch.likelihood, FixedNoiseGaussianLikelihood):
        noise = batch.likelihood.noise.detach().clone()
        bound = batch.likelihood.noise_covar.raw_noise_constraint
        noise[index] = _above(bound, single.noise.detach()).to(noise)
        batch.likelihood.noise = noise


def _above(constraint: Interval, value: Tensor) -> Tensor:
    """The value, at least slightly above the lower bound."""
    return value.clamp_min(float(constraint.lower_bound) * (1.0 + _MARGIN))
