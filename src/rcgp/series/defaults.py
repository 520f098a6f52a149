"""Kernels of series that the data decide: a Matérn process; with a trend, seasons and weak priors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import ConstantKernel, Kernel, LinearKernel, MaternKernel, PeriodicKernel, ScaleKernel
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.defaults import AttributeOf, Between, above, robust_scales

__all__ = ["default_series_kernel", "seasonal_kernel", "weak_noise_prior"]

# Standard deviation of the logarithms of variances under the weak priors: at two of them the factor is 50 either way.
_LOG_SPREAD = 2.0


def default_series_kernel(times: Tensor, spread: float) -> Kernel:
    """A scaled Matérn kernel of ν = 3/2, started at the scales of the data.

    Args:
        times: ``n x 1`` times.
        spread: robust standard deviation of the residuals.
    """
    base = MaternKernel(nu=1.5, lengthscale_constraint=above(0.0))
    kernel = ScaleKernel(base, outputscale_constraint=above(0.0)).to(times)
    base.lengthscale = robust_scales(times)
    kernel.outputscale = times.new_tensor(spread**2)
    return kernel


def seasonal_kernel(x: Tensor, spread: float, periods: Sequence[float]) -> Kernel:
    """Level, trend, Matérn-3/2 process and slowly changing seasons, started at the data's scales, with weak priors.

    Args:
        x: ``n x 1`` times.
        spread: robust standard deviation of the residuals.
        periods: of the seasons.
    """
    times = torch.from_numpy(np.unique(x[:, 0].numpy()))
    span = max(float(times[-1] - times[0]), torch.finfo(torch.float64).tiny) if len(times) > 1 else 1.0
    gap = float(times.diff().median()) if len(times) > 1 else 1.0
    # The geometric middle between the shortest lengthscale that can be seen and the longest, these at two deviations.
    shortest, longest = math.log(gap), math.log(span)
    middle, wide = 0.5 * (shortest + longest), max(0.25 * (longest - shortest), 1.0)
    # Without it the trend would have to pass through the prior mean at time zero.
    level = ConstantKernel(constant_constraint=above(0.0)).double()
    level.constant = torch.tensor(spread**2, dtype=torch.float64)
    _prior(level, "constant", 2.0 * math.log(spread) + _LOG_SPREAD**2, _LOG_SPREAD)
    trend = LinearKernel(variance_constraint=above(0.0)).double()
    trend.variance = torch.tensor((spread / span) ** 2, dtype=torch.float64)
    _prior(trend, "variance", 2.0 * (math.log(spread) - longest), _LOG_SPREAD)
    # A process that is faster than the times are dense cannot be told from noise.
    bounds = Between(gap, 1e6 * span)
    parts: list[Kernel] = [
        level,
        trend,
        _scaled(_matern(1.5, max(0.3 * span, 2.0 * gap), middle, wide, bounds), spread**2),
    ]
    for period in periods:
        seasonal = PeriodicKernel(
            lengthscale_constraint=Between(0.1, 1e3), period_length_constraint=above(0.0)
        ).double()
        seasonal.period_length, seasonal.lengthscale = torch.tensor(period).double(), torch.tensor(1.0).double()
        seasonal.raw_period_length.requires_grad_(False)
        _prior(seasonal, "lengthscale", 0.0, 1.0)
        changing = _matern(
            0.5, max(span, 2.0 * period), math.log(max(span, 2.0 * period)), 1.5, Between(period, 1e6 * (span + period))
        )
        parts.append(_scaled(changing * seasonal, spread**2))
    kernel = parts[0]
    for part in parts[1:]:
        kernel = kernel + part
    return kernel


def _matern(nu: float, start: float, location: float, wide: float, constraint: Any = None) -> MaternKernel:
    kernel = MaternKernel(nu=nu, lengthscale_constraint=constraint or above(0.0)).double()
    kernel.lengthscale = torch.tensor(start, dtype=torch.float64)
    _prior(kernel, "lengthscale", location, wide)
    return kernel


def _scaled(base: Kernel, variance: float) -> ScaleKernel:
    kernel = ScaleKernel(base, outputscale_constraint=above(0.0)).double()
    kernel.outputscale = torch.tensor(variance, dtype=torch.float64)
    _prior(kernel, "outputscale", math.log(variance) + _LOG_SPREAD**2, _LOG_SPREAD)
    return kernel


def _prior(kernel: Kernel, name: str, location: float, wide: float) -> None:
    """A log-normal prior on a parameter of a kernel."""
    prior = LogNormalPrior(torch.tensor(location).double(), torch.tensor(wide).double())
    kernel.register_prior(f"{name}_prior", prior, AttributeOf(name))


def weak_noise_prior(model: RCGP) -> None:
    """A log-normal prior on the noise variance, with the mode at its start."""
    wide = torch.tensor(_LOG_SPREAD, dtype=torch.float64)
    prior = LogNormalPrior(model.noise.detach().log() + wide**2, wide)
    model.register_prior("noise_prior", prior, AttributeOf("noise"))
