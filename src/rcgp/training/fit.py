"""Choosing hyperparameters: ``fit``, and the report of how that went. The search itself is in :mod:`.search`."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import SupportsIndex

import torch
from threadpoolctl import ThreadpoolController

from rcgp.models import RCGP, SparseRCGP
from rcgp.training.objectives import OBJECTIVES, Objective, not_chosen_by
from rcgp.training.search import (
    NUMERICAL_ERRORS,
    TOLERANCE,
    Outcome,
    Progress,
    Search,
    hyperparameters_of,
    restore_hyperparameters,
    shorter_starts,
)
from rcgp.training.status_line import StatusLine

__all__ = [
    "FitError",
    "FitReport",
    "check_limits",
    "fit",
    "fit_ordinary",
    "in_double",
    "limited_threads",
    "reporter",
]

# Rows up to which a fit runs on one thread of torch. At 1000 an evaluation takes some 0.1 s.
_FEW_ROWS = 1000


class FitError(RuntimeError):
    """No start of a fit led anywhere; the model is as it was before.

    Attributes:
        reason: what went wrong.
        row: row of the training data to look at first: the one that lies farthest from the prior mean, or has the clue.
        clue: what is odd about the row, where that is not its distance from the prior mean; else empty.
    """

    def __init__(self, reason: str, row: int, clue: str = "") -> None:
        super().__init__(reason, row, clue)
        self.reason, self.row, self.clue = reason, row, clue

    def __str__(self) -> str:
        clue = self.clue or (
            "which lies farthest from the prior mean; other starting values of kernel and noise may help, or another "
            "prior mean"
        )
        return f"{self.reason}. Look at row {self.row}, {clue}"


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
        held: names of parameters that the objective cannot choose, which the fit therefore held fixed.
    """

    objective: str
    value: float
    evaluations: int
    rejected: int
    iterations: int
    seconds: float
    converged: bool
    message: str = field(repr=False)
    starts: tuple[float, ...] = field(repr=False)
    hyperparameters: dict[str, list[float]] = field(repr=False)
    held: str = ""

    def __str__(self) -> str:
        state = "converged" if self.converged else "did not converge"
        rejected = f", {self.rejected} rejected" if self.rejected else ""
        lines = [
            f"{self.objective} = {self.value:.6g}, {state} in {self.iterations} iterations ({self.message})",
            f"{self.evaluations} evaluations{rejected}, {self.seconds:.2f} s",
        ]
        if self.held:
            lines.append(f"held fixed, which this objective cannot choose: {self.held}")
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
    tolerance: float = TOLERANCE,
    goal: float = -math.inf,
) -> FitReport:
    """Choose the hyperparameters of a model by maximising an objective with L-BFGS-B.

    Starts from the current hyperparameters, so that a second call goes on from the first. Parameters with
    ``requires_grad=False`` stay fixed. A float32 model is fitted in float64 and cast back.

    If the fit fails the model is left as it was. If it is interrupted (Ctrl-C) the model keeps the best
    hyperparameters met so far before the interrupt is passed on; call ``fit`` again to go on.

    Args:
        model: the model, changed in place.
        objective: ``"loo"`` (the paper's), ``"marginal"`` (only for weights that do not depend on y),
            ``"pseudo_marginal"`` (ill-posed), for sparse models ``"elbo"`` (which for weights that depend on y cannot
            choose noise variance and threshold: they are held fixed), or a function from the model to a scalar.
        restarts: number of further starts, at the current parameters plus standard normal noise on the raw
            (unconstrained) scale, for parameters of a mean in units of the scatter of y; the best end is kept.
        max_iterations: limit on the iterations of each start.
        seed: seed of the restarts.
        progress: ``True`` shows evaluations and best value on standard error; or a function called with both.
        tolerance: gain of an iteration below which a search ends, relative to the value for each observation and to 1.
        goal: value to be reached; a start that clearly cannot is given up early.

    Returns:
        The report. Cost O(n³) for each evaluation.

    Raises:
        FitError: where the objective can be computed at none of the starts.
    """
    if not isinstance(model, RCGP):
        raise TypeError(f"model must be an RCGP, got {type(model).__name__}")
    name, function = _named_objective(objective)
    check_limits(restarts, max_iterations)
    began = time.perf_counter()
    unchosen = {key: part for key, part in not_chosen_by(function, model).items() if part.requires_grad}
    with (
        torch.inference_mode(False),
        in_double(model),
        _held(unchosen.values()),
        limited_threads(len(model.train_y)),
        reporter(progress) as report,
    ):
        search = Search(model, function, report)
        outcomes = _search_all(search, restarts, max_iterations, seed, tolerance, goal)
    best = max(outcomes, key=lambda outcome: outcome.value)
    if best.value == -math.inf:
        size = model.residual().detach().abs()
        raise FitError(
            f"the objective {name!r} could not be computed at any of {len(outcomes)} starts: {best.message} (an "
            f"observation is {float(size.max()):.3g} away from the prior mean)",
            row=int(size.argmax()),
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
        hyperparameters=model.listed_hyperparameters(),
        held=", ".join(unchosen),
    )


