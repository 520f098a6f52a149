"""A small Bayesian optimisation without a script: an objective, bounds and a budget in, the best point out.

Each step fits the robust model to all values so far, evaluates the objective where the model expects most, and writes
the evaluation to the trace. Nothing else is kept between steps, so a run can stop and resume anywhere.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rcgp.botorch.evaluations import Box, Evaluation, OptimisationResult, Parameters
from rcgp.botorch.fitting import warn_of_doubts
from rcgp.botorch.suggesting import Surrogate, fit_surrogate, next_point, sobol_point
from rcgp.botorch.trace import Trace
from rcgp.training.status_line import StatusLine

__all__ = ["EvaluationError", "optimise"]

#: Called with the number of evaluations that have ended and the best value by the model, nan without a model.
Progress = Callable[[int, float], None]

# Characters of an error's message that a reason keeps.
_LONGEST = 500

# Fewest failed evaluations before the objective is blamed.
_FEWEST_FAILURES = 5


class EvaluationError(Exception):
    """Raised by an objective that has no value: the message is kept as the reason.

    :func:`optimise` raises it if the first evaluations all failed for the same reason.
    """


def optimise(
    objective: Callable[[Any], Any],
    bounds: Any,
    budget: int,
    *,
    maximise: bool = False,
    initial: int | None = None,
    seed: int | None = None,
    trace: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
) -> OptimisationResult:
    """Minimise or maximise a function that is expensive, noisy, and sometimes wrong.

    The first points fill the box (a scrambled Sobol sequence). Each later one maximises log noisy expected improvement
    under :class:`SingleTaskRCGP`. The same seed and values give the same points.

    An evaluation that raises an exception, or returns no finite number, is kept with its reason and skipped: it counts
    towards the budget, and no later one is made next to it. If the first evaluations, ``initial`` but at least five,
    all fail for the same reason, the optimisation ends with an error. An interrupt (Ctrl-C) is passed on; with a
    trace, the same call resumes.

    Args:
        objective: takes a dictionary of names and values, or a vector, as bounds are given; returns a number.
        bounds: a dictionary of names and pairs (low, high), a sequence or array of pairs, or BoTorch's ``2 x d``
            tensor: a row of lows and a row of highs.
        budget: number of evaluations, those in the trace included.
        maximise: whether to maximise.
        initial: number of points before the first model. Default: twice the number of parameters, at least 5.
        seed: random seed. Default: the trace's, or one drawn at random.
        trace: file of all evaluations, created if missing. A killed optimisation resumes from it and repeats only the
            evaluation that had started and not ended.
        progress: ``True`` shows evaluations and best value on standard error; or a function called with both.

    Returns:
        The best point and value by the model, all evaluations, and the outliers among them. A ``NoiseLawWarning`` says
        where the last model may be wrong about these.

    Raises:
        ValueError, TypeError: for invalid arguments, and a trace that cannot be written, belongs to another
            optimisation or is in use.
        EvaluationError: if the first evaluations all failed for the same reason. The trace keeps them.
    """
    if not callable(objective):
        raise TypeError(f"objective must be a function, got {type(objective).__name__}")
    box = Box.of(bounds)
    budget = _count(budget, "budget", 1)
    if not isinstance(maximise, bool | np.bool_):
        raise TypeError(f"maximise must be True or False, got {maximise!r}")
    seed = None if seed is None else _count(seed, "seed", 0)
    initial = None if initial is None else _count(initial, "initial", 1)
    if trace is not None and not isinstance(trace, str | os.PathLike):
        raise TypeError(f"trace must be a path, got {type(trace).__name__}")
    with Trace(trace, box, bool(maximise), seed, initial) as kept, _reporter(progress, budget) as report:
        for number in range(1, budget + 1):
            if number in kept.finished:
                continue
            before = [kept.finished[k] for k in range(1, number)]
            _check_failures(before, kept.initial)
            x = kept.started.get(number)
            if x is None:
                x = _propose(before, number, kept, report)
            kept.start(number, x)
            kept.finish(_evaluate(objective, number, x))
        evaluations = [kept.finished[number] for number in sorted(kept.finished)]
        surrogate = _surrogate(evaluations, kept)
        report(len(evaluations), _best_value(surrogate, kept))
    if surrogate is not None:
        warn_of_doubts(surrogate.model, stacklevel=3)
    return _result(evaluations, surrogate, kept)


def _propose(before: Sequence[Evaluation], number: int, kept: Trace, report: Progress) -> Parameters:
    """The parameters of an evaluation, given those before it."""
    surrogate = None if number <= kept.initial else _surrogate(before, kept)
    report(len(before), _best_value(surrogate, kept))
    if surrogate is None:
        return kept.box.from_unit(sobol_point(kept.box.dimension, number, kept.seed))
    failed = kept.box.to_unit([e.x for e in before if e.value is None])
    return kept.box.from_unit(next_point(surrogate, failed, number, kept.seed))


def _check_failures(before: Sequence[Evaluation], initial: int) -> None:
    """Raise if every evaluation so far failed with the same error."""
    if len(before) < max(initial, _FEWEST_FAILURES) or any(e.value is not None for e in before):
        return
    reasons = {e.reason for e in before}
    if len(reasons) == 1:
        raise EvaluationError(
            f"all of the first {len(before)} evaluations failed for the same reason: {reasons.pop()}; fix it and "
            "start again, with a new trace if there is one"
        )


def _evaluate(objective: Callable[[Any], Any], number: int, x: Parameters) -> Evaluation:
    """Evaluate an objective; it fails by raising an exception or returning no finite number."""
    began = time.perf_counter()
    value, reason = None, ""
    try:
        value = _number(objective(x.copy()))  # which it may change
    except EvaluationError as error:
        reason = str(error) or "it returned no value"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return Evaluation(number, x, value, reason[:_LONGEST], time.perf_counter() - began)


def _number(returned: Any) -> float:
    """The value as a finite float: a Python number, or an array or tensor with one element."""
    array = np.asarray(returned.detach().cpu() if isinstance(returned, torch.Tensor) else returned)
    if array.size != 1 or array.dtype.kind not in "iuf":
        # Without the value: the same mistake has the same reason.
        what = "None" if returned is None else f"a value of type {type(returned).__name__}"
        raise EvaluationError(f"it returned {what}, which is not a number")
    value = float(array.item())
    if not math.isfinite(value):
        raise EvaluationError(f"it returned {value}")
    return value


def _surrogate(evaluations: Sequence[Evaluation], kept: Trace) -> Surrogate | None:
    """The model fitted to all values, with larger ones better."""
    good = [e for e in evaluations if e.value is not None]
    y = torch.tensor([e.value for e in good], dtype=torch.double)
    return fit_surrogate(kept.box.to_unit([e.x for e in good]), y if kept.maximise else -y)


def _best_value(surrogate: Surrogate | None, kept: Trace) -> float:
    return math.nan if surrogate is None else float(surrogate.mean[surrogate.best]) * (1.0 if kept.maximise else -1.0)


def _result(evaluations: list[Evaluation], surrogate: Surrogate | None, kept: Trace) -> OptimisationResult:
    sign = 1.0 if kept.maximise else -1.0
    good = [e for e in evaluations if e.value is not None]
    if surrogate is None:
        best = max(good, key=lambda e: sign * (e.value or 0.0), default=None)
        value, deviation = (None if best is None else best.value), None
    else:
        chosen = surrogate.best
        best, value, deviation = good[chosen], _best_value(surrogate, kept), float(surrogate.deviation[chosen])
        for i, e in enumerate(good):
            evaluations[evaluations.index(e)] = replace(
                e,
                weight=float(surrogate.weight[i]),
                outlier_probability=float(surrogate.outlier_probability[i]),
                expected=sign * float(surrogate.expected[i]),
                deviation=float(surrogate.expected_deviation[i]),
            )
    x, number = (None, None) if best is None else (best.x, best.number)
    doubts = () if surrogate is None else surrogate.model.doubts
    return OptimisationResult(x, value, deviation, number, tuple(evaluations), kept.maximise, doubts)


@contextmanager
def _reporter(progress: bool | Progress, budget: int) -> Iterator[Progress]:
    """The function that reports progress: the caller's, a status line or a no-op."""
    if callable(progress):
        yield progress
    elif progress:
        line = StatusLine()

        def show(done: int, best: float) -> None:
            found = "" if math.isnan(best) else f", best {best:.6g}"
            line.show(f"optimise: {done} of {budget} evaluations{found}")

        try:
            yield show
        finally:
            line.end()
    else:
        yield lambda done, best: None


def _count(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if not least <= value < 2**63:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)
