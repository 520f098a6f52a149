"""A deep Gaussian process of GPyTorch: layers that warp the inputs of the next, trained doubly stochastically.

Layer ℓ has the mean h ↦ W h, the skip connection: the identity, or the first principal directions where a layer is
narrower than its input. It begins with almost no variance around that mean, so that the model begins as a sparse GP of
one layer and cannot lose its inputs on the way.
"""

from __future__ import annotations

from typing import cast

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models.deep_gps import DeepGP
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

__all__ = ["DeepModel", "base_samples", "random_samples"]

# Limit on the width of a hidden layer: each of its outputs is a sparse GP.
_WIDEST = 8

# Output scale of a hidden layer to begin with, a standard deviation of 0.3 of its standardised inputs; and standard
# deviation of its inducing values, in units of the prior.
_HIDDEN_SCALE, _HIDDEN_STD = 0.1, 1e-2

# Lengthscales to begin with, in standard deviations of an input; for several inputs times the root of their number.
_HIDDEN_LENGTH, _LAST_LENGTH = 1.0, 0.3

# Least variance of a hidden value: the root of zero has no gradient.
_LEAST_VARIANCE = 1e-10


class _SkipMean(gpytorch.means.Mean):  # type: ignore[misc]
    """W h for each output of a layer: ``... x o x n`` from ``... x o x n x d``."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)  # o x d

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.unsqueeze(-1)).squeeze(-1)


class _Layer(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """A sparse variational GP for each output of a layer, with whitened inducing values.

    Args:
        inducing: ``m x d`` inducing inputs to begin with.
        skip: ``o x d`` matrix W of a hidden layer; ``None`` for the last one, of one output.
    """

    def __init__(self, inducing: Tensor, skip: Tensor | None) -> None:
        batch = torch.Size() if skip is None else torch.Size([len(skip)])
        points = inducing.expand(*batch, *inducing.shape).clone()
        values = gpytorch.variational.CholeskyVariationalDistribution(
            inducing.shape[0], batch_shape=batch, mean_init_std=0.0
        ).to(inducing)
        strategy = gpytorch.variational.VariationalStrategy(self, points, values, learn_inducing_locations=True)
        super().__init__(strategy)
        inputs = inducing.shape[-1]
        base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=inputs, batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=batch).to(inducing)
        base.lengthscale = (_LAST_LENGTH if skip is None else _HIDDEN_LENGTH) * inputs**0.5
        if skip is None:
            self.mean_module: gpytorch.means.Mean = gpytorch.means.ConstantMean().to(inducing)
            self.covar_module.outputscale = 1.0
        else:
            self.mean_module = _SkipMean(skip)
            self.covar_module.outputscale = _HIDDEN_SCALE
            values.chol_variational_covar.data.mul_(_HIDDEN_STD)
        strategy.variational_params_initialized.fill_(1)  # or the first call would set them to the prior

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at ``n x d`` inputs, each ``o x n`` or ``n``: those of calling the layer.

        With A = L⁻¹ K_zx, L Lᵀ = K_zz and whitened inducing values N(μ, S Sᵀ), the mean is m(x) + Aᵀ μ, the variance
        k_xx − Σ A² + Σ (Sᵀ A)², sums over inducing points.
        """
        strategy, kernel = self.variational_strategy, self.covar_module
        z, values = strategy.inducing_points, strategy._variational_distribution
        x = x.expand(*z.shape[:-2], *x.shape)
        jitter = strategy.jitter_val * torch.eye(z.shape[-2], dtype=z.dtype, device=z.device)
        K_zz, K_zx = kernel(z, torch.cat([z, x], dim=-2)).to_dense().tensor_split([z.shape[-2]], dim=-1)
        A = torch.linalg.solve_triangular(torch.linalg.cholesky(K_zz + jitter), K_zx, upper=False)  # o x m x n
        mean = self.mean_module(x) + (values.variational_mean.unsqueeze(-2) @ A).squeeze(-2)
        spread = values.chol_variational_covar.tril().mT @ A
        variance = kernel(x, diag=True) - A.square().sum(dim=-2) + spread.square().sum(dim=-2)
        return mean, variance.clamp_min(_LEAST_VARIANCE)


class DeepModel(DeepGP):  # type: ignore[misc]
    """A deep GP of ``layers`` layers with one output.

    Args:
        inducing: ``m x d`` inducing inputs of the first layer, standardised. The next layers begin with what the skip
            connections make of them.
        layers: number of layers; 1 is a sparse variational GP.
    """

    def __init__(self, inducing: Tensor, layers: int = 2) -> None:
        super().__init__()
        hidden = []
        for _ in range(layers - 1):
            skip = _principal_directions(inducing, min(inducing.shape[-1], _WIDEST))
            hidden.append(_Layer(inducing, skip))
            inducing = inducing @ skip.mT
        self.hidden = torch.nn.ModuleList(hidden)
        self.last = _Layer(inducing, None)

    def skipped(self, x: Tensor) -> Tensor:
        """What the skip connections alone make of ``n x d`` inputs: those of the last layer before any training."""
        for layer in self.hidden:
            x = x @ cast(_Layer, layer).mean_module.weight.mT
        return x

    def forward(self, x: Tensor, base: Tensor) -> MultivariateNormal:
        """Marginal distributions of f at each row given samples of the hidden layers, a batch of ``s x n``.

        Rows are independent given the layers below, so only marginals are sampled. Cost O(s n m²) for each output.

        Args:
            x: ``n x d`` inputs.
            base: ``(layers - 1) x s x n x width`` standard normal samples, or broadcasting with it; from
                :func:`base_samples` for predictions that do not depend on other rows.
        """
        samples, n = base.shape[-3], x.shape[-2]
        value = x
        for i, layer in enumerate(self.hidden):
            mean, variance = (
                part.mT for part in cast(_Layer, layer).moments(value)
            )  # (s n) x o, in the first layer n x o
            shape = (-1, n, mean.shape[-1])
            noise = base[i, ..., : mean.shape[-1]].expand(samples, n, -1)
            value = (mean.reshape(shape) + variance.sqrt().reshape(shape) * noise).reshape(samples * n, -1)
        mean, variance = (part.reshape(-1, n).expand(samples, n) for part in self.last.moments(value))
        return MultivariateNormal(mean, DiagLinearOperator(variance))


def random_samples(layers: int, samples: int, rows: int, like: Tensor) -> Tensor:
    """Standard normal samples for training, different for each row: ``(layers - 1) x s x n x width``."""
    return torch.randn(layers - 1, samples, rows, _WIDEST, dtype=like.dtype, device=like.device)


def base_samples(layers: int, samples: int, like: Tensor) -> Tensor:
    """Standard normal samples, the same for each row and spread evenly: ``(layers - 1) x s x 1 x width``."""
    width = _WIDEST * max(layers - 1, 1)
    engine = torch.quasirandom.SobolEngine(width, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    uniform = engine.draw(samples, dtype=torch.float64).clamp(1e-6, 1.0 - 1e-6)
    normal: Tensor = torch.special.ndtri(uniform).to(like)
    return normal.reshape(samples, -1, 1, _WIDEST).transpose(0, 1)


def _principal_directions(points: Tensor, count: int) -> Tensor:
    """``count x d`` principal directions of ``m x d`` points; the identity if there are d of them."""
    if count == points.shape[-1]:
        return torch.eye(count, dtype=points.dtype, device=points.device)
    directions: Tensor = torch.linalg.svd(points - points.mean(dim=0), full_matrices=True).Vh[:count]
    return directions
