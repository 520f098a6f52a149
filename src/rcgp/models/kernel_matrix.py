"""From GPyTorch's kernels to plain tensors: kernel matrices, with an economical gradient.

Differentiating an n x n kernel matrix with autograd keeps several more n x n matrices and passes over each of them. For
the usual kernels every entry depends on its own pair of points only, so the gradient is computed block by block, with
the kernel recomputed in each: no n x n matrix is kept, the blocks stay in cache, and symmetry halves the work.

For the squared exponential k = s² exp(−½ Σ_j (x_j − x'_j)²/ℓ_j²), the kernel of most models, there is a formula. With Ḡ
the gradient of the matrix, W = Ḡ ∘ K, and inputs X̃ in units of the lengthscales,

    ∂/∂s² = Σ W / s²,      ∂/∂ℓ_j = (1/ℓ_j) Σ_ik W_ik (x̃_ij − x̃_kj)²
                                  = (1/ℓ_j) [ Σ_i (W1 + Wᵀ1)_i x̃_ij² − 2 Σ_i x̃_ij (W X̃)_ij ].

**Far inputs.** Distances are computed from squares, |a − b|² = |a|² + |b|² − 2 a·b. One input of 1e10 among ones costs
all other distances their digits: one wrong cell of a table would spoil the fit and the predictions of every row.

A kernel that vanishes with the distance is zero across a gap of a thousand lengthscales or more. So wider gaps are
closed to that width, coordinate by coordinate, which changes no value of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.sparse import whiten

__all__ = [
    "COMPOSITE",
    "close_gaps",
    "correlations",
    "dense_kernel",
    "ignores_far_inputs",
    "kernel_matrix",
    "kernel_rows",
    "whitened_kernel",
]

# Distance in lengthscales at which these kernels are zero in float64, as exp(−746) is.
_GAP = 1000.0

#: Sums and products of kernels.
COMPOSITE = (gpytorch.kernels.AdditiveKernel, gpytorch.kernels.ProductKernel)

_VANISHING = (
    gpytorch.kernels.MaternKernel,
    gpytorch.kernels.Matern52KernelGrad,
    gpytorch.kernels.RBFKernel,
    gpytorch.kernels.RBFKernelGrad,
)

# Largest number of rows of a block. Blockwise autograd gains nothing for one or two blocks.
_BLOCK = 256

_PAIRWISE = (
    gpytorch.kernels.ConstantKernel,
    gpytorch.kernels.CosineKernel,
    gpytorch.kernels.LinearKernel,
    gpytorch.kernels.MaternKernel,
    gpytorch.kernels.PeriodicKernel,
    gpytorch.kernels.PiecewisePolynomialKernel,
    gpytorch.kernels.PolynomialKernel,
    gpytorch.kernels.RBFKernel,
    gpytorch.kernels.RQKernel,
)


def close_gaps(kernel: gpytorch.kernels.Kernel, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs with the same kernel values and without gaps wider than a thousand lengthscales.

    Args:
        kernel: a GPyTorch kernel. If it does not vanish with the distance, the inputs are returned as they are.
        x1, x2: ``... x q x d`` and ``... x p x d`` inputs, or the same object twice.

    Returns:
        The inputs, moved if there may be such gaps and no gradient in them is needed; else as they are. Cost
        O((q + p) d) for the test, and a sort of each coordinate if there may be gaps.
    """
    if x1.requires_grad or x2.requires_grad or not x1.numel() or not x2.numel():
        return x1, x2
    lengthscale = _lengthscale(kernel, x1.shape[-1])
    if lengthscale is None:
        return x1, x2
    parts = (x1,) if x1 is x2 else (x1, x2)
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    # No such gap if all are within half of it from one of them.
    if all(float(((part - rows[0][0]) / lengthscale).abs().max()) <= 0.5 * _GAP for part in rows):
        return x1, x2
    closed = (_closed(torch.cat(rows), lengthscale) * lengthscale).nan_to_num(nan=0.0)  # 0 · ∞: an ignored column
    split = torch.split(closed, [len(part) for part in rows])
    moved = [new.reshape(part.shape) for new, part in zip(split, parts, strict=True)]
    return moved[0], moved[-1]


