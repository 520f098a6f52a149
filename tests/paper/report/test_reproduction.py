"""Tables and figures from records alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from rcgp_paper.experiments import EXPERIMENTS, Options, Record
from rcgp_paper.report.figures import DRAWINGS, draw_figure
from rcgp_paper.report.reproduction import origin_of, render, write_page
from rcgp_paper.report.tables import Table, accuracy_tables, standard_errors_apart, time_tables


def make_record(experiment, config, values):
    return Record(experiment, config, values, 1.0, {"rcgp": "0"}, "2026-01-01T00:00:00+00:00")


def accuracy_records(values=(0.2, 0.3, 0.4)):
    return [
        make_record(
            "table1",
            {"data": "yacht", "contamination": "uniform", "method": method, "protocol": "paper", "index": index},
            {"mae": value, "rmse": 2 * value, "nlpd": 0.1, "coverage": 0.95, "crps": 0.2},
        )
        for method in ("rcgp", "gp")
        for index, value in enumerate(values)
    ]


def test_differences_are_in_standard_errors():
    ours = [0.2, 0.3, 0.4]
    error = math.sqrt(np.var(ours, ddof=1) / 3 + 0.07**2 / 50 + 0.01**2 / 12)
    assert standard_errors_apart(ours, (0.29, 0.07)) == pytest.approx((0.3 - 0.29) / error)
    assert math.isfinite(standard_errors_apart([0.2], (0.2, 0.0)))
    error = math.sqrt(np.var(ours, ddof=1) / 3 + 0.07**2 / 10 + 0.01**2 / 12)
    assert standard_errors_apart(ours, (0.29, 0.07), 10) == pytest.approx((0.3 - 0.29) / error)


def test_a_table_has_our_numbers_and_the_papers():
    tables, notices = accuracy_tables(accuracy_records())
    assert notices == []
    assert [table.title.split(",")[0] for table in tables][:2] == ["Mean absolute error", "Root mean square error"]
    assert tables[0].head == ["", "GP", "RCGP"]
    heading, row = tables[0].rows
    assert heading == ["uniform"]
    apart = standard_errors_apart([0.2, 0.3, 0.4], (0.36, 0.16))
    assert row[:2] == ["yacht", f"0.300 (0.100) / 0.36, {apart:+.1f} se"]
    assert tables[1].rows[1][1] == "0.600 (0.200)"
    assert tables[0].note == (
        "Mean and standard deviation over 3 repetitions; behind a slash the paper's mean, and the difference in "
        "standard errors: of our mean, of the paper's over its 50 repetitions, and of the rounding to two digits; "
        "the best of each row in bold."
    )


def test_the_best_of_each_row_is_bold_and_ties_all_are():
    records = accuracy_records()
    better = [changed(r, values={"mae": 0.1}) if r.config["method"] == "rcgp" else r for r in records]
    mae, rmse, _, coverage, _ = accuracy_tables(better)[0]
    assert mae.best == [(1, 2)]
    assert rmse.best == [(1, 1), (1, 2)]  # the same
    assert coverage.best == []
    assert "| **0.100 (0.000) / 0.29" in mae.markdown()
    assert "| 0.300 (0.100)" in mae.markdown()
    assert "<td><strong>0.100 (0.000)" in mae.html()
    alone = [record for record in records if record.config["method"] == "gp"]
    assert accuracy_tables(alone)[0][0].best == []


def changed(record, config=None, values=None, **fields):
    """A record with some of its entries changed."""
    return replace(record, config=record.config | (config or {}), values=record.values | (values or {}), **fields)


def test_repetitions_are_those_of_each_cell():
    records = accuracy_records()
    fewer = records[:-1]  # two of the GP, three of RCGP
    assert "deviation, between 2 and 3 repetitions in a cell;" in accuracy_tables(fewer)[0][0].note
    # The other indices of another cell are no repetitions of this one.
    elsewhere = [changed(record, {"data": "energy", "index": record.config["index"] + 3}) for record in records]
    assert "over 3 repetitions" in accuracy_tables(records + elsewhere)[0][0].note


def test_a_single_run_has_no_deviation_and_no_standard_errors():
    mae, rmse, *_ = accuracy_tables(accuracy_records([0.2]))[0]
    assert mae.rows[1] == ["yacht", "0.200 / 0.36", "0.200 / 0.29"]
    assert rmse.rows[1] == ["yacht", "0.400", "0.400"]
    assert mae.note == "One run in each cell; behind a slash the paper's mean; the best of each row in bold."


def test_values_that_are_not_finite_are_counted_in_the_table():
    mae = accuracy_tables(accuracy_records([0.2, math.nan, 0.3, math.inf]))[0][0]
    apart = standard_errors_apart([0.2, 0.3], (0.36, 0.16))
    assert mae.rows[1][1] == f"0.250 (0.071), 2 not finite / 0.36, {apart:+.1f} se"
    assert accuracy_tables(accuracy_records([math.nan]))[0][0].rows[1][1] == "1 not finite / 0.36"
    assert accuracy_tables(accuracy_records([1e308, 1e308]))[0]  # whose mean overflows
    values = {"seconds": {"gp": 1.0, "rcgp": math.nan}, "ratio": {"gp": 1.0}}
    config = {"data": "boston", "contamination": "clean", "protocol": "paper", "index": 0}
    (seconds, ratio), _ = time_tables([make_record("table2", config, values)])
    assert seconds.rows[1] == ["boston", "1.00", "–"]
    assert ratio.rows[1] == ["boston", "1.00", "– / 2.7"]


def test_fits_that_did_not_converge_are_counted_by_method():
    records = [
        changed(record, values={"converged": record.config["method"] == "gp" or record.config["index"] > 1})
        for record in accuracy_records()
    ]
    tables, _ = accuracy_tables(records)
    assert all(table.note.endswith(" Fits that did not converge: RCGP 2 of 3.") for table in tables)
    tables, _ = accuracy_tables([changed(record, values={"converged": True}) for record in records])
    assert all(table.note.endswith(" All fits converged.") for table in tables)


def test_fits_behind_times_that_did_not_converge_are_counted_by_method():
    config = {"data": "boston", "contamination": "clean", "protocol": "paper"}
    times = {"seconds": {"gp": 1.0, "rcgp": 2.0}, "ratio": {"gp": 1.0, "rcgp": 2.0}}
    records = [
        make_record("table2", {**config, "index": i}, {**times, "converged": {"gp": True, "rcgp": i > 0}})
        for i in range(3)
    ]
    assert all(" Fits that did not converge: RCGP 1 of 3." in table.note for table in time_tables(records)[0])
    assert all(table.note.endswith(" All fits converged.") for table in time_tables(records[1:])[0])
    old = make_record("table2", {**config, "index": 9}, times)  # which does not tell
    assert "RCGP 1 of 3." in time_tables([*records, old])[0][0].note
    assert "converge" not in time_tables([old])[0][0].note


def test_code_that_changed_between_the_runs_of_a_method_is_noted():
    records = [replace(record, code=f"{record.config['index']}") for record in accuracy_records()]
    tables, _ = accuracy_tables(records)
    assert all("changed between runs (states: GP 3, RCGP 3)." in table.note for table in tables)
    by_method = [replace(record, code=record.config["method"]) for record in records]
    assert "code" not in accuracy_tables(by_method)[0][0].note
    times = {"seconds": {"gp": 1.0}, "ratio": {"gp": 1.0}}
    tables, _ = time_tables([changed(record, {"method": None}, times) for record in records])
    assert "(states: 3)." in tables[0].note


WHOLE = {"data": "yacht", "contamination": "uniform", "method": "gp", "protocol": "paper", "index": 9}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"index": 0, "knob": 3},
        WHOLE | {"data": "moon"},
        WHOLE | {"method": ["gp"]},
        WHOLE | {"method": "adaptive"},
        WHOLE | {"protocol": 3},
    ],
    ids=str,
)
def test_a_record_that_fits_no_table_is_left_out_with_a_notice(config, tmp_path):
    records, foreign = accuracy_records(), make_record("table1", config, {"mae": 7.0})
    tables, notices = accuracy_tables([*records, foreign])
    assert tables == accuracy_tables(records)[0]
    assert notices == [f"table1: 1 record has no place in the tables, such as {foreign.key}"]
    assert render("table1", [*records, foreign], tmp_path)[1] == notices
    assert write_page({"table1": [*records, foreign]}, tmp_path)[1] == notices
    assert accuracy_tables([foreign, foreign])[0] == []
    timed = make_record("table2", {"index": 0}, {})
    assert time_tables([timed, timed]) == ([], [f"table2: 2 records have no place in the tables, such as {timed.key}"])


def test_records_of_invalid_values_are_left_out_of_the_page(tmp_path):
    config = {"data": "boston", "contamination": "clean", "protocol": "paper", "index": 0}
    odd = make_record("table2", config, {"seconds": {"gp": "soon"}, "ratio": {"gp": "soon"}})
    uneven = make_record("figure_outliers", {"index": 0}, EXPERIMENTS["figure_outliers"].run({"index": 0}))
    uneven.values["focused"]["outlier"].pop()
    path, notices = write_page({"table1": accuracy_records(), "table2": [odd], "figure_outliers": [uneven]}, tmp_path)
    assert [re.sub(r" \(.*\)", "", notice) for notice in notices] == [
        "table2: its records make no table; --redo all makes them again",
        "figure_outliers: its record cannot be drawn; --redo all makes it again",
    ]
    assert "0.300 (0.100)" in path.read_text()


def test_a_record_that_cannot_be_drawn_is_left_out_with_a_notice(tmp_path):
    foreign = make_record("figure_weights", {"index": 0}, {"colour": "blue"})
    path, notices = write_page({"figure_weights": [foreign]}, tmp_path)
    assert len(notices) == 1
    assert notices[0].startswith("figure_weights: its record cannot be drawn (KeyError: 'residual')")
    assert "Figure 3" in path.read_text()
    assert render("figure_weights", [foreign], tmp_path) == ([], notices)


def test_the_origin_of_records_is_shown(tmp_path):
    machine = {"cores": 2, "memory": 23.4}
    records = [
        changed(record, {"protocol": protocol}, machine=machine, versions={"python": "3.11", "torch": torch}, time=time)
        for record in accuracy_records()
        for protocol, torch, time in (("paper", "2.6", "2026-01-01T00:00:00"), ("published", "2.7", "2026-03-04"))
    ]
    origin = origin_of("table1", records)
    assert origin == (
        "12 runs, made from 2026-01-01 to 2026-03-04 by `rcgp reproduce table1 --protocol paper --splits 3` and "
        "`rcgp reproduce table1 --protocol published --splits 3`; on 2 cores, 23.4 GiB of memory; "
        "with python 3.11, torch 2.6 and 2.7."
    )
    (markdown, _), _ = render("table1", records, tmp_path)
    assert f"\n{origin}\n" in markdown.read_text()
    old = Record("figure_weights", {"index": 0}, {})  # which tells nothing
    assert origin_of("figure_weights", [old]) == "1 run, made by `rcgp reproduce figure_weights`."
    quick = [make_record("table2", config, {}) for config in EXPERIMENTS["table2"].configs(Options(quick=True))]
    assert "`rcgp reproduce table2 --protocol paper --quick`" in origin_of("table2", quick)


def test_time_is_compared_as_ratios():
    config = {"data": "boston", "contamination": "clean", "protocol": "paper"}
    values = [{"seconds": {"gp": 1.0, "rcgp": s}, "ratio": {"gp": 1.0, "rcgp": s}} for s in (1.2, 1.4, 9.0)]
    (seconds, ratio), notices = time_tables(
        [make_record("table2", {**config, "index": i}, value) for i, value in enumerate(values)]
    )
    assert notices == []
    assert seconds.note.startswith("Median over 3 repetitions, ")
    one_of_another = make_record("table2", {**config, "data": "yacht", "index": 9}, values[0])
    records = [make_record("table2", {**config, "index": i}, value) for i, value in enumerate(values)]
    assert "Median, between 1 and 3 repetitions in a cell, " in time_tables([*records, one_of_another])[0][0].note
    assert seconds.rows[1] == ["boston", "1.00", "1.40"]
    assert ratio.rows[1] == ["boston", "1.00", "1.40 / 2.7"]  # 5.1 / 1.9 in the paper


def sparse_records():
    return [
        make_record(
            "table_sparse",
            {"data": "boston", "contamination": "focused", "method": method, "protocol": "published", "index": index},
            {"mae": value, "rmse": 2 * value, "nlpd": 0.1, "coverage": 0.95, "crps": 0.2, "converged": True},
        )
        for method in ("rcsvgp-loo", "rcsvgp", "svgp-noise", "svgp")
        for index, value in enumerate((0.2, 0.3, 0.4))
    ]


def test_the_table_of_sparse_models_has_the_papers_ten_repetitions_and_what_is_held_fixed(tmp_path):
    (markdown, html), notices = render("table_sparse", sparse_records(), tmp_path)
    assert notices == []
    svgp, rcsvgp = (standard_errors_apart([0.2, 0.3, 0.4], cell, 10) for cell in ((0.64, 0.02), (0.55, 0.16)))
    text = markdown.read_text()
    assert "|  | SVGP | SVGP, noise fitted | RCSVGP | RCSVGP, leave-one-out |" in text
    # The paper has two of the four.
    ours = "0.300 (0.100)"
    cells = (f"{ours} / 0.64, {svgp:+.1f} se", ours, f"{ours} / 0.55, {rcsvgp:+.1f} se", ours)
    assert f"| boston | {' | '.join(f'**{cell}**' for cell in cells)} |" in text  # all the same: all are best
    assert "over its 10 repetitions" in text
    assert " SVGP and RCSVGP by the bound, with the noise variance held at 0.01 as in the paper" in text
    assert "rcgp reproduce table_sparse --protocol published --splits 3" in text
    assert "held at 0.01" in html.read_text()
    assert "held at 0.01" not in accuracy_tables(accuracy_records())[0][0].note


def test_a_figure_of_many_runs_shows_all_and_their_number(tmp_path):
    methods = ("svgp", "svgp-noise", "rcsvgp", "rcsvgp-loo")
    values = {"seconds": dict.fromkeys(methods, 1.0), "rmse": dict.fromkeys(methods, 0.5)}
    configs = EXPERIMENTS["figure_sparse"].configs(Options(splits=4))
    records = [make_record("figure_sparse", config, values) for config in configs]
    assert "24 runs, made on 2026-01-01 by `rcgp reproduce figure_sparse --splits 4`;" in origin_of(
        "figure_sparse", records
    )
    assert "`rcgp reproduce figure_sparse --quick`" in origin_of("figure_sparse", records[:1])
    paths, notices = render("figure_sparse", records, tmp_path)
    assert ([path.name for path in paths], notices) == (["figure_sparse.pdf", "figure_sparse.png"], [])
    foreign = make_record("figure_sparse", {"index": 0}, values)
    paths, notices = render("figure_sparse", [*records, foreign], tmp_path)
    assert paths == []
    assert notices[0].startswith("figure_sparse: its record cannot be drawn (KeyError: 'n')")


def test_tables_escape_html():
    table = Table("<b>", ["", "<i>"], [["<u>"], ["a", "<s>"]], "x < y")
    html = table.html()
    assert not re.search(r"<(b|i|u|s)>", html)
    assert "&lt;s&gt;" in html
    assert "| **<u>** |  |" in table.markdown()


def test_records_become_files(tmp_path):
    (markdown, html), notices = render("table1", accuracy_records(), tmp_path)
    assert notices == []
    assert "| yacht | **0.300 (0.100)" in markdown.read_text()
    assert "<td><strong>0.300 (0.100)" in html.read_text()
    assert render("table1", [], tmp_path) == ([], [])


def test_every_figure_experiment_has_a_drawing():
    assert set(DRAWINGS) == {name for name in EXPERIMENTS if name.startswith("figure")}


@pytest.mark.parametrize("name", ["figure_weights", "figure_outliers"])
def test_figures_are_drawn_as_pdf_and_png(name, tmp_path):
    record = make_record(name, {"index": 0}, EXPERIMENTS[name].run({"index": 0}))
    paths = draw_figure(name, [record], tmp_path)
    assert [path.suffix for path in paths] == [".pdf", ".png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert paths[1].stat().st_size > 5_000
    content = paths[1].read_bytes()
    draw_figure(name, [record], tmp_path)
    assert paths[1].read_bytes() == content


def test_the_page_holds_everything_in_one_file(tmp_path, browser):
    record = make_record("figure_weights", {"index": 0}, EXPERIMENTS["figure_weights"].run({"index": 0}))
    records = {
        "table1": accuracy_records(),
        "table_c_loo": accuracy_records(),
        "figure_weights": [record],
        "table2": [],
    }
    path, notices = write_page(records, tmp_path)
    assert notices == []
    page = browser.new_page()
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(path.as_uri())
    assert page.locator("h2").all_inner_texts() == [EXPERIMENTS[name].title for name in records if records[name]]
    assert page.locator("h3").all_inner_texts() == 2 * [table.title for table in accuracy_tables(accuracy_records())[0]]
    assert page.locator("table").count() == 10
    assert page.locator("h2 + p code").all_inner_texts()[0] == "rcgp reproduce table1 --protocol paper --splits 3"
    assert page.locator("img").evaluate("image => image.naturalWidth") > 100
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    page.close()


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_fits_its_window_and_wide_parts_scroll(width, tmp_path, browser):
    weights, outliers = (
        make_record(name, {"index": 0}, EXPERIMENTS[name].run({"index": 0}))
        for name in ("figure_weights", "figure_outliers")
    )
    wide = [
        changed(record, {"method": method})
        for record in accuracy_records()[:3]
        for method in ("gp", "rcgp", "learned", "t-gp", "m-gp")
    ]
    path, _ = write_page({"table1": wide, "figure_weights": [weights], "figure_outliers": [outliers]}, tmp_path)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator("div.wide").first
    if width == 400:
        assert table.evaluate("box => box.scrollWidth > box.clientWidth")
        # The name of a row, and that of a group of rows, stay in view.
        table.evaluate("box => box.scrollTo(200, 0)")
        left = table.bounding_box()["x"]
        for name in ("tbody tr:nth-child(2) th", "th.group span"):
            assert 0 <= table.locator(name).first.bounding_box()["x"] - left < 20
        # Letters of 8 points in a picture 7 inches wide are still 8 pixels high or more.
        assert page.locator("img").nth(1).bounding_box()["width"] >= 500
    else:
        assert table.evaluate("box => box.scrollWidth == box.clientWidth")
    # The note is outside of what scrolls, and an option is not broken at its hyphens.
    assert page.locator("div.wide p").count() == 0
    assert page.locator("code span").evaluate_all("words => words.every(word => word.getClientRects().length === 1)")
    page.close()
