"""Runs of Bayesian optimisation: the paper's functions, their outliers, the models, and the loop that minimises.

Each function is one of BoTorch's test functions on the unit square, shifted and scaled as in the authors' experiment;
McCormick's is written here. Errors of the paper's text are corrected by the original definitions: it lacks squares
in McCormick's and Rosenbrock's functions; Branin's second input begins at 0 and Rosenbrock's ends at 10.

All methods have the same first points, acquisition function and search for its maximum. Regret counts the clean value
at the chosen point, not the observed one.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

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
from botorch.test_functions import Branin, Rosenbrock, SixHumpCamel
from botorch.test_functions.synthetic import SyntheticTestFunction
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.models.defaults import column_scales, default_kernel, robust_spread
from rcgp.training import FitError
from rcgp.weights import InverseMultiquadric
from rcgp_paper.baselines import StudentTGP

__all__ = [
    *("ACQUISITIONS", "FUNCTIONS", "Contamination", "Fitted", "McCormick", "ModelOf", "ScaledFunction", "Trial"),
    *("acquisition_function", "fit_gp", "fit_rcgp", "fit_rcgp_as_in_paper", "fit_relevance_pursuit"),
    *("fit_student_t", "minimise", "suggest"),
]

#: Names of the paper's acquisition functions.
ACQUISITIONS = ("ucb", "pi")

#: λ of the upper confidence bound.
_CAUTION = 10.0

#: Starts of the search for the maximum of the acquisition function, and random points that they are chosen from.
_RESTARTS, _RAW_SAMPLES = 4, 128

#: Initial noise variance of the paper's RCGP, and its lower bound.
_PAPER_NOISE, _LEAST_NOISE = 1e-4, 1e-8

#: ``n x d`` inputs and ``n x 1`` observations → the fitted model, and whether its fit converged.
Fitted = Callable[[Tensor, Tensor], tuple[Model, bool]]


class McCormick(SyntheticTestFunction):  # type: ignore[misc]
    """sin(x + x') + (x − x')² − 1.5x + 2.5x' + 1 on [−1.5, 4] x [−3, 4].

    Its minimum is −√3/2 − π/3 = −1.9132 at (½ − π/3, −½ − π/3).
    """

    dim = 2
    continuous_inds: ClassVar[list[int]] = [0, 1]  # BoTorch expects lists
    _bounds: ClassVar[list[tuple[float, float]]] = [(-1.5, 4.0), (-3.0, 4.0)]
    _optimal_value = -math.sqrt(3.0) / 2.0 - math.pi / 3.0
    _optimizers: ClassVar[list[tuple[float, ...]]] = [(0.5 - math.pi / 3.0, -0.5 - math.pi / 3.0)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x, y = X[..., 0], X[..., 1]
        return torch.sin(x + y) + (x - y).square() - 1.5 * x + 2.5 * y + 1.0


@dataclass(frozen=True)
class ScaledFunction:
    """(g(x) − shift) / scale at x = low + u (high − low) for u in [0, 1]².

    Attributes:
        make: gives BoTorch's test function g, with its bounds.
        least: the minimum of g, to more digits than BoTorch has it: a regret is never negative.
        shift, scale: of its values.
        threshold: the paper's c of the RCGP that optimises it.
    """

    make: Callable[[], SyntheticTestFunction]
    least: float
    shift: float = 0.0
    scale: float = 1.0
    threshold: float = 1.0

    def __call__(self, U: Tensor) -> Tensor:
        """Values at ``... x 2`` points of the unit square: ``...``."""
        function = self.make()
        low, high = function.bounds.to(U)
        values: Tensor = function.evaluate_true(low + U * (high - low))
        return (values - self.shift) / self.scale

    @property
    def minimum(self) -> float:
        """The smallest value."""
        return (self.least - self.shift) / self.scale


#: The four functions by name, with the authors' scalings.
FUNCTIONS: Mapping[str, ScaledFunction] = MappingProxyType(
    {
        "camel": ScaledFunction(lambda: SixHumpCamel(bounds=[(-2.0, 2.0), (-1.0, 1.0)]), -1.0316284534898774),
        "branin": ScaledFunction(Branin, 5.0 / (4.0 * math.pi), 54.81, 51.95, threshold=2.0),
        "mccormick": ScaledFunction(McCormick, McCormick._optimal_value, scale=20.0),
        "rosenbrock": ScaledFunction(Rosenbrock, 0.0, scale=3.755e5),
    }
)


@dataclass(frozen=True)
class Contamination:
    """Each evaluation is an outlier with the same probability: too large by u ~ U(low, high).

    Two numbers are drawn for every evaluation, so that the i-th is an outlier for all methods or for none.

    Attributes:
        generator: of the draws.
        probability: of an outlier.
        low, high: limits of the shift.
    """

    generator: torch.Generator
    probability: float = 0.2
    low: float = 1.0
    high: float = 2.0

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The observed values, ``n``, and which of them are outliers, ``n``."""
        draws = torch.rand(*values.shape, 2, dtype=torch.float64, generator=self.generator)
        outlier = draws[..., 0] < self.probability
        shift = self.low + (self.high - self.low) * draws[..., 1]
        return torch.where(outlier, values + shift.to(values), values), outlier


