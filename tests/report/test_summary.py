from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from rcgp.report.summary import Column, Rows, columns_of, drawn_rows, listed_rows, predictive_law, rows_of, scores_of
from rcgp.report.text import counted, date, for_html, for_plotly, fraction, number, percent
from rcgp.table import Column as TableColumn
from rcgp.table import Encoding, encode
from rcgp.weights import NoiseLaw


def make_rows(n, flagged=(), seed=0):
    random = np.random.default_rng(seed)
    flags = np.zeros(n, dtype=bool)
    flags[list(flagged)] = True
    weight = random.uniform(0.2, 1.0, n)
    observed = random.standard_normal(n)
    probability = np.where(flags, 0.5, 0.0) + 0.5 * random.random(n)
    ones = np.ones(n)
    return Rows(tuple(range(n)), observed, np.zeros(n), ones, weight, flags, observed, probability, ones, 1.96 * ones)


def test_rows_lie_within_intervals_by_the_noise_law(one_feature):
    X, y, robust, plain = one_feature
    rows = rows_of(robust, X, y.to_numpy(), tuple(X.index))
    law = robust.noise_law_
    assert predictive_law(robust) is law
    assert predictive_law(plain).is_normal  # its law is learned after the fit, for flags alone
    noise = robust.models_[0].noise_scale(torch.tensor(X.to_numpy()))
    np.testing.assert_allclose(rows.noise, noise, rtol=1e-9)
    latent = torch.from_numpy(robust.loo_std_**2) - law.variance * noise
    tail = law.quantile(torch.tensor(0.975, dtype=torch.float64), latent.clamp_min(0.0), noise)
    np.testing.assert_allclose(rows.half_width, tail, rtol=1e-6)
    np.testing.assert_array_equal(rows.inside, np.abs(y - robust.loo_mean_) <= rows.half_width)
    ordinary = rows_of(plain, X, y.to_numpy(), tuple(X.index))
    np.testing.assert_allclose(ordinary.half_width, 1.959964 * plain.loo_std_, rtol=1e-6)


def test_intervals_of_rows_with_large_sample_weights_have_the_right_variance(table, invented):
    X, y = table(30)
    model = invented(X, y)
    model.noise_law_ = NoiseLaw.normal()
    model.loo_std_ = np.full(30, 0.1 * model.noise_std(X)[0])  # as with a sample weight of a hundred
    rows = rows_of(model, X, y.to_numpy(), tuple(X.index))
    np.testing.assert_allclose(rows.half_width, 1.959964 * model.loo_std_, rtol=1e-6)


def test_coverage_of_no_rows_is_unknown_not_zero():
    rows = make_rows(5)
    assert np.isnan(scores_of(rows, np.ones(5, dtype=bool), 1.0).coverage_kept)


def test_scores_are_plain_averages_and_leave_out_the_flagged():
    ones, zeros = np.ones(3), np.zeros(3)
    observed = np.array([1.0, -2.0, 100.0])
    rows = Rows((1, 2, 3), observed, zeros, ones, ones, np.zeros(3, bool), zeros, zeros, ones, 1.96 * ones)
    scores = scores_of(rows, np.array([False, False, True]), 2.0)
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


def test_with_too_many_flagged_rows_the_most_suspicious_are_drawn():
    rows = make_rows(100, flagged=range(60))
    drawn = drawn_rows(rows, limit=10)
    assert rows.flagged[drawn].all()
    assert rows.probability[drawn].min() >= np.sort(rows.probability[:60])[-10]


@pytest.mark.parametrize(("n", "flagged", "expected"), [(3, 0, 3), (100, 0, 20), (100, 5, 20), (400, 300, 200)])
def test_the_table_lists_flagged_rows_and_fills_up_with_the_most_suspicious(n, flagged, expected):
    rows = make_rows(n, flagged=range(flagged))
    listed = listed_rows(rows)
    assert len(listed) == expected
    assert rows.flagged[listed].sum() == min(flagged, 200)
    assert (np.diff(rows.probability[listed]) <= 0).all()


