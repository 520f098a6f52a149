"""Passes over all rows: a random sample, exact quantiles, and the posterior with weights and noise law.

With a given weight function the posterior takes one pass, after four cheap ones for a threshold by the paper's rule.
With the noise law each pass is an expectation step: all rows are predicted, first from the sample and then from all
other rows, and their responsibilities add up to the law. If the noise of the sample is normal, one such pass decides
whether it is normal for all rows, by the rule of :mod:`rcgp.training.robust`; if so, all weights are one.

The noise variance is that of the sample. Expected squares of all rows would understate it: every prediction includes
the variance that inducing points do not see, but the posterior errs less.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.chunked.passes import ByLaw, ByWeight, Diagnose, ExpectationStep, Noise, SparsePrior, Sums, SumUp
from rcgp.chunks import Chunk, Chunks, Engine
from rcgp.core.noise_law import PRIOR_COUNTS, evidence_of_all_normal, evidence_of_shares
from rcgp.core.sparse import SparsePosterior, Statistics, condition_sparse
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.models.sparse_rows import Rows
from rcgp.training.judgement import judge_rows
from rcgp.weights import Constant, NoiseLaw, ThresholdWeight, WeightFunction
from rcgp.weights.noise_law import OUTLIER_WIDTH

__all__ = ["Sample", "all_rows", "draw", "order_statistics", "quantiles", "weigh_all"]

# Expectation steps over all rows: one with predictions from the sample, two with predictions from all other rows.
_STEPS = 3

# A float64 as four digits of 16 bits.
_DIGIT, _SHIFTS = 16, (48, 32, 16, 0)


class Sample(NamedTuple):
    """Some rows of positive weight, in their order.

    Attributes:
        X: ``k x d`` inputs.
        y: ``k`` observations.
        precision: ``k`` factors on their precision.
        numbers: ``k`` row numbers in the table.
    """

    X: Tensor
    y: Tensor
    precision: Tensor
    numbers: Tensor

    @property
    def sample_weight(self) -> Tensor | None:
        """The factors on the precision; None if all are 1."""
        return None if bool((self.precision == 1).all()) else self.precision

    @property
    def chunk(self) -> Chunk:
        """These rows as a chunk."""
        return Chunk(self.X, self.y, self.sample_weight, 0)

    def part(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Sample:
        """Some of these rows, by position or by flags."""
        return Sample(*(values[torch.from_numpy(rows)] for values in self))


def draw(chunks: Chunks, engine: Engine, sizes: tuple[int, int], seed: int) -> tuple[Sample, Sample, int]:
    """A random sample without replacement, a larger one that contains it, and the number of rows of positive weight.

    Two passes: one counts, and so checks, all rows; one reads those drawn. The samples do not depend on the chunks. A
    sample larger than the table holds all rows.
    """
    firsts, counts = zip(*engine.collect(_count, chunks), strict=True)
    total = sum(counts)
    if total == 0:
        raise ValueError("there is no row to fit: sample_weight is zero in every row")
    drawn = np.random.default_rng(seed).choice(total, min(total, max(sizes)), replace=False)
    starts = dict(zip(firsts, np.cumsum([0, *counts]).tolist(), strict=False))
    some = _joined(engine.collect(_Fetch(np.sort(drawn), starts), chunks))
    return some.part(np.isin(np.sort(drawn), drawn[: min(sizes)])), some, total


def all_rows(chunks: Chunks, engine: Engine) -> Sample:
    """All rows of positive weight, in memory."""
    return _joined(engine.collect(_used, chunks))


def _joined(parts: list[Sample]) -> Sample:
    return Sample(*map(torch.cat, zip(*parts, strict=True)))


def _used(chunk: Chunk) -> Sample:
    """The rows of a chunk that have positive weight."""
    weight = torch.ones_like(chunk.y) if chunk.sample_weight is None else chunk.sample_weight
    rows = (weight > 0).nonzero().squeeze(-1)
    return Sample(chunk.X[rows], chunk.y[rows], weight[rows], chunk.first + rows)


def _count(chunk: Chunk) -> tuple[int, int]:
    """Number of the first row, and number of rows of positive weight."""
    return chunk.first, len(chunk.y) if chunk.sample_weight is None else int((chunk.sample_weight > 0).sum())


@dataclass(frozen=True)
class _Fetch:
    """The drawn rows of a chunk.

    Attributes:
        drawn: sorted positions among the rows of positive weight.
        starts: number of those before a chunk, by the number of its first row.
    """

    drawn: NDArray[np.int64]
    starts: dict[int, int]

    def __call__(self, chunk: Chunk) -> Sample:
        used, start = _used(chunk), self.starts[chunk.first]
        low, high = np.searchsorted(self.drawn, [start, start + len(used.y)])
        return used.part(self.drawn[low:high] - start)


def quantiles(
    values: Callable[[Chunk], Tensor], chunks: Chunks, engine: Engine, levels: Sequence[float], count: int
) -> list[float]:
    """Quantiles of ``count`` non-negative values of rows, interpolated as :func:`torch.quantile` does. Four passes."""
    ranks = torch.tensor(levels, dtype=torch.float64) * (count - 1)
    around = torch.cat([ranks.floor(), ranks.ceil()]).long().tolist()
    low, high = torch.tensor(order_statistics(values, chunks, engine, around), dtype=torch.float64).chunk(2)
    found: list[float] = torch.lerp(low, high, ranks.frac()).tolist()
    return found


def order_statistics(
    values: Callable[[Chunk], Tensor], chunks: Chunks, engine: Engine, ranks: Sequence[int]
) -> list[float]:
    """The order statistics of these ranks, from 0, of non-negative values of rows. Four passes; memory O(len(ranks)).

    The bits of non-negative floating-point numbers, read as integers, are in the order of the numbers. So each is found
    digit by digit, by counting the next 16 bits of the numbers that begin like it.
    """
    heads, left = [0] * len(ranks), list(ranks)  # the digits so far, and the rank among numbers that begin with them
    for shift in _SHIFTS:
        distinct = tuple(sorted(set(heads)))
        below = engine.reduce(_Digits(values, distinct, shift), chunks).cumsum(dim=1)  # heads x 65536
        for i, head in enumerate(heads):
            row = below[distinct.index(head)]
            digit = int(torch.searchsorted(row, left[i], right=True))
            left[i] -= int(row[digit - 1]) if digit else 0
            heads[i] = (head << _DIGIT) | digit
    return torch.tensor(heads, dtype=torch.int64).view(torch.float64).tolist()


@dataclass(frozen=True)
class _Digits:
    """Counts of the next digit after each head: ``heads x 65536``."""

    values: Callable[[Chunk], Tensor]
    heads: tuple[int, ...]
    shift: int

    def __call__(self, chunk: Chunk) -> Tensor:
        bits = self.values(chunk).double().contiguous().view(torch.int64) >> self.shift
        digits, head = bits & (2**_DIGIT - 1), bits >> _DIGIT
        return torch.stack([torch.bincount(digits[head == known], minlength=2**_DIGIT) for known in self.heads])


@dataclass(frozen=True)
class _Distances:
    """|y − m(x)| of the rows of a chunk that have positive weight."""

    prior_mean: gpytorch.means.Mean

    def __call__(self, chunk: Chunk) -> Tensor:
        used = _used(chunk)
        with torch.no_grad():
            distance: Tensor = (used.y - self.prior_mean(used.X)).abs()
        return distance


def weigh_all(model: RCGP, Z: Tensor, chunks: Chunks, engine: Engine, rows: int, *, learned: bool) -> Diagnose:
    """The posterior of all rows, the rule by which they are weighed and their noise law.

    Cost (2.3 + steps) m²n for each pass.

    Args:
        model: the fitted model of the sample. With a given weight, thresholds by the paper's rule are set from all
            rows.
        Z: ``m x d`` inducing points.
        chunks, engine: the rows, and the engine that runs the passes.
        rows: number of rows of positive weight.
        learned: whether weights come from the model's noise law.
    """
    prior, variance = SparsePrior.of(model, Z), model.noise.detach().clone()
    normal = Noise(NoiseLaw.normal(), variance)

    def weighed_by(weight: WeightFunction, flags: Noise) -> Diagnose:
        rule = ByWeight(weight, variance)
        return Diagnose(
            prior, rule, _posterior(prior, engine.reduce(SumUp(prior, rule), chunks).statistics), normal, flags
        )

    if not learned:
        model.weight = _with_thresholds(model, chunks, engine, rows)
        judged = judge_rows(model, learn=True)
        return weighed_by(model.weight, Noise(judged.law, judged.noise))
    law, undecided = model.noise_law, model.noise_law.is_normal
    with torch.no_grad():
        sample = Rows(prior.kernel, model.train_X, prior.Z).statistics(model.training_terms().pseudo)
        if undecided:  # start from the law before any data
            width = OUTLIER_WIDTH * robust_spread(model.residual())
            law = NoiseLaw.of_counts(variance.new_tensor(PRIOR_COUNTS), width)
    rule = ByLaw((ExpectationStep(_posterior(prior, sample), Noise(law, variance)),))
    while True:
        sums = engine.reduce(SumUp(prior, rule), chunks)
        if undecided and not _law_wins(sums):
            return weighed_by(Constant(), normal)
        undecided = False
        posterior = _posterior(prior, sums.statistics)
        noise = Noise(NoiseLaw.of_counts(variance.new_tensor(PRIOR_COUNTS) + sums.counts, law.width), variance)
        if len(rule.steps) == _STEPS:
            return Diagnose(prior, rule, posterior, noise, noise)
        rule = ByLaw((*rule.steps, ExpectationStep(posterior, noise)))


def _law_wins(sums: Sums) -> bool:
    """Whether the law has more evidence than normal noise, by a lower bound, given predictions of all rows."""
    needed = evidence_of_all_normal(sums.counts.sum()) if bool(sums.flagged > 0) else torch.zeros_like(sums.flagged)
    return bool(sums.gain + evidence_of_shares(sums.counts) > needed)


def _posterior(prior: SparsePrior, statistics: Statistics) -> SparsePosterior:
    """The posterior, with row-major matrices as read from a file, so that a saved model gives the same bits."""
    found = condition_sparse(prior.L, statistics)
    return SparsePosterior(found.L, found.L_B.contiguous(), found.root.contiguous(), found.alpha.contiguous())


def _with_thresholds(model: RCGP, chunks: Chunks, engine: Engine, rows: int) -> WeightFunction:
    """The model's weight with thresholds by the paper's rule fixed at the quantiles of all rows. Four passes, or none.

    As :func:`rcgp.weights.functions.quantile_threshold`, also where the quantile is zero. Anything else in a weight
    that depends on all residuals depends on the sample's.
    """
    weight = copy.deepcopy(model.weight)
    by_rule = [part for part in weight.modules() if isinstance(part, ThresholdWeight) and part.log_c is None]
    if by_rule:
        distances = _Distances(copy.deepcopy(model.mean).requires_grad_(False))
        found = quantiles(distances, chunks, engine, [1.0 - part.epsilon for part in by_rule], rows)
        if min(found) == 0.0:
            largest = order_statistics(distances, chunks, engine, [rows - 1])[0]
            found = [c or largest * torch.finfo(torch.float64).eps or 1.0 for c in found]
        for part, c in zip(by_rule, found, strict=True):
            part.log_c = torch.tensor(c, dtype=torch.float64).log()
    with torch.no_grad():
        return weight.frozen(model.residual()).requires_grad_(False)
