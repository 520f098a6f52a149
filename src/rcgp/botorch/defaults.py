"""The prior that a BoTorch model has where none is given."""

from __future__ import annotations

import gpytorch
import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior

from rcgp.models.constraints import above

__all__ = ["default_kernel"]


def default_kernel(dimension: int, batch_shape: torch.Size) -> gpytorch.kernels.ScaleKernel:
    """BoTorch's default kernel with its priors, times an output scale with a weak one.

    BoTorch standardises outcomes to variance one and needs no output scale. By median and median absolute deviation
    outcomes have the variance that they have, which in an optimisation, where most of them are near the best, is large.
    """
    base = get_covar_module_with_dim_scaled_prior(ard_num_dims=dimension, batch_shape=batch_shape)
    prior = gpytorch.priors.LogNormalPrior(0.0, 5.0)
    # On a logarithmic scale, on which it may have to go far.
    kernel = gpytorch.kernels.ScaleKernel(
        base, batch_shape=batch_shape, outputscale_prior=prior, outputscale_constraint=above(0.0)
    )
    kernel.outputscale = torch.ones(batch_shape)
    return kernel
