"""Robust weights: radial functions of the residual with a soft threshold c, and the rule that chooses c."""

from __future__ import annotations

import copy
import math
from typing import SupportsFloat

import torch
from torch import Tensor, nn

from rcgp.weights.base import WeightFunction

__all__ = ["InverseMultiquadric", "SquaredExponential", "ThresholdWeight", "quantile_threshold"]


def quantile_threshold(residual: Tensor, epsilon: float) -> Tensor:
    """The paper's rule for the soft threshold: c = Q_n(1 − ε), the quantile of |y_i − m(x_i)|.

    Differentiable in the residuals, so that c follows a mean that is being fitted. Where the quantile is
    zero (most points lie exactly on the mean), c is the largest residual times the machine epsilon, the limit
    of ever smaller quantiles; where every residual is zero, any c gives the same weights and c = 1.

    Args:
        residual: ``... x n`` residuals e.
        epsilon: the share ε of observations expected to be outlying, in [0, 1].

    Returns:
        ``... x 1`` thresholds. Cost O(n log n).
    """
    size = residual.abs()
    c = torch.quantile(size, 1.0 - epsilon, dim=-1, keepdim=True)
    largest = size.detach().amax(dim=-1, keepdim=True)
    # Only where the quantile is zero: elsewhere c must not feel how far the largest residual lies.
    fallback = torch.where(largest > 0, largest * torch.finfo(residual.dtype).eps, torch.ones_like(largest))
    return torch.where(c > 0, c, fallback)


class ThresholdWeight(WeightFunction):
    """A radial weight w̃ = h(e / c) with soft threshold c: fixed, learnt, or the quantile of the residuals.

    Args:
        c: the threshold, in the units of y. ``None`` is the paper's rule c = Q_n(1 − epsilon).
        epsilon: the share of observations expected to be outlying; used where ``c`` is ``None``.
        trainable: fit c along with the other hyperparameters (the paper's c-LOO), starting from ``c`` or the rule.
    """

    log_c: Tensor | None

    def __init__(self, c: float | None = None, epsilon: float = 0.05, trainable: bool = False) -> None:
        super().__init__()
        if c is not None and not (isinstance(c, SupportsFloat) and math.isfinite(c) and c > 0):
            raise ValueError(f"c must be a positive number or None, got {c!r}")
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
        self.epsilon = epsilon
        self._starts_from_rule = trainable and c is None
        # NaN marks a trainable threshold that has not met its data yet.
        log_c = torch.tensor(math.nan if c is None else math.log(c), dtype=torch.float64)
        if trainable:
            self.log_c = nn.Parameter(log_c)
        else:
            self.register_buffer("log_c", None if c is None else log_c)

    def extra_repr(self) -> str:
        return f"c=Q_n({1.0 - self.epsilon:g})" if self.log_c is None else f"c={float(self.log_c.detach().exp()):.6g}"

    def threshold(self, residual: Tensor) -> Tensor:
        """The threshold c for these residuals, ``... x 1``."""
        if self.log_c is None:
            return quantile_threshold(residual, self.epsilon)
        if self._starts_from_rule and bool(self.log_c.isnan()):
            raise RuntimeError("a trainable c=None starts from the data: give the weight to a model, or a number for c")
        return self.log_c.exp().to(residual).unsqueeze(-1)

    def initialise(self, residual: Tensor) -> None:
        if self.log_c is not None and self._starts_from_rule:
            with torch.no_grad():
                self.log_c.copy_(quantile_threshold(residual.detach(), self.epsilon).log().squeeze(-1))

    def frozen(self, residual: Tensor) -> WeightFunction:
        clone = copy.deepcopy(self)
        if clone.log_c is None:
            clone.log_c = self.threshold(residual.detach()).log().squeeze(-1)
        return clone

    def _scaled(self, residual: Tensor, c: Tensor) -> Tensor:
        """u = e / c, bounded so that it cannot overflow: beyond the bound the weight is negligible by far."""
        bound = c.detach() / torch.finfo(residual.dtype).tiny ** 0.9
        return torch.maximum(torch.minimum(residual, bound), -bound) / c


class InverseMultiquadric(ThresholdWeight):
    __doc__ = """w̃ = (1 + e²/c²)^(−1/2), the weight that the paper advocates: robust, with heavy tails.

    Its slope is −2e / (c² + e²). Since y·w̃² stays bounded, so does the influence of any observation (Prop. 3.2).
    """ + (ThresholdWeight.__doc__ or "").partition("\n")[2]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual, self.threshold(residual))
        return 1.0 / torch.hypot(torch.ones_like(u), u)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        c = self.threshold(residual)
        u = self._scaled(residual, c)
        w = 1.0 / torch.hypot(torch.ones_like(u), u)
        return -2.0 / c * (u * w) * w


class SquaredExponential(ThresholdWeight):
    __doc__ = """w̃ = exp(−e²/2c²): robust, and quicker than the inverse multiquadric to drop what lies beyond c.

    Its slope is −2e / c².
    """ + (ThresholdWeight.__doc__ or "").partition("\n")[2]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual, self.threshold(residual))
        return torch.exp(-0.5 * u.square())

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        c = self.threshold(residual)
        return -2.0 / c * self._scaled(residual, c)
