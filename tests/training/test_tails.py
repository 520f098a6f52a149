from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rcgp.training.tails import _BULK, fit_tail

DEGREES = [1.5, 2, 3, 4, 6, 10, 30, np.inf]
SCALES = np.geomspace(0.1, 2.0, 40)


def samples(kind, n, seed=0):
    random = np.random.default_rng(seed)
    return np.abs(random.standard_normal(n) if kind == "normal" else random.standard_t(kind, n))


def grid_search(size, scales):
    """Value, degrees and scale of the largest likelihood of the sizes in the bulk, given that they are."""
    bulk, best = size[size <= _BULK], (-np.inf, None, None)
    for nu in reversed(DEGREES):
        for s in scales:
            law = stats.norm(scale=s) if np.isinf(nu) else stats.t(nu, scale=s)
            value = law.logpdf(bulk).sum() - bulk.size * np.log(law.cdf(_BULK) - law.cdf(-_BULK))
            if value > best[0]:
                best = value, nu, s
    return best


@pytest.mark.parametrize("kind", ["normal", 4, 2])
@pytest.mark.parametrize("outliers", [0, 20])
def test_it_is_the_best_of_a_grid(kind, outliers):
    size = np.r_[samples(kind, 80, seed=1), np.linspace(6.0, 40.0, outliers)]
    tail = fit_tail(size)
    _, degrees, scale = grid_search(size, SCALES)
    assert (tail.degrees, tail.scale) == (degrees, pytest.approx(scale))


def test_a_finer_grid_finds_nearly_the_same():
    size = samples("normal", 150, seed=2)
    value, degrees, scale = grid_search(size, np.geomspace(0.5, 2.0, 200))
    tail = fit_tail(size)
    assert value - grid_search(size, [tail.scale])[0] < 0.5
    assert tail.scale == pytest.approx(scale, rel=0.1)
    assert tail.degrees >= 10
    assert degrees >= 10


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_normal_residuals_have_a_normal_tail_whatever_the_outliers(seed, share):
    size = samples("normal", 2000, seed)
    size[: int(share * 2000)] = np.geomspace(20.0, 1e300, int(share * 2000) or 1)[: int(share * 2000)]
    tail = fit_tail(size)
    assert tail.degrees >= 30
    assert tail.scale == pytest.approx(1.0, abs=0.09)
    # Where 0.2 of the 2000 are expected farther out.
    assert tail.threshold == pytest.approx(stats.norm.ppf(1 - 0.1 / 2000), rel=0.2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_heavy_residuals_have_a_heavy_tail_whatever_the_outliers(seed, share):
    size = samples(2, 2000, seed)
    size[: int(share * 2000)] = 1e6
    tail = fit_tail(size)
    # What lies below three does not tell two degrees of freedom from six, but does from a normal distribution.
    assert 1.5 <= tail.degrees <= 6
    assert tail.scale == pytest.approx(1.0, abs=0.25)
    assert 7.0 < tail.threshold < 1e4


def test_a_gap_ends_a_heavy_tail():
    bulk = samples(1, 400)
    bulk = bulk[bulk <= 5.0]
    size = np.r_[bulk, 5.5, 7.0, 9.0, 16.0, 100.0]
    heavy = fit_tail(np.r_[bulk, np.geomspace(5.5, 1e4, 60)])
    assert heavy.threshold > 13.0
    assert fit_tail(size).threshold == pytest.approx(12.0)  # the geometric middle of 9 and 16


def test_a_gap_within_the_bulk_or_beyond_a_light_tail_changes_nothing():
    size = samples("normal", 100)
    assert fit_tail(np.r_[size, 40.0]).threshold == pytest.approx(fit_tail(size).threshold, rel=0.01)


def test_the_threshold_is_at_least_three_and_a_half():
    for size in (np.zeros(50), np.full(50, 0.01), samples("normal", 30) * 0.1, np.array([0.2])):
        assert fit_tail(size).threshold == 3.5


def test_nothing_in_the_bulk_leaves_the_normal_tail():
    for size in (np.full(10, 7.0), np.full(3, np.inf), np.zeros(0)):
        tail = fit_tail(size)
        assert (tail.degrees, tail.scale) == (np.inf, 1.0)
        assert tail.threshold == 3.5


def test_sizes_without_limit_count_as_outliers():
    size = samples("normal", 60)
    finite, infinite = fit_tail(np.r_[size, 1e300]), fit_tail(np.r_[size, np.inf])
    assert infinite == finite
    assert np.isfinite(infinite.threshold)
    assert fit_tail(np.r_[size, np.inf, np.inf]).threshold == pytest.approx(finite.threshold, rel=0.02)


def test_the_order_of_residuals_does_not_matter():
    size = np.r_[samples(3, 100), 50.0, 20.0, 6.0]
    first, second = fit_tail(size), fit_tail(size[::-1].copy())
    assert first.degrees == second.degrees
    assert first.scale == pytest.approx(second.scale, rel=1e-12)
    assert first.threshold == pytest.approx(second.threshold, rel=1e-12)
