from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from problems import LENGTHSCALE, NOISE, VARIANCE, make_data, set_hyperparameters
from rcgp.training.objectives import marginal
from rcgp_paper.baselines import GaussianGP


def sklearn_kernel():
    return ConstantKernel(VARIANCE) * RBF(LENGTHSCALE) + WhiteKernel(NOISE)


def test_value_and_posterior_are_those_of_scikit_learn():
    X, y = make_data(20)
    model = GaussianGP(X, y, noise=NOISE, mean="zero")
    set_hyperparameters(model)
    other = GaussianProcessRegressor(sklearn_kernel(), alpha=0.0, optimizer=None).fit(X, y)
    assert marginal(model).item() == pytest.approx(other.log_marginal_likelihood_value_, rel=1e-9)
    test_X = X + 0.3
    mean, deviation = other.predict(test_X, return_std=True)
    posterior = model.posterior(torch.tensor(test_X), observation_noise=True)
    np.testing.assert_allclose(posterior.mean.numpy(), mean, atol=1e-9)
    np.testing.assert_allclose(posterior.stddev.numpy(), deviation, atol=1e-9)


def test_fit_is_as_good_as_that_of_scikit_learn():
    X, y = make_data(40, outliers=0)
    model = GaussianGP(X, y, mean="zero")
    other = GaussianProcessRegressor(sklearn_kernel(), alpha=0.0, n_restarts_optimizer=2, random_state=0).fit(X, y)
    assert model.fit().value >= other.log_marginal_likelihood_value_ - 0.02
