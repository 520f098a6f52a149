"""The page about a series: its words and figures, what is drawn of long series, and how a browser shows it."""

from __future__ import annotations

import copy
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rcgp import RCGPSeries
from rcgp.estimator.series import Component
from rcgp.report.series import gap_text, series_html, series_rows, write_series_report
from rcgp.report.series_figures import MOST_DRAWN, thinned
from rcgp.report.summary import half_widths
from rcgp.report.text import times
from rcgp.series.clock import Clock
from rcgp.weights import NoiseLaw
from report.reading import Table, decoded, figures_of, header_of, opened
from report.test_browser import EVIL, overlap

BAD, MISSING = [20, 47], [30, 31, 32, 55]


class Invented:
    """A series whose numbers are drawn, so that a long one costs nothing."""

    weight, n_outputs_, periods, doubts_, component_names_ = (
        "learned",
        1,
        ("1D",),
        (),
        ["level", "trend", "process", "season 1D"],
    )

    def __init__(self, t, y, flagged):
        random, n = np.random.default_rng(0), len(y)
        self.clock_ = Clock.of(t)[0]
        self.loo_mean_, self.loo_std_ = np.sin(np.arange(n) / 900.0), np.full(n, 0.3)
        self.outliers_ = np.isin(np.arange(n), flagged)
        self.outlier_scores_ = (y - self.loo_mean_) / self.loo_std_
        self.outlier_probability_ = np.where(self.outliers_, 0.99, 0.01 * random.random(n))
        self.weights_ = np.where(self.outliers_, 0.01, 1.0)
        self.noise_law_ = NoiseLaw((0.8, 0.1, 0.05, 0.0), 0.05, 3.0)
        self.noise_variance_ = 0.01
        self.fit_report_ = SimpleNamespace(
            objective="marginal", value=1.0, converged=True, message="", seconds=1.0, hyperparameters={"noise": [0.01]}
        )

    def predict(self, t, return_std=True):
        x = self.clock_.numbers(t)
        return np.sin(x / 54_000.0), 0.1 + 0.05 * np.cos(x / 7000.0)

    def noise_std(self, t):
        return np.full(len(t), np.sqrt(self.noise_law_.variance * self.noise_variance_))

    def components(self, t):
        mean, std = self.predict(t)
        names = self.component_names_
        return [Component(name, i * mean, std) for i, name in enumerate(names)]


@pytest.fixture(scope="module")
def fitted():
    """Times, values with two outliers and four missing ones, the model, and a forecast."""
    random = np.random.default_rng(0)
    t = pd.date_range("2024-03-01", periods=72, freq="1h", tz="UTC")
    y = 10.0 + 3.0 * np.sin(np.arange(72) / 8.0) + 0.1 * random.standard_normal(72)
    y[BAD[0]] += 9.0
    y[BAD[1]] += 9e3
    y[MISSING] = np.nan
    model = RCGPSeries(random_state=0).fit(t, y)
    return t, y, model, model.forecast("6h")


@pytest.fixture(scope="module")
def html(fitted):
    t, y, model, forecast = fitted
    return series_html(model, t, y, target="load", time="when", forecast=forecast, notices=["One notice."])


@pytest.fixture(scope="module")
def long():
    """200 000 minutes with 3000 flagged values, and the figures of their page."""
    n, random = 200_000, np.random.default_rng(0)
    t = pd.date_range("2023-01-01", periods=n, freq="1min")
    flagged = np.sort(random.choice(n, 3000, replace=False))
    y = np.sin(np.arange(n) / 900.0) + 0.3 * random.standard_normal(n)
    y[flagged] += random.choice([-1.0, 1.0], 3000)  # many lie among the others, where thinning could lose them
    y[90_000:95_000] = np.nan
    flagged = flagged[~np.isnan(y[flagged])]
    page = series_html(Invented(t, y, flagged), t, y, target="load")
    return t, y, flagged, page, figures_of(page)


def trace(figure, name):
    (found,) = (trace for trace in figure["data"] if trace.get("name") == name)
    return found


def test_the_verdict_comes_first(html):
    top = header_of(html)
    assert "2 of 68 rows are flagged" in top
    assert "4 without a value" in top
    assert "2024-03-01 00:00 to 2024-03-03 23:00" in top
    assert "One notice." in html


def test_the_series_has_values_band_flags_missing_stretches_and_forecast(html, fitted):
    t, y, model, forecast = fitted
    figure = figures_of(html)["fit"]
    values = decoded(trace(figure, "values")["y"])
    assert len(values) == 66
    np.testing.assert_array_equal(np.sort(decoded(trace(figure, "flagged")["y"])), np.sort(y[BAD]))
    np.testing.assert_allclose(decoded(trace(figure, "forecast")["y"]), forecast.mean)
    upper = trace(figure, "95 % band")
    expected = np.interp(
        model.clock_.numbers(t), model.clock_.numbers(pd.DatetimeIndex(upper["x"], tz="UTC")), decoded(upper["y"])
    )
    np.testing.assert_allclose(expected, model.predict_interval(t)[1], rtol=1e-6)
    shapes = [(shape["x0"][5:16], shape["x1"][5:16]) for shape in figure["layout"]["shapes"]]
    assert shapes == [("03-02T05:30", "03-02T08:30"), ("03-03T06:30", "03-03T07:30")]
    assert figure["layout"]["xaxis"]["rangeslider"]["visible"]


