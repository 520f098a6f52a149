from __future__ import annotations

import numpy as np
import pytest

from rcgp.report.summary import LEVELS, Rows, calibration, coverage, drawn_rows, listed_rows, rows_of, scores_of
from rcgp.report.text import counted, for_html, for_plotly, number, percent


def make_rows(n, flagged=(), seed=0):
    random = np.random.default_rng(seed)
    flags = np.zeros(n, dtype=bool)
    flags[list(flagged)] = True
    weight = random.uniform(0.2, 1.0, n)
    observed = random.standard_normal(n)
    return Rows(tuple(range(n)), observed, np.zeros(n), np.ones(n), weight, flags, observed)


def test_coverage_of_normal_errors_is_the_nominal_one():
    errors = np.random.default_rng(0).standard_normal(20_000)
    observed = calibration(3.0 * errors, np.full(20_000, 3.0))
    np.testing.assert_allclose(observed, LEVELS, atol=0.012)
    assert coverage(errors, np.ones(20_000), 0.95) == observed[LEVELS.index(0.95)]


def test_coverage_of_no_rows_is_unknown_not_zero():
    assert np.isnan(coverage(np.array([]), np.array([]), 0.95))


def test_scores_are_plain_averages_and_leave_out_the_flagged():
    rows = Rows(
        (1, 2, 3),
        np.array([1.0, -2.0, 100.0]),
        np.zeros(3),
        np.array([1.0, 1.0, 1.0]),
        np.ones(3),
        np.zeros(3, bool),
        np.zeros(3),
    )
    scores = scores_of(rows, np.array([False, False, True]), 4.0)
    assert scores.mean_error == pytest.approx(103 / 3)
    assert scores.mean_error_kept == 1.5
    assert scores.median_error == 2.0
    assert scores.coverage == pytest.approx(1 / 3)
    assert scores.coverage_kept == 0.5
    assert scores.noise_std == 2.0


def test_all_flagged_rows_are_drawn_and_the_sample_is_always_the_same():
    rows = make_rows(5000, flagged=range(0, 5000, 100))
    drawn = drawn_rows(rows)
    assert len(drawn) == len(set(drawn.tolist())) == 3000
    assert set(range(0, 5000, 100)) <= set(drawn.tolist())
    np.testing.assert_array_equal(drawn, drawn_rows(rows))
    np.testing.assert_array_equal(drawn_rows(make_rows(40)), np.arange(40))


def test_with_too_many_flagged_rows_the_most_surprising_are_drawn():
    rows = make_rows(100, flagged=range(60))
    drawn = drawn_rows(rows, limit=10)
    assert rows.flagged[drawn].all()
    assert rows.surprise[drawn].min() >= np.sort(rows.surprise[:60])[-10]


@pytest.mark.parametrize(("n", "flagged", "expected"), [(3, 0, 3), (100, 0, 20), (100, 5, 20), (400, 300, 200)])
def test_the_table_lists_flagged_rows_and_fills_up_with_the_most_surprising(n, flagged, expected):
    rows = make_rows(n, flagged=range(flagged))
    listed = listed_rows(rows)
    assert len(listed) == expected
    assert rows.flagged[listed].sum() == min(flagged, 200)
    assert (np.diff(np.abs(rows.score[listed])) <= 0).all()


def test_a_model_of_other_rows_is_a_clear_error(table, invented):
    X, y = table(30)
    with pytest.raises(ValueError, match=r"loo_mean_ of the model has shape \(30,\) but y has \(29,\)"):
        rows_of(invented(X, y), y.to_numpy()[1:], tuple(range(29)))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.1235"),
        (2024.0, "2024"),
        (123456.7, "123457"),
        (-12.0, "-12"),
        (0.0, "0"),
        (1.23456e-12, "1.235e-12"),
        (1.23456e12, "1.235e12"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_numbers_have_four_digits_that_matter(value, shown):
    assert number(value) == shown


def test_counts_and_shares_read_as_words():
    assert [counted(1, "row"), counted(10_000, "row")] == ["1 row", "10,000 rows"]
    assert [percent(0.9416), percent(float("nan"))] == ["94.2 %", "–"]


def test_names_are_escaped_for_either_reader():
    name = """<b>"a"</b> %{x} $y$ & 'z'"""
    assert for_html(name) == "&lt;b&gt;&quot;a&quot;&lt;/b&gt; %{x} $y$ &amp; &#x27;z&#x27;"
    assert for_plotly(name) == """&lt;b&gt;"a"&lt;/b&gt; %&#123;x} &#36;y&#36; &amp; 'z'"""
    assert for_plotly("x" * 50) == "x" * 27 + "…"
