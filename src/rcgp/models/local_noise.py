"""Local noise: a smooth factor on the noise variance, learned along with the noise law.

Row j has the expected squared noise σ² t_j, and counts by its probability c_j of being an inlier
(:func:`rcgp.core.noise_law.local_squares`). With ρ(x, x') the correlation of the kernel,

    h(x) = (n₀ + Σ_j ρ(x, x_j)^a t_j) / (n₀ + Σ_j ρ(x, x_j)^a c_j),

a kernel average that n₀ prior rows draw to 1. The power a sets how local it is: 4 halves the lengthscales of a squared
exponential. At a training row the sum leaves that row out, so that h and a can be compared by leave-one-out. The unit
of h is σ², the level of the prior rows: the harmonic mean of the local variances, which is the most likely level given
these. A level that is not tied to them drifts: the smaller it is, the less the prior rows draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import gpytorch
import scipy.optimize
import torch
from torch import Tensor

from rcgp.core.noise_law import WORTH, LearnedLaw, local_squares
from rcgp.models.kernel_matrix import correlations, dense_kernel

__all__ = [
    "POWERS",
    "PRIOR_ROWS",
    "LocalFactor",
    "LocalNoise",
    "LocalNoiseOfOutputs",
    "NoiseAverage",
    "averages_by_kernel",
    "choose_average",
    "learn_local_noise",
]


#: Number n₀ of prior rows with the same noise everywhere. Mean negative log predictive density over that of a plain GP,
#: 218 of R's tables with and without errors: −0.273 with 20 rows, −0.272 with 10, −0.282 with 5.
PRIOR_ROWS = 10.0

#: Candidate powers of the correlation: the lengthscales of the function, their half and their quarter.
POWERS = (1.0, 4.0, 16.0)

# Logarithms of the level of the prior rows: range in which it is looked for, below the largest local factor, and
# precision.
_RANGE, _PRECISION = 50.0, 1e-6

# Inputs of an evaluation at a time.
_ROWS = 256


@dataclass(frozen=True)
class LocalNoise:
    """The factor h(x) on the noise variance.

    Attributes:
        kernel: whose correlation defines near rows.
        X: ``n x d`` inputs of the rows.
        squares: ``n`` expected squares t of their noise, in units of σ², times c.
        counts: ``n`` counts c of the rows.
        power: a, one of :data:`POWERS`.
    """

    kernel: gpytorch.kernels.Kernel
    X: Tensor
    squares: Tensor
    counts: Tensor
    power: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """h at ``... x q x d`` inputs: ``... x q``. Cost O(nq), in small parts."""
        with torch.no_grad():
            own = self.kernel(self.X, diag=True).sqrt()
            values = []
            for points in torch.split(x.detach().reshape(-1, x.shape[-1]).to(self.X), _ROWS):
                scale = self.kernel(points, diag=True).sqrt().unsqueeze(-1) * own
                values.append(self._average(dense_kernel(self.kernel, points, self.X) / scale))
            return torch.cat(values).reshape(x.shape[:-1]).to(x)

    def at_rows(self, K: Tensor) -> Tensor:
        """h at each training row, from the other rows: ``n``.

        Args:
            K: ``n x n`` kernel matrix of the rows.
        """
        return self._average(correlations(K).fill_diagonal_(0.0))

    def _average(self, correlation: Tensor) -> Tensor:
        correlation = correlation.nan_to_num(0.0).clamp_min_(0.0).pow_(self.power)
        return (PRIOR_ROWS + correlation @ self.squares) / (PRIOR_ROWS + correlation @ self.counts)


@dataclass(frozen=True)
class LocalNoiseOfOutputs:
    """The factor h on the noise variance of several outputs; the last column of the inputs is its number.

    Attributes:
        outputs: the factor of each output.
    """

    outputs: tuple[LocalFactor, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """h at ``... x q x (d + 1)`` inputs: ``... x q``."""
        h, number = torch.ones_like(x[..., 0]), x[..., -1]
        for output, local in enumerate(self.outputs):
            chosen = number == output
            if bool(chosen.any()):
                h[chosen] = local(x[chosen])
        return h


#: A factor h(x) on the noise variance, from ``... x q x d`` inputs to ``... x q``.
LocalFactor: TypeAlias = Callable[[Tensor], Tensor]

#: The factor, and its values at the rows, each without its own, from ``n`` squares t and ``n`` counts c of the rows.
NoiseAverage: TypeAlias = Callable[[Tensor, Tensor], tuple[LocalFactor, Tensor]]


def averages_by_kernel(kernel: gpytorch.kernels.Kernel, X: Tensor, K: Tensor) -> list[NoiseAverage]:
    """Averages by each power of the correlation of a kernel. Cost O(n²) for each.

    Args:
        kernel: the averages follow its changes; a copy of them does not.
        X, K: ``n x d`` inputs of the rows and their ``n x n`` kernel matrix.
    """

    def with_power(power: float, squares: Tensor, counts: Tensor) -> tuple[LocalFactor, Tensor]:
        local = LocalNoise(kernel, X, squares, counts, power)
        return local, local.at_rows(K)

    return [partial(with_power, power) for power in POWERS]


def choose_average(averages: Sequence[NoiseAverage], squares: Tensor, counts: Tensor, free: bool) -> int | None:
    """The average by which the noise is most likely; ``None`` where none gains a nat over the same noise everywhere.

    With local variances τ_i in units of σ² the expected log density of the noise is −½ Σ_i (c_i log τ_i + t_i / τ_i). A
    step that increases it increases the leave-one-out density.

    Args:
        averages: the candidates.
        squares: ``n`` expected squares t of the noise, in units of σ², times c.
        counts: ``n`` counts c of the rows.
        free: whether σ² is learned; else it is held fixed, and the level of the prior rows with it.
    """

    def log_density(tau: Tensor) -> float:
        return float(-0.5 * (counts * tau.log() + squares / tau).sum())

    def local(average: NoiseAverage) -> float:
        level, prior, own = _level(average, squares, counts)
        return log_density((level if free else 1.0) * prior + own)

    everywhere = squares.sum() / counts.sum()  # a fixed level that is wrong everywhere is no reason for local noise
    values = [local(average) for average in averages]
    best = max(range(len(values)), key=values.__getitem__)
    return best if values[best] > log_density(everywhere) + WORTH else None


def learn_local_noise(
    average: NoiseAverage,
    learn: Callable[[Tensor, LearnedLaw], LearnedLaw],
    learned: LearnedLaw,
    relative: Tensor,
    limits: tuple[float, float] | None,
) -> tuple[LocalFactor, Tensor, LearnedLaw]:
    """Local noise, its factor h at each row, and then the law; predictions are held fixed.

    Args:
        average: of squares and counts.
        learn: steps of the law, given ``n`` factors h and the law before.
        learned: the law to start from.
        relative: ``n`` known factors on the noise variance.
        limits: of σ²; ``None`` holds it fixed.
    """
    squares, counts = local_squares(learned.rows, learned.noise * relative)
    if limits is not None:
        noise = (learned.noise * _level(average, squares, counts)[0]).clamp(*limits)
        squares, learned = squares * (learned.noise / noise), replace(learned, noise=noise)
    local, h = average(squares, counts)
    return local, h, learn(h, learned)


def _level(average: NoiseAverage, squares: Tensor, counts: Tensor) -> tuple[float, Tensor, Tensor]:
    """The level m of the prior rows that is most likely given the local variances: their harmonic mean.

    With prior rows at m these are τ_i = m p_i + (h_i − p_i) in units of σ², where p_i is the part of h_i that comes
    from the prior rows. m = Σ_i c_i / Σ_i (c_i / τ_i) has one solution.

    Returns:
        m, ``n`` parts p and ``n`` parts h − p with the prior rows at one.
    """
    h, prior = average(squares, counts)[1], average(torch.zeros_like(squares), counts)[1]
    own = (h - prior).clamp_min(0.0)
    largest, total = float((own / (1.0 - prior)).nan_to_num(0.0, 0.0).max()), counts.sum()
    if not largest > 0.0:
        return 1.0, prior, own  # no row has another one near it

    def excess(log_level: float) -> float:
        level = math.exp(log_level)
        return log_level + float(((counts / (level * prior + own)).sum() / total).log())

    upper = math.log(largest) + _PRECISION
    lower = upper - _RANGE
    if not excess(lower) < 0.0 < excess(upper):
        return 1.0, prior, own
    return math.exp(scipy.optimize.brentq(excess, lower, upper, xtol=_PRECISION)), prior, own