def test_a_flagged_value_beyond_the_frame_is_marked_at_its_edge(html, fitted):
    figure = figures_of(html)["fit"]
    low, high = figure["layout"]["yaxis"]["range"]
    assert high < 100
    mark = trace(figure, "flagged, beyond the frame")
    assert low < decoded(mark["y"])[0] < high
    assert mark["x"][0].startswith("2024-03-02T23:00")
    assert float(mark["customdata"][0][2].replace(",", "")) == pytest.approx(fitted[1][BAD[1]], abs=1)
    assert "1 flagged value lies beyond the frame" in html
    assert fitted[1][BAD[0]] < high


def test_components_add_up_and_each_has_a_panel(html, fitted):
    figures = figures_of(html)
    parts = [figures[f"component-{i}"] for i in (1, 2)]
    total = sum(decoded(trace(part, name)["y"]) for part, name in zip(parts, ("trend", "process"), strict=True))
    level = fitted[2].components(fitted[0][:1])[0].mean[0]
    np.testing.assert_allclose(level + total, decoded(trace(figures["fit"], "expected")["y"]), rtol=1e-9)
    assert "component-0" not in figures  # a constant is a number
    assert "The level is" in html


def test_the_table_lists_flagged_rows_with_their_times(html):
    heads, *rows = Table(html).rows
    assert heads[:3] == ["row", "when (UTC)", "observed"]
    assert sorted(row[:2] for row in rows[:2]) == [["21", "2024-03-01 20:00"], ["48", "2024-03-02 23:00"]]
    assert [row[-1] for row in rows[:3]] == ["yes", "yes", "no"]
    assert len(rows) == 20


def test_names_are_escaped(fitted):
    t, y, model, forecast = fitted
    page = series_html(model, t, y, target=EVIL, time=EVIL, forecast=forecast, notices=[EVIL])
    assert EVIL not in page


def test_without_a_forecast_there_is_no_section_of_it(fitted):
    t, y, model, _ = fitted
    page = series_html(model, t, y, target="load", coverage=0.8)
    assert 'id="forecast"' not in page
    assert trace(figures_of(page)["fit"], "80 % band")


def test_the_curve_ends_where_the_forecast_begins(fitted):
    t, y, model, forecast = fitted
    later = t.append(pd.DatetimeIndex(forecast.times[:3]))
    page = series_html(_with_missing_end(model, 3), later, np.append(y, [np.nan] * 3), target="load", forecast=forecast)
    figure = figures_of(page)["fit"]
    assert max(trace(figure, "expected")["x"]) < min(trace(figure, "forecast")["x"])


def _with_missing_end(model, count):
    """The model as if missing values followed the series."""
    other = copy.copy(model)
    for name in ("loo_mean_", "loo_std_", "weights_", "outliers_", "outlier_scores_", "outlier_probability_"):
        value = getattr(model, name)
        setattr(other, name, np.append(value, np.zeros(count, dtype=value.dtype)))
    return other


def test_lengths_must_agree(fitted):
    t, y, model, _ = fitted
    with pytest.raises(ValueError, match="one length, got 71, 72 and 71"):
        series_html(model, t[1:], y, target="load")


def test_rows_are_those_of_the_fit(fitted):
    t, y, model, _ = fitted
    rows = series_rows(model, t, y, tuple(range(72)))
    seen = ~np.isnan(y)
    assert rows.label == tuple(np.flatnonzero(seen))
    np.testing.assert_array_equal(rows.flagged, model.outliers_[seen])
    assert 0.85 < rows.inside[~rows.flagged].mean() <= 1.0
    assert not rows.inside[rows.flagged].any()


def test_no_flagged_point_of_a_long_series_disappears(long):
    t, y, flagged, _, figures = long
    drawn = trace(figures["fit"], "flagged")
    np.testing.assert_array_equal(pd.DatetimeIndex(drawn["x"]), t[flagged])
    np.testing.assert_array_equal(decoded(drawn["y"]), y[flagged])


def test_a_long_series_is_drawn_by_few_points_that_keep_its_extremes(long):
    t, y, flagged, page, figures = long
    drawn = trace(figures["fit"], "values")
    assert len(drawn["x"]) <= MOST_DRAWN
    good = ~np.isnan(y) & ~np.isin(np.arange(len(y)), flagged)
    # Every hour of values lies between the lowest and highest that are drawn around it.
    values = pd.Series(decoded(drawn["y"]), pd.DatetimeIndex(drawn["x"]))
    assert values.isin(y).all()
    every = pd.Series(y[good], t[good])
    assert (values.min(), values.max()) == (every.min(), every.max())
    for day, some in every.groupby(every.index.date):
        near = values[pd.Timestamp(day) - pd.Timedelta("4h") : pd.Timestamp(day) + pd.Timedelta("28h")]
        assert near.min() <= some.min()
        assert some.max() <= near.max()
    for line in figures["fit"]["data"]:
        assert len(line["x"]) <= MOST_DRAWN or line["name"] == "flagged"
    assert "the lowest and highest of each stretch are drawn" in page
    assert len(page) < 8_000_000


