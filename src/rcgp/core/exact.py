"""The exact GP on pseudo-data: posterior, leave-one-out, evidence and influence.

With K the kernel matrix, M = I + S K S (:mod:`rcgp.core.linalg`), P = M⁻¹, β = P S z and α = S β = (K + R)⁻¹ z:

**Posterior** (Prop. 3.1), relative to the prior mean,

    mean(x)       = k(x)ᵀ α,
    cov(x, x')    = k(x, x') − k(x)ᵀ (K + R)⁻¹ k(x').

**Leave-one-out** (appendix). The prediction of f(x_i) from all other points is N(μ_i, v_i). With ν_i the posterior
variance at x_i,

    direct form    μ_i = z_i − β_i / (s_i P_ii),           v_i = (1/P_ii − 1) / s_i²,
    cavity form    μ_i = ([Kα]_i − ν_i s_i² z_i) / P_ii,   v_i = ν_i / P_ii,     ν_i = Σ_j P_ij s_j K_ij / s_i.

The two are equal, but the direct form loses eps · r_i to cancellation and the cavity form eps · K_ii; each point uses
the better one. So leave-one-out stays exact while an outlier's r_i grows to infinity. For gradients ḡ of the means and
h̄ of the variances, let

    p_i = ḡ_i / (s_i P_ii),    q_i = (ḡ_i s_i β_i − h̄_i) / (s_i P_ii)²,    u = P p,    P° = P with a zero diagonal.

Then       ∂/∂K   = S [ ½(u βᵀ + β uᵀ) − P diag(q) P ] S,
           ∂/∂z_i = −s_i [P°p]_i,
           ∂/∂s_i = −2/s_i · ( β_i [P°p]_i − Σ_k P°_ik² q_k ).

P° in place of P is exact, because μ_i and v_i do not depend on (z_i, r_i), and avoids a cancellation that would be
fatal for large r_i. The backward pass costs one n x n product.

**Evidence.** With t = S z,

    log N(z; 0, K + R) = ℓ + Σ_i log s_i − (n/2) log 2π,        ℓ = −½ log det M − ½ tᵀ P t.

ℓ compares the prior with one that has no signal and different noise normalisation; it is the part that involves K.
With μ = K α, the posterior mean,

    ∂ℓ/∂K = ½ S (β βᵀ − P) S,    ∂ℓ/∂z = −S β,    ∂ℓ/∂s_i = −s_i (ν_i + (z_i − μ_i)²).

**Influence** (Prop. 3.2): how far one observation can move the posterior.

    PIF(y_m) = KL( p(f | D) ‖ p(f | D with y_m replaced) ).

The two posteriors differ by one factor that involves f(x_m) alone, so their conditionals given f(x_m) agree and
the n-dimensional divergence equals the one-dimensional one between the marginals of f(x_m). Each marginal follows from
the cavity, the leave-one-out posterior N(μ, v) of f(x_m), by one Gaussian update: O(1) for each value of y_m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.linalg import broadcast, scaled_cholesky
from rcgp.core.pseudo import PseudoData

__all__ = [
    "ExactPosterior",
    "LeaveOneOut",
    "condition",
    "influence",
    "leave_one_out",
    "log_density",
    "log_pseudo_marginal",
    "loss_terms",
    "posterior_variance",
    "signal_evidence",
]

# Rows handled at a time: temporaries stay small, and of the symmetric gradient only the lower part is computed.
_BLOCKS, _SMALLEST_BLOCK = 8, 192

# Rows of n x n matrices copied at a time.
_ROWS = 256


@dataclass(frozen=True)
class ExactPosterior:
    """The posterior, in the form that predicts at any input.

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
        """V = L⁻¹ S K_starᵀ, ``... x n x q``, so that the data reduce the prior covariance by VᵀV. Cost n²q."""
        V: Tensor
        if self.L.ndim == 2 and K_star.ndim > 2:
            # One solve for all batches: torch would copy L for each of them.
            return self.whiten(K_star.reshape(-1, K_star.shape[-1])).mT.reshape(K_star.shape).mT
        V = torch.linalg.solve_triangular(self.L, self.s.unsqueeze(-1) * K_star.mT, upper=False)
        return V

    def variance(self, K_star: Tensor, prior_variance: Tensor) -> Tensor:
        """Posterior variance at q points, ``... x q``, at least zero. Cost n²q.

        Args:
            K_star: ``... x q x n`` kernel between the points and the training inputs.
            prior_variance: ``... x q`` kernel of each point with itself.
        """
        return (prior_variance - self.whiten(K_star).square().sum(dim=-2)).clamp_min(0.0)

    def covariance(self, K_star: Tensor, K_other: Tensor, prior_covariance: Tensor) -> Tensor:
        """Posterior covariance between q and p points, ``... x q x p``. Cost n²(q + p) + nqp.

        Args:
            K_star: ``... x q x n`` kernel between the first points and the training inputs.
            K_other: ``... x p x n`` kernel between the second points and the training inputs.
            prior_covariance: ``... x q x p`` kernel between the two.
        """
        V = self.whiten(K_star)
        V_other = V if K_other is K_star else self.whiten(K_other)
        return prior_covariance - V.mT @ V_other

    def leave_one_out(self, K: Tensor, z: Tensor) -> LeaveOneOut:
        """:func:`leave_one_out` from this factorisation, without gradient. Cost 2n³/3.

        Args:
            K: ``... x n x n`` kernel matrix that L is made from.
            z: ``... x n`` pseudo-targets.
        """
        return _left_out(K, z, self.s, self.L)[0]


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


