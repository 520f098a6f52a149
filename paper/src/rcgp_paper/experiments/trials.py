"""Methods that minimise the paper's problems, step by step, and what is kept of it.

Every method meets the same first points, the same acquisition function and the same search for its maximum. What is
kept of each step is the clean value that was chosen, whatever the model saw, and the seconds of both of its parts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import torch
from botorch.acquisition.analytic import AcquisitionFunction, LogProbabilityOfImprovement, UpperConfidenceBound
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.models.defaults import column_scales, default_kernel, robust_spread
from rcgp.weights import InverseMultiquadric
from rcgp_paper.experiments.problems import Contamination, ScaledFunction

__all__ = [
    "ACQUISITIONS",
    "Fitted",
    "ModelOf",
    "Trial",
    "acquisition_function",
    "fit_gp",
    "fit_rcgp",
    "fit_rcgp_as_in_paper",
    "fit_relevance_pursuit",
    "minimise",
    "suggest",
]

#: Names of the paper's acquisition functions.
ACQUISITIONS = ("ucb", "pi")

#: λ of the upper confidence bound.
_CAUTION = 10.0

#: Points from which the search for the maximum of the acquisition function begins, chosen from so many.
_RESTARTS, _RAW_SAMPLES = 4, 128

#: Where the noise variance of the paper's RCGP starts, and how far it may fall.
_PAPER_NOISE, _LEAST_NOISE = 1e-4, 1e-8

#: A model fitted to ``n x d`` inputs and ``n x 1`` observations, and whether its fit went well.
Fitted = Callable[[Tensor, Tensor], tuple[Model, bool]]


class ModelOf(Model):  # type: ignore[misc]
    """A model of this package, ``... x q x d`` → normal distribution, as what BoTorch's acquisition functions take.

    Args:
        model: anything with ``posterior(X)``.
    """

    num_outputs = 1
    batch_shape = torch.Size()

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """The posterior of f at ``... x q x d`` inputs, or of new observations."""
        posterior = GPyTorchPosterior(self.model.posterior(X, observation_noise=bool(observation_noise)))
        return posterior if posterior_transform is None else posterior_transform(posterior)


def fit_gp(X: Tensor, Y: Tensor) -> tuple[Model, bool]:
    """BoTorch's ``SingleTaskGP`` with its defaults."""
    return _fitted(SingleTaskGP(X, Y))


def fit_rcgp(X: Tensor, Y: Tensor) -> tuple[Model, bool]:
    """:class:`SingleTaskRCGP` with its defaults."""
    return _fitted(SingleTaskRCGP(X, Y))


def fit_relevance_pursuit(X: Tensor, Y: Tensor) -> tuple[Model, bool]:
    """BoTorch's robust GP by relevance pursuit with its defaults."""
    return _fitted(RobustRelevancePursuitSingleTaskGP(X, Y))


def fit_rcgp_as_in_paper(c: float) -> Fitted:
    """RCGP as the paper has it: zero prior mean, weights centred on it with a fixed c, no priors, no transform.

    The kernel is a squared exponential with a lengthscale for each input; hyperparameters are chosen by leave-one-out.
    """

    def fitted(X: Tensor, Y: Tensor) -> tuple[Model, bool]:
        # As BoTorch bounds it: the parameter is the variance itself, which may lie on its bound.
        bound = gpytorch.constraints.GreaterThan(_LEAST_NOISE, transform=None)
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=bound).to(X)
        likelihood.noise = X.new_tensor(_PAPER_NOISE)
        model = SingleTaskRCGP(
            X,
            Y,
            likelihood=likelihood,
            covar_module=default_kernel(column_scales(X), robust_spread(Y.squeeze(-1))),
            mean_module=gpytorch.means.ZeroMean(),
            outcome_transform=None,
            weight=InverseMultiquadric(c=c),
        )
        return _fitted(model)

    return fitted


def _fitted(model: Model) -> tuple[Model, bool]:
    """The model, fitted as BoTorch's users do it; as it was where the fit fails."""
    try:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError:
        return model.eval(), False
    return model, True


