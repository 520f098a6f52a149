"""One column of a series: built, fitted and judged."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.estimator.output import Output, RowDiagnosis
from rcgp.models.defaults import robust_spread
from rcgp.series import StateSpaceRCGP, harmonic_error
from rcgp.series.clock import Clock
from rcgp.series.defaults import seasonal_kernel, weak_noise_prior
from rcgp.series.stuck import stuck_values
from rcgp.training import fit_robust
from rcgp.training.fit import fit_ordinary
from rcgp.training.judgement import judge_rows

__all__ = ["fit_column"]

Array = NDArray[np.float64]

# Error of a periodic kernel by its harmonics that is worth a word.
_COARSE = 0.02


def fit_column(settings: Any, clock: Clock, t: Array, y: Array, precision: Array | None, seed: int) -> Output:
    """The model of one column; with ``stuck=True`` fitted once more without stuck values, where there are any."""
    values = torch.from_numpy(y.copy())
    output = _fit_values(settings, clock, t, values, precision, seed)
    observed = np.flatnonzero(~np.isnan(y))
    observed = observed[np.argsort(t[observed], kind="stable")]
    stuck = observed[stuck_values(y[observed], output.rows.loo_std[observed])]
    if not len(stuck):
        return output
    doubt = f"{len(stuck)} values repeat the one before them more often than chance explains"
    if not settings.stuck:
        return replace(output, doubts=(*output.doubts, f"{doubt}: stuck=True (--stuck) takes them for errors"))
    values[stuck] = torch.nan
    output = _fit_values(settings, clock, t, values, precision, seed)
    rows = output.rows
    rows.weights[stuck], rows.outlier_probability[stuck], rows.outliers[stuck] = 0.0, 1.0, True
    rows.outlier_scores[stuck] = (y[stuck] - rows.loo_mean[stuck]) / rows.loo_std[stuck]
    return replace(output, doubts=(*output.doubts, f"{doubt}: they are taken for errors"))


def _fit_values(settings: Any, clock: Clock, t: Array, values: Tensor, precision: Array | None, seed: int) -> Output:
    """Build and fit the model of one column, and judge its rows; NaN is a missing value."""
    model = _build(settings, clock, torch.from_numpy(t), values, precision)
    options: dict[str, Any] = {
        "restarts": int(settings.n_restarts),
        "max_iterations": int(settings.max_iter),
        "seed": seed,
        "progress": settings.progress,
    }
    learned = settings.weight == "learned"
    report = fit_robust(model, **options) if learned else fit_ordinary(model, **options)
    rows, loo = judge_rows(model, learn=not learned), model.leave_one_out()
    observed = model.observed
    weights, probability, mean, variance = (torch.full_like(values, torch.nan) for _ in range(4))
    weights[observed], probability[observed] = model.weights(), rows.outlier_probability
    mean[observed], variance[observed] = loo.mean, loo.variance
    if not bool(observed.all()):
        missing = model.posterior(torch.from_numpy(t)[~observed], observation_noise=True)
        mean[~observed], variance[~observed] = missing.mean, missing.variance
    doubts = rows.doubts
    if (error := harmonic_error(model.kernel, model.harmonics)) > _COARSE:
        doubts = (
            *doubts,
            f"a seasonal pattern has more detail than {model.harmonics} harmonics show ({error:.0%} of its "
            "variance): increase harmonics",
        )
    doubts = (*doubts, *_unseen_periods(settings.periods, clock, t))
    diagnosis = RowDiagnosis.of(values, weights, mean, variance.sqrt(), probability)
    return Output(model, report, rows.law, doubts, diagnosis)


def _unseen_periods(periods: Sequence[Any], clock: Clock, t: Array) -> list[str]:
    """A doubt for each period that the times cannot show."""
    if not len(periods):
        return []
    gaps, doubts = np.diff(np.unique(t)), []
    for period in periods:
        length = clock.length(period, "periods")
        if len(gaps) and length < 2.0 * np.median(gaps):
            doubts.append(f"the period {period} is shorter than two typical gaps between times: it cannot be seen")
        elif length > np.ptp(t):
            doubts.append(f"the period {period} is longer than the series: it cannot be seen")
    return doubts


def _build(settings: Any, clock: Clock, times: Tensor, values: Tensor, precision: Array | None) -> StateSpaceRCGP:
    """The model of one column before it is fitted."""
    periods = [clock.length(period, f"periods[{i}]") for i, period in enumerate(settings.periods)]
    kernel = None if settings.kernel is None else copy.deepcopy(settings.kernel).double()
    mean = copy.deepcopy(settings.mean) if isinstance(settings.mean, gpytorch.means.Mean) else settings.mean
    model = StateSpaceRCGP(
        times,
        values,
        kernel=kernel,
        mean=mean,
        sample_weight=None if precision is None else torch.from_numpy(precision),
        harmonics=int(settings.harmonics),
    )
    if kernel is None:
        with torch.no_grad():
            spread = robust_spread(model.residual())
        model.kernel = seasonal_kernel(model.train_X, spread, periods)
        weak_noise_prior(model)
    return model
