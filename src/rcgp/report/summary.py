"""What the page says about rows: leave-one-out errors, coverage, and which rows are drawn and listed.

Plain arrays in, plain numbers out; nothing here knows of figures or HTML.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "LEVELS",
    "Flags",
    "Numbers",
    "Regressor",
    "Rows",
    "Scores",
    "calibration",
    "coverage",
    "drawn_rows",
    "listed_rows",
    "rows_of",
    "scores_of",
]

Numbers: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

#: Nominal coverages of the calibration figure.
LEVELS: tuple[float, ...] = tuple(percent / 100 for percent in range(5, 100))

#: An SVG figure of more points than this is slow to draw and to carry.
_MOST_DRAWN = 3000
_MOST_LISTED = 200
#: Rows listed even where fewer are flagged, so that a reader sees what just passed.
_FEWEST_LISTED = 20


class Regressor(Protocol):
    """What the page asks of a fitted model with one output: ``rcgp.estimator.RCGPRegressor`` has all of it.

    Attributes:
        n_features_in_: number ``d`` of features.
        weights_: ``n`` weights, 1 for full trust.
        outlier_scores_: ``n`` residuals from what all other rows predict, in standard deviations.
        outliers_: ``n`` flags.
        loo_mean_: ``n`` predictions of each observation from all others.
        loo_std_: ``n`` standard deviations of those, noise included.
        noise_variance_: σ².
        lengthscales_: ``d`` lengthscales.
        fit_report_: how the fit went.
    """

    n_features_in_: Any
    weights_: Any
    outlier_scores_: Any
    outliers_: Any
    loo_mean_: Any
    loo_std_: Any
    noise_variance_: Any
    lengthscales_: Any
    fit_report_: Any

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = False
    ) -> Any: ...


@dataclass(frozen=True)
class Rows:
    """Every row of the table as a model sees it, each attribute of length ``n``.

    Attributes:
        label: what the row is called, as a rule its number in the file.
        observed: the target.
        expected: its prediction from all other rows.
        std: standard deviation of that prediction, noise included.
        weight: 1 for full trust.
        flagged: whether the model takes the row for an outlier.
        score: the residual in standard deviations, on which the flag goes.
    """

    label: tuple[object, ...]
    observed: Numbers
    expected: Numbers
    std: Numbers
    weight: Numbers
    flagged: Flags
    score: Numbers

    @property
    def residual(self) -> Numbers:
        """Observed minus expected."""
        return self.observed - self.expected

    @property
    def surprise(self) -> Numbers:
        """Size of the score, by which rows are more or less suspicious."""
        return np.abs(self.score)


@dataclass(frozen=True)
class Scores:
    """How well a model predicts rows that it has not seen.

    Attributes:
        mean_error: mean absolute leave-one-out error.
        mean_error_kept: the same over rows that are not flagged.
        median_error: median absolute leave-one-out error.
        coverage: share of rows inside their 95 % interval.
        coverage_kept: the same over rows that are not flagged.
        noise_std: standard deviation of the noise.
    """

    mean_error: float
    mean_error_kept: float
    median_error: float
    coverage: float
    coverage_kept: float
    noise_std: float


def rows_of(model: Regressor, y: Numbers, label: tuple[object, ...]) -> Rows:
    """The rows of the table as a model sees them.

    Raises:
        ValueError: if the model was fitted to another number of rows.
    """
    names = ("loo_mean_", "loo_std_", "weights_", "outliers_", "outlier_scores_")
    columns = [np.asarray(getattr(model, name)) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.shape != y.shape:
            raise ValueError(
                f"{name} of the model has shape {column.shape} but y has {y.shape}: give the rows that it was fitted to"
            )
    return Rows(label, y, *columns)


def scores_of(rows: Rows, flagged: Flags, noise_variance: float) -> Scores:
    """Scores of a model, with the flags of the robust one so that two models are compared on the same rows."""
    error, std, kept = np.abs(rows.residual), rows.std, ~flagged
    return Scores(
        mean_error=_mean(error),
        mean_error_kept=_mean(error[kept]),
        median_error=float(np.median(error)),
        coverage=coverage(error, std, 0.95),
        coverage_kept=coverage(error[kept], std[kept], 0.95),
        noise_std=float(np.sqrt(noise_variance)),
    )


def coverage(residual: Numbers, std: Numbers, level: float) -> float:
    """Share of rows inside their central normal interval of a nominal level, NaN if there are no rows."""
    half_width = NormalDist().inv_cdf((1 + level) / 2)
    return _mean((np.abs(residual) <= half_width * std).astype(np.float64))


def calibration(residual: Numbers, std: Numbers) -> Numbers:
    """Observed coverage at each of :data:`LEVELS`."""
    return np.array([coverage(residual, std, level) for level in LEVELS])


def drawn_rows(rows: Rows, limit: int = _MOST_DRAWN, seed: int = 0) -> npt.NDArray[np.intp]:
    """Positions, in order, of the rows that figures show: all flagged ones and a random sample of the others.

    Where more than ``limit`` rows are flagged, the most surprising of them.
    """
    flagged, others = np.flatnonzero(rows.flagged), np.flatnonzero(~rows.flagged)
    if len(flagged) > limit:
        return np.sort(flagged[np.argsort(-rows.surprise[flagged], kind="stable")[:limit]])
    room = min(len(others), limit - len(flagged))
    sample = np.random.default_rng(seed).choice(others, size=room, replace=False)
    return np.sort(np.concatenate([flagged, sample]))


def listed_rows(rows: Rows) -> npt.NDArray[np.intp]:
    """Positions of the rows for the table, most surprising first: flagged ones, filled up to twenty, at most 200."""
    by_surprise = np.argsort(-rows.surprise, kind="stable")
    flagged = by_surprise[rows.flagged[by_surprise]][:_MOST_LISTED]
    others = by_surprise[~rows.flagged[by_surprise]][: max(0, _FEWEST_LISTED - len(flagged))]
    listed = np.concatenate([flagged, others])
    return listed[np.argsort(-rows.surprise[listed], kind="stable")]


def _mean(values: Numbers) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
