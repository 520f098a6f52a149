"""A kernel with a network in front of it, as any kernel of GPyTorch: in RCGP, and in the robust fit."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from torch import nn

from rcgp import RCGP, SparseRCGP, fit_robust
from rcgp.training.objectives import leave_one_out, marginal
from rcgp.weights import Constant


class DeepKernel(gpytorch.kernels.Kernel):
    def __init__(self, inputs):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, inputs))
        self.base_kernel = gpytorch.kernels.RBFKernel(ard_num_dims=inputs)

    def forward(self, x1, x2, diag=False, **options):
        return self.base_kernel.forward(x1 + self.network(x1), x2 + self.network(x2), diag=diag, **options)


def data(n=80):
    random = torch.Generator().manual_seed(0)
    x = (4.0 * torch.rand(n, generator=random, dtype=torch.float64) - 2.0).sort().values
    truth = torch.sign(x) + 0.3 * torch.sin(3 * x)
    wrong = torch.rand(n, generator=random) < 0.1
    y = truth + 0.1 * torch.randn(n, generator=random, dtype=torch.float64) + 2.0 * wrong
    return x.unsqueeze(-1), y, truth, wrong


def kernel():
    torch.manual_seed(0)
    return gpytorch.kernels.ScaleKernel(DeepKernel(1)).double()


def test_gradients_go_through_the_network():
    X, y, *_ = data(20)
    for model, objective in ((RCGP(X, y, kernel=kernel()), leave_one_out),
                             (RCGP(X, y, kernel=kernel(), weight=Constant()), marginal)):  # fmt: skip
        parameter = model.kernel.base_kernel.network[0].weight
        objective(model).backward()
        step, gradient = 1e-6, float(parameter.grad[2, 0])
        values = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                parameter[2, 0] += sign * step
                values.append(float(objective(model)))
                parameter[2, 0] -= sign * step
        assert gradient == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4)


def test_the_robust_fit_trains_the_network():
    X, y, truth, wrong = data()
    model = RCGP(X, y, kernel=kernel(), mean="median")
    before = model.kernel.base_kernel.network[0].weight.detach().clone()
    fit_robust(model, max_iterations=60)
    assert not torch.equal(before, model.kernel.base_kernel.network[0].weight.detach())
    with torch.no_grad():
        error = float((model.posterior(X).mean - truth).abs().mean())
    flags = model.outlier_probability() > 0.5
    assert error < 0.12
    assert float((flags == wrong).double().mean()) > 0.95


def test_a_sparse_model_takes_it_too():
    X, y, *_ = data()
    model = SparseRCGP(X, y, kernel=kernel(), inducing=15, mean="median")
    with torch.no_grad():
        assert bool(model.posterior(X).mean.isfinite().all())
