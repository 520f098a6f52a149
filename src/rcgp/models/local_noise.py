"""Local noise: a smooth factor on the noise variance, learned along with the noise law.

Row j has the expected squared noise σ² t_j, and counts by its probability c_j of being an inlier
(:func:`rcgp.core.noise_law.local_squares`). With ρ(x, x') the correlation of the kernel,

    h(x) = (n₀ + Σ_j ρ(x, x_j)^a t_j) / (n₀ + Σ_j ρ(x, x_j)^a c_j),

a kernel average that n₀ prior rows draw to 1. The power a sets how local it is: 4 halves the lengthscales of a squared
exponential. At a training row the sum leaves that row out, so that h and a can be compared by leave-one-out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import gpytorch
import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.noise_law import LearnedLaw, learn_law, local_squares
from rcgp.models.kernel_matrix import correlations, dense_kernel

__all__ = [
    "POWERS",
    "PRIOR_ROWS",
    "LocalFactor",
    "LocalNoise",
    "LocalNoiseOfOutputs",
    "NoiseAverage",
    "averages_by_kernel",
    "learn_local_noise",
]


#: Number n₀ of prior rows with the same noise everywhere. Mean negative log predictive density
#: over that of a plain GP, ten tables and functions: −0.163 with 20 rows, −0.179 with 10, −0.187 with 5; but with 5 a
#: few small tables lose several nats.
PRIOR_ROWS = 10.0

#: Candidate powers of the correlation: the lengthscales of the function, their half and their quarter.
POWERS = (1.0, 4.0, 16.0)

# Turns of local noise and law, and steps of the law in each: an apparent heavy tail becomes local noise, and
# more turns change little.
_STEPS = 3

# Inputs of an evaluation at a time.
_ROWS = 256


@dataclass(frozen=True)
class LocalNoise:
    """The factor h(x) on the noise variance.

    Attributes:
        kernel: a copy of the kernel, whose correlation defines near rows.
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

    @classmethod
    def nowhere(cls, kernel: gpytorch.kernels.Kernel, X: Tensor) -> LocalNoise:
        """Noise that is the same everywhere, h = 1, of rows with ``n x d`` inputs."""
        nothing = torch.zeros_like(X[:, 0])
        return cls(copy.deepcopy(kernel).requires_grad_(False), X, nothing, nothing)

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
        kernel: it is copied.
        X, K: ``n x d`` inputs of the rows and their ``n x n`` kernel matrix.
    """
    own = copy.deepcopy(kernel).requires_grad_(False)

    def with_power(power: float, squares: Tensor, counts: Tensor) -> tuple[LocalFactor, Tensor]:
        local = LocalNoise(own, X, squares, counts, power)
        return local, local.at_rows(K)

    return [partial(with_power, power) for power in POWERS]


def learn_local_noise(
    averages: Sequence[NoiseAverage],
    residual: Tensor,
    cavity: LeaveOneOut,
    relative: Tensor,
    learned: LearnedLaw,
    first_width: float,
    bounds: tuple[float, float] | None,
) -> tuple[LocalFactor, Tensor, LearnedLaw]:
    """Local noise, its factor h at each row, and its law, in turn; predictions are held fixed.

    Args:
        averages: the one with the largest leave-one-out density is chosen.
        residual, cavity, relative, first_width, bounds: as for :func:`~rcgp.core.noise_law.learn_law`.
        learned: the law to start from, with or without local noise.
    """

    def by_average(average: NoiseAverage) -> tuple[LocalFactor, Tensor, LearnedLaw]:
        h, law = torch.ones_like(residual), learned
        for _ in range(_STEPS):
            flat = law.noise * relative
            local, h = average(*local_squares(law.rows, flat))
            if bool((h == 1.0).all()):
                return local, h, learned
            law = learn_law(
                residual,
                cavity,
                law.noise,
                relative * h,
                first_width,
                bounds=bounds,
                counts=law.counts,
                width=law.law.width,
                steps=_STEPS,
            )
        return local, h, law

    return max(map(by_average, averages), key=lambda found: float(found[2].rows.log_density.sum()))
