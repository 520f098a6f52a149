"""Defaults that the data decide: the kernel, where its hyperparameters start, and how far the noise may fall.

Everything scales with the data, and every hyperparameter is fitted on a logarithmic scale, so that a fit does not
depend on the units of X or y.
"""

from __future__ import annotations

import math

import gpytorch
import torch
from torch import Tensor

__all__ = ["NOISE_FLOOR", "above", "column_scales", "default_kernel", "robust_spread"]

#: Data without noise, or without any variation, would drive a fitted σ² to zero; it stops at this share of the squared
#: spread of the data, or of the starting value if that is smaller.
NOISE_FLOOR = 1e-12


def robust_spread(residual: Tensor) -> float:
    """Standard deviation of the residuals as their median size suggests; 1 where the data have no spread at all.

    Kept within limits whose squares, times anything reasonable, are still numbers.
    """
    size = residual.abs()
    spread = float(size.quantile(0.5)) / 0.6745 or float((size / size.shape[-1]).sum()) or 1.0
    limits = torch.finfo(residual.dtype)
    return float(min(max(spread, limits.tiny**0.4), limits.max**0.4))


def column_scales(X: Tensor) -> Tensor:
    """Standard deviation of each column of ``n x d`` inputs, 1 for a constant one: ``d``."""
    largest = X.abs().amax(dim=0)
    unit = torch.where(largest > 0, largest, torch.ones_like(largest))
    deviation = (X / unit).std(dim=0, correction=0) * unit  # whose squares cannot overflow
    return torch.where(deviation > 0, deviation, torch.ones_like(deviation))


def above(lower: float) -> gpytorch.constraints.GreaterThan:
    """A constraint to values above a bound, by the exponential map."""
    constraint = gpytorch.constraints.GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    # GPyTorch's constructor would round the bound to single precision.
    constraint.lower_bound = torch.tensor(lower, dtype=torch.float64)
    return constraint


def default_kernel(X: Tensor, spread: float) -> gpytorch.kernels.Kernel:
    """Squared exponential with one lengthscale for each dimension, started at the scales of the data.

    Args:
        X: ``n x d`` inputs. Lengthscales start at their standard deviations times √d.
        spread: robust standard deviation of the residuals, at whose square the output scale starts.
    """
    d = X.shape[-1]
    base = gpytorch.kernels.RBFKernel(ard_num_dims=d, lengthscale_constraint=above(0.0))
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=above(0.0)).to(X)
    base.lengthscale = column_scales(X) * math.sqrt(d)
    kernel.outputscale = X.new_tensor(spread**2)  # a float would be rounded to float32 by GPyTorch
    return kernel
