"""Tasks of a pass over rows: weigh the rows of each chunk, sum up their statistics, diagnose them.

A task is a small picklable object that is called with a chunk; its results add up. Nothing as large as the table is
kept between passes: the weights of a chunk are recomputed from the posteriors of earlier passes.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import gpytorch
import torch
from torch import Tensor

from rcgp.chunks import Chunk
from rcgp.core.exact import LeaveOneOut
from rcgp.core.linalg import cholesky
from rcgp.core.noise_law import PRIOR_COUNTS
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
from rcgp.models.local_noise import LocalFactor
from rcgp.weights import NoiseLaw, WeightFunction
from rcgp.weights.noise_law import FLAGGED, Responsibilities, by_component, responsibilities

__all__ = [
    "Block",
    "ByLaw",
    "ByWeight",
    "Diagnose",
    "Diagnosis",
    "ExpectationStep",
    "Noise",
    "Rule",
    "SparsePrior",
    "SumUp",
    "Sums",
]


@dataclass(frozen=True)
class Noise:
    """The noise of inliers and outliers: its law, and the noise variance σ², a scalar."""

    law: NoiseLaw
    variance: Tensor


class Block(NamedTuple):
    """Some rows, whitened by the inducing points.

    Attributes:
        X: ``b x d`` inputs.
        residual: ``b`` residuals e = y − m(x).
        precision: ``b`` sample weights, 1 for rows of weight zero; ``None`` is 1 everywhere.
        used: ``b`` flags of the rows of positive weight; ``None`` is all of them.
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

    def pseudo(self, weight: Tensor, slope: Tensor, variance: Tensor) -> PseudoData:
        """Pseudo-data of weighted rows; a row of weight zero has no precision."""
        row_noise = variance if self.precision is None else variance / self.precision
        found = pseudo_data(self.residual, weight, slope, row_noise)
        if self.used is None:
            return found
        return PseudoData(found.target, torch.where(self.used, found.root_precision, torch.zeros_like(weight)))

    def leave_one_out(self, posterior: SparsePosterior, pseudo: PseudoData) -> LeaveOneOut:
        """Prediction of f at each row from all others; a row of no precision has no leverage. Cost m²b."""
        return leave_one_out_sparse(moments(posterior, self.V), pseudo, self.unseen)

    def responsibilities(self, predicted: LeaveOneOut, noise: Noise) -> Responsibilities:
        """The component of the law that each row comes from, given its prediction."""
        e, law = self.residual, noise.law
        log_shares, width = law.log_shares(e).unsqueeze(0), e.new_tensor([law.width])
        return responsibilities(e, *predicted, self.row_noise(noise.variance), log_shares, width)


@dataclass(frozen=True)
class SparsePrior:
    """A prior with fixed hyperparameters, seen through m inducing points.

    Attributes:
        prior_mean, kernel: copies of a model's.
        Z: ``m x d`` inducing points.
        L: ``m x m`` Cholesky factor of the kernel between them.
        local_noise: factor on the noise variance at each input; ``None`` is 1.
    """

    prior_mean: gpytorch.means.Mean
    kernel: gpytorch.kernels.Kernel
    Z: Tensor
    L: Tensor
    local_noise: LocalFactor | None = None

    @classmethod
    def of(cls, model: RCGP, Z: Tensor) -> SparsePrior:
        """A model's prior and local noise through these points. Cost m³/3."""
        mean, kernel = (copy.deepcopy(module).requires_grad_(False) for module in (model.mean, model.kernel))
        with torch.no_grad():
            L = cholesky(dense_kernel(kernel, Z, Z)).contiguous()
        return cls(mean, kernel, Z, L, model.local_noise)

    def local(self, X: Tensor) -> Tensor:
        """h at ``q x d`` inputs: ``q``."""
        return X.new_ones(len(X)) if self.local_noise is None else self.local_noise(X)

    def blocks(self, chunk: Chunk) -> Iterator[Block]:
        """A chunk in blocks of bounded size. Cost m²b for each."""
        size = block_rows(self.Z.shape[0])
        with torch.no_grad():
            # A missing observation has weight 0.
            residual: Tensor = (chunk.y - self.prior_mean(chunk.X)).nan_to_num(nan=0.0)
            prior_variance: Tensor = self.kernel(chunk.X, diag=True)
        for start in range(0, chunk.X.shape[0], size):
            part = slice(start, start + size)
            X, precision, used = chunk.X[part], None, None
            if chunk.sample_weight is not None:
                used = chunk.sample_weight[part] > 0
                precision = torch.where(used, chunk.sample_weight[part], 1.0)
            V = whitened_kernel(self.kernel, self.L, self.Z, X)
            unseen = unseen_variance(V, prior_variance[part])
            yield Block(X, residual[part], precision, used, V, unseen, self.local(X))


class Weighed(NamedTuple):
    """A block of rows, weighed by a rule.

    Attributes:
        weight, slope: ``b`` weights w̃ and slopes ∂_y log w̃².
        pseudo: their pseudo-data; a row of weight zero has no precision.
        counts, gain, flagged: sums over the rows, as in :class:`Sums`.
    """

    weight: Tensor
    slope: Tensor
    pseudo: PseudoData
    counts: Tensor
    gain: Tensor
    flagged: Tensor


class Rule(Protocol):
    """How rows are weighed."""

    def __call__(self, block: Block) -> Weighed:
        """Weights and pseudo-data of a block."""


@dataclass(frozen=True)
class ByWeight:
    """Weigh rows by a given weight function, with the noise variance σ²."""

    weight: WeightFunction
    variance: Tensor

    def __call__(self, block: Block) -> Weighed:
        with torch.no_grad():
            w: Tensor = self.weight(block.residual, block.X, self.variance)
            slope = self.weight.slope(block.residual, block.X, self.variance)
        zero = w.new_zeros(())
        return Weighed(w, slope, block.pseudo(w, slope, self.variance), zero.expand(len(PRIOR_COUNTS)), zero, zero)


