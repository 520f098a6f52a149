"""Kernels on times, each with a dense twin that computes distances by differences and not by squares.

GPyTorch's distances, |a|² + |b|² − 2ab, are wrong by 1e-8 at equal times; the twins of a state-space model must not be.
"""

from __future__ import annotations

import copy
import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    ScaleKernel,
)

from rcgp import RCGP, StateSpaceRCGP


def number(value):
    """In float64: GPyTorch's setters round a float of Python to float32."""
    return torch.tensor([[value]], dtype=torch.float64)


def matern(nu, lengthscale=0.7):
    kernel = MaternKernel(nu=nu, lengthscale_constraint=gpytorch.constraints.Positive()).double()
    kernel.lengthscale = number(lengthscale)
    return kernel


def cosine(period=1.3):
    kernel = CosineKernel().double()
    kernel.period_length = number(period)
    return kernel


def periodic(period=1.1, lengthscale=2.0):
    kernel = PeriodicKernel().double()
    kernel.period_length, kernel.lengthscale = number(period), number(lengthscale)
    return kernel


def constant(value=1.7):
    kernel = ConstantKernel().double()
    kernel.constant = number(value)
    return kernel


def linear(variance=0.4):
    kernel = LinearKernel().double()
    kernel.variance = number(variance)
    return kernel


def scaled(kernel, scale=1.8):
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = number(scale).reshape(())
    return kernel


#: Few layouts of the state among them, since numba compiles each for seconds. Tests of SLOW ones are slow.
KERNELS = {
    "matern12": lambda: scaled(matern(0.5)),
    "matern32": lambda: scaled(matern(1.5)),
    "matern52": lambda: scaled(matern(2.5)),
    "cosine": lambda: scaled(cosine()),
    "constant": constant,
    "linear": linear,
    "sum": lambda: constant() + linear() + scaled(matern(1.5)),  # the layout of the default of RCGPSeries
    "sum of two": lambda: scaled(matern(1.5)) + scaled(cosine(), 0.6),
    "damped cosine": lambda: scaled(matern(1.5)) * cosine(),
    "linear x matern": lambda: linear() * matern(1.5),
    "product": lambda: scaled(matern(1.5)) * matern(2.5, 2.0),
    "scaled product of sums": lambda: scaled((matern(0.5) + cosine()) * constant()),
    "quasi-periodic": lambda: scaled(matern(0.5, 2.0) * periodic()),
}

SLOW = ("product", "matern12", "scaled product of sums")


def with_marks(cases):
    """Test cases that begin with the name of a kernel; slow ones are marked as such."""
    return [pytest.param(*case, marks=pytest.mark.slow if case[0] in SLOW else ()) for case in cases]


STATIONARY = tuple(name for name in KERNELS if "linear" not in name and name != "sum")

#: Enough harmonics for the periodic kernel above: its error is below 1e-12.
HARMONICS = 9


def covariance(kernel, t1, t2):
    """A kernel between times, from the formulas of the textbooks; differentiable in its parameters."""
    if isinstance(kernel, AdditiveKernel):
        return sum(covariance(part, t1, t2) for part in kernel.kernels)
    if isinstance(kernel, ProductKernel):
        return math.prod(covariance(part, t1, t2) for part in kernel.kernels)
    if isinstance(kernel, ScaleKernel):
        return kernel.outputscale * covariance(kernel.base_kernel, t1, t2)
    tau = (t1.unsqueeze(-1) - t2.unsqueeze(-2)).abs()
    if isinstance(kernel, LinearKernel):
        return kernel.variance.reshape(()) * t1.unsqueeze(-1) * t2.unsqueeze(-2)
    if isinstance(kernel, ConstantKernel):
        return kernel.constant.reshape(()) * torch.ones_like(tau)
    if isinstance(kernel, CosineKernel):
        return (math.pi * tau / kernel.period_length.reshape(())).cos()
    if isinstance(kernel, PeriodicKernel):
        sine = (math.pi * tau / kernel.period_length.reshape(())).sin()
        return (-2.0 * sine.square() / kernel.lengthscale.reshape(())).exp()
    x = math.sqrt(2.0 * kernel.nu) * tau / kernel.lengthscale.reshape(())
    return {0.5: 1.0, 1.5: 1.0 + x, 2.5: 1.0 + x + x.square() / 3.0}[kernel.nu] * (-x).exp()


class DenseKernel(gpytorch.kernels.Kernel):
    """The same kernel, from the formulas."""

    def __init__(self, kernel):
        super().__init__()
        self.own = kernel

    def forward(self, x1, x2, diag=False, **params):
        if diag:
            return self.forward(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]
        return covariance(self.own, x1[..., 0], x2[..., 0])


def make_twins(kernel, times, y, **arguments):
    """A state-space model and the dense one of the same rows, kernel and weights, with modules of their own."""
    dense = {"kernel": DenseKernel(copy.deepcopy(kernel)), **copy.deepcopy(arguments)}
    model = StateSpaceRCGP(times, y, kernel=kernel, harmonics=HARMONICS, **arguments)
    if "sample_weight" in dense:
        dense["sample_weight"] = dense["sample_weight"][model.observed]
    return model, RCGP(model.train_X, model.train_y, **{"mean": "median", **dense})
