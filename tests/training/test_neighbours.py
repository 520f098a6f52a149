from __future__ import annotations

import numpy as np
import pytest
import torch

from rcgp.training.neighbours import ask_neighbours


def sine(n=100, seed=0, d=1):
    random = np.random.default_rng(seed)
    X = random.uniform(0, 6, (n, d))
    return X, np.sin(X[:, 0]) + 0.1 * random.standard_normal(n)


def asked(X, y):
    return ask_neighbours(torch.as_tensor(X), torch.as_tensor(y))


def within(result, y):
    """The rows within three robust standard deviations of what their neighbours say."""
    return (torch.as_tensor(y) - result.median).abs() <= 3.0 * result.spread


def brute_force(X, y):
    """The same row by row, with sorted lists."""
    low, high = np.quantile(X, [0.05, 0.95], axis=0)
    scale = np.where(high > low, (high - low) / 3.29, 1.0)
    n = len(y)

    def medians(allowed):
        values = np.full(n, np.nan)
        for i in range(n):
            distance = np.sqrt((((X - X[i]) / scale) ** 2).sum(-1))
            others = [j for j in range(n) if j != i]
            last = sorted(distance[others])[min(15, n - 1) - 1]
            near = [y[j] for j in others if distance[j] <= last * (1 + 1e-9) and allowed[j]]
            values[i] = np.median(near) if near else np.nan
        return values

    def spread(residual):
        return np.median(np.abs(residual)) / 0.6745

    first = medians(np.ones(n, bool))
    agree = np.abs(y - first) <= 2 * spread(y - first)
    second = medians(agree)
    second = np.where(np.isnan(second), first, second)
    s = spread((y - second)[agree])
    return second, np.abs(y - second) <= 3 * s, s


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("n", [2, 3, 5, 16, 17, 80, 300])
def test_medians_equal_a_search_row_by_row(n, d):
    X, y = sine(n, d=d)
    y[: n // 5] += 7.0
    result = asked(X, y)
    median, trusted, spread = brute_force(X, y)
    np.testing.assert_allclose(result.median.numpy(), median, atol=1e-12)
    assert within(result, y).tolist() == trusted.tolist()
    assert result.spread == pytest.approx(spread)


def test_two_rows_speak_for_each_other():
    assert asked(np.array([[0.0], [1.0]]), np.array([3.0, 5.0])).median.tolist() == [5.0, 3.0]


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e7])
def test_equal_distances_do_not_depend_on_the_order_of_rows(offset):
    """A grid, where most neighbours are as far away as others, and far from zero, as dates are."""
    side = np.arange(9.0)
    X = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2) + offset
    y = np.random.default_rng(0).standard_normal(81)
    expected = asked(X - offset, y)
    np.testing.assert_allclose(expected.median.numpy(), brute_force(X - offset, y)[0], atol=1e-12)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(81)
        result = asked(X[order], y[order])
        assert torch.equal(result.median, expected.median[order])
        assert result.spread == expected.spread


def test_the_offset_of_inputs_changes_nothing():
    X = np.arange(100.0)[:, None] * 0.125
    y = np.sin(X[:, 0])
    assert torch.equal(asked(X, y).median, asked(X + 2.0**24, y).median)


def test_units_of_the_columns_do_not_matter():
    X, y = sine(d=2)
    result = asked(X * np.array([1024.0, 0.0625]), y * 8.0)
    assert torch.equal(result.median, asked(X, y).median * 8.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("share", "sides"), [(0.4, [-1.0, 1.0]), (0.3, [1.0])], ids=["40 % either side", "30 % above"])
def test_many_outliers_do_not_move_the_medians(share, sides, seed):
    X, y = sine(150, seed)
    random = np.random.default_rng(100 + seed)
    bad = np.arange(150) < share * 150
    y[bad] += random.choice(sides, bad.sum()) * random.uniform(3, 9, bad.sum())
    result = asked(X, y)
    error = np.abs(result.median.numpy() - np.sin(X[:, 0]))
    assert np.mean(error < 0.5) > 0.9
    assert not within(result, y)[bad].any()
    assert within(result, y)[~bad].double().mean() > 0.9
    assert result.spread < 0.2  # of noise 0.1 and the function's own change among fifteen neighbours


@pytest.mark.parametrize("seed", range(4))
def test_with_forty_percent_above_most_medians_are_still_near(seed):
    """Where more than half of fifteen neighbours are outliers, as happens here in places, the median is one too."""
    X, y = sine(150, seed)
    y[:60] += 8.0
    error = np.abs(asked(X, y).median.numpy() - np.sin(X[:, 0]))
    assert np.median(error) < 0.3


def test_a_constant_column_has_no_say():
    X, y = sine()
    assert torch.equal(asked(np.c_[X, np.full(100, 5.0)], y).median, asked(X, y).median)


def test_rows_whose_neighbours_all_disagree_keep_the_first_median():
    """Twenty rows at one place with values far apart, and many rows elsewhere that agree."""
    X = np.r_[np.zeros(16), np.linspace(100, 101, 60)][:, None]
    y = np.r_[np.linspace(50, 1000, 16), np.zeros(60) + 0.01 * np.arange(60)]
    result = asked(X, y)
    assert result.median.isfinite().all()
    np.testing.assert_allclose(result.median.numpy(), brute_force(X, y)[0])
    assert result.median[0] > 50


def test_extreme_values_move_no_median_of_others():
    X, y = sine(60)
    y[7] = 1e3
    moderate = asked(X, y)
    y[7] = 1e300
    extreme = asked(X, y)
    assert torch.equal(moderate.median, extreme.median)
    assert not within(extreme, y)[7]


def test_most_values_equal_have_no_spread():
    y = np.zeros(40)
    y[::10] = 3.0
    result = asked(np.arange(40.0)[:, None], y)
    assert result.spread == 0.0
    assert within(result, y).tolist() == (y == 0).tolist()
