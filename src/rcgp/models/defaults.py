"""Defaults that the data decide: the kernel, where its hyperparameters start, and how far the noise may fall.

Everything scales with the data, and every hyperparameter is fitted on a logarithmic scale, so that a fit does not
depend on the units of X or y.

GPyTorch's own constructors of constraints round bounds to single precision; :class:`Between` keeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

__all__ = [
    "NOISE_FLOOR",
    "NORMAL_MAD",
    "AttributeOf",
    "Between",
    "above",
    "add_weak_priors",
    "column_scales",
    "default_kernel",
    "in_units",
    "kernel_of_all_columns",
    "robust_scales",
    "robust_spread",
    "robust_spreads",
    "spread_of",
    "squared_exponential",
    "varying_columns",
]


def above(lower: float | Tensor) -> gpytorch.constraints.GreaterThan:
    """A constraint to values above a bound, a number or a tensor of the parameter's shape, by the exponential map."""
    constraint = gpytorch.constraints.GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    constraint.lower_bound = torch.as_tensor(lower, dtype=torch.float64)
    return constraint


class Between(gpytorch.constraints.Interval):  # type: ignore[misc]
    """A constraint to positive values between two bounds: the raw parameter is the logarithm.

    The bounds are the optimiser's to keep, as a box around the raw parameter: a value can lie on them, as in
    scikit-learn, where a sigmoid would only come near.

    Args:
        lower, upper: bounds, numbers or tensors of the parameter's shape; 0 < lower < upper.
    """

    def __init__(self, lower: float | Tensor, upper: float | Tensor) -> None:
        super().__init__(0.0, 1.0, transform=torch.exp, inv_transform=torch.log)
        self.lower_bound = torch.as_tensor(lower, dtype=torch.float64)
        self.upper_bound = torch.as_tensor(upper, dtype=torch.float64)

    def transform(self, tensor: Tensor) -> Tensor:
        return tensor.exp()

    def inverse_transform(self, transformed_tensor: Tensor) -> Tensor:
        return transformed_tensor.log()

    def __repr__(self) -> str:
        # GPyTorch's own fails for bounds of shape 1 x 1.
        low, high = (bound.reshape(-1).tolist() for bound in (self.lower_bound, self.upper_bound))
        return f"Between({', '.join(f'{value:.3g}' for value in (*low[:1], *high[:1]))})"

    def raw_bound(self, side: str) -> Tensor:
        """The ``"lower"`` or ``"upper"`` bound of the raw parameter."""
        bound: Tensor = getattr(self, f"{side}_bound")
        return bound.log()


#: Data without noise, or without any variation, would drive a fitted σ² to zero; it stops at this share of the squared
#: spread of the data, or of the starting value if that is smaller.
NOISE_FLOOR = 1e-12

# How many times wider the middle of a column is with its outermost values, where one of them must be a mistake.
_ABSURD = 1e3

# Median absolute deviation of a standard normal variable.
NORMAL_MAD = 0.6744897501960817

# Standard deviation of the logarithms of output scale and noise variance under the weak priors.
_LOG_SPREAD = 2.0


def robust_spreads(residual: Tensor, rows: Tensor | None = None) -> Tensor:
    """:func:`spread_of` residuals within limits whose squares, times anything reasonable, are still numbers."""
    limits = torch.finfo(residual.dtype)
    return spread_of(residual, rows).clamp(limits.tiny**0.4, limits.max**0.4)


def spread_of(residual: Tensor, rows: Tensor | None = None) -> Tensor:
    """Standard deviation of ``... x n`` residuals as their median size suggests, ``...``; differentiable.

    1 where the data have no spread at all.

    Args:
        residual: the residuals.
        rows: mask of those that count, broadcasting with them, at least one. Default: all.
    """
    size = residual.abs()
    if rows is None:
        median, mean = size.quantile(0.5, dim=-1), (size / size.shape[-1]).sum(dim=-1)
    else:
        median = torch.where(rows, size, torch.nan).nanquantile(0.5, dim=-1)
        mean = (torch.where(rows, size, 0.0) / rows.sum(dim=-1, keepdim=True)).sum(dim=-1)
    median = median / NORMAL_MAD
    return torch.where(median > 0.0, median, torch.where(mean > 0.0, mean, torch.ones_like(mean)))


def robust_spread(residual: Tensor) -> float:
    """:func:`robust_spreads` of ``n`` residuals, as a number."""
    return float(robust_spreads(residual.detach()))


def column_scales(X: Tensor) -> Tensor:
    """Standard deviation of each column of ``n x d`` inputs, 1 for a constant one: ``d``."""
    largest = X.abs().amax(dim=0)
    unit = torch.where(largest > 0, largest, torch.ones_like(largest))
    deviation = (X / unit).std(dim=0, correction=0) * unit  # whose squares cannot overflow
    return torch.where(deviation > 0, deviation, torch.ones_like(deviation))


