"""GPyTorch's kernels on one input as state-space models: a sum of terms, each a coefficient times factors.

Products are multiplied out, and a periodic kernel becomes a sum of cosines,

    exp(−2 sin²(πτ/p) / ℓ) = Σ_j c_j cos(2πjτ/p),    c_0 = e^(−1/ℓ) I_0(1/ℓ),    c_j = 2 e^(−1/ℓ) I_j(1/ℓ),

cut off after a number of harmonics. All c_j are positive and add up to one, so that the error of the kernel, for the
variance one, is nowhere larger than one minus the sum of those kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.series.transitions import COSINE, DIMENSIONS, LINEAR, MATERN

__all__ = [
    "HARMONICS",
    "Layout",
    "Term",
    "groups_of",
    "harmonic_error",
    "layout_of",
    "on_columns",
    "prior_covariance",
    "terms_of",
]

#: Harmonics of a periodic kernel. The error of the kernel is below 1e-7 for ℓ ≥ 1, 4e-4 for ℓ = 0.3, 7 % for ℓ = 0.1.
HARMONICS = 7


@dataclass(frozen=True)
class Term:
    """A coefficient times factors.

    Attributes:
        coefficient: a scalar, the variance of the term.
        factors: kind and parameter of each factor, the rate of a Matérn kernel or the frequency of a cosine.
    """

    coefficient: Tensor
    factors: tuple[tuple[int, Tensor], ...] = ()

    def times(self, other: Term) -> Term:
        return Term(self.coefficient * other.coefficient, self.factors + other.factors)


@dataclass(frozen=True)
class Layout:
    """What is fixed of a kernel: all but its parameters.

    Attributes:
        ends: number of factors up to and with each term.
        kinds: kind of each factor.
    """

    ends: tuple[int, ...]
    kinds: tuple[int, ...]

    @property
    def factors(self) -> tuple[tuple[int, ...], ...]:
        """Kinds of the factors of each term."""
        starts = (0, *self.ends[:-1])
        return tuple(self.kinds[start:end] for start, end in zip(starts, self.ends, strict=True))

    @property
    def blocks(self) -> tuple[int, ...]:
        """Size of the state of each term."""
        return tuple(math.prod(int(DIMENSIONS[kind]) for kind in kinds) for kinds in self.factors)

    @property
    def has_trend(self) -> bool:
        """Whether variances grow with the distance from time zero."""
        return LINEAR in self.kinds

    @property
    def depends_on_time(self) -> bool:
        """Whether a transition depends on when it happens: where a trend is multiplied by something."""
        return any(LINEAR in kinds and len(kinds) > 1 for kinds in self.factors)

    @property
    def values(self) -> NDArray[np.float64]:
        """h, which takes the value of the process from its state: the sum of the first entries of the blocks."""
        h = np.zeros(sum(self.blocks))
        h[np.cumsum((0, *self.blocks[:-1]))] = 1.0
        return h


def layout_of(terms: list[Term]) -> Layout:
    """The layout of a kernel's terms."""
    ends = tuple(int(end) for end in np.cumsum([len(term.factors) for term in terms]))
    return Layout(ends, tuple(kind for term in terms for kind, _ in term.factors))


def terms_of(kernel: gpytorch.kernels.Kernel, harmonics: int = HARMONICS) -> list[Term]:
    """The terms of a kernel, differentiable in its parameters.

    Raises:
        ValueError: for a kernel without a state-space form.
    """
    if len(kernel.batch_shape):
        raise ValueError(f"the kernel must not be a batch of kernels, got batch_shape {tuple(kernel.batch_shape)}")
    if kernel.active_dims is not None and kernel.active_dims.tolist() != [0]:
        raise ValueError(f"a kernel on times has one input, got active_dims {kernel.active_dims.tolist()}")
    kernels = gpytorch.kernels
    if isinstance(kernel, kernels.AdditiveKernel):
        return [term for part in kernel.kernels for term in terms_of(part, harmonics)]
    if isinstance(kernel, kernels.ProductKernel):
        product = [Term(torch.ones((), dtype=torch.float64))]
        for part in kernel.kernels:
            factors = terms_of(part, harmonics)
            product = [term.times(factor) for term in product for factor in factors]
        return product
    for kind, build in _BUILDERS.items():
        if type(kernel) is getattr(kernels, kind):
            return build(kernel, harmonics)
    advice = (
        "take MaternKernel(nu=2.5), which is nearly as smooth"
        if isinstance(kernel, kernels.RBFKernel)
        else (
            "use MaternKernel, CosineKernel, PeriodicKernel, ConstantKernel, LinearKernel, and their scales, sums and "
            "products"
        )
    )
    raise ValueError(f"{type(kernel).__name__} has no state-space form of finite size: {advice}")


