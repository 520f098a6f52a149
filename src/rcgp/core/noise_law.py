"""Learning the noise law from leave-one-out predictions, and the bound by which fits are compared.

Given the prediction N(μ_i, v_i) of each f(x_i) from all other rows, shares π and noise variance σ² of the law of
:mod:`rcgp.weights.noise_law` maximise the leave-one-out density of the rows, Σ_i log Z_i with
Z_i = Σ_k π_k N(e_i; μ_i, v_i + σ²s_k²) + π_o o_i, o_i = C(e_i) H_i / Z, by expectation and maximisation. With
responsibilities ρ,

    π ∝ Σ_i ρ_i + prior counts,        σ² = Σ_i Σ_k ρ_ik E[ε_i² | k] / s_k² / Σ_i (1 − ρ_io),

where π are the shares of normal noise, of the tail and of outliers, and o_i is held fixed. Given scale k the noise is
ε_i ~ N(g_k (e_i − μ_i), g_k v_i), with the gain g_k = σ²s_k² / (v_i + σ²s_k²). The half-width b of the outliers' Cauchy
density is updated by

    b² ← 2b² (Σ_i ρ_io e_i² / (b² + e_i²) + b₀² / (b² + b₀²)) / (Σ_i ρ_io + 1),

with one more row at the width b₀ of :data:`~rcgp.weights.noise_law.OUTLIER_WIDTH`. However far away, an outlier counts
as one row.

Fits are compared by one number, a lower bound on log p(y | hyperparameters, b), given the densities o_i of outliers,
for any responsibilities ρ, and the log prior of b relative to its largest. With λ_i = Σ_k ρ_ik / s_k², the noise
variance σ_i² of row i, ℓ the part of the evidence of targets e and noises σ_i²/λ_i that involves the kernel
(:mod:`rcgp.core.exact`), and τ_k the share of scale k in its component (1 for normal noise),

    F = ℓ + Σ_i [ −½ (1 − ρ_io) log 2πσ_i² − Σ_k ρ_ik log(s_k ρ_ik / τ_k) + ρ_io log(o_i / ρ_io) ]
        + log E[Π_c π_c^(n_c)] + log (2 b b₀ / (b² + b₀²)).

n_c = Σ_i ρ_ic are the expected numbers of rows with normal noise, of the tail and of outliers, and the expectation is
over the prior of their shares. For normal noise without free shares F is the log marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.weights.noise_law import (
    OUTLIER_WIDTH,
    SCALES,
    TAIL,
    NoiseLaw,
    Responsibilities,
    by_component,
    responsibilities,
    spread_tail,
)

__all__ = [
    "FIRST_COUNTS",
    "PRIOR_COUNTS",
    "WORTH",
    "LearnedLaw",
    "evidence_of_all_normal",
    "evidence_of_shares",
    "first_weights",
    "learn_law",
    "local_squares",
    "log_bound",
    "weigh_rows",
    "width_of_outliers",
    "without_tail",
]

#: Rows that the law has before any data, ten with normal noise, two of the tail and one outlier. With one and a half or
#: three of the tail errors differ by less than 1 %, and the coverage of a 95 % interval by half a point.
PRIOR_COUNTS = (10.0, 2.0, 1.0)

#: Counts of the first expectation step: those, without a tail, which would absorb the outliers at once, and keep them.
#: One outlier in two rows or in four serves as well.
FIRST_COUNTS = (PRIOR_COUNTS[0], 0.0, PRIOR_COUNTS[2])

#: Difference of log evidence that is worth a mention (Kass and Raftery, 1995), a nat: what another step, or noise that
#: differs from place to place, has to gain, and a loss by which a step is taken back.
WORTH = 1.0

# Largest half-width of outliers in units of the first, 50 robust standard deviations. Beyond it a Cauchy density has
# the same tail, but leaves no room for moderate errors, which would widen the noise beside errors of 1e6.
_WIDEST = 10.0

# Where law and hyperparameters are known: expectation steps in which the noise variance falls to its own, and what each
# row has at least in the first of them, as a share of the squared spread: what models start with.
_COOLING, _WARM = 3, 0.1

# Steps of expectation and maximisation in one step of a robust fit: with twice as many a fit takes a sixth longer, and
# is as good.
_STEPS = 2


@dataclass(frozen=True)
class LearnedLaw:
    """A noise law with what was learned along with it.

    Attributes:
        law: the law, with the mean of the Dirichlet distribution of its shares.
        noise: noise variance σ², a scalar.
        counts: ``3`` counts of that distribution, prior counts included.
        rows: responsibilities of each row under the law.
    """

    law: NoiseLaw
    noise: Tensor
    counts: Tensor
    rows: Responsibilities


def learn_law(
    residual: Tensor,
    cavity: LeaveOneOut,
    noise: Tensor,
    relative: Tensor,
    first_width: float,
    *,
    bounds: tuple[float, float] | None,
    counts: Tensor | None = None,
    width: float | None = None,
    learn: bool = True,
    steps: int = _STEPS,
) -> LearnedLaw:
    """Shares, noise variance and width of outliers by expectation and maximisation. Cost O(n).

    Args:
        residual: ``n`` residuals e.
        cavity: leave-one-out mean and variance of f(x_i), each ``n``.
        noise: noise variance σ² to start from, a scalar.
        relative: ``n`` known factors on it: row i has the noise variance σ² relative_i.
        first_width: half-width b₀ of the density of outliers before any data.
        bounds: limits of σ²; ``None`` holds it fixed.
        counts: ``3`` counts to start from. Default: those of the first step.
        width: half-width b to start from. Default: b₀.
        learn: whether to learn; else the law is that of counts and width, and the noise stays.
        steps: number of steps.
    """
    prior = residual.new_tensor(PRIOR_COUNTS)
    counts = residual.new_tensor(FIRST_COUNTS) if counts is None else counts
    first = residual.new_tensor(first_width)
    b = first if width is None else residual.new_tensor(width)

    def rows_of(counts: Tensor, noise: Tensor, b: Tensor) -> Responsibilities:
        log_shares = spread_tail(counts / counts.sum()).log().unsqueeze(0)
        return responsibilities(residual, *cavity, noise * relative, log_shares, b.unsqueeze(0))

    rows = rows_of(counts, noise, b)
    for _ in range(steps if learn else 0):
        counts, b = prior + by_component(rows.share.sum(dim=-2)), _updated_width(rows, b, first)
        if bounds is not None:
            noise = _updated_noise(rows, noise).clamp(*bounds)
        rows = rows_of(counts, noise, b)
    return LearnedLaw(NoiseLaw.of_counts(counts, float(b)), noise, counts, rows)


def without_tail(counts: Tensor) -> Tensor:
    """``3`` counts with those of the tail, but for its prior, added to normal noise."""
    tail = counts.new_tensor(PRIOR_COUNTS[1])
    return torch.stack([counts[0] + counts[1] - tail, tail, counts[2]])


def _updated_width(rows: Responsibilities, width: Tensor, first: Tensor) -> Tensor:
    far = (rows.far / rows.reach).square()
    return width_of_outliers((rows.outlier * far).sum(), rows.outlier.sum(), width, first)


def width_of_outliers(far: Tensor, outliers: Tensor, width: Tensor, first: Tensor) -> Tensor:
    """The updated half-width, with one more row at the first width: ``...``.

    Args:
        far: ``...`` sums Σ_i ρ_io e_i² / (b² + e_i²).
        outliers: ``...`` expected numbers of outliers Σ_i ρ_io.
        width, first: ``...`` present and first half-width, b and b₀.
    """
    own = 1.0 / (1.0 + (width / first).square())
    mean = (far + own) / (outliers + 1.0)
    # At least as broad as the data: errors that all equal the prior mean would draw the width to zero.
    return (width * (2.0 * mean).sqrt()).clamp(first / OUTLIER_WIDTH, first * _WIDEST)


def _updated_noise(rows: Responsibilities, noise: Tensor) -> Tensor:
    """The updated noise variance; unchanged without good rows."""
    good = rows.share[..., :-1]
    total = good.sum()
    expected = _relative_squares(rows).sum() * noise
    return torch.where(total > 0.0, expected / total, noise)


def _relative_squares(rows: Responsibilities) -> Tensor:
    """Σ_k ρ_ik E[ε_i² | k] / (s_k² σ_i²), ``n``.

    With a_k = σ_i² s_k² and S_k² = v_i + a_k, E[ε² | k] / a_k = 1 + (a_k / S_k²) (t² − 1), t = (e − μ) / S_k.
    """

    def of_block(block: Responsibilities) -> Tensor:
        ratio = block.noise.unsqueeze(-1) * block.noise.new_tensor(SCALES).square() / block.std.square()
        score = torch.where(block.share[..., :-1] > 0.0, block.score, 0.0)  # an outlier of 1e300 has no square
        return (block.share[..., :-1] * (1.0 + ratio * (score.square() - 1.0))).sum(dim=-1)

    return rows.in_blocks(of_block)


def local_squares(rows: Responsibilities, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Expected squared noise of each row, in units of σ², and the count c of the row: each ``n``.

    Args:
        rows: responsibilities of the rows.
        noise: ``n`` noise variances without a local scale.
    """
    return _relative_squares(rows) * rows.noise / noise, rows.share[..., :-1].sum(dim=-1)