def test_thinning_keeps_order_ends_and_extremes_of_each_stretch():
    y = np.random.default_rng(0).standard_normal(10_001)
    kept = thinned(y, 200)
    assert len(kept) <= 200
    assert (np.diff(kept) > 0).all()
    assert {0, 10_000, int(y.argmin()), int(y.argmax())} <= set(kept.tolist())
    for part in np.array_split(np.arange(10_001), 99):
        near = y[kept[(kept >= part[0] - 101) & (kept <= part[-1] + 101)]]
        assert near.min() <= y[part].min()
        assert y[part].max() <= near.max()
    np.testing.assert_array_equal(thinned(y[:200], 200), np.arange(200))


def test_interpolated_intervals_are_those_of_the_law(long):
    t, y, flagged, _, _ = long
    model = Invented(t, y, flagged)
    model.loo_std_ = np.geomspace(0.11, 10.0, len(y))
    rows = series_rows(model, t, y, range(len(y)))
    some = np.arange(0, len(rows.noise), 9973)
    latent = rows.std[some] ** 2 - model.noise_law_.variance * rows.noise[some]
    np.testing.assert_allclose(
        rows.half_width[some], half_widths(model.noise_law_, latent, rows.noise[some]), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["2024-01-01", "2024-01-02"], ["2024-01-01", "2024-01-02"]),
        (["2024-01-01", "2024-01-02T03:00"], ["2024-01-01 00:00", "2024-01-02 03:00"]),
        (["2024-01-02T03:00:01.5"], ["2024-01-02 03:00:01.500"]),
    ],
)
def test_dates_are_as_short_as_they_can_be(values, expected):
    assert times(np.array(values, dtype="M8[ns]")) == expected
    assert times(pd.DatetimeIndex(np.array(values, dtype="M8[ns]"), tz="Europe/Paris")) == expected


def test_times_and_gaps_that_are_numbers(fitted):
    assert times(np.array([0.1 + 0.2, 1.7e9, 5.0])) == ["0.3", "1700000000", "5"]
    assert gap_text(fitted[2], 5400.0) == "1.5 h"
    assert gap_text(SimpleNamespace(clock_=Clock(0.0)), 0.25) == "0.25"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_draws_the_page_without_overlaps(browser, fitted, tmp_path, width):
    t, y, model, forecast = fitted
    write_series_report(tmp_path / "s.html", model, t, y, target="load", forecast=forecast)
    with opened(browser, tmp_path / "s.html", width=width) as page:
        assert page.get_attribute("html", "data-figures") == "drawn"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#figure-fit .rangeslider-container").count() == 1
        for figure in page.locator(".figure.whole, .figure.strip").all():
            figure.hover()
            bar = figure.locator(".modebar").bounding_box()
            for covered in (".legend", ".bglayer, .plot", ".gtitle"):
                for place in figure.locator(covered).all():
                    box = place.bounding_box()
                    assert box is None or not overlap(bar, box)
            labels = [label.bounding_box() for label in figure.locator(".xtick text").all()]
            assert len(labels) >= 2
            assert not any(overlap(one, other) for one, other in pairwise(labels))


@pytest.mark.slow
def test_dragging_chooses_a_stretch_of_time(browser, fitted, tmp_path):
    t, y, model, forecast = fitted
    write_series_report(tmp_path / "s.html", model, t, y, target="load", forecast=forecast)
    with opened(browser, tmp_path / "s.html") as page:
        shown = "document.getElementById('figure-fit')._fullLayout"
        before = page.evaluate(f"[{shown}.xaxis.range, {shown}.yaxis.range]")
        box = page.locator("#figure-fit .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
        page.mouse.up()
        page.wait_for_function(f"{shown}.xaxis.range[0] != '{before[0][0]}'")
        after = page.evaluate(f"[{shown}.xaxis.range, {shown}.yaxis.range]")
        assert before[0][0] < after[0][0] < after[0][1] < before[0][1]
        assert after[1] == before[1]


@pytest.mark.slow
def test_a_browser_draws_every_flagged_value_of_a_long_series(browser, long, tmp_path):
    _, _, flagged, html, _ = long
    (tmp_path / "long.html").write_text(html, encoding="utf-8")
    with opened(browser, tmp_path / "long.html") as page:
        drawn = page.eval_on_selector_all(
            "#figure-fit .cartesianlayer .trace.scatter",
            "all => all.map((one) => one.querySelectorAll('.point').length)",
        )
        assert len(flagged) in drawn
