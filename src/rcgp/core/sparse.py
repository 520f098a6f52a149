"""The sparse GP on pseudo-data, seen through m inducing points: sums over rows, and O(nm²) time.

With K_uu = L Lᵀ between the inducing points and k_i = k_u(x_i) between them and row i, let

    v_i = L⁻¹ k_i,      G = Σ_i v_i v_iᵀ / r_i,      c = Σ_i v_i z_i / r_i,      B = I + G.

The posterior (the paper's RCSVGP, errata 5 and 6) is that of an ordinary GP with covariance q(x, x') = v(x)ᵀ v(x') that
observes z_i with noise r_i, and the prior variance k − q that the inducing points do not see:

    mean(x) = v(x)ᵀ B⁻¹ c,        var(x) = k(x, x) − v(x)ᵀ v(x) + v(x)ᵀ B⁻¹ v(x).

The paper has P_u = K_uu + Σ k_i k_iᵀ / r_i in place of B. P_u = L B Lᵀ, but its condition number is that of K_uu
squared times n σ_f²/σ²: with a million rows of little noise, sums of k_i k_iᵀ lose all significant digits. The
eigenvalues of B are at least one. Given L, the statistics (G, c, …) are sums over rows: ``+`` is all that parallel
passes need.

Leave-one-out follows from the leverage h_i = ν_i / r_i, with μ_i = v_iᵀ B⁻¹ c and ν_i = v_iᵀ B⁻¹ v_i:

    mean_i = (μ_i − h_i z_i) / (1 − h_i),      variance_i = ν_i / (1 − h_i) + k(x_i, x_i) − v_iᵀ v_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.linalg import cholesky
from rcgp.core.pseudo import PseudoData

__all__ = [
    "Moments",
    "SparsePosterior",
    "Statistics",
    "block_rows",
    "condition_sparse",
    "leave_one_out_sparse",
    "moments",
    "signal_bound",
    "statistics",
    "unseen_variance",
    "weighted_gram",
    "whiten",
]

# Entries of an m x b block of rows: 4 MB in float64, a few at a time. Blocks of 16 MB would be
# returned to the system and mapped again, page by page, which can take a third of a pass. And the fewest rows of a
# block, so that adding m x m matrices, once for each, costs little compared with their products.
_BLOCK_ENTRIES, _BLOCK_ROWS = 2**19, 1024
# Blocks of rows in which the lower part of a symmetric product is computed.
_BLOCKS = 4
# Rows of an m x n matrix whose squares are summed at a time, which stay in cache.
_SLAB = 64


@dataclass(frozen=True)
class Statistics:
    """Sums over rows: the statistics of two sets of rows add up to those of their union.

    Attributes:
        gram: ``m x m`` G = Σ v_i v_iᵀ / r_i.
        moment: ``m`` c = Σ v_i z_i / r_i.
        energy: Σ z_i² / r_i.
        unseen: Σ (k(x_i, x_i) − v_iᵀ v_i) / r_i, the prior variance that the inducing points do not see.
        log_precision: Σ log r_i^(-1/2).
        rows: number of rows.
    """

    gram: Tensor
    moment: Tensor
    energy: Tensor
    unseen: Tensor
    log_precision: Tensor
    rows: int

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


class Moments(NamedTuple):
    """Posterior mean μ and variance ν of the part of f that the inducing points see, each ``n``."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class SparsePosterior:
    """The posterior, in the form that predicts at any input.

    Attributes:
        L: ``m x m`` Cholesky factor of K_uu.
        L_B: ``m x m`` Cholesky factor of B = I + G.
        root: ``m`` L_B⁻¹ c.
        alpha: ``m`` L⁻ᵀ B⁻¹ c, so that the mean is k_u(x)ᵀ alpha.
    """

    L: Tensor
    L_B: Tensor
    root: Tensor
    alpha: Tensor

    def mean(self, K_star: Tensor) -> Tensor:
        """Posterior mean at q points, relative to the prior mean: ``... x q``. Cost O(mq).

        Here and below ``K_star`` is the ``... x q x m`` kernel between the points and the inducing points.
        """
        return K_star @ self.alpha

    def variance(self, K_star: Tensor, prior_variance: Tensor) -> Tensor:
        """Posterior variance at q points, ``... x q``, given their prior variance; at least zero. Cost 2m²q."""
        V, W = self._whitened(K_star)
        return (prior_variance - V.square().sum(dim=-2)).clamp_min(0.0) + W.square().sum(dim=-2)

    def covariance(self, K_star: Tensor, K_other: Tensor, prior_covariance: Tensor) -> Tensor:
        """Posterior covariance ``... x q x p`` of q and p points, given the prior one. Cost 2m²(q + p) + 2mqp."""
        V, W = self._whitened(K_star)
        V_other, W_other = (V, W) if K_other is K_star else self._whitened(K_other)
        return prior_covariance - V.mT @ V_other + W.mT @ W_other

    def _whitened(self, K_star: Tensor) -> tuple[Tensor, Tensor]:
        """L⁻¹ K_starᵀ and L_B⁻¹ L⁻¹ K_starᵀ, each ``... x m x q``."""
        V = whiten(self.L, K_star.mT)
        return V, whiten(self.L_B, V)


