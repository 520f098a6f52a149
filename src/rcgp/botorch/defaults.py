"""The prior that a BoTorch model has where none is given."""

from __future__ import annotations

import math

import gpytorch
import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior

from rcgp.models.defaults import above

__all__ = ["default_kernel"]

# Standard deviation of the logarithm of the output scale: a factor of a thousand costs less than three nats.
_PRIOR_WIDTH = 3.0


def default_kernel(dimension: int, batch_shape: torch.Size) -> gpytorch.kernels.ScaleKernel:
    """BoTorch's default kernel with its priors, times an output scale with a weak one.

    BoTorch standardises outcomes to variance one and needs no output scale. By median and median absolute deviation
    outcomes have the variance that they have, which in an optimisation, where most of them are near the best, is large.
    """
    base = get_covar_module_with_dim_scaled_prior(ard_num_dims=dimension, batch_shape=batch_shape)
    # Its density as one of the scale itself, which is what a fit maximises, is largest at one.
    prior = gpytorch.priors.LogNormalPrior(_PRIOR_WIDTH**2, _PRIOR_WIDTH)
    # On a logarithmic scale, on which it may have to go far, but never to zero, where the prior has no density.
    constraint = above(math.exp(-10 * _PRIOR_WIDTH))
    kernel = gpytorch.kernels.ScaleKernel(
        base, batch_shape=batch_shape, outputscale_prior=prior, outputscale_constraint=constraint
    )
    kernel.outputscale = torch.ones(batch_shape)
    return kernel
