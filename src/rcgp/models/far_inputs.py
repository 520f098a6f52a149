"""Inputs that are absurdly far from all others, without harm to these.

Distances are computed from squares, |a − b|² = |a|² + |b|² − 2 a·b. One input of 1e10 among ones takes the digits from
the distances of all others: a fit or a prediction of a table in which one cell is wrong would be wrong in every row.

A kernel that vanishes with the distance sees nothing across a gap of a thousand lengthscales, however wide the gap is.
So gaps are closed to that width, coordinate by coordinate, and every value of the kernel stays what it is.
"""

from __future__ import annotations

import gpytorch
import torch
from torch import Tensor

__all__ = ["COMPOSITE", "bears_far_inputs", "close_gaps"]

# Lengthscales across which values of these kernels are zero in float64: exp(−746) is.
_GAP = 1000.0

#: Kernels made of others.
COMPOSITE = (gpytorch.kernels.AdditiveKernel, gpytorch.kernels.ProductKernel)

_VANISHING = (gpytorch.kernels.MaternKernel, gpytorch.kernels.RBFKernel)


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
    lengthscale = _lengthscale(kernel)
    if lengthscale is None:
        return x1, x2
    parts = (x1,) if x1 is x2 else (x1, x2)
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    # Where all are within half of it from one of them there is no such gap.
    if all(float(((part - rows[0][0]) / lengthscale).abs().max()) <= 0.5 * _GAP for part in rows):
        return x1, x2
    closed = torch.split(_closed(torch.cat(rows), lengthscale) * lengthscale, [len(part) for part in rows])
    moved = [new.reshape(part.shape) for new, part in zip(closed, parts, strict=True)]
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
    return _lengthscale(kernel) is not None


def _lengthscale(kernel: gpytorch.kernels.Kernel) -> Tensor | None:
    """Lengthscales of one kernel of all features that vanishes with the distance, ``d`` or 1; by exact type."""
    kernel = _unscaled(kernel)
    if type(kernel) not in _VANISHING or kernel.raw_lengthscale.dim() != 2 or kernel.active_dims is not None:
        return None
    lengthscale: Tensor = kernel.lengthscale.detach().reshape(-1)
    return lengthscale


def _unscaled(kernel: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
    """The kernel inside output scales, of which none chooses features."""
    while type(kernel) is gpytorch.kernels.ScaleKernel and kernel.active_dims is None:
        kernel = kernel.base_kernel
    return kernel
