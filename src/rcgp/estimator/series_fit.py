"""One column of a series: fitted and judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rcgp.estimator.base import with_nan
from rcgp.estimator.output import Output, RowDiagnosis
from rcgp.series import harmonic_error
from rcgp.series.settings import SeriesSettings
from rcgp.training.judgement import judge_rows

__all__ = ["fit_column", "values_of"]

Array = NDArray[np.float64]

# Error of a periodic kernel by its harmonics that raises a doubt.
_COARSE = 0.02


def fit_column(
    settings: SeriesSettings, periods: Sequence[Any], t: Array, y: Array, precision: Array | None, progress: Any
) -> Output:
    """Fit the model of one column, y, which is NaN where a value is missing, and judge its rows.

    ``periods`` are as the user wrote them, and ``precision`` holds sample weights.
    """
    model, report, stuck = settings.fit(t, y, precision, progress)
    rows, loo = judge_rows(model, learn=not settings.learned), model.leave_one_out()
    observed, values = model.observed, torch.from_numpy(y.copy())
    weights, probability, mean, variance = (torch.full_like(values, torch.nan) for _ in range(4))
    weights[observed], probability[observed] = model.weights(), rows.outlier_probability
    mean[observed], variance[observed] = loo.mean, loo.variance
    if not bool(observed.all()):
        missing = model.posterior(torch.from_numpy(t)[~observed], observation_noise=True)
        mean[~observed], variance[~observed] = missing.mean, missing.variance
    if settings.stuck:
        weights[stuck], probability[stuck] = 0.0, 1.0
    diagnosis = RowDiagnosis.of(values, weights, mean, variance.sqrt(), probability)
    doubts = [*rows.doubts, *_unseen_periods(settings, periods, t)]
    if (error := harmonic_error(model.kernel, model.harmonics)) > _COARSE:
        detail = f"a seasonal pattern has more detail than {model.harmonics} harmonics show"
        doubts.append(f"{detail} ({error:.0%} of its variance): increase harmonics")
    if len(stuck):
        remedy = "they are treated as errors" if settings.stuck else "stuck=True (--stuck) treats them as errors"
        doubts.append(f"{len(stuck)} values repeat the one before them more often than chance explains: {remedy}")
    return Output(model, report, rows.law, tuple(doubts), diagnosis)


def _unseen_periods(settings: SeriesSettings, names: Sequence[Any], t: Array) -> list[str]:
    """A doubt for each period that the times cannot show."""
    gaps, doubts = np.diff(np.unique(t)), []
    for name, length in zip(names, settings.periods, strict=True):
        if len(gaps) and length < 2.0 * np.median(gaps):
            doubts.append(f"the period {name} is shorter than two typical gaps between times: it cannot be seen")
        elif length > np.ptp(t):
            doubts.append(f"the period {name} is longer than the series: it cannot be seen")
    return doubts


def values_of(y: Any, rows: int) -> Array:
    """Values as floats, NaN where they are missing; or a ValueError that names the row."""
    values = with_nan(np.array(y))
    if values.dtype.kind in "mM":
        raise ValueError("y must be numbers, got dates: is it fit(t, y), times first?")
    try:
        values = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y must be numbers: {error}") from error
    if values.ndim not in (1, 2) or len(values) != rows or (values.ndim == 2 and values.shape[1] == 0):
        raise ValueError(f"y must have a value, or a row of them, for each of the {rows} times, got {values.shape}")
    if np.isinf(values).any():
        row = int(np.argwhere(np.isinf(values))[0][0])
        raise ValueError(f"y contains an infinite value in row {row}; NaN is a missing value")
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
