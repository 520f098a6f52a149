"""A weight with a centre and a threshold of its own for each row: what adaptive centring puts into a model."""

from __future__ import annotations

import torch
from torch import Tensor

from rcgp.weights.base import WeightFunction

__all__ = ["Plateau"]

# How flat the weight is within the threshold, and how steep beyond.
_POWER = 8


class Plateau(WeightFunction):
    """w̃ = (1 + u⁸)^(−1/2), u = (e − g) / c: full trust well within c of the centre g, little beyond.

    The inverse multiquadric with a flat top: the weight is 0.998 at half the threshold, 0.71 at the threshold, 0.06 at
    twice and 1e-4 at ten times that. Its slope is −8u⁷ / (c (1 + u⁸)). Given g and c, which must not depend on the
    row's own y, the influence of an observation is bounded and falls to zero: y·w̃² does.

    Args:
        centre: ``n`` centres g, relative to the prior mean: where each observation is expected.
        threshold: ``n`` thresholds c, positive.
    """

    centre: Tensor
    threshold: Tensor

    def __init__(self, centre: Tensor, threshold: Tensor) -> None:
        super().__init__()
        if centre.ndim != 1 or centre.shape != threshold.shape:
            raise ValueError(
                f"centre and threshold must hold a number for each row, got shapes {tuple(centre.shape)} and "
                f"{tuple(threshold.shape)}"
            )
        if not bool(centre.isfinite().all()) or not bool((threshold > 0).all()):
            raise ValueError("centre must be finite and threshold positive in every row")
        self.register_buffer("centre", centre.detach().clone())
        self.register_buffer("threshold", threshold.detach().clone())

    def extra_repr(self) -> str:
        return f"rows={self.centre.shape[0]}"

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return (1.0 + self._scaled(residual) ** _POWER).rsqrt()

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual)
        return -_POWER / self.threshold * u ** (_POWER - 1) / (1.0 + u**_POWER)

    def of_row(self, row: int) -> Plateau:
        """The weight of one row, for any number of values that it might have."""
        return Plateau(self.centre[row].reshape(1), self.threshold[row].reshape(1))

    def _scaled(self, residual: Tensor) -> Tensor:
        """u, bounded where its power would overflow: there the weight is negligible by far."""
        if self.centre.shape[0] not in (1, residual.shape[-1]):
            raise ValueError(
                f"Plateau has centres for {self.centre.shape[0]} rows and cannot weigh {residual.shape[-1]} others"
            )
        bound = torch.finfo(residual.dtype).max ** (0.9 / _POWER)
        return ((residual - self.centre) / self.threshold).clamp(-bound, bound)
