"""The content of the page as numbers, without figures or HTML: columns, rows and errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from rcgp.estimator.base import BaseRegressor
from rcgp.report.text import date, number
from rcgp.weights import NoiseLaw

__all__ = [
    "MOST_DRAWN",
    "Column",
    "Fit",
    "Flags",
    "Numbers",
    "Positions",
    "Range",
    "Rows",
    "Scores",
    "as_fitted",
    "columns_of",
    "converged",
    "drawn_rows",
    "frame_of",
    "half_widths",
    "listed_rows",
    "predictive_law",
    "rows_of",
    "scores_of",
    "skill_of",
]

Numbers: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.intp]
Range: TypeAlias = tuple[float, float]

#: An SVG figure of more points is slow to draw and makes the file large.
MOST_DRAWN = 3000
#: More half-widths are interpolated between those at this many variances, to six digits.
_MOST_WIDTHS = 4096
_MOST_LISTED = 200
#: Listed even if fewer rows are flagged, so that a reader sees which rows come next.
_FEWEST_LISTED = 20


@dataclass(frozen=True)
class Column:
    """A column of the table, and the columns of X that encode it.

    Attributes:
        name: name of the column.
        features: columns of X: one, or an indicator for each level of a category with three levels or more.
        kind: ``"number"``, ``"date"`` (days since 1970-01-01) or ``"category"``.
        levels: texts of a category.
    """

    name: str
    features: tuple[Any, ...]
    kind: str = "number"
    levels: tuple[str, ...] = ()

    def values(self, X: pd.DataFrame) -> Numbers:
        """``n`` values: numbers, days, or positions of levels."""
        encoded: Numbers = X[list(self.features)].to_numpy(dtype=np.float64)
        values: Numbers = encoded.argmax(axis=1).astype(np.float64) if self._indicated else encoded[:, 0]
        return values

    def encoded(self, values: Numbers) -> Numbers:
        """``q x len(features)`` inputs of the model for ``q`` values."""
        if not self._indicated:
            return values[:, None]
        indicators: Numbers = np.eye(len(self.features))[values.astype(int)]
        return indicators

    def text(self, value: float) -> str:
        """A value as people read it."""
        if self.kind == "category":
            return self.levels[int(value)]
        return date(value) if self.kind == "date" else number(value)

    @property
    def _indicated(self) -> bool:
        """Whether each level has an indicator. With two levels one indicator is the position of the level."""
        return self.kind == "category" and len(self.levels) != 2


def columns_of(X: pd.DataFrame, encoded: Iterable[Any] | None) -> tuple[Column, ...]:
    """The columns behind the features X; without ``rcgp.table.Column`` objects each feature is a column of numbers.

    Raises:
        ValueError: if the encoded columns do not give the features X.
    """
    if encoded is None:
        return tuple(Column(str(name), (name,)) for name in X.columns)
    columns = tuple(Column(c.name, tuple(c.feature_names), c.kind, tuple(c.levels)) for c in encoded)
    if [name for column in columns for name in column.features] != list(X.columns):
        raise ValueError("columns do not give the features of X: pass the columns of the encoding that made X")
    return columns


@dataclass(frozen=True)
class Rows:
    """Every row of the table under one model, each attribute of length ``n``.

    Attributes:
        label: name of the row, usually its number in the file.
        observed: the target.
        expected: leave-one-out prediction of the target.
        std: standard deviation of that prediction, noise included.
        weight: weight of the row in the fit, 1 in full.
        flagged: whether it is more likely an outlier than not.
        score: the residual in standard deviations.
        probability: outlier probability.
        noise: variance σ² of the narrowest scale of the noise law at the row.
        half_width: half the width of the 95 % leave-one-out interval under the noise law.
    """

    label: tuple[object, ...]
    observed: Numbers
    expected: Numbers
    std: Numbers
    weight: Numbers
    flagged: Flags
    score: Numbers
    probability: Numbers
    noise: Numbers
    half_width: Numbers

    @property
    def residual(self) -> Numbers:
        """Observed minus expected."""
        return self.observed - self.expected

    @property
    def inside(self) -> Flags:
        """Whether each row lies in its 95 % leave-one-out interval."""
        return np.abs(self.residual) <= self.half_width

    @cached_property
    def by_suspicion(self) -> Positions:
        """Positions, most suspicious first: by outlier probability, then by the size of the score."""
        return np.lexsort((-np.abs(self.score), -self.probability))

    @classmethod
    def together(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of several tables, one after the other."""
        label = tuple(label for part in parts for label in part.label)
        names = [field.name for field in fields(cls)[1:]]
        return cls(label, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, chosen: Positions) -> Rows:
        """The rows at these positions."""
        columns = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return Rows(tuple(self.label[i] for i in chosen), *columns)


