"""Weights and pseudo-data of a batch of models at given hyperparameters.

With a noise law the weights are computed as a robust fit does (:mod:`rcgp.training.robust`), in a fixed number of
expectation steps from the data, the hyperparameters and the law alone. So a model that is loaded, or
conditioned on further observations, has the weights that a model of all the data would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rcgp.core.loo import LeaveOneOut, leave_one_out, log_density
from rcgp.core.noise_law import weigh_rows
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models.defaults import robust_spreads
from rcgp.weights import WeightFunction
from rcgp.weights.noise_law import Responsibilities, responsibilities

__all__ = ["NoiseLaws", "Weighed", "weigh"]


@dataclass(frozen=True)
class NoiseLaws:
    """The noise law of each model of a batch.

    Attributes:
        log_shares: ``... x 5`` log shares of each scale and, last, of outliers.
        width: ``...`` half-widths of the density of outliers.
    """

    log_shares: Tensor
    width: Tensor

    @classmethod
    def of(cls, law: Tensor, residual: Tensor) -> NoiseLaws:
        """The laws of ``... x 6`` numbers for residuals ``... x n``: five shares, and the width in their spreads."""
        return cls(law[..., :-1].log(), law[..., -1] * robust_spreads(residual))

    def responsibilities(self, residual: Tensor, cavity: LeaveOneOut, row_noise: Tensor) -> Responsibilities:
        """Which component each row comes from, given its leave-one-out prediction."""
        return responsibilities(residual, *cavity, row_noise, self.log_shares, self.width)


@dataclass(frozen=True)
class Weighed:
    """Training data and their weights.

    Attributes:
        inputs: ``... x n x d`` inputs.
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e = y − m(x).
        row_noise: ``... x n`` noise variances.
        weight: ``... x n`` weights w̃.
        outlier_probability: ``... x n`` probabilities that flags go by, zero without a noise law.
        pseudo: pseudo-data made from the above.
        laws: the noise laws; ``None`` for a weight function.
    """

    inputs: Tensor
    K: Tensor
    residual: Tensor
    row_noise: Tensor
    weight: Tensor
    outlier_probability: Tensor
    pseudo: PseudoData
    laws: NoiseLaws | None

    def leave_one_out_score(self) -> Tensor:
        """Σ_i log p(y_i | all other rows), ``...``; under the noise law if there is one. Cost O(n³)."""
        cavity = leave_one_out(self.K, self.pseudo)
        if self.laws is not None:
            return self.laws.responsibilities(self.residual, cavity, self.row_noise).log_density.sum(dim=-1)
        return log_density(self.residual - cavity.mean, cavity.variance + self.row_noise).sum(dim=-1)


def weigh(inputs: Tensor, K: Tensor, residual: Tensor, row_noise: Tensor, weight: WeightFunction | Tensor) -> Weighed:
    """Weights and pseudo-data of rows, differentiable.

    Args:
        inputs, K, residual, row_noise: see :class:`Weighed`.
        weight: a weight function, or noise laws, ``... x 6``: see :meth:`NoiseLaws.of`.

    Returns:
        The weighed data. Cost O(n) for a weight function or normal noise, else a few times O(n³).
    """
    if isinstance(weight, Tensor):
        return _weigh_by_law(inputs, K, residual, row_noise, NoiseLaws.of(weight, residual))
    noise = row_noise.mean(dim=-1)  # σ², where it is not known for each row
    w, slope = weight(residual, inputs, noise), weight.slope(residual, inputs, noise)
    pseudo = _pseudo(residual, w, slope, row_noise)
    return Weighed(inputs, K, residual, row_noise, w, torch.zeros_like(w), pseudo, None)


def _weigh_by_law(inputs: Tensor, K: Tensor, residual: Tensor, row_noise: Tensor, laws: NoiseLaws) -> Weighed:
    w, slope = torch.ones_like(residual), torch.zeros_like(residual)
    probability = slope
    if bool((laws.log_shares[..., 0] < 0.0).any()):  # where all laws are normal, so are the weights
        spread = robust_spreads(residual)
        cavity_of = partial(leave_one_out, K)
        _, rows = weigh_rows(cavity_of, residual, row_noise, spread, laws.log_shares, laws.width)
        w, slope, probability = rows.weight, rows.slope, rows.outlier_probability
    pseudo = _pseudo(residual, w, slope, row_noise)
    return Weighed(inputs, K, residual, row_noise, w, probability, pseudo, laws)


def _pseudo(residual: Tensor, weight: Tensor, slope: Tensor, row_noise: Tensor) -> PseudoData:
    return pseudo_data(residual, weight, slope, torch.ones_like(row_noise[..., 0]), row_noise.reciprocal())
