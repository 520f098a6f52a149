"""Flags: which rows are more likely outliers than not, in small tables too, and how far each row lies out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rcgp import RCGPRegressor
from rcgp.estimator import FLAG_RULE
from rcgp.estimator.output import RowDiagnosis
from rcgp.weights.noise_law import FLAGGED

few_rows = pytest.mark.filterwarnings("ignore:.*too few to tell")
stops_early = pytest.mark.filterwarnings("ignore:the fit did not converge")  # few rows may be fitted without any noise


def clean_table(rows, seed):
    """Noise about a constant."""
    random = np.random.default_rng([seed, rows, 2])
    return np.sort(random.uniform(0, 6, rows))[:, None], 2.0 + 0.1 * random.standard_normal(rows)


def scores(y, mean, std):
    return RowDiagnosis.of(y, std, mean, std, std).outlier_scores.tolist()


def test_the_flag_rule_names_its_threshold():
    assert FLAGGED == 0.5
    assert "probability above 0.5" in FLAG_RULE


def test_scores_are_deviations_in_standard_deviations():
    y, mean, std = (torch.tensor(a, dtype=torch.float64) for a in ([1.0, 5.0, -2.0], [0.0, 5.5, 1.0], [2.0, 0.1, 3.0]))
    assert scores(y, mean, std) == pytest.approx([0.5, -5.0, -1.0])


def test_scores_are_finite_and_rounding_is_no_deviation():
    y = torch.tensor([1e300, -1e300, 3.0, 3.0, 4.0], dtype=torch.float64)
    mean = torch.tensor([0.0, 0.0, 3.0, 3.0 + 1e-12, 3.0], dtype=torch.float64)
    std = torch.tensor([1e-3, 1.0, 1e-300, 1e-20, 1e-30], dtype=torch.float64)
    assert scores(y, mean, std) == [1e6, -1e6, 0.0, 0.0, 1e6]


@stops_early
@pytest.mark.filterwarnings("ignore:.*cannot be told apart")  # one of few rows makes a heavy tail
@pytest.mark.filterwarnings("ignore:.*count less than half")
@pytest.mark.filterwarnings("ignore:.*noise law does not fit")
@pytest.mark.slow
@pytest.mark.parametrize("rows", [15, 40])
def test_clean_rows_have_hardly_any_flags(rows):
    flags = [RCGPRegressor().fit(*clean_table(rows, seed)).outliers_.mean() for seed in range(50)]
    assert np.mean(flags) <= 0.02
    assert np.median(flags) == 0.0


@few_rows
@stops_early
@pytest.mark.parametrize("rows", [10, 15, 30])
def test_a_gross_outlier_among_few_rows_is_flagged(rows):
    X, y = clean_table(rows, 0)
    y[rows // 2] += 2.0  # twenty standard deviations
    assert np.flatnonzero(RCGPRegressor().fit(X, y).outliers_).tolist() == [rows // 2]


@few_rows
def test_rows_left_out_of_the_fit_are_flagged_though_the_law_is_normal():
    X, y = clean_table(40, 0)
    counted = np.arange(40) != 20
    y[20] += 3.0  # thirty standard deviations
    model = RCGPRegressor().fit(X, y, sample_weight=counted)
    assert model.noise_law_.is_normal
    assert np.flatnonzero(model.outliers_).tolist() == [20]
    assert model.outlier_scores_[20] > 20.0


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_flags_do_not_depend_on_units(unit):
    X, y = clean_table(30, 0)
    y[12] += 2.0
    np.testing.assert_array_equal(RCGPRegressor().fit(X, unit * y).outliers_, RCGPRegressor().fit(X, y).outliers_)