@dataclass(frozen=True)
class Scores:
    """Leave-one-out accuracy of a model. ``_kept`` leaves out the rows that the robust model flags.

    Attributes:
        mean_error, mean_error_kept: mean absolute error.
        median_error: median absolute error.
        coverage, coverage_kept: share of rows inside their 95 % interval, NaN without rows.
        noise_std: median standard deviation of the noise.
    """

    mean_error: float
    mean_error_kept: float
    median_error: float
    coverage: float
    coverage_kept: float
    noise_std: float


@dataclass(frozen=True)
class Fit:
    """Both models, their table, and its rows under each; without an ordinary GP, ``plain`` and ``other`` are None."""

    robust: BaseRegressor
    plain: BaseRegressor | None
    X: pd.DataFrame
    columns: tuple[Column, ...]
    target: str
    rows: Rows
    other: Rows | None

    @cached_property
    def scores(self) -> tuple[Scores, ...]:
        """Scores of the robust and, if there is one, of the ordinary GP, with the same rows left out."""
        pairs = ((self.robust, self.rows), (self.plain, self.other))
        return tuple(
            scores_of(rows, self.rows.flagged, float(np.median(model.noise_std(as_fitted(model, self.X)))))
            for model, rows in pairs
            if model is not None and rows is not None
        )

    @property
    def weak(self) -> str:
        """What to say if the features hardly predict the target."""
        return f"The features hardly predict {self.target}: a constant would do nearly as well."


def skill_of(rows: Rows, scores: Scores) -> float:
    """1 − mean error / mean error of the median of y, over rows that are not flagged; NaN if y is constant."""
    y = rows.observed[~rows.flagged]
    guess = _mean(np.abs(y - np.median(y))) if len(y) else 0.0
    return 1.0 - scores.mean_error_kept / guess if guess > 0.0 else float("nan")


def converged(model: BaseRegressor | None) -> bool:
    """Whether the fit of a model converged, or its hyperparameters were given."""
    report = getattr(model, "fit_report_", None)
    return report is None or bool(report.converged)


def as_fitted(model: BaseRegressor, frame: Any) -> Any:
    """A data frame, or its values for a model that was fitted without names and would warn about them."""
    named = hasattr(model, "feature_names_in_") or not isinstance(frame, pd.DataFrame)
    return frame if named else frame.to_numpy()


def predictive_law(model: BaseRegressor) -> NoiseLaw:
    """The law of a new observation: the learned one, or normal noise for a given weight.

    For a given weight ``noise_law_`` is learned after the fit and only flags rows.
    """
    law: NoiseLaw = model.noise_law_ if model.weight == "learned" else NoiseLaw.normal()
    return law


