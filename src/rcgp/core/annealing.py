"""Which rows to trust, found by lowering the noise: for many outliers, which hide each other.

With much noise a fit is smooth, and rows far from it stand out. Trust w follows the leave-one-out errors
z_i = (e_i − μ_i)/S_i of the fit in which row i has noise variance ρ²/w_i,

    w_i = (1 + z_i²/9)⁻²,

while ρ² falls from the squared scatter of the rows to their noise. It is never taken away for good: what is an error of
a smooth fit may be a feature of a finer one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcgp.core.linalg import scaled_cholesky

__all__ = ["annealed"]

# Steps from much noise to little, and standard deviations at which trust has fallen to a quarter.
_STEPS, _QUARTER = 8, 3.0

# Trust that is always left: noise variances are finite.
_LEAST = 1e-6


def annealed(K: Tensor, residual: Tensor, row_noise: Tensor, scatter: Tensor) -> Tensor:
    """Leave-one-out errors, in standard deviations, when the noise has fallen: ``... x n``.

    Args:
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e from the prior mean.
        row_noise: ``... x n`` noise variances r.
        scatter: ``... x 1`` standard deviations of most residuals, where the noise begins.

    Cost n³ for each of eight steps.
    """
    e, size = residual, torch.zeros_like(residual)
    most = (scatter.square() / row_noise.mean(dim=-1, keepdim=True)).clamp_min(1.0)
    for step in range(_STEPS):
        trust = (1.0 + (size / _QUARTER).square()).pow(-2).clamp_min(_LEAST)
        noise = row_noise * most ** (1.0 - step / (_STEPS - 1))
        s = (trust / noise).sqrt()
        A = torch.cholesky_inverse(scaled_cholesky(K, s)) * s.unsqueeze(-1) * s.unsqueeze(-2)
        variance = A.diagonal(dim1=-2, dim2=-1).reciprocal()
        error = (A @ e.unsqueeze(-1)).squeeze(-1) * variance
        # The variance is that of a row with the noise as it is now, whatever its trust.
        size = error.abs() / ((variance - noise / trust).clamp_min(0.0) + noise).sqrt()
    return size
