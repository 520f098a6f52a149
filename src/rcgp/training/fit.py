"""Choosing hyperparameters: SciPy's L-BFGS-B on an objective, and the report of how that went.

The optimiser sees one float64 vector of all parameters that require gradients. Steps to where the objective cannot be
computed (a matrix not positive definite, a value not finite) are rejected like steps that make it worse.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import scipy.optimize
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.models import RCGP
from rcgp.training.objectives import OBJECTIVES, Objective

__all__ = ["FitError", "FitReport", "fit"]

Vector = NDArray[np.float64]
Progress = Callable[[int, float], None]


class FitError(RuntimeError):
    """No start of a fit led anywhere; the model is as it was before."""


@dataclass(frozen=True)
class FitReport:
    """What a fit did. ``print(report)`` shows it.

    Attributes:
        objective: name of the objective.
        value: its value at the chosen hyperparameters, priors included.
        evaluations: number of evaluations of value and gradient, over all starts.
        rejected: how many of them met a matrix that is not positive definite or a value that is not finite.
        iterations: iterations of L-BFGS-B in the start that was kept.
        seconds: wall time of the whole fit.
        converged: whether L-BFGS-B met its tolerances in the start that was kept.
        message: L-BFGS-B's own last word on that start.
        starts: final value of each start, ``-inf`` where one failed; the best one was kept.
        hyperparameters: name and value of every hyperparameter of the model after the fit.
    """

    objective: str
    value: float
    evaluations: int
    rejected: int
    iterations: int
    seconds: float
    converged: bool
    message: str
    starts: tuple[float, ...]
    hyperparameters: dict[str, list[float]] = field(repr=False)

    def __str__(self) -> str:
        state = "converged" if self.converged else "did not converge"
        rejected = f", {self.rejected} rejected" if self.rejected else ""
        lines = [
            f"{self.objective} = {self.value:.6g}, {state} in {self.iterations} iterations ({self.message})",
            f"{self.evaluations} evaluations{rejected}, {self.seconds:.2f} s",
        ]
        if len(self.starts) > 1:
            lines.append("starts: " + ", ".join(f"{value:.6g}" for value in self.starts))
        width = max((len(name) for name in self.hyperparameters), default=0)
        for name, values in self.hyperparameters.items():
            shown = ", ".join(f"{value:.4g}" for value in values[:8]) + (", …" if len(values) > 8 else "")
            lines.append(f"  {name:<{width}}  {shown}")
        return "\n".join(lines)


def fit(
    model: RCGP,
    objective: str | Objective = "loo",
    restarts: int = 0,
    max_iterations: int = 1000,
    seed: int | None = None,
    progress: bool | Progress = False,
) -> FitReport:
    """Choose the hyperparameters of a model by maximising an objective with L-BFGS-B.

    Starts from the current hyperparameters, so that a second call goes on from the first. Parameters with
    ``requires_grad=False`` stay fixed. A float32 model is fitted in float64 and cast back.

    If the fit fails the model is left as it was. If it is interrupted (Ctrl-C) the model keeps the best
    hyperparameters met so far before the interrupt is passed on; call ``fit`` again to go on.

    Args:
        model: the model, changed in place.
        objective: ``"loo"`` (the paper's), ``"marginal"`` (only for weights that do not depend on y),
            ``"pseudo_marginal"`` (ill-posed), or a function from the model to a scalar.
        restarts: number of further starts, at the current parameters plus standard normal noise on the raw
            (unconstrained) scale; the best final value is kept.
        max_iterations: limit on the iterations of each start.
        seed: seed of the restarts.
        progress: ``True`` shows evaluations and best value on standard error; or a function called with both.

    Returns:
        The report. Cost O(n³) for each evaluation.

    Raises:
        FitError: where the objective can be computed at none of the starts.
    """
    name, function = _named_objective(objective)
    for argument, number, least in (("restarts", restarts, 0), ("max_iterations", max_iterations, 1)):
        if number < least:
            raise ValueError(f"{argument} must be at least {least}, got {number}")
    began = time.perf_counter()
    with _float64(model), _reporter(progress) as report:
        search = _Search(model, function, report)
        first = search.read()
        try:
            outcomes = [search.run(start, max_iterations) for start in search.starts(restarts, seed)]
        except KeyboardInterrupt:
            search.write(first if search.best is None else search.best.x)
            raise
        except BaseException:
            search.write(first)
            raise
        best = max(outcomes, key=lambda outcome: outcome.value)
        search.write(first if best.value == -math.inf else best.x)
    if best.value == -math.inf:
        raise FitError(
            f"the objective {name!r} could not be computed at any of {len(outcomes)} starts: {best.message}. "
            "Other starting values (the kernel's, or RCGP(noise=...)) or restarts may help."
        )
    return FitReport(
        objective=name,
        value=best.value,
        evaluations=search.evaluations,
        rejected=search.rejected,
        iterations=best.iterations,
        seconds=time.perf_counter() - began,
        converged=best.converged,
        message=best.message,
        starts=tuple(outcome.value for outcome in outcomes),
        hyperparameters={key: value.reshape(-1).tolist() for key, value in model.hyperparameters().items()},
    )


@dataclass(frozen=True)
class _Outcome:
    """Where one start ended: value of the objective, -inf where it could not be computed, and parameters."""

    value: float
    x: Vector
    iterations: int = 0
    converged: bool = False
    message: str = ""


class _Search:
    """The parameters of a model as one vector, the objective as a function of it, and the best vector met."""

    def __init__(self, model: RCGP, objective: Objective, report: Progress) -> None:
        trainable = [entry for entry in model.named_parameters_and_constraints() if entry[1].requires_grad]
        self.model, self.objective, self.report = model, objective, report
        self.parameters: list[Tensor] = [parameter for _, parameter, _ in trainable]
        # A constraint without a transform is left to the optimiser, as GPyTorch means it.
        self.lower = self._flat([_raw_bound(p, constraint, "lower") for _, p, constraint in trainable])
        self.upper = self._flat([_raw_bound(p, constraint, "upper") for _, p, constraint in trainable])
        self.size = model.train_y.shape[0]
        self.evaluations = self.rejected = 0
        self.best: _Outcome | None = None

    @staticmethod
    def _flat(tensors: list[Tensor]) -> Vector:
        parts = [tensor.detach().reshape(-1).double().cpu().numpy() for tensor in tensors]
        return np.concatenate(parts) if parts else np.zeros(0)

    def read(self) -> Vector:
        return self._flat(self.parameters)

    def write(self, x: Vector) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                part, x = x[: parameter.numel()], x[parameter.numel() :]
                parameter.copy_(torch.from_numpy(part).reshape(parameter.shape))

    def starts(self, restarts: int, seed: int | None) -> list[Vector]:
        """The current parameters, then as many random ones around them as asked for."""
        first, random = self.read(), np.random.default_rng(seed)
        others = [first + random.standard_normal(first.shape) for _ in range(restarts)]
        return [np.clip(start, self.lower, self.upper) for start in (first, *others)]

    def evaluate(self, x: Vector) -> tuple[float, Vector]:
        """Value and gradient of the objective; the value is -inf where it cannot be computed."""
        self.evaluations += 1
        self.write(x)
        nothing = (-math.inf, np.zeros_like(x))
        try:
            value = self.objective(self.model)
        except NotPositiveDefiniteError:
            return nothing
        if self.parameters:
            gradients = torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True)
        else:
            gradients = ()
        number, gradient = float(value.detach()), self._flat(list(gradients))
        if not (math.isfinite(number) and np.isfinite(gradient).all()):
            return nothing
        if self.best is None or number > self.best.value:
            self.best = _Outcome(number, x.copy())
        self.report(self.evaluations, self.best.value)
        return number, gradient

    def run(self, start: Vector, max_iterations: int) -> _Outcome:
        """L-BFGS-B from one start, on the negative objective for each observation."""
        best = _Outcome(self.evaluate(start)[0], start)
        if best.value == -math.inf:
            self.rejected += 1
            return _Outcome(-math.inf, start, message="not positive definite or not finite")
        if not start.size:
            return _Outcome(best.value, start, converged=True, message="no hyperparameter to fit")

        def loss(x: Vector) -> tuple[float, Vector]:
            nonlocal best
            value, gradient = self.evaluate(x)
            if value == -math.inf:
                self.rejected += 1
                return self._wall(x, best)
            if value > best.value:
                best = _Outcome(value, x.copy())
            return -value / self.size, -gradient / self.size

        result = scipy.optimize.minimize(
            loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(self.lower, self.upper),
            options={"maxiter": max_iterations, "maxfun": 20 * max_iterations},
        )
        return _Outcome(best.value, best.x, int(result.nit), bool(result.success), str(result.message))

    def _wall(self, x: Vector, best: _Outcome) -> tuple[float, Vector]:
        """A loss that rises steeply from the best point to x, so that the line search interpolates back towards it.

        An infinite loss would end the line search instead.
        """
        step = x - best.x
        height = 1.0 + abs(best.value) / self.size
        return -best.value / self.size + height, 2.0 * height * step / max(float(step @ step), 1e-300)


def _raw_bound(parameter: Tensor, constraint: object, side: str) -> Tensor:
    unbounded = torch.full_like(parameter.detach(), -math.inf if side == "lower" else math.inf)
    if constraint is None or getattr(constraint, "enforced", True):
        return unbounded
    bound: Tensor = getattr(constraint, f"{side}_bound")
    return bound.to(unbounded).expand_as(unbounded)


def _named_objective(objective: str | Objective) -> tuple[str, Objective]:
    if callable(objective):
        return getattr(objective, "__name__", type(objective).__name__), objective
    if objective not in OBJECTIVES:
        raise ValueError(
            f"objective must be one of {', '.join(map(repr, OBJECTIVES))} or a function, got {objective!r}"
        )
    return objective, OBJECTIVES[objective]


@contextmanager
def _reporter(progress: bool | Progress) -> Iterator[Progress]:
    """A function to tell evaluations and best value to: the caller's, one that shows them, or one that does nothing."""
    if callable(progress):
        yield progress
    elif progress:
        try:
            yield lambda evaluations, best: print(
                f"\rfit: {evaluations} evaluations, best {best:.6g} ", end="", file=sys.stderr, flush=True
            )
        finally:
            print(file=sys.stderr)
    else:
        yield lambda evaluations, best: None


@contextmanager
def _float64(model: RCGP) -> Iterator[None]:
    """The model in float64 for as long as it takes."""
    dtype = model.train_y.dtype
    model.double()
    try:
        yield
    finally:
        model.to(dtype)
