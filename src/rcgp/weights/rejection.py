"""A weight that deletes rows beyond a threshold, however little noise there is: what trimming puts into a model."""

from __future__ import annotations

import torch
from torch import Tensor

from rcgp.weights.base import WeightFunction

__all__ = ["Rejection", "bounded", "rejection"]

# How steeply trust ends at the threshold.
_POWER = 32


def rejection(u: Tensor, threshold: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and slope at u = (e − g) / c, each ``... x n``; differentiable in all.

    Args:
        u: distances from the centre over the threshold, not too large for their power (:func:`bounded`).
        threshold: c.
        gain: S² over the noise variance of the row. With 1, the weight is 1 within the threshold, 0.71 at it and 0
            beyond, whatever the noise is.
    """
    power = gain * u**_POWER
    return (1.0 + power).rsqrt(), -_POWER / threshold * gain * u ** (_POWER - 1) / (1.0 + power)


def bounded(u: Tensor) -> Tensor:
    """u where its power does not overflow, and else a bound at which the weight is negligible by far."""
    bound = torch.finfo(u.dtype).max ** (0.8 / _POWER)
    return u.clamp(-bound, bound)


class Rejection(WeightFunction):
    """w̃² = σ² / (σ² + S² u³²), u = (e − g) / c: the noise variance of a row is σ² within c of g, far more beyond.

    A row is predicted with standard deviation S, which is much more than σ where rows are few. Beyond its threshold its
    noise must be large against S, not against σ, or it would still draw the posterior to itself: the pseudo-noise is
    S² at the threshold, 340 S² at 1.2 times and 4e9 S² at twice that, and below σ² at half of it unless S exceeds σ by
    more than 6e4. The slope is −32 S² u³¹ / (c (σ² + S² u³²)).

    Args:
        centre: ``... x n`` centres g, relative to the prior mean.
        threshold: ``... x n`` thresholds c, positive.
        deviation: ``... x n`` standard deviations S of the predictions, positive.
    """

    centre: Tensor
    threshold: Tensor
    deviation: Tensor

    def __init__(self, centre: Tensor, threshold: Tensor, deviation: Tensor) -> None:
        super().__init__()
        if centre.ndim == 0 or not centre.shape == threshold.shape == deviation.shape:
            raise ValueError(
                "centre, threshold and deviation must hold a number for each row, got shapes "
                f"{tuple(centre.shape)}, {tuple(threshold.shape)} and {tuple(deviation.shape)}"
            )
        if not bool(centre.isfinite().all()) or not bool(((threshold > 0) & (deviation > 0)).all()):
            raise ValueError("centre must be finite, threshold and deviation positive in every row")
        self.register_buffer("centre", centre.detach().clone())
        self.register_buffer("threshold", threshold.detach().clone())
        self.register_buffer("deviation", deviation.detach().clone())

    def extra_repr(self) -> str:
        return f"rows={self.centre.shape[-1]}"

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return rejection(self._scaled(residual), self.threshold, self._gain(noise))[0]

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return rejection(self._scaled(residual), self.threshold, self._gain(noise))[1]

    def of_row(self, row: int) -> Rejection:
        """The weight of one row, for any number of values that it might have."""
        one = slice(row, row + 1)
        return Rejection(self.centre[..., one], self.threshold[..., one], self.deviation[..., one])

    def _gain(self, noise: Tensor) -> Tensor:
        return self.deviation.square() / noise.unsqueeze(-1)

    def _scaled(self, residual: Tensor) -> Tensor:
        if self.centre.shape[-1] not in (1, residual.shape[-1]):
            raise ValueError(
                f"Rejection has centres for {self.centre.shape[-1]} rows and cannot weigh {residual.shape[-1]} others"
            )
        return bounded((residual - self.centre) / self.threshold)
