"""The rule that flags rows: its limits in tables of any size, and what it does to small ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from rcgp import RCGPRegressor
from rcgp.estimator.outliers import flagged, score_limit


@pytest.mark.parametrize("rows", [3, 5, 10, 30, 300])
@pytest.mark.parametrize(("adaptive", "limit", "each"), [(True, 5.0, 1), (False, 3.5, 2)])
def test_limits_have_the_tail_of_a_normal_variable(rows, adaptive, limit, each):
    degrees = each * (rows - 2)
    tail = scipy.stats.t(degrees).sf(score_limit(adaptive, rows))
    assert tail == pytest.approx(scipy.stats.norm.sf(limit), rel=1e-6)


@pytest.mark.parametrize(("adaptive", "limit"), [(True, 5.0), (False, 3.5)])
def test_limits_fall_with_the_number_of_rows_to_those_of_a_large_table(adaptive, limit):
    sizes = [score_limit(adaptive, rows) for rows in (3, 4, 5, 10, 20, 50, 300, 3000)]
    assert sizes == sorted(sizes, reverse=True)
    assert score_limit(adaptive, 300) == pytest.approx(limit, rel=0.03)
    assert score_limit(adaptive, 10**6) == pytest.approx(limit, rel=1e-4)
    assert score_limit(adaptive, 1) == score_limit(adaptive, 2)  # of which there is no quantile with fewer degrees


def test_the_documented_figures_are_those_of_the_rule():
    assert [round(score_limit(True, rows), 1) for rows in (10, 20, 50)] == [14.2, 7.5, 5.8]
    assert [round(score_limit(False, rows), 1) for rows in (10, 20, 50)] == [4.4, 3.9, 3.6]
    assert round(score_limit(True, 5)) == 157
    assert round(score_limit(True, 300), 1) == 5.1


def test_adaptive_flags_ask_for_both_distance_and_distrust():
    scores = torch.tensor([4.9, -5.2, 5.2, -1e6, 14.0, 14.5], dtype=torch.float64)
    weights = torch.tensor([0.1, 0.1, 0.8, 0.1, 0.1, 0.1], dtype=torch.float64)
    assert flagged(scores, weights, True, 10_000).tolist() == [False, True, False, True, True, True]
    assert flagged(scores, weights, True, 10).tolist() == [False, False, False, True, False, True]
    assert flagged(scores, weights, False, 10_000).all()


def clean_table(rows, seed):
    """Noise about a constant."""
    random = np.random.default_rng([seed, rows, 2])
    return np.sort(random.uniform(0, 6, rows))[:, None], 2.0 + 0.1 * random.standard_normal(rows)


@pytest.mark.filterwarnings("ignore:the fit did not converge")  # five rows may be fitted without any noise
@pytest.mark.parametrize(
    ("centre", "seed", "limit"),
    [("adaptive", 6, 5.0), ("adaptive", 7, 5.0), ("adaptive", 18, 5.0), ("prior", 9, 3.5), ("prior", 10, 3.5)],
)
def test_five_clean_rows_have_no_flags(centre, seed, limit):
    model = RCGPRegressor(centre=centre).fit(*clean_table(5, seed))
    assert np.abs(model.outlier_scores_).max() > limit  # which would flag it in a large table
    assert not model.outliers_.any()


@pytest.mark.filterwarnings("ignore:the fit did not converge")
@pytest.mark.parametrize("rows", [10, 15, 30])
def test_a_gross_outlier_among_few_rows_is_flagged(rows):
    X, y = clean_table(rows, 0)
    y[rows // 2] += 2.0  # twenty standard deviations
    assert np.flatnonzero(RCGPRegressor().fit(X, y).outliers_).tolist() == [rows // 2]


def test_only_rows_that_count_make_a_table_large():
    X, y = clean_table(40, 0)
    counted = np.arange(40) < 8
    model = RCGPRegressor().fit(X, y, sample_weight=counted)
    for score, flag in ((15.0, False), (25.0, True)):  # the limits are 22 for 8 rows and 6 for 40
        y[20] = model.loo_mean_[20] + score * model.loo_std_[20]  # no part of the fit
        again = RCGPRegressor().fit(X, y, sample_weight=counted)
        assert again.outlier_scores_[20] == pytest.approx(score, rel=1e-6)
        assert again.weights_[20] < 0.5**0.5
        assert again.outliers_[20] == flag
