"""scikit-learn's kernels as GPyTorch's, with the same bounds and fixed parameters; others are refused by name."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.models.defaults import Between, above

__all__ = ["Noise", "known_kernels", "translate"]

KNOWN = "RBF, Matern, RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel, WhiteKernel, sums and products"


#: The noise variance of a WhiteKernel: its initial value and its bounds, which are equal if it is fixed.
Noise: TypeAlias = NDArray[np.float64]


class _Part(NamedTuple):
    """A translated kernel: a kernel of f, noise, or both."""

    kernel: gpytorch.kernels.Kernel | None
    noise: Noise | None


def translate(kernel: sk.Kernel, n_features: int) -> tuple[gpytorch.kernels.Kernel, Noise | None]:
    """A scikit-learn kernel as a GPyTorch kernel of f, and the noise of its WhiteKernel, if any.

    Args:
        kernel: made of RBF, Matern (nu 0.5, 1.5, 2.5, inf), RationalQuadratic, ExpSineSquared (one feature),
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
        kernels, noises = zip(_translate(kernel.k1, d), _translate(kernel.k2, d), strict=True)
        return _Part(_sum(kernels), _sum(noises))
    if type(kernel) is sk.Product:
        return _product(kernel, d)
    if type(kernel) is sk.WhiteKernel:
        return _Part(None, _within(kernel.noise_level, kernel.noise_level_bounds))
    if type(kernel) not in _LEAVES:
        raise ValueError(
            f"kernel {kernel} ({type(kernel).__name__}) has no GPyTorch counterpart here; those that have are {KNOWN}. "
            "Give a GPyTorch kernel instead"
        )
    return _Part(_leaf(kernel, d), None)


def _within(value: float, bounds: Any) -> Noise:
    """A value with scikit-learn's bounds: a pair, or ``"fixed"``."""
    return np.array([value, *((value, value) if isinstance(bounds, str) else np.reshape(bounds, (-1, 2))[0])])


def _sum(terms: Sequence[Any]) -> Any:
    """Sum of the terms that are not ``None``; ``None`` without any."""
    present = [term for term in terms if term is not None]
    return functools.reduce(operator.add, present) if present else None


def _product(kernel: sk.Product, d: int) -> _Part:
    """A product. With a constant it is GPyTorch's ScaleKernel; only a constant may multiply noise."""
    constant, other = (kernel.k1, kernel.k2) if type(kernel.k1) is sk.ConstantKernel else (kernel.k2, kernel.k1)
    part = _translate(other, d)
    if type(constant) is sk.ConstantKernel:
        factor = _within(constant.constant_value, constant.constant_value_bounds)
        noise = None if part.noise is None else factor * part.noise
        scaled = None if part.kernel is None else gpytorch.kernels.ScaleKernel(part.kernel)
        if scaled is not None:
            _set(scaled, "outputscale", constant.constant_value, constant.constant_value_bounds)
        return _Part(scaled, noise)
    first = _translate(constant, d)
    if part.noise is not None or first.noise is not None or part.kernel is None or first.kernel is None:
        raise ValueError(f"kernel {kernel}: a WhiteKernel can be multiplied by a ConstantKernel only")
    return _Part(first.kernel * part.kernel, None)


# GPyTorch's class for each of scikit-learn's, and its parameters: name there, scikit-learn's name, and the power of it.
_LENGTHSCALE = ("lengthscale", "length_scale", 1)
_LEAVES: dict[type, tuple[Any, tuple[tuple[str, str, int], ...]]] = {
    sk.RBF: (gpytorch.kernels.RBFKernel, (_LENGTHSCALE,)),
    sk.Matern: (gpytorch.kernels.MaternKernel, (_LENGTHSCALE,)),
    sk.RationalQuadratic: (gpytorch.kernels.RQKernel, (_LENGTHSCALE, ("alpha", "alpha", 1))),
    sk.ExpSineSquared: (
        gpytorch.kernels.PeriodicKernel,
        (("period_length", "periodicity", 1), ("lengthscale", "length_scale", 2)),
    ),
    sk.DotProduct: (gpytorch.kernels.ConstantKernel, (("constant", "sigma_0", 2),)),  # to which x·x' is added
    sk.ConstantKernel: (gpytorch.kernels.ConstantKernel, (("constant", "constant_value", 1),)),
}


def _leaf(kernel: sk.Kernel, d: int) -> gpytorch.kernels.Kernel:
    """A kernel that is neither a sum nor a product nor noise."""
    cls, parameters = _LEAVES[type(kernel)]
    options: dict[str, Any] = {}
    if isinstance(kernel, sk.ExpSineSquared) and d != 1:
        raise ValueError(
            f"kernel {kernel}: scikit-learn's ExpSineSquared takes the sine of a distance, GPyTorch's PeriodicKernel "
            f"one of each difference; they agree for one feature only, and the data have {d}. Give a GPyTorch kernel"
        )
    if isinstance(kernel, sk.Matern) and kernel.nu == np.inf:
        cls = gpytorch.kernels.RBFKernel
    elif isinstance(kernel, sk.Matern):
        if kernel.nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"kernel {kernel}: nu must be 0.5, 1.5, 2.5 or inf, which GPyTorch has, got {kernel.nu:g}")
        options["nu"] = kernel.nu
    if hasattr(kernel, "length_scale"):  # one, or one for each feature
        size = np.size(kernel.length_scale)
        if size not in (1, d):
            raise ValueError(f"kernel {kernel} has {size} length scales, the data have {d} features")
        if size > 1:
            options["ard_num_dims"] = size
    translated = cls(**options)
    for name, given, power in parameters:
        _set(translated, name, getattr(kernel, given), getattr(kernel, f"{given}_bounds"), power)
    if isinstance(kernel, sk.DotProduct):
        return _set(gpytorch.kernels.LinearKernel(), "variance", 1.0, "fixed") + translated
    return translated


def _set(
    kernel: gpytorch.kernels.Kernel, name: str, value: Any, bounds: Any, power: int = 1
) -> gpytorch.kernels.Kernel:
    """The kernel with value and bounds of a parameter; GPyTorch's parameter is scikit-learn's to this power."""
    parameter = getattr(kernel.double(), f"raw_{name}")
    if isinstance(bounds, str):  # "fixed"
        constraint = above(0.0)
    else:
        pairs = np.reshape(bounds, (-1, 2)) ** power
        low, high = (_shaped(pairs[:, side], parameter) for side in (0, 1))
        constraint = Between(low, high)
    kernel.register_constraint(f"raw_{name}", constraint)
    with torch.no_grad():  # GPyTorch's setter may reject a value on a bound because of rounding
        parameter.copy_(_shaped(np.atleast_1d(value) ** power, parameter).log())
    parameter.requires_grad_(not isinstance(bounds, str))
    return kernel


def _shaped(values: Any, parameter: Tensor) -> Tensor:
    tensor = torch.as_tensor(np.array(values, dtype=np.float64))
    return tensor.expand(parameter.numel()).reshape(parameter.shape).clone()
