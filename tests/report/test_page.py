from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import rcgp.report
from rcgp import RCGPRegressor
from rcgp.estimator import FLAG_RULE
from rcgp.report import frame as module
from rcgp.report import report_html, write_report
from rcgp.report.summary import rows_of
from rcgp.report.text import fraction, number, percent
from rcgp.weights import NoiseLaw
from report.reading import Table, decoded, figures_of, header_of, opened

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(one_feature):
    X, y, robust, plain = one_feature
    return report_html(robust, plain, X, y, target="price", notices=["2 rows had no price."])


def test_the_numbers_on_the_page_are_the_models(page, one_feature):
    X, y, robust, plain = one_feature
    flagged = int(robust.outliers_.sum())
    assert flagged >= 3
    header = header_of(page)
    assert f"{flagged} of 60 rows are flagged</h1>" in header
    assert f"<dd>{flagged}</dd><dd class=note>{percent(flagged / 60)}</dd>" in header
    for model in (robust, plain):
        error = np.abs(y.to_numpy() - model.loo_mean_)
        inside = rows_of(model, X, y.to_numpy(), tuple(X.index)).inside
        kept = error[~robust.outliers_]
        for shown in (
            number(error.mean()),
            number(kept.mean()),
            number(np.median(error)),
            percent(inside.mean()),
            percent(inside[~robust.outliers_].mean()),
            number(np.median(model.noise_std(X))),
        ):
            assert f"<td>{shown}</td>" in page
        mean, coverage = number(kept.mean()), percent(inside[~robust.outliers_].mean())
        for shown in (mean, coverage):
            assert (f"<dd>{shown}</dd>" if model is robust else f"rows not flagged; ordinary GP {shown}</dd>") in header
    for _, share in robust.noise_law_.components():
        assert f"<td>{percent(share)}</td>" in page
    assert "2 rows had no price." in page