def test_rows_of_equal_probability_are_sorted_by_score():
    rows = replace(make_rows(30), probability=np.ones(30))
    np.testing.assert_array_equal(rows.by_suspicion, np.argsort(-np.abs(rows.score), kind="stable"))


def test_a_model_of_other_rows_is_a_clear_error(table, invented):
    X, y = table(30)
    with pytest.raises(ValueError, match=r"loo_mean_ of the model has shape \(30,\) but y has \(29,\)"):
        rows_of(invented(X, y), X, y.to_numpy()[1:], tuple(range(29)))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.1235"),
        (2024.0, "2024"),
        (123456.7, "123,457"),
        (9999.4, "9999"),
        (9999.6, "10,000"),
        (-20241.2, "-20,241"),
        (999_999_999.4, "999,999,999"),
        (-12.0, "-12"),
        (0.0, "0"),
        (1.23456e-12, "1.235e-12"),
        (-7.8294e-6, "-7.829e-6"),
        (0.000099999, "0.0001"),
        (1.23456e12, "1.235e12"),
        (7.2164e9, "7.216e9"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_numbers_have_four_digits_that_matter(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (8.2e-6, "<0.001"),
        (0.001, "0.001"),
        (0.1254, "0.125"),
        (0.5, "0.5"),
        (0.99, "0.99"),
        (0.9996, ">0.999"),
        (1.0, "1"),
        (1.25, "1.25"),
        (10.0, "10"),
    ],
)
def test_fractions_never_round_to_certainty(value, shown):
    assert fraction(value) == shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2024-12-31", "2024-12-31"),
        ("2024-12-31T18:30", "2024-12-31 18:30"),
        ("2024-12-31T18:00", "2024-12-31 18:00"),
        ("2024-12-31T00:00:05", "2024-12-31 00:00:05"),
        ("1848-02-22T23:59:59", "1848-02-22 23:59:59"),
        ("0001-01-01", "0001-01-01"),
    ],
)
def test_days_read_as_dates(written, shown):
    days = np.datetime64(written, "s").astype(np.int64) / 86_400
    assert date(days) == shown
    assert Column("when", ("when",), "date").text(days) == shown


def test_a_date_that_is_missing_is_a_dash():
    assert date(float("nan")) == "–"


@pytest.mark.parametrize("levels", [("only",), ("no", "yes"), ("a", "b", "c")])
def test_a_category_is_read_from_its_indicators_and_written_back(levels):
    encoded = TableColumn("kind", "category", levels)
    frame = pd.DataFrame({"kind": [*levels, *levels[::-1]], "y": np.arange(2.0 * len(levels))})
    X = encode(frame, Encoding("y", (encoded,))).X
    (column,) = columns_of(X, [encoded])
    values = column.values(X)
    assert [column.text(value) for value in values] == list(frame["kind"])
    np.testing.assert_array_equal(column.encoded(values), X)


def test_columns_must_be_those_of_the_features(table):
    X, _ = table(5, ("size", "age"))
    assert [column.kind for column in columns_of(X, None)] == ["number", "number"]
    for names in (["age", "size"], ["size"], ["size", "age", "floor"]):
        with pytest.raises(ValueError, match="columns do not give the features of X"):
            columns_of(X, [TableColumn(name, "number") for name in names])


def test_counts_and_shares_read_as_words():
    assert [counted(1, "row"), counted(10_000, "row")] == ["1 row", "10,000 rows"]
    assert [percent(0.9416), percent(float("nan"))] == ["94.2 %", "–"]


def test_names_are_escaped_for_either_reader():
    name = """<b>"a"</b> %{x} $y$ & 'z'"""
    assert for_html(name) == "&lt;b&gt;&quot;a&quot;&lt;/b&gt; %{x} $y$ &amp; &#x27;z&#x27;"
    assert for_plotly(name) == """&lt;b&gt;"a"&lt;/b&gt; %&#123;x} &#36;y&#36; &amp; 'z'"""
    assert for_plotly("x" * 50) == "x" * 27 + "…"
