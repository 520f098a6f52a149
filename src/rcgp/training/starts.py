"""Where rounds start again: from neighbours, from shorter lengthscales, afar, the core or everyone, or by trimming.

Rounds that follow each other may settle on the wrong rows. Each of these tries another start and keeps what is better.
"""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from rcgp.models.defaults import robust_spread
from rcgp.training.adaptive_report import LIMIT
from rcgp.training.climbing import MARGIN, trimmed_at
from rcgp.training.course import MISSING, ROUGH, Course
from rcgp.training.fit import FitError
from rcgp.training.neighbours import ask_neighbours
from rcgp.training.rows import Prediction, robust_spread_of
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters, shorten_lengthscales
from rcgp.training.tails import fit_tail
from rcgp.training.trimmed import find_trusted

__all__ = ["by_trimming", "from_afar", "from_core", "from_everyone", "from_neighbours", "with_shorter_lengthscales"]

# Robust standard deviations around the prior mean within which every row is asked, and the loss of evidence, for each
# row that was trusted, beyond which those that were not are foreign to them.
_EVERYONE, _FOREIGN = 1e6, math.log(12.0)

# Degrees of freedom of residuals that may as well be a mixture.
_HEAVIEST = 2.0

# Share of trusted rows below which many were rejected, and the robust standard deviations of a wide window.
_MANY, _WIDE = 0.75, 12.0

# Share of the scatter of the trusted rows that is left around their predictions where hardly anything was learned, the
# parts of the first lengthscales that are tried then, and the iterations after which each is given up if not ahead.
_UNLEARNED, _SHORTER, _ITERATIONS = 0.7, (1 / 4, 1 / 16), 8

# Rows up to which trimming is tried, which takes as long as all the rest there and longer with more of them; and which
# need it: with more rows there are neighbours that tell outliers. And the share of copies among them that it bears.
_FEW, _COPIES = 150, 0.05


def from_neighbours(course: Course, trusted: Tensor) -> Tensor:
    """Start again where the medians of neighbours predict better than the model does; keep the better of both."""
    neighbours = ask_neighbours(course.model.train_X, course.y)
    spread = robust_spread_of(course.y - course.predict().mean)
    if not spread > neighbours.spread > 0.0:
        return trusted
    before = course.place()
    restore_hyperparameters(course.model, course.first)
    course.expect(neighbours.median, torch.full_like(course.y, LIMIT * neighbours.spread))
    with suppress(FitError):
        again = course.settle("neighbours", course.within(course.y - neighbours.median, LIMIT * neighbours.spread))
        if robust_spread_of(course.y - course.predict().mean) < spread:
            return again
    course.go_back(before)
    return trusted


def with_shorter_lengthscales(course: Course, trusted: Tensor) -> Tensor:
    """Start again with shorter lengthscales where all is taken for noise, and shorter ones soon explain more.

    The evidence has a maximum where the lengthscales are long and the noise is all there is. A search that begins
    with lengthscales much longer than those of the function ends there.
    """
    left = robust_spread_of((course.y - course.predict().mean)[trusted])
    if left < _UNLEARNED * robust_spread_of((course.y - course.y[trusted].median())[trusted]):
        return trusted
    before, best = course.place(), course.evidence(trusted)
    first, parameters = course.first, None
    for factor in _SHORTER:
        restore_hyperparameters(course.model, first)
        shorten_lengthscales(course.model, factor)
        start = hyperparameters_of(course.model)
        glance = course.attempt("closer", course.evidence_of(trusted), trusted, ROUGH, _ITERATIONS)
        if glance is not None and glance.value / int(trusted.sum()) > best:
            best, parameters = glance.value / int(trusted.sum()), hyperparameters_of(course.model)
            course.first = start
    if parameters is not None:
        restore_hyperparameters(course.model, parameters)
        with suppress(FitError):
            return course.settle("closer", trusted)
    course.go_back(before)
    course.first = first
    return trusted


