"""What a fitted sparse model says of rows and of new inputs, block by block: tasks that can be sent anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.chunked.passes import Diagnose
from rcgp.chunks import Chunk
from rcgp.chunks.chunk import check_finite
from rcgp.estimator.contract import as_tensor
from rcgp.estimator.outliers import outlier_scores
from rcgp.weights.noise_law import FLAGGED

__all__ = ["DiagnoseRows", "Predict", "RowDiagnosis"]

Array = NDArray[np.float64]


class RowDiagnosis(NamedTuple):
    """What a model says of ``b`` consecutive rows.

    Attributes:
        first: the number of the first.
        weights, outlier_scores, outlier_probability, outliers, loo_mean, loo_std: ``b`` values, as the attributes of
            the estimator.
    """

    first: int
    weights: Array
    outlier_scores: Array
    outlier_probability: Array
    outliers: NDArray[np.bool_]
    loo_mean: Array
    loo_std: Array


@dataclass(frozen=True)
class DiagnoseRows:
    """The diagnosis of a chunk of rows that the model was fitted to. Cost O(m²) for each row."""

    diagnose: Diagnose

    def __call__(self, chunk: Chunk) -> RowDiagnosis:
        found = self.diagnose(chunk)
        scores = outlier_scores(chunk.y, found.mean, found.std)
        parts = (found.weights, scores, found.probability, found.probability > FLAGGED, found.mean, found.std)
        return RowDiagnosis(chunk.first, *(part.numpy() for part in parts))


@dataclass(frozen=True)
class Predict:
    """An answer at the inputs of a block.

    Attributes:
        answer: from ``q x d`` inputs to ``q`` values.
        names: of the features, where they have any, for errors.
        unread: whether the blocks are read when they are predicted, and so not yet checked.
    """

    answer: Callable[[Tensor], Tensor]
    names: tuple[str, ...] | None = None
    unread: bool = False

    def __call__(self, block: Any) -> Array:
        """``q x d`` inputs to ``q`` values."""
        inputs = block if isinstance(block, Tensor) else as_tensor(block)
        if self.unread:
            check_finite(inputs, "X", 0, self.names, of=" of its block")
        with torch.no_grad():
            return self.answer(inputs).numpy() if len(inputs) else np.empty(0)
