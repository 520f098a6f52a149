"""The posterior process of a fitted model, and its dress as a GPyTorch distribution.

A prediction asks for a mean, sometimes for variances and seldom for covariances. The mean is computed at once, the
covariance matrix stays an unevaluated kernel: asking for variances computes variances, in chunks, and a q x q matrix
is built only for someone who asks for covariances or draws joint samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.core.exact import ExactPosterior

__all__ = ["PosteriorKernel", "PosteriorNormal", "PosteriorProcess"]

# Entries of the cross-covariance held at a time: 32 MB in float64.
_CHUNK_ENTRIES = 2**22


@dataclass(frozen=True)
class PosteriorProcess:
    """A GP conditioned on its training data, at the hyperparameters it had then. Differentiable in the test inputs.

    Attributes:
        prior_mean, kernel: copies of the prior's that nobody else changes.
        train_X: ``n x d`` training inputs.
        exact: the posterior given those.
    """

    prior_mean: gpytorch.means.Mean
    kernel: gpytorch.kernels.Kernel
    train_X: Tensor
    exact: ExactPosterior

    def mean(self, x: Tensor) -> Tensor:
        """Posterior mean of f at ``... x q x d`` inputs: ``... x q``. Cost O(nq)."""
        above_prior = torch.cat([self.exact.mean(self._cross(part)) for part in self._chunks(x)], dim=-1)
        mean: Tensor = self.prior_mean(x) + above_prior
        return mean

    def variance(self, x: Tensor) -> Tensor:
        """Posterior variance of f at ``... x q x d`` inputs: ``... x q``. Cost n²q, memory O(nq) for a chunk of q."""
        parts = [self.exact.variance(self._cross(part), self.kernel(part, diag=True)) for part in self._chunks(x)]
        return torch.cat(parts, dim=-1)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Posterior covariance of f between ``... x q x d`` and ``... x p x d`` inputs: ``... x q x p``."""
        K1 = self._cross(x1)
        K2 = K1 if x1 is x2 else self._cross(x2)
        return self.exact.covariance(K1, K2, self.kernel(x1, x2).to_dense())

    def _cross(self, x: Tensor) -> Tensor:
        K_star: Tensor = self.kernel(x, self.train_X).to_dense()
        return K_star

    def _chunks(self, x: Tensor) -> Iterator[Tensor]:
        rows = max(1, _CHUNK_ENTRIES // (self.train_X.shape[0] * x[..., 0, 0].numel()))
        yield from torch.split(x, rows, dim=-2)


class PosteriorKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """The covariance function of a posterior process, so that GPyTorch can evaluate it when needed."""

    def __init__(self, process: PosteriorProcess) -> None:
        super().__init__()
        self._process = process

    @property
    def dtype(self) -> torch.dtype:
        return self._process.train_X.dtype

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        if not diag:
            return self._process.covariance(x1, x2)
        if x1 is x2 or torch.equal(x1, x2):
            return self._process.variance(x1)
        return self._process.covariance(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]


class PosteriorNormal(gpytorch.distributions.MultivariateNormal):  # type: ignore[misc]
    """GPyTorch's multivariate normal, without its floor under the variances.

    GPyTorch raises every variance to at least 1e-6 in float32 or 1e-10 in float64, whatever the units of y.
    """

    @property
    def variance(self) -> Tensor:
        diagonal: Tensor = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        return diagonal.expand(self._batch_shape + self._event_shape)
