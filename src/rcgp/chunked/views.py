"""How rows are seen: a prior through inducing points, and blocks of rows with what a pass needs of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from rcgp.chunks import Chunk
from rcgp.core.linalg import cholesky
from rcgp.core.loo import LeaveOneOut
from rcgp.core.pseudo import PseudoData
from rcgp.core.sparse import SparsePosterior, block_rows, leave_one_out_sparse, moments, unseen_variance
from rcgp.models import RCGP
from rcgp.models.kernel_matrix import dense_kernel, whitened_kernel
from rcgp.models.local_noise import LocalNoise
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import Responsibilities, responsibilities

__all__ = ["Block", "Noise", "View"]


@dataclass(frozen=True)
class Noise:
    """The noise of good rows and outliers.

    Attributes:
        law: its law.
        variance: σ², a scalar.
    """

    law: NoiseLaw
    variance: Tensor


class Block(NamedTuple):
    """Some rows, seen through the inducing points.

    Attributes:
        X: ``b x d`` inputs.
        residual: ``b`` residuals e = y − m(x).
        precision: ``b`` sample weights, 1 for rows that do not count; ``None`` is 1 everywhere.
        used: ``b`` flags of the rows that count; ``None`` is all of them.
        V: ``m x b`` columns v_i = L⁻¹ k_u(x_i).
        unseen: ``b`` prior variance that the inducing points do not see.
        local: ``b`` local factors h on the noise variance.
    """

    X: Tensor
    residual: Tensor
    precision: Tensor | None
    used: Tensor | None
    V: Tensor
    unseen: Tensor
    local: Tensor

    def row_noise(self, variance: Tensor) -> Tensor:
        """σ² h/p of each row, ``b``."""
        noise = variance * self.local
        return noise if self.precision is None else noise / self.precision

    def leave_one_out(self, posterior: SparsePosterior, pseudo: PseudoData) -> LeaveOneOut:
        """Prediction of f at each row from all others; a row of no precision has no leverage. Cost m²b."""
        return leave_one_out_sparse(moments(posterior, self.V), pseudo, self.unseen)

    def responsibilities(self, predicted: LeaveOneOut, noise: Noise) -> Responsibilities:
        """The component of the law that each row comes from, given its prediction."""
        e, law = self.residual, noise.law
        return responsibilities(
            e, *predicted, self.row_noise(noise.variance), law.log_shares(e), e.new_tensor(law.width)
        )


@dataclass(frozen=True)
class View:
    """How rows are seen: a prior at chosen hyperparameters, through m inducing points.

    Attributes:
        prior_mean, kernel: copies that nobody else changes.
        Z: ``m x d`` inducing points.
        L: ``m x m`` Cholesky factor of the kernel between them.
        local_noise: factor on the noise variance at each input; ``None`` is 1.
    """

    prior_mean: gpytorch.means.Mean
    kernel: gpytorch.kernels.Kernel
    Z: Tensor
    L: Tensor
    local_noise: LocalNoise | None = None

    @classmethod
    def of(cls, model: RCGP, Z: Tensor) -> View:
        """The view of a model's prior and local noise through these points. Cost m³/3."""
        mean, kernel = (copy.deepcopy(module).requires_grad_(False) for module in (model.mean, model.kernel))
        with torch.no_grad():
            L = cholesky(dense_kernel(kernel, Z, Z)).contiguous()
        return cls(mean, kernel, Z, L, model.local_noise)

    def local(self, X: Tensor) -> Tensor:
        """h at ``q x d`` inputs: ``q``."""
        if self.local_noise is None:
            return X.new_ones(len(X))
        return self.local_noise(X)

    def blocks(self, chunk: Chunk) -> Iterator[Block]:
        """A chunk in blocks of bounded size. Cost m²b for each."""
        size = block_rows(self.Z.shape[0])
        with torch.no_grad():
            residual: Tensor = chunk.y - self.prior_mean(chunk.X)
            prior_variance: Tensor = self.kernel(chunk.X, diag=True)
        for start in range(0, chunk.X.shape[0], size):
            part = slice(start, start + size)
            X, precision, used = chunk.X[part], None, None
            if chunk.sample_weight is not None:
                used = chunk.sample_weight[part] > 0
                precision = torch.where(used, chunk.sample_weight[part], torch.ones_like(chunk.y[part]))
            V = whitened_kernel(self.kernel, self.L, self.Z, X)
            unseen = unseen_variance(V, prior_variance[part])
            yield Block(X, residual[part], precision, used, V, unseen, self.local(X))
