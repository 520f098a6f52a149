"""A small Bayesian optimisation for those who have no script: an objective, bounds and a budget in, the best point out.

From one evaluation to the next: fit the robust model to all values so far, evaluate where it expects most, write both
to the trace. Nothing else is kept from step to step, so it can stop and go on anywhere.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rcgp.botorch.box import Box
from rcgp.botorch.result import Evaluation, OptimisationResult
from rcgp.botorch.suggesting import Belief, believe, first_point, next_point
from rcgp.botorch.trace import Finished, Plan, Trace
from rcgp.training.status_line import StatusLine

__all__ = ["EvaluationError", "optimise"]

#: Told how many evaluations have ended, and the best value by the model: nan where there is none yet.
Progress = Callable[[int, float], None]

# What a reason keeps of an error's message.
_LONGEST = 500

# So many evaluations at least must have failed before it is taken for the objective's fault.
_HOPE = 5


class EvaluationError(Exception):
    """An objective may raise this where it has no value: its message alone is kept as the reason.

    :func:`optimise` raises it where the first evaluations all failed for the same reason.
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
    """Minimise or maximise a function that is expensive, noisy, and now and then wrong.

    The first points fill the box (a scrambled Sobol sequence), each later one is where log noisy expected improvement
    under :class:`SingleTaskRCGP` is largest. The same seed and values give the same points.

    An evaluation that raises an exception, or returns what is no finite number, is kept with its reason and skipped:
    it counts towards the budget, and no later one is made next to it. If the first ones all fail for the same reason,
    as many as ``initial`` and at least five, there is no sense in going on. An interrupt (Ctrl-C) is passed on; with a
    trace, the same call goes on from there.

    Args:
        objective: takes a dictionary of names and values, or a vector, as bounds are given; returns a number.
        bounds: a dictionary of names and pairs (low, high), a sequence or array of pairs, or a tensor as BoTorch has
            it, ``2 x d``: a row of lows and a row of highs.
        budget: number of evaluations, those in the trace included.
        maximise: the direction.
        initial: number of points before the first model. Default: twice the number of parameters, at least 5.
        seed: of everything random. Default: the trace's, or one drawn at random.
        trace: file of all evaluations, made where there is none. With it an optimisation that was killed goes on where
            it stopped and repeats no evaluation but the one that had started and not ended.
        progress: ``True`` shows evaluations and best value on standard error; or a function called with both.

    Returns:
        The best point and value by the model, all evaluations, and which of them are outliers.

    Raises:
        ValueError, TypeError: for arguments that make no sense, and a trace that cannot be written, is of another
            optimisation or in use.
        EvaluationError: where the first evaluations all failed for the same reason. The trace keeps them.
    """
    if not callable(objective):
        raise TypeError(f"objective must be a function, got {type(objective).__name__}")
    box = Box.of(bounds)
    budget = _count(budget, "budget", 1)
    plan = Plan(
        box,
        _flag(maximise, "maximise"),
        None if seed is None else _count(seed, "seed", 0),
        None if initial is None else _count(initial, "initial", 1),
    )
    if trace is not None and not isinstance(trace, str | os.PathLike):
        raise TypeError(f"trace must be a path, got {type(trace).__name__}")
    with (
        Trace(trace, plan, secrets.randbits(32), max(5, 2 * box.dimension)) as kept,
        _reporter(progress, budget) as tell,
    ):
        for number in range(1, budget + 1):
            if number in kept.finished:
                continue
            before = [kept.finished[k] for k in range(1, number)]
            _check_hope(before, kept.initial)
            values = kept.started.get(number) or _propose(before, number, kept, tell)
            kept.start(number, values)
            kept.finish(_evaluate(objective, box, number, values))
        evaluations = [kept.finished[number] for number in sorted(kept.finished)]
        belief = _belief(evaluations, plan)
        tell(len(evaluations), _best_value(belief, plan))
    return _result(evaluations, belief, plan)


