"""What a fitted sparse model says of rows and of new inputs, block by block: tasks that can be sent anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.chunks import Chunk
from rcgp.chunks.chunk import check_finite
from rcgp.estimator.contract import as_tensor
from rcgp.estimator.outliers import flagged, outlier_scores
from rcgp.models.posterior import PosteriorProcess
from rcgp.training import AdaptiveReport
from rcgp.training.chunked import ChunkedFit

__all__ = ["Predict", "RowDiagnosis", "Tell"]

Array = NDArray[np.float64]


class RowDiagnosis(NamedTuple):
    """What a model says of ``b`` rows that follow each other.

    Attributes:
        first: the number of the first.
        weights, outlier_scores, outliers, loo_mean, loo_std: ``b`` values, as the attributes of the estimator.
    """

    first: int
    weights: Array
    outlier_scores: Array
    outliers: NDArray[np.bool_]
    loo_mean: Array
    loo_std: Array


@dataclass(frozen=True)
class Tell:
    """The diagnosis of a chunk of rows that the model was fitted to. Cost O(m²) for each row."""

    fitted: ChunkedFit

    def __call__(self, chunk: Chunk) -> RowDiagnosis:
        fitted = self.fitted
        weights, mean, std = fitted.diagnose(chunk)
        adaptive = isinstance(fitted.report, AdaptiveReport)
        # Adaptive centring calibrates its standard deviations; else the robust one of all t is the unit.
        unit = std if adaptive else std * fitted.spread
        scores = outlier_scores(chunk.y, mean, unit, torch.ones_like(chunk.y, dtype=torch.bool), calibrated=True)
        outliers = flagged(scores, weights, adaptive, fitted.fitted_rows)
        return RowDiagnosis(chunk.first, *(part.numpy() for part in (weights, scores, outliers, mean, std)))


@dataclass(frozen=True)
class Predict:
    """Means, or standard deviations, at the inputs of a block.

    Attributes:
        process: the posterior.
        noise: added to each variance; ``None`` asks for means.
        names: of the features, where they have any, for errors.
        unread: whether the blocks are read when they are predicted, and so not yet checked.
    """

    process: PosteriorProcess
    noise: float | None
    names: tuple[str, ...] | None = None
    unread: bool = False

    def __call__(self, block: Any) -> Array:
        """``q x d`` inputs to ``q`` values. Cost O(mq), or O(m²q) for standard deviations."""
        inputs = block if isinstance(block, Tensor) else as_tensor(block)
        if self.unread:
            check_finite(inputs, "X", 0, self.names, of=" of its block")
        with torch.no_grad():
            if not len(inputs):
                return np.empty(0)
            if self.noise is None:
                return self.process.mean(inputs).numpy()
            return (self.process.variance(inputs) + self.noise).sqrt().numpy()
