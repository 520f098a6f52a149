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
from dataclasses import dataclass, replace
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

__all__ = [
    "MARGIN",
    "find_trusted",
    "fit_as_botorch",
    "fit_to_rows",
    "fit_trimmed",
    "judge_rows",
    "trimmed_at",
]

# Multiples of the first lengthscales that searches begin with, and their noise variance as a part of the squared
# scatter.
_LENGTHSCALES, _NOISE = (1.0, 2.5), 1e-3

#: Rows are rejected only if that is better by so much: of many sets of rows, one is a little better by chance.
MARGIN = 6.0

# How much more it must be worth to reject a row that no other contradicts. Functions to be optimised may well be far
# higher somewhere than where most rows are.
_UNCONTRADICTED = 20.0

# Share by which values stay away from bounds.
_INSIDE = 1e-6

# The largest ratio of the variance of all rows to the squared scatter of most.
_HEAVIEST = 1e10

# How often hyperparameters and trust follow each other at most, and the tolerances on the way and in the end.
_TURNS, _ROUGH, _FINE = 6, 1e-4, 1e-7

# Tolerance of BoTorch's searches, SciPy's default.
_BOTORCH = 2.2e-9


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
            best = climber.climb()
            last = climber.search(best.trusted, _FINE)
            if not bool(best.trusted.all()):
                last = climber.search_afresh(last, best.trusted)
            trimmed = trimmed_at(model)
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


def fit_as_botorch(model: RCGP, *, max_iterations: int = 1000) -> FitReport:
    """Choose the hyperparameters of a model by the evidence of all rows, by the steps that BoTorch would take.

    Of several maxima that is the one that a model of BoTorch's ends in.
    """
    with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
        quick, everyone = QuickEvidence.of(model), _everyone(model)
        if quick is None:
            return fit(model, evidence_of(everyone), max_iterations=max_iterations, tolerance=_BOTORCH)
        report = quick.search(everyone, _BOTORCH, max_iterations, logarithms=False)
        if report.converged:
            return report
        # Its steps are bad ones where a hyperparameter is small, as noise is.
        rest = quick.search(everyone, _BOTORCH, max_iterations)
        return replace(rest, evaluations=report.evaluations + rest.evaluations)


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
            try:
                ends.append((climber.search(trusted, _FINE), hyperparameters_of(model)))
            except FitError as error:
                failure = error
        if not ends:
            restore_hyperparameters(model, climber.first)
            raise failure
        report, parameters = max(ends, key=lambda end: end[0].value)
        restore_hyperparameters(model, parameters)
        return replace(report, evaluations=climber.evaluations, starts=tuple(end[0].value for end in ends))


def judge_rows(model: RCGP, trusted: Tensor) -> tuple[Tensor, float]:
    """Who is trusted at a model's hyperparameters, ``n`` flags, and what it is worth to reject all but some others.

    Args:
        model: a model in double precision.
        trusted: ``n`` flags. What the evidence of these rows leaves out is the density of the rest as outliers:
            hypotheses about who is trusted are compared by both.
    """
    trimmed = trimmed_at(model)
    return trimmed.trusted, float(trimmed.log_odds[~trusted].sum())


def find_trusted(model: RCGP, *, max_iterations: int = 1000) -> tuple[Tensor, float, int]:
    """Who is trusted by evidence, ``n`` flags; by how much that is better than everyone; and the number of evaluations.

    The model's hyperparameters are near the best ones for these rows: what :func:`fit_trimmed` does before its last
    search, with the same errors.
    """
    with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
        climber = _Climber(model, max_iterations)
        best = climber.climb()
        return best.trusted, best.value - climber.everyone.value, climber.evaluations