def rows_of(model: BaseRegressor, X: Any, y: Numbers, label: tuple[object, ...]) -> Rows:
    """The ``n`` rows of a table or a series, whose inputs X are times, under a model of one output.

    Raises:
        ValueError: if the model was fitted to another number of rows.
    """
    names = ("loo_mean_", "loo_std_", "weights_", "outliers_", "outlier_scores_", "outlier_probability_")
    columns = [np.asarray(getattr(model, name)) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.shape != y.shape:
            raise ValueError(
                f"{name} of the model has shape {column.shape} but y has {y.shape}: give the rows that it was fitted to"
            )
    expected, std, weight, flagged, score, probability = columns
    law, variance = predictive_law(model), np.square(std)
    # A row with a sample weight above one has less noise than a new observation at the same inputs.
    noise = np.minimum(np.asarray(model.noise_std(as_fitted(model, X))) ** 2, variance) / law.variance
    half_width = half_widths(law, np.maximum(variance - law.variance * noise, 0.0), noise)
    return Rows(label, y, expected, std, weight, flagged, score, probability, noise, half_width)


def frame_of(values: Numbers, kept: Numbers, widest: float = 8.0) -> Range | None:
    """A range for an axis if a few far values would squeeze all others into a line; ``None`` if all fit.

    Args:
        values: all values of the figure.
        kept: those that must be in the frame.
        widest: largest ratio of the width of all values to that of ``kept`` without a frame.
    """
    if not len(kept) or not len(values):
        return None
    low, high = float(kept.min()), float(kept.max())
    span = high - low
    if span <= 0 or float(values.max()) - float(values.min()) <= widest * span:
        return None
    return low - 0.5 * span, high + 0.5 * span


def half_widths(law: NoiseLaw, latent: Numbers, noise: Numbers, coverage: float = 0.95) -> Numbers:
    """Half the widths of intervals of ``n`` observations under a law.

    Args:
        law: the law.
        latent: ``n`` variances of the function.
        noise: ``n`` variances σ² of the narrowest scale.
        coverage: of the intervals.
    """
    # In units of σ they depend on the variance over σ² alone.
    if len(latent) > _MOST_WIDTHS and bool((noise > 0.0).all() and np.isfinite(latent).all()):
        total = 1.0 + latent / noise
        knots = np.geomspace(total.min(), total.max(), _MOST_WIDTHS)
        at = half_widths(law, np.maximum(knots - 1.0, 0.0), np.ones(len(knots)), coverage)
        interpolated: Numbers = np.sqrt(noise) * np.interp(total, knots, at)
        return interpolated
    level = torch.tensor(0.5 + 0.5 * coverage, dtype=torch.float64)
    tensors = (torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)) for v in (latent, noise))
    widths: Numbers = law.quantile(level, *tensors).numpy()
    return widths


def scores_of(rows: Rows, flagged: Flags, noise_std: float) -> Scores:
    """Scores of a model, with the flags of the robust one, so that both models are compared on the same rows."""
    error, inside, kept = np.abs(rows.residual), rows.inside.astype(np.float64), ~flagged
    median = float(np.median(error))
    return Scores(_mean(error), _mean(error[kept]), median, _mean(inside), _mean(inside[kept]), noise_std)


def drawn_rows(rows: Rows, limit: int = MOST_DRAWN) -> Positions:
    """Positions, in order, of the rows in figures: all flagged ones and a random sample of the others.

    If more than ``limit`` rows are flagged, the most suspicious of them.
    """
    flagged, others = rows.by_suspicion[rows.flagged[rows.by_suspicion]][:limit], np.flatnonzero(~rows.flagged)
    room = min(len(others), limit - len(flagged))
    sample = np.random.default_rng(0).choice(others, size=room, replace=False)
    return np.sort(np.concatenate([flagged, sample]))


def listed_rows(rows: Rows) -> Positions:
    """Positions of the rows for the table, most suspicious first: flagged ones, filled up to twenty, at most 200."""
    flags = rows.flagged[rows.by_suspicion]
    flagged = rows.by_suspicion[flags][:_MOST_LISTED]
    return np.concatenate([flagged, rows.by_suspicion[~flags][: max(0, _FEWEST_LISTED - len(flagged))]])


def _mean(values: Numbers) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
