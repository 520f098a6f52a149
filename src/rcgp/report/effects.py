"""What the target does as a feature moves: the fitted curve for one feature, partial dependence for several.

The only file of this room that asks a model to predict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rcgp.report.summary import Numbers, Regressor, as_fitted

__all__ = ["MOST_EFFECTS", "Effect", "fitted_curve", "partial_dependences"]

#: Features whose effect is drawn.
MOST_EFFECTS = 12
_CURVE_VALUES = 241
_GRID_VALUES = 30
_BACKGROUND_ROWS = 50


@dataclass(frozen=True)
class Effect:
    """Predictions along a grid of values of one feature, ``q`` of each.

    Attributes:
        feature: name of the column.
        grid: values of the feature.
        mean: posterior mean, for partial dependence averaged over the background rows.
        std: posterior standard deviation of that.
        interval: ends of the 95 % interval of a new observation; ``None`` for partial dependence.
        plain: the same mean of the ordinary GP; ``None`` without one.
    """

    feature: str
    grid: Numbers
    mean: Numbers
    std: Numbers
    interval: tuple[Numbers, Numbers] | None
    plain: Numbers | None


def fitted_curve(robust: Regressor, plain: Regressor | None, X: pd.DataFrame) -> Effect:
    """The fit of a table with one feature, five percent beyond its ends. Cost of predicting at 241 inputs."""
    values = X.iloc[:, 0].to_numpy(dtype=np.float64)
    low, high = values.min(), values.max()
    margin = 0.05 * (high - low) or 0.05 * abs(low) or 1.0  # a feature of a single value has no width of its own
    grid = np.linspace(low - margin, high + margin, _CURVE_VALUES)
    frame = pd.DataFrame({X.columns[0]: grid})
    mean, std = robust.predict(as_fitted(robust, frame), return_std=True)
    lower, upper = robust.predict_interval(as_fitted(robust, frame))
    other = None if plain is None else np.asarray(plain.predict(as_fitted(plain, frame)))
    interval = np.asarray(lower), np.asarray(upper)
    return Effect(str(X.columns[0]), grid, np.asarray(mean), np.asarray(std), interval, other)


def partial_dependences(
    robust: Regressor, plain: Regressor | None, X: pd.DataFrame, seed: int = 0
) -> tuple[Effect, ...]:
    """Partial dependence of the features with the strongest effect, strongest first, at most twelve.

    For each of 30 values v of a feature, the average over up to 50 rows x of the posterior of f at x with that
    feature set to v; its standard deviation is that of the average, ``sqrt(1ᵀ C 1) / m`` with the m x m posterior
    covariance C. Strength is the standard deviation of the averaged mean along the grid. The grid spans the middle
    98 % of the values, so that one wild value does not stretch it; features with one value are left out.

    Cost: means at 1500 d inputs, and at most 360 covariances of 50 x 50, one at a time.
    """
    sample = np.random.default_rng(seed).choice(len(X), size=min(len(X), _BACKGROUND_ROWS), replace=False)
    background = X.iloc[np.sort(sample)].reset_index(drop=True)
    grids = {column: _grid(X[column].to_numpy(dtype=np.float64)) for column in X.columns}
    means = {column: _mean_along(robust, background, column, grid) for column, grid in grids.items() if len(grid) > 1}
    strongest = sorted(means, key=lambda column: -float(np.std(means[column])))[:MOST_EFFECTS]
    return tuple(
        Effect(
            feature=str(column),
            grid=grids[column],
            mean=means[column],
            std=_std_along(robust, background, column, grids[column]),
            interval=None,
            plain=None if plain is None else _mean_along(plain, background, column, grids[column]),
        )
        for column in strongest
    )


def _grid(values: Numbers) -> Numbers:
    """Increasing values over the middle 98 % of a column, or over all of it if that is a single value.

    Of a column with two values, such as an indicator, these two: between them there is nothing.
    """
    distinct = np.unique(values)
    if len(distinct) <= 2:
        return distinct
    low, high = np.quantile(values, [0.01, 0.99])
    if low == high:
        low, high = values.min(), values.max()
    return np.unique(np.linspace(low, high, _GRID_VALUES))


def _mean_along(model: Regressor, background: pd.DataFrame, column: Any, grid: Numbers) -> Numbers:
    """Posterior mean averaged over the background at each grid value."""
    frame = pd.concat([background] * len(grid), ignore_index=True)
    frame[column] = np.repeat(grid, len(background))
    mean = np.asarray(model.predict(as_fitted(model, frame)), dtype=np.float64)
    average: Numbers = mean.reshape(len(grid), len(background)).mean(axis=1)
    return average


def _std_along(model: Regressor, background: pd.DataFrame, column: Any, grid: Numbers) -> Numbers:
    """Posterior standard deviation of that average, from one covariance for each grid value."""
    frame, variances = background.copy(), []
    for value in grid:
        frame[column] = value
        _, covariance = model.predict(as_fitted(model, frame), return_cov=True)
        variances.append(float(np.mean(covariance)))
    return np.sqrt(np.maximum(variances, 0.0))  # rounding may leave a variance of nothing just below zero