def _closed(x: Tensor, lengthscale: Tensor) -> Tensor:
    """Coordinates in lengthscales, ``n x d``, with gaps of at most a thousand; smaller ones are kept."""
    values, order = x.sort(dim=0)
    gaps = (values.diff(dim=0) / lengthscale).clamp_max(_GAP)  # divided last, since differences of neighbours are exact
    places = torch.cat([torch.zeros_like(values[:1]), gaps.cumsum(dim=0)])
    return torch.empty_like(x).scatter_(0, order, places)


def ignores_far_inputs(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether an input far from all others changes no kernel value between these."""
    kernel = _unscaled(kernel)
    if type(kernel) in COMPOSITE and kernel.active_dims is None:
        return all(ignores_far_inputs(part) for part in kernel.kernels)
    return _vanishes(kernel)


def _lengthscale(kernel: gpytorch.kernels.Kernel, d: int) -> Tensor | None:
    """Lengthscales of a kernel that vanishes with the distance, ``d`` or 1; infinite for features that it ignores.

    ``None`` for any other kernel, by exact type.
    """
    kernel = _unscaled(kernel)
    if not _vanishes(kernel):
        return None
    lengthscale: Tensor = kernel.lengthscale.detach().reshape(-1)
    if kernel.active_dims is None:
        return lengthscale
    full = lengthscale.new_full((d,), torch.inf)
    full[kernel.active_dims] = lengthscale
    return full


def _vanishes(kernel: gpytorch.kernels.Kernel) -> bool:
    return type(kernel) in _VANISHING and kernel.raw_lengthscale.dim() == 2


def _unscaled(kernel: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
    """The kernel inside output scales that have the features of their base."""
    while type(kernel) is gpytorch.kernels.ScaleKernel and has_features_of_base(kernel):
        kernel = kernel.base_kernel
    return kernel


def has_features_of_base(kernel: gpytorch.kernels.ScaleKernel) -> bool:
    """Whether an output scale and its base have the same active features, as GPyTorch sets them."""
    own, base = kernel.active_dims, kernel.base_kernel.active_dims
    return own is base or (own is not None and base is not None and torch.equal(own, base))


def kernel_matrix(kernel: gpytorch.kernels.Kernel, X: Tensor) -> Tensor:
    """The kernel matrix of n points as a plain tensor, differentiable in the kernel's parameters.

    Args:
        kernel: a GPyTorch kernel.
        X: ``n x d`` inputs.

    Returns:
        ``n x n`` matrix, differentiable once: second derivatives would be wrong. Cost O(n²) kernel values, and for the
        gradient of a usual kernel half of them again.
    """
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
    X, _ = close_gaps(kernel, X, X)
    K: Tensor
    if not torch.is_grad_enabled() or X.requires_grad or not parameters:
        K = dense_kernel(kernel, X, X)
    elif _is_squared_exponential(kernel):
        K = _SquaredExponentialMatrix.apply(kernel, X, kernel.base_kernel.lengthscale, kernel.outputscale)  # type: ignore[no-untyped-call]
    elif X.shape[0] > 2 * _BLOCK and _is_pairwise(kernel):
        K = _BlockwiseKernelMatrix.apply(kernel, X, *parameters)  # type: ignore[no-untyped-call]
    else:
        K = dense_kernel(kernel, X, X)
    return K


def correlations(K: Tensor) -> Tensor:
    """Correlations of an ``n x n`` kernel matrix; zero where a variance is zero."""
    scale = K.diagonal().sqrt()
    return (K / (scale.unsqueeze(-1) * scale)).nan_to_num(0.0)


def dense_kernel(kernel: gpytorch.kernels.Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """The kernel between ``... x q x d`` and ``... x p x d`` inputs as a plain tensor, ``... x q x p``.

    Sums and products are those of dense matrices: GPyTorch's lazy sum with a linear kernel would factorise the other
    summands, in O(n³) and with another jitter. Covariances of tasks are looked up; GPyTorch multiplies sparse matrices.
    """
    x1, x2 = close_gaps(kernel, x1, x2)
    K: Tensor
    if not torch.is_grad_enabled() and _is_squared_exponential(kernel):
        K = _squared_exponential(kernel, x1, x2)
    elif type(kernel) in COMPOSITE:
        x1, x2 = _selected(kernel, x1, x2)
        join = sum if type(kernel) is gpytorch.kernels.AdditiveKernel else math.prod
        K = join(dense_kernel(part, x1, x2) for part in kernel.kernels)  # type: ignore[assignment]
    elif _is_index(kernel):
        first, second = (x[..., 0].long() for x in _selected(kernel, x1, x2))
        K = kernel._eval_covar_matrix()[first.unsqueeze(-1), second.unsqueeze(-2)]
    elif _scales_another(kernel):
        K = kernel.outputscale * dense_kernel(kernel.base_kernel, *_selected(kernel, x1, x2))
    else:
        # None for the same object, so that GPyTorch knows the matrix to be symmetric.
        K = kernel(x1, None if x1 is x2 else x2).to_dense()
    return K


def _is_index(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is a single covariance matrix of tasks, evaluated by GPyTorch's own method."""
    index = gpytorch.kernels.IndexKernel
    return isinstance(kernel, index) and type(kernel).forward is index.forward and kernel.raw_var.dim() == 1


def _selected(kernel: gpytorch.kernels.Kernel, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """The active columns of both inputs; the same object twice if the inputs are."""
    if kernel.active_dims is None:
        return x1, x2
    first = x1[..., kernel.active_dims]
    return first, first if x1 is x2 else x2[..., kernel.active_dims]


def kernel_rows(kernel: gpytorch.kernels.Kernel, X: Tensor) -> Callable[[int], Tensor]:
    """A function that computes a row of the kernel matrix of n points, without gradient, for use of a few rows.

    Args:
        kernel: a GPyTorch kernel.
        X: ``n x d`` inputs.

    Returns:
        A function from the number of a row to its ``n`` values. Cost O(nd) for each, and a sort if inputs have gaps.
    """
    if not _is_squared_exponential(kernel):

        def row_of_any(row: int) -> Tensor:
            with torch.no_grad():
                return dense_kernel(kernel, X[row : row + 1], X)[0]

        return row_of_any
    scale, columns = kernel.outputscale.detach(), _features(kernel, X).T.contiguous()  # d x n
    lengthscale = kernel.base_kernel.lengthscale.detach().reshape(-1, 1)

    def row_of_squared_exponential(row: int) -> Tensor:
        differences: Tensor = columns - columns[:, row : row + 1]
        return differences.div_(lengthscale).square_().sum(dim=0).mul_(-0.5).exp_().mul_(scale)

    return row_of_squared_exponential


def whitened_kernel(kernel: gpytorch.kernels.Kernel, L: Tensor, Z: Tensor, X: Tensor) -> Tensor:
    """Columns v_i = L⁻¹ k(Z, x_i) of b rows, ``m x b``, without gradient. Cost m²b.

    Args:
        kernel: a GPyTorch kernel.
        L: ``m x m`` Cholesky factor of the kernel between the inducing points.
        Z: ``m x d`` inducing points.
        X: ``b x d`` inputs of the rows.
    """
    with torch.no_grad():
        # Only values computed here may be overwritten: a user's kernel may keep the matrix that it returns.
        return whiten(L, dense_kernel(kernel, Z, X), overwrite=_is_squared_exponential(kernel))


def _scales_another(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is one output scale of a sum, of a product or of another output scale."""
    if type(kernel) is not gpytorch.kernels.ScaleKernel or kernel.base_kernel.active_dims is not None:
        return False
    bases = (*COMPOSITE, gpytorch.kernels.ScaleKernel)
    return kernel.raw_outputscale.dim() == 0 and type(kernel.base_kernel) in bases


def _is_squared_exponential(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is one scaled squared exponential, of all features or some. By exact type."""
    if type(kernel) is not gpytorch.kernels.ScaleKernel or type(kernel.base_kernel) is not gpytorch.kernels.RBFKernel:
        return False
    base = kernel.base_kernel
    # The dimensions replace ``batch_shape``, which takes a third of a millisecond.
    single = kernel.raw_outputscale.dim() == 0 and base.raw_lengthscale.dim() == 2
    return single and has_features_of_base(kernel)


def _features(kernel: gpytorch.kernels.ScaleKernel, x: Tensor) -> Tensor:
    """The active columns of ``... x n x d`` inputs for a scaled squared exponential."""
    return x if kernel.active_dims is None else x[..., kernel.active_dims]


def _squared_exponential(kernel: gpytorch.kernels.ScaleKernel, x1: Tensor, x2: Tensor) -> Tensor:
    """GPyTorch's kernel values, bit for bit, without gradient: its distances, and the rest in their memory.

    The sparse model evaluates it for all rows in every pass; GPyTorch itself takes 1.7 times as long.
    """
    x1, x2 = _features(kernel, x1), _features(kernel, x2)
    distances = _squared_distances(kernel, x1, x2, kernel.base_kernel.lengthscale)
    return distances.mul_(-0.5).exp_().mul_(kernel.outputscale)


def _squared_distances(kernel: gpytorch.kernels.ScaleKernel, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
    """Squared distances in units of the lengthscales, as GPyTorch computes them."""
    distances: Tensor = kernel.base_kernel.covar_dist(x1 / lengthscale, x2 / lengthscale, square_dist=True)
    return distances


def _is_pairwise(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether each entry is known to depend on its own pair of points only, and symmetrically.

    By exact type: a user's kernel may treat x1 == x2 as a special case, ``is_stationary`` or not.
    """
    if type(kernel) in COMPOSITE:
        return all(_is_pairwise(part) for part in kernel.kernels)
    if type(kernel) is gpytorch.kernels.ScaleKernel:
        return _is_pairwise(kernel.base_kernel)
    return type(kernel) in _PAIRWISE


class _BlockwiseKernelMatrix(torch.autograd.Function):
    """(X, parameters) ↦ K for a pairwise kernel; the gradient is computed in blocks of the lower triangle."""

    @staticmethod
    def forward(ctx: Any, kernel: gpytorch.kernels.Kernel, X: Tensor, *parameters: Tensor) -> Tensor:
        ctx.kernel = kernel
        ctx.save_for_backward(X, *parameters)
        return dense_kernel(kernel, X, X)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_K: Tensor) -> tuple[Tensor | None, ...]:
        X, *parameters = ctx.saved_tensors
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        for rows, columns, grad_block in _lower_blocks(grad_K):
            with torch.enable_grad():
                block = dense_kernel(ctx.kernel, X[rows], X[columns])
            gradients = torch.autograd.grad(block, parameters, grad_block, allow_unused=True, materialize_grads=True)
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient
        return None, None, *totals


class _SquaredExponentialMatrix(torch.autograd.Function):
    """(X, ℓ, s²) ↦ K; the formulas are in the module's docstring."""

    @staticmethod
    def forward(ctx: Any, kernel: gpytorch.kernels.Kernel, X: Tensor, lengthscale: Tensor, scale: Tensor) -> Tensor:
        ctx.kernel = kernel
        ctx.save_for_backward(X, lengthscale, scale)
        return _squared_exponential(kernel, X, X)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_K: Tensor) -> tuple[Tensor | None, ...]:
        X, lengthscale, scale = ctx.saved_tensors
        X = _features(ctx.kernel, X)
        X_scaled = X.double() / lengthscale  # differences of squares need all digits
        X_scaled = X_scaled - X_scaled.mean(dim=0)  # and cancel less for small squares
        shared = lengthscale.numel() == 1
        total, spread = (torch.zeros_like(value, dtype=torch.float64) for value in (scale, lengthscale))
        for rows, columns, grad_block in _lower_blocks(grad_K):
            distances = _squared_distances(ctx.kernel, X[rows], X[columns], lengthscale)
            W = grad_block.mul_((distances * -0.5).exp_()).double()
            total += W.sum()
            if shared:  # without differences of squares
                spread += torch.vdot(W.reshape(-1), distances.double().reshape(-1))
            else:
                left, right = X_scaled[rows], X_scaled[columns]
                squares = W.sum(dim=1) @ left.square() + W.sum(dim=0) @ right.square()
                spread += squares - 2.0 * (left * (W @ right)).sum(dim=0)
        return None, None, (spread * (scale / lengthscale)).to(lengthscale), total.to(scale)


def _lower_blocks(grad_K: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, columns and gradient of the blocks up to the diagonal, with their mirror images added."""
    n = grad_K.shape[-1]
    rows = math.ceil(n / math.ceil(n / _BLOCK))  # equal blocks
    for start in range(0, n, rows):
        end = min(start + rows, n)
        block = grad_K[start:end, :end].clone()
        block[:, :start] += grad_K[:start, start:end].mT
        yield slice(start, end), slice(0, end), block
