"""scikit-learn's kernels as GPyTorch's: the same function of two points, the same bounds, the same fixed parameters.

A kernel that has no counterpart is refused by name: a silently different kernel would be worse than none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from torch import Tensor

from rcgp.models.defaults import Between, above

__all__ = ["Noise", "known_kernels", "translate"]

KNOWN = "RBF, Matern, RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel, WhiteKernel, sums and products"


@dataclass(frozen=True)
class Noise:
    """The noise variance that a WhiteKernel asks for: where it starts, its bounds, and whether it stays there."""

    variance: float
    bounds: tuple[float, float]
    fixed: bool

    def scaled(self, factor: float) -> Noise:
        """This noise in other units: every variance times the factor."""
        return Noise(self.variance * factor, (self.bounds[0] * factor, self.bounds[1] * factor), self.fixed)


@dataclass(frozen=True)
class _Part:
    """What a piece of a kernel became: a kernel of f, noise, or both."""

    kernel: gpytorch.kernels.Kernel | None
    noise: Noise | None


def translate(kernel: sk.Kernel, n_features: int) -> tuple[gpytorch.kernels.Kernel, Noise | None]:
    """A scikit-learn kernel as a GPyTorch kernel of f, and the noise that its WhiteKernel, if any, stands for.

    Args:
        kernel: a kernel made of RBF, Matern (nu 0.5, 1.5, 2.5, inf), RationalQuadratic, ExpSineSquared (one feature),
            DotProduct, ConstantKernel, WhiteKernel, sums and products.
        n_features: number of columns of the data.

    Raises:
        ValueError: for a kernel without counterpart, naming it.
    """
    part = _translate(kernel, n_features)
    if part.kernel is None:
        raise ValueError(f"kernel {kernel} is nothing but noise: add a kernel for the function, such as RBF()")
    return part.kernel.double(), part.noise


def known_kernels() -> dict[str, type[sk.Kernel]]:
    """The classes of kernels that can be translated, by name."""
    return {cls.__name__: cls for cls in (*_LEAVES, sk.WhiteKernel, sk.Sum, sk.Product)}


def _translate(kernel: sk.Kernel, d: int) -> _Part:
    if type(kernel) is sk.Sum:
        return _sum(_translate(kernel.k1, d), _translate(kernel.k2, d))
    if type(kernel) is sk.Product:
        return _product(kernel, d)
    if type(kernel) is sk.WhiteKernel:
        return _Part(None, _noise(kernel))
    if type(kernel) not in _LEAVES:
        raise ValueError(
            f"kernel {kernel} ({type(kernel).__name__}) has no GPyTorch counterpart here; known are {KNOWN}. "
            "Give a GPyTorch kernel instead"
        )
    return _Part(_LEAVES[type(kernel)](kernel, d), None)


def _sum(first: _Part, second: _Part) -> _Part:
    kernels = [part.kernel for part in (first, second) if part.kernel is not None]
    noises = [part.noise for part in (first, second) if part.noise is not None]
    kernel = None if not kernels else kernels[0] if len(kernels) == 1 else kernels[0] + kernels[1]
    noise = noises[0] if noises else None
    if len(noises) == 2:
        noise = Noise(
            noises[0].variance + noises[1].variance,
            (noises[0].bounds[0] + noises[1].bounds[0], noises[0].bounds[1] + noises[1].bounds[1]),
            noises[0].fixed and noises[1].fixed,
        )
    return _Part(kernel, noise)


def _product(kernel: sk.Product, d: int) -> _Part:
    """A product; that with a constant is GPyTorch's ScaleKernel, and the only one that noise may take part in."""
    constant, other = (kernel.k1, kernel.k2) if type(kernel.k1) is sk.ConstantKernel else (kernel.k2, kernel.k1)
    part = _translate(other, d)
    if type(constant) is sk.ConstantKernel:
        return _Part(_scaled(constant, part.kernel), _scaled_noise(constant, part.noise))
    factor = _translate(constant, d)
    if part.noise is not None or factor.noise is not None:
        raise ValueError(f"kernel {kernel}: a WhiteKernel can be multiplied by a ConstantKernel only")
    assert factor.kernel is not None
    assert part.kernel is not None
    return _Part(factor.kernel * part.kernel, None)


def _scaled(constant: sk.ConstantKernel, kernel: gpytorch.kernels.Kernel | None) -> gpytorch.kernels.Kernel | None:
    if kernel is None:
        return None
    scaled = gpytorch.kernels.ScaleKernel(kernel).double()
    _set(scaled, "outputscale", constant.constant_value, constant.constant_value_bounds)
    return scaled


def _scaled_noise(constant: sk.ConstantKernel, noise: Noise | None) -> Noise | None:
    """Constant times noise: one variance. Free if either was, within the products of the bounds."""
    if noise is None:
        return None
    scale = _noise_of(constant.constant_value, constant.constant_value_bounds)
    low = (scale.variance if scale.fixed else scale.bounds[0]) * (noise.variance if noise.fixed else noise.bounds[0])
    high = (scale.variance if scale.fixed else scale.bounds[1]) * (noise.variance if noise.fixed else noise.bounds[1])
    return Noise(scale.variance * noise.variance, (low, high), scale.fixed and noise.fixed)


