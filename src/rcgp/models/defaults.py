"""Defaults that depend on the data: kernel, initial hyperparameters, weak priors and the lower bound of the noise.

All scale with the data, and every hyperparameter is fitted on a logarithmic scale, so that a fit does not depend on the
units of X or y.

GPyTorch's own constructors of constraints round bounds to single precision; :class:`Between` keeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

__all__ = [
    "NOISE_FLOOR",
    "NORMAL_MAD",
    "AttributeOf",
    "Between",
    "SetAttribute",
    "above",
    "add_weak_priors",
    "column_scales",
    "default_kernel",
    "in_units",
    "kernel_of_all_columns",
    "longest_lengthscale",
    "nearest_by_columns",
    "robust_scales",
    "robust_spread",
    "robust_spreads",
    "spread_of",
    "squared_exponential",
    "typical_gap",
    "varying_columns",
]


def above(lower: float | Tensor) -> gpytorch.constraints.GreaterThan:
    """A constraint to values above a bound, a number or a tensor of the parameter's shape; the raw value is a log."""
    constraint = gpytorch.constraints.GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    constraint.lower_bound = torch.as_tensor(lower, dtype=torch.float64)
    return constraint


class Between(gpytorch.constraints.Interval):  # type: ignore[misc]
    """A constraint to positive values between two bounds: the raw parameter is the logarithm.

    The optimiser keeps the bounds, as a box around the raw parameter. So a value can lie on them, as in scikit-learn; a
    sigmoid would only approach them.

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


#: Lower bound of σ², as a share of the squared spread of the data, or of the initial value if smaller: data without
#: noise, or without variation, would drive it to zero.
NOISE_FLOOR = 1e-12

# Ratio of the widths of a column with and without its outermost values, above which one of these is a mistake.
_ABSURD = 1e3

# Scaled inputs beyond which distances do not matter; their squares are ordinary numbers.
_FARTHEST = 1e100

# Inputs whose nearest neighbours are looked for: in many dimensions each search visits all inputs.
_SAMPLE = 1000

# Median absolute deviation of a standard normal variable.
NORMAL_MAD = 0.6744897501960817

# Standard deviation of the logarithms of output scale and noise variance under the weak priors.
_LOG_SPREAD = 2.0


def robust_spreads(residual: Tensor, rows: Tensor | None = None) -> Tensor:
    """:func:`spread_of` residuals, bounded so that its square and products with it are finite."""
    limits = torch.finfo(residual.dtype)
    return spread_of(residual, rows).clamp(limits.tiny**0.4, limits.max**0.4)


def spread_of(residual: Tensor, rows: Tensor | None = None) -> Tensor:
    """Robust standard deviation of ``... x n`` residuals by their median size, ``...``; differentiable.

    1 for data without spread.

    Args:
        residual: the residuals.
        rows: mask of the residuals to use, at least one, broadcasting with them. Default: all.
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
    deviation = (X / unit).std(dim=0, correction=0) * unit  # squares cannot overflow
    return torch.where(deviation > 0, deviation, torch.ones_like(deviation))


def robust_scales(X: Tensor) -> Tensor:
    """Scale of each column of ``n x d`` inputs: ``d``.

    The width of the middle 90 % of its values as a multiple of a normal distribution's, so that a bad value does not
    set the scale; the standard deviation if that width is zero (a rare indicator), 1 for a constant column.
    """
    ends = X.new_tensor([0.05, 0.95])
    width, inner = _width(*_quantiles(X, ends)), _width(*_inner_quantiles(X, ends))
    # For at most twenty values the quantiles depend on the outermost ones, and one may be absurd.
    width = torch.where((inner > 0) & (width > _ABSURD * inner), inner, width)
    return torch.where(width > 0, width, column_scales(X))


def _quantiles(X: Tensor, shares: Tensor, interpolation: str = "linear") -> Tensor:
    """Quantiles of each column, ``... x d``; one column at a time, since torch takes 2²⁴ numbers at most."""
    found = [torch.quantile(column, shares, interpolation=interpolation) for column in X.T]
    return torch.stack(found, dim=-1)


