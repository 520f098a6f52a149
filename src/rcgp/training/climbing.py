"""Climbs: hyperparameters given who is trusted, and who is trusted given those, in turn.

Each ends at a maximum nearby of the evidence of the trusted rows plus what each rejected row is worth
(:mod:`rcgp.core.trimming`). So they begin from everyone, and from who is trusted by priors with little noise: the one
explains outliers by noise and by wiggles, the others by outliers. The best end is kept.
"""

from __future__ import annotations

import math
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
from rcgp.training.fit import FitError, FitReport, fit
from rcgp.training.quick_evidence import QuickEvidence
from rcgp.training.rows import evidence_of
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters, shorten_lengthscales

__all__ = ["FINE", "MARGIN", "Climber", "End", "everyone", "row_noise", "trimmed_at"]

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

# How often hyperparameters and trust follow each other at most, and the tolerance on the way.
_TURNS, _ROUGH = 6, 1e-4

#: Tolerance of the last searches.
FINE = 1e-7


@dataclass(frozen=True)
class End:
    """Where one climb ended."""

    value: float
    trusted: Tensor
    parameters: list[Tensor]


class Climber:
    """One fit on its way."""

    def __init__(self, model: RCGP, max_iterations: int) -> None:
        self.model, self.max_iterations = model, max_iterations
        self.quick = QuickEvidence.of(model)
        self.first = hyperparameters_of(model)
        self.values: list[float] = []
        self.everyone = End(-math.inf, everyone(model), self.first)
        self.evaluations = self.rejected = 0

    def climb(self) -> End:
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
            report = self.search(trusted, FINE)
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

    def _climb_all(self) -> list[End]:
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

    def _climb(self, trusted: Tensor) -> End:
        """Hyperparameters and trust in turn, until trust stays."""
        best = End(-math.inf, trusted, hyperparameters_of(self.model))
        for _ in range(_TURNS):
            before = trusted
            self.search(trusted, _ROUGH)
            trimmed = trimmed_at(self.model)
            if bool(before.all()):  # what it is worth to reject nobody
                nobody = End(self._value(trimmed._replace(trusted=before)), before, hyperparameters_of(self.model))
                self.everyone = max(self.everyone, nobody, key=lambda end: end.value)
                best = max(best, nobody, key=lambda end: end.value)
            trusted, value = trimmed.trusted, self._value(trimmed)
            if value > best.value:
                best = End(value, trusted, hyperparameters_of(self.model))
            if bool((trusted == before).all()):
                break
        return best


def trimmed_at(model: RCGP) -> Trimmed:
    """Who is trusted at a model's hyperparameters, and what they say of all rows."""
    with torch.no_grad():
        return trim(model.kernel_matrix(), model.residual(), row_noise(model))


def row_noise(model: RCGP) -> Tensor:
    """Noise variance of each row, ``n``."""
    noise = model.noise if model.sample_weight is None else model.noise / model.sample_weight
    return noise.detach().expand_as(model.train_y)


def everyone(model: RCGP) -> Tensor:
    """All rows, at the first hyperparameters."""
    return torch.ones_like(model.train_y, dtype=torch.bool)


def _everyone_on_their_scale(model: RCGP) -> Tensor:
    """All rows, at a prior variance that is that of all: perhaps the function is far higher at some places.

    Searches that begin on the scale of most rows may end where a few explain themselves and the others are noise.
    """
    _rescale(model)
    return everyone(model)


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