def _noise(kernel: sk.WhiteKernel) -> Noise:
    return _noise_of(kernel.noise_level, kernel.noise_level_bounds)


def _noise_of(value: float, bounds: Any) -> Noise:
    fixed = isinstance(bounds, str)
    low, high = (value, value) if fixed else np.reshape(bounds, (-1, 2))[0].tolist()
    return Noise(float(value), (float(low), float(high)), fixed)


def _rbf(kernel: sk.RBF, d: int) -> gpytorch.kernels.Kernel:
    return _with_lengthscale(gpytorch.kernels.RBFKernel, kernel, d)


def _matern(kernel: sk.Matern, d: int) -> gpytorch.kernels.Kernel:
    if kernel.nu == np.inf:
        return _with_lengthscale(gpytorch.kernels.RBFKernel, kernel, d)
    if kernel.nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"kernel {kernel}: nu must be 0.5, 1.5, 2.5 or inf, which GPyTorch has, got {kernel.nu:g}")
    return _with_lengthscale(lambda **named: gpytorch.kernels.MaternKernel(nu=kernel.nu, **named), kernel, d)


def _rational_quadratic(kernel: sk.RationalQuadratic, d: int) -> gpytorch.kernels.Kernel:
    translated = _with_lengthscale(gpytorch.kernels.RQKernel, kernel, d)
    _set(translated, "alpha", kernel.alpha, kernel.alpha_bounds)
    return translated


def _periodic(kernel: sk.ExpSineSquared, d: int) -> gpytorch.kernels.Kernel:
    if d != 1:
        raise ValueError(
            f"kernel {kernel}: scikit-learn's ExpSineSquared takes the sine of a distance, GPyTorch's PeriodicKernel "
            f"one of each difference; they agree for one feature only, and the data have {d}. Give a GPyTorch kernel"
        )
    translated = gpytorch.kernels.PeriodicKernel().double()
    _set(translated, "period_length", kernel.periodicity, kernel.periodicity_bounds)
    # GPyTorch's lengthscale of a periodic kernel is scikit-learn's squared.
    _set(translated, "lengthscale", kernel.length_scale, kernel.length_scale_bounds, power=2)
    return translated


def _dot_product(kernel: sk.DotProduct, d: int) -> gpytorch.kernels.Kernel:
    linear, offset = gpytorch.kernels.LinearKernel().double(), gpytorch.kernels.ConstantKernel().double()
    _set(linear, "variance", 1.0, "fixed")
    _set(offset, "constant", kernel.sigma_0, kernel.sigma_0_bounds, power=2)
    return linear + offset


def _constant(kernel: sk.ConstantKernel, d: int) -> gpytorch.kernels.Kernel:
    translated = gpytorch.kernels.ConstantKernel().double()
    _set(translated, "constant", kernel.constant_value, kernel.constant_value_bounds)
    return translated


_LEAVES: dict[type, Callable[[Any, int], gpytorch.kernels.Kernel]] = {
    sk.RBF: _rbf,
    sk.Matern: _matern,
    sk.RationalQuadratic: _rational_quadratic,
    sk.ExpSineSquared: _periodic,
    sk.DotProduct: _dot_product,
    sk.ConstantKernel: _constant,
}


def _with_lengthscale(make: Callable[..., Any], kernel: Any, d: int) -> gpytorch.kernels.Kernel:
    """A stationary kernel with one lengthscale, or one for each feature where the given kernel has as many."""
    lengthscale = np.atleast_1d(kernel.length_scale)
    if lengthscale.size not in (1, d):
        raise ValueError(f"kernel {kernel} has {lengthscale.size} length scales, the data have {d} features")
    translated = make(ard_num_dims=lengthscale.size if lengthscale.size > 1 else None).double()
    _set(translated, "lengthscale", lengthscale, kernel.length_scale_bounds)
    return translated


def _set(kernel: gpytorch.kernels.Kernel, name: str, value: Any, bounds: Any, power: int = 1) -> None:
    """Give a parameter its value, bounds and whether it is fixed; ``power`` where GPyTorch's is a power of it."""
    parameter = getattr(kernel, f"raw_{name}")
    if isinstance(bounds, str):  # "fixed"
        constraint = above(0.0)
    else:
        pairs = np.reshape(bounds, (-1, 2)) ** power
        low, high = (_shaped(pairs[:, side], parameter) for side in (0, 1))
        constraint = Between(low, high)
    kernel.register_constraint(f"raw_{name}", constraint)
    with torch.no_grad():  # GPyTorch's setter would refuse a value on a bound for a rounding error
        parameter.copy_(_shaped(np.atleast_1d(value) ** power, parameter).log())
    parameter.requires_grad_(not isinstance(bounds, str))


def _shaped(values: Any, parameter: Tensor) -> Tensor:
    tensor = torch.as_tensor(np.array(values, dtype=np.float64))
    return tensor.expand(parameter.numel()).reshape(parameter.shape).clone()