def robust_scales(X: Tensor) -> Tensor:
    """Scale of each column of ``n x d`` inputs: ``d``.

    The width of the middle 90 % of its values as a multiple of a normal distribution's, so that a bad value does not
    set the scale; the standard deviation where that width is zero (a rare indicator), 1 for a constant column.
    """
    ends = X.new_tensor([0.05, 0.95])
    width, inner = _width(*torch.quantile(X, ends, dim=0)), _width(*_inner_quantiles(X, ends))
    # Of at most twenty values the quantiles lean on the outermost ones, of which one may be absurd.
    width = torch.where((inner > 0) & (width > _ABSURD * inner), inner, width)
    return torch.where(width > 0, width, column_scales(X))


def _inner_quantiles(X: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The values next to two quantiles, towards the middle."""
    low = torch.quantile(X, ends[0], dim=0, interpolation="higher")
    return low, torch.quantile(X, ends[1], dim=0, interpolation="lower")


def _width(low: Tensor, high: Tensor) -> Tensor:
    """Distance of two quantiles over a normal distribution's: divided first, since a difference may overflow."""
    return (high / 3.29 - low / 3.29).abs()


def varying_columns(X: Tensor) -> Tensor | None:
    """Numbers of the columns of ``n x d`` inputs that are not constant; ``None`` where all vary, or none does."""
    varies = (X[:1] != X).any(dim=0)
    return None if bool(varies.all()) or not bool(varies.any()) else varies.nonzero().squeeze(-1)


def default_kernel(scales: Tensor, spread: float, columns: Tensor | None = None) -> gpytorch.kernels.Kernel:
    """Squared exponential with one lengthscale for each dimension, started at the scales of the data.

    Args:
        scales: ``d`` scales of the inputs. Lengthscales start there, times √d.
        spread: robust standard deviation of the residuals, at whose square the output scale starts.
        columns: the columns to which the kernel is restricted, of which d is then the number. Default: all.
    """
    base = squared_exponential(scales, columns)
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=above(0.0)).to(scales)
    kernel.outputscale = scales.new_tensor(spread**2)  # a float would be rounded to float32 by GPyTorch
    return kernel


def squared_exponential(scales: Tensor, columns: Tensor | None = None) -> gpytorch.kernels.Kernel:
    """That kernel without an output scale."""
    scales = scales if columns is None else scales[columns]
    d = scales.shape[-1]
    base = gpytorch.kernels.RBFKernel(ard_num_dims=d, active_dims=columns, lengthscale_constraint=above(0.0)).to(scales)
    base.lengthscale = scales * math.sqrt(d)
    return base


def kernel_of_all_columns(model: gpytorch.Module) -> gpytorch.kernels.Kernel:
    """The default kernel for a model whose rows are a sample: a column that is constant there may vary elsewhere."""
    return default_kernel(robust_scales(model.train_X), robust_spread(model.residual()))


def in_units(kernel: gpytorch.kernels.Kernel, factor: float) -> gpytorch.kernels.Kernel:
    """The kernel in other units of y: times a number that is not fitted."""
    scaled = gpytorch.kernels.ScaleKernel(kernel, outputscale_constraint=above(0.0)).double()
    scaled.outputscale = torch.tensor(factor, dtype=torch.float64)
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def add_weak_priors(model: gpytorch.Module) -> None:
    """Weak priors on a model with the default kernel at its starting values, which are in the units of the data.

    With them a fit is not drawn to where everything is noise (endless lengthscales, no output scale). The lengthscales
    have BoTorch's dimension-scaled log-normal prior, of location √2 + ½ log d and scale √3 for inputs in [0, 1]ᵈ: a
    column of scale a counts as the interval of width a√12, the width of a uniform distribution with that standard
    deviation. Output scale and noise variance are log-normal with the mode at their starts, as densities of the value
    itself, which is what a fit maximises; at two standard deviations the factor is 50 either way.

    Args:
        model: an ``RCGP`` or ``MultiOutputRCGP`` as it was built, with ``kernel=None``.
    """
    several = hasattr(model.kernel, "output_variance")
    for base in model.kernel.kernels if several else [model.kernel.base_kernel]:
        location = math.sqrt(2.0) + 0.5 * math.log(12.0) + base.lengthscale.detach().log()
        wide = torch.full_like(location, math.sqrt(3.0))
        # Given a name instead of a getter, GPyTorch would keep a local function, which cannot be pickled.
        prior = gpytorch.priors.LogNormalPrior(location, wide)
        base.register_prior("lengthscale_prior", prior, AttributeOf("lengthscale"))
    _at_start(model.kernel, "output_variance" if several else "outputscale")
    _at_start(model, "noise")


def _at_start(module: gpytorch.Module, name: str) -> None:
    """A log-normal prior on an attribute, with its mode at the present value."""
    value = getattr(module, name).detach()
    spread = torch.full_like(value, _LOG_SPREAD)
    prior = gpytorch.priors.LogNormalPrior(value.log() + spread**2, spread)
    module.register_prior(f"{name}_prior", prior, AttributeOf(name))


@dataclass(frozen=True)
class AttributeOf:
    """What a prior sits on: the getter of an attribute, as GPyTorch wants it (with a signature) and picklable."""

    name: str

    def __call__(self, module: gpytorch.Module) -> Tensor:
        value: Tensor = getattr(module, self.name)
        return value
