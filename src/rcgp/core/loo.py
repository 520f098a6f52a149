"""Leave-one-out predictions in closed form, with a hand-written backward pass.

With A = (K + R)⁻¹ and α = A z, the prediction of f(x_i) from all other points is N(μ_i, v_i) with

    μ_i = z_i − α_i / A_ii,        v_i = 1 / A_ii − r_i                (appendix "Leave-one-out").

Written with P = M⁻¹, M = I + S K S (:mod:`rcgp.core.linalg`), and β = P S z, so that α = S β and A = S P S:

    direct form    μ_i = z_i − β_i / (s_i P_ii),           v_i = (1/P_ii − 1) / s_i²,
    cavity form    μ_i = ([Kα]_i − ν_i s_i² z_i) / P_ii,   v_i = ν_i / P_ii,     ν_i = Σ_j P_ij s_j K_ij / s_i,

with ν_i the posterior variance at x_i. The two are equal, but the direct form loses eps · r_i to cancellation and the
cavity form eps · K_ii; each point uses the better one. So LOO stays exact while an outlier's r_i grows to infinity.

The backward pass costs one n x n product. For gradients ḡ of the means and h̄ of the variances, let

    p_i = ḡ_i / (s_i P_ii),    q_i = (ḡ_i s_i β_i − h̄_i) / (s_i P_ii)²,    u = P p,    P° = P with a zero diagonal.

Then       ∂/∂K   = S [ ½(u βᵀ + β uᵀ) − P diag(q) P ] S,
           ∂/∂z_i = −s_i [P°p]_i,
           ∂/∂s_i = −2/s_i · ( β_i [P°p]_i − Σ_k P°_ik² q_k ).

P° in place of P is exact, because μ_i and v_i do not depend on (z_i, r_i), and avoids a cancellation that
would be fatal for large r_i.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.linalg import broadcast, noisy_points, posterior_variance, scaled_cholesky
from rcgp.core.pseudo import PseudoData

__all__ = ["LeaveOneOut", "leave_one_out", "log_density"]

# Rows handled at a time: temporaries stay small, and of the symmetric gradient only the lower part is computed.
_BLOCKS, _SMALLEST_BLOCK = 8, 192


class LeaveOneOut(NamedTuple):
    """Mean and variance of each point given all others, each ``... x n``."""

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
        L = scaled_cholesky(K, s)
        # n x n; LAPACK stores columns, and the transpose of a symmetric matrix has its rows in one piece.
        P = torch.cholesky_inverse(L).mT
        del L
        diagonal = P.diagonal(dim1=-2, dim2=-1).clone()
        beta = (P @ (s * z).unsqueeze(-1)).squeeze(-1)
        nu = posterior_variance(K, P, s)
        posterior_mean = (K @ (s * beta).unsqueeze(-1)).squeeze(-1)
        cavity = (posterior_mean - nu * s * (s * z)) / diagonal
        mean = torch.where(noisy_points(K, s), cavity, z - beta / (s * diagonal))
        P.diagonal(dim1=-2, dim2=-1).zero_()  # the backward pass wants P°
        ctx.save_for_backward(P, diagonal, beta, s)
        return mean, nu / diagonal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        P0, diagonal, beta, s = ctx.saved_tensors
        p = grad_mean / (s * diagonal)
        q = (grad_mean * s * beta - grad_variance) / (s * diagonal).square()
        others = (P0 @ p.unsqueeze(-1)).squeeze(-1)  # P°p
        grad_K, squares = _backward_products(P0, diagonal, q, others + diagonal * p, beta, s)
        return grad_K, -s * others, -2.0 / s * (beta * others - squares)


def _backward_products(
    P0: Tensor, diagonal: Tensor, q: Tensor, u: Tensor, beta: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """S [½(u βᵀ + β uᵀ) − P diag(q) P] S and Σ_k P°_ik² q_k, a block of rows at a time.

    The matrix is symmetric: each block is computed up to the diagonal only, and mirrored. Cost about n³.
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