class ModelOf(Model):  # type: ignore[misc]
    """A model of this package, anything with ``posterior(X)``, for BoTorch's acquisition functions."""

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


def fit_student_t(X: Tensor, Y: Tensor) -> tuple[Model, bool]:
    """The t-GP of the tables, with the sample mean as its prior mean."""
    model = StudentTGP(X, Y.squeeze(-1))
    try:
        return ModelOf(model), model.fit().converged
    except FitError:
        return ModelOf(model), False


def _fitted(model: Model) -> tuple[Model, bool]:
    """The model, fitted by BoTorch's default; unchanged where the fit fails."""
    try:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError:
        return model.eval(), False
    return model, True


def acquisition_function(name: str, model: Model, X: Tensor) -> AcquisitionFunction:
    """The paper's acquisition function, for a function to minimise.

    ``"ucb"`` is −μ + λ Σ^½ with λ = 10. ``"pi"`` is Φ((μ_best − μ) Σ^(-½)), by its logarithm, which has the same
    maximum and gradients far away from it. The best value so far, the paper's f(x_max), is unknown under noise: it is
    the smallest posterior mean at the evaluated points, for all models.

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
    """The maximum of an acquisition function on the unit cube, ``1 x d``; the seed is of the search."""
    bounds = torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
    with manual_seed(seed):
        point, _ = optimize_acqf(
            acquisition_function(name, model, X), bounds, q=1, num_restarts=_RESTARTS, raw_samples=_RAW_SAMPLES
        )
    return point  # type: ignore[no-any-return]


@dataclass
class Trial:
    """The evaluations and steps of one minimisation.

    Attributes:
        points: inputs of all evaluations, on the unit square.
        values: their values without outliers, hidden from the model.
        observed: their values with outliers.
        outlier: whether these differ.
        fit_seconds, acquisition_seconds: wall time of both parts of each step.
        failed: the steps, counted from 0, in which a fit failed.
        suspected: which evaluations but the last the last model flags; empty for a model without flags.
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
    """Evaluate a function at its first points, then at the maximum of the acquisition function, step by step.

    Both parts of a step are made once beforehand, so that no time includes imports.

    Args:
        function: to minimise.
        fit: gives a model of all evaluations so far.
        acquisition: one of :data:`ACQUISITIONS`.
        first: ``n x 2`` first points.
        steps: number of further evaluations.
        contamination: of every evaluation, the first ones too.
        seed: of the searches for the maximum of the acquisition function, in step i this plus i.
    """
    trial, X = Trial(), first
    Y = _evaluate(function, X, contamination, trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # searches that end early, data that BoTorch would scale
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
    """Observations at ``n x 2`` points, ``n x 1``, added to the trial."""
    values = function(X)
    observed, outlier = contamination(values)
    trial.points += X.tolist()
    trial.values += values.tolist()
    trial.observed += observed.tolist()
    trial.outlier += outlier.tolist()
    return observed.unsqueeze(-1)