def _inner_quantiles(X: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The values next to both quantiles, towards the middle."""
    return _quantiles(X, ends[0], "higher"), _quantiles(X, ends[1], "lower")


def _width(low: Tensor, high: Tensor) -> Tensor:
    """Distance of two quantiles in units of a normal distribution's; divided first, since a difference may overflow."""
    return (high / 3.29 - low / 3.29).abs()


def varying_columns(X: Tensor) -> Tensor | None:
    """Numbers of the columns of ``n x d`` inputs that are not constant; ``None`` if all or none vary."""
    varies = (X[:1] != X).any(dim=0)
    return None if bool(varies.all()) or not bool(varies.any()) else varies.nonzero().squeeze(-1)


def typical_gap(X: Tensor, points: Tensor | None = None) -> float:
    """Median distance of one of ``n x d`` inputs from the nearest other one, in units of the default lengthscales.

    1 where there is only one; inputs closer than 1e-8 of these units count as one. Cost O(n log n) in few dimensions
    and O(nd) in many, from a thousand of the inputs where there are more.

    Args:
        X: the inputs.
        points: ``m x d`` inputs that the default lengthscales are those of. Default: X.
    """
    points = X if points is None else points
    columns = varying_columns(points)
    if columns is not None:
        X, points = X[:, columns], points[:, columns]
    X, scales = X.double(), robust_scales(points.double())
    scaled = (X / (scales * math.sqrt(X.shape[-1]))).clamp(-_FARTHEST, _FARTHEST)
    distinct = np.unique(scaled.cpu().numpy().round(8), axis=0)
    if len(distinct) < 2:
        return 1.0
    some = distinct[:: math.ceil(len(distinct) / _SAMPLE)]
    distances, _ = cKDTree(distinct).query(some, k=2)
    return float(np.median(np.asarray(distances)[:, 1]))


def nearest_by_columns(X: Tensor) -> Tensor:
    """The row of ``n x d`` inputs that is nearest to each in units of the columns' scales, not itself: ``n``."""
    scaled = (X.double() / robust_scales(X.double())).clamp(-_FARTHEST, _FARTHEST).cpu().numpy()
    found = torch.as_tensor(cKDTree(scaled).query(scaled, k=2)[1], device=X.device)
    own = torch.arange(len(X), device=X.device)  # of equal rows the first may be another one
    return torch.where(found[:, 0] == own, found[:, 1], found[:, 0])


def longest_lengthscale(kernel: gpytorch.kernels.Kernel, X: Tensor) -> float:
    """The largest lengthscale of a kernel for ``n x d`` inputs, in units of the default ones; at least 1."""
    units, longest = robust_scales(X) * math.sqrt(X.shape[-1]), 1.0
    for part in kernel.modules():
        if getattr(part, "raw_lengthscale", None) is not None:
            own, columns = part.lengthscale.detach().to(units), part.active_dims
            each = units if columns is None or int(columns.max()) >= len(units) else units[columns]
            each = each if own.shape[-1] in (1, len(each)) else each.min()  # an outer kernel selects the columns
            longest = max(longest, float((own / each).max()))
    return longest


def default_kernel(scales: Tensor, spread: float, columns: Tensor | None = None) -> gpytorch.kernels.Kernel:
    """Scaled squared exponential with a lengthscale for each dimension, initialised at the scales of the data.

    Args:
        scales: ``d`` scales of the inputs; times √d they are the initial lengthscales.
        spread: robust standard deviation of the residuals; its square is the initial output scale.
        columns: active columns of the kernel. Default: all.
    """
    base = squared_exponential(scales, columns)
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=above(0.0)).to(scales)
    kernel.outputscale = scales.new_tensor(spread**2)  # a float would be rounded to float32 by GPyTorch
    return kernel


def squared_exponential(scales: Tensor, columns: Tensor | None = None) -> gpytorch.kernels.Kernel:
    """The kernel of :func:`default_kernel` without its output scale."""
    scales = scales if columns is None else scales[columns]
    d = scales.shape[-1]
    base = gpytorch.kernels.RBFKernel(ard_num_dims=d, active_dims=columns, lengthscale_constraint=above(0.0)).to(scales)
    base.lengthscale = scales * math.sqrt(d)
    return base


def kernel_of_all_columns(model: gpytorch.Module) -> gpytorch.kernels.Kernel:
    """The default kernel of a model of a sample of rows: a column that is constant in it may vary in other rows."""
    return default_kernel(robust_scales(model.train_X), robust_spread(model.residual()))


def in_units(kernel: gpytorch.kernels.Kernel, factor: float) -> gpytorch.kernels.Kernel:
    """The kernel in other units of y: multiplied by a fixed factor."""
    scaled = gpytorch.kernels.ScaleKernel(kernel, outputscale_constraint=above(0.0)).double()
    scaled.outputscale = torch.tensor(factor, dtype=torch.float64)
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def add_weak_priors(model: gpytorch.Module) -> None:
    """Register weak priors on a model with the default kernel at its initial values, in the units of the data.

    They keep a fit from optima in which everything is noise (infinite lengthscales, no output scale). The lengthscales
    have BoTorch's dimension-scaled log-normal prior, of location √2 + ½ log d and scale √3 for inputs in [0, 1]ᵈ: a
    column of scale a counts as the interval of width a√12, the width of a uniform distribution with that standard
    deviation. Output scale and noise variance are log-normal with the mode at their initial values, as densities of the
    value itself, which a fit maximises; two standard deviations are a factor of 50 either way.

    Args:
        model: an ``RCGP``, of one output or several, gradients or averages, built with ``kernel=None``, not fitted.
    """
    kernel = getattr(model.kernel, "base", model.kernel)  # of gradients and averages, that of f
    several = hasattr(kernel, "output_variance")
    for base in kernel.kernels if several else [kernel.base_kernel]:
        location = math.sqrt(2.0) + 0.5 * math.log(12.0) + base.lengthscale.detach().log()
        wide = torch.full_like(location, math.sqrt(3.0))
        # For a name instead of a getter GPyTorch would keep a local function, which cannot be pickled.
        prior = gpytorch.priors.LogNormalPrior(location, wide)
        base.register_prior("lengthscale_prior", prior, AttributeOf("lengthscale"))
    _at_start(kernel, "output_variance" if several else "outputscale")
    _at_start(model, "noise")


def _at_start(module: gpytorch.Module, name: str) -> None:
    """Register a log-normal prior on an attribute, with its mode at the present value."""
    value = getattr(module, name).detach()
    spread = torch.full_like(value, _LOG_SPREAD)
    prior = gpytorch.priors.LogNormalPrior(value.log() + spread**2, spread)
    module.register_prior(f"{name}_prior", prior, AttributeOf(name))


@dataclass(frozen=True)
class AttributeOf:
    """Getter of the attribute of a prior: picklable, and with the signature that GPyTorch expects."""

    name: str

    def __call__(self, module: gpytorch.Module) -> Tensor:
        value: Tensor = getattr(module, self.name)
        return value


@dataclass(frozen=True)
class SetAttribute:
    """Sets an attribute to a sample of its prior, as GPyTorch's constructors do; picklable."""

    name: str

    def __call__(self, module: gpytorch.Module, value: Tensor) -> None:
        if self.name in module._parameters:
            module.initialize(**{self.name: value})
        else:
            setattr(module, self.name, value)
