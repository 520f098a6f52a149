"""Where a search for hyperparameters starts matters: a bound on a robust likelihood has many maxima.

At some of them everything is noise, at others half of the data are outliers and the rest is interpolated. No single
start is good for all data, so a fit makes a short search from each of several and goes on from the best end:

- the present hyperparameters;
- those of an ordinary GP: right for data without outliers, and otherwise with a noise variance that covers them;
- the present ones with another noise variance, which the likelihood decides on.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.models.defaults import robust_spread
from rcgp.training import FitError, FitReport
from rcgp.training.search import NUMERICAL_ERRORS, Progress
from rcgp_paper.baselines.gaussian import GaussianGP
from rcgp_paper.baselines.variational import VariationalGP

__all__ = ["fit_from_starts"]

# Iterations of a short search; twice as many mostly choose the same start.
_SHORT = 5

#: A search from the present hyperparameters; arguments and report as those of :func:`rcgp.fit`.
Search = Callable[[int, int, int | None, bool | Progress], FitReport]


def fit_from_starts(
    model: VariationalGP,
    search: Search,
    noise: float,
    restarts: int,
    max_iterations: int,
    seed: int | None,
    progress: bool | Progress,
) -> FitReport:
    """Short searches from all starts, then one to the end from the best of theirs.

    Args:
        model: the model, changed in place. An interrupt leaves it with the best hyperparameters met so far.
        search: the search that is repeated.
        noise: noise variance of the last start, as a share of the squared robust spread of the residuals.
        restarts, max_iterations, seed, progress: for the searches, the restarts for the last one only.

    Returns:
        The report of the last search, with the evaluations and the seconds of everything.
    """
    began = time.perf_counter()
    evaluations = _move_to_best_start(model, search, noise, max_iterations, progress)
    report = search(restarts, max_iterations, seed, _later(progress, evaluations) if callable(progress) else progress)
    evaluations += report.evaluations
    return dataclasses.replace(report, evaluations=evaluations, seconds=time.perf_counter() - began)


def _move_to_best_start(
    model: VariationalGP, search: Search, noise: float, max_iterations: int, progress: bool | Progress
) -> int:
    """Leave the model at the best end of short searches, where it was if all fail; returns the evaluations made."""
    here = best = _Snapshot.of(model)
    best_value = met = -math.inf
    evaluations = 0

    def told(count: int, value: float) -> None:
        nonlocal met
        met = value
        if callable(progress):
            progress(evaluations + count, max(value, best_value))

    try:
        for move in _moves(model, noise):
            here.restore(model)
            met = -math.inf
            evaluations += move(max_iterations)
            with suppress(FitError, *NUMERICAL_ERRORS):
                report = search(0, min(_SHORT, max_iterations), None, told)
                evaluations += report.evaluations
                if report.value > best_value:
                    best, best_value = _Snapshot.of(model), report.value
    except KeyboardInterrupt:
        if met > best_value:  # the search itself left the model there
            best = _Snapshot.of(model)
        raise
    except BaseException:
        best = here
        raise
    finally:
        best.restore(model)
    return evaluations


def _later(progress: Progress, before: int) -> Progress:
    """Progress that counts evaluations made before."""
    return lambda count, value: progress(before + count, value)


def _moves(model: VariationalGP, noise: float) -> list[Callable[[int], int]]:
    """What leads from the present hyperparameters to each start, given a limit of iterations; returns evaluations."""

    def stay(max_iterations: int) -> int:
        return 0

    def to_ordinary_gp(max_iterations: int) -> int:
        return _move_to_ordinary_gp(model, max_iterations)

    def to_noise(max_iterations: int) -> int:
        model.noise = noise * robust_spread(model.residual().detach()) ** 2
        model.latent_moments = None
        return 0

    return [stay, to_ordinary_gp, *([to_noise] if model.raw_noise.requires_grad else [])]


def _move_to_ordinary_gp(model: VariationalGP, max_iterations: int) -> int:
    """Give a model the kernel, mean and noise of an ordinary GP fitted from its own, and forget its posterior.

    Where that GP cannot be fitted (squares of residuals overflow) the hyperparameters stay.

    Returns:
        The number of evaluations that it took.
    """
    noise, evaluations = float(model.noise.detach()), 0
    # It shares the kernel and the mean.
    ordinary = GaussianGP(model.train_X, model.train_y, kernel=model.kernel, mean=model.mean, noise=noise)
    ordinary.raw_noise.requires_grad_(model.raw_noise.requires_grad)
    with suppress(FitError, *NUMERICAL_ERRORS):
        evaluations = ordinary.fit(max_iterations=max_iterations).evaluations
        with torch.no_grad():
            model.raw_noise.copy_(model.raw_noise_constraint.inverse_transform(ordinary.noise))
    model.latent_moments = None
    return evaluations


@dataclass(frozen=True)
class _Snapshot:
    """The hyperparameters of a model and the moments of its posterior, to come back to.

    Attributes:
        parameters: a copy of each parameter.
        moments: ``2 x n`` means and variances, if there were any.
    """

    parameters: list[Tensor]
    moments: Tensor | None

    @classmethod
    def of(cls, model: VariationalGP) -> _Snapshot:
        return cls([parameter.detach().clone() for parameter in model.parameters()], model.latent_moments)

    def restore(self, model: VariationalGP) -> None:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.parameters, strict=True):
                parameter.copy_(value)
        model.latent_moments = self.moments
