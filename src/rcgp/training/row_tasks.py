"""What is done with a chunk of rows: weigh them, sum them up, say what the others think of them.

Each task is a small picklable object that is called with a chunk; its results add up. Nothing of the size of all rows
is kept between passes: the weights of a chunk are computed anew from the posteriors of the passes before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import gpytorch
import torch
from torch import Tensor

from rcgp.chunks import Chunk
from rcgp.core.linalg import cholesky
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.core.sparse import (
    SparsePosterior,
    Statistics,
    block_rows,
    leave_one_out_sparse,
    moments,
    statistics,
    unseen_variance,
)
from rcgp.models import RCGP
from rcgp.models.kernel_matrix import dense_kernel, whitened_kernel
from rcgp.weights import Plateau, WeightFunction

__all__ = ["Chain", "Diagnose", "Diagnosis", "Distances", "Given", "Rule", "SumUp", "View", "used_rows"]


class Block(NamedTuple):
    """Some rows as they are seen through the inducing points.

    Attributes:
        X: ``b x d`` inputs.
        residual: ``b`` residuals e = y − m(x).
        precision: ``b`` factors on the precision, 1 for rows of none; ``None`` is 1 everywhere.
        used: ``b`` flags of the rows that count; ``None`` is all of them.
        V: ``m x b`` columns v_i = L⁻¹ k_u(x_i).
        unseen: ``b`` prior variance that the inducing points do not see.
    """

    X: Tensor
    residual: Tensor
    precision: Tensor | None
    used: Tensor | None
    V: Tensor
    unseen: Tensor


@dataclass(frozen=True)
class View:
    """How rows are seen: a prior at chosen hyperparameters, through m inducing points.

    Attributes:
        prior_mean, kernel: copies that nobody else changes.
        Z: ``m x d`` inducing points.
        L: ``m x m`` Cholesky factor of the kernel between them.
        noise: noise variance σ², a scalar.
    """

    prior_mean: gpytorch.means.Mean
    kernel: gpytorch.kernels.Kernel
    Z: Tensor
    L: Tensor
    noise: Tensor

    @classmethod
    def of(cls, model: RCGP, Z: Tensor) -> View:
        """The view of a model's prior through these points. Cost m³/3."""
        mean, kernel = (copy.deepcopy(module).requires_grad_(False) for module in (model.mean, model.kernel))
        with torch.no_grad():
            L = cholesky(dense_kernel(kernel, Z, Z)).contiguous()
            return cls(mean, kernel, Z, L, model.noise.detach().clone())

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
            yield Block(X, residual[part], precision, used, V, unseen_variance(V, prior_variance[part]))

    def row_noise(self, block: Block) -> Tensor:
        """σ²/p of each row, ``b``, or a scalar."""
        return self.noise if block.precision is None else self.noise / block.precision

    def pseudo(self, block: Block, weight: WeightFunction) -> tuple[Tensor, PseudoData]:
        """The ``b`` weights of rows, and their pseudo-data; a row that does not count has no precision at all."""
        with torch.no_grad():
            w: Tensor = weight(block.residual, block.X, self.noise)
            slope = weight.slope(block.residual, block.X, self.noise)
        found = pseudo_data(block.residual, w, slope, self.noise, block.precision)
        if block.used is not None:
            s = torch.where(block.used, found.root_precision, torch.zeros_like(w))
            found = PseudoData(found.target, s)
        return w, found


class Rule(Protocol):
    """How rows are weighed."""

    def __call__(self, view: View, block: Block) -> tuple[Tensor, PseudoData]:
        """Weights and pseudo-data of a block."""


@dataclass(frozen=True)
class Given:
    """Rows are weighed by their distance from the prior mean, by a function that needs no other rows."""

    weight: WeightFunction

    def __call__(self, view: View, block: Block) -> tuple[Tensor, PseudoData]:
        return view.pseudo(block, self.weight)


