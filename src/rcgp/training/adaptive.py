"""Adaptive centring: weights centred on what the other rows say, hyperparameters chosen by the rows that are trusted.

The paper centres the weight of an observation on the prior mean and chooses hyperparameters by a score that outliers
inflate. Here the centre of row i is what all other rows predict there, which does not depend on y_i: the closed form
holds exactly, given the centres. Who is trusted and what is predicted depend on each other and are found in rounds:

1. Rows near the prior mean, on the scale of their spread, are trusted.
2. Settle, in at most four rounds: hyperparameters by the evidence of the trusted rows; then leave-one-out predictions
   with standard deviations S_i, weights centred on them with the threshold 3 S_i, and the rows within it are trusted.
3. If that predicts rows worse than the median of their neighbours does (many outliers), start again from those medians.
4. If hardly anything was learned, the function may be faster than the first lengthscales: try shorter ones.
5. If an ordinary GP of all rows predicts them better (rows were rejected that are none), start again from that.
6. The tail of the residuals of the bulk says how far is too far (:mod:`rcgp.training.tails`).
7. Rejected rows that crowd together are judged by the rows outside (:mod:`rcgp.training.contested`).
8. Hyperparameters by the leave-one-out score of the trusted rows, from where the rounds ended or, if a few steps from
   the first ones score better, from there; and standard deviations checked on halves of the data
   (:mod:`rcgp.training.calibration`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.training.adaptive_report import LIMIT, AdaptiveReport, Round
from rcgp.training.calibration import excess_variance, scale_variance
from rcgp.training.contested import contested_rows, judge
from rcgp.training.fit import FitError, FitReport, fit, in_double, reporter
from rcgp.training.neighbours import ask_neighbours
from rcgp.training.objectives import Objective
from rcgp.training.rows import (
    Prediction,
    evidence_of,
    leave_out_score_of,
    robust_spread_of,
)
from rcgp.training.search import Progress
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters, shorten_lengthscales
from rcgp.training.tails import Tail, fit_tail
from rcgp.weights import Plateau

__all__ = ["Parts", "centre_on", "fit_adaptive"]

# Robust standard deviations around the median within which every row is asked, and the loss of evidence, for each row
# that was trusted, beyond which those that were not are foreign to them.
_EVERYONE, _FOREIGN = 1e6, math.log(12.0)

# How often hyperparameters and weights follow each other at most, how often the weights alone, and the share of rows
# that may still change sides when that ends.
_ROUNDS, _REPEATS, _SETTLED = 4, 2, 0.01

# Share of the scatter of the trusted rows that is left around their predictions where hardly anything was learned, and
# the parts of the first lengthscales that are tried then.
_UNLEARNED, _SHORTER = 0.7, (1 / 4, 1 / 16)

# Share of rows with the inputs of another one above which leave-one-out scores mean little.
_TWINS = 0.05

# Searches end early as long as who is trusted is not settled.
_ROUGH, _HALF, _FINE = 1e-4, 1e-5, 1e-6
_HALF_ITERATIONS = 18

# Iterations after which a search from shorter lengthscales, and one from the first hyperparameters, is given up if it is
# not ahead by then.
_CLOSER, _AFRESH = 8, 4


@dataclass(frozen=True)
class Parts:
    """The parts of the recipe, each of which can be left out to see what it is good for.

    Attributes:
        neighbours: start again from the medians of neighbours where the rounds went wrong.
        shorter: try shorter lengthscales where hardly anything was learned.
        everyone: start again from an ordinary GP of all rows where that predicts better.
        tail: take the threshold from the tail of the residuals; without, it is three standard deviations.
        contested: have rows outside judge rejected rows that crowd together.
        leave_one_out: choose the last hyperparameters by leave-one-out; without, by the evidence of the trusted rows.
        afresh: choose them from the first ones, too, where a few steps from there show that it is worth it.
        calibration: check the standard deviations on halves of the data.
    """

    neighbours: bool = True
    shorter: bool = True
    everyone: bool = True
    tail: bool = True
    contested: bool = True
    leave_one_out: bool = True
    afresh: bool = True
    calibration: bool = True


def fit_adaptive(
    model: RCGP, *, max_iterations: int = 1000, progress: bool | Progress = False, parts: Parts | None = None
) -> AdaptiveReport:
    """Choose the weights and the hyperparameters of a model by what its rows say of each other.

    The model's own weight function is replaced by a :class:`rcgp.weights.Plateau` with a centre and a threshold for
    each row, and a kernel without an output scale gets one if the variances must grow. It predicts in closed form as
    before. Parameters with ``requires_grad=False`` stay fixed; where the noise or the output scale is fixed the
    variances are not calibrated.

    Nearly half of the rows may be outliers where they fall to both sides, about a third where they all fall to one. The
    result does not depend on the order of the rows, nor on units. If the fit fails or is interrupted the model is as it
    was before.

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
            course = _Course(model, parts or Parts(), max_iterations, report)
            last = course.run()
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
        for _ in range(_REPEATS):
            model.weight = Plateau(mean - model.mean(model.train_X), threshold * std)
            mean, variance = model.leave_one_out()
            std = variance.sqrt()
        model.weight = Plateau(mean - model.mean(model.train_X), threshold * std)


