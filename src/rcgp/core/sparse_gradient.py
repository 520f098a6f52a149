"""Gradients through the sparse posterior, by hand: two passes over the rows, and no matrix of n columns is kept.

A function of the statistics G and c and of the columns v_i (:mod:`rcgp.core.sparse`) has the gradients Ḡ and c̄, and a
direct one in v_i. With gradients μ̄, ν̄ of the moments, and a = B⁻¹ c,

    c̄ = B⁻¹ Σ μ̄_i v_i,        Ḡ = −B⁻¹ (Σ ν̄_i v_i v_iᵀ) B⁻¹ − ½ (c̄ aᵀ + a c̄ᵀ),

and with s_i² = 1 / r_i the gradient of v_i is

    v̄_i = 2 ν̄_i B⁻¹ v_i + μ̄_i a + s_i² (2 Ḡ v_i + z_i c̄).

Since v_i = L⁻¹ k_i, that of k_i is L⁻ᵀ v̄_i. That of L is the lower part of −L⁻ᵀ Σ v̄_i v_iᵀ, which follows from
the sums above without another pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.pseudo import PseudoData
from rcgp.core.sparse import SparsePosterior, Statistics

__all__ = ["Adjoint", "RowGradients", "bound_adjoint", "moments_adjoint", "pull_back"]


@dataclass(frozen=True)
class Adjoint:
    """The part of a gradient that all rows share, for a function of statistics and moments.

    Attributes:
        gram: ``m x m`` Ḡ.
        moment: ``m`` c̄.
        inverse: ``m x m`` B⁻¹.
        a: ``m`` B⁻¹ c.
        whitened: ``m x m`` Σ v̄_i v_iᵀ, from which the gradient of L follows.
    """

    gram: Tensor
    moment: Tensor
    inverse: Tensor
    a: Tensor
    whitened: Tensor

    def of_factor(self, L: Tensor) -> Tensor:
        """The gradient of L, ``m x m``, lower triangular. Cost m³."""
        grad: Tensor = torch.linalg.solve_triangular(L.mT, self.whitened, upper=True)
        return -grad.tril()


class RowGradients(NamedTuple):
    """Gradients of the whitened columns, ``m x n``, of the targets z and of the root precisions s, each ``n``."""

    V: Tensor
    target: Tensor
    root_precision: Tensor


def moments_adjoint(
    posterior: SparsePosterior, stats: Statistics, variances: Tensor, unseen: Tensor, means: Tensor
) -> Adjoint:
    """The adjoint of a function of the moments and of the unseen variances of all rows. Cost O(m³).

    Args:
        posterior, stats: of all rows.
        variances: ``m x m`` Σ ν̄_i v_i v_iᵀ.
        unseen: ``m x m`` Σ ū_i v_i v_iᵀ, where ū_i is the gradient of k(x_i, x_i) − v_iᵀ v_i.
        means: ``m`` Σ μ̄_i v_i.
    """
    inverse, a = _inverse(posterior)
    moment = inverse @ means
    product = torch.outer(moment, a)
    gram = -(inverse @ variances @ inverse) - 0.5 * (product + product.mT)
    whitened = 2.0 * (inverse @ variances - unseen + gram @ stats.gram)
    whitened += torch.outer(a, means) + torch.outer(moment, stats.moment)
    return Adjoint(gram, moment, inverse, a, whitened)


def bound_adjoint(posterior: SparsePosterior, stats: Statistics) -> Adjoint:
    """The adjoint of :func:`rcgp.core.sparse.signal_bound`. Cost O(m³)."""
    inverse, a = _inverse(posterior)
    gram = -0.5 * (inverse + torch.outer(a, a))
    whitened = 2.0 * (gram @ stats.gram) + torch.outer(a, stats.moment) + stats.gram
    return Adjoint(gram, a, inverse, a, whitened)


def pull_back(
    V: Tensor, pseudo: PseudoData, adjoint: Adjoint, unseen: Tensor, means: Tensor | None, variances: Tensor | None
) -> RowGradients:
    """Gradients of a block of rows, for a function of the statistics and moments of all rows.

    Args:
        V: ``m x n`` whitened columns of the block.
        pseudo: their pseudo-data.
        adjoint: of all rows.
        unseen: ``n`` gradients ū_i of their unseen variances.
        means, variances: ``n`` gradients μ̄_i, ν̄_i of their moments; ``None`` if the function does not use them.

    Returns:
        The gradients. Cost 2m²n, or 4m²n with moments; two or three m x n matrices.
    """
    s, z = pseudo.root_precision, pseudo.target
    precision = s.square()
    along = adjoint.moment @ V  # c̄ᵀ v_i
    grad = adjoint.gram @ V  # m x n, Ḡ v_i
    through = (grad * V).sum(dim=0)  # v_iᵀ Ḡ v_i
    grad.mul_(2.0 * precision).addcmul_(V, -2.0 * unseen)
    grad.addr_(adjoint.moment, precision * z)
    if means is not None and variances is not None:
        grad.addcmul_(adjoint.inverse @ V, 2.0 * variances)
        grad.addr_(adjoint.a, means)
    return RowGradients(grad, precision * along, 2.0 * s * (through + z * along))


def _inverse(posterior: SparsePosterior) -> tuple[Tensor, Tensor]:
    """B⁻¹ and B⁻¹ c."""
    inverse = torch.cholesky_inverse(posterior.L_B)
    return inverse, torch.linalg.solve_triangular(posterior.L_B.mT, posterior.root.unsqueeze(-1), upper=True)[:, 0]
