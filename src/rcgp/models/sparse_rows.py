"""From GPyTorch's kernels to the sparse core: rows in blocks, and gradients that keep no m x n matrix.

The kernel values between m inducing points and the rows are computed block by block and, if they are few enough, kept
from one pass over the rows to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpytorch
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.linalg import cholesky
from rcgp.core.pseudo import PseudoData
from rcgp.core.sparse import (
    Moments,
    SparsePosterior,
    Statistics,
    block_rows,
    condition_sparse,
    moments,
    signal_bound,
    statistics,
    unseen_variance,
    weighted_gram,
)
from rcgp.core.sparse_gradient import Adjoint, bound_adjoint, moments_adjoint, pull_back
from rcgp.models.kernel_matrix import dense_kernel, whitened_kernel

__all__ = ["Rows", "signal_bound_of", "sparse_moments"]

# Most entries of the m x n matrix that are kept between passes: 512 MB in float64.
_KEPT_ENTRIES = 2**26


class Rows:
    """Rows seen through inducing points at the present hyperparameters of a kernel: columns v_i = L⁻¹ k_u(x_i).

    Args:
        kernel: a GPyTorch kernel.
        X: ``n x d`` inputs.
        Z: ``m x d`` inducing points.
    """

    def __init__(self, kernel: gpytorch.kernels.Kernel, X: Tensor, Z: Tensor) -> None:
        self.kernel, self.X, self.Z = kernel, X, Z
        with torch.no_grad():
            self.L = cholesky(dense_kernel(kernel, Z, Z))
        self._kept: list[Tensor] | None = [] if X.shape[0] * Z.shape[0] <= _KEPT_ENTRIES else None

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the rows, and their ``m x b`` columns."""
        size = block_rows(self.Z.shape[0])
        for number, start in enumerate(range(0, self.X.shape[0], size)):
            rows = slice(start, min(start + size, self.X.shape[0]))
            if self._kept is not None and number < len(self._kept):
                yield rows, self._kept[number]
                continue
            V = whitened_kernel(self.kernel, self.L, self.Z, self.X[rows])
            if self._kept is not None:
                self._kept.append(V)
            yield rows, V

    def unseen(self, rows: slice, V: Tensor) -> Tensor:
        """k(x_i, x_i) − v_iᵀ v_i of some rows, given their columns."""
        with torch.no_grad():
            return unseen_variance(V, self.kernel(self.X[rows], diag=True))

    def statistics(self, pseudo: PseudoData) -> Statistics:
        """The statistics of all rows. Cost about 2.3 m²n."""
        parts = (statistics(V, _part(pseudo, rows), self.unseen(rows, V)) for rows, V in self.blocks())
        total = next(parts)
        for part in parts:
            total = total + part
        return total

    def moments(self, posterior: SparsePosterior) -> tuple[Moments, Tensor]:
        """Moments and unseen variances of all rows, each ``n``. Cost 2m²n."""
        found = [(*moments(posterior, V), self.unseen(rows, V)) for rows, V in self.blocks()]
        mean, variance, unseen = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Moments(mean, variance), unseen

    def pull_back(
        self,
        pseudo: PseudoData,
        adjoint: Adjoint,
        unseen: Tensor,
        means: Tensor | None,
        variances: Tensor | None,
        wanted: list[Tensor],
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Gradients of the wanted tensors (parameters of the kernel, Z), of the targets and of the root precisions.

        Args:
            pseudo: of all rows.
            adjoint: of the function that is differentiated.
            unseen: ``n`` gradients in the unseen variances.
            means, variances: ``n`` gradients in the moments; ``None`` if the function does not use them.
            wanted: tensors that the kernel values depend on.
        """
        totals = [torch.zeros_like(tensor) for tensor in wanted]
        targets, root_precisions = [], []
        for rows, V in self.blocks():
            some = (None, None) if means is None or variances is None else (means[rows], variances[rows])
            row = pull_back(V, _part(pseudo, rows), adjoint, unseen[rows], *some)
            targets.append(row.target)
            root_precisions.append(row.root_precision)
            grad_K = torch.linalg.solve_triangular(self.L.mT, row.V, upper=True)
            with torch.enable_grad():
                K = dense_kernel(self.kernel, self.Z, self.X[rows])
                variance = self.kernel(self.X[rows], diag=True)
            _add_gradients(totals, [(K, grad_K), (variance, unseen[rows])], wanted)
        with torch.enable_grad():
            L = cholesky(dense_kernel(self.kernel, self.Z, self.Z))
        _add_gradients(totals, [(L, adjoint.of_factor(self.L))], wanted)
        return totals, torch.cat(targets), torch.cat(root_precisions)


def sparse_moments(rows: Rows, pseudo: PseudoData) -> tuple[Moments, Tensor]:
    """Moments and unseen variances of rows given all of them, differentiable in kernel, Z and pseudo-data.

    Cost about 4.3 m²n, and 9 m²n for the gradient.
    """
    wanted = _wanted(rows)
    mean, variance, unseen = _SparseMoments.apply(rows, pseudo.target, pseudo.root_precision, *wanted)  # type: ignore[no-untyped-call]
    return Moments(mean, variance), unseen


def signal_bound_of(rows: Rows, pseudo: PseudoData) -> Tensor:
    """The bound on ℓ of rows (:func:`rcgp.core.sparse.signal_bound`), differentiable in kernel, Z and pseudo-data.

    Cost about 2.3 m²n, and 4 m²n for the gradient.
    """
    energy = (pseudo.root_precision * pseudo.target).square().sum()
    signal: Tensor = _SignalBound.apply(rows, pseudo.target, pseudo.root_precision, *_wanted(rows))  # type: ignore[no-untyped-call]
    return signal - 0.5 * energy


class _SparseMoments(torch.autograd.Function):
    """(z, s, parameters) ↦ (μ, ν, k − q)."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, z: Tensor, s: Tensor, *wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stats = rows.statistics(PseudoData(z, s))
        posterior = condition_sparse(rows.L, stats)
        found, unseen = rows.moments(posterior)
        ctx.rows, ctx.stats, ctx.posterior = rows, stats, posterior
        ctx.save_for_backward(z, s, unseen, *wanted)
        return *found, unseen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, means: Tensor, variances: Tensor, unseen: Tensor) -> tuple[Tensor | None, ...]:
        z, s, value, *wanted = ctx.saved_tensors
        unseen = torch.where(value > 0.0, unseen, torch.zeros_like(unseen))  # zero where the value was clipped
        m = ctx.rows.Z.shape[0]
        of_variances, of_unseen, of_means = z.new_zeros(m, m), z.new_zeros(m, m), z.new_zeros(m)
        for rows, V in ctx.rows.blocks():
            of_variances += weighted_gram(V, variances[rows])
            of_unseen += weighted_gram(V, unseen[rows])
            of_means += V @ means[rows]
        adjoint = moments_adjoint(ctx.posterior, ctx.stats, of_variances, of_unseen, of_means)
        totals, targets, precisions = ctx.rows.pull_back(PseudoData(z, s), adjoint, unseen, means, variances, wanted)
        return None, targets, precisions, *totals


