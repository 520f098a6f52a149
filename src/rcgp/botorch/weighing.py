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
from rcgp.weights import WeightFunction
from rcgp.weights.rejection import bounded, rejection

__all__ = ["TRUSTED", "Weighed", "weigh"]

#: Trust from which an observation counts as trusted; with less it is suspicious.
TRUSTED = 0.5


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
        The weighed data, differentiable; who is trusted changes in jumps. Cost O(n) for a weight function, else that of
        :func:`rcgp.core.trimming.trim`.
    """
    noise, threshold = row_noise.mean(dim=-1), None  # σ², where it is not known for each row
    if weight is None:
        trimmed = trim(K, residual, row_noise)
        threshold = trimmed.threshold
        u = bounded((residual - trimmed.mean) / threshold)
        w, slope = rejection(u, threshold, trimmed.variance / row_noise)
        trust, _ = rejection(u, threshold, torch.ones_like(u))  # whatever the noise is
    else:
        trust = w = weight(residual, inputs, noise)
        slope = weight.slope(residual, inputs, noise)
    pseudo = pseudo_data(residual, w, slope, torch.ones_like(noise), row_noise.reciprocal())
    return Weighed(inputs, K, residual, row_noise, trust, threshold, pseudo)