class _Climber:
    """One fit on its way."""

    def __init__(self, model: RCGP, max_iterations: int) -> None:
        self.model, self.max_iterations = model, max_iterations
        self.quick = QuickEvidence.of(model)
        self.first = hyperparameters_of(model)
        self.values: list[float] = []
        self.everyone = _End(-math.inf, _everyone(model), self.first)
        self.evaluations = self.rejected = 0

    def climb(self) -> _End:
        """Climb from every start. The model has the hyperparameters of the best end, which is returned."""
        ends = self._climb_all()
        best = max(ends, key=lambda end: end.value)
        if best.value < self.everyone.value + MARGIN:
            best = self.everyone
        self.values = [end.value for end in ends]
        restore_hyperparameters(self.model, best.parameters)
        return best

    def search(self, trusted: Tensor, tolerance: float) -> FitReport:
        """Hyperparameters by the evidence of these rows, from the present ones on."""
        if self.quick is None:
            objective = evidence_of(trusted)
            report = fit(self.model, objective, max_iterations=self.max_iterations, tolerance=tolerance)
        else:
            report = self.quick.search(trusted, tolerance, self.max_iterations)
        self.evaluations, self.rejected = self.evaluations + report.evaluations, self.rejected + report.rejected
        return report

    def search_afresh(self, last: FitReport, trusted: Tensor) -> FitReport:
        """Search from the first hyperparameters, too: trust may be right, and these stuck on the way to it."""
        found = hyperparameters_of(self.model)
        restore_hyperparameters(self.model, self.first)
        try:
            report = self.search(trusted, _FINE)
        except FitError:
            report = last
        if report.value <= last.value:
            restore_hyperparameters(self.model, found)
            return last
        return report

    def _value(self, trimmed: Trimmed) -> float:
        trusted = trimmed.trusted
        with torch.no_grad():
            uncontradicted = trimmed.unknown > UNKNOWN
            worth = float((trimmed.log_odds - _UNCONTRADICTED * uncontradicted)[~trusted].sum())
            if self.quick is not None:
                return self.quick.value(trusted) + worth
            try:
                return float(evidence_of(trusted)(self.model)) + worth
            except NotPositiveDefiniteError:
                return -math.inf

    def _climb_all(self) -> list[_End]:
        starts: list[Callable[[RCGP], Tensor | None]] = [_everyone_on_their_scale]
        starts += [partial(_trusted_at, factor=factor) for factor in _LENGTHSCALES]
        ends, failures = [], []
        seen: list[Tensor] = []
        for begin in starts:
            restore_hyperparameters(self.model, self.first)
            try:
                trusted = begin(self.model)
                if trusted is not None and not any(torch.equal(trusted, other) for other in seen):
                    ends.append(self._climb(trusted))
                    seen += [] if bool(trusted.all()) else [trusted]
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
            trimmed = trimmed_at(self.model)
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


def trimmed_at(model: RCGP) -> Trimmed:
    """Who is trusted at a model's hyperparameters, and what they say of all rows."""
    with torch.no_grad():
        return trim(model.kernel_matrix(), model.residual(), _row_noise(model))


def _row_noise(model: RCGP) -> Tensor:
    """Noise variance of each row, ``n``."""
    noise = model.noise if model.sample_weight is None else model.noise / model.sample_weight
    return noise.detach().expand_as(model.train_y)


def _everyone(model: RCGP) -> Tensor:
    """All rows, at the first hyperparameters."""
    return torch.ones_like(model.train_y, dtype=torch.bool)


def _everyone_on_their_scale(model: RCGP) -> Tensor:
    """All rows, at a prior variance that is that of all: perhaps the function is far higher at some places.

    Searches that begin on the scale of most rows may end where a few explain themselves and the others are noise.
    """
    _rescale(model)
    return _everyone(model)


def _trusted_at(model: RCGP, factor: float) -> Tensor | None:
    """Who is trusted on the scale of all rows, with other lengthscales and little noise, if that is not all."""
    _rescale(model)
    shorten_lengthscales(model, factor)
    if model.raw_noise.requires_grad:
        lower = float(model.raw_noise_constraint.lower_bound)
        model.noise = max(_NOISE * _variance_of_all(model), 1.01 * lower)
    trusted = trimmed_at(model).trusted
    return None if bool(trusted.all()) else trusted


def _rescale(model: RCGP) -> None:
    """Set the output scale of a model to the variance of all its rows, if it has one that is searched for."""
    scales = [part for part in model.kernel.modules() if isinstance(part, ScaleKernel)]
    if not scales or not scales[0].raw_outputscale.requires_grad:
        return
    bounds = scales[0].raw_outputscale_constraint
    lower, upper = float(bounds.lower_bound) * (1.0 + _INSIDE), float(bounds.upper_bound) * (1.0 - _INSIDE)
    scale = min(max(_variance_of_all(model), lower), upper)
    scales[0].outputscale = torch.full_like(scales[0].outputscale, scale)


def _variance_of_all(model: RCGP) -> float:
    """Mean square of the residuals, kept within limits of the squared scatter of most."""
    residual = model.residual().detach()
    spread = robust_spread(residual)
    return min(max(float((residual / spread).square().mean()), 1.0), _HEAVIEST) * spread**2