def first_weights(residual: Tensor, spread: Tensor, threshold: float = OUTLIER_WIDTH) -> Tensor:
    """Weights to start with, ``... x n``: the paper's inverse multiquadric around the prior mean.

    Args:
        residual: ``... x n`` residuals e.
        spread: ``... x 1`` their robust standard deviation, or ``... x n`` where it differs.
        threshold: c in units of it: a row there keeps half its squared weight.
    """
    return torch.hypot(torch.ones_like(residual), residual / (threshold * spread)).reciprocal()


def weigh_rows(
    cavity_of: Callable[[PseudoData], LeaveOneOut],
    residual: Tensor,
    row_noise: Tensor,
    spread: Tensor,
    log_shares: Tensor,
    width: Tensor,
) -> tuple[LeaveOneOut, Responsibilities]:
    """Responsibilities of rows for a known law and known hyperparameters: a few expectation steps, differentiable.

    The noise variance starts at the initial value of a model and decreases to its own: with a small noise variance,
    inliers would look like outliers as long as true outliers have weight.

    Args:
        cavity_of: leave-one-out moments given pseudo-data.
        residual: ``... x n`` residuals e.
        row_noise: ``... x n`` noise variances of the rows.
        spread: ``... x 1`` robust standard deviation of the residuals, or ``... x n`` where it differs.
        log_shares, width: as for :func:`~rcgp.weights.noise_law.responsibilities`.

    Returns:
        The last leave-one-out moments and the responsibilities that follow.
    """
    weight, slope = first_weights(residual, spread), torch.zeros_like(residual)
    warmth = (_WARM * spread.square() / row_noise).clamp_min(1.0)
    for step in range(_COOLING + 2):  # the last two at the noise that the rows have
        noise = row_noise * warmth ** max(0.0, 1.0 - step / _COOLING)
        cavity = cavity_of(pseudo_data(residual, weight, slope, noise))
        rows = responsibilities(residual, *cavity, noise, log_shares, width)
        weight, slope = rows.weight, rows.slope
    return cavity, rows


