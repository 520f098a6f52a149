"""Noise that differs from place to place: a smooth factor on the noise variance, learned along with the noise law.

Row j suggests the noise variance σ² t_j, and counts as far as it is no outlier, c_j
(:func:`rcgp.core.noise_law.local_squares`). With ρ(x, x') the correlation of the kernel,

    h(x) = (n₀ + Σ_j ρ(x, x_j)^a t_j) / (n₀ + Σ_j ρ(x, x_j)^a c_j),

a kernel average that is drawn to 1 by n₀ rows. The power a says how local it is: 4 halves the lengthscales of a squared
exponential. At a training row the sum leaves that row out, so that h and a may be compared by leave-one-out.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from rcgp.models.kernel_matrix import correlations, dense_kernel

__all__ = ["POWERS", "PRIOR_ROWS", "LocalNoise"]

#: Rows' worth of belief that noise is the same everywhere: a variance from twenty rows has a standard error of a third.
PRIOR_ROWS = 20.0

#: Powers of the correlation that are tried: the lengthscales of the function, their half and their quarter.
POWERS = (1.0, 4.0, 16.0)

# Inputs at which it is evaluated at a time.
_ROWS = 256


@dataclass(frozen=True)
class LocalNoise:
    """The factor h(x) on the noise variance.

    Attributes:
        kernel: whose correlation says which rows are near; a copy that nobody else changes.
        X: ``n x d`` inputs of the rows.
        squares: ``n`` noise variances t that they suggest, in units of σ², times c.
        counts: ``n`` how far each row counts, c.
        power: a, one of :data:`POWERS`.
    """

    kernel: gpytorch.kernels.Kernel
    X: Tensor
    squares: Tensor
    counts: Tensor
    power: float = 1.0

    @classmethod
    def flat(cls, kernel: gpytorch.kernels.Kernel, X: Tensor) -> LocalNoise:
        """The same noise everywhere, h = 1, with a copy of the kernel."""
        nothing = X.new_zeros(X.shape[0])
        return cls(copy.deepcopy(kernel).requires_grad_(False), X, nothing, nothing)

    def __call__(self, x: Tensor) -> Tensor:
        """h at ``... x q x d`` inputs: ``... x q``. Cost O(nq), in small parts."""
        with torch.no_grad():
            own = self.kernel(self.X, diag=True).sqrt()
            values = []
            for points in torch.split(x.detach().reshape(-1, x.shape[-1]).to(self.X), _ROWS):
                scale = self.kernel(points, diag=True).sqrt().unsqueeze(-1) * own
                values.append(self._average(dense_kernel(self.kernel, points, self.X) / scale))
            return torch.cat(values).reshape(x.shape[:-1]).to(x)

    def at_rows(self, K: Tensor) -> Tensor:
        """h at the training rows, each without itself: ``n``.

        Args:
            K: ``n x n`` kernel matrix of the rows.
        """
        return self._average(correlations(K).fill_diagonal_(0.0))

    def _average(self, correlation: Tensor) -> Tensor:
        correlation = correlation.nan_to_num(0.0).clamp_min_(0.0).pow_(self.power)
        return (PRIOR_ROWS + correlation @ self.squares) / (PRIOR_ROWS + correlation @ self.counts)