class LeaveOneOut(NamedTuple):
    """Mean and variance of each point given all other points, each ``... x n``."""

    mean: Tensor
    variance: Tensor


def leave_one_out(K: Tensor, pseudo: PseudoData) -> LeaveOneOut:
    """Leave-one-out means and variances of f(x_i), relative to the prior mean; differentiable once.

    Args:
        K: ``... x n x n`` kernel matrix, symmetric.
        pseudo: pseudo-data of the n points.

    Returns:
        Means and variances, ``... x n``. Cost n³ (Cholesky and inverse), and 1 to 2n³ more for the gradient;
        two n x n matrices besides K, three in the backward pass.
    """
    moments = _LeaveOneOutMoments.apply(*broadcast(K, pseudo.target, pseudo.root_precision))  # type: ignore[no-untyped-call]
    return LeaveOneOut(*moments)


def log_density(residual: Tensor, variance: Tensor) -> Tensor:
    """log N(residual; 0, variance), elementwise."""
    return -0.5 * (math.log(2.0 * math.pi) + variance.log() + residual.square() / variance)


class _LeaveOneOutMoments(torch.autograd.Function):
    """(K, z, s) ↦ (μ, v); the formulas are in the module's docstring."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        moments, P, diagonal, beta = _left_out(K, z, s, scaled_cholesky(K, s))
        P.diagonal(dim1=-2, dim2=-1).zero_()  # P°, for the backward pass
        ctx.save_for_backward(P, diagonal, beta, s)
        return moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        P0, diagonal, beta, s = ctx.saved_tensors
        p = grad_mean / (s * diagonal)
        q = (grad_mean * s * beta - grad_variance) / (s * diagonal).square()
        Pp = (P0 @ p.unsqueeze(-1)).squeeze(-1)  # P°p
        grad_K, squares = _backward_products(P0, diagonal, q, Pp + diagonal * p, beta, s)
        return grad_K, -s * Pp, -2.0 / s * (beta * Pp - squares)


def _left_out(K: Tensor, z: Tensor, s: Tensor, L: Tensor) -> tuple[LeaveOneOut, Tensor, Tensor, Tensor]:
    """Leave-one-out moments, P, its diagonal and β, from the Cholesky factor L of M."""
    # n x n; LAPACK stores columns, and the transpose of a symmetric matrix has its rows in one piece.
    P = torch.cholesky_inverse(L).mT
    del L
    diagonal = P.diagonal(dim1=-2, dim2=-1).clone()
    beta = (P @ (s * z).unsqueeze(-1)).squeeze(-1)
    nu = posterior_variance(K, P, s)
    posterior_mean = (K @ (s * beta).unsqueeze(-1)).squeeze(-1)
    cavity = (posterior_mean - nu * s * (s * z)) / diagonal
    mean = torch.where(_noisy_points(K, s), cavity, z - beta / (s * diagonal))
    return LeaveOneOut(mean, nu / diagonal), P, diagonal, beta


def _backward_products(
    P0: Tensor, diagonal: Tensor, q: Tensor, u: Tensor, beta: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """S [½(u βᵀ + β uᵀ) − P diag(q) P] S and Σ_k P°_ik² q_k, a block of rows at a time.

    The matrix is symmetric: each block is computed up to the diagonal and mirrored. Cost about n³.
    """
    n = P0.shape[-1]
    size = max(_SMALLEST_BLOCK, math.ceil(n / _BLOCKS))
    grad_K, squares = torch.empty_like(P0), torch.empty_like(q)
    # ½(u βᵀ + β uᵀ) as a product of n x 2 matrices.
    left, right = torch.stack([0.5 * s * u, 0.5 * s * beta], dim=-1), torch.stack([beta, u], dim=-1)
    for start in range(0, n, size):
        end = min(start + size, n)
        rows, columns = slice(start, end), slice(0, end)
        Pq = P0[..., rows, :] * q.unsqueeze(-2)  # rows of P diag(q): off the diagonal first, then on it
        squares[..., rows] = (P0[..., rows, :].square() @ q.unsqueeze(-1)).squeeze(-1)
        Pq[..., rows].diagonal(dim1=-2, dim2=-1).copy_((diagonal * q)[..., rows])
        Pq.mul_(-s[..., rows].unsqueeze(-1))
        block = Pq @ P0[..., columns]
        block.addcmul_(Pq[..., columns], diagonal[..., columns].unsqueeze(-2))
        block += left[..., rows, :] @ right[..., columns, :].mT
        torch.mul(block, s[..., columns].unsqueeze(-2), out=grad_K[..., rows, columns])
        grad_K[..., :start, rows] = grad_K[..., rows, :start].mT
    return grad_K, squares


def posterior_variance(K: Tensor, P: Tensor, s: Tensor) -> Tensor:
    """ν_i, the posterior variance of f(x_i), from P = M⁻¹ without cancellation: ``... x n``.

    Where the noise r_i = s_i⁻² is below the prior variance, ν_i = r_i (1 − P_ii); elsewhere
    ν_i = Σ_j (P_ij / s_i) s_j K_ij. Cost at most O(n²).
    """
    diagonal = P.diagonal(dim1=-2, dim2=-1)
    nu = (1.0 - diagonal) / s.square()
    for index in torch.split(_noisy_points(K, s).nonzero(), _ROWS):
        at = tuple(index.T)  # batch indices and row of each noisy point
        # P_ij / s_i grows like s_j K_ij: multiplied in this order nothing overflows before the sum does.
        rows = (P[at] / s[at].unsqueeze(-1)).mul_(s[at[:-1]]).mul_(K[at])
        nu[at] = rows.sum(dim=-1)
    return nu.clamp_min_(0.0)


def _noisy_points(K: Tensor, s: Tensor) -> Tensor:
    """Points whose pseudo-noise exceeds their prior variance: for these the cavity form is the accurate one."""
    return s.square() * K.diagonal(dim1=-2, dim2=-1) < 1.0


def signal_evidence(K: Tensor, pseudo: PseudoData) -> Tensor:
    """ℓ, the part of the evidence that involves the kernel: ``...``; differentiable once.

    Args:
        K: ``... x n x n`` kernel matrix, symmetric.
        pseudo: pseudo-data of the n points.

    Returns:
        ``...`` values. Cost n³ with the gradient; two n x n matrices besides K.
    """
    value: Tensor = _SignalEvidence.apply(*broadcast(K, pseudo.target, pseudo.root_precision))  # type: ignore[no-untyped-call]
    return value


class _SignalEvidence(torch.autograd.Function):
    """(K, z, s) ↦ ℓ; the formulas are in the module's docstring."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, z: Tensor, s: Tensor) -> Tensor:
        L = scaled_cholesky(K, s)
        log_det = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        t = s * z
        if any(ctx.needs_input_grad):
            P = torch.cholesky_inverse(L)  # n x n
            beta = (P @ t.unsqueeze(-1)).squeeze(-1)
            nu = posterior_variance(K, P, s)
            ctx.save_for_backward(P, beta, nu, s)
        else:
            beta = torch.cholesky_solve(t.unsqueeze(-1), L).squeeze(-1)
        return -0.5 * (log_det + (t * beta).sum(dim=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        P, beta, nu, s = ctx.saved_tensors
        alpha = s * beta
        grad_K = P * (-0.5 * grad[..., None, None] * s.unsqueeze(-1))
        grad_K.mul_(s.unsqueeze(-2))
        grad_K.addcmul_(0.5 * grad[..., None, None] * alpha.unsqueeze(-1), alpha.unsqueeze(-2))
        # z − μ = β / s.
        grad_s = -grad[..., None] * (s * nu + beta.square() / s)
        return grad_K, -grad[..., None] * alpha, grad_s


def log_pseudo_marginal(K: Tensor, pseudo: PseudoData, weight: Tensor, slope: Tensor, row_noise: Tensor) -> Tensor:
    """The pseudo marginal likelihood log ∫ p(f) exp(−n L(f)) df of the appendix, constants included.

    The paper's closed form, with its constant ½C expanded, is ℓ + Σ_i w̃_i² (1 + ½ σ² (∂_y log w̃_i²)²).
    As a criterion for hyperparameters it is ill-posed: exp(−n L) is not a density in y and its missing normaliser
    depends on σ² and c. For w̃ = 1 it is the log marginal likelihood + (n/2) log 2πσ² + n.

    Args:
        K: ``... x n x n`` kernel matrix, symmetric.
        pseudo: pseudo-data of the n points.
        weight, slope: ``... x n`` weights w̃ and slopes ∂_y log w̃² that the pseudo-data were made from.
        row_noise: ``... x n`` noise variances of the rows, or ``... x 1``.

    Returns:
        ``...`` values. Cost as :func:`signal_evidence`.
    """
    return signal_evidence(K, pseudo) + loss_terms(weight, slope, row_noise)


def loss_terms(weight: Tensor, slope: Tensor, row_noise: Tensor) -> Tensor:
    """Σ_i w̃_i² (1 + ½ σ_i² (∂_y log w̃_i²)²), the terms of the pseudo marginal likelihood besides ℓ: ``...``. Cost O(n).

    Args:
        weight, slope: ``... x n`` weights and slopes.
        row_noise: noise variance of each row.
    """
    # Products in this order cannot overflow: w̃ · slope is bounded wherever the weight is robust.
    return (weight.square() + 0.5 * row_noise * (weight * slope).square()).sum(dim=-1)


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