def from_everyone(course: Course, trusted: Tensor, prediction: Prediction, residual: Tensor) -> Tensor | None:
    """Start again from an ordinary GP of all rows, where that predicts better: then what was rejected is no error.

    The mean absolute leave-one-out residuals are compared, row by row: a gross outlier adds the same to both. But a
    cluster of outliers predicts itself. Hyperparameters that follow it make the trusted rows very unlikely: more
    than twelve times for each row is too much.

    Args:
        course: the fit.
        trusted: ``n`` flags of the rows that are trusted so far.
        prediction: of all rows, as it is.
        residual: ``n`` differences from the prior mean.

    Returns:
        Flags of the rows that are trusted then; None if all stays as it is.
    """
    before, evidence = course.place(), course.evidence(trusted)
    limit = _EVERYONE * robust_spread(residual)
    everyone = course.within(residual, limit)
    restore_hyperparameters(course.model, course.first)
    course.expect(course.y - residual, torch.full_like(course.y, limit))
    fitted = course.attempt("everyone", course.evidence_of(everyone), everyone, ROUGH)
    gain = (course.y - prediction.mean).abs() - (course.y - course.predict().mean).abs()
    if fitted is not None and float(gain.sum()) > 0.0 and evidence - course.evidence(trusted) <= _FOREIGN:
        with suppress(FitError):
            return course.settle("everyone", everyone)
    course.go_back(before)
    return None


def from_afar(course: Course, trusted: Tensor, residual: Tensor) -> Tensor:
    """Start again from a wide window around the prior mean, where many rows were rejected and tails are the heaviest.

    Of values with a long tail of their own, such as prices, a quarter may lie beyond three robust standard deviations
    of the median, and rounds that begin without them may not find them again. Both hypotheses are compared as those of
    :func:`from_core`.
    """
    if float(trusted.double().mean()) > _MANY:
        return trusted
    if fit_tail(course.predict().score(course.y).abs().cpu().numpy()).degrees > _HEAVIEST:
        return trusted
    before, value = course.place(), course.log_density(trusted)
    limit = _WIDE * robust_spread(residual)
    restore_hyperparameters(course.model, course.first)
    course.expect(course.y - residual, torch.full_like(course.y, limit))
    with suppress(FitError):
        again = course.settle("afar", course.within(residual, limit))
        if course.log_density(again) > value + MARGIN:
            return again
    course.go_back(before)
    return trusted


def from_core(course: Course, trusted: Tensor) -> Tensor:
    """Start again from the half of the rows that is predicted best, where residuals have the heaviest of tails.

    Many outliers that are not far out make so much noise that none of them lies beyond it: residuals are then those of
    the good rows, and much larger ones. Both hypotheses are compared as those of :func:`by_trimming`: where the tail
    is a real one, nothing is gained by calling it outliers.
    """
    prediction = course.predict()
    score = prediction.score(course.y)
    tail = fit_tail(score.abs().cpu().numpy())
    if tail.degrees > _HEAVIEST:
        return trusted
    before, value = course.place(), course.log_density(trusted)
    course.expect(prediction.mean, LIMIT * tail.scale * prediction.variance.sqrt())
    with suppress(FitError):
        again = course.follow("core", course.within(score, 0.0))
        if course.log_density(again) > value - MISSING * len(course.y):
            again = course.settle("core", again)
            if course.log_density(again) > value + MARGIN:
                return again
    course.go_back(before)
    return trusted


def by_trimming(course: Course, trusted: Tensor) -> Tensor:
    """Start again from the rows that are trusted by the evidence of trust and hyperparameters, if there are few rows.

    Among some dozens of rows the neighbours of an outlier are too few to outvote it, and rounds explain outliers by
    noise. Both hypotheses are compared by the density that they give to all rows, those that are not trusted as
    outliers (:mod:`rcgp.training.trimmed`).
    """
    model = course.model
    # It takes copies for observations, and many of them for proof that there is no noise.
    if len(course.y) > _FEW or float(course.distinct.double().mean()) < 1.0 - _COPIES:
        return trusted
    before, value = course.place(), course.log_density(trusted)
    restore_hyperparameters(model, course.first)
    try:
        found, _, evaluations = find_trusted(model, max_iterations=course.max_iterations)
    except FitError:
        found, evaluations = trusted, 0
    course.evaluations += evaluations
    if not torch.equal(found, trusted) and course.log_density(found) > value + MARGIN:
        trimmed, prior_mean = trimmed_at(model), course.y - model.residual().detach()
        course.expect(prior_mean + trimmed.mean, LIMIT * trimmed.variance.sqrt())
        with suppress(FitError):
            return course.settle("trimmed", found)
    course.go_back(before)
    return trusted
