"""Several outputs through inducing points."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

from problems_of_outputs import NOISE, TEST_X, make_data
from rcgp import MultiOutputRCGP, SparseMultiOutputRCGP, fit_robust
from rcgp.training.judgement import judge_outputs
from rcgp.training.objectives import elbo, leave_one_out, marginal
from rcgp.weights import Constant, InverseMultiquadric


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()])
def test_all_inputs_as_inducing_points_are_the_exact_model(weight):
    X, Y = make_data(missing=0.3)
    exact = MultiOutputRCGP(X, Y, weight=weight, noise=NOISE, terms=2)
    sparse = SparseMultiOutputRCGP(X, Y, inducing=X, weight=weight, noise=NOISE, terms=2)
    assert sparse.inducing_points.shape == (36, 3)
    found, expected = sparse.posterior(TEST_X), exact.posterior(TEST_X)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(leave_one_out(sparse), leave_one_out(exact), rtol=1e-5, atol=1e-4)
    if isinstance(weight, Constant):
        torch.testing.assert_close(elbo(sparse), marginal(exact), rtol=1e-4, atol=1e-3)


def test_gradients_of_the_bound():
    X, Y = make_data(n=8, missing=0.3)
    model = SparseMultiOutputRCGP(X, Y, inducing=4, weight=Constant(), noise=NOISE)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(elbo(model), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for place in range(parameter.numel()):
            values = []
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    parameter.reshape(-1)[place] += sign * 1e-6
                    values.append(float(elbo(model)))
                    parameter.reshape(-1)[place] -= sign * 1e-6
            assert float(gradient.reshape(-1)[place]) == pytest.approx(
                (values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-5
            )


def test_the_robust_fit_flags_cells():
    random = np.random.default_rng(0)
    X = np.sort(random.uniform(0, 10, (300, 1)), axis=0)
    F = np.sin(X) * np.array([1.0, -2.0])
    Y = F + 0.1 * random.standard_normal(F.shape)
    bad = random.random(F.shape) < 0.1
    Y[bad] += 4.0
    Y[100:150, 0] = np.nan
    model = SparseMultiOutputRCGP(torch.tensor(X), torch.tensor(Y), inducing=20)
    fit_robust(model)
    flagged = (model.cells(model.outlier_probability()) > 0.5).numpy()
    seen = ~np.isnan(Y)
    assert (flagged == bad)[seen].mean() > 0.99
    assert np.abs(model.posterior(torch.tensor(X)).mean.numpy() - F).mean() < 0.06
    model.choose_inducing(10)
    assert model.inducing_points.shape == (20, 2)
    assert model.posterior(torch.tensor(X)).mean.isfinite().all()


def test_inducing_points_of_another_dimension_raise():
    X, Y = make_data()
    with pytest.raises(ValueError, match="inducing must have shape m x 2"):
        SparseMultiOutputRCGP(X, Y, inducing=torch.zeros(3, 3))


def test_unsupported_options_of_shared_points_raise():
    X, Y = make_data()
    with pytest.raises(ValueError, match="cannot be trained"):
        SparseMultiOutputRCGP(X, Y, inducing=4, train_inducing=True)
    kernel = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=3)
    with pytest.raises(ValueError, match="'greedy' needs kernels of one output"):
        SparseMultiOutputRCGP(X, Y, inducing=4, kernel=kernel, selection="greedy")
    model = SparseMultiOutputRCGP(X, Y, inducing=4, kernel=kernel)
    assert model.posterior(TEST_X).mean.isfinite().all()
    assert len(judge_outputs(model, learn=True)) == 3
