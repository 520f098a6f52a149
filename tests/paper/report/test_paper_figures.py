"""Drawings of the paper's figures: every series there, every axis named, no text cut off."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from marks import slow
from rcgp_paper.experiments import EXPERIMENTS, Options, Record
from rcgp_paper.report.figures import DRAWINGS, draw_figure

FOLDER = Path(__file__).parents[4] / "shared" / "data"

#: For each panel the labels of both axes, its title, and what its legend must tell apart.
EPSILONS = tuple(f"ε = {epsilon}" for epsilon in ("0.01", "0.05", "0.1", "0.2", "0.5", "0.9"))
POINTS = ("observation", "outlier")
SPARSE = ("SVGP", "SVGP, noise fitted", "RCSVGP", "RCSVGP, leave-one-out")
CRASH = ("RCGP", "ST-RCGP's rule", "RCGP, learned law")
METHODS = ("GP", "RCGP", "RCGP as in the paper", "t-GP")
OPTIMISATION = [
    ("", "cumulative regret", "six-hump camel", METHODS),
    *(("", "", title, METHODS) for title in ("Branin", "McCormick", "Rosenbrock")),
    ("step", "clock time (s)", "", METHODS),
    *[("step", "", "", METHODS)] * 3,
]
PANELS = {
    "figure_bo_ucb": OPTIMISATION,
    "figure_bo_pi": OPTIMISATION,
    "figure_bo_clean": OPTIMISATION,
    "figure_synthetic": [("x", "y", "", ("observation", "outlier", "truth", "GP", "RCGP"))],
    "figure_influence": [
        ("observation moved by (units of y)", "influence (KL divergence, nats)", "", ("GP", "RCGP")),
    ],
    "figure_weights": [("y − m(x)", "weight", "", ("IMQ", "SE", "±c = ±1"))],
    "figure_varying_c": [
        ("x", "y", "full", (*POINTS, "outlier beyond the axis", *EPSILONS)),
        ("x", "", "no shrinkage term", (*POINTS, "outlier beyond the axis", *EPSILONS)),
        ("x", "", "no noise term", (*POINTS, "outlier beyond the axis", *EPSILONS)),
    ],
    "figure_outliers": [
        ("x", "y", "asymmetric", ("observation", "outlier")),
        ("x", "", "focused", ("observation", "outlier")),
    ],
    "figure_sparse": [
        ("number of rows n", "clock time of a fit (s)", "", SPARSE),
        ("number of rows n", "root mean square error", "", SPARSE),
    ],
    "figure_flash_crash": [
        ("", "DJIA (points)", "", ("observation", "GP", "RCGP")),
        ("time of day on 23 April 2013 (hours)", "weight", "", ()),
        ("", "DJIA (points)", "22 April, every minute", ("observation", "GP", *CRASH)),
        ("", "", "23 April", ("observation", "GP", *CRASH, "flagged by the learned law")),
        ("", "", "the crash", ("observation", "GP", *CRASH, "flagged by the learned law")),
        *(("", "weight" if column == 0 else "", "", (name,)) for name in CRASH[:2] for column in range(3)),
        ("time of day (hours)", "weight", "", CRASH[2:]),
        ("time of day (hours)", "", "", CRASH[2:]),
        ("minutes after 13:00", "", "", CRASH[2:]),
    ],
    "figure_prior_mean": [
        ("x", "y", "", (*POINTS, "truth", "RCGP, prior mean zero", "RCGP, polynomial prior mean", "the polynomial"))
    ],
}


@pytest.fixture(scope="module")
def values_of():
    """The values of a figure, computed once."""
    known = {}

    def values(name):
        if name == "figure_flash_crash" and not Path(os.environ.get("RCGP_DATA_HOME", FOLDER)).is_dir():
            reason = "needs the data files; name their folder in RCGP_DATA_HOME"
            pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
        if name not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RCGP_DATA_HOME", os.environ.get("RCGP_DATA_HOME", str(FOLDER)))
                known[name] = EXPERIMENTS[name].run({"index": 0})
        return known[name]

    return values


@pytest.fixture(scope="module")
def records_of(values_of):
    """Records of a figure: one, or several for the figures that are made of them."""

    def records(name):
        if name.startswith("figure_bo"):
            return optimisation_records(name)
        if name == "figure_flash_crash":
            return [record_of(name, {"index": 0}, values_of(name)), two_days_record()]
        return sparse_records() if name == "figure_sparse" else [record_of(name, {"index": 0}, values_of(name))]

    return records


def record_of(name, config, values):
    return Record(name, config, values, 1.0, {"rcgp": "0"}, "2026-01-01T00:00:00+00:00")


def sparse_records(repetitions=3):
    """Times and errors that tell size, method and repetition."""
    methods = ("svgp", "svgp-noise", "rcsvgp", "rcsvgp-loo")
    return [
        record_of(
            "figure_sparse",
            {"n": n, "index": index},
            {
                "seconds": {method: 0.001 * n * (1 + i) + index for i, method in enumerate(methods)},
                "rmse": {method: 1.0 / (1 + i) + 10.0 / n + 0.1 * index for i, method in enumerate(methods)},
            },
        )
        for index in range(repetitions)
        for n in (100, 3200, 400)
    ]


def two_days_record():
    """Two days of prices, with a crash of two minutes, and curves and weights that tell the methods apart."""
    minute = np.concatenate([np.arange(570.0, 960.0), 1440.0 + np.arange(570.0, 960.0)])
    crash = np.isin(minute, [2229.0, 2230.0])
    price = 14600.0 + 50.0 * np.sin(minute / 100.0) - 90.0 * crash
    curves = {
        name: {
            "mean": (price + i).tolist(),
            "std": np.full(len(minute), 1.0 + i).tolist(),
            "weight": np.where(crash, 0.1 * i, 1.0 - 0.1 * i).tolist(),
        }
        for i, name in enumerate(("gp", "rcgp", "st_rcgp", "learned"))
    }
    values = {"minute": minute.tolist(), "price": price.tolist(), "flagged": crash.tolist(), **curves}
    return record_of("figure_flash_crash", {"index": 0, "series": "two days"}, values)


def optimisation_records(name):
    """Two repetitions of Bayesian optimisation."""
    values = {"regret": [1.0, 0.5, 0.7], "fit_seconds": [0.2, 0.3, 0.4], "acquisition_seconds": [0.1, 0.1, 0.2]}
    configs = EXPERIMENTS[name].configs(Options(splits=2))
    return [record_of(name, {**config, "steps": 3}, values) for config in configs]


def drawn(name, values):
    return DRAWINGS[name]([record_of(name, {"index": 0}, values)])


def series_of(axis):
    """What was drawn under a label: x and y of lines and of points."""
    found = {}
    for line in axis.lines:
        found[line.get_label()] = np.asarray(line.get_xydata(), dtype=float)
    for points in axis.collections:
        found.setdefault(points.get_label(), np.asarray(points.get_offsets(), dtype=float))
    return {label: data for label, data in found.items() if not label.startswith("_")}


def legends_of(figure):
    return [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]


def shown_texts(figure):
    """Titles, names of axes, texts of legends and the tick labels in view."""
    texts = [text for legend in legends_of(figure) for text in legend.get_texts()]
    for axis in figure.axes:
        texts += [axis.title, axis.xaxis.label, axis.yaxis.label]
        for side in (axis.xaxis, axis.yaxis):
            low, high = side.get_view_interval()
            texts += [tick.label1 for tick in side.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in texts if text.get_text() and text.get_visible()]


def test_every_figure_is_described_here():
    assert set(PANELS) == set(DRAWINGS)


@pytest.mark.parametrize("name", PANELS)
def test_every_panel_has_its_series_its_axes_and_a_legend(name, records_of):
    figure = DRAWINGS[name](records_of(name))
    labelled = {text.get_text() for legend in legends_of(figure) for text in legend.get_texts()}
    assert len(figure.axes) == len(PANELS[name])
    for axis, (xlabel, ylabel, title, labels) in zip(figure.axes, PANELS[name], strict=True):
        assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_title()) == (xlabel, ylabel, title)
        series = series_of(axis)
        assert set(series) == set(labels)
        # In the range of Figure 4 there may be a single outlier; the others are arrows.
        fewest = {label: 1 if (name, label) == ("figure_varying_c", "outlier") else 2 for label in labels}
        assert all(len(data) >= fewest[label] and np.isfinite(data).all() for label, data in series.items())
        assert labelled >= set(labels)


@pytest.mark.parametrize("name", PANELS)
def test_no_text_is_cut_off_and_no_legend_lies_on_another_text(name, records_of):
    figure = DRAWINGS[name](records_of(name))
    figure.draw_without_rendering()
    texts = shown_texts(figure)
    assert len(texts) > 10
    for text in texts:
        box, page = text.get_window_extent(), figure.bbox
        inside = page.x0 <= box.x0 < box.x1 <= page.x1 and page.y0 <= box.y0 < box.y1 <= page.y1
        assert inside, text.get_text()
    for legend in legends_of(figure):
        own, area = set(legend.get_texts()), legend.get_window_extent()
        assert not [t.get_text() for t in texts if t not in own and area.overlaps(t.get_window_extent())]


@pytest.mark.parametrize("name", PANELS)
def test_text_is_legible_at_page_width(name, records_of):
    figure = DRAWINGS[name](records_of(name))
    width = figure.get_size_inches()[0]
    assert min(text.get_fontsize() for text in shown_texts(figure)) * min(1.0, 7.0 / width) >= 8.0


@pytest.mark.parametrize("name", ["figure_synthetic", "figure_flash_crash", "figure_prior_mean"])
def test_the_legend_explains_bands_and_covers_no_data(name, records_of):
    figure = DRAWINGS[name](records_of(name))
    figure.draw_without_rendering()
    (legend,) = legends_of(figure)
    assert legend.get_texts()[-1].get_text() == "95 % interval of f"
    assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_figure_1_shows_all_of_its_outliers(values_of):
    values = values_of("figure_synthetic")
    (axis,) = drawn("figure_synthetic", values).axes
    outliers = np.array(values["y"])[np.array(values["outlier"])]
    low, high = axis.get_ylim()
    assert low < outliers.min() < outliers.max() < high


def test_figure_4_shows_each_curve_and_each_outlier_or_where_it_is(values_of):
    values = values_of("figure_varying_c")
    figure = drawn("figure_varying_c", values)
    figure.draw_without_rendering()
    outlier, x, y = (np.array(values[key]) for key in ("outlier", "x", "y"))
    colours = []
    for axis, panel in zip(figure.axes, values["panels"], strict=True):
        low, high = axis.get_ylim()
        curves = [line.get_ydata() for line in axis.lines]
        np.testing.assert_array_equal(curves, panel["curves"])
        assert low < np.min(curves) <= np.max(curves) < high
        # Curves that coincide are seen around one another.
        widths = [line.get_linewidth() for line in axis.lines]
        assert np.all(np.diff(widths) < -0.3)
        colours.append([tuple(line.get_color()) for line in axis.lines])
        crosses, above, below = axis.collections[1:]
        outside = (y > high) | (y < low)
        for marks, rows in ((crosses, ~outside), (above, y > high), (below, y < low)):
            np.testing.assert_array_equal(marks.get_offsets()[:, 0], x[outlier & rows])
    assert colours[0] == colours[1] == colours[2]
    assert len(set(colours[0])) == len(values["epsilon"])
    (legend,) = legends_of(figure)
    assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_curves_and_bands_are_those_of_the_record(values_of):
    values = values_of("figure_prior_mean")
    series = series_of(drawn("figure_prior_mean", values).axes[0])
    for label, key in (("RCGP, prior mean zero", "zero"), ("RCGP, polynomial prior mean", "polynomial")):
        np.testing.assert_array_equal(series[label], np.column_stack([values["x"], values[key]["mean"]]))
    np.testing.assert_array_equal(series["the polynomial"][:, 1], values["prior"])
    outlier = np.array(values["outlier"])
    np.testing.assert_array_equal(series["outlier"][:, 1], np.array(values["y"])[outlier])
    np.testing.assert_array_equal(series["observation"][:, 1], np.array(values["y"])[~outlier])


def test_the_weights_below_the_flash_crash_are_on_its_time_axis(values_of):
    values = values_of("figure_flash_crash")
    top, bottom = drawn("figure_flash_crash", values).axes
    hours = np.array(values["minute"]) / 60
    np.testing.assert_array_equal(bottom.lines[0].get_xydata(), np.column_stack([hours, values["weight"]]))
    assert top.get_xlim() == bottom.get_xlim()


def test_the_two_days_of_the_flash_crash_show_every_minute_and_every_weight():
    record = two_days_record()
    minute, flagged = np.array(record.values["minute"]), np.array(record.values["flagged"])
    axes = np.reshape(DRAWINGS["figure_flash_crash"]([record]).axes, (4, 3))
    rows = (minute < 1440, minute >= 1440, np.abs(minute - 2229) <= 12)
    times = (minute / 60, (minute - 1440) / 60, minute - 1440 - 780)
    for (top, *below), shown, x in zip(axes.T, rows, times, strict=True):
        series = series_of(top)
        price = np.column_stack([x, record.values["price"]])
        np.testing.assert_array_equal(series["observation"], price[shown & ~flagged])
        if (shown & flagged).any():
            np.testing.assert_array_equal(series["flagged by the learned law"], price[shown & flagged])
        low, high = top.get_ylim()
        assert low < price[:, 1].min() < price[:, 1].max() < high
        for axis, name, method in zip(below, CRASH, ("rcgp", "st_rcgp", "learned"), strict=True):
            values = record.values[method]
            np.testing.assert_array_equal(series[name], np.column_stack([x, values["mean"]])[shown])
            np.testing.assert_array_equal(series_of(axis)[name], np.column_stack([x, values["weight"]])[shown])
            assert axis.get_xlim() == top.get_xlim()


def test_the_newest_record_of_a_figure_of_one_run_is_drawn(values_of):
    values = values_of("figure_weights")
    old = record_of("figure_weights", {"index": 0}, {**values, "c": 2.0})
    (axis,) = DRAWINGS["figure_weights"]([old, record_of("figure_weights", {"index": 0}, values)]).axes
    assert "±c = ±1" in series_of(axis)


def test_figure_6_shows_means_over_repetitions_and_their_standard_errors():
    records = sparse_records(3)
    figure = DRAWINGS["figure_sparse"](records)
    time, error = figure.axes
    for axis, key in ((time, "seconds"), (error, "rmse")):
        series = series_of(axis)
        for i, (label, method) in enumerate(zip(SPARSE, records[0].values[key], strict=True)):
            runs = np.array([[r.values[key][method] for r in records if r.config["n"] == n] for n in (100, 400, 3200)])
            np.testing.assert_allclose(series[label], np.column_stack([[100, 400, 3200], runs.mean(axis=1)]))
            band = axis.collections[i].get_paths()[0].vertices
            spread = runs.std(axis=1, ddof=1) / np.sqrt(3)
            for n, mean, width in zip((100, 400, 3200), runs.mean(axis=1), spread, strict=True):
                ends = band[band[:, 0] == n, 1]
                assert (ends.min(), ends.max()) == pytest.approx((mean - width, mean + width))
        assert axis.get_ylim()[0] == 0.0
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["100", "400", "3200"]
    # The paper's colours: SVGP green, RCSVGP blue; dashed what it does not have.
    assert [line.get_color() for line in time.lines] == ["#4daf4a", "#4daf4a", "#377eb8", "#377eb8"]
    assert [line.get_linestyle() for line in time.lines] == ["-", "--", "-", "--"]
    assert legends_of(figure)[0].get_texts()[-1].get_text() == "± standard error"


def test_figure_6_of_single_runs_has_no_bands():
    figure = DRAWINGS["figure_sparse"](sparse_records(1))
    assert [text.get_text() for text in legends_of(figure)[0].get_texts()] == list(SPARSE)


@pytest.mark.parametrize(
    "name",
    [name if name == "figure_weights" else slow(name) for name in DRAWINGS],
)
def test_figures_are_drawn_as_pdf_and_png_and_the_same_each_time(name, records_of, tmp_path):
    paths = draw_figure(name, records_of(name), tmp_path)
    contents = [path.read_bytes() for path in paths]
    assert [path.name for path in paths] == [f"{name}.pdf", f"{name}.png"]
    assert contents[0].startswith(b"%PDF")
    assert contents[1].startswith(b"\x89PNG")
    assert [path.read_bytes() for path in draw_figure(name, records_of(name), tmp_path)] == contents
