from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from problems import LENGTHSCALE, NOISE, VARIANCE, make_data, set_hyperparameters
from rcgp.training.objectives import marginal
from rcgp_paper.baselines import GaussianGP, RelevancePursuitGP, WinsorizedGP


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


def test_observations_beyond_tukey_s_fences_are_clipped_to_them():
    X, y = make_data(30)
    model = WinsorizedGP(X, y)
    first, third = np.percentile(y, 25, method="lower"), np.percentile(y, 75, method="higher")
    low, high = first - 1.5 * (third - first), third + 1.5 * (third - first)
    assert model.fences == pytest.approx((low, high))
    np.testing.assert_allclose(model.train_y.numpy(), np.clip(y, low, high))
    assert model.clipped.tolist() == [True] * 3 + [False] * 27


def test_it_is_the_ordinary_gp_of_the_clipped_observations():
    X, y = make_data(30)
    model = WinsorizedGP(X, y)
    ordinary = GaussianGP(X, model.train_y)
    assert model.fit().value == ordinary.fit().value
    torch.testing.assert_close(model.posterior(X).mean, ordinary.posterior(X).mean)


def test_data_within_the_fences_and_an_infinite_reach_change_nothing():
    X, y = make_data(30)
    for model in (WinsorizedGP(X, y, reach=math.inf), WinsorizedGP(X, np.full(30, 2.0), reach=math.inf)):
        assert not model.clipped.any()
    torch.testing.assert_close(WinsorizedGP(X, y, reach=math.inf).train_y, torch.tensor(y))
    inside = np.sin(X.sum(-1))
    torch.testing.assert_close(WinsorizedGP(X, inside).train_y, torch.tensor(inside))


@pytest.mark.parametrize("reach", [-1.0, math.nan])
def test_an_invalid_reach_raises(reach):
    with pytest.raises(ValueError, match="reach must be a number, at least 0"):
        WinsorizedGP(torch.zeros(3, 1), torch.zeros(3), reach=reach)


def test_without_botorch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch", None)
    model = RelevancePursuitGP(*make_data(5))
    with pytest.raises(ImportError, match=r"rcgp\[botorch\]"):
        model.fit()


def test_before_a_fit_it_is_the_ordinary_gp():
    X, y = make_data(15)
    model, ordinary = RelevancePursuitGP(X, y), GaussianGP(X, y)
    torch.testing.assert_close(model.posterior(X).mean, ordinary.posterior(X).mean)
    assert not model.outlier_variances.any()


@pytest.fixture
def pursued(monkeypatch):
    """A fitted model, and the model of BoTorch that it was taken from."""
    pytest.importorskip("botorch")
    taken = []
    take_over = RelevancePursuitGP._take_over
    monkeypatch.setattr(
        RelevancePursuitGP, "_take_over", lambda self, model: (taken.append(model), take_over(self, model))
    )
    inputs = 3.0 + 2.0 * torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
    y = 50.0 + 10.0 * torch.sin(0.5 * inputs[:, 0]) + torch.randn(30, dtype=torch.float64)
    y[5:30:10] += 80.0
    model = RelevancePursuitGP(inputs, y)
    report = model.fit()
    return model, report, taken[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_botorch_finds_the_outliers_and_predicts_the_same(pursued):
    model, report, other = pursued
    assert report.evaluations > 10
    assert (model.outlier_variances[5:30:10] > 100).all()
    assert (model.weights()[5:30:10] < 0.5).all()
    test_X = model.train_X[:7] + 0.3
    with torch.no_grad():
        expected, got = other.posterior(test_X), model.posterior(test_X)
        torch.testing.assert_close(got.mean, expected.mean.squeeze(-1), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(got.variance, expected.variance.squeeze(-1), rtol=1e-3, atol=1e-3)
