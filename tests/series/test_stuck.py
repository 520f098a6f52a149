"""Stuck values are runs that neither chance nor rounding explains."""

import numpy as np
import pytest

from rcgp.series.stuck import Repetition, stuck_values


def spread(y, size=0.5):
    return np.full(len(y), size)


def test_runs_in_continuous_values_are_stuck_but_for_their_first_value():
    y = np.random.default_rng(0).standard_normal(500)
    y[100:112], y[300:304] = y[100], y[300]
    expected = np.zeros(500, dtype=bool)
    expected[101:112] = expected[301:304] = True
    np.testing.assert_array_equal(stuck_values(y, spread(y, 1.0)), expected)


@pytest.mark.parametrize("resolution", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_rounded_values_repeat_by_chance(resolution, noise):
    for seed in range(10):
        random = np.random.default_rng(seed)
        y = np.round((10.0 * np.sin(np.arange(2000) / 100.0) + noise * random.standard_normal(2000)) / resolution)
        assert stuck_values(y * resolution, spread(y, np.hypot(noise, resolution / 3.0))).mean() < 0.01


def test_a_flat_function_in_coarse_values_is_not_stuck():
    y = np.round(10.0 * np.sin(np.arange(3000) / 200.0), 1)
    assert not stuck_values(y, spread(y, 0.03)).any()


def test_a_value_that_comes_and_goes_is_not_stuck():
    random = np.random.default_rng(0)
    dry = np.repeat(random.random(200) < 0.5, 10)
    y = np.where(dry, 0.0, random.gamma(1.0, 3.0, 2000))
    assert not stuck_values(y, spread(y, 3.0)).any()


def test_constant_and_distinct_values_are_not_stuck():
    assert not stuck_values(np.ones(1000), spread(np.ones(1000))).any()
    assert not stuck_values(np.arange(1000.0), spread(np.ones(1000))).any()
    assert not stuck_values(np.ones(1), spread(np.ones(1))).any()


def test_the_surprise_of_a_repetition_is_its_log_probability():
    y = np.random.default_rng(0).standard_normal(99)
    known = Repetition.of(y)
    assert known.share == pytest.approx(0.01)  # no run of 99 goes on, and one more does
    assert known.surprise(3.0, 1.0) == pytest.approx(np.log(100.0))
    rounded = Repetition.of(np.round(y))
    assert rounded.coarse == pytest.approx(1.0 / np.sqrt(2.0 * np.pi))
    assert rounded.surprise(7.0, 0.1) == 0.0
    zeros = Repetition.of(np.where(np.arange(200) % 20 < 10, 0.0, np.arange(200.0)))
    assert zeros.surprise(0.0, 1e9) < 0.2 < zeros.surprise(5.5, 1e9)
