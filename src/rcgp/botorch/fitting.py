"""Choosing the hyperparameters and the noise law of a BoTorch model.

Each model of a batch is taken out as an :class:`rcgp.RCGP` and fitted robustly. If that fit keeps a law
(:mod:`rcgp.training.robust`), law and hyperparameters are written back. Otherwise the model is an ordinary GP, and
BoTorch fits it as it fits ``SingleTaskGP``, with the caller's objective, optimiser and options.

Models that share hyperparameters, or whose input transform is learned, cannot be taken out: the law keeps its prior
shares, and BoTorch's optimiser maximises the leave-one-out score under it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpytorch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import _fit_fallback  # what fit_gpytorch_mll does to models without custom_fit
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from rcgp.botorch.robust_model import RobustModel
from rcgp.botorch.training_data import Index
from rcgp.botorch.weighing import weigh
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.models import RCGP
from rcgp.training import FitError, FitReport, fit_robust
from rcgp.training import fit as fit_one
from rcgp.training.judgement import NoiseLawWarning
from rcgp.weights import Constant
from rcgp.weights.noise_law import FLAGGED

__all__ = ["LeaveOneOutObjective", "fit", "fit_for_botorch", "fit_silently", "warn_of_doubts"]

# Steps that L-BFGS-B remembers, as in rcgp.fit: with SciPy's ten, models with a learned input transform take from one
# and a half to five times as many evaluations.
_MEMORY = 30

# Iterations of a search at most, as in rcgp.fit; few searches need that many.
_ITERATIONS = 1000


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
        >>> from rcgp.botorch import SingleTaskRCGP
        >>> X = torch.rand(12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> model = SingleTaskRCGP(X, X.sin(), weight="imq")
        >>> objective = fit_gpytorch_mll(LeaveOneOutObjective(model))
        >>> objective.training
        False
    """

    model: RobustModel

    def __init__(self, likelihood: GaussianLikelihood | RobustModel, model: RobustModel | None = None) -> None:
        if isinstance(likelihood, RobustModel):
            model, likelihood = likelihood, likelihood.likelihood
        if not isinstance(model, RobustModel):
            raise TypeError(f"LeaveOneOutObjective needs a SingleTaskRCGP or MultiTaskRCGP, got {type(model).__name__}")
        super().__init__(likelihood, model)

    def forward(self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **_: Any) -> Tensor:
        """The objective, one number for each model of the batch. Cost O(n³).

        Args:
            function_dist: the prior at the training inputs: what the model returns in training mode.
            target: ``... x n`` observations, transformed.
        """
        model = self.model
        K, residual = function_dist.lazy_covariance_matrix.to_dense(), target - function_dist.mean
        X = model.training_inputs()
        weighed = weigh(model.prior_inputs(X), K, residual, model.row_noise(), model.weighing(), model.tasks(X))
        value: Tensor = self._add_other_terms(weighed.leave_one_out_score(), params) / target.shape[-1]
        return value


