"""Scores against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rcgp.experiments.scores import score


def test_scores_equal_their_definitions():
    random = np.random.default_rng(0)
    y, mean, std = random.normal(size=30), random.normal(size=30), random.uniform(0.3, 2.0, 30)
    scores = score(y, mean, std)
    assert scores["mae"] == pytest.approx(np.mean(np.abs(y - mean)))
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert scores["nlpd"] == pytest.approx(-np.mean(scipy.stats.norm(mean, std).logpdf(y)))
    low, high = scipy.stats.norm(mean, std).interval(0.95)
    assert scores["coverage"] == np.mean((low < y) & (y < high))


def test_the_crps_is_the_integral_of_the_squared_difference_of_distributions():
    y, mean, std = np.array([0.7]), np.array([-0.2]), np.array([0.9])

    def integrand(t):
        return (scipy.stats.norm(-0.2, 0.9).cdf(t) - (t >= 0.7)) ** 2

    integral = sum(scipy.integrate.quad(integrand, *ends)[0] for ends in ((-10.0, 0.7), (0.7, 10.0)))
    assert score(y, mean, std)["crps"] == pytest.approx(integral, rel=1e-8)
