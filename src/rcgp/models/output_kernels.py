"""The kernel that a model of several outputs asks for, and where it begins: robust spreads and rank correlations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.models.cells import Cells
from rcgp.models.coregion import CellKernel, CoregionKernel, OutputKernel
from rcgp.models.defaults import robust_scales, robust_spread, squared_exponential, varying_columns

__all__ = ["build_output_kernel"]

# Rows in which two outputs are both observed, from which on their correlation is looked at before a fit.
_PAIRS = 5

# Lengthscales of each further term at the start, as a share of those of the one before: about a third.
_SHORTER = 0.3


def build_output_kernel(
    kernel: Any, cells: Cells, residual: Sequence[Tensor], terms: int | None, rank: int | None
) -> OutputKernel:
    """The kernel of (x, t) that ``MultiOutputRCGP(kernel=..., terms=..., rank=...)`` asks for."""
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
    """A kernel that is one of (x, t), or of several outputs, as one of (x, t); ``None`` for a kernel of one output."""
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
    """Rank correlations of the residuals of rows that have both cells, as those of a normal distribution: ``T x T``."""
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
    """Ranks of ``n`` values, the mean of theirs for equal ones."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(dim=0) - 0.5 * (counts - 1.0)
    return ranks[place]
