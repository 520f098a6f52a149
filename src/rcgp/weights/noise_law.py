"""The noise law: normal noise with a tail, and outliers; and its weight function.

With share π_n an observation has normal noise of standard deviation σ. With share π_t it belongs to the tail: normal
noise of standard deviation 2σ, 4σ or 8σ, each half as common as the one before, as in Cauchy's distribution. So the
scales s_k ∈ {1, 2, 4, 8} have shares π_k that two numbers determine. With share π_o an observation is an outlier: its
residual e = y − m(x) has a Cauchy density C(e) of half-width b around the prior mean, with a gap where inlier noise
explains it,

    o(e | f) = C(e) (1 − exp(−½ (e − f)² / (s σ)²)) / Z,        s = 4,

Z = 1 − erfcx(b / (√2 s σ)), so that it integrates to one for f = 0. The law covers normal, heavy-tailed and
contaminated noise: a tail thins out, gross errors leave a gap.

Let N(μ_i, v_i) be the leave-one-out prediction of f(x_i), relative to the prior mean. The responsibility of each
component for row i is

    ρ_ik ∝ π_k N(e_i; μ_i, v_i + σ² s_k²),        ρ_io ∝ π_o C(e_i) H_i / Z,
    H_i = 1 − (s σ / S_i) exp(−½ (e_i − μ_i)² / S_i²),        S_i² = v_i + s² σ²,

where C H / Z is the mean of o under the prediction. The weight of the row is that of iteratively reweighted least
squares, w̃_i² = Σ_k ρ_ik / s_k². Flags go by ρ_io and the responsibility of the widest scale together. Since μ_i and
v_i do not depend on y_i, this is an ordinary weight function, with the slope

    ∂_y log w̃_i² = Σ_k ρ_ik (g_ik − ḡ_i) / s_k² / w̃_i²,

g_ik = −(e_i − μ_i) / (v_i + σ² s_k²), g_io = −2e_i / (b² + e_i²) + (e_i − μ_i) (1 − H_i) / (S_i² H_i), and
ḡ_i = Σ ρ_i g_i over all components.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.weights.functions import WeightFunction, smallest_weight

__all__ = [
    "FLAGGED",
    "GAP",
    "OUTLIER_WIDTH",
    "SCALES",
    "TAIL",
    "LawWeight",
    "NoiseLaw",
    "Responsibilities",
    "by_component",
    "mixture_quantile",
    "responsibilities",
    "spread_tail",
]

#: Scales of the noise of inliers, in units of σ: normal noise, and the tail. Without 8σ the coverage of
#: intervals is one point lower; with 16σ half a point higher, but a few rows decide the variance of the noise.
SCALES = (1.0, 2.0, 4.0, 8.0)

#: Share of each scale of the tail: halved for each doubling of the scale, as in Cauchy's distribution. With a quarter,
#: as in Student's t with two degrees of freedom, the coverage of 95 % intervals is one point lower on clean test rows.
TAIL = tuple(2.0**-k / sum(2.0**-j for j in range(1, len(SCALES))) for k in range(1, len(SCALES)))

#: Probability of being an outlier, or of having noise of the widest scale, above which a row is flagged: more likely
#: than not. Intervals need the widest scale, but a row that has it deserves a look.
FLAGGED = 0.5

#: Index of the scale of the gap in the density of outliers: 4σ, beyond which normal noise has one row in 16 000.
GAP = 2

#: Initial half-width b of the density of outliers, in robust standard deviations of y − m(x): broad, so that the place
#: of an outlier matters little. It is learned; between three and ten the results are the same.
OUTLIER_WIDTH = 5.0

# Lower bound of H and Z, above their rounding errors.
_SMALLEST_GAP = 1e-12
# Rows of a block: 2 MB of numbers for each component.
_BLOCK = 2**16
# Steps of a bisection: 2⁻⁶⁰ of the bracket is below rounding error.
_BISECTIONS = 60


@dataclass(frozen=True)
class NoiseLaw:
    """The distribution of the noise of a table.

    Attributes:
        shares: share π_k of each scale of :data:`SCALES` among all rows: of normal noise, then of the tail. A learned
            law has the tail of :data:`TAIL`; the formulas of this class hold for any shares.
        outlier_share: share π_o of outliers; all shares add up to one.
        width: half-width b of the density of outliers, in the units of y.
    """

    shares: tuple[float, ...]
    outlier_share: float
    width: float

    @classmethod
    def normal(cls) -> NoiseLaw:
        """The law of normal noise of standard deviation σ, without outliers."""
        return cls((1.0, *(0.0 for _ in SCALES[1:])), 0.0, math.inf)

    @classmethod
    def of_counts(cls, counts: Tensor, width: float) -> NoiseLaw:
        """The law with shares proportional to ``3`` counts: of normal noise, of the tail and of outliers."""
        *shares, outlier_share = spread_tail(counts / counts.sum()).tolist()
        return cls(tuple(shares), outlier_share, width)

    @property
    def is_normal(self) -> bool:
        """Whether the noise is normal, without outliers."""
        return self.shares[0] == 1.0

    @property
    def good_shares(self) -> tuple[float, ...]:
        """Share of each scale among inliers."""
        total = sum(self.shares)
        return tuple(share / total for share in self.shares)

    @property
    def unflagged(self) -> NoiseLaw:
        """The law as flags see it, in which noise of the widest scale belongs to the outliers."""
        return NoiseLaw((*self.shares[:-1], 0.0), self.outlier_share + self.shares[-1], self.width)

    @property
    def variance(self) -> float:
        """Variance of the noise of inliers, in units of σ²."""
        return sum(share * scale**2 for share, scale in zip(self.good_shares, SCALES, strict=True))

    def components(self) -> tuple[tuple[str, float], ...]:
        """Name and share of each component: normal noise, tail and outliers."""
        tail = f"{SCALES[1]:g}σ to {SCALES[-1]:g}σ"
        return ("σ", self.shares[0]), (tail, sum(self.shares[1:])), ("outlier", self.outlier_share)

    def log_shares(self, like: Tensor) -> Tensor:
        """log π of each scale and, last, of outliers: ``5``."""
        return like.new_tensor([*self.shares, self.outlier_share]).log()

    def log_density(self, deviation: Tensor, variance: Tensor, noise: Tensor, residual: Tensor | None = None) -> Tensor:
        """Log density of observations under their prediction: ``...``.

        An inlier has the density Σ_k π_k N(deviation; 0, v + σ² s_k²) / (1 − π_o), an observation that may be an
        outlier Σ_k π_k N(deviation; 0, v + σ² s_k²) + π_o C(e), with the Cauchy density C of half-width b.

        Args:
            deviation: ``...`` observations minus predicted means.
            variance: ``...`` variances v of f.
            noise: ``...`` noise variance σ² at each.
            residual: ``...`` observations minus prior means, e; without it the density is that of inliers.
        """
        total = variance.unsqueeze(-1) + noise.unsqueeze(-1) * _squared_scales(deviation)
        terms = -0.5 * (math.log(2.0 * math.pi) + total.log() + deviation.unsqueeze(-1).square() / total)
        inlier = torch.logsumexp(terms + deviation.new_tensor(self.good_shares).log(), dim=-1)
        if residual is None or not self.outlier_share > 0.0:
            return inlier
        far = torch.hypot(torch.ones_like(residual), residual / self.width)
        outlier = math.log(self.outlier_share / (math.pi * self.width)) - 2.0 * far.log()
        return torch.logaddexp(inlier + math.log1p(-self.outlier_share), outlier)

    def probability_below(self, deviation: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """Probability that an inlier deviates less than that from its predicted mean, ``...``: see :meth:`quantile`."""
        std = (variance.unsqueeze(-1) + noise.unsqueeze(-1) * _squared_scales(deviation)).sqrt()
        return torch.matmul(torch.special.ndtr(deviation.unsqueeze(-1) / std), deviation.new_tensor(self.good_shares))

    def quantile(self, q: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """Quantiles of the deviation of inliers from their predicted means, by bisection.

        Args:
            q: ``...`` probabilities in (0, 1).
            variance, noise: as in :meth:`log_density`; all broadcast.
        """
        q, variance, noise = torch.broadcast_tensors(q, variance, noise)  # type: ignore[no-untyped-call]
        if self.is_normal:
            return torch.mul(torch.special.ndtri(q), (variance + noise).sqrt())
        std = (variance.unsqueeze(-1) + noise.unsqueeze(-1) * _squared_scales(q)).sqrt()
        return mixture_quantile(q, q.new_tensor(self.good_shares), torch.zeros_like(std), std)

    def __str__(self) -> str:
        if self.is_normal:
            return "The noise is normal, without outliers."
        wide = 1.0 - self.good_shares[0]
        # With few rows the prior of the law alone puts a sixth into the tail.
        tail = "is nearly normal" if wide < 0.2 else f"has heavy tails ({wide:.0%} beyond normal)"
        head = f"The noise of good rows {tail}; {self.outlier_share:.1%} of all rows are outliers."
        shares = (f"  {name:<16}  {share:>7.1%}" for name, share in self.components())
        return "\n".join([head, "  noise             share of rows", *shares])


def spread_tail(shares: Tensor) -> Tensor:
    """Shares of each scale and, last, of outliers, ``... x 5``, from those of normal noise, tail and outliers."""
    return torch.cat([shares[..., :1], shares[..., 1:2] * shares.new_tensor(TAIL), shares[..., 2:]], dim=-1)


def by_component(share: Tensor) -> Tensor:
    """Sums over normal noise, tail and outliers, ``... x 3``, of ``... x 5`` values of each scale."""
    return torch.stack([share[..., 0], share[..., 1:-1].sum(dim=-1), share[..., -1]], dim=-1)


class Responsibilities(NamedTuple):
    """Responsibilities of the components of a law for each row, with what they were computed from.

    Attributes:
        share: ``... x n x 5`` responsibilities ρ: of each scale and, last, of outliers.
        log_density: ``... x n`` log density of each row under the law, given all other rows.
        residual, deviation: ``... x n`` residuals e, and their deviations e − μ from the prediction.
        variance, noise: ``... x n`` variance v of the prediction, and noise variance σ².
        width: ``... x 1`` half-width b of the density of outliers, or ``... x n`` if rows have different laws.
    """

    share: Tensor
    log_density: Tensor
    residual: Tensor
    deviation: Tensor
    variance: Tensor
    noise: Tensor
    width: Tensor

    def in_blocks(self, function: Callable[[Responsibilities], Tensor]) -> Tensor:
        """A function of rows, ``n`` or ``n x ...`` values, evaluated in blocks that fit in cache."""
        n = self.residual.shape[-1]
        if self.residual.ndim != 1 or n <= _BLOCK:
            return function(self)
        rows = {name: value.split(_BLOCK) for name, value in self._asdict().items() if len(value) == n}
        blocks = zip(*rows.values(), strict=True)
        return torch.cat([function(self._replace(**dict(zip(rows, block, strict=True)))) for block in blocks])

    @property
    def std(self) -> Tensor:
        """Standard deviation S_k of the prediction under each scale, S_k² = v + σ² s_k²: ``... x n x 4``."""
        # Stored by component: with many rows everything takes a third of the time.
        squares = _squared_scales(self.variance).unsqueeze(-1)
        return (self.variance.clamp_min(0.0).unsqueeze(-2) + self.noise.unsqueeze(-2) * squares).sqrt().mT

    @property
    def score(self) -> Tensor:
        """(e − μ) / S_k, bounded so that its square is finite: ``... x n x 4``."""
        # Divided before it is squared: 1e300 has no square.
        limit = torch.finfo(self.residual.dtype).max ** 0.4
        return (self.deviation.unsqueeze(-2) / self.std.mT).clamp(-limit, limit).mT

    @property
    def far(self) -> Tensor:
        """Residuals e over the half-width b of the density of outliers, ``... x n``."""
        largest = torch.finfo(self.residual.dtype).max
        return (self.residual / self.width).clamp(-largest, largest)

    @property
    def gap(self) -> Tensor:
        """H, the share of the Cauchy density that the gap leaves, before normalisation: ``... x n``."""
        std = (self.variance.clamp_min(0.0) + self.noise * SCALES[GAP] ** 2).sqrt()
        limit = torch.finfo(std.dtype).max ** 0.4
        score = (self.deviation / std).clamp(-limit, limit)
        explained = SCALES[GAP] * self.noise.sqrt() / std * (-0.5 * score.square()).exp()
        return (1.0 - explained).clamp_min(_SMALLEST_GAP)

    @property
    def log_left(self) -> Tensor:
        """log H/Z, ``... x n``."""
        reach = SCALES[GAP] * self.noise.sqrt()
        mass: Tensor = 1.0 - torch.special.erfcx(self.width / (math.sqrt(2.0) * reach))  # Z
        return self.gap.log() - mass.clamp_min(_SMALLEST_GAP).log()

    @property
    def outlier(self) -> Tensor:
        """Responsibility of the density of outliers, ``... x n``."""
        return self.share[..., -1]

    @property
    def outlier_probability(self) -> Tensor:
        """Probability that each row is an outlier or has noise of the widest scale, ``... x n``: flags go by it."""
        return self.share[..., -2] + self.share[..., -1]

    @property
    def reach(self) -> Tensor:
        """(1 + far²)^½, ``... x n``, without squares, which overflow for far outliers."""
        return torch.hypot(torch.ones_like(self.far), self.far)

    @property
    def log_outlier(self) -> Tensor:
        """Log density of each row as an outlier, log C(e) H / Z, ``... x n``."""
        return -(math.pi * self.width).log() - 2.0 * self.reach.log() + self.log_left

    @property
    def precision(self) -> Tensor:
        """E[s⁻²], the squared weight of each row before any local scale, ``... x n``."""
        return self.share[..., :-1] @ _squared_scales(self.share).reciprocal()

    @property
    def weight(self) -> Tensor:
        """Weight of each row before any local scale, ``... x n``."""
        precision = self.precision
        return precision.clamp_min(torch.finfo(precision.dtype).tiny).sqrt()  # the root has no gradient at zero

    @property
    def slope(self) -> Tensor:
        """∂_y log w̃², ``... x n``; zero where the weight is zero."""
        return self.in_blocks(Responsibilities._slope)

    def _slope(self) -> Tensor:
        far, reach, score, std = self.far, self.reach, self.score, self.std
        outlier = -2.0 * (far / reach) / reach / self.width + score[..., GAP] / std[..., GAP] * (1.0 / self.gap - 1.0)
        pull = torch.cat([-(score / std).mT, outlier.unsqueeze(-2)], dim=-2).mT  # g, ... x n x 5
        mean_pull = (self.share * pull).sum(dim=-1, keepdim=True)
        change = (self.share * (pull - mean_pull))[..., :-1] @ _squared_scales(self.share).reciprocal()
        precision = self.precision
        kept = precision > smallest_weight(precision.dtype) ** 2
        return torch.where(kept, change / torch.where(kept, precision, 1.0), torch.zeros_like(change))


def responsibilities(
    residual: Tensor, mean: Tensor, variance: Tensor, noise: Tensor, log_shares: Tensor, width: Tensor
) -> Responsibilities:
    """The expectation step: responsibilities of each component, given leave-one-out predictions. Cost O(n).

    Args:
        residual: ``... x n`` residuals e = y − m(x).
        mean, variance: ``... x n`` leave-one-out mean μ and variance v of f(x_i), relative to the prior mean.
        noise: ``... x n`` noise variance σ² of each row, or broadcasting with it.
        log_shares: ``... x 1 x 5`` log π of the scales and, last, of outliers; ``... x n x 5`` if rows have
            different laws.
        width: ``... x 1`` or ``... x n`` half-width b of the density of outliers.
    """
    residual, mean, variance, noise = torch.broadcast_tensors(residual, mean, variance, noise)  # type: ignore[no-untyped-call]
    # Log shares instead of the shares of each row.
    rows = Responsibilities(log_shares, torch.empty_like(residual), residual, residual - mean, variance, noise, width)

    def shares_and_density(block: Responsibilities) -> Tensor:
        good = (-0.5 * math.log(2.0 * math.pi) - block.std.log() - 0.5 * block.score.square()).mT
        terms = torch.cat([good, block.log_outlier.unsqueeze(-2)], dim=-2) + block.share.mT
        return torch.cat([terms.softmax(dim=-2), terms.logsumexp(dim=-2, keepdim=True)], dim=-2).mT

    found = rows.in_blocks(shares_and_density)  # ... x n x 6
    return rows._replace(share=found[..., :-1], log_density=found[..., -1])


class LawWeight(WeightFunction):
    """The weight of a learned noise law, w̃² = E[s⁻² | y, all other rows] / h: the weight after a robust fit.

    Args:
        law: the noise law.
        mean, variance: ``n`` leave-one-out mean and variance of f(x_i), relative to the prior mean.
        local: ``n`` local factors h on the noise variance. Default: 1.
        relative: ``n`` known factors on it, the reciprocals of sample weights p: row i has σ² h_i / p_i. They are not
            part of the weight, since pseudo-data include them. Default: 1.
    """

    mean: Tensor
    variance: Tensor
    local: Tensor
    relative: Tensor

    def __init__(
        self, law: NoiseLaw, mean: Tensor, variance: Tensor, local: Tensor | None = None, relative: Tensor | None = None
    ) -> None:
        super().__init__()
        self.law = law
        for name, part in (("mean", mean), ("variance", variance), ("local", local), ("relative", relative)):
            self.register_buffer(name, torch.ones_like(mean) if part is None else part.detach().clone())

    def extra_repr(self) -> str:
        return ", ".join(f"{scale:g}σ: {share:.3g}" for scale, share in zip(SCALES, self.law.shares, strict=True))

    def responsibilities(self, residual: Tensor, noise: Tensor) -> Responsibilities:
        """Responsibilities of the components of the law for each row: see :func:`responsibilities`."""
        row_noise = noise.unsqueeze(-1) * self.local * self.relative
        log_shares, width = self.law.log_shares(residual).unsqueeze(0), residual.new_tensor([self.law.width])
        return responsibilities(residual, self.mean, self.variance, row_noise, log_shares, width)

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        squared = self.responsibilities(residual, noise).precision / self.local
        return squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()  # the root has no gradient at zero

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        """h ∂_y log w̃², so that the shift of the pseudo-target is that of a row with the noise variance σ² h."""
        return self.responsibilities(residual, noise).slope * self.local

    def of_row(self, row: int) -> LawWeight:
        return LawWeight(self.law, *(part[row] for part in (self.mean, self.variance, self.local, self.relative)))


def mixture_quantile(q: Tensor, shares: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Quantiles of Σ_k π_k N(mean_k, std_k²), by bisection between the quantiles of the components. Cost O(K) each.

    Args:
        q: ``...`` probabilities in (0, 1).
        shares: ``... x K`` shares π, which add up to one.
        mean, std: ``... x K`` means and standard deviations; all broadcast.
    """
    low, high = (mean + std * torch.special.ndtri(q).unsqueeze(-1)).aminmax(dim=-1)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        below = (shares * torch.special.ndtr((middle.unsqueeze(-1) - mean) / std)).sum(dim=-1) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.mul(low + high, 0.5)


def _squared_scales(like: Tensor) -> Tensor:
    return like.new_tensor([scale**2 for scale in SCALES])
