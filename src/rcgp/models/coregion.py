"""Kernels of several outputs: the inputs are (x, t), and the last column t is the number of the output.

Intrinsic coregionalisation and its sums, the linear model of coregionalisation. With B_q = W_q W_qᵀ + diag(v_q),

    k((x, t), (x', t')) = Σ_q B_q[t, t'] k_q(x, x').

Any GPyTorch kernel with several outputs for each input, such as ``MultitaskKernel`` or ``RBFKernelGrad``, becomes
a kernel of (x, t) by :class:`CellKernel`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.models.cells import Cells
from rcgp.models.defaults import above, robust_scales, robust_spread, squared_exponential, varying_columns
from rcgp.models.kernel_matrix import close_gaps, dense_kernel, kernel_matrix

__all__ = ["CellKernel", "CoregionKernel", "OutputKernel", "build_output_kernel", "with_output"]

# Initial share of each output's variance in v_q.
_OWN = 0.1

# Initial v_q of an output without variation, in its units: far below any noise.
_NOTHING = 1e-30

# Fewest rows with both outputs for which their correlation is estimated before a fit.
_PAIRS = 5

# Ratio of the initial lengthscales of each term to those of the term before: about a third.
_SHORTER = 0.3


def with_output(x: Tensor, output: Tensor) -> Tensor:
    """Inputs (x, t): ``... x n x (d + 1)``, of ``... x n x d`` inputs and ``n`` numbers of outputs."""
    return torch.cat([x, output.to(x).expand(x.shape[:-1]).unsqueeze(-1)], dim=-1)


class OutputKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """A kernel of inputs (x, t), ``... x n x (d + 1)``."""

    def matrix(self, points: Tensor, row: Tensor, output: Tensor) -> Tensor:
        """The kernel matrix of N cells, differentiable in the parameters.

        Args:
            points: ``n x d`` points.
            row, output: ``N`` numbers of points and outputs.

        Returns:
            ``N x N`` matrix. Cost O(N²) kernel values.
        """
        x = with_output(points[row], output)
        return dense_kernel(self, x, x)


class CoregionKernel(OutputKernel):
    """The kernel of the module's docstring, of inputs ``... x n x (d + 1)``.

    Args:
        kernels: the kernels k_q of d columns, without output scales, which B_q has.
        indices: the kernels of T numbers that hold B_q.
    """

    kernels: Any
    indices: Any

    def __init__(
        self, kernels: Sequence[gpytorch.kernels.Kernel], indices: Sequence[gpytorch.kernels.IndexKernel]
    ) -> None:
        super().__init__()
        self.kernels, self.indices = torch.nn.ModuleList(kernels), torch.nn.ModuleList(indices)

    @classmethod
    def of(cls, kernels: Sequence[gpytorch.kernels.Kernel], outputs: int, rank: int) -> CoregionKernel:
        """The kernel of T outputs with W_q of ``rank`` columns, at most T."""
        with torch.random.fork_rng(devices=[]):  # GPyTorch draws initial values
            one = [gpytorch.kernels.IndexKernel(outputs, rank, var_constraint=above(0.0)) for _ in kernels]
        return cls(kernels, one)

    def start_at(self, spread: Tensor, correlation: Tensor, constant: Tensor) -> None:
        """Initialise the B_q so that they add up to a covariance of the outputs, as far as their rank allows.

        A tenth of each variance goes to v_q. An output without variation gets a zero row of W and a variance far below
        any noise: otherwise it would draw lengthscales to infinity.

        Args:
            spread: ``T`` standard deviations of the outputs.
            correlation: ``T x T`` correlations.
            constant: ``T``, whether an output has no variation.
        """
        values, vectors = torch.linalg.eigh(correlation)
        for index in self.indices:
            kept = slice(len(values) - index.covar_factor.shape[-1], None)  # largest eigenvalues
            W = vectors[:, kept] * ((1.0 - _OWN) * values[kept].clamp_min(0.0)).sqrt()
            W = torch.where(constant.unsqueeze(-1), 0.0, W)
            own = (1.0 - W.square().sum(dim=-1)).clamp_min(_OWN)
            own = torch.where(constant, _NOTHING, own)
            share = spread / math.sqrt(len(self.indices))
            with torch.no_grad():
                index.covar_factor.copy_(share.unsqueeze(-1) * W)
                index.var = (share.square() * own).to(index.raw_var)

    def covariances(self) -> list[Tensor]:
        """B_q of each term, ``T x T``; differentiable."""
        return [index._eval_covar_matrix() for index in self.indices]

    def factors(self) -> list[torch.nn.Parameter]:
        """W_q of each term, ``T x r``, in the units of the outputs."""
        return [index.covar_factor for index in self.indices]

    @property
    def parts(self) -> list[gpytorch.kernels.Kernel]:
        """The kernels k_q, followed by the index kernels that hold B_q."""
        return [*self.kernels, *self.indices]

    @property
    def output_variance(self) -> Tensor:
        """Σ_q B_q[t, t] of each output, ``T``."""
        return torch.stack([B.diagonal() for B in self.covariances()]).sum(dim=0)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        (p1, t1), (p2, t2) = _parted(x1), _parted(x2)
        p2 = p1 if x1 is x2 or torch.equal(x1, x2) else p2
        terms = zip(self.kernels, self.covariances(), strict=True)
        if diag:
            parts = [B[t1, t2] * kernel(p1, p2, diag=True) for kernel, B in terms]
        else:
            both = t1.unsqueeze(-1), t2.unsqueeze(-2)
            parts = [B[both] * dense_kernel(kernel, p1, p2) for kernel, B in terms]
        return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]

    def matrix(self, points: Tensor, row: Tensor, output: Tensor) -> Tensor:
        """The kernel matrix of N cells; each k_q is evaluated on the n points only.

        Cost O(n²) kernel values and O(N²) products.
        """
        terms = zip(self.kernels, self.covariances(), strict=True)
        first, *others = (_cells(kernel_matrix(kernel, points), row) * _cells(B, output) for kernel, B in terms)
        return sum(others, first)


class CellKernel(OutputKernel):
    """A GPyTorch kernel with T outputs for each input, as a kernel of inputs (x, t).

    Args:
        base: the kernel, such as ``MultitaskKernel``, ``LCMKernel`` or ``RBFKernelGrad``: for n and m inputs its
            matrix is ``nT x mT``, with the outputs of an input next to each other.
        order: ``T`` outputs of the kernel, by t. Default: t itself.
        unit: ``T`` units of the outputs, by which values of the kernel are multiplied. Default: one.
    """

    order: Tensor | None
    unit: Tensor | None

    def __init__(self, base: gpytorch.kernels.Kernel, order: Tensor | None = None, unit: Tensor | None = None) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("unit", unit, persistent=False)

    def outputs_of(self, points: Tensor) -> int:
        """T, for ``n x d`` points."""
        return int(self.base.num_outputs_per_input(points, points))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        if diag:
            return self.forward(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]
        (p1, row1, t1), (p2, row2, t2) = _different(x1), _different(x2)
        outputs = self.outputs_of(p1)
        K = _dense(self.base, *close_gaps(self.base, p1, p2))
        first, second = row1 * outputs + self._output(t1), row2 * outputs + self._output(t2)
        rows = K.gather(-2, first.unsqueeze(-1).expand(*K.shape[:-2], -1, K.shape[-1]))
        found = rows.gather(-1, second.unsqueeze(-2).expand(*rows.shape[:-1], -1))
        return found if self.unit is None else found * self.unit[t1].unsqueeze(-1) * self.unit[t2].unsqueeze(-2)

    def matrix(self, points: Tensor, row: Tensor, output: Tensor) -> Tensor:
        """The kernel matrix of N cells, as :meth:`CoregionKernel.matrix`."""
        K = _dense(self.base, *close_gaps(self.base, points, points))
        found = _cells(K, row * self.outputs_of(points) + self._output(output))
        return found if self.unit is None else found * self.unit[output].unsqueeze(-1) * self.unit[output]

    def _output(self, t: Tensor) -> Tensor:
        """The output of the kernel for each t."""
        return t if self.order is None else self.order[t]


def build_output_kernel(
    kernel: Any, cells: Cells, residual: Sequence[Tensor], terms: int | None, rank: int | None
) -> OutputKernel:
    """The kernel of (x, t) of ``MultiOutputRCGP(kernel=..., terms=..., rank=...)``."""
    given = list(kernel) if isinstance(kernel, list | tuple) else [] if kernel is None else [kernel]
    if not all(isinstance(part, gpytorch.kernels.Kernel) for part in given) or (kernel is not None and not given):
        raise TypeError(f"kernel must be a GPyTorch kernel or a list of them, got {kernel!r}")
    T, few = cells.outputs, cells.X[:1]
    ready = _ready(given[0], T, few) if len(given) == 1 else None
    if ready is not None:
        if terms is not None or rank is not None:
            raise ValueError("terms and rank are for kernels of one output; the given one has its own")
        return ready
    if any(part.to(few).num_outputs_per_input(few, few) != 1 for part in given):
        raise ValueError("each kernel of a list must have one output")
    if terms is not None and (not _is_whole(terms) or terms < 1 or (given and terms != len(given))):
        wanted = f"{len(given)}, the number of kernels" if given else "a whole number, at least 1"
        raise ValueError(f"terms must be {wanted}, got {terms!r}")
    if rank is None:
        rank = T if T > 1 else 0
    if not _is_whole(rank) or not 0 <= rank <= T:
        raise ValueError(f"rank must be a whole number from 0 to {T}, the number of outputs, got {rank!r}")
    if not given:
        columns, scales = varying_columns(cells.X), robust_scales(cells.X)
        given = [squared_exponential(scales * _SHORTER**q, columns) for q in range(terms or 1)]
    found: CoregionKernel = CoregionKernel.of(given, T, int(rank)).to(cells.X)
    spread = cells.X.new_tensor([robust_spread(part) for part in residual])
    constant = torch.tensor([not bool(part.any()) for part in residual], device=cells.X.device)
    found.start_at(spread, _correlation(cells, residual).to(cells.X), constant)
    return found


def _ready(kernel: gpytorch.kernels.Kernel, outputs: int, few: Tensor) -> OutputKernel | None:
    """A kernel of (x, t), or of several outputs, as a kernel of (x, t); ``None`` for a kernel of one output."""
    if isinstance(kernel, OutputKernel):
        return kernel
    if (several := kernel.to(few).num_outputs_per_input(few, few)) == 1:
        return None
    if several != outputs:
        raise ValueError(f"the kernel has {several} outputs, train_Y has {outputs}")
    return CellKernel(kernel)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _correlation(cells: Cells, residual: Sequence[Tensor]) -> Tensor:
    """Correlations ``T x T`` of the residuals, from rank correlations over rows with both cells, as for normal ones."""
    correlation = torch.eye(cells.outputs, dtype=torch.float64)
    if cells.observed.ndim == 1:
        return correlation
    table = torch.full(cells.observed.shape, torch.nan, dtype=torch.float64)
    for t, values in enumerate(residual):
        table[cells.observed[:, t].cpu(), t] = values.double().cpu()
    for s in range(cells.outputs):
        for t in range(s):
            both = table[:, [s, t]][~table[:, [s, t]].isnan().any(dim=-1)]
            ranks = torch.stack([_ranks(column) for column in both.T])
            if len(both) >= _PAIRS and bool((ranks.std(dim=-1) > 0).all()):
                spearman = float(torch.corrcoef(ranks)[0, 1])
                correlation[s, t] = correlation[t, s] = 2.0 * math.sin(math.pi * spearman / 6.0)
    return correlation


def _ranks(values: Tensor) -> Tensor:
    """Ranks of ``n`` values; equal values have the mean of their ranks."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(dim=0) - 0.5 * (counts - 1.0)
    return ranks[place]


