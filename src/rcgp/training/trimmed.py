"""Trimming: which rows to trust and the hyperparameters, by the evidence of both.

Maximised is the evidence of the trusted rows plus what each rejected row is worth (:mod:`rcgp.core.trimming`): in turn,
hyperparameters given who is trusted, and who is trusted given those. That climbs to a maximum nearby, so it is begun
from everyone, and from who is trusted by priors with little noise: the one explains outliers by noise and by wiggles,
the others by outliers. The best end is kept. Made for the few, exact observations of an optimisation, where the rounds
of :func:`rcgp.fit_adaptive`, which need neighbours, have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.core.trimming import Trimmed, outlier_log_odds, trim
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.training.fit import FitError, FitReport, fit, in_double, scipy_on_one_thread
from rcgp.training.quick_evidence import QuickEvidence
from rcgp.training.rows import evidence_of
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters, shorten_lengthscales
from rcgp.weights import Plateau

__all__ = ["fit_trimmed"]

# Multiples of the first lengthscales that searches begin with, and their noise variance as a part of the squared
# scatter.
_LENGTHSCALES, _NOISE = (1.0, 2.5), 1e-3

# Rows are rejected only if that is better by so much: of many sets of rows, one is a little better by chance.
_MARGIN = 2.0

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

    The model's own weight function is replaced by a :class:`rcgp.weights.Plateau` with a centre and a threshold for
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
    evaluations = rejected = 0

    def search(trusted: Tensor, tolerance: float) -> FitReport:
        nonlocal evaluations, rejected
        if quick is None:
            report = fit(model, evidence_of(trusted), max_iterations=max_iterations, tolerance=tolerance)
        else:
            report = quick.search(trusted, tolerance, max_iterations)
        evaluations, rejected = evaluations + report.evaluations, rejected + report.rejected
        return report

    def rough(trusted: Tensor) -> FitReport:
        return search(trusted, _ROUGH)

    def value(trusted: Tensor) -> float:
        evidence = _evidence(model, trusted) if quick is None else quick.value(trusted)
        return evidence + _worth_of_rejecting(model, ~trusted)

    try:
        with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
            quick = QuickEvidence.of(model)
            ends = _climb_all(model, rough, value)
            best = max(ends, key=lambda end: end.value - _MARGIN * (not bool(end.trusted.all())))
            if not bool(best.trusted.all()):
                # Trust may be right and the hyperparameters stuck on the way to it.
                restore_hyperparameters(model, first)
                ends.append(_climb(model, best.trusted, rough, value))
                best = max(best, ends[-1], key=lambda end: end.value)
            restore_hyperparameters(model, best.parameters)
            last = search(best.trusted, _FINE)
            trimmed = _trim(model)
            model.weight = Plateau(trimmed.mean, trimmed.threshold)
    except BaseException:
        model.weight = weight
        restore_hyperparameters(model, first)
        raise
    return FitReport(
        objective="trimmed",
        value=last.value,
        evaluations=evaluations,
        rejected=rejected,
        iterations=last.iterations,
        seconds=time.perf_counter() - began,
        converged=last.converged,
        message=last.message,
        starts=tuple(end.value for end in ends),
        hyperparameters=model.listed_hyperparameters(),
    )


def _climb_all(model: RCGP, search: Callable[[Tensor], FitReport], value: Callable[[Tensor], float]) -> list[_End]:
    first = hyperparameters_of(model)
    ends, failures = [], []
    for begin in (_everyone, _everyone_on_a_large_scale, *(partial(_trusted_at, factor=f) for f in _LENGTHSCALES)):
        restore_hyperparameters(model, first)
        trusted = begin(model)
        if trusted is None:
            continue
        try:
            ends.append(_climb(model, trusted, search, value))
        except FitError as error:
            failures.append(error)
    if not ends:
        raise failures[0]
    return ends


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
    scales = [
        part for part in model.kernel.modules() if isinstance(part, ScaleKernel) and part.raw_outputscale.requires_grad
    ]
    if not scales or share <= _HEAVY:
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


def _climb(
    model: RCGP, trusted: Tensor, search: Callable[[Tensor], FitReport], value: Callable[[Tensor], float]
) -> _End:
    best = None
    for _ in range(_TURNS):
        before = trusted
        search(trusted)
        trusted = _trim(model).trusted
        worth = value(trusted)
        if best is None or worth > best.value:
            best = _End(worth, trusted, hyperparameters_of(model))
        if bool((trusted == before).all()):
            break
    assert best is not None
    return best


def _trim(model: RCGP) -> Trimmed:
    with torch.no_grad():
        return trim(model.kernel_matrix(), model.residual(), model.training_terms().row_noise.expand_as(model.train_y))


def _evidence(model: RCGP, trusted: Tensor) -> float:
    with torch.no_grad():
        try:
            return float(evidence_of(trusted)(model))
        except NotPositiveDefiniteError:
            return -torch.inf


def _worth_of_rejecting(model: RCGP, rows: Tensor) -> float:
    with torch.no_grad():
        row_noise = model.training_terms().row_noise.expand_as(model.train_y)
        return float(outlier_log_odds(model.residual(), row_noise)[rows].sum())
