"""Pseudo-data: the one idea of the method, in one function.

A robust conjugate GP with residuals e = y − m(x), weights w̃ and noise variance σ² has the same posterior as an
ordinary GP that observes (Prop. 3.1)

    pseudo-target   z = e − σ² ∂_y log w̃²        with
    pseudo-noise    r = σ² / w̃²                  at each training point.

The noise variance may differ between rows: known factors p on the precision make it σ²/p (the mean of three
measurements has p = 3), and each output has its own.

Exact inference, leave-one-out and influence know only (K, z, r) and never see a weight function.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rcgp.weights import smallest_weight

__all__ = ["PseudoData", "pseudo_data"]


@dataclass(frozen=True)
class PseudoData:
    """Targets and noises of the ordinary GP that is equivalent to the robust one.

    Attributes:
        target: ``... x n`` pseudo-targets z, relative to the prior mean.
        root_precision: ``... x n`` s = r^(-1/2). Kept instead of r because it stays an ordinary number, and every
            formula well conditioned, while r grows without bound.
    """

    target: Tensor
    root_precision: Tensor

    @property
    def noise(self) -> Tensor:
        """``... x n`` pseudo-noise variances r = s⁻²."""
        return self.root_precision.square().reciprocal()


def pseudo_data(residual: Tensor, weight: Tensor, slope: Tensor, row_noise: Tensor) -> PseudoData:
    """Pseudo-targets and pseudo-noises from residuals and weights (Prop. 3.1; erratum 1 for the sign).

    A point whose weight is negligible (:func:`rcgp.weights.smallest_weight`) is deleted: it keeps that smallest weight
    and its target, which no longer matters, is set to zero so that 0 · ∞ cannot arise from an observation of 1e300.

    Args:
        residual: ``... x n`` residuals e.
        weight: ``... x n`` weights w̃.
        slope: ``... x n`` slopes ∂_y log w̃².
        row_noise: ``... x n`` noise variances σ² of the rows, or ``... x 1``.

    Returns:
        The pseudo-data. Cost O(n).
    """
    smallest = smallest_weight(residual.dtype)
    deleted = weight <= smallest
    z = residual - row_noise * slope
    return PseudoData(
        target=z.masked_fill(deleted, 0.0),
        root_precision=weight.clamp_min(smallest) / row_noise.sqrt(),
    )
