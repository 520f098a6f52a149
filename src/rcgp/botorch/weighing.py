"""Weights and pseudo-data of a batch of models at given hyperparameters.

With a noise law the weights are computed as in a robust fit (:mod:`rcgp.training.robust`), in a fixed number of
expectation steps from data, hyperparameters and law alone. So a model that is loaded, or conditioned on further
observations, has the weights of a model of all the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rcgp.core.loo import leave_one_out, log_density
from rcgp.core.noise_law import weigh_rows
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models.defaults import robust_spreads
from rcgp.weights import WeightFunction
from rcgp.weights.noise_law import responsibilities

__all__ = ["Weighed", "law_parts", "weigh"]


def law_parts(law: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Log shares, ``... x 1 x 5`` with outliers last, and half-width of the outliers' density, ``... x 1``.

    Args:
        law: ``... x 6``: the shares, and the width in robust spreads of the residuals.
        residual: ``... x n`` residuals.
    """
    return law[..., None, :-1].log(), law[..., -1:] * robust_spreads(residual).unsqueeze(-1)


@dataclass(frozen=True)
class Weighed:
    """Training data and their weights.

    Attributes:
        inputs: ``... x n x d`` inputs.
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e = y − m(x).
        row_noise: ``... x n`` noise variances.
        law: ``... x 6`` noise laws; ``None`` with a weight function.
        weight: ``... x n`` weights w̃.
        outlier_probability: ``... x n``, zero without a noise law.
        pseudo: the pseudo-data.
    """

    inputs: Tensor
    K: Tensor
    residual: Tensor
    row_noise: Tensor
    law: Tensor | None
    weight: Tensor
    outlier_probability: Tensor
    pseudo: PseudoData

    def leave_one_out_score(self) -> Tensor:
        """Σ_i log p(y_i | all other rows), ``...``, under the noise law if there is one. Cost O(n³)."""
        cavity = leave_one_out(self.K, self.pseudo)
        if self.law is None:
            return log_density(self.residual - cavity.mean, cavity.variance + self.row_noise).sum(dim=-1)
        parts = law_parts(self.law, self.residual)
        return responsibilities(self.residual, *cavity, self.row_noise, *parts).log_density.sum(dim=-1)


def weigh(inputs: Tensor, K: Tensor, residual: Tensor, row_noise: Tensor, weight: WeightFunction | Tensor) -> Weighed:
    """Weights and pseudo-data of rows, differentiable.

    Args:
        inputs, K, residual, row_noise: see :class:`Weighed`.
        weight: a weight function, or noise laws, ``... x 6``.

    Returns:
        The weighed data. Cost O(n) for a weight function or normal noise, else a few times O(n³).
    """
    law = weight if isinstance(weight, Tensor) else None
    w, slope = torch.ones_like(residual), torch.zeros_like(residual)
    probability = slope
    if not isinstance(weight, Tensor):
        noise = row_noise.mean(dim=-1)  # σ², if it is not known for each row
        w, slope = weight(residual, inputs, noise), weight.slope(residual, inputs, noise)
    elif bool((weight[..., 0] < 1.0).any()):  # else all laws are normal, and all weights one
        spread, parts = robust_spreads(residual), law_parts(weight, residual)
        _, rows = weigh_rows(partial(leave_one_out, K), residual, row_noise, spread.unsqueeze(-1), *parts)
        w, slope, probability = rows.weight, rows.slope, rows.outlier_probability
    pseudo = pseudo_data(residual, w, slope, row_noise)
    return Weighed(inputs, K, residual, row_noise, law, w, probability, pseudo)