@dataclass(frozen=True)
class ExpectationStep:
    """One expectation step: a posterior predicts f, and the noise law compares predictions with observations."""

    posterior: SparsePosterior
    noise: Noise


@dataclass(frozen=True)
class ByLaw:
    """Weigh rows by the noise law, given predictions from other rows: first from a sample, then from all.

    The first posterior is the sample's. All rows, weighed by its predictions, give the second, which predicts each row
    from all others, and so on. The weight of a row is a function of x, y and the steps, computed wherever the row is. A
    row of the sample contributes to its own first prediction; later steps leave it out.

    Attributes:
        steps: the expectation steps.
    """

    steps: tuple[ExpectationStep, ...]

    def __call__(self, block: Block) -> Weighed:
        zero = torch.zeros_like(block.residual)
        pseudo = PseudoData(zero, zero)
        for step in self.steps:
            predicted, noise = block.leave_one_out(step.posterior, pseudo), step.noise
            rows = block.responsibilities(predicted, noise)
            w = (rows.precision / block.local).sqrt()
            slope = rows.slope * block.local  # the shift of a row whose noise variance is σ² h
            pseudo = block.pseudo(w, slope, noise.variance)
        counts, shares = by_component(rows.share), by_component(noise.law.log_shares(rows.share).exp())
        mixture = rows.log_density - torch.special.xlogy(counts, shares).sum(dim=-1)
        normal = block.responsibilities(predicted, Noise(NoiseLaw.normal(), noise.variance)).log_density
        used = slice(None) if block.used is None else block.used
        gain, flagged = (mixture - normal)[used].sum(), (rows.outlier_probability > FLAGGED)[used].sum()
        return Weighed(w, slope, pseudo, counts[used].sum(dim=0), gain, flagged)


@dataclass(frozen=True)
class Sums:
    """Sums over rows.

    Attributes:
        statistics: sufficient statistics of the posterior.
        counts: ``3`` expected numbers of rows with normal noise, of the tail and of outliers.
        gain: how much better the law predicts the rows than normal noise, before the prior of the shares,
            Σ_i log Z_i − Σ_c n_c log π_c − Σ_i log p_i0, p_i0 the density of row i under normal noise.
        flagged: number of rows flagged by the law.
    """

    statistics: Statistics
    counts: Tensor
    gain: Tensor
    flagged: Tensor

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


@dataclass(frozen=True)
class SumUp:
    """The sums of a chunk. Cost (2.3 + steps) m²b."""

    prior: SparsePrior
    rule: Rule

    def __call__(self, chunk: Chunk) -> Sums:
        return functools.reduce(operator.add, map(self._of_block, self.prior.blocks(chunk)))

    def _of_block(self, block: Block) -> Sums:
        weighed = self.rule(block)
        V, unseen, pseudo = block.V, block.unseen, weighed.pseudo
        if block.used is not None and not bool(block.used.all()):
            pseudo = PseudoData(pseudo.target[block.used], pseudo.root_precision[block.used])
            V, unseen = V[:, block.used], unseen[block.used]
        return Sums(statistics(V, pseudo, unseen), weighed.counts, weighed.gain, weighed.flagged)


class Diagnosis(NamedTuple):
    """Weights and leave-one-out predictions of ``n`` rows.

    Attributes:
        weights, slope: weight w̃ and slope ∂_y log w̃² of each.
        mean, std: leave-one-out prediction of each observation as an inlier; an ordinary one for a row of weight zero.
        probability: probability that each is an outlier or has noise of the widest scale, given that prediction.
        variance: variance of f in that prediction.
        unseen: the part of it that the inducing points do not see.
        row_noise: noise variance σ² h/p of each.
        precision: E[s⁻²], its squared weight by the law that flags rows.
    """

    weights: Tensor
    slope: Tensor
    mean: Tensor
    std: Tensor
    probability: Tensor
    variance: Tensor
    unseen: Tensor
    row_noise: Tensor
    precision: Tensor


@dataclass(frozen=True)
class Diagnose:
    """Weights, leave-one-out predictions and outlier probabilities of the rows of a chunk. Cost (2 + steps) m²b.

    Attributes:
        prior: the prior.
        rule: how the rows were weighed.
        posterior: the posterior of all rows with these weights.
        noise: the noise of predictions.
        flags: the noise by which rows are flagged; differs from ``noise`` for a given weight function.
    """

    prior: SparsePrior
    rule: Rule
    posterior: SparsePosterior
    noise: Noise
    flags: Noise

    def __call__(self, chunk: Chunk) -> Diagnosis:
        parts = zip(*map(self._of_block, self.prior.blocks(chunk)), strict=True)
        found = Diagnosis(*map(torch.cat, parts))
        with torch.no_grad():
            return found._replace(mean=found.mean + self.prior.prior_mean(chunk.X))

    def _of_block(self, block: Block) -> Diagnosis:
        weighed = self.rule(block)
        predicted = block.leave_one_out(self.posterior, weighed.pseudo)
        rows, row_noise = block.responsibilities(predicted, self.flags), block.row_noise(self.noise.variance)
        return Diagnosis(
            weights=weighed.weight.clamp_min(torch.finfo(row_noise.dtype).tiny),
            slope=weighed.slope,
            mean=predicted.mean,
            std=(predicted.variance + self.noise.law.variance * row_noise).sqrt(),
            probability=rows.outlier_probability,
            variance=predicted.variance,
            unseen=block.unseen,
            row_noise=row_noise,
            precision=rows.precision,
        )
