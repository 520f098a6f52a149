"""The search for good hyperparameters: SciPy's L-BFGS-B on the parameters of a model.

The optimiser sees one float64 vector of all parameters that require gradients. Steps to where the objective cannot be
computed (a matrix not positive definite, a value not finite) are rejected like steps that make it worse.

A snapshot of the hyperparameters is what to come back to after a search that led nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from linear_operator.utils.errors import NanError, NotPSDError
from numpy.typing import NDArray
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.core.noise_law import WORTH
from rcgp.models import RCGP
from rcgp.models.defaults import Between
from rcgp.training.objectives import Objective

__all__ = [
    "NUMERICAL_ERRORS",
    "SHORTER",
    "TOLERANCE",
    "Outcome",
    "Progress",
    "Search",
    "Vector",
    "hyperparameters_of",
    "restore_hyperparameters",
    "scale_lengthscales",
    "shorter_starts",
]


#: Ratio of the lengthscales of successive starts.
SHORTER = 0.3

# The shortest lengthscale in units of the first: inputs hold no smaller gap.
_SHORTEST = float(np.finfo(np.float64).eps)

# Part of a bound by which scaled lengthscales stay away from it: at a bound most constraints have no gradient.
_MARGIN = 0.01


def hyperparameters_of(model: RCGP) -> list[Tensor]:
    """A copy of each parameter."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def restore_hyperparameters(model: RCGP, values: list[Tensor]) -> None:
    """Write the copies back, to the bit; the model must have the same parameters as then."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


def shorter_starts(model: RCGP) -> Iterator[None]:
    """Give a model its present hyperparameters with shorter lengthscales, each about a third of those before.

    A function that is faster than its first lengthscales looks like noise from there, and one that is faster than the
    typical gap between rows from anywhere: there the starts end, or where no lengthscale can become shorter. The model
    stays where the caller leaves it.
    """
    first = last = hyperparameters_of(model)
    gap = min(max(model.typical_gap(), _SHORTEST), 1.0)
    count = math.ceil(math.log(gap) / math.log(SHORTER))
    for step in range(1, count + 1):
        restore_hyperparameters(model, first)
        scale_lengthscales(model, SHORTER**step)
        before, last = last, hyperparameters_of(model)
        if all(map(torch.equal, before, last)):
            return
        yield


def scale_lengthscales(model: RCGP, factor: float) -> None:
    """Multiply every lengthscale that is fitted by a factor, within its bounds; those that the model offers for it."""
    with torch.no_grad():
        for part in model.scaled_kernel().modules():
            raw = getattr(part, "raw_lengthscale", None)
            if raw is not None and raw.requires_grad:
                constraint = part.raw_lengthscale_constraint
                lower, upper = (1.0 + _MARGIN) * constraint.lower_bound, (1.0 - _MARGIN) * constraint.upper_bound
                part.lengthscale = (part.lengthscale * factor).clamp(lower, upper)


#: What a Cholesky factorisation raises, ours or one inside a user's kernel or objective.
NUMERICAL_ERRORS = (
    NotPositiveDefiniteError,
    NotPSDError,
    NanError,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]
)

# Steps that L-BFGS-B remembers. A step costs O(n³) and its memory nothing; with SciPy's default, ten, a fit of a dozen
# hyperparameters takes up to half as many evaluations again.
_MEMORY = 30

#: Gain of an iteration, relative to the value for each observation and to one, below which a search ends: SciPy's.
TOLERANCE = 2.2e-9

# A search without hope is given up: one that would have to gain ten times what its last three iterations gained, and
# a nat more, since with few rows all gains are small.
_PATIENCE, _HOPE = 3, 10.0

# Gradient for each observation, in natural scales, below which a point is as good as the best.
_FLAT = 1e-4

# Random vectors with which the sensitivity of the prior mean to its parameters is estimated.
_PROBES = 16

Vector = NDArray[np.float64]
Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Outcome:
    """Where one start ended: value of the objective, -inf where it could not be computed, and parameters."""

    value: float
    x: Vector
    iterations: int = 0
    converged: bool = False
    message: str = ""


class Search:
    """The parameters of a model as one vector, the objective as a function of it, and the best vector met.

    The vector holds the raw parameters in units of their natural scales.
    """

    def __init__(self, model: RCGP, objective: Objective, report: Progress) -> None:
        trainable = [entry for entry in model.named_parameters_and_constraints() if entry[1].requires_grad]
        self.model, self.objective, self.report = model, objective, report
        self.parameters: list[Tensor] = [parameter for _, parameter, _ in trainable]
        self.before = [parameter.detach().clone() for parameter in self.parameters]
        self.scale = self._flat(_natural_scales(model, self.parameters))
        # A constraint without a transform is left to the optimiser, as GPyTorch means it.
        self.lower = self._flat([_raw_bound(p, constraint, "lower") for _, p, constraint in trainable])
        self.upper = self._flat([_raw_bound(p, constraint, "upper") for _, p, constraint in trainable])
        self.evaluations = self.rejected = 0
        self.reason = ""
        self.best: Outcome | None = None

    @staticmethod
    def _flat(tensors: list[Tensor]) -> Vector:
        parts = [tensor.detach().reshape(-1).double().cpu().numpy() for tensor in tensors]
        return np.concatenate(parts) if parts else np.zeros(0)

    def read(self) -> Vector:
        return self._flat(self.parameters) / self.scale

    def write(self, x: Vector) -> None:
        x = x * self.scale
        with torch.no_grad():
            for parameter in self.parameters:
                part, x = x[: parameter.numel()], x[parameter.numel() :]
                parameter.copy_(torch.from_numpy(part).reshape(parameter.shape))

    def restore(self) -> None:
        """Every parameter as it was, to the bit."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.before, strict=True):
                parameter.copy_(value)

    def starts(self, restarts: int, seed: int | None) -> list[Vector]:
        """The current parameters, then as many random ones around them as asked for."""
        first, random = self.read(), np.random.default_rng(seed)
        others = [first + random.standard_normal(first.shape) for _ in range(restarts)]
        return [np.clip(start, self.lower / self.scale, self.upper / self.scale) for start in (first, *others)]

    @property
    def size(self) -> int:
        """Number of rows of the model, which may have a part of them for a while."""
        return int(self.model.train_y.shape[0])

    def evaluate(self, x: Vector) -> tuple[float, Vector]:
        """Value and gradient of the objective; the value is -inf where it cannot be computed."""
        self.evaluations += 1
        self.write(x)
        try:
            with torch.enable_grad():
                value = self.objective(self.model)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise TypeError(f"an objective must return one number as a tensor, got {value!r}")
            gradients = tuple(torch.zeros_like(parameter) for parameter in self.parameters)
            if value.requires_grad and self.parameters:
                gradients = torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True)
        except NUMERICAL_ERRORS:
            return self._reject(x, "a matrix is not positive definite")
        number, gradient = float(value.detach()), self._flat(list(gradients)) * self.scale
        if not (math.isfinite(number) and np.isfinite(gradient).all()):
            return self._reject(x, f"the value is {number}, or its gradient not finite")
        if self.best is None or number > self.best.value:
            self.best = Outcome(number, x.copy())
        self.report(self.evaluations, self.best.value)
        return number, gradient

    def _reject(self, x: Vector, reason: str) -> tuple[float, Vector]:
        self.rejected += 1
        self.reason = reason
        return -math.inf, np.zeros_like(x)

    def run(
        self,
        start: Vector,
        max_iterations: int,
        tolerance: float = TOLERANCE,
        goal: float = -math.inf,
        gain: float = -math.inf,
    ) -> Outcome:
        """L-BFGS-B from one start, on the negative objective for each observation.

        It ends where an iteration gains less than the tolerance, relative to the value and to one. It is given up where
        the goal is out of reach, a value of the objective or a gain over the start.
        """
        at_start = self.evaluate(start)
        best, slope = Outcome(at_start[0], start), float(np.abs(at_start[1]).max(initial=0.0)) / self.size
        if best.value == -math.inf:
            return Outcome(-math.inf, start, message=self.reason)
        if not start.size:
            return Outcome(best.value, start, converged=True, message="no hyperparameter to fit")

        def loss(x: Vector) -> tuple[float, Vector]:
            nonlocal best, slope
            # L-BFGS-B begins by asking for what is known already.
            value, gradient = at_start if np.array_equal(x, start) else self.evaluate(x)
            if value == -math.inf:
                return self._wall(x, best, at_start[0])
            if value > best.value:
                best, slope = Outcome(value, x.copy()), float(np.abs(gradient).max()) / self.size
            # From the start on: the tolerance is relative to the value, which the units of y shift.
            return (at_start[0] - value) / self.size, -gradient / self.size

        values, goal = [at_start[0]], max(goal, at_start[0] + gain)

        def check_goal(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            values.append(best.value)
            gained = best.value - values[-1 - _PATIENCE] if len(values) > _PATIENCE else math.inf
            if goal - best.value > WORTH + _HOPE * gained:
                raise StopIteration

        result = scipy.optimize.minimize(
            loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(self.lower / self.scale, self.upper / self.scale),
            callback=check_goal,
            options={
                "maxiter": max_iterations,
                "maxfun": 20 * max_iterations,
                "maxcor": _MEMORY,
                "ftol": tolerance,
            },
        )
        message, converged = str(result.message).strip(": "), bool(result.success)
        if message == "ABNORMAL":  # SciPy says no more than that
            converged = slope < _FLAT or self._rounding(best) > TOLERANCE
            message = "no better point found along the last direction" + (", for rounding errors" if converged else "")
        return Outcome(best.value, best.x, int(result.nit), converged, message)

    def _rounding(self, best: Outcome) -> float:
        """Rounding errors of the objective at a point, for each observation: what a step of no size changes."""
        value, _ = self.evaluate(best.x + 1e-13 * (1.0 + np.abs(best.x)))
        size = self.size + abs(best.value)
        return abs(value - best.value) / size if math.isfinite(value) else 0.0

    def _wall(self, x: Vector, best: Outcome, start: float) -> tuple[float, Vector]:
        """A loss that rises steeply from the best point to x, so that the line search interpolates back towards it.

        An infinite loss would end the line search instead.
        """
        step = x - best.x
        lowest = (start - best.value) / self.size
        height = 1.0 + abs(lowest)
        return lowest + height, 2.0 * height * step / max(float(step @ step), 1e-300)


def _natural_scales(model: RCGP, parameters: list[Tensor]) -> list[Tensor]:
    """The size of a step that matters, for each raw parameter: one, but for those that have units.

    Kernel parameters and noise are fitted on scales without units, but for a few that the model knows. The scale of a
    parameter θ_j of the prior mean m_θ is one over the root mean square of ∂m(x_i)/∂θ_j / s_i, with s_i the robust
    standard deviation of y − m: such a step moves the mean by as much as the data scatter. The mean square comes from
    random signs ε_i: E (Σ_i ε_i ∂m(x_i)/∂θ_j / s_i)² = Σ_i (∂m(x_i)/∂θ_j / s_i)².
    """
    with_units = {id(parameter): scale for parameter, scale in model.parameter_scales().items()}
    scales = [with_units.get(id(parameter), torch.ones_like(parameter)) for parameter in parameters]
    own = {id(parameter) for parameter in model.mean.parameters()}
    indices = [i for i, parameter in enumerate(parameters) if id(parameter) in own]
    if not indices:
        return scales
    with torch.enable_grad():
        values = model.mean(model.train_X)
    if not values.requires_grad:
        return scales
    spread = model.row_spread().to(values)
    random = torch.Generator(device="cpu").manual_seed(0)
    sums = [torch.zeros_like(scales[i]) for i in indices]
    for _ in range(_PROBES):
        signs = (torch.randint(0, 2, values.shape, generator=random) * 2 - 1).to(values)
        gradients = torch.autograd.grad(
            values,
            [parameters[i] for i in indices],
            signs / spread,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient.square()
    for i, total in zip(indices, sums, strict=True):
        sensitivity = (total / (_PROBES * values.shape[0])).sqrt()
        scales[i] = torch.where(sensitivity > 0, sensitivity.reciprocal(), scales[i])
    return scales


def _raw_bound(parameter: Tensor, constraint: object, side: str) -> Tensor:
    unbounded = torch.full_like(parameter.detach(), -math.inf if side == "lower" else math.inf)
    if isinstance(constraint, Between):
        return constraint.raw_bound(side).to(unbounded).expand_as(unbounded)
    if constraint is None or getattr(constraint, "enforced", True):
        return unbounded
    bound: Tensor = getattr(constraint, f"{side}_bound")
    return bound.to(unbounded).expand_as(unbounded)