def _propose(before: Sequence[Finished], number: int, kept: Trace, tell: Progress) -> tuple[float, ...]:
    """The point of that number, given the evaluations before it."""
    plan, box = kept.plan, kept.plan.box
    belief = None if number <= kept.initial else _belief(before, plan)
    tell(len(before), _best_value(belief, plan))
    if belief is None:
        return box.from_unit(first_point(box.dimension, number, kept.seed))
    failed = box.to_unit([e.values for e in before if e.value is None])
    return box.from_unit(next_point(belief, failed, number, kept.seed))


def _check_hope(before: Sequence[Finished], initial: int) -> None:
    """Raise if nothing but the same failure has come of evaluations all over the box."""
    if len(before) < max(initial, _HOPE) or any(e.value is not None for e in before):
        return
    reasons = {e.reason for e in before}
    if len(reasons) == 1:
        raise EvaluationError(
            f"all of the first {len(before)} evaluations failed for the same reason: {reasons.pop()}; mend that and "
            "begin anew, with a new trace if there is one"
        )


def _evaluate(objective: Callable[[Any], Any], box: Box, number: int, values: tuple[float, ...]) -> Finished:
    """Evaluate an objective; an exception, or what is no finite number, is a reason."""
    began = time.perf_counter()
    value, reason = None, ""
    try:
        value = _number(objective(box.parameters(values)))
    except EvaluationError as error:
        reason = str(error) or "it has no value"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return Finished(number, values, value, reason[:_LONGEST], time.perf_counter() - began)


def _number(returned: Any) -> float:
    """A finite number from what an objective returned: a Python number, or an array or tensor that holds one."""
    array = np.asarray(returned.detach().cpu() if isinstance(returned, torch.Tensor) else returned)
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise EvaluationError(f"it returned {repr(returned)[:100]}, which is not a number")
    value = float(array.item())
    if not math.isfinite(value):
        raise EvaluationError(f"it returned {value}")
    return value


def _belief(evaluations: Sequence[Finished], plan: Plan) -> Belief | None:
    """What the model holds of evaluations, where larger is better."""
    good = [e for e in evaluations if e.value is not None]
    y = torch.tensor([e.value for e in good], dtype=torch.double)
    return believe(plan.box.to_unit([e.values for e in good]), y if plan.maximise else -y)


def _best_value(belief: Belief | None, plan: Plan) -> float:
    return math.nan if belief is None else float(belief.mean[belief.best]) * (1.0 if plan.maximise else -1.0)


def _result(evaluations: Sequence[Finished], belief: Belief | None, plan: Plan) -> OptimisationResult:
    sign = 1.0 if plan.maximise else -1.0
    good = [e for e in evaluations if e.value is not None]
    row_of = {} if belief is None else {e.number: i for i, e in enumerate(good)}
    listed = []
    for e in evaluations:
        told: dict[str, float] = {}
        if belief is not None and e.number in row_of:
            i = row_of[e.number]
            told = {
                "weight": float(belief.weight[i]),
                "outlier_probability": float(belief.outlier_probability[i]),
                "expected": sign * float(belief.expected[i]),
                "deviation": float(belief.expected_deviation[i]),
            }
        listed.append(Evaluation(e.number, plan.box.parameters(e.values), e.value, e.reason, e.seconds, **told))
    best = value = deviation = None
    if belief is not None:
        best, value, deviation = good[belief.best], _best_value(belief, plan), float(belief.deviation[belief.best])
    elif good:
        best = max(good, key=lambda e: sign * (e.value or 0.0))
        value = best.value
    x = None if best is None else plan.box.parameters(best.values)
    return OptimisationResult(x, value, deviation, None if best is None else best.number, tuple(listed), plan.maximise)


@contextmanager
def _reporter(progress: bool | Progress, budget: int) -> Iterator[Progress]:
    """A function to tell evaluations and best value to: the caller's, one that shows them, or one that does nothing."""
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


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)
