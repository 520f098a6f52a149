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
    "scaled_cholesky",
]

# Multiples of the rounding error, tried one after the other.
_JITTER = (0.0, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6)


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that must be positive definite is not, even with jitter."""


def cholesky(M: Tensor) -> Tensor:
    """Lower Cholesky factor of M, with the least jitter that suffices and none if none is needed.

    The jitter is a multiple of n · eps · mean(diag M), the size of the rounding errors in M; it grows from one to a
    million times that before the matrix is given up. In a batch only the failing members receive it.

    Args:
        M: ``... x n x n`` symmetric matrix; only its lower triangle is read.

    Returns:
        ``... x n x n`` lower triangular factor. Cost n³/3.

    Raises:
        NotPositiveDefiniteError: if M is not positive definite or has entries that are not finite.
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

    One kernel matrix may serve several outputs, or several kernels one output; autograd sums the gradients.
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
