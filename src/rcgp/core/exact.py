"""The exact posterior of a Gaussian process given pseudo-data, and predictions from it (Prop. 3.1).

mean(x)       = k(x)ᵀ (K + R)⁻¹ z                      relative to the prior mean,
cov(x, x')    = k(x, x') − k(x)ᵀ (K + R)⁻¹ k(x').

The posterior influence function: how far one observation can move the posterior (Prop. 3.2).

    PIF(y_m) = KL( p(f | D) ‖ p(f | D with y_m replaced) ).

The two posteriors differ by one factor that involves f(x_m) alone, so their conditionals given f(x_m) agree and
the n-dimensional divergence equals the one-dimensional one between the marginals of f(x_m). Each marginal follows from
the cavity, the leave-one-out posterior N(μ, v) of f(x_m), by one Gaussian update: O(1) for each value of y_m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.core.linalg import scaled_cholesky
from rcgp.core.pseudo import PseudoData

__all__ = ["ExactPosterior", "condition", "influence"]


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


def influence(mean: Tensor, variance: Tensor, before: PseudoData, after: PseudoData) -> Tensor:
    """KL divergence between the posteriors before and after one observation is replaced.

    Args:
        mean: ``...`` leave-one-out mean μ of f(x_m), relative to the prior mean.
        variance: ``...`` leave-one-out variance v of f(x_m).
        before: pseudo-data of the observation as it is, each entry ``...``.
        after: pseudo-data of its replacements, each entry broadcasting with ``...``.

    Returns:
        One divergence for each replacement; infinite where it exceeds the largest number.
    """
    # Natural parameters of the observation of f(x_m): precision a = s² and precision-weighted target b = s² z.
    s, s_new = before.root_precision, after.root_precision
    a, a_new = s.square(), s_new.square()
    b, b_new = s * (s * before.target), s_new * (s_new * after.target)
    # The update divides the cavity's variance v by a gain g = 1 + v a and moves its mean to (μ + v b) / g.
    gain, gain_new = 1.0 + variance * a, 1.0 + variance * a_new
    excess = variance * (a_new - a) / gain  # v_before / v_after − 1
    shift = ((a - a_new) * mean + b_new * gain - b * gain_new) / (gain * gain_new)  # change of the mean, over v
    # log1p is accurate near zero, the difference of logarithms near −1, where v_after is far larger than v_before.
    log_ratio = torch.where(excess > -0.5, excess.log1p(), gain_new.log() - gain.log())
    return 0.5 * (excess - log_ratio + shift.square() * variance * gain_new)
