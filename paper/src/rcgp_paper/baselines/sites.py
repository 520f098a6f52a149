"""A Gaussian process conditioned on Gaussian sites, the form of every variational posterior in this room.

Where the likelihood is not Gaussian, the best Gaussian approximation q of the posterior of f at the n training inputs
(relative to the prior mean) multiplies the prior by one Gaussian factor, a *site*, for each observation (Opper and
Archambeau, 2009):

    q(f) ∝ N(f; 0, K) Π_i exp(b_i f_i − ½ λ_i f_i²) = N(f; Kα, V),    V = (K⁻¹ + Λ)⁻¹,    α = b − ΛKα.

A site of a heavy-tailed likelihood may have a *negative* precision λ_i: where the density is convex in f, an
observation takes certainty away. So the positive sites are conditioned on first, as pseudo-data like any other, and
the few negative ones change the result by a matrix H of low rank:

    (K + Λ⁻¹)⁻¹ = S P S − H Hᵀ,    S = diag(max(λ, 0)^½),    P = (I + S K S)⁻¹.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.exact import ExactPosterior
from rcgp.core.linalg import NotPositiveDefiniteError, posterior_variance, scaled_cholesky
from rcgp.weights import smallest_weight

__all__ = ["SitePosterior", "Sites", "SolvedSites", "solve_sites"]

# Rounding errors of a divergence, for each observation, that do no harm.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Sites:
    """One Gaussian factor exp(b f − ½ λ f²) for each training point.

    Attributes:
        precision: ``n`` precisions λ, of either sign.
        shift: ``n`` linear terms b, in which a site N(z; f, r) has r = 1/λ and z = b/λ.
    """

    precision: Tensor
    shift: Tensor

    def towards(self, other: Sites, step: float) -> Sites:
        """The sites a share of the way to others: a natural-gradient step of that length."""
        return Sites(
            torch.lerp(self.precision, other.precision, step),
            torch.lerp(self.shift, other.shift, step),
        )


@dataclass(frozen=True)
class SitePosterior(ExactPosterior):
    """A posterior that can predict anywhere, sites of negative precision included.

    Attributes:
        H: ``n x p`` what the p negative sites take off (K + Λ⁻¹)⁻¹.
    """

    H: Tensor

    def variance(self, K_star: Tensor, prior_variance: Tensor) -> Tensor:
        """Posterior variance at q points, ``... x q``. Cost n²q."""
        return super().variance(K_star, prior_variance) + (K_star @ self.H).square().sum(dim=-1)

    def covariance(self, K_star: Tensor, K_other: Tensor, prior_covariance: Tensor) -> Tensor:
        """Posterior covariance between q and p points, ``... x q x p``. Cost n²(q + p) + nqp."""
        widened = (K_star @ self.H) @ (K_other @ self.H).mT
        return super().covariance(K_star, K_other, prior_covariance) + widened


@dataclass(frozen=True)
class SolvedSites:
    """The Gaussian q that a kernel matrix and sites define, at the training points.

    Attributes:
        posterior: q as a process.
        P: ``n x n`` inverse of I + S K S.
        mean, variance: ``n`` moments of each f_i under q.
        divergence: KL(q ‖ prior), a scalar.
    """

    posterior: SitePosterior
    P: Tensor
    mean: Tensor
    variance: Tensor
    divergence: Tensor

    def divergence_gradient(self) -> Tensor:
        """∂ KL / ∂K with the moments of q held fixed, ``n x n``: ½ ((K + Λ⁻¹)⁻¹ − α αᵀ). Cost O(n²)."""
        q = self.posterior
        gradient = (self.P * (0.5 * q.s.unsqueeze(-1))).mul_(q.s)
        columns = torch.cat([q.H, q.alpha.unsqueeze(-1)], dim=-1)
        return gradient.addmm_(columns, columns.mT, alpha=-0.5)


def solve_sites(K: Tensor, sites: Sites) -> SolvedSites:
    """Condition the prior on sites.

    Args:
        K: ``n x n`` kernel matrix.
        sites: the sites of the n training points.

    Returns:
        The posterior and its moments. Cost n³, and n²p more for p sites of negative precision.

    Raises:
        NotPositiveDefiniteError: where negative precisions outweigh prior and positive sites, so that q does not exist,
            or rounding errors outweigh everything.
    """
    precision, shift = sites.precision, sites.shift
    negative = (precision < 0).nonzero().squeeze(-1)
    # Small beside any precision that matters, and it can be divided by.
    smallest = smallest_weight(K.dtype)
    s = precision.clamp_min(smallest).sqrt().index_fill(0, negative, 0.0)
    t = (shift / s).index_fill(0, negative, 0.0)
    L = scaled_cholesky(K, s)
    P = torch.cholesky_inverse(L)  # n x n
    # Solved with L: the errors of the explicit inverse would be magnified by the largest eigenvalues of K.
    alpha, H = s * torch.cholesky_solve(t.unsqueeze(-1), L).squeeze(-1), K.new_zeros(K.shape[0], 0)
    log_det = 2.0 * L.diagonal().log().sum()
    variance = posterior_variance(K, P, s.clamp_min(smallest))
    if len(negative):
        widened = _add_negative_sites(K, L, s, alpha, negative, sites)
        alpha, H, log_det = alpha + widened.alpha, widened.H, log_det + widened.log_det
        variance = variance.index_copy(0, negative, widened.own_variance) + widened.variance
    mean = K @ alpha
    # tr(K⁻¹V) = n − Σ λ_i V_ii, and log det(K V⁻¹) = log det(I + ΛK).
    from_mean, from_variance = 0.5 * (alpha @ mean), 0.5 * (log_det - precision @ variance)
    # Neither part of a divergence is negative. Where rounding errors make one so, the bound would be wrong, as high as
    # you like, and a search for hyperparameters would go there.
    if float(torch.minimum(from_mean, from_variance)) < -_ROUNDING * K.shape[0]:
        raise NotPositiveDefiniteError("rounding errors outweigh the divergence from the prior")
    divergence = from_mean + from_variance
    return SolvedSites(SitePosterior(L, s, alpha, H), P, mean, variance, divergence)


class _Widening(NamedTuple):
    """What negative sites add: to α, as H, to log det(I + ΛK), and to the variances.

    ``own_variance`` are the variances of the negative sites' own points given the positive sites.
    """

    alpha: Tensor
    H: Tensor
    log_det: Tensor
    variance: Tensor
    own_variance: Tensor


def _add_negative_sites(K: Tensor, L: Tensor, s: Tensor, alpha: Tensor, negative: Tensor, sites: Sites) -> _Widening:
    """Condition what the positive sites left, of covariance Σ, on the p negative ones. Cost n²p.

    With D = diag(|λ|^½) and C = I − DΣD at the negative sites, and G = K⁻¹Σ their columns of I − SPSK:
    H = G D C^(-½), and α grows by Gγ, where γ = b − λ·mean solves (I − D²Σ) γ = b + D² mean of the positive sites.
    """
    D, b = (-sites.precision[negative]).sqrt(), sites.shift[negative]
    columns = torch.arange(len(negative), device=K.device)
    G = -s.unsqueeze(-1) * torch.cholesky_solve(s.unsqueeze(-1) * K[:, negative], L)  # n x p
    G[negative, columns] += 1.0
    covariance = K @ G  # columns of Σ, n x p
    own = covariance[negative]  # p x p
    C = -D.unsqueeze(-1) * own * D
    C.diagonal().add_(1.0)
    # Without jitter: a matrix that is not positive definite says that there is no such posterior.
    root, info = torch.linalg.cholesky_ex(C)
    if int(info):
        raise NotPositiveDefiniteError("sites of negative precision outweigh the prior and all other sites")
    c = b + D.square() * (K[negative] @ alpha)
    gamma = c + D * torch.cholesky_solve((D * (own @ c)).unsqueeze(-1), root).squeeze(-1)
    H, spread = (torch.linalg.solve_triangular(root, (part * D).mT, upper=False).mT for part in (G, covariance))
    log_det = 2.0 * root.diagonal().log().sum()
    return _Widening(G @ gamma, H, log_det, spread.square().sum(dim=-1), own.diagonal())
