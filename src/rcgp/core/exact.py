"""The exact posterior of a Gaussian process given pseudo-data, and predictions from it (Prop. 3.1).

mean(x)       = k(x)ᵀ (K + R)⁻¹ z                      relative to the prior mean,
cov(x, x')    = k(x, x') − k(x)ᵀ (K + R)⁻¹ k(x').
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.core.linalg import scaled_cholesky
from rcgp.core.pseudo import PseudoData

__all__ = ["ExactPosterior", "condition"]


@dataclass(frozen=True)
class ExactPosterior:
    """What is kept of the training data: enough to predict anywhere.

    Attributes:
        L: ``... x n x n`` Cholesky factor of I + S K S.
        s: ``... x n`` root precisions.
        alpha: ``... x n`` α = (K + R)⁻¹ z.
    """

    L: Tensor
    s: Tensor
    alpha: Tensor

    def mean(self, K_star: Tensor) -> Tensor:
        """Posterior mean at q points, relative to the prior mean: ``... x q``. Cost O(nq).

        Args:
            K_star: ``... x q x n`` kernel between the points and the training inputs.
        """
        return (K_star @ self.alpha.unsqueeze(-1)).squeeze(-1)

    def whiten(self, K_star: Tensor) -> Tensor:
        """V = L⁻¹ S K_starᵀ, ``... x n x q``, so that VᵀV is what the data take off the prior covariance. Cost n²q."""
        V: Tensor
        if self.L.ndim == 2 and K_star.ndim > 2:
            # One solve for all batches: torch would copy L for each of them.
            return self.whiten(K_star.reshape(-1, K_star.shape[-1])).mT.reshape(K_star.shape).mT
        V = torch.linalg.solve_triangular(self.L, self.s.unsqueeze(-1) * K_star.mT, upper=False)
        return V

    def variance(self, K_star: Tensor, prior_variance: Tensor) -> Tensor:
        """Posterior variance at q points, ``... x q``, never below zero. Cost n²q.

        Args:
            K_star: ``... x q x n`` kernel between the points and the training inputs.
            prior_variance: ``... x q`` kernel of each point with itself.
        """
        return (prior_variance - self.whiten(K_star).square().sum(dim=-2)).clamp_min(0.0)

    def covariance(self, K_star: Tensor, K_other: Tensor, prior_covariance: Tensor) -> Tensor:
        """Posterior covariance between q and p points, ``... x q x p``. Cost n²(q + p) + nqp.

        Args:
            K_star: ``... x q x n`` kernel between the first points and the training inputs.
            K_other: ``... x p x n`` the same for the second points.
            prior_covariance: ``... x q x p`` kernel between the two.
        """
        V = self.whiten(K_star)
        V_other = V if K_other is K_star else self.whiten(K_other)
        return prior_covariance - V.mT @ V_other


def condition(K: Tensor, pseudo: PseudoData) -> ExactPosterior:
    """The posterior given pseudo-data.

    Args:
        K: ``... x n x n`` kernel matrix of the training inputs.
        pseudo: pseudo-data of the n training points.

    Returns:
        The posterior. Cost n³/3 and two n x n matrices.
    """
    z, s = pseudo.target, pseudo.root_precision
    L = scaled_cholesky(K, s)
    alpha = s * torch.cholesky_solve((s * z).unsqueeze(-1), L).squeeze(-1)
    return ExactPosterior(L, s, alpha)