def log_bound(row_noise: Tensor, rows: Responsibilities, first_width: float) -> Tensor:
    """F − ℓ of the module's docstring: a scalar. Cost O(n). Of several outputs each adds its own.

    Args:
        row_noise: ``n`` noise variances σ_i².
        rows: the responsibilities.
        first_width: half-width b₀ of the density of outliers before any data.
    """

    def of_components(block: Responsibilities) -> Tensor:
        share = block.share
        scales = share[..., :-1] @ share.new_tensor(SCALES).log() - share[..., 1:-1] @ share.new_tensor(TAIL).log()
        return block.outlier * block.log_outlier - scales - torch.xlogy(share, share).sum(dim=-1)

    terms = rows.in_blocks(of_components) - 0.5 * (1.0 - rows.outlier) * (2.0 * math.pi * row_noise).log()
    shares = evidence_of_shares(by_component(rows.share.sum(dim=-2)))
    width = rows.width.squeeze(-1) / first_width
    prior_width = (2.0 / (width + width.reciprocal())).log()
    return terms.sum() + shares + prior_width


def evidence_of_shares(counts: Tensor) -> Tensor:
    """log E[Π_c π_c^(n_c)], a scalar: log probability of an assignment of rows to components, shares integrated out.

    Args:
        counts: ``3`` expected numbers n of rows with normal noise, of the tail and of outliers.
    """
    prior = counts.new_tensor(PRIOR_COUNTS)
    total = prior + counts
    return total.lgamma().sum() - total.sum().lgamma() - prior.lgamma().sum() + prior.sum().lgamma()


def evidence_of_all_normal(rows: Tensor) -> Tensor:
    """The loss in evidence of normal noise in a comparison with a law that flags rows, a scalar.

    Such a law competes with "all rows have normal noise" under the same prior of the shares: log E[π_n^n], about
    −3 log(n / 10). For a law that flags no row nothing is lost.

    Args:
        rows: number n of rows, a scalar.
    """
    nothing = torch.zeros_like(rows)
    return evidence_of_shares(torch.stack([rows, nothing, nothing]))
