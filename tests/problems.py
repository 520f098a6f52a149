"""Small problems that many tests share: a model beside the plain numbers that the dense reference needs."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch

import reference
from rcgp import RCGP
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential

LENGTHSCALE, VARIANCE, NOISE = np.array([0.9, 1.7]), 1.4, 0.05

#: A weight of the package beside its transcription.
ROBUST = {"imq": (InverseMultiquadric, reference.imq), "se": (SquaredExponential, reference.se)}
WEIGHTS = {**ROBUST, "constant": (Constant, reference.constant)}


@dataclass
class Twin:
    """A model, and the same problem as numpy arrays."""

    model: RCGP
    X: np.ndarray
    y: np.ndarray
    m: np.ndarray
    K: np.ndarray
    c: float
    w: np.ndarray
    slope: np.ndarray
    noise: float


def make_data(n=17, d=2, seed=0, outliers=3):
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (n, d))
    y = np.sin(X.sum(-1)) + 0.2 * random.standard_normal(n)
    y[:outliers] += 6.0
    return X, y


def make_twin(weight="imq", n=17, seed=0, noise=NOISE, mean="constant", **arguments) -> Twin:
    X, y = make_data(n, seed=seed)
    cls, transcription = WEIGHTS[weight]
    model = RCGP(torch.tensor(X), torch.tensor(y), weight=cls(**arguments), noise=noise, mean=mean)
    set_hyperparameters(model)
    m = y.mean() * np.ones(n) if mean == "constant" else model.mean(torch.tensor(X)).detach().numpy()
    e = y - m
    c = arguments.get("c") or reference.quantile_c(e)
    w, slope = transcription(e, c, noise)
    return Twin(model, X, y, m, reference.se_kernel(X, X, LENGTHSCALE, VARIANCE), c, w, slope, noise)


def set_hyperparameters(model: RCGP) -> None:
    model.kernel.base_kernel.lengthscale = torch.tensor(LENGTHSCALE)
    model.kernel.outputscale = torch.tensor(VARIANCE, dtype=torch.float64)


def gpytorch_gp(twin: Twin) -> tuple[gpytorch.models.ExactGP, gpytorch.likelihoods.GaussianLikelihood]:
    """GPyTorch's ordinary GP with the same data, kernel, mean and noise."""

    class ExactGP(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(torch.tensor(twin.X), torch.tensor(twin.y), likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = copy.deepcopy(twin.model.kernel)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    gp = ExactGP().double()
    gp.mean_module.constant.data.fill_(twin.m[0])
    likelihood.noise = torch.tensor(twin.noise, dtype=torch.float64)
    return gp, likelihood


def check_leave_one_out(model: RCGP) -> None:
    """Leave-one-out predictions are those of the dense formula without each row, at the same hyperparameters."""
    loo, pseudo, noise = model.leave_one_out(), model.training_terms().pseudo, model.row_noise()
    prior, K = model.mean(model.train_X), model.kernel_matrix()
    for i in range(len(K)):
        others = torch.arange(len(K)) != i
        gram, row = K[others][:, others] + torch.diag(pseudo.noise[others]), K[i, others]
        mean = prior[i] + row @ torch.linalg.solve(gram, pseudo.target[others])
        variance = K[i, i] - row @ torch.linalg.solve(gram, row) + noise.expand(len(K))[i]
        torch.testing.assert_close(loo.mean[i], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(loo.variance[i], variance, rtol=1e-8, atol=1e-8)


def check_gradients(value, parameters: list[torch.Tensor]) -> None:
    """The gradient of a value, a function without arguments, is that of central differences in each parameter."""
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for i in range(parameter.numel()):
            step, values = torch.zeros_like(parameter), []
            step.view(-1)[i] = 1e-6
            for sign in (1.0, -2.0, 1.0):
                with torch.no_grad():
                    parameter += sign * step
                    values.append(value())
            difference = (values[0] - values[1]) / 2e-6
            torch.testing.assert_close(gradient.reshape(-1)[i], difference, rtol=1e-6, atol=1e-6)
