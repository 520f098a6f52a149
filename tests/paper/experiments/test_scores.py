"""Scores against their definitions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from rcgp_paper.baselines import StudentTGP
from rcgp_paper.data import prepare
from rcgp_paper.experiments.methods import _prediction
from rcgp_paper.experiments.scores import normal_prediction, scale_mixture_prediction, score


def test_scores_equal_their_definitions():
    random = np.random.default_rng(0)
    y, mean, std = random.normal(size=30), random.normal(size=30), random.uniform(0.3, 2.0, 30)
    scores = score(y, normal_prediction(y, mean, std))
    assert scores["mae"] == pytest.approx(np.mean(np.abs(y - mean)))
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert scores["nlpd"] == pytest.approx(-np.mean(scipy.stats.norm(mean, std).logpdf(y)))
    low, high = scipy.stats.norm(mean, std).interval(0.95)
    assert scores["coverage"] == np.mean((low < y) & (y < high))
    assert set(scores) == {"mae", "rmse", "nlpd", "coverage", "crps"}


def test_the_crps_is_the_integral_of_the_squared_difference_of_distributions():
    y, mean, std = np.array([0.7]), np.array([-0.2]), np.array([0.9])

    def integrand(t):
        return (scipy.stats.norm(-0.2, 0.9).cdf(t) - (t >= 0.7)) ** 2

    integral = sum(scipy.integrate.quad(integrand, *ends)[0] for ends in ((-10.0, 0.7), (0.7, 10.0)))
    assert score(y, normal_prediction(y, mean, std))["crps"] == pytest.approx(integral, rel=1e-8)


def test_a_mixture_of_one_normal_is_the_normal():
    random = np.random.default_rng(1)
    y, mean, std = random.normal(size=8), random.normal(size=8), random.uniform(0.3, 2.0, 8)
    normal = normal_prediction(y, mean, std)
    mixture = scale_mixture_prediction(y, mean, normal.log_density, np.array([0.4, 0.6]), np.column_stack([std, std]))
    for name in ("mean", "log_density", "low", "high", "crps"):
        np.testing.assert_allclose(getattr(mixture, name), getattr(normal, name), rtol=1e-10)


@pytest.mark.parametrize("nu", [2.1, 3.0, 30.0])
def test_a_student_t_prediction_is_scored_as_what_it_is(nu):
    """Against samples of f and t noise; a normal with the same variance would be far from them."""
    X = torch.linspace(0, 6, 25, dtype=torch.float64).unsqueeze(-1)
    model = StudentTGP(X, torch.sin(X[:, 0]), noise=0.09, degrees_of_freedom=nu)
    at = torch.tensor([[1.3], [40.0]], dtype=torch.float64)  # inside the data, and where only the prior is left
    y = np.array([0.4, -2.5])
    problem = dataclasses.replace(prepare("synthetic", "clean"), test_X=at.numpy(), test_y=y)
    prediction = _prediction(model, problem)
    latent = model.posterior(at)
    random = np.random.default_rng(0)
    size = 1_000_000
    for i in range(2):
        f = latent.mean[i].item() + latent.stddev[i].item() * random.standard_normal(size)
        sample = f + 0.3 * random.standard_t(nu, size)
        low, high = np.quantile(sample, [0.025, 0.975])
        width = high - low
        assert prediction.low[i] == pytest.approx(low, abs=0.01 * width)
        assert prediction.high[i] == pytest.approx(high, abs=0.01 * width)
        crps = np.abs(sample - y[i]).mean() - 0.5 * np.abs(sample - random.permutation(sample)).mean()
        assert prediction.crps[i] == pytest.approx(crps, abs=0.01 * width)
        near = np.abs(sample - y[i]) < 0.01 * width
        assert prediction.log_density[i] == pytest.approx(np.log(near.mean() / (0.02 * width)), abs=0.05)