def prior_covariance(terms: list[Term], first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The kernel of these terms between ``q`` and ``p`` times, ``q x p``, without gradient."""
    gap = np.abs(first[:, None] - second)
    K = np.zeros_like(gap)
    for term in terms:
        product = np.full_like(gap, float(term.coefficient.detach()))
        for kind, parameter in term.factors:
            x = float(parameter.detach()) * gap
            if kind == COSINE:
                product *= np.cos(x)
            elif kind == LINEAR:
                product *= first[:, None] * second
            else:
                polynomial = (1.0, 1.0 + x, 1.0 + x + x * x / 3.0)[kind]
                product *= polynomial * np.exp(-x)
        K += product
    return K


def harmonic_error(kernel: gpytorch.kernels.Kernel, harmonics: int = HARMONICS) -> float:
    """Largest error of the kernel's periodic parts, each relative to its variance, by cutting off their harmonics."""
    errors = [0.0]
    for part in kernel.modules():
        if isinstance(part, gpytorch.kernels.PeriodicKernel):
            x = 1.0 / float(part.lengthscale.detach())
            errors.append(max(0.0, 1.0 - float(_coefficients(x, harmonics).sum())))
    return max(errors)


def _scalar(parameter: Any, name: str) -> Tensor:
    if parameter.numel() != 1:
        raise ValueError(f"a kernel on times has one {name}, got {parameter.numel()}")
    value: Tensor = parameter.double().reshape(())
    return value


def _matern(kernel: gpytorch.kernels.MaternKernel, harmonics: int) -> list[Term]:
    rate = math.sqrt(2.0 * kernel.nu) / _scalar(kernel.lengthscale, "lengthscale")
    return [Term(torch.ones_like(rate), ((MATERN[kernel.nu], rate),))]


def _scaled(kernel: gpytorch.kernels.ScaleKernel, harmonics: int) -> list[Term]:
    scale = Term(_scalar(kernel.outputscale, "output scale"))
    return [term.times(scale) for term in terms_of(kernel.base_kernel, harmonics)]


def _cosine(kernel: gpytorch.kernels.CosineKernel, harmonics: int) -> list[Term]:
    frequency = math.pi / _scalar(kernel.period_length, "period")
    return [Term(torch.ones_like(frequency), ((COSINE, frequency),))]


def _constant(kernel: gpytorch.kernels.ConstantKernel, harmonics: int) -> list[Term]:
    return [Term(_scalar(kernel.constant, "constant"))]


def _linear(kernel: gpytorch.kernels.LinearKernel, harmonics: int) -> list[Term]:
    variance = _scalar(kernel.variance, "variance")
    return [Term(variance, ((LINEAR, torch.zeros_like(variance)),))]


def _periodic(kernel: gpytorch.kernels.PeriodicKernel, harmonics: int) -> list[Term]:
    frequency = 2.0 * math.pi / _scalar(kernel.period_length, "period")
    c: Tensor = _Harmonics.apply(_scalar(kernel.lengthscale, "lengthscale").reciprocal(), harmonics)  # type: ignore[no-untyped-call]
    return [Term(c[0]), *(Term(c[j], ((COSINE, j * frequency),)) for j in range(1, harmonics + 1))]


_BUILDERS: dict[str, Callable[[Any, int], list[Term]]] = {
    "MaternKernel": _matern,
    "ScaleKernel": _scaled,
    "CosineKernel": _cosine,
    "ConstantKernel": _constant,
    "LinearKernel": _linear,
    "PeriodicKernel": _periodic,
}


def _coefficients(x: float, harmonics: int) -> NDArray[np.float64]:
    """c_0 … c_J at x = 1/ℓ."""
    c = np.asarray(scipy.special.ive(np.arange(harmonics + 1), x), dtype=np.float64)
    c[1:] *= 2.0
    return c


class _Harmonics(torch.autograd.Function):
    """1/ℓ ↦ c_0 … c_J, with e^(−x) (I_{j−1} + I_{j+1}) / 2 − e^(−x) I_j as the derivative of e^(−x) I_j."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, harmonics: int) -> Tensor:
        value = float(x)
        scaled = scipy.special.ive(np.arange(harmonics + 2), value)
        below = np.concatenate([scaled[1:2], scaled[:harmonics]])
        slope = 0.5 * (below + scaled[1:]) - scaled[:-1]
        slope[1:] *= 2.0
        ctx.slope = torch.from_numpy(slope)
        return torch.from_numpy(_coefficients(value, harmonics))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad * ctx.slope).sum(), None


def on_columns(kernel: gpytorch.kernels.Kernel, first: int, count: int) -> gpytorch.kernels.Kernel:
    """A kernel of ``count`` columns on those from ``first`` on: with the same parameters, which it shares."""
    columns = torch.arange(count) if kernel.active_dims is None else kernel.active_dims
    kind: Any = type(kernel)
    moved = kind.__new__(kind)  # copy.copy of a GPyTorch kernel shares the buffers, too
    moved.__dict__.update(vars(kernel), _buffers={**kernel._buffers, "active_dims": columns + first})
    return moved


def groups_of(
    kernel: gpytorch.kernels.Kernel, harmonics: int = HARMONICS
) -> Iterator[tuple[gpytorch.kernels.Kernel, int]]:
    """The summands of a kernel, each with its number of terms."""
    parts = kernel.kernels if isinstance(kernel, gpytorch.kernels.AdditiveKernel) else [kernel]
    for part in parts:
        yield part, len(terms_of(part, harmonics))