def acquisition_function(name: str, model: Model, X: Tensor) -> AcquisitionFunction:
    """The paper's acquisition function of a model of a function to minimise, so with the signs of μ and f turned.

    ``"ucb"`` is −μ + λ Σ^½ with λ = 10. ``"pi"`` is Φ((μ_best − μ) Σ^(-½)), by its logarithm, which has the same
    maximum and gradients far away from it. The best value so far, the paper's f(x_max), is nowhere observed without
    noise: it is the smallest posterior mean at the points that were evaluated, for all models.

    Args:
        name: one of :data:`ACQUISITIONS`.
        model: a fitted model.
        X: ``n x d`` points that were evaluated.
    """
    if name == "ucb":
        return UpperConfidenceBound(model, beta=_CAUTION**2, maximize=False)
    if name == "pi":
        with torch.no_grad():
            best = model.posterior(X).mean.min()
        return LogProbabilityOfImprovement(model, best_f=best, maximize=False)
    raise ValueError(f"there is no acquisition function {name!r}: name one of {', '.join(ACQUISITIONS)}")


def suggest(name: str, model: Model, X: Tensor, seed: int) -> Tensor:
    """The point of the unit cube where an acquisition function is largest, ``1 x d``.

    Args:
        name, model, X: as for :func:`acquisition_function`.
        seed: of the points that the search begins from.
    """
    bounds = torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
    with manual_seed(seed):
        point, _ = optimize_acqf(
            acquisition_function(name, model, X), bounds, q=1, num_restarts=_RESTARTS, raw_samples=_RAW_SAMPLES
        )
    found: Tensor = point
    return found


@dataclass
class Trial:
    """What happened while a function was minimised. The first lists are of all evaluations, the last of the steps.

    Attributes:
        points: where it was evaluated, on the unit square.
        values: without outliers, which no model has seen.
        observed: what models have seen.
        outlier: whether they differ.
        fit_seconds, acquisition_seconds: wall time of both parts of each step.
        failed: the steps, counted from 0, in which a fit failed.
        suspected: which of the evaluations before the last are outliers by the last model; empty where a model does
            not tell.
    """

    points: list[list[float]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)
    outlier: list[bool] = field(default_factory=list)
    fit_seconds: list[float] = field(default_factory=list)
    acquisition_seconds: list[float] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    suspected: list[bool] = field(default_factory=list)


def minimise(
    function: ScaledFunction,
    fit: Fitted,
    acquisition: str,
    first: Tensor,
    steps: int,
    contamination: Contamination,
    seed: int,
) -> Trial:
    """Evaluate a function at its first points, and then where the acquisition function of a model says.

    Before that both parts of a step are made once, not counted, so that no time is that of imports.

    Args:
        function: to minimise.
        fit: gives a model of all evaluations so far.
        acquisition: one of :data:`ACQUISITIONS`.
        first: ``n x 2`` first points.
        steps: how many follow.
        contamination: of every evaluation, the first ones too.
        seed: of the searches for the maximum of the acquisition function, in step i this plus i.
    """
    trial, X = Trial(), first
    Y = _evaluate(function, X, contamination, trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of searches that end early, and of what BoTorch thinks of data
        model, _ = fit(X, Y)
        suggest(acquisition, model, X, seed)
        for step in range(steps):
            began = time.perf_counter()
            model, well = fit(X, Y)
            fitted = time.perf_counter()
            point = suggest(acquisition, model, X, seed + step)
            trial.fit_seconds.append(fitted - began)
            trial.acquisition_seconds.append(time.perf_counter() - fitted)
            if not well:
                trial.failed.append(step)
            X = torch.cat([X, point])
            Y = torch.cat([Y, _evaluate(function, point, contamination, trial)])
        if hasattr(model, "outliers"):
            trial.suspected = model.outliers().squeeze(-1).tolist()
    return trial


def _evaluate(function: ScaledFunction, X: Tensor, contamination: Contamination, trial: Trial) -> Tensor:
    """Observations at ``n x 2`` points, ``n x 1``, after they were written down."""
    values = function(X)
    observed, outlier = contamination(values)
    trial.points += X.tolist()
    trial.values += values.tolist()
    trial.observed += observed.tolist()
    trial.outlier += outlier.tolist()
    return observed.unsqueeze(-1)
