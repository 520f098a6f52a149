"""What the page says about rows: leave-one-out errors and intervals, and which rows are drawn and listed.

Nothing here knows of figures or HTML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from rcgp.weights import NoiseLaw

__all__ = [
    "Flags",
    "Numbers",
    "Regressor",
    "Rows",
    "Scores",
    "as_fitted",
    "drawn_rows",
    "listed_rows",
    "predictive_law",
    "rows_of",
    "scores_of",
]

Numbers: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

#: An SVG figure of more points than this is slow to draw and to carry.
_MOST_DRAWN = 3000
_MOST_LISTED = 200
#: Rows listed even where fewer are flagged, so that a reader sees which rows come next.
_FEWEST_LISTED = 20


class Regressor(Protocol):
    """What the page asks of a fitted model with one output: ``rcgp.estimator.RCGPRegressor`` has all of it.

    Attributes:
        weight: what was asked for: ``"learned"``, or a weight that was given.
        n_features_in_: number ``d`` of features.
        noise_law_: how the noise is distributed.
        doubts_: why that may be wrong, a sentence each.
        weights_: ``n`` weights; a row of weight 1 counts in full.
        outlier_probability_: ``n`` probabilities of being an outlier.
        outlier_scores_: ``n`` residuals from what all other rows predict, in standard deviations.
        outliers_: ``n`` flags.
        loo_mean_: ``n`` predictions of each observation from all others.
        loo_std_: ``n`` standard deviations of those, noise included.
        noise_variance_: σ².
        lengthscales_: ``d`` lengthscales.
        fit_report_: how the fit went.
    """

    weight: Any
    n_features_in_: Any
    noise_law_: Any
    doubts_: Any
    weights_: Any
    outlier_probability_: Any
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

    def predict_interval(self, X: Any, coverage: float = 0.95) -> Any: ...

    def noise_std(self, X: Any) -> Any: ...


@dataclass(frozen=True)
class Rows:
    """Every row of the table as a model sees it, each attribute of length ``n``.

    Attributes:
        label: what the row is called, as a rule its number in the file.
        observed: the target.
        expected: its prediction from all other rows.
        std: standard deviation of that prediction, noise included.
        weight: how much the row counts, 1 in full.
        flagged: whether it is more likely an outlier than not.
        score: the residual in standard deviations.
        probability: of being an outlier.
        noise: variance σ² of the narrowest scale of the noise law at the row.
        half_width: of the 95 % leave-one-out interval, by the noise law.
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

    @property
    def by_suspicion(self) -> npt.NDArray[np.intp]:
        """Positions, the most suspicious first: by the outlier probability, then by the size of the score."""
        return np.lexsort((-np.abs(self.score), -self.probability))


@dataclass(frozen=True)
class Scores:
    """How well a model predicts rows that it has not seen.

    Attributes:
        mean_error: mean absolute leave-one-out error.
        mean_error_kept: the same over rows that are not flagged.
        median_error: median absolute leave-one-out error.
        coverage: share of rows inside their 95 % interval, NaN where there are none.
        coverage_kept: the same over rows that are not flagged.
        noise_std: standard deviation of the noise.
    """

    mean_error: float
    mean_error_kept: float
    median_error: float
    coverage: float
    coverage_kept: float
    noise_std: float


def as_fitted(model: Regressor, frame: Any) -> Any:
    """A data frame, or its values for a model that was fitted without names and would warn of them."""
    return frame if hasattr(model, "feature_names_in_") else np.asarray(frame)


def predictive_law(model: Regressor) -> NoiseLaw:
    """The law of a new observation: the learned one, or normal noise for a weight that was given.

    For such a weight ``noise_law_`` is learned after the fit and only flags rows.
    """
    law: NoiseLaw = model.noise_law_ if model.weight == "learned" else NoiseLaw.normal()
    return law


def rows_of(model: Regressor, X: Any, y: Numbers, label: tuple[object, ...]) -> Rows:
    """The rows of the table as a model sees them.

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
    law, variance = predictive_law(model), np.square(columns[1])
    # A row with a sample weight above one has less noise than a new observation at the same place.
    noise = np.minimum(np.asarray(model.noise_std(as_fitted(model, X))) ** 2, variance) / law.variance
    latent = np.maximum(variance - law.variance * noise, 0.0)
    half_width = law.quantile(torch.tensor(0.975, dtype=torch.float64), _tensor(latent), _tensor(noise)).numpy()
    expected, std, weight, flagged, score, probability = columns
    return Rows(label, y, expected, std, weight, flagged, score, probability, noise, half_width)


def scores_of(rows: Rows, flagged: Flags, noise_std: float) -> Scores:
    """Scores of a model, with the flags of the robust one so that two models are compared on the same rows."""
    error, inside, kept = np.abs(rows.residual), rows.inside.astype(np.float64), ~flagged
    return Scores(
        mean_error=_mean(error),
        mean_error_kept=_mean(error[kept]),
        median_error=float(np.median(error)),
        coverage=_mean(inside),
        coverage_kept=_mean(inside[kept]),
        noise_std=noise_std,
    )


def drawn_rows(rows: Rows, limit: int = _MOST_DRAWN, seed: int = 0) -> npt.NDArray[np.intp]:
    """Positions, in order, of the rows that figures show: all flagged ones and a random sample of the others.

    Where more than ``limit`` rows are flagged, the most suspicious of them.
    """
    flagged, others = np.flatnonzero(rows.flagged), np.flatnonzero(~rows.flagged)
    if len(flagged) > limit:
        by_suspicion = rows.by_suspicion
        return np.sort(by_suspicion[rows.flagged[by_suspicion]][:limit])
    room = min(len(others), limit - len(flagged))
    sample = np.random.default_rng(seed).choice(others, size=room, replace=False)
    return np.sort(np.concatenate([flagged, sample]))


def listed_rows(rows: Rows) -> npt.NDArray[np.intp]:
    """Positions of the rows for the table, most suspicious first: flagged ones, filled up to twenty, at most 200."""
    by_suspicion = rows.by_suspicion
    flagged = by_suspicion[rows.flagged[by_suspicion]][:_MOST_LISTED]
    others = by_suspicion[~rows.flagged[by_suspicion]][: max(0, _FEWEST_LISTED - len(flagged))]
    return np.concatenate([flagged, others])


def _tensor(values: Numbers) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


def _mean(values: Numbers) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
