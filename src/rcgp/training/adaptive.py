"""Adaptive centring: weights centred on what the other rows say, hyperparameters chosen by the rows that are trusted.

The paper centres the weight of an observation on the prior mean and chooses hyperparameters by a score that outliers
inflate. Here the centre of row i is what all other rows predict there, which does not depend on y_i: the closed form
holds exactly, given the centres. Who is trusted and what is predicted depend on each other and are found in rounds:

1. Rows near the prior mean, on the scale of their spread, are trusted.
2. Settle, in a few rounds: hyperparameters by the evidence of the trusted rows; then leave-one-out predictions
   with standard deviations S_i, weights centred on them with the threshold 3 S_i, and the rows within it are trusted.
3. If that predicts rows worse than the median of their neighbours does (many outliers), start again from those medians.
4. If hardly anything was learned, the function may be faster than the first lengthscales: try shorter ones.
5. If the residuals may be those of good rows and of many outliers, start again from a wide window around the prior
   mean, and from the half that is predicted best; with few rows, from those that are trusted by evidence.
6. The tail of the residuals of the bulk says how far is too far (:mod:`rcgp.training.tails`); where rows come back by
   that, hyperparameters are chosen with them and the line is drawn again.
7. If no gap sets the rejected rows apart, they may be no outliers but what the function does: if an ordinary GP of all
   rows predicts better, start again from that.
8. Rejected rows that crowd together are judged by the rows outside (:mod:`rcgp.training.contested`).
9. Hyperparameters by the leave-one-out score and the evidence of the trusted rows, from where the rounds ended or, if a
   few steps from the first ones predict better, from there; and standard deviations checked on halves of the data
   (:mod:`rcgp.training.calibration`).
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.training.adaptive_report import LIMIT, AdaptiveReport
from rcgp.training.calibration import excess_variance, scale_variance
from rcgp.training.contested import contested_rows, judge
from rcgp.training.course import MISSING, REPEATS, ROUGH, Course, Parts
from rcgp.training.fit import FitError, FitReport, in_double, reporter
from rcgp.training.rows import Prediction, joint_score_of, leave_out_score_of, ordinary_score_of
from rcgp.training.search import Progress
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters
from rcgp.training.starts import (
    by_trimming,
    from_afar,
    from_core,
    from_everyone,
    from_neighbours,
    with_shorter_lengthscales,
)
from rcgp.training.tails import fit_tail
from rcgp.weights import Plateau

__all__ = ["Parts", "centre_on", "fit_adaptive"]

# Share of rows with the inputs of another one above which leave-one-out scores mean little, and the number of rows from
# which on they mean something: of ten rows, 95 % intervals would hold 60 to 80 % instead of 85.
_TWINS, _FEWEST = 0.05, 30

# How often the line is drawn again where rows came back, and the ratio of a residual to the next smaller one that tells
# outliers. Where real peaks and steps were rejected it was at most 4.5, with clusters of outliers 23 to 50.
_LINES, _GAP = 3, 10.0

# Tolerance of the searches in the end, and in halves of the data, where so many iterations are enough.
_FINE, _HALF, _HALF_ITERATIONS = 1e-6, 1e-5, 18

# Iterations after which a search from the first hyperparameters is given up if it is not ahead by then; and the score
# that may be missing for each row after the first iteration. Where it came to be ahead, 0.13 were missing at the most.
_AFRESH, _BEHIND = 4, 0.5


def fit_adaptive(
    model: RCGP, *, max_iterations: int = 1000, progress: bool | Progress = False, parts: Parts | None = None
) -> AdaptiveReport:
    """Choose the weights and the hyperparameters of a model by what its rows say of each other.

    The model's own weight function is replaced by a :class:`rcgp.weights.Plateau` with a centre and a threshold for
    each row, and a kernel without an output scale gets one if the variances must grow. It predicts in closed form as
    before. Parameters with ``requires_grad=False`` stay fixed; where the noise or the output scale is fixed the
    variances are not calibrated.

    Of a function of one input, up to 45 % of the rows may be outliers where they fall to both sides, about a third
    where they all fall to one; with more inputs it takes more rows to tell. The result does not depend on the order of
    the rows, nor on units. If the fit fails or is interrupted the model is as it was before.

    Args:
        model: the model, changed in place. ``mean="median"`` and weak priors on its kernel are good company.
        max_iterations: limit on the iterations of each search.
        progress: as in :func:`rcgp.fit`.
        parts: which parts of the recipe to use. Default: all.

    Returns:
        The report. Cost O(n³) for each evaluation; measured, two to eight times as long as an ordinary GP.

    Raises:
        FitError: where an objective can be computed at no point of a search.
    """
    if not isinstance(model, RCGP):
        raise TypeError(f"model must be an RCGP, got {type(model).__name__}")
    began = time.perf_counter()
    weight, kernel = model.weight, model.kernel
    parameters = hyperparameters_of(model)
    try:
        with torch.inference_mode(False), in_double(model), reporter(progress) as report:
            course = Course(model, parts or Parts(), max_iterations, report)
            last = _run(course)
    except BaseException:
        model.weight, model.kernel = weight, kernel
        model.to(model.train_y.dtype)  # the weight was no part of the model when that was cast back
        restore_hyperparameters(model, parameters)
        raise
    return AdaptiveReport(
        objective="adaptive",
        value=last.value,
        evaluations=course.evaluations,
        rejected=course.rejected,
        iterations=last.iterations,
        seconds=time.perf_counter() - began,
        converged=last.converged,
        message=last.message,
        starts=last.starts,
        hyperparameters=model.listed_hyperparameters(),
        rounds=tuple(course.rounds),
        settled=course.settled,
        tail=course.tail,
        contested=course.contested,
        calibration=course.calibration,
        reach=course.reach,
    )


def centre_on(model: RCGP, mean: Tensor, std: Tensor, threshold: float) -> None:
    """Weights for all rows of a model whose hyperparameters are chosen: centred on the others, from a first guess on.

    Args:
        model: its weight is replaced.
        mean, std: ``n`` means and standard deviations of the observations, as far as they are known before.
        threshold: standard deviations beyond which a row is not trusted.

    Cost O(n³).
    """
    with torch.no_grad():
        for _ in range(REPEATS):
            model.weight = Plateau(mean - model.mean(model.train_X), threshold * std)
            mean, variance = model.leave_one_out()
            std = variance.sqrt()
        model.weight = Plateau(mean - model.mean(model.train_X), threshold * std)


def _run(course: Course) -> FitReport:
    """All steps, in order. Returns the report of the last search."""
    residual = course.model.residual().detach()
    course.expect(course.y - residual, torch.full_like(course.y, LIMIT * robust_spread(residual)))
    course.first = hyperparameters_of(course.model)  # without those that the weight may have had
    trusted = course.settle("settle", course.within(residual, LIMIT * robust_spread(residual)))
    if course.parts.neighbours and len(course.y) > 2:
        trusted = from_neighbours(course, trusted)
    if course.parts.shorter:
        trusted = with_shorter_lengthscales(course, trusted)
    if course.parts.afar:
        trusted = from_afar(course, trusted, residual)
    if course.parts.core:
        trusted = from_core(course, trusted)
    if course.parts.trimming:
        trusted = by_trimming(course, trusted)
    trusted, prediction = _draw_line(course, trusted)
    if course.parts.everyone and not _are_outliers(course, prediction, ~trusted):
        again = from_everyone(course, trusted, prediction, residual)
        if again is not None:
            trusted, prediction = _draw_line(course, again)
    if course.parts.contested:
        trusted, prediction = _judge(course, trusted, prediction)
    threshold = course.tail.threshold * prediction.variance.sqrt()
    course.expect(prediction.mean, threshold)
    last = _finish(course, trusted)
    course.expect(course.predict().mean, threshold)
    if course.parts.calibration and course.model.raw_noise.requires_grad:
        _calibrate(course, trusted)
    # The thresholds stay where the tail was fitted: with the last standard deviations, which are smaller where the
    # score is better, good rows would be lost that had a part in that score.
    course.reach = float((threshold / course.predict().variance.sqrt()).median())
    return last


def _draw_line(course: Course, trusted: Tensor) -> tuple[Tensor, Prediction]:
    """Who is trusted by the tail of the residuals.

    Rows that come back had no part in the hyperparameters, and with them the others are predicted better: so the line
    is drawn again, unless those rows make all much less likely.
    """
    if not course.parts.tail:
        return trusted, course.predict()
    drawn, prediction = _within_tail(course)
    for _ in range(_LINES):
        if int((drawn & ~trusted).sum()) <= course.few():
            break
        before, tail, density = course.place(), course.tail, course.log_density(trusted)
        course.expect(prediction.mean, tail.threshold * prediction.variance.sqrt())
        fitted = course.attempt("line", course.evidence_of(drawn), drawn, ROUGH)
        if fitted is None or course.log_density(drawn) < density - MISSING * len(course.y):
            course.go_back(before)
            break
        trusted = drawn
        drawn, prediction = _within_tail(course)
        course.settled = int((drawn != trusted).sum()) <= course.few()
    return drawn, prediction


def _are_outliers(course: Course, prediction: Prediction, rejected: Tensor) -> bool:
    """Whether all but a few of the rejected rows lie beyond a gap in the residuals, or there are no others.

    Values of a function come without one, however steep it is: there are rows halfway up a peak.
    """
    score = prediction.score(course.y).abs()
    beyond = score[rejected].sort().values
    if len(beyond) <= course.few():
        return True
    inside = max(LIMIT, float(score[~rejected].max()))
    steps = torch.cat([beyond.new_tensor([inside]), beyond])
    gaps = steps[1:] / steps[:-1]
    return bool((gaps[: int(course.few()) + 1] > _GAP).any())


def _within_tail(course: Course) -> tuple[Tensor, Prediction]:
    """The rows within the tail of the residuals, and the predictions that these are from."""
    prediction = course.predict()
    score = prediction.score(course.y)
    course.tail = fit_tail(score.abs().cpu().numpy())
    return course.within(score, course.tail.threshold), prediction


def _judge(course: Course, trusted: Tensor, prediction: Prediction) -> tuple[Tensor, Prediction]:
    """Have the rows outside decide on a contested region, if there is one."""
    region = contested_rows(course.model, trusted)
    if region is None:
        return trusted, prediction
    before = course.place()
    restore_hyperparameters(course.model, course.first)
    outside = trusted & ~region
    fitted = course.attempt("outside", course.evidence_of(outside), outside, ROUGH)
    verdict = None if fitted is None else judge(course.model, trusted, region, LIMIT)
    if verdict is not None:
        mixed = Prediction(
            *(torch.where(region, new, old) for new, old in zip(verdict.prediction, prediction, strict=True))
        )
        course.expect(mixed.mean, LIMIT * mixed.variance.sqrt())
        with suppress(FitError):
            judged = course.settle("judged", verdict.trusted)
            course.contested = int(region.sum())
            return _draw_line(course, judged)
    course.go_back(before)
    return trusted, prediction


def _finish(course: Course, trusted: Tensor) -> FitReport:
    """The last hyperparameters."""
    if _by_evidence(course, trusted):
        return course.search("finish", course.evidence_of(trusted), trusted, _FINE)
    last = course.search("finish", joint_score_of(trusted), trusted, _FINE)
    return _try_afresh(course, last, trusted) if course.parts.afresh else last


def _try_afresh(course: Course, last: FitReport, trusted: Tensor) -> FitReport:
    """Search from the first hyperparameters, too, if the leave-one-out score is soon ahead there.

    The score has several maxima, and the evidence may have led to a poor one: it rates a function that is smooth
    everywhere higher than leave-one-out does. Where there is a better one, a few steps are enough to see.
    """
    found, score = hyperparameters_of(course.model), leave_out_score_of(trusted)
    with torch.no_grad():
        reached = float(score(course.model))
    restore_hyperparameters(course.model, course.first)
    for iterations, missing in ((1, _BEHIND * int(trusted.sum())), (_AFRESH - 1, 0.0)):
        glance = course.attempt("afresh", score, trusted, _FINE, iterations)
        if glance is None or glance.value <= reached - missing:
            restore_hyperparameters(course.model, found)
            return last
    other = course.attempt("afresh", joint_score_of(trusted), trusted, _FINE)
    if other is None or other.value <= last.value:
        restore_hyperparameters(course.model, found)
        return last
    return other


def _by_evidence(course: Course, trusted: Tensor) -> bool:
    """Whether leave-one-out scores are not asked for, or mean little: of few rows, or of twins that tell each other."""
    X = course.model.train_X[trusted]
    if not course.parts.leave_one_out or len(X) < _FEWEST:
        return True
    return len(np.unique(X.cpu().numpy(), axis=0)) < (1.0 - _TWINS) * len(X)


def _calibrate(course: Course, trusted: Tensor) -> None:
    objective_of = course.evidence_of if _by_evidence(course, trusted) else ordinary_score_of

    def choose(rows: Tensor) -> None:
        course.search("half", objective_of(rows), None, _HALF, _HALF_ITERATIONS)

    score = course.predict().score(course.y)
    course.calibration = scale_variance(course.model, excess_variance(course.model, trusted, score, choose))
