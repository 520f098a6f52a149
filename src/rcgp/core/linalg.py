"""The one safe Cholesky factorisation, and so the only jitter, of the package.

Every Gaussian process computation here goes through the matrix

    M = I + S K S,        S = diag(s),  s_i = r_i^(-1/2),

instead of K + R with R = diag(r). The two are equivalent, (K + R)⁻¹ = S M⁻¹ S, but the eigenvalues of M are at
least 1, and a point whose noise r grows without bound simply leaves: its row and column become those of the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "NotPositiveDefiniteError",
    "broadcast",
    "cholesky",
    "noisy_points",
    "posterior_variance",
    "scaled_cholesky",
]

# Multiples of the rounding error, tried one after the other.
_JITTER = (0.0, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6)

# Rows of n x n matrices copied at a time.
_ROWS = 256


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that must be positive definite is not, even with jitter."""


def cholesky(M: Tensor) -> Tensor:
    """Lower Cholesky factor of M, with as little jitter as it takes and none where none is needed.

    The jitter is a multiple of n · eps · mean(diag M), the size of the rounding errors in M; it grows from one to a
    million times that before the matrix is given up. In a batch only the failing members receive it.

    Args:
        M: ``... x n x n`` symmetric matrix; only its lower triangle is read.

    Returns:
        ``... x n x n`` lower triangular factor. Cost n³/3.

    Raises:
        NotPositiveDefiniteError: where M is not positive definite or holds non-finite numbers.
    """
    n = M.shape[-1]
    diagonal = M.diagonal(dim1=-2, dim2=-1)
    rounding = n * torch.finfo(M.dtype).eps * diagonal.mean(dim=-1, keepdim=True)
    jitter, failed = torch.zeros_like(rounding), torch.ones_like(rounding, dtype=torch.bool)
    for multiple in _JITTER:
        jitter = torch.where(failed, multiple * rounding, jitter)
        L: Tensor
        L, info = torch.linalg.cholesky_ex(M if multiple == 0.0 else M + torch.diag_embed(jitter.expand_as(diagonal)))
        failed = (info != 0).unsqueeze(-1) | ~L.diagonal(dim1=-2, dim2=-1).isfinite().all(dim=-1, keepdim=True)
        if not bool(failed.any()):
            return L
    raise NotPositiveDefiniteError(
        f"the {n} x {n} covariance matrix is not positive definite, even with jitter. "
        "Either the kernel is not a covariance function, or a hyperparameter has run to an extreme value "
        "(noise near zero, lengthscale near zero or infinity); a larger noise variance usually helps."
    )


def broadcast(K: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
    """A kernel matrix ``... x n x n`` and vectors ``... x n`` with their batch dimensions made equal.

    So one kernel matrix may serve several outputs, or one output several kernels; autograd sums the gradients.
    """
    shapes = (K.shape[:-2], *(vector.shape[:-1] for vector in vectors))
    batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return K.expand(*batch, *K.shape[-2:]), *(vector.expand(*batch, vector.shape[-1]) for vector in vectors)


def scaled_cholesky(K: Tensor, s: Tensor) -> Tensor:
    """Cholesky factor of M = I + S K S.

    Args:
        K: ``... x n x n`` kernel matrix.
        s: ``... x n`` root precisions r^(-1/2).

    Returns:
        ``... x n x n`` lower triangular factor. Cost n³/3 and one n x n temporary besides the result.
    """
    M = (K * s.unsqueeze(-1)).mul_(s.unsqueeze(-2))  # n x n
    M.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return cholesky(M)


def posterior_variance(K: Tensor, P: Tensor, s: Tensor) -> Tensor:
    """ν_i, the posterior variance of f(x_i), from P = M⁻¹ without cancellation: ``... x n``.

    Where the noise r_i = s_i⁻² is below the prior variance, ν_i = r_i (1 − P_ii); elsewhere
    ν_i = Σ_j (P_ij / s_i) s_j K_ij. Cost O(n²) at the most.
    """
    diagonal = P.diagonal(dim1=-2, dim2=-1)
    nu = (1.0 - diagonal) / s.square()
    for index in torch.split(noisy_points(K, s).nonzero(), _ROWS):
        at = tuple(index.T)  # batch indices and row of each noisy point
        # P_ij / s_i grows like s_j K_ij: multiplied in this order nothing overflows before the sum does.
        rows = (P[at] / s[at].unsqueeze(-1)).mul_(s[at[:-1]]).mul_(K[at])
        nu[at] = rows.sum(dim=-1)
    return nu.clamp_min_(0.0)


def noisy_points(K: Tensor, s: Tensor) -> Tensor:
    """Points whose pseudo-noise exceeds their prior variance: there the cavity forms are the accurate ones."""
    return s.square() * K.diagonal(dim1=-2, dim2=-1) < 1.0
