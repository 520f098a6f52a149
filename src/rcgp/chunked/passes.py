"""What a pass over rows does with each chunk: weigh its rows, sum them up, diagnose them.

Each task is a small picklable object that is called with a chunk, and its results add up. Nothing of the size of all
rows is kept between passes: the weights of a chunk are computed anew from the posteriors of the passes before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import gpytorch
import torch
from torch import Tensor

from rcgp.chunked.views import Block, Noise, View
from rcgp.chunks import Chunk
from rcgp.core.loo import LeaveOneOut
from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.core.sparse import SparsePosterior, Statistics, statistics
from rcgp.weights import NoiseLaw, WeightFunction
from rcgp.weights.noise_law import Responsibilities, by_component

__all__ = [
    "ByLaw",
    "Diagnose",
    "Diagnosis",
    "Distances",
    "Given",
    "LawSums",
    "Link",
    "Rule",
    "SumUp",
    "Sums",
    "Weighed",
    "used_rows",
]


class Weighed(NamedTuple):
    """What a rule makes of a block of rows.

    Attributes:
        weight, slope: ``b`` weights w̃ and slopes ∂_y log w̃².
        pseudo: their pseudo-data; a row that does not count has no precision.
        law: what the rows say of the noise law, where weights come from it: see :class:`LawSums`.
    """

    weight: Tensor
    slope: Tensor
    pseudo: PseudoData
    law: LawSums


@dataclass(frozen=True)
class LawSums:
    """What rows say of the noise law: sums over rows.

    Attributes:
        counts: ``3`` expected numbers of rows with normal noise, of the tail and of outliers.
        gain: how much better the law predicts the rows than normal noise, before the shares are paid for,
            Σ_i log Z_i − Σ_c n_c log π_c − Σ_i log p_i0, p_i0 the density of row i under normal noise.
    """

    counts: Tensor
    gain: Tensor

    def __add__(self, other: LawSums) -> LawSums:
        return LawSums(self.counts + other.counts, self.gain + other.gain)

    @classmethod
    def zero(cls, like: Tensor) -> LawSums:
        """Of no rows."""
        return cls(like.new_zeros(len(PRIOR_COUNTS)), like.new_zeros(()))


class Rule(Protocol):
    """How rows are weighed."""

    def __call__(self, view: View, block: Block) -> Weighed:
        """Weights and pseudo-data of a block."""


@dataclass(frozen=True)
class Given:
    """Rows are weighed by their distance from the prior mean, by a function that needs no other rows.

    Attributes:
        weight: the function.
        variance: noise variance σ².
    """

    weight: WeightFunction
    variance: Tensor

    def __call__(self, view: View, block: Block) -> Weighed:
        with torch.no_grad():
            w: Tensor = self.weight(block.residual, block.X, self.variance)
            slope = self.weight.slope(block.residual, block.X, self.variance)
        return Weighed(w, slope, _pseudo(block, w, slope, self.variance), LawSums.zero(w))


@dataclass(frozen=True)
class Link:
    """What all rows, or a sample of them, say at one pass.

    Attributes:
        posterior: predicts f.
        noise: the noise law by which these predictions are compared with the observations.
    """

    posterior: SparsePosterior
    noise: Noise


@dataclass(frozen=True)
class ByLaw:
    """Rows are weighed by the noise law, given what other rows predict: first those of a sample, then all.

    The first posterior is that of the sample, with its weights. All rows, weighed by its predictions, make the second,
    which predicts each row from all others, and so on. The weight of a row is a function of x, y and the links, and is
    computed wherever the row is. A row of the sample takes part in the first prediction of itself; the second link
    leaves it out.

    Attributes:
        links: one for each expectation step.
    """

    links: tuple[Link, ...]

    def __call__(self, view: View, block: Block) -> Weighed:
        nothing = torch.zeros_like(block.residual)
        pseudo = PseudoData(nothing, nothing)
        for link in self.links:
            predicted = block.leave_one_out(link.posterior, pseudo)
            rows, noise = block.responsibilities(predicted, link.noise), link.noise
            w = (rows.precision / block.local).sqrt()
            slope = rows.slope * block.local  # the shift of a row whose noise variance is σ² h
            pseudo = _pseudo(block, w, slope, noise.variance)
        return Weighed(w, slope, pseudo, _law_sums(block, predicted, rows, noise))

    def then(self, link: Link) -> ByLaw:
        """The rule with one more link."""
        return ByLaw((*self.links, link))


def _pseudo(block: Block, weight: Tensor, slope: Tensor, variance: Tensor) -> PseudoData:
    found = pseudo_data(block.residual, weight, slope, variance, block.precision)
    if block.used is None:
        return found
    return PseudoData(found.target, torch.where(block.used, found.root_precision, torch.zeros_like(weight)))


def _law_sums(block: Block, predicted: LeaveOneOut, rows: Responsibilities, noise: Noise) -> LawSums:
    """Sums over the rows of a block that count."""
    counts, shares = by_component(rows.share), by_component(noise.law.log_shares(rows.share).exp())
    mixture = rows.log_density - torch.special.xlogy(counts, shares).sum(dim=-1)
    normal = block.responsibilities(predicted, Noise(NoiseLaw.normal(), noise.variance)).log_density
    used = slice(None) if block.used is None else block.used
    return LawSums(counts[used].sum(dim=0), (mixture - normal)[used].sum())


@dataclass(frozen=True)
class Sums:
    """What a pass keeps of rows: the statistics of the posterior, and what they say of the noise law."""

    statistics: Statistics
    law: LawSums

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.statistics + other.statistics, self.law + other.law)


@dataclass(frozen=True)
class SumUp:
    """The sums of a chunk. Cost (2.3 + links) m²b."""

    view: View
    rule: Rule

    def __call__(self, chunk: Chunk) -> Sums:
        m = self.view.Z.shape[0]
        zero = self.view.L.new_zeros(())
        total = Sums(Statistics(zero.new_zeros(m, m), zero.new_zeros(m), zero, zero, zero, 0), LawSums.zero(zero))
        for block in self.view.blocks(chunk):
            weighed = self.rule(self.view, block)
            V, unseen, pseudo = block.V, block.unseen, weighed.pseudo
            if block.used is not None and not bool(block.used.all()):
                pseudo = PseudoData(pseudo.target[block.used], pseudo.root_precision[block.used])
                V, unseen = V[:, block.used], unseen[block.used]
            total = total + Sums(statistics(V, pseudo, unseen), weighed.law)
        return total


class Diagnosis(NamedTuple):
    """What the model says of each of ``n`` rows.

    Attributes:
        weights: the weight of each.
        mean, std: leave-one-out prediction of each observation, as one that is no outlier; for a row that does not
            count, the prediction.
        probability: probability that each is an outlier or has noise of the widest scale, given that prediction.
        variance: variance of f in that prediction.
        row_noise: noise variance σ² h/p of each.
        precision: E[s⁻²], its squared weight by the law that flags rows.
    """

    weights: Tensor
    mean: Tensor
    std: Tensor
    probability: Tensor
    variance: Tensor
    row_noise: Tensor
    precision: Tensor


@dataclass(frozen=True)
class Diagnose:
    """Weights, leave-one-out predictions and outlier probabilities of the rows of a chunk. Cost (2 + links) m²b.

    Attributes:
        view: the prior.
        rule: by which the rows were weighed.
        posterior: that of all rows, so weighed.
        noise: the noise of predictions.
        flags: the noise by which rows are flagged: the same, unless the weight function was given.
    """

    view: View
    rule: Rule
    posterior: SparsePosterior
    noise: Noise
    flags: Noise

    def __call__(self, chunk: Chunk) -> Diagnosis:
        parts = [self._of_block(block) for block in self.view.blocks(chunk)]
        if not parts:
            return Diagnosis(*(chunk.y.new_zeros(0) for _ in Diagnosis._fields))
        found = Diagnosis(*(torch.cat(part) for part in zip(*parts, strict=True)))
        with torch.no_grad():
            return found._replace(mean=found.mean + self.view.prior_mean(chunk.X))

    def _of_block(self, block: Block) -> Diagnosis:
        weighed = self.rule(self.view, block)
        predicted = block.leave_one_out(self.posterior, weighed.pseudo)
        rows, row_noise = block.responsibilities(predicted, self.flags), block.row_noise(self.noise.variance)
        std = (predicted.variance + self.noise.law.variance * row_noise).sqrt()
        w = weighed.weight.clamp_min(torch.finfo(std.dtype).tiny)
        return Diagnosis(
            w, predicted.mean, std, rows.outlier_probability, predicted.variance, row_noise, rows.precision
        )


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