def block_rows(m: int) -> int:
    """Number of rows of a block for m inducing points."""
    return max(_BLOCK_ROWS, _BLOCK_ENTRIES // m)


def whiten(L: Tensor, K_uf: Tensor, overwrite: bool = False) -> Tensor:
    """V = L⁻¹ K_uf: columns v_i, ``... x m x n``, stored as K_uf is. Cost m²n.

    Args:
        L: ``m x m`` Cholesky factor.
        K_uf: ``... x m x n`` kernel between the inducing points and the rows.
        overwrite: reuse the memory of K_uf for V, if K_uf is stored by rows. Not for gradients.
    """
    V: Tensor
    if K_uf.stride(-1) == 1:
        # LAPACK stores columns: for a matrix stored by rows, solving Vᵀ Lᵀ = K_ufᵀ saves a copy.
        out = K_uf.mT if overwrite else None
        V = torch.linalg.solve_triangular(L.mT, K_uf.mT, upper=True, left=False, out=out).mT
    else:
        V = torch.linalg.solve_triangular(L, K_uf, upper=False)
    return V


def statistics(V: Tensor, pseudo: PseudoData, unseen: Tensor) -> Statistics:
    """The statistics of rows.

    Args:
        V: ``m x n`` columns v_i = L⁻¹ k_u(x_i).
        pseudo: pseudo-data of the n rows.
        unseen: ``n`` prior variance k(x_i, x_i) − v_iᵀ v_i that the inducing points do not see.

    Returns:
        The statistics. Cost about 1.25 m²n; one m x n matrix besides V.
    """
    s, z = pseudo.root_precision, pseudo.target
    scaled = V * s  # m x n
    return Statistics(
        gram=_symmetric_product(scaled, scaled),
        moment=scaled @ (s * z),
        energy=(s * z).square().sum(),
        unseen=(s.square() * unseen).sum(),
        log_precision=s.log().sum(),
        rows=V.shape[1],
    )


def condition_sparse(L: Tensor, stats: Statistics) -> SparsePosterior:
    """The posterior given the statistics of all rows. Cost m³.

    Args:
        L: ``m x m`` Cholesky factor of K_uu, by which the rows were whitened.
        stats: their statistics.
    """
    L_B = cholesky(stats.gram + torch.eye(L.shape[-1], dtype=L.dtype, device=L.device))
    root = whiten(L_B, stats.moment.unsqueeze(-1))
    half = torch.linalg.solve_triangular(L_B.mT, root, upper=True)
    alpha = torch.linalg.solve_triangular(L.mT, half, upper=True)
    return SparsePosterior(L, L_B, root.squeeze(-1), alpha.squeeze(-1))


def signal_bound(posterior: SparsePosterior, stats: Statistics) -> Tensor:
    """The bound on ℓ, the evidence that involves the kernel (:mod:`rcgp.core.exact`), without its energy. Cost O(m²).

    ℓ + ½ Σ z_i²/r_i ≥ −½ log det B + ½ cᵀ B⁻¹ c − ½ Σ (k(x_i, x_i) − v_iᵀ v_i) / r_i       (errata 2 and 3)

    With Σ log s_i − (n/2) log 2π added, the bound on ℓ is Titsias' on the log marginal likelihood of targets z and
    noises r.
    """
    log_det = 2.0 * posterior.L_B.diagonal().log().sum()
    return 0.5 * (posterior.root.square().sum() - log_det - stats.unseen)


def moments(posterior: SparsePosterior, V: Tensor) -> Moments:
    """μ_i and ν_i of rows, training rows or new ones. Cost m²n.

    Args:
        posterior: the posterior.
        V: ``m x n`` columns v_i.
    """
    W = whiten(posterior.L_B, V)  # m x n
    return Moments(posterior.root @ W, _squared_norms(W))


def leave_one_out_sparse(moments: Moments, pseudo: PseudoData, unseen: Tensor) -> LeaveOneOut:
    """Mean and variance of f(x_i) given all other rows, relative to the prior mean. Cost O(n).

    Exact: the same as from the statistics without row i. A row whose noise grows without bound has no leverage, and
    nothing cancels.

    Args:
        moments: of the n training rows.
        pseudo: their pseudo-data.
        unseen: ``n`` prior variance k(x_i, x_i) − v_iᵀ v_i that the inducing points do not see.
    """
    precision = pseudo.root_precision.square()
    leverage = moments.variance * precision
    # Below one by rounding: ν < r in exact arithmetic.
    left = (1.0 - leverage).clamp_min(torch.finfo(leverage.dtype).eps)
    mean = (moments.mean - leverage * pseudo.target) / left
    return LeaveOneOut(mean, moments.variance / left + unseen)


def weighted_gram(V: Tensor, weight: Tensor) -> Tensor:
    """Σ_i weight_i v_i v_iᵀ, ``m x m``, for weights of either sign. Cost about 1.25 m²n."""
    return _symmetric_product(V * weight, V)


def unseen_variance(V: Tensor, prior_variance: Tensor) -> Tensor:
    """k(x_i, x_i) − v_iᵀ v_i, at least zero: ``n``."""
    return (prior_variance - _squared_norms(V)).clamp_min(0.0)


def _squared_norms(V: Tensor) -> Tensor:
    """v_iᵀ v_i of the columns, ``n``."""
    total = V.new_zeros(V.shape[1])
    for start in range(0, V.shape[0], _SLAB):
        total = total + V[start : start + _SLAB].square().sum(dim=0)
    return total


def _symmetric_product(left: Tensor, right: Tensor) -> Tensor:
    """left · rightᵀ, known to be symmetric: blocks up to the diagonal are computed and mirrored."""
    m = left.shape[0]
    size = math.ceil(m / _BLOCKS)
    product = left.new_empty(m, m)
    for start in range(0, m, size):
        rows = slice(start, min(start + size, m))
        torch.mm(left[rows], right[: rows.stop].mT, out=product[rows, : rows.stop])
        product[:start, rows] = product[rows, :start].mT
    return product
