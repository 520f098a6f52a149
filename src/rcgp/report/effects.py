"""How the prediction depends on each feature: the fitted curve for one, partial dependence for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rcgp.estimator.base import BaseRegressor
from rcgp.report.summary import Column, Numbers, as_fitted, frame_of

__all__ = ["MOST_EFFECTS", "Effect", "fitted_curve", "partial_dependences"]

#: Columns whose effect is drawn.
MOST_EFFECTS = 12
_CURVE_VALUES, _GRID_VALUES, _BACKGROUND_ROWS = 241, 30, 50


@dataclass(frozen=True)
class Effect:
    """Predictions along ``q`` values of one column.

    Attributes:
        grid: values of the column, as :meth:`Column.values` gives them.
        mean: posterior mean, averaged over the background rows for partial dependence.
        std: posterior standard deviation of that.
        plain: the same mean of the ordinary GP; ``None`` without one.
        interval: ends of the 95 % interval of a new observation; ``None`` for partial dependence.
    """

    column: Column
    grid: Numbers
    mean: Numbers
    std: Numbers
    plain: Numbers | None
    interval: tuple[Numbers, Numbers] | None = None


def fitted_curve(robust: BaseRegressor, plain: BaseRegressor | None, X: pd.DataFrame, column: Column) -> Effect:
    """The fit of a table with one feature, on its range without far values, extended by five percent.

    Cost of predicting at 241 inputs.
    """
    values = column.values(X)
    low, high = _ends(values, values.min(), values.max())
    margin = 0.05 * (high - low) or 0.05 * abs(low) or 1.0  # a feature with a single value has no width
    grid = _spaced(column, low - margin, high + margin, _CURVE_VALUES)
    frame = pd.DataFrame({X.columns[0]: grid})
    mean, std = robust.predict(as_fitted(robust, frame), return_std=True)
    lower, upper = robust.predict_interval(as_fitted(robust, frame))
    other = None if plain is None else np.asarray(plain.predict(as_fitted(plain, frame)))
    return Effect(column, grid, np.asarray(mean), np.asarray(std), other, (np.asarray(lower), np.asarray(upper)))


def partial_dependences(
    robust: BaseRegressor, plain: BaseRegressor | None, X: pd.DataFrame, columns: Sequence[Column]
) -> tuple[Effect, ...]:
    """Partial dependence on the columns with the widest effect, widest first, at most twelve.

    For each value v of a column, the average over up to 50 rows x of the posterior of f at x with that column set to
    v. The standard deviation of the average is ``sqrt(1ᵀ C 1) / m`` with the m x m posterior covariance C. Categories
    are evaluated at each level, lowest average first; other columns at 30 values over the middle 98 %, or less if that
    holds wild values, which would stretch the grid. Columns with a single value are left out.

    Cost: means at 1500 d inputs, and at most 360 covariances of 50 x 50 (more for categories of many levels).
    """
    sample = np.random.default_rng(0).choice(len(X), size=min(len(X), _BACKGROUND_ROWS), replace=False)
    background = X.iloc[np.sort(sample)].reset_index(drop=True)
    found = []
    for column in columns:
        grid = _grid(column, column.values(X))
        if len(grid) < 2:
            continue
        mean = _mean_along(robust, background, column, grid)
        if column.kind == "category":
            order = np.argsort(mean, kind="stable")
            grid, mean = grid[order], mean[order]
        found.append((column, grid, mean))
    found.sort(key=lambda one: -float(np.ptp(one[2])))
    return tuple(
        Effect(
            column,
            grid,
            mean,
            _std_along(robust, background, column, grid),
            None if plain is None else _mean_along(plain, background, column, grid),
        )
        for column, grid, mean in found[:MOST_EFFECTS]
    )


def _grid(column: Column, values: Numbers) -> Numbers:
    """Increasing values over the middle 98 % of a column, or over all of it if that is a single value.

    Categories, and columns with two values such as indicators, have no values in between.
    """
    distinct = np.unique(values)
    if column.kind == "category" or len(distinct) <= 2:
        return distinct
    low, high = np.quantile(values, [0.01, 0.99])
    if low == high:
        low, high = values.min(), values.max()
    return _spaced(column, *_ends(values, low, high), _GRID_VALUES)


def _ends(values: Numbers, low: float, high: float) -> tuple[float, float]:
    """The ends of a grid; if they are far from the middle 90 % of the column, those of the values near it.

    The middle 90 % also give the default kernel its lengthscales.
    """
    first, last = np.quantile(values, [0.05, 0.95])
    frame = frame_of(np.array([low, high]), values[(values >= first) & (values <= last)])
    if frame is None:
        return low, high
    inside = values[(values >= frame[0]) & (values <= frame[1])]
    return float(inside.min()), float(inside.max())


def _spaced(column: Column, low: float, high: float, count: int) -> Numbers:
    """Up to ``count`` increasing values; for dates whole days, unless these are too few."""
    grid = np.linspace(low, high, count)
    whole = column.kind == "date" and high - low >= count
    return np.unique(np.round(grid) if whole else grid)


def _mean_along(model: BaseRegressor, background: pd.DataFrame, column: Column, grid: Numbers) -> Numbers:
    """Posterior mean averaged over the background at each grid value."""
    frame = pd.concat([background] * len(grid), ignore_index=True)
    frame[list(column.features)] = np.repeat(column.encoded(grid), len(background), axis=0)
    mean = np.asarray(model.predict(as_fitted(model, frame)), dtype=np.float64)
    average: Numbers = mean.reshape(len(grid), len(background)).mean(axis=1)
    return average


def _std_along(model: BaseRegressor, background: pd.DataFrame, column: Column, grid: Numbers) -> Numbers:
    """Posterior standard deviation of that average, from one covariance for each grid value."""
    frame, variances = background.copy(), []
    for setting in column.encoded(grid):
        frame[list(column.features)] = setting
        _, covariance = model.predict(as_fitted(model, frame), return_cov=True)
        variances.append(float(np.mean(covariance)))
    return np.sqrt(np.maximum(variances, 0.0))  # rounding may leave a variance just below zero