@dataclass(frozen=True)
class Chain:
    """Rows are weighed by their distance from what the others predict: first from some rows, then from all.

    The first posterior is that of a sample of the rows. With the weights that are centred on it all rows make the
    second, which predicts each row without itself, and so on: the weights of a row are a function of x and y and of
    the posteriors, and can be computed wherever the row is. A row of the sample has a part in the first prediction of
    itself. That vouches for no outlier, whose weight there is next to nothing, and the next link leaves it out.

    Attributes:
        threshold: standard deviations beyond which a row is not trusted.
        posteriors: one for each link.
    """

    threshold: float
    posteriors: tuple[SparsePosterior, ...]

    def __call__(self, view: View, block: Block) -> tuple[Tensor, PseudoData]:
        # A row without precision has no leverage: leaving it out changes nothing.
        nothing = torch.zeros_like(block.residual)
        w, pseudo = nothing, PseudoData(nothing, nothing)
        for posterior in self.posteriors:
            expected = leave_one_out_sparse(moments(posterior, block.V), pseudo, block.unseen)
            std = (expected.variance + view.row_noise(block)).sqrt()
            w, pseudo = view.pseudo(block, Plateau(expected.mean, self.threshold * std))
        return w, pseudo

    def then(self, posterior: SparsePosterior) -> Chain:
        """The chain with one more link."""
        return Chain(self.threshold, (*self.posteriors, posterior))


@dataclass(frozen=True)
class SumUp:
    """The statistics of a chunk. Cost (2.3 + links) m²b."""

    view: View
    rule: Rule

    def __call__(self, chunk: Chunk) -> Statistics:
        m = self.view.Z.shape[0]
        zero = self.view.noise.new_zeros(())
        total = Statistics(zero.new_zeros(m, m), zero.new_zeros(m), zero, zero, zero, 0)
        for block in self.view.blocks(chunk):
            _, pseudo = self.rule(self.view, block)
            V, unseen = block.V, block.unseen
            if block.used is not None and not bool(block.used.all()):
                pseudo = PseudoData(pseudo.target[block.used], pseudo.root_precision[block.used])
                V, unseen = V[:, block.used], unseen[block.used]
            total = total + statistics(V, pseudo, unseen)
        return total


class Diagnosis(NamedTuple):
    """What the others say of each of ``n`` rows.

    Attributes:
        weights: the weight of each, in (0, 1].
        mean, std: leave-one-out prediction of each observation, noise included; for a row that does not count the
            prediction.
    """

    weights: Tensor
    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Diagnose:
    """Weights and leave-one-out predictions of the rows of a chunk. Cost (2 + links) m²b."""

    view: View
    rule: Rule
    posterior: SparsePosterior

    def __call__(self, chunk: Chunk) -> Diagnosis:
        parts = [self._of_block(block) for block in self.view.blocks(chunk)]
        if not parts:
            return Diagnosis(*(chunk.y.new_zeros(0) for _ in range(3)))
        weights, mean, std = (torch.cat(part) for part in zip(*parts, strict=True))
        with torch.no_grad():
            return Diagnosis(weights, mean + self.view.prior_mean(chunk.X), std)

    def _of_block(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        w, pseudo = self.rule(self.view, block)
        mean, variance = leave_one_out_sparse(moments(self.posterior, block.V), pseudo, block.unseen)
        return w.clamp_min(torch.finfo(w.dtype).tiny), mean, (variance + self.view.row_noise(block)).sqrt()


@dataclass(frozen=True)
class Distances:
    """|y − m(x)| of the rows of a chunk that count."""

    prior_mean: gpytorch.means.Mean

    def __call__(self, chunk: Chunk) -> Tensor:
        with torch.no_grad():
            size: Tensor = (chunk.y - self.prior_mean(chunk.X)).abs()
        used = used_rows(chunk)
        return size if used is None else size[used]


def used_rows(chunk: Chunk) -> Tensor | None:
    """Flags of the rows of a chunk that count; ``None`` for all."""
    return None if chunk.sample_weight is None else chunk.sample_weight > 0
