"""Trimming: which rows to trust and the hyperparameters, by the evidence of both.

Climbs (:mod:`rcgp.training.climbing`) find who is trusted; here are the fits made of them. Made for the few, exact
observations of an optimisation, where the rounds of :func:`rcgp.fit_adaptive`, which need neighbours, have none.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.training.climbing import FINE, Climber, everyone, row_noise, trimmed_at
from rcgp.training.fit import FitError, FitReport, fit, in_double, scipy_on_one_thread
from rcgp.training.quick_evidence import QuickEvidence
from rcgp.training.rows import evidence_of
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters
from rcgp.weights import Rejection

__all__ = ["find_trusted", "fit_as_botorch", "fit_to_rows", "fit_trimmed", "judge_rows"]

# Tolerance of BoTorch's searches, SciPy's default.
_BOTORCH = 2.2e-9


def fit_trimmed(model: RCGP, *, max_iterations: int = 1000) -> FitReport:
    """Choose weights and hyperparameters of a model by evidence.

    The model's own weight function is replaced by a :class:`rcgp.weights.Rejection` with a centre and a threshold for
    each row. If the fit fails the model is as it was before.

    Args:
        model: the model, changed in place.
        max_iterations: limit on the iterations of each search.

    Returns:
        The report of the last search, with the evaluations of all. Its value is that of the trusted rows, of which
        there are more than half. Cost O(n³) for each evaluation.

    Raises:
        FitError: where no climb could be begun.
    """
    began, weight, first = time.perf_counter(), model.weight, hyperparameters_of(model)
    try:
        with torch.inference_mode(False), in_double(model), scipy_on_one_thread():
            climber = Climber(model, max_iterations)
            best = climber.climb()
            last = climber.search(best.trusted, FINE)
            if not bool(best.trusted.all()):
                last = climber.search_afresh(last, best.trusted)
            trimmed = trimmed_at(model)
            # Relative to the noise of the row, where that is known to be less or more than σ².
            deviation = (trimmed.variance * model.noise.detach() / row_noise(model)).sqrt()
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
        quick, rows = QuickEvidence.of(model), everyone(model)
        if quick is None:
            return fit(model, evidence_of(rows), max_iterations=max_iterations, tolerance=_BOTORCH)
        report = quick.search(rows, _BOTORCH, max_iterations, logarithms=False)
        if report.converged:
            return report
        # Its steps are bad ones where a hyperparameter is small, as noise is.
        rest = quick.search(rows, _BOTORCH, max_iterations)
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
        climber, ends = Climber(model, max_iterations), []
        for start in [climber.first] if other_start is None else [climber.first, other_start]:
            restore_hyperparameters(model, start)
            try:
                ends.append((climber.search(trusted, FINE), hyperparameters_of(model)))
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
        climber = Climber(model, max_iterations)
        best = climber.climb()
        return best.trusted, best.value - climber.everyone.value, climber.evaluations
