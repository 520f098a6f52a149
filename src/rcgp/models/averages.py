"""The robust conjugate GP of a function observed through averages: over sets of points, or over intervals.

Proposition 3.1 of the paper holds for any linear map of f in front of the pseudo-data: with y = A f(P) + noise, the
loss is quadratic in A f(P), and the posterior is that of an ordinary GP given (A, z, r). So each average has its own
weight, and a bad one is down-weighted like a bad row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rcgp.models.cells import arranged
from rcgp.models.defaults import (
    default_kernel,
    longest_lengthscale,
    robust_scales,
    robust_spread,
    typical_gap,
    varying_columns,
)
from rcgp.models.exact import RCGP
from rcgp.models.linear_map import FunctionalKernel, FunctionalMean, LinearMap
from rcgp.models.local_noise import LocalNoise
from rcgp.models.means import MeanLike, PolynomialMean, build_mean
from rcgp.models.posterior import PosteriorKernel, PosteriorNormal
from rcgp.models.validation import as_real_tensor, check_finite, check_sample_weight, check_test_inputs
from rcgp.weights import WeightFunction

__all__ = ["AverageRCGP"]

_CONSTANT = ("zero", "constant", "median")

# Σ_i a_ji, as a share of Σ_i |a_ji|, that counts as zero: a rounding error.
_ROUNDING = 1e-12


class AverageRCGP(RCGP):
    """Robust and conjugate Gaussian process regression of a function from averages, or other sums, of its values.

    Observation j is y_j = Σ_i a_ji f(x_i) + noise. Weights, noise law and leave-one-out are those of the observations;
    :func:`rcgp.fit_robust` flags bad ones; predictions are of f. Everything else is as for :class:`RCGP`.

    Args:
        coefficients: ``J x m`` coefficients a_ji. Rows add up to one for averages, but need not.
        points: ``m x d`` points x_i. Equal points become one.
        train_y: ``J`` observations; NaN for a missing one.
        kernel: any GPyTorch kernel with one output, of the points. Default: as for :class:`RCGP`.
        mean: prior mean of f: ``"zero"``; a constant b with y_j ≈ b Σ_i a_ji, ``"constant"`` by least squares,
            ``"median"`` as the median of y_j / Σ_i a_ji over nonzero sums; a callable; or a GPyTorch ``Mean``.
        weight: as for :class:`RCGP`.
        noise: initial value of the noise variance of the observations.
        sample_weight: ``J`` positive factors on the precision of each observation: the number of measurements in
            each average, if the noise is that of a measurement.

    Raises:
        ValueError: for data of other shapes, not finite, or without an observation.

    An evaluation costs O(J³), and O(m²) kernel values for the m points.

    Example:
        >>> x = torch.linspace(0, 6, 13, dtype=torch.float64)
        >>> y = (x[:-1].cos() - x[1:].cos()) / 0.5  # averages of the sine over half units
        >>> y[3] = 5.0
        >>> model = AverageRCGP.of_intervals(x[:-1], x[1:], y)
        >>> int(model.weights().argmin())
        3
        >>> model.posterior(x.unsqueeze(-1)).mean.shape  # of f itself
        torch.Size([13])
    """

    nodes: int = 8

    def __init__(
        self,
        coefficients: Tensor | ArrayLike | LinearMap,
        points: Tensor | ArrayLike | None,
        train_y: Tensor | ArrayLike,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "median",
        weight: WeightFunction | None = None,
        noise: float | None = None,
        sample_weight: Tensor | ArrayLike | None = None,
    ) -> None:
        sums = coefficients if isinstance(coefficients, LinearMap) else _linear_map(coefficients, points)
        y = _observations(train_y, sums.count)
        observed = ~y.isnan()
        dtype = torch.promote_types(sums.points.dtype, y.dtype)
        sums, y = sums.to(dtype), y.to(dtype)
        prior, rows = FunctionalMean(_build_mean(mean, sums, y).to(y), sums), sums.inputs()
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, rows)[observed]
        if kernel is None:
            with torch.no_grad():
                kernel = _default_kernel(sums, rows[observed], y[observed] - prior(rows[observed]))
        elif not isinstance(kernel, gpytorch.kernels.Kernel):
            raise TypeError(f"kernel must be a GPyTorch kernel, got {kernel!r}")
        super().__init__(
            rows[observed],
            y[observed],
            kernel=FunctionalKernel(kernel, sums),
            mean=prior,
            weight=weight,
            noise=noise,
            sample_weight=sample_weight,
        )
        #: Whether each given observation is not missing, ``J``.
        self.observed = observed

    @classmethod
    def of_intervals(
        cls,
        lower: Tensor | ArrayLike,
        upper: Tensor | ArrayLike,
        train_y: Tensor | ArrayLike,
        nodes: int = 8,
        **options: Any,
    ) -> AverageRCGP:
        """A model of averages over intervals of one input, by Gauss–Legendre quadrature.

        The rule is exact for polynomials of degree 2 · nodes − 1. With a squared exponential kernel and eight nodes,
        covariances are wrong by at most 1e-6 of the variance of f for intervals of up to four lengthscales, and 1e-3
        for up to six.

        Args:
            lower, upper: ``J`` ends of the intervals. For equal ends the observation is f at that point.
            train_y: ``J`` averages; NaN for a missing one.
            nodes: number of points in each interval.
            **options: as for the class.
        """
        model = cls(_of_intervals(lower, upper, nodes), None, train_y, **options)
        model.nodes = nodes
        return model

    def arranged(self, values: Tensor) -> Tensor:
        """One value for each observation that is not missing, arranged like ``train_y`` with NaN for missing ones."""
        return arranged(values, self.observed)

    def typical_gap(self) -> float:
        """Median distance of the centre of an observation from the nearest other one; see :meth:`RCGP.typical_gap`."""
        points = self.kernel.sums.points
        return typical_gap(self.train_X[:, 1:], points) / longest_lengthscale(self.kernel.base, points)

    def posterior(self, test_X: Tensor, observation_noise: bool = False) -> PosteriorNormal:
        """Posterior of f at ``... x q x d`` points; see :meth:`RCGP.posterior`.

        ``observation_noise`` adds the noise variance of an average.
        """
        x = check_test_inputs(test_X, self.train_X[:, 1:])
        return super().posterior(torch.cat([torch.full_like(x[..., :1], -1.0), x], dim=-1), observation_noise)

    def posterior_of_averages(
        self,
        coefficients: Tensor | ArrayLike | None = None,
        points: Tensor | ArrayLike | None = None,
        observation_noise: bool = False,
    ) -> PosteriorNormal:
        """Posterior of averages or other sums of f, A Σ Aᵀ with the posterior covariance Σ of f at the points.

        Args:
            coefficients: ``p x m`` coefficients. Default: those of all observations, missing ones included.
            points: ``m x d`` points.
            observation_noise: as for :meth:`RCGP.posterior`.

        Returns:
            A GPyTorch ``MultivariateNormal`` over ``p`` sums.
        """
        if coefficients is None:
            return super().posterior(self.kernel.sums.inputs(), observation_noise)
        return self._posterior_of(_linear_map(coefficients, points), observation_noise)

    def posterior_of_intervals(
        self, lower: Tensor | ArrayLike, upper: Tensor | ArrayLike, observation_noise: bool = False
    ) -> PosteriorNormal:
        """Posterior of the averages of f over ``p`` intervals; see :meth:`of_intervals`."""
        return self._posterior_of(_of_intervals(lower, upper, self.nodes), observation_noise)

    def _posterior_of(self, sums: LinearMap, observation_noise: bool) -> PosteriorNormal:
        """Posterior of new sums, numbered after those of the training data."""
        process = self._posterior_process()
        own: LinearMap = process.kernel.sums
        if sums.points.shape[1] != own.points.shape[1]:
            raise ValueError(f"points must have {own.points.shape[1]} columns, got {sums.points.shape[1]}")
        both = own.joined(sums)
        kernel = FunctionalKernel(process.kernel.base, both)
        process = replace(process, prior_mean=FunctionalMean(process.prior_mean.base, both), kernel=kernel)
        x = both.inputs()[own.count :].to(self.train_X)
        covariance = PosteriorKernel(process, x.dtype)(x)
        if observation_noise:
            noise = self.noise_law.variance * self.noise.detach().expand(len(x))
            if isinstance(self.local_noise, LocalNoise):
                noise = noise * replace(self.local_noise, kernel=FunctionalKernel(self.local_noise.kernel.base, both))(
                    x
                )
            covariance = covariance.add_diagonal(noise)
        return PosteriorNormal(process.mean(x), covariance)

    def kernel_matrix(self) -> Tensor:
        """Kernel matrix of the observations, A k(P, P) Aᵀ, ``n x n``, differentiable."""
        kernel: FunctionalKernel = self.kernel
        return kernel.matrix(self.train_X[:, 0].long())


def _linear_map(coefficients: Any, points: Any) -> LinearMap:
    """Sums over points, checked."""
    if points is None:
        raise ValueError("points must be given with coefficients: an m x d tensor")
    A, P = as_real_tensor(coefficients, "coefficients"), as_real_tensor(points, "points")
    if P.ndim != 2 or not P.numel():
        hint = "; for points of one input use points.unsqueeze(-1)" if P.ndim == 1 else ""
        raise ValueError(f"points must have shape m x d, at least 1 x 1, got {tuple(P.shape)}{hint}")
    if A.ndim != 2 or not A.numel() or A.shape[1] != len(P):
        raise ValueError(f"coefficients must have shape J x {len(P)}, one for each point, got {tuple(A.shape)}")
    check_finite(A, "coefficients")
    check_finite(P, "points")
    empty = (A == 0).all(dim=-1)
    if bool(empty.any()):
        raise ValueError(f"row {int(empty.nonzero()[0])} of coefficients is all zero: leave it out")
    dtype = torch.promote_types(A.dtype, P.dtype)
    row, point = A.nonzero().T
    return LinearMap(P.detach().to(dtype), row, point, A.detach().to(dtype)[row, point])


def _of_intervals(lower: Any, upper: Any, nodes: int) -> LinearMap:
    """Averages over intervals as sums over the nodes of Gauss and Legendre."""
    low, high = as_real_tensor(lower, "lower"), as_real_tensor(upper, "upper")
    if low.ndim != 1 or not len(low) or low.shape != high.shape:
        raise ValueError(f"lower and upper must be J ends each, got shapes {tuple(low.shape)} and {tuple(high.shape)}")
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"nodes must be a whole number, at least 1, got {nodes!r}")
    check_finite(low, "lower")
    check_finite(high, "upper")
    if bool((wrong := low > high).any()):
        bad = int(wrong.nonzero()[0])
        raise ValueError(f"lower must not be above upper: {float(low[bad]):g} and {float(high[bad]):g} in row {bad}")
    dtype = torch.promote_types(low.dtype, high.dtype)
    low, high = low.detach().to(dtype), high.detach().to(dtype)
    place, share = (torch.from_numpy(part).to(low) for part in np.polynomial.legendre.leggauss(nodes))
    points = (low + high).unsqueeze(-1) / 2 + (high - low).unsqueeze(-1) / 2 * place  # J x nodes
    row = torch.arange(len(low), device=low.device).repeat_interleave(nodes)
    return LinearMap(points.reshape(-1, 1), row, torch.arange(len(row), device=low.device), share.repeat(len(low)) / 2)


def _observations(train_y: Any, count: int) -> Tensor:
    y = as_real_tensor(train_y, "train_y").detach()
    if y.shape != (count,):
        raise ValueError(f"train_y must have one value for each of the {count} sums, got shape {tuple(y.shape)}")
    check_finite(y.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), "train_y")
    if bool(y.isnan().all()):
        raise ValueError(f"train_y has no observation: all {count} are missing")
    return y


def _build_mean(mean: MeanLike, sums: LinearMap, y: Tensor) -> gpytorch.means.Mean:
    """The prior mean of f of ``AverageRCGP(mean=...)``."""
    if not isinstance(mean, str):
        return build_mean(mean, sums.points, sums.points[:, 0])
    if mean not in _CONSTANT:
        raise ValueError(f"mean must be {', '.join(map(repr, _CONSTANT))}, a callable or a GPyTorch Mean, got {mean!r}")
    seen, totals = ~y.isnan(), sums.totals()
    sizes = LinearMap(sums.points, sums.row, sums.point, sums.coefficient.abs()).totals()
    seen &= totals.abs() > _ROUNDING * sizes
    ratio, share = y[seen] / totals[seen], totals[seen].square()
    value = y.new_zeros(1)
    if mean == "median" and len(ratio):
        value = ratio.quantile(0.5).reshape(1)
    elif mean == "constant" and len(ratio):
        value = (ratio * (share / share.sum())).sum().reshape(1)
    return PolynomialMean(0, sums.points, lambda features: value)


def _default_kernel(sums: LinearMap, rows: Tensor, residual: Tensor) -> gpytorch.kernels.Kernel:
    """The default kernel of ``RCGP`` at the scales of the points; f varies more than its averages."""
    scales, columns = robust_scales(sums.points), varying_columns(sums.points)
    unit = FunctionalKernel(default_kernel(scales, 1.0, columns), sums)
    share = unit(rows, diag=True).clamp_min(torch.finfo(rows.dtype).tiny).sqrt()
    return default_kernel(scales, robust_spread(residual / share), columns)