class _SignalBound(torch.autograd.Function):
    """(z, s, parameters) ↦ the bound without its energy."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, z: Tensor, s: Tensor, *wanted: Tensor) -> Tensor:
        stats = rows.statistics(PseudoData(z, s))
        posterior = condition_sparse(rows.L, stats)
        ctx.rows, ctx.stats, ctx.posterior = rows, stats, posterior
        ctx.save_for_backward(z, s, *wanted)
        return signal_bound(posterior, stats)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, s, *wanted = ctx.saved_tensors
        pseudo, rows = PseudoData(z, s), ctx.rows
        adjoint = bound_adjoint(ctx.posterior, ctx.stats)
        totals, targets, precisions = rows.pull_back(pseudo, adjoint, -0.5 * s.square(), None, None, wanted)
        value = torch.cat([rows.unseen(part, V) for part, V in rows.blocks()])
        return None, grad * targets, grad * (precisions - s * value), *(grad * total for total in totals)


def _wanted(rows: Rows) -> list[Tensor]:
    """Parameters of the kernel, and inducing points, that need a gradient."""
    candidates = [*rows.kernel.parameters(), rows.Z]
    return [tensor for tensor in candidates if tensor.requires_grad]


def _part(pseudo: PseudoData, rows: slice) -> PseudoData:
    return PseudoData(pseudo.target[rows], pseudo.root_precision[rows])


def _add_gradients(totals: list[Tensor], outputs: list[tuple[Tensor, Tensor]], wanted: list[Tensor]) -> None:
    """Add the gradients of the wanted tensors to their totals."""
    outputs = [(value, grad) for value, grad in outputs if value.requires_grad]
    if not outputs or not wanted:
        return
    values, grads = zip(*outputs, strict=True)
    gradients = torch.autograd.grad(values, wanted, grads, allow_unused=True, materialize_grads=True)
    for total, gradient in zip(totals, gradients, strict=True):
        total += gradient