def _dense(kernel: gpytorch.kernels.Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """The kernel of T outputs between ``... x q x d`` and ``... x p x d`` points: ``... x qT x pT``."""
    if not _is_squared_exponential_with_gradient(kernel):
        K: Tensor = kernel(x1, x2).to_dense()
        return K
    # GPyTorch's matrix, in a third of its time. With differences u = (x − x')/ℓ², P = (1, −u) and Q = (1, u),
    # K_ij = s² exp(−½ Σ (x − x')²/ℓ²) (P_i Q_j + δ_ij [i > 0]/ℓ_i²).
    lengthscale = kernel.base_kernel.lengthscale.reshape(-1)
    differences = x1.unsqueeze(-2) - x2.unsqueeze(-3)  # ... x q x p x d
    u = differences / lengthscale.square()
    E = kernel.outputscale * (-0.5 * (differences * u).sum(dim=-1)).exp()
    ones = torch.ones_like(u[..., :1])
    P, Q = torch.cat([ones, -u], dim=-1), torch.cat([ones, u], dim=-1)
    own = torch.cat([ones.new_zeros(1), lengthscale.square().reciprocal().expand(x1.shape[-1])]).diag()
    K = (P.mT.unsqueeze(-1) * Q.unsqueeze(-3) + own.unsqueeze(-2)) * E[..., None, :, None]  # ... x q x T x p x T
    return K.reshape(*K.shape[:-4], K.shape[-4] * K.shape[-3], -1)


def _is_squared_exponential_with_gradient(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether this is one scaled ``RBFKernelGrad`` of all inputs. By exact type."""
    if type(kernel) is not gpytorch.kernels.ScaleKernel:
        return False
    base = kernel.base_kernel
    single = kernel.raw_outputscale.dim() == 0 and kernel.active_dims is None and base.active_dims is None
    return single and type(base) is gpytorch.kernels.RBFKernelGrad and base.raw_lengthscale.dim() == 2


def _parted(x: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs ``... x n x (d + 1)`` as points ``... x n x d`` and numbers of outputs ``... x n``."""
    return x[..., :-1], x[..., -1].long()


def _different(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points, and the numbers of point and output of each input (x, t).

    Equal points are one, unless there are batch dimensions or a gradient is needed.
    """
    points, output = _parted(x)
    if x.ndim > 2 or x.requires_grad:
        return points, torch.arange(x.shape[-2], device=x.device).expand_as(output), output
    return *torch.unique(points, dim=0, return_inverse=True), output


def _cells(K: Tensor, number: Tensor) -> Tensor:
    """Rows and columns of a matrix by their numbers."""
    return K.index_select(0, number).index_select(1, number)
