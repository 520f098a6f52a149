"""The edge between GPyTorch's kernels and plain tensors: kernel matrices, with an economical gradient.

Differentiating an n x n kernel matrix with autograd keeps several more n x n matrices and passes over each of them. For
the usual kernels every entry depends on its own pair of points only, so the gradient can be taken block by block,
recomputing the kernel in each: nothing of size n x n is kept, the blocks stay in cache, and symmetry halves the work.

For the squared exponential k = s² exp(−½ Σ_j (x_j − x'_j)²/ℓ_j²), the kernel of most models, there is a formula. With Ḡ
the gradient of the matrix, W = Ḡ ∘ K, and inputs X̃ in units of the lengthscales,

    ∂/∂s² = Σ W / s²,      ∂/∂ℓ_j = (1/ℓ_j) Σ_ik W_ik (x̃_ij − x̃_kj)²
                                  = (1/ℓ_j) [ Σ_i (W1 + Wᵀ1)_i x̃_ij² − 2 Σ_i x̃_ij (W X̃)_ij ].

**Far inputs.** Distances are computed from squares, |a − b|² = |a|² + |b|² − 2 a·b. One input of 1e10 among ones takes
the digits from the distances of all others: a fit or a prediction of a table in which one cell is wrong would be wrong
in every row.

A kernel that vanishes with the distance sees nothing across a gap of a thousand lengthscales, however wide the gap is.
So gaps are closed to that width, coordinate by coordinate, and every value of the kernel stays what it is.
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
    "bears_far_inputs",
    "close_gaps",
    "correlations",
    "dense_kernel",
    "kernel_matrix",
    "kernel_rows",
    "whitened_kernel",
]

# Lengthscales across which values of these kernels are zero in float64: exp(−746) is.
_GAP = 1000.0

#: Kernels made of others.
COMPOSITE = (gpytorch.kernels.AdditiveKernel, gpytorch.kernels.ProductKernel)

_VANISHING = (
    gpytorch.kernels.MaternKernel,
    gpytorch.kernels.Matern52KernelGrad,
    gpytorch.kernels.RBFKernel,
    gpytorch.kernels.RBFKernelGrad,
)

# Largest number of rows of a block. Where autograd takes the gradient there is nothing to gain for one or two blocks.
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
    """Inputs between which the kernel is the same, and no farther apart than it takes.

    Args:
        kernel: a GPyTorch kernel. Nothing is done for those that do not vanish with the distance.
        x1, x2: ``... x q x d`` and ``... x p x d`` inputs, or the same object twice.

    Returns:
        The inputs, moved where there may be such gaps; else as they are, and so where they need a gradient. Cost
        O((q + p) d) to see whether there may be any, and a sort of each coordinate if so.
    """
    if x1.requires_grad or x2.requires_grad or not x1.numel() or not x2.numel():
        return x1, x2
    lengthscale = _lengthscale(kernel, x1.shape[-1])
    if lengthscale is None:
        return x1, x2
    parts = (x1,) if x1 is x2 else (x1, x2)
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    # Where all are within half of it from one of them there is no such gap.
    if all(float(((part - rows[0][0]) / lengthscale).abs().max()) <= 0.5 * _GAP for part in rows):
        return x1, x2
    closed = (_closed(torch.cat(rows), lengthscale) * lengthscale).nan_to_num(nan=0.0)  # 0 · ∞: a column not looked at
    split = torch.split(closed, [len(part) for part in rows])
    moved = [new.reshape(part.shape) for new, part in zip(split, parts, strict=True)]
    return moved[0], moved[-1]


def _closed(x: Tensor, lengthscale: Tensor) -> Tensor:
    """Coordinates in lengthscales, ``n x d``, each at most a thousand from the next; differences within that stay."""
    values, order = x.sort(dim=0)
    gaps = (values.diff(dim=0) / lengthscale).clamp_max(_GAP)  # divided last: differences of neighbours are exact
    places = torch.cat([torch.zeros_like(values[:1]), gaps.cumsum(dim=0)])
    return torch.empty_like(x).scatter_(0, order, places)


def bears_far_inputs(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether inputs far from all others leave alone what this kernel says of these, so that they do no harm."""
    kernel = _unscaled(kernel)
    if type(kernel) in COMPOSITE and kernel.active_dims is None:
        return all(bears_far_inputs(part) for part in kernel.kernels)
    return _vanishes(kernel)


def _lengthscale(kernel: gpytorch.kernels.Kernel, d: int) -> Tensor | None:
    """Lengthscales of one kernel that vanishes with the distance, ``d`` or 1; infinite for features that it ignores.

    By exact type. ``None`` for any other kernel.
    """
    kernel = _unscaled(kernel)
    if not _vanishes(kernel):
        return None
    lengthscale: Tensor = kernel.lengthscale.detach().reshape(-1)
    if kernel.active_dims is None:
        return lengthscale
    all_of_them = lengthscale.new_full((d,), torch.inf)
    all_of_them[kernel.active_dims] = lengthscale
    return all_of_them


def _vanishes(kernel: gpytorch.kernels.Kernel) -> bool:
    return type(kernel) in _VANISHING and kernel.raw_lengthscale.dim() == 2


