"""What each observation counts in a batch of models: weights and pseudo-data at given hyperparameters.

Adaptive weights are centred on what the rows that are trusted say (:mod:`rcgp.core.trimming`): a function of the data
and the hyperparameters alone. So a model that is loaded, or conditioned on further observations, has the weights that
one built from all the data would have.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.core.trimming import trim
from rcgp.weights import Rejection, WeightFunction

__all__ = ["Weighed", "weigh"]


@dataclass(frozen=True)
class Weighed:
    """Training data and what each row counts.

    Attributes:
        inputs: ``... x n x d`` inputs.
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e = y − m(x).
        row_noise: ``... x n`` noise variances.
        trust: ``... x n`` weights w̃ or, of adaptive ones, how far they are trusted: 1 within their threshold, 0 beyond.
        threshold: ``... x n`` distances from their predictions beyond which rows are not trusted; adaptive ones only.
        pseudo: pseudo-data made from the above.
    """

    inputs: Tensor
    K: Tensor
    residual: Tensor
    row_noise: Tensor
    trust: Tensor
    threshold: Tensor | None
    pseudo: PseudoData


def weigh(inputs: Tensor, K: Tensor, residual: Tensor, row_noise: Tensor, weight: WeightFunction | None) -> Weighed:
    """Weights and pseudo-data of rows.

    Args:
        inputs, K, residual, row_noise: see :class:`Weighed`.
        weight: the weight function, or ``None`` for weights centred on what the other rows say.

    Returns:
        The weighed data; centres and thresholds have no gradient. Cost O(n) for a weight function, else n³.
    """
    threshold = trust = None
    if weight is None:
        with torch.no_grad():
            trimmed = trim(K.detach(), residual.detach(), row_noise.detach())
            threshold = trimmed.threshold
            weight = Rejection(trimmed.mean, threshold, trimmed.variance.sqrt())
            trust = weight.trust(residual)
    noise = row_noise.mean(dim=-1)  # σ², where it is not known for each row
    w, slope = weight(residual, inputs, noise), weight.slope(residual, inputs, noise)
    pseudo = pseudo_data(residual, w, slope, torch.ones_like(noise), row_noise.reciprocal())
    return Weighed(inputs, K, residual, row_noise, w if trust is None else trust, threshold, pseudo)