def fit(model: RobustModel, max_iterations: int = _ITERATIONS) -> list[FitReport]:
    """Fit hyperparameters and noise law, as ``fit_gpytorch_mll`` does, and report on each model of the batch.

    Both warn of :attr:`SingleTaskRCGP.doubts`, by one ``NoiseLawWarning``.

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
    reports = fit_silently(model, max_iterations)
    warn_of_doubts(model, stacklevel=3)
    return reports


def fit_silently(model: RobustModel, max_iterations: int = _ITERATIONS) -> list[FitReport]:
    """:func:`fit` without the warning."""
    if not isinstance(model, RobustModel):
        raise TypeError(f"model must be a SingleTaskRCGP or MultiTaskRCGP, got {type(model).__name__}")
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    with _restored_on_error(model):
        limited = {"optimizer_kwargs": {"options": {"maxiter": max_iterations}}}
        return _fit(model, mll, max_iterations, limited if max_iterations < _ITERATIONS else {})


def warn_of_doubts(model: RobustModel, stacklevel: int) -> None:
    """Warn where a noise law may be wrong; not of a few rows without a flagged one, since designs begin small.

    Args:
        model: the model.
        stacklevel: as for ``warnings.warn``, called from here.
    """
    judged = {
        name: found
        for name, found in model.judgements().items()
        if len(found.outlier_probability) >= sum(PRIOR_COUNTS) or bool((found.outlier_probability > FLAGGED).any())
    }
    if doubts := [name + doubt for name, found in judged.items() for doubt in found.doubts]:
        warnings.warn("; ".join(doubts), NoiseLawWarning, stacklevel=stacklevel)


def fit_for_botorch(
    model: RobustModel, mll: gpytorch.mlls.MarginalLogLikelihood, **kwargs: Any
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
    warn_of_doubts(model, stacklevel=5)  # where fit_gpytorch_mll was called
    return mll.eval()


def _fit(
    model: RobustModel, mll: gpytorch.mlls.MarginalLogLikelihood, max_iterations: int, asked: dict[str, Any]
) -> list[FitReport]:
    """Fit a model; ``asked`` are BoTorch's options."""
    model.eval()
    if isinstance(model.weight, Constant):
        _fit_fallback(mll, **asked)
        return []
    singles = model.separable()
    if model.weight is None and singles is not None:
        return _learn_laws(model, singles, mll, max_iterations, asked)
    if model.weight is not None and singles is not None and _only_iterations(asked):
        asked_iterations = asked.get("optimizer_kwargs", {}).get("options", {}).get("maxiter", max_iterations)
        return _fit_by_score(model, singles, asked_iterations)
    if model.weight is None:
        model.law = model.prior_law()
    _maximise_score(model, mll, asked, one_by_one=singles is not None)
    return []


def _learn_laws(
    model: RobustModel,
    singles: dict[Index, RCGP],
    mll: gpytorch.mlls.MarginalLogLikelihood,
    max_iterations: int,
    asked: dict[str, Any],
) -> list[FitReport]:
    """Fit each model of the batch robustly; BoTorch refits those with normal noise."""
    reports = [fit_robust(single, local_noise=False, max_iterations=max_iterations) for single in singles.values()]
    model.law = model.prior_law()
    for (index, single), report in zip(singles.items(), reports, strict=True):
        model.write_laws(index, single, report.laws)
    if any(report.is_normal for report in reports):
        _fit_fallback(mll, **asked)
        mll.eval()
    for (index, single), report in zip(singles.items(), reports, strict=True):
        if not report.is_normal:
            model.write_back(index, single)
    return list(reports)


def _fit_by_score(model: RobustModel, singles: dict[Index, RCGP], max_iterations: int) -> list[FitReport]:
    """Maximise the paper's leave-one-out objective of each model of the batch."""
    reports = [fit_one(single, max_iterations=max_iterations) for single in singles.values()]
    for index, single in singles.items():
        model.write_back(index, single)
    return reports


def _maximise_score(
    model: RobustModel, mll: gpytorch.mlls.MarginalLogLikelihood, asked: dict[str, Any], one_by_one: bool
) -> None:
    """Maximise the leave-one-out score with BoTorch's optimiser."""
    objective = mll if isinstance(mll, LeaveOneOutObjective) else LeaveOneOutObjective(model)
    if not one_by_one:  # as BoTorch fits the models of a batch by default
        asked = {"optimizer": _jointly, **asked}
    _fit_fallback(objective, **asked)


def _jointly(objective: LeaveOneOutObjective, closure: Any = None, **kwargs: Any) -> Any:
    """Maximise the sum over a batch with BoTorch's optimiser, L-BFGS-B by default."""
    parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    closure = closure or get_loss_closure_with_grads(objective, parameters)
    if kwargs.get("method", "L-BFGS-B") == "L-BFGS-B":  # other methods of SciPy have no such option
        kwargs["options"] = {"maxcor": _MEMORY, **(kwargs.get("options") or {})}
    return fit_gpytorch_mll_scipy(objective, closure=closure, **kwargs)


@contextmanager
def _restored_on_error(model: RobustModel) -> Iterator[None]:
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