def test_a_browser_draws_every_figure(browser, page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    with opened(browser, path) as shown:
        assert shown.get_attribute("html", "data-figures") == "drawn"
        assert shown.is_hidden("#sorry")
        drawn = shown.eval_on_selector_all(
            ".figure",
            "all => all.map((one) => one.querySelectorAll('svg path.point, svg .point path, svg .js-line').length)",
        )
    assert len(drawn) == 5
    assert min(drawn) >= 3


def test_the_table_of_rows_holds_the_models_numbers(page, one_feature):
    X, y, robust, _ = one_feature
    head, *body = Table(page).rows
    assert head == [
        "row",
        "observed",
        "expected",
        "residual",
        "score",
        "weight",
        "outlier probability",
        "flagged",
        "size",
    ]
    assert len(body) == 20
    positions = [X.index.get_loc(int(cells[0])) for cells in body]
    probability = robust.outlier_probability_[positions]
    assert probability[0] == robust.outlier_probability_.max()
    assert (np.diff(probability) <= 0).all()
    for i, cells in zip(positions, body, strict=True):
        residual = y.iloc[i] - robust.loo_mean_[i]
        values = (y.iloc[i], robust.loo_mean_[i], residual, robust.outlier_scores_[i])
        assert cells[1:5] == [number(value) for value in values]
        assert cells[5:7] == [fraction(robust.weights_[i]), fraction(robust.outlier_probability_[i])]
        assert cells[7] == ("yes" if robust.outliers_[i] else "no")
        assert cells[8] == number(X["size"].iloc[i])


def test_figures_hold_the_rows_and_the_curve(page, one_feature):
    X, y, robust, plain = one_feature
    figures = figures_of(page)
    assert list(figures) == ["fit", "law", "weights", "residuals", "comparison"]

    def points(key, axis):
        traces = [trace for trace in figures[key]["data"] if trace["mode"] == "markers"]
        return np.sort(np.concatenate([decoded(trace[axis]) for trace in traces]))

    np.testing.assert_array_equal(points("fit", "x"), np.sort(X["size"]))
    np.testing.assert_array_equal(points("fit", "y"), np.sort(y))
    np.testing.assert_array_equal(points("residuals", "x"), np.sort(robust.loo_mean_))
    np.testing.assert_array_equal(points("residuals", "y"), np.sort(y - robust.loo_mean_))
    np.testing.assert_array_equal(points("comparison", "x"), np.sort(plain.loo_mean_))
    assert decoded(figures["weights"]["data"][0]["y"]).sum() == 60
    bars, *curves = figures["law"]["data"]
    places, heights = decoded(bars["x"]), decoded(bars["y"])
    assert heights.sum() * (places[1] - places[0]) == pytest.approx(1.0)  # a density
    assert [trace["name"] for trace in curves] == ["normal noise", "noise law"]
    for trace in curves:
        assert np.trapezoid(decoded(trace["y"]), decoded(trace["x"])) == pytest.approx(1.0, abs=0.03)
    lower, upper = (decoded(trace["y"]) for trace in figures["fit"]["data"][:2])
    grid = pd.DataFrame({"size": decoded(figures["fit"]["data"][0]["x"])})
    for band, expected in zip((lower, upper), robust.predict_interval(grid), strict=True):
        np.testing.assert_allclose(band, expected)


def test_every_figure_is_one_that_plotly_accepts(page):
    for figure in figures_of(page).values():
        assert len(go.Figure(figure).data) == len(figure["data"]) > 0  # the constructor refuses what it does not know


def test_rows_without_an_observation_are_left_out():
    random = np.random.default_rng(0)
    X = pd.DataFrame({"x": random.uniform(0.0, 6.0, 40)})
    y = np.sin(X["x"]) + 0.1 * random.standard_normal(40)
    y[[3, 9]] = np.nan
    model = RCGPRegressor().fit(X, y, sample_weight=y.notna())
    page = report_html(model, None, X, y, target="y")
    assert "of 38 rows" in page or "38 rows" in page
    assert "NaN" not in page.split("<script")[0]


def test_columns_of_one_name_are_refused():
    X = pd.DataFrame(np.random.default_rng(0).uniform(size=(20, 2)), columns=["a", "b"])
    model = RCGPRegressor(weight="constant").fit(X, X["a"])
    with pytest.raises(ValueError, match="columns of the same name"):
        report_html(model, None, X.set_axis(["a", "a"], axis=1), X["a"], target="y")


def test_without_an_ordinary_gp_there_is_no_comparison(one_feature):
    X, y, robust, _ = one_feature
    html = report_html(robust, None, X, y, target="price")
    assert "ordinary GP" not in html
    assert "comparison" not in figures_of(html)
    assert "mean absolute error" in html


def test_names_rows_and_notices_are_never_markup(table, invented):
    X, y = table(30, (EVIL, "--></script><!-- %{x}"))
    X.index = y.index = [f"<img src=x onerror=alert({i})>" for i in range(30)]
    html = report_html(invented(X, y, 3), invented(X, y), X, y, target="</title>" + EVIL, notices=[EVIL, "<b>bold"])
    tags = [tag for tag, _ in Table(html).tags]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert "b" not in tags
    assert html.count("</script") == html.count("<script") == 3
    assert "<!--" not in html
    assert html.count("</title") == 1
    assert Table(html).rows[0][-2:] == list(X.columns)
    assert "<" not in json.dumps(figures_of(html)["effect-0"]["layout"])


def test_no_text_of_a_figure_can_end_the_script_that_holds_it():
    # Not by a figure of Plotly, whose own escaping would hide a lack of ours.
    figure = SimpleNamespace(to_json=lambda engine: '{"title": "</script><!--"}')
    written = module._figures_json([SimpleNamespace(key="fit", figure=figure)])
    assert "<" not in written
    assert json.loads(written) == {"fit": {"title": "</script><!--"}}


def test_the_policy_allows_the_two_scripts_of_the_page_and_no_request(page):
    policy = next(a["content"] for tag, a in Table(page).tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = policy.split(";")[1]
    assert "unsafe" not in scripts
    assert "http" not in policy
    assert len(re.findall("'sha256-", scripts)) == 2


def test_the_library_is_compressed(page):
    packed = re.search(r'id="library">(.*?)</script>', page)[1]
    assert b"plotly.js" in gzip.decompress(base64.b64decode(packed))[:200]


def test_the_same_models_give_the_same_page(one_feature):
    X, y, robust, plain = one_feature
    one, other = (report_html(robust, plain, X, y, target="price") for _ in range(2))
    assert one == other


def test_ten_thousand_rows_stay_below_five_megabytes(table, invented):
    X, y = table(10_000, tuple(f"feature {i}" for i in range(15)))
    html = report_html(invented(X, y, 400), invented(X, y, seed=1), X, y, target="price")
    assert len(html.encode()) < 5e6
    assert "3,000 of 10,000 rows" in html
    assert "400 of 10,000 rows are flagged" in header_of(html)
    drawn = [trace for trace in figures_of(html)["residuals"]["data"] if trace["mode"] == "markers"]
    assert [len(decoded(trace["x"])) for trace in drawn] == [2600, 400]
    assert "The 200 most suspicious of 400 flagged rows" in html
    assert "Only the 12 strongest effects are drawn; 3 features left out." in html
    assert len([key for key in figures_of(html) if key.startswith("effect-")]) == 12


def test_a_page_without_flagged_rows_states_it(table, invented):
    X, y = table(30)
    html = report_html(invented(X, y), invented(X, y), X, y, target="price")
    assert "none of 30 rows is flagged" in header_of(html)
    assert "No row is flagged. These are the 20 most suspicious." in html


def test_far_outliers_do_not_flatten_the_figure_and_are_announced(table, invented):
    X, y = table(60)
    model = invented(X, y, 1)
    y.iloc[0] = 1e9
    html = report_html(model, None, X, y, target="price")
    low, high = figures_of(html)["fit"]["layout"]["yaxis"]["range"]
    assert -20 < low < high < 20
    assert html.count("1 point lies beyond the frame and is marked at its edge") == 2  # of the fit and of the residuals
    for key, value in (("fit", y.iloc[0]), ("residuals", 1e9 - model.loo_mean_[0])):
        figure = figures_of(html)[key]
        mark = next(trace for trace in figure["data"] if trace.get("name") == "beyond the frame")
        low, high = figure["layout"]["yaxis"]["range"]
        assert low < decoded(mark["y"])[0] < high < value
        assert mark["marker"]["symbol"] == ["triangle-up"]
        assert mark["customdata"][0][1] == "1e9"


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_page_does_not_depend_on_units(table, invented, scale):
    X, y = table(40, target_scale=scale)
    X = X / scale
    html = report_html(invented(X, y, 2), invented(X, y), X, y, target="price")
    for figure in figures_of(html).values():
        for trace in figure["data"]:
            assert all(np.isfinite(decoded(trace[axis])).all() for axis in "xy")
            assert "nan" not in str(trace.get("customdata")).lower()
    assert number(y.iloc[0]) in html


@pytest.mark.parametrize("columns", [("size",), ("size", "age")])
def test_three_rows_make_a_page(table, invented, columns):
    X, y = table(3, columns)
    html = report_html(invented(X, y), invented(X, y), X, y, target="price")
    assert "none of 3 rows is flagged" in header_of(html)


def test_constant_features_are_named_as_such(table, invented):
    X, y = table(30, ("size", "age", "floor"))
    X["age"] = X["floor"] = 1.0
    html = report_html(invented(X, y), None, X, y, target="price")
    assert "2 features with a single value cannot be shown" in html
    assert "effect-1" not in figures_of(html)
    X["size"] = 1.0
    assert "no effect to show" in report_html(invented(X, y), None, X, y, target="price")


def test_hyperparameters_that_were_not_fitted_have_no_report(table, invented):
    X, y = table(30)
    model = invented(X, y)
    model.fit_report_ = None
    html = report_html(model, None, X, y, target="price")
    assert "converged</th>" not in html
    html = report_html(model, invented(X, y), X, y, target="price")
    assert "converged</th><td>–</td><td>yes</td>" in html


def test_a_kernel_of_several_parts_shows_all_lengthscales(table, invented):
    X, y = table(30)
    model = invented(X, y)
    model.lengthscales_ = np.array([[0.25], [np.inf]])
    assert "<td>0.25, ∞</td>" in report_html(model, None, X, y, target="price")


def test_rows_can_be_given_other_names(table, invented):
    X, y = table(30)
    html = report_html(invented(X, y), None, X, y, target="price", rows=[f"house {i}" for i in range(30)])
    assert all(cells[0].startswith("house ") for cells in Table(html).rows[1:])


def test_wrong_shapes_are_clear_errors(table, invented):
    X, y = table(30)
    model = invented(X, y)
    with pytest.raises(TypeError, match="X must be a pandas DataFrame"):
        report_html(model, None, X.to_numpy(), y, target="price")
    with pytest.raises(ValueError, match="X has 30 rows but y has 29"):
        report_html(model, None, X, y.iloc[1:], target="price")
    with pytest.raises(ValueError, match="X has 30 rows but rows has 2"):
        report_html(model, None, X, y, target="price", rows=[1, 2])
    with pytest.raises(ValueError, match="X has 2 features but the model was fitted to 1"):
        report_html(model, None, X.assign(more=1.0), y, target="price")


def test_the_file_is_written_completely_or_not_at_all(tmp_path, table, invented, monkeypatch):
    X, y = table(30)
    path = tmp_path / "report.html"
    path.write_text("before")

    def fail(*arguments):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_report(path, invented(X, y), None, X, y, target="price")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    write_report(path, invented(X, y), None, X, y, target="price")
    assert path.read_text(encoding="utf-8") == report_html(invented(X, y), None, X, y, target="price")
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_a_clear_error(tmp_path, table, invented):
    X, y = table(30)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_report(tmp_path / "none" / "report.html", invented(X, y), None, X, y, target="price")


def test_a_name_with_half_a_surrogate_pair_is_written(tmp_path, table, invented):
    X, y = table(30)
    write_report(tmp_path / "report.html", invented(X, y), None, X, y, target="price \ud800")
    assert "price ?" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("missing", ["pandas", "plotly"])
def test_a_missing_library_names_the_extra_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    source = rcgp.report.__spec__.loader.get_code("rcgp.report")
    with pytest.raises(ImportError, match=r'pip install "rcgp\[report\]"'):
        exec(source, {"__name__": "rcgp.report"})


def test_a_table_without_an_index_of_its_own_counts_from_zero(table, invented):
    X, y = table(25)
    X, y = X.reset_index(drop=True), pd.Series(y.to_numpy())
    labels = {int(cells[0]) for cells in Table(report_html(invented(X, y), None, X, y, target="t")).rows[1:]}
    assert labels <= set(range(25))


def test_the_steps_of_a_robust_fit_are_listed(page, one_feature):
    rounds = one_feature[2].fit_report_.rounds
    for i, step in enumerate(rounds, start=1):
        shown = f"{step.name}: {step.kept:,.0f} rows kept, log evidence {number(step.evidence)}"
        assert f"step {i}</th><td>{shown}</td>" in page


def test_the_flag_rule_is_beside_the_flags(page):
    listing = page[page.index('<section id="rows">') :]
    assert FLAG_RULE[1:] in listing[: listing.index("<table")]


def test_a_law_of_normal_noise_is_drawn_once(table, invented):
    X, y = table(30)
    model = invented(X, y)
    model.noise_law_ = NoiseLaw.normal()
    html = report_html(model, None, X, y, target="price")
    assert [trace["name"] for trace in figures_of(html)["law"]["data"]] == ["rows that are not flagged", "noise law"]
    assert "The noise is normal, without outliers." in html


def test_a_given_weight_has_normal_intervals_and_a_law_that_only_flags(table, invented):
    X, y = table(30)
    model = invented(X, y, 2)
    model.weight = "imq"
    html = report_html(model, None, X, y, target="price")
    assert "learned after the fit and only flags rows" in html
    assert "<td>10.0 %</td>" in html  # the share of outliers
    assert [trace["name"] for trace in figures_of(html)["law"]["data"]] == ["rows that are not flagged", "noise law"]


def test_the_page_states_the_range_of_local_noise(table, invented):
    X, y = table(30)
    model = invented(X, y)
    assert "The noise varies" not in report_html(model, None, X, y, target="price")
    model.noise_std = lambda X: np.linspace(0.25, 0.75, len(X))
    html = report_html(model, None, X, y, target="price")
    assert "its standard deviation is 0.25 to 0.75" in html


def test_a_table_of_only_flagged_rows_has_a_page(table, invented):
    X, y = table(10)
    assert "All 10 flagged rows" in report_html(invented(X, y, 10), None, X, y, target="price")