class _Course:
    """One adaptive fit on its way: the model, what was done, and how it went."""

    def __init__(self, model: RCGP, parts: Parts, max_iterations: int, report: Progress) -> None:
        self.model, self.parts, self.max_iterations, self.report = model, parts, max_iterations, report
        self.y = model.train_y
        self.first: list[Tensor] = []
        self.rounds: list[Round] = []
        self.evaluations = self.rejected = self.contested = 0
        self.tail = Tail(math.inf, 1.0, LIMIT)
        self.calibration, self.reach = 1.0, LIMIT
        self.settled = False

    def run(self) -> FitReport:
        """All steps, in order. Returns the report of the last search."""
        residual = self.model.residual().detach()
        self._expect(self.y - residual, torch.full_like(self.y, LIMIT * robust_spread(residual)))
        self.first = hyperparameters_of(self.model)  # without those that the weight may have had
        trusted = self._settle("settle", self._within(residual, LIMIT * robust_spread(residual)))
        if self.parts.neighbours and len(self.y) > 2:
            trusted = self._ask_neighbours(trusted)
        if self.parts.shorter:
            trusted = self._look_closer(trusted)
        if self.parts.everyone and not bool(trusted.all()):
            trusted = self._ask_everyone(trusted, residual)
        trusted, prediction = self._draw_line(trusted)
        if self.parts.contested:
            trusted, prediction = self._judge(trusted, prediction)
        threshold = self.tail.threshold * prediction.variance.sqrt()
        self._expect(prediction.mean, threshold)
        last = self._finish(trusted)
        self._expect(self._predict().mean, threshold)
        if self.parts.calibration and self.model.raw_noise.requires_grad:
            self._calibrate(trusted)
        # The thresholds stay where the tail was fitted: with the last standard deviations, which are smaller where the
        # score is better, good rows would be lost that had a part in that score.
        self.reach = float((threshold / self._predict().variance.sqrt()).median())
        return last

    def _settle(self, name: str, trusted: Tensor) -> Tensor:
        """Hyperparameters and weights in turn. Returns the rows that are trusted in the end."""
        for _ in range(_ROUNDS):
            before = trusted
            self._search(name, evidence_of(trusted), trusted, _ROUGH)
            for _ in range(_REPEATS):
                prediction = self._predict()
                self._expect(prediction.mean, LIMIT * prediction.variance.sqrt())
                trusted = self._within(prediction.score(self.y), LIMIT)
            self.settled = int((trusted != before).sum()) <= _SETTLED * len(self.y)
            if self.settled:
                break
        return trusted

    def _ask_neighbours(self, trusted: Tensor) -> Tensor:
        """Start again where the medians of neighbours predict better than the model does; keep the better of both."""
        neighbours = ask_neighbours(self.model.train_X, self.y)
        spread = robust_spread_of(self.y - self._predict().mean)
        if not spread > neighbours.spread > 0.0:
            return trusted
        weight, parameters, settled = self.model.weight, hyperparameters_of(self.model), self.settled
        restore_hyperparameters(self.model, self.first)
        self._expect(neighbours.median, torch.full_like(self.y, LIMIT * neighbours.spread))
        again = self._settle("neighbours", self._within(self.y - neighbours.median, LIMIT * neighbours.spread))
        if robust_spread_of(self.y - self._predict().mean) < spread:
            return again
        self.model.weight, self.settled = weight, settled
        restore_hyperparameters(self.model, parameters)
        return trusted

    def _look_closer(self, trusted: Tensor) -> Tensor:
        """Start again with shorter lengthscales where all is taken for noise, and shorter ones soon explain more.

        The evidence has a maximum where the lengthscales are long and the noise is all there is. A search that begins
        with lengthscales much longer than those of the function ends there.
        """
        left = robust_spread_of((self.y - self._predict().mean)[trusted])
        if left < _UNLEARNED * robust_spread_of((self.y - self.y[trusted].median())[trusted]):
            return trusted
        weight, parameters, best = self.model.weight, hyperparameters_of(self.model), self._evidence(trusted)
        first, found = self.first, False
        for factor in _SHORTER:
            restore_hyperparameters(self.model, first)
            shorten_lengthscales(self.model, factor)
            start = hyperparameters_of(self.model)
            glance = self._try("closer", evidence_of(trusted), trusted, _ROUGH, _CLOSER)
            if glance is not None and glance.value / int(trusted.sum()) > best:
                best, found = glance.value / int(trusted.sum()), True
                self.first, parameters = start, hyperparameters_of(self.model)
        restore_hyperparameters(self.model, parameters)
        if not found:
            self.model.weight = weight
            return trusted
        return self._settle("closer", trusted)

    def _ask_everyone(self, trusted: Tensor, residual: Tensor) -> Tensor:
        """Start again from an ordinary GP of all rows, where that predicts better: then what was rejected is no error.

        The mean absolute leave-one-out residuals are compared, row by row: a gross outlier adds the same to both. But a
        cluster of outliers predicts itself. Hyperparameters that follow it make the trusted rows very unlikely: more
        than twelve times for each row is too much.
        """
        weight, parameters, before = self.model.weight, hyperparameters_of(self.model), self._predict().mean
        evidence = self._evidence(trusted)
        limit = _EVERYONE * robust_spread(residual)
        everyone = self._within(residual, limit)
        restore_hyperparameters(self.model, self.first)
        self._expect(self.y - residual, torch.full_like(self.y, limit))
        fitted = self._try("everyone", evidence_of(everyone), everyone, _ROUGH)
        gain = (self.y - before).abs() - (self.y - self._predict().mean).abs()
        if fitted is not None and float(gain.sum()) > 0.0 and evidence - self._evidence(trusted) <= _FOREIGN:
            return self._settle("everyone", everyone)
        self.model.weight = weight
        restore_hyperparameters(self.model, parameters)
        return trusted

    def _draw_line(self, trusted: Tensor) -> tuple[Tensor, Prediction]:
        """Who is trusted by the tail of the residuals."""
        prediction = self._predict()
        if not self.parts.tail:
            return trusted, prediction
        score = prediction.score(self.y)
        self.tail = fit_tail(score.abs().cpu().numpy())
        return self._within(score, self.tail.threshold), prediction

    def _judge(self, trusted: Tensor, prediction: Prediction) -> tuple[Tensor, Prediction]:
        """Have the rows outside decide on a contested region, if there is one."""
        region = contested_rows(self.model, trusted)
        if region is None:
            return trusted, prediction
        parameters = hyperparameters_of(self.model)
        restore_hyperparameters(self.model, self.first)
        outside = trusted & ~region
        fitted = self._try("outside", evidence_of(outside), outside, _ROUGH)
        verdict = None if fitted is None else judge(self.model, trusted, region, LIMIT)
        if verdict is None:
            restore_hyperparameters(self.model, parameters)
            return trusted, prediction
        self.contested = int(region.sum())
        mixed = Prediction(
            *(torch.where(region, new, old) for new, old in zip(verdict.prediction, prediction, strict=True))
        )
        self._expect(mixed.mean, LIMIT * mixed.variance.sqrt())
        return self._draw_line(self._settle("judged", verdict.trusted))

    def _finish(self, trusted: Tensor) -> FitReport:
        """The last hyperparameters."""
        if not self.parts.leave_one_out or self._has_twins(trusted):
            return self._search("finish", evidence_of(trusted), trusted, _FINE)
        objective = leave_out_score_of(trusted)
        last = self._search("finish", objective, trusted, _FINE)
        return self._try_afresh(last, objective, trusted) if self.parts.afresh else last

    def _try_afresh(self, last: FitReport, objective: Objective, trusted: Tensor) -> FitReport:
        """Search from the first hyperparameters, too, if that is soon ahead.

        The score has several maxima, and the evidence may have led to a poor one: it rates a function that is smooth
        everywhere higher than the leave-one-out score does. Where there is a better one, a few steps are enough to see.
        """
        found = hyperparameters_of(self.model)
        restore_hyperparameters(self.model, self.first)
        glance = self._try("afresh", objective, trusted, _FINE, _AFRESH)
        if glance is not None and glance.value > last.value:
            return self._search("afresh", objective, trusted, _FINE)
        restore_hyperparameters(self.model, found)
        return last

    def _has_twins(self, trusted: Tensor) -> bool:
        """Whether inputs repeat: then rows are predicted by their twins, and leave-one-out says nothing of the rest."""
        X = self.model.train_X[trusted]
        return len(np.unique(X.cpu().numpy(), axis=0)) < (1.0 - _TWINS) * len(X)

    def _calibrate(self, trusted: Tensor) -> None:
        def choose(objective: Objective) -> None:
            self._search("half", objective, None, _HALF, _HALF_ITERATIONS)

        score = self._predict().score(self.y)
        self.calibration = scale_variance(self.model, excess_variance(self.model, trusted, score, choose))

    def _try(
        self, name: str, objective: Objective, trusted: Tensor, tolerance: float, limit: int | None = None
    ) -> FitReport | None:
        """A search that may fail: then there is nothing to be had from these hyperparameters."""
        try:
            return self._search(name, objective, trusted, tolerance, limit)
        except FitError:
            return None

    def _search(
        self, name: str, objective: Objective, trusted: Tensor | None, tolerance: float, limit: int | None = None
    ) -> FitReport:
        so_far = self.evaluations
        report = fit(
            self.model,
            objective,
            max_iterations=min(self.max_iterations, limit or self.max_iterations),
            tolerance=tolerance,
            progress=lambda evaluations, best: self.report(so_far + evaluations, best),
        )
        self.evaluations += report.evaluations
        self.rejected += report.rejected
        if trusted is not None:
            count = int(trusted.sum())
            self.rounds.append(Round(name, report.evaluations, report.value / count, count))
        return report

    def _evidence(self, rows: Tensor) -> float:
        """The evidence of rows at the present hyperparameters, for each of them; minus infinity where there is none."""
        try:
            with torch.no_grad():
                return float(evidence_of(rows)(self.model)) / int(rows.sum())
        except NotPositiveDefiniteError:
            return -math.inf

    def _predict(self) -> Prediction:
        """Each observation from all others."""
        return Prediction(*self.model.leave_one_out())

    def _expect(self, mean: Tensor, threshold: Tensor) -> None:
        """Centre the weights on expected observations."""
        with torch.no_grad():
            self.model.weight = Plateau(mean - self.model.mean(self.model.train_X), threshold)

    def _within(self, residual: Tensor, limit: float) -> Tensor:
        """The rows within a limit, and at least half of all."""
        size = residual.abs()
        return size <= max(limit, float(size.quantile(0.5)))