def _unscaled(kernel: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
    """The kernel inside output scales, of which none chooses other features than its base."""
    while type(kernel) is gpytorch.kernels.ScaleKernel and chooses_as_base(kernel):
        kernel = kernel.base_kernel
    return kernel


def chooses_as_base(kernel: gpytorch.kernels.ScaleKernel) -> bool:
    """Whether an output scale looks at the features of its base, as GPyTorch makes it: all of them or the same ones."""
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
    """Correlations of an ``n x n`` kernel matrix; zero where a variance is."""
    scale = K.diagonal().sqrt()
    return (K / (scale.unsqueeze(-1) * scale)).nan_to_num(0.0)


def dense_kernel(kernel: gpytorch.kernels.Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """The kernel between ``... x q x d`` and ``... x p x d`` inputs as a plain tensor, ``... x q x p``.

    Sums and products are taken of dense matrices: GPyTorch's lazy sum with a linear kernel would factorise the other
    summands, in O(n³) and with a jitter of its own. Covariances of tasks are looked up; GPyTorch multiplies sparse
    matrices.
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
        # The same object twice, so that GPyTorch knows the matrix to be symmetric.
        K = kernel(x1, None if x1 is x2 else x2).to_dense()
    return K


def _is_index(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is one covariance matrix of tasks, evaluated as GPyTorch's is."""
    index = gpytorch.kernels.IndexKernel
    return isinstance(kernel, index) and type(kernel).forward is index.forward and kernel.raw_var.dim() == 1


def _selected(kernel: gpytorch.kernels.Kernel, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of inputs that a kernel looks at; the same object twice where they are."""
    if kernel.active_dims is None:
        return x1, x2
    first = x1[..., kernel.active_dims]
    return first, first if x1 is x2 else x2[..., kernel.active_dims]


def kernel_rows(kernel: gpytorch.kernels.Kernel, X: Tensor) -> Callable[[int], Tensor]:
    """A function that computes a row of the kernel matrix of n points, without gradient: for those that need only some.

    Args:
        kernel: a GPyTorch kernel.
        X: ``n x d`` inputs.

    Returns:
        From the number of a row to its ``n`` values. Cost O(nd) for each, of other kernels a sort where inputs are far.
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
        # Kernel values that were computed here are nobody else's; a user's kernel may keep what it returns.
        return whiten(L, dense_kernel(kernel, Z, X), overwrite=_is_squared_exponential(kernel))


def _scales_another(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is one output scale of a kernel that is made of others, or scaled itself."""
    if type(kernel) is not gpytorch.kernels.ScaleKernel or kernel.base_kernel.active_dims is not None:
        return False
    made_of_others = (*COMPOSITE, gpytorch.kernels.ScaleKernel)
    return kernel.raw_outputscale.dim() == 0 and type(kernel.base_kernel) in made_of_others


def _is_squared_exponential(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is one scaled squared exponential, of all features or some. By exact type, as below."""
    if type(kernel) is not gpytorch.kernels.ScaleKernel or type(kernel.base_kernel) is not gpytorch.kernels.RBFKernel:
        return False
    base = kernel.base_kernel
    # ``batch_shape`` says the same as the two dimensions, in a third of a millisecond.
    single = kernel.raw_outputscale.dim() == 0 and base.raw_lengthscale.dim() == 2
    return single and chooses_as_base(kernel)


def _features(kernel: gpytorch.kernels.ScaleKernel, x: Tensor) -> Tensor:
    """The columns of ``... x n x d`` inputs that a scaled squared exponential looks at."""
    return x if kernel.active_dims is None else x[..., kernel.active_dims]


def _squared_exponential(kernel: gpytorch.kernels.ScaleKernel, x1: Tensor, x2: Tensor) -> Tensor:
    """What GPyTorch computes, bit for bit, without gradient: its distances, and all that follows in their memory.

    The sparse model evaluates it for all rows in every pass, where GPyTorch's own way takes 1.7 times as long.
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

    By exact type: a user's kernel may well treat x1 == x2 as a special case, ``is_stationary`` or not.
    """
    if type(kernel) in COMPOSITE:
        return all(_is_pairwise(part) for part in kernel.kernels)
    if type(kernel) is gpytorch.kernels.ScaleKernel:
        return _is_pairwise(kernel.base_kernel)
    return type(kernel) in _PAIRWISE


class _BlockwiseKernelMatrix(torch.autograd.Function):
    """(X, parameters) ↦ K for a pairwise kernel; the gradient is taken in blocks of the lower triangle."""

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
        X_scaled = X.double() / lengthscale  # differences of squares need all digits,
        X_scaled = X_scaled - X_scaled.mean(dim=0)  # and are small for small squares
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
    """Rows, columns and gradient of the blocks up to the diagonal, which stand for their mirror images, too."""
    n = grad_K.shape[-1]
    rows = math.ceil(n / math.ceil(n / _BLOCK))  # equal blocks
    for start in range(0, n, rows):
        end = min(start + rows, n)
        block = grad_K[start:end, :end].clone()
        block[:, :start] += grad_K[:start, start:end].mT
        yield slice(start, end), slice(0, end), block
