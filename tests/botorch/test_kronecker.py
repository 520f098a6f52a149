"""Constant weights are BoTorch's GP of several outputs with Kronecker structure."""

from __future__ import annotations

import warnings

import gpytorch
import pytest
import torch
from botorch.models import KroneckerMultiTaskGP

from problems_of_outputs import NOISE, TEST_X, make_data
from rcgp import MultiOutputRCGP
from rcgp.training.objectives import marginal
from rcgp.weights import Constant


@pytest.mark.parametrize(("rank", "noise"), [(1, NOISE), (3, NOISE), (2, torch.full_like(NOISE, 0.2))])
def test_constant_weights_are_botorchs_kronecker_gp(rank, noise):
    X, Y = make_data(n=8, missing=0.0)
    torch.manual_seed(0)
    twin = KroneckerMultiTaskGP(X, Y, rank=rank, data_covar_module=gpytorch.kernels.RBFKernel(ard_num_dims=2))
    twin.likelihood.noise, twin.likelihood.task_noises = 0.05, noise
    means = list(twin.mean_module.base_means)
    for mean, value in zip(means, (0.3, 1.0, 2.0), strict=True):
        mean.initialize(constant=torch.tensor(value).double())
    own, task = twin.covar_module.data_covar_module, twin.covar_module.task_covar_module
    own.lengthscale = torch.tensor([[0.7, 1.6]]).double()
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=2)
    model = MultiOutputRCGP(X, Y, kernel=kernel, rank=rank, weight=Constant(), noise=noise + 0.05, mean=means)
    model.kernel.kernels[0].lengthscale = own.lengthscale.detach()
    with torch.no_grad():
        model.kernel.indices[0].covar_factor.copy_(task.covar_factor)
        model.kernel.indices[0].var = task.var.detach()
    with warnings.catch_warnings(), gpytorch.settings.fast_computations(False, False, False), torch.no_grad():
        warnings.simplefilter("ignore")
        value = twin.likelihood(twin.train()(X)).log_prob(Y)
        expected = twin.eval().posterior(TEST_X)
        noisy = twin.posterior(TEST_X, observation_noise=True)
    torch.testing.assert_close(marginal(model), value, rtol=1e-8, atol=1e-8)
    found = model.posterior(TEST_X)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-8)
    if len(set(noise.tolist())) == 1:  # BoTorch 0.18's variances are those of equal noise in all outputs
        torch.testing.assert_close(found.variance, expected.variance, rtol=1e-8, atol=1e-8)
        found = model.posterior(TEST_X, observation_noise=True)
        torch.testing.assert_close(found.variance, noisy.variance, rtol=1e-8, atol=1e-8)