def fit_ordinary(
    model: RCGP,
    *,
    restarts: int = 0,
    max_iterations: int = 1000,
    seed: int | None = None,
    progress: bool | Progress = False,
    goal: float = -math.inf,
) -> FitReport:
    """Fit a model with a weight that does not depend on y by its marginal likelihood, a sparse one by the bound.

    As :func:`fit`, and once more from shorter lengthscales where these are better before any search than all that was
    found from the given ones: a function that is faster than its first lengthscales looks like noise from there.
    """
    name = "elbo" if isinstance(model, SparseRCGP) else "marginal"
    search = partial(fit, model, name, restarts, max_iterations, seed, progress, goal=goal)
    first = hyperparameters_of(model)
    best, found = search(), hyperparameters_of(model)
    evaluations, rejected = best.evaluations, best.rejected
    restore_hyperparameters(model, first)
    try:
        for _ in shorter_starts(model):
            with suppress(FitError, *NUMERICAL_ERRORS), in_double(model):
                with torch.no_grad():
                    value = float(OBJECTIVES[name](model))
                if value > best.value:
                    best, found = search(), hyperparameters_of(model)
                    evaluations, rejected = evaluations + best.evaluations, rejected + best.rejected
    finally:
        restore_hyperparameters(model, found)
    return replace(best, evaluations=evaluations, rejected=rejected)


def check_limits(restarts: int, max_iterations: int) -> None:
    """Refuse what are no numbers of restarts or iterations."""
    for argument, number, least in (("restarts", restarts, 0), ("max_iterations", max_iterations, 1)):
        if not isinstance(number, SupportsIndex) or number < least:
            raise ValueError(f"{argument} must be a whole number, at least {least}, got {number!r}")


def _search_all(
    search: Search, restarts: int, max_iterations: int, seed: int | None, tolerance: float, goal: float
) -> list[Outcome]:
    """Search from all starts. The model is then at the best end; as it was before where there is none, or one fails.

    After an interrupt it is at the best point met.
    """
    try:
        outcomes = [search.run(start, max_iterations, tolerance, goal) for start in search.starts(restarts, seed)]
    except KeyboardInterrupt:
        if search.best is None:
            search.restore()
        else:
            search.write(search.best.x)
        raise
    except BaseException:
        search.restore()
        raise
    best = max(outcomes, key=lambda outcome: outcome.value)
    if best.value == -math.inf:
        search.restore()
    else:
        search.write(best.x)
    return outcomes


@contextmanager
def _held(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Parameters that are not fitted for as long as it takes."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _named_objective(objective: str | Objective) -> tuple[str, Objective]:
    if callable(objective):
        return getattr(objective, "__name__", type(objective).__name__), objective
    if objective not in OBJECTIVES:
        raise ValueError(
            f"objective must be one of {', '.join(map(repr, OBJECTIVES))} or a function, got {objective!r}"
        )
    return objective, OBJECTIVES[objective]


@contextmanager
def reporter(progress: bool | Progress) -> Iterator[Progress]:
    """A function to tell evaluations and best value to: the caller's, one that shows them, or one that does nothing."""
    if callable(progress):
        yield progress
    elif progress:
        line = StatusLine()
        try:
            yield lambda evaluations, best: line.show(f"fit: {evaluations} evaluations, best {best:.6g}")
        finally:
            line.end()
    else:
        yield lambda evaluations, best: None


@contextmanager
def limited_threads(rows: int) -> Iterator[None]:
    """One thread for SciPy's BLAS and, up to 1000 rows, for torch; both as before afterwards.

    L-BFGS-B's matrices are tiny, but the threads of SciPy's OpenBLAS spin for some 30 ms after each call, on the cores
    that torch needs for the next evaluation: a fit of 500 rows takes three times as long. The threads of torch wait for
    each other many times in an evaluation: on a machine that is busy otherwise a second thread makes it up to 30 times
    slower, and on an idle one saves half at most.

    torch keeps its number of threads where the user chose it; see :func:`_threads_are_chosen`. All this happens in the
    main thread only: two fits in two threads would restore each other's setting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = torch.get_num_threads()
    change = rows <= _FEW_ROWS and before > 1 and not _threads_are_chosen(before)
    with _openblas().limit(limits=1):
        if change:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if change:
                torch.set_num_threads(before)


@cache
def _openblas() -> ThreadpoolController:
    """SciPy's OpenBLAS among the loaded libraries; to look for it takes some milliseconds."""
    return ThreadpoolController().select(internal_api="openblas")


def _threads_are_chosen(threads: int) -> bool:
    """Whether the user chose torch's number of threads: in the environment, or as a number that is not the default.

    torch does not tell whether ``set_num_threads`` was called. Its default is the number of cores, physical or logical,
    of the machine or of those that this process may use. To choose that very number set ``OMP_NUM_THREADS``.
    """
    if any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        return True
    logical = {os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        logical.add(len(os.sched_getaffinity(0)))
    return threads not in logical | {cores // 2 for cores in logical}


@contextmanager
def in_double(model: RCGP) -> Iterator[None]:
    """The model in float64 for as long as it takes."""
    dtype = model.train_y.dtype
    model.double()
    try:
        yield
    finally:
        model.to(dtype)
