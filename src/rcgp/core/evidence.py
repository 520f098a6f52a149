"""The evidence of pseudo-data under the Gaussian process prior, with a hand-written backward pass.

With M = I + S K S, P = M⁻¹ and t = S z,

    log N(z; 0, K + R) = ℓ + Σ_i log s_i − (n/2) log 2π,        ℓ = −½ log det M − ½ tᵀ P t.

ℓ compares the prior with one that has no signal and different noise normalisation; it is the part that involves K.
With β = P t and μ = K S β, the posterior mean, and ν the posterior variances at the training points,

    ∂ℓ/∂K = ½ S (β βᵀ − P) S,    ∂ℓ/∂z = −S β,    ∂ℓ/∂s_i = −s_i (ν_i + (z_i − μ_i)²).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.linalg import broadcast, posterior_variance, scaled_cholesky
from rcgp.core.pseudo import PseudoData

__all__ = ["log_marginal", "log_pseudo_marginal", "loss_terms", "signal_evidence"]


def log_marginal(K: Tensor, pseudo: PseudoData) -> Tensor:
    """log N(z; 0, K + R): the marginal likelihood of an ordinary GP with targets z and noises r; differentiable once.

    Args:
        K: ``... x n x n`` kernel matrix, symmetric.
        pseudo: pseudo-data of the n points.

    Returns:
        ``...`` values. Cost n³ with the gradient; two n x n matrices besides K.
    """
    s = pseudo.root_precision
    return signal_evidence(K, pseudo) + s.log().sum(dim=-1) - 0.5 * s.shape[-1] * math.log(2.0 * math.pi)


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
        ``...`` values. Cost as :func:`log_marginal`.
    """
    return signal_evidence(K, pseudo) + loss_terms(weight, slope, row_noise)


def loss_terms(weight: Tensor, slope: Tensor, row_noise: Tensor) -> Tensor:
    """Σ_i w̃_i² (1 + ½ σ_i² (∂_y log w̃_i²)²), what the pseudo marginal likelihood has beside ℓ: ``...``. Cost O(n).

    Args:
        weight, slope: ``... x n`` weights and slopes.
        row_noise: noise variance of each row.
    """
    # Products in this order cannot overflow: w̃ · slope is bounded wherever the weight is robust.
    return (weight.square() + 0.5 * row_noise * (weight * slope).square()).sum(dim=-1)


def signal_evidence(K: Tensor, pseudo: PseudoData) -> Tensor:
    """ℓ, the part of the evidence that involves the kernel: ``...``. Cost as :func:`log_marginal`."""
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
