"""Trimming: which rows to trust and the hyperparameters, by the evidence of both.

Maximised is the evidence of the trusted rows plus what each rejected row is worth (:mod:`rcgp.core.trimming`): in turn,
hyperparameters given who is trusted, and who is trusted given those. That climbs to a maximum nearby, so it is begun
from everyone, and from who is trusted by priors with little noise: the one explains outliers by noise and by wiggles,
the others by outliers. The best end is kept. Made for the few, exact observations of an optimisation, where the rounds
of :func:`rcgp.fit_adaptive`, which need neighbours, have none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.core.trimming import UNKNOWN, Trimmed, trim
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.training.fit import FitError, FitReport, fit, in_double, scipy_on_one_thread
from rcgp.training.quick_evidence import QuickEvidence
from rcgp.training.rows import evidence_of
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters, shorten_lengthscales
from rcgp.weights import Rejection

__all__ = ["find_trusted", "fit_to_rows", "fit_trimmed", "trusted_rows"]

# Multiples of the first lengthscales that searches begin with, and their noise variance as a part of the squared
# scatter.
_LENGTHSCALES, _NOISE = (1.0, 2.5), 1e-3

# Rows are rejected only if that is better by so much: of many sets of rows, one is a little better by chance.
_MARGIN = 2.0

# How much more it must be worth to reject a row that no other contradicts. Functions to be optimised may well be far
# higher somewhere than where most rows are.
_UNCONTRADICTED = 20.0

# Mean square over squared scatter above which observations are taken to span orders of magnitude, and the largest.
_HEAVY, _HEAVIEST = 10.0, 1e10

# How often hyperparameters and trust follow each other at most, and the tolerances on the way and in the end.
_TURNS, _ROUGH, _FINE = 6, 1e-4, 1e-7


@dataclass(frozen=True)
class _End:
    """Where one climb ended."""

    value: float
    trusted: Tensor
    parameters: list[Tensor]


def fit_trimmed(model: RCGP, *, max_iterations: int = 1000) -> FitReport:
    """Choose weights and hyperparameters of a model by evidence.

    The model's own weight function is replaced by a :class:`rcgp.weights.Rejection` with a centre and a threshold for
    each row. If the fit fails the model is as it was before.

    Args:
        model: the model, changed in place.
        max_iterations: limit on the iterations of each search.

    Returns:
        The report of the last search, with the evaluations of all. Its value is that of the trusted rows, of which
        there are at least three in five. Cost O(n³) for each evaluation.

    Raises:
        FitError: where no climb could be begun.
    """
    began, weight, first = time.perf_counter(), model.weight, hyperparameters_of(model)
    try:
        with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
            climber = _Climber(model, max_iterations)
            last = climber.search(climber.climb(), _FINE)
            trimmed = _trim(model)
            # Relative to the noise of the row, where that is known to be less or more than σ².
            deviation = (trimmed.variance * model.noise.detach() / _row_noise(model)).sqrt()
            model.weight = Rejection(trimmed.mean, trimmed.threshold, deviation)
    except BaseException:
        model.weight = weight
        restore_hyperparameters(model, first)
        raise
    return FitReport(
        objective="trimmed",
        value=last.value,
        evaluations=climber.evaluations,
        rejected=climber.rejected,
        iterations=last.iterations,
        seconds=time.perf_counter() - began,
        converged=last.converged,
        message=last.message,
        starts=tuple(climber.values),
        hyperparameters=model.listed_hyperparameters(),
    )


def fit_to_rows(
    model: RCGP, trusted: Tensor, *, other_start: list[Tensor] | None = None, max_iterations: int = 1000
) -> FitReport:
    """Choose the hyperparameters of a model by the evidence of some of its rows, ``n`` flags.

    Args:
        model: the model, changed in place.
        trusted: the rows.
        other_start: parameters (:func:`rcgp.training.snapshots.hyperparameters_of`) that a second search begins with:
            the evidence of few rows has several maxima. The better one is kept.
        max_iterations: limit on the iterations of each search.
    """
    with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
        climber, ends = _Climber(model, max_iterations), []
        for start in [climber.first] if other_start is None else [climber.first, other_start]:
            restore_hyperparameters(model, start)
            ends.append((climber.search(trusted, _FINE), hyperparameters_of(model)))
        report, parameters = max(ends, key=lambda end: end[0].value)
        restore_hyperparameters(model, parameters)
        return report


def trusted_rows(model: RCGP) -> Tensor:
    """Who is trusted at the hyperparameters of a model in double precision, ``n`` flags. Cost O(n³)."""
    return _trim(model).trusted


def find_trusted(model: RCGP, *, max_iterations: int = 1000) -> Tensor:
    """Who is trusted by evidence, ``n`` flags; the model's hyperparameters are near the best ones for these rows.

    What :func:`fit_trimmed` does before its last search, with the same errors.
    """
    with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
        return _Climber(model, max_iterations).climb()


class _Climber:
    """One fit on its way."""

    def __init__(self, model: RCGP, max_iterations: int) -> None:
        self.model, self.max_iterations = model, max_iterations
        self.quick = QuickEvidence.of(model)
        self.first = hyperparameters_of(model)
        self.values: list[float] = []
        self.everyone = _End(-math.inf, _everyone(model), self.first)
        self.evaluations = self.rejected = 0

    def climb(self) -> Tensor:
        """Climb from every start; the best end is kept. Returns who is trusted there."""
        ends = self._climb_all()
        best = max(ends, key=lambda end: end.value)
        if best.value < self.everyone.value + _MARGIN:
            best = self.everyone
        if not bool(best.trusted.all()):
            # Trust may be right and the hyperparameters stuck on the way to it.
            restore_hyperparameters(self.model, self.first)
            ends.append(self._climb(best.trusted))
            best = max(best, ends[-1], key=lambda end: end.value)
        self.values = [end.value for end in ends]
        restore_hyperparameters(self.model, best.parameters)
        return best.trusted

    def search(self, trusted: Tensor, tolerance: float) -> FitReport:
        """Hyperparameters by the evidence of these rows, from the present ones on."""
        if self.quick is None:
            objective = evidence_of(trusted)
            report = fit(self.model, objective, max_iterations=self.max_iterations, tolerance=tolerance)
        else:
            report = self.quick.search(trusted, tolerance, self.max_iterations)
        self.evaluations, self.rejected = self.evaluations + report.evaluations, self.rejected + report.rejected
        return report

    def _value(self, trimmed: Trimmed) -> float:
        trusted = trimmed.trusted
        with torch.no_grad():
            worth = float((trimmed.log_odds - _UNCONTRADICTED * (trimmed.unknown > UNKNOWN))[~trusted].sum())
            if self.quick is not None:
                return self.quick.value(trusted) + worth
            try:
                return float(evidence_of(trusted)(self.model)) + worth
            except NotPositiveDefiniteError:
                return -math.inf

    def _climb_all(self) -> list[_End]:
        starts: list[Callable[[RCGP], Tensor | None]] = [_everyone, _everyone_on_a_large_scale]
        starts += [partial(_trusted_at, factor=factor) for factor in _LENGTHSCALES]
        ends, failures = [], []
        for begin in starts:
            restore_hyperparameters(self.model, self.first)
            try:
                trusted = begin(self.model)
                if trusted is not None:
                    ends.append(self._climb(trusted))
            except (FitError, NotPositiveDefiniteError) as error:
                failures.append(error)
        if not ends:
            farthest = int(self.model.residual().detach().abs().argmax())
            first = failures[0]
            raise first if isinstance(first, FitError) else FitError(str(first), farthest) from first
        return ends

    def _climb(self, trusted: Tensor) -> _End:
        """Hyperparameters and trust in turn, until trust stays."""
        best = _End(-math.inf, trusted, hyperparameters_of(self.model))
        for _ in range(_TURNS):
            before = trusted
            self.search(trusted, _ROUGH)
            trimmed = _trim(self.model)
            if bool(before.all()):  # what it is worth to reject nobody
                nobody = _End(self._value(trimmed._replace(trusted=before)), before, hyperparameters_of(self.model))
                self.everyone = max(self.everyone, nobody, key=lambda end: end.value)
                best = max(best, nobody, key=lambda end: end.value)
            trusted, value = trimmed.trusted, self._value(trimmed)
            if value > best.value:
                best = _End(value, trusted, hyperparameters_of(self.model))
            if bool((trusted == before).all()):
                break
        return best


def _trim(model: RCGP) -> Trimmed:
    """Who is trusted at the present hyperparameters."""
    with torch.no_grad():
        return trim(model.kernel_matrix(), model.residual(), _row_noise(model))


def _row_noise(model: RCGP) -> Tensor:
    """Noise variance of each row, ``n``."""
    noise = model.noise if model.sample_weight is None else model.noise / model.sample_weight
    return noise.detach().expand_as(model.train_y)


def _everyone(model: RCGP) -> Tensor:
    """All rows, at the first hyperparameters."""
    return torch.ones_like(model.train_y, dtype=torch.bool)


def _everyone_on_a_large_scale(model: RCGP) -> Tensor | None:
    """All rows, where a few are very far from the others: perhaps the function is, at other places.

    Searches that begin on the scale of most rows end where these explain themselves and the others are noise.
    """
    residual = model.residual().detach()
    spread = robust_spread(residual)
    share = float((residual / spread).square().mean())
    scales = [part for part in model.kernel.modules() if isinstance(part, ScaleKernel)]
    if not scales or not scales[0].raw_outputscale.requires_grad or share <= _HEAVY:
        return None
    scales[0].outputscale = torch.full_like(scales[0].outputscale, min(share, _HEAVIEST) * spread**2)
    _begin(model, _LENGTHSCALES[-1])
    return _everyone(model)


def _trusted_at(model: RCGP, factor: float) -> Tensor | None:
    """Who is trusted at the first hyperparameters but for other lengthscales and little noise, if that is not all."""
    _begin(model, factor)
    trusted = _trim(model).trusted
    return None if bool(trusted.all()) else trusted


def _begin(model: RCGP, factor: float) -> None:
    """Multiply lengthscales, with little noise."""
    shorten_lengthscales(model, factor)
    if model.raw_noise.requires_grad:
        lower = float(model.raw_noise_constraint.lower_bound)
        model.noise = max(_NOISE * robust_spread(model.residual().detach()) ** 2, 1.01 * lower)
