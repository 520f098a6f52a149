"""The posterior process of a fitted model, and GPyTorch distributions of its predictions.

Most predictions need the mean, some variances and few covariances. The mean is computed at once; the covariance matrix
is an unevaluated kernel. Variances are computed in chunks, and a q x q matrix only for covariances or joint samples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.core.exact import ExactPosterior
from rcgp.core.linalg import cholesky
from rcgp.core.sparse import SparsePosterior
from rcgp.models.kernel_matrix import dense_kernel

__all__ = ["MultiOutputNormal", "PosteriorKernel", "PosteriorNormal", "PosteriorProcess", "plain_attributes", "same"]

# Entries of the cross-covariance held at a time: 32 MB in float64.
_CHUNK_ENTRIES = 2**22

_NO_SHAPE = torch.Size()

# Attributes of every module: registries of its parameters, buffers, parts, priors and hooks.
_REGISTRIES = vars(gpytorch.Module()).keys() - {"training"}


@dataclass(frozen=True)
class PosteriorProcess:
    """A GP conditioned on its training data at fixed hyperparameters; immutable. Differentiable in the test inputs.

    It computes in float64, the type of its tensors, and returns the type of the inputs.

    Attributes:
        prior_mean, kernel: copies of those of the prior.
        support: ``... x n x d`` inputs that it is expressed in: training inputs or inducing points. In :meth:`joint`,
            batch dimensions of several processes are broadcast with those of the test inputs.
        given: the posterior given the training data.
    """

    prior_mean: gpytorch.means.Mean
    kernel: gpytorch.kernels.Kernel
    support: Tensor
    given: ExactPosterior | SparsePosterior

    def mean(self, x: Tensor) -> Tensor:
        """Posterior mean of f at ``... x q x d`` inputs: ``... x q``. Cost O(nq)."""
        return self._in_chunks(x, lambda part: self.prior_mean(part) + self.given.mean(self._cross(part)))

    def variance(self, x: Tensor) -> Tensor:
        """Posterior variance of f at ``... x q x d`` inputs: ``... x q``. Cost n²q, memory O(nq) for a chunk of q."""
        return self._in_chunks(x, lambda part: self.given.variance(self._cross(part), self.kernel(part, diag=True)))

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean, ``... x q``, and covariance, ``... x q x q``, of f at ``... x q x d`` inputs. Cost n²q + nq²."""
        points = self._aligned(x.to(self.support))
        K = self._cross(points)
        mean = self.prior_mean(points) + self.given.mean(K)
        return mean.to(x), self.given.covariance(K, K, dense_kernel(self.kernel, points, points)).to(x)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Posterior covariance of f between ``... x q x d`` and ``... x p x d`` inputs: ``... x q x p``."""
        first = x1.to(self.support)
        second = first if x1 is x2 else x2.to(self.support)
        K1 = self._cross(first)
        K2 = K1 if x1 is x2 else self._cross(second)
        return self.given.covariance(K1, K2, dense_kernel(self.kernel, first, second)).to(x1)

    def _cross(self, x: Tensor) -> Tensor:
        """The kernel between ``... x q x d`` points and the support, ``... x q x n``."""
        if self.support.ndim > 2:
            support = self.support.expand(*x.shape[:-2], *self.support.shape[-2:])
            return dense_kernel(self.kernel, x, support)
        # All points at once: GPyTorch would copy the support for each batch.
        return dense_kernel(self.kernel, x.reshape(-1, x.shape[-1]), self.support).reshape(*x.shape[:-1], -1)

    def _aligned(self, x: Tensor) -> Tensor:
        """Points with the batch dimensions of the support."""
        if self.support.ndim == 2:
            return x
        batch = torch.broadcast_shapes(x.shape[:-2], self.support.shape[:-2])  # type: ignore[no-untyped-call]
        return x.expand(*batch, *x.shape[-2:])

    def _in_chunks(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function from ``q x d`` points to ``q`` values, applied to ``... x q x d`` points in chunks."""
        points = x.reshape(-1, x.shape[-1]).to(self.support)
        rows = max(1, _CHUNK_ENTRIES // self.support.shape[0])
        values = torch.cat([function(part) for part in torch.split(points, rows)])
        return values.reshape(x.shape[:-1]).to(x)


class PosteriorKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """The covariance function of a posterior process, so that GPyTorch can evaluate it when needed."""

    def __init__(self, process: PosteriorProcess, dtype: torch.dtype) -> None:
        super().__init__()
        self._process, self._dtype = process, dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        if not diag:
            return self._process.covariance(x1, x2)
        if x1 is x2 or torch.equal(x1, x2):
            return self._process.variance(x1)
        return self._process.covariance(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]


class PosteriorNormal(gpytorch.distributions.MultivariateNormal):  # type: ignore[misc]
    """GPyTorch's multivariate normal without its absolute tolerances, which depend on the units of y.

    GPyTorch raises each variance to at least 1e-6 in float32 or 1e-10 in float64, and adds a jitter of 1e-8 and more to
    the covariance of samples and densities. Here variances are not changed, and the jitter is that of
    :mod:`rcgp.core.linalg`.
    """

    @property
    def _value_shape(self) -> torch.Size:
        """Shape of the mean: ``... x q``."""
        shape: torch.Size = self._batch_shape + self._event_shape
        return shape

    @property
    def variance(self) -> Tensor:
        diagonal: Tensor = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        return diagonal.expand(self._batch_shape + diagonal.shape[-1:]).reshape(self._value_shape)

    @cached_property
    def _unbroadcasted_scale_tril(self) -> Tensor:
        return cholesky(self.covariance_matrix)

    def rsample(self, sample_shape: torch.Size = _NO_SHAPE, base_samples: Tensor | None = None) -> Tensor:
        """Joint samples, ``sample_shape x ...``, from standard normal ``base_samples`` if given. Cost O(q³)."""
        shape = torch.Size(sample_shape) + self._value_shape
        if base_samples is None:
            base_samples = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        flat = base_samples.reshape(*sample_shape, *self._batch_shape, -1, 1)
        samples: Tensor = self.loc + (self._unbroadcasted_scale_tril @ flat).squeeze(-1)
        return samples.reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of joint values ``...``. Cost O(q³)."""
        flat = value.flatten(len(self._batch_shape) - len(self._value_shape))
        density: Tensor = torch.distributions.MultivariateNormal.log_prob(self, flat)  # type: ignore[no-untyped-call]
        return density


class MultiOutputNormal(PosteriorNormal, gpytorch.distributions.MultitaskMultivariateNormal):  # type: ignore[misc]
    """GPyTorch's normal distribution of T outputs at q points, changed as :class:`PosteriorNormal`."""

    @property
    def _value_shape(self) -> torch.Size:
        """Shape of the mean: ``... x q x T``."""
        shape: torch.Size = self._output_shape
        return shape


def plain_attributes(module: torch.nn.Module) -> list[str]:
    """Attributes of a module besides parameters, buffers and modules, as text, to compare its state.

    Private attributes of a user's kernel and tensors that are not registered are included.
    """
    return [f"{key}={_text(value)}" for key, value in vars(module).items() if key not in _REGISTRIES]


def _text(value: Any) -> str:
    """The content of a value as text; the identity of a value that cannot be pickled, such as a function."""
    if isinstance(value, bool | int | float | str | tuple | type(None)):
        return repr(value)
    try:
        return pickle.dumps(value).hex()
    except Exception:
        return str(id(value))


def same(old_modules: list[Any], modules: list[Any], old_tensors: list[Tensor], tensors: list[Tensor]) -> bool:
    """Whether modules and attributes are the same, in the same order, and tensors have the same values."""
    if len(old_modules) != len(modules) or len(old_tensors) != len(tensors):
        return False
    return all(old is new or old == new for old, new in zip(old_modules, modules, strict=True)) and all(
        old.dtype == new.dtype and old.device == new.device and torch.equal(old, new)
        for old, new in zip(old_tensors, tensors, strict=True)
    )
