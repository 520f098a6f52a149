"""Tables and figures from records alone."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from rcgp.experiments import EXPERIMENTS, Record
from rcgp.report.comparison import Table, accuracy_tables, standard_errors_apart, time_tables
from rcgp.report.paper_figures import DRAWINGS, draw_figure
from rcgp.report.reproduction import render, write_page


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


def test_a_table_has_our_numbers_and_the_papers():
    tables = accuracy_tables(accuracy_records())
    assert [table.title.split(",")[0] for table in tables][:2] == ["Mean absolute error", "Root mean square error"]
    assert tables[0].head == ["", "GP", "RCGP"]
    heading, row = tables[0].rows
    assert heading == ["uniform"]
    apart = standard_errors_apart([0.2, 0.3, 0.4], (0.36, 0.16))
    assert row[:2] == ["yacht", f"0.300 (0.100) / 0.36, {apart:+.1f} se"]
    assert tables[1].rows[1][1] == "0.600 (0.200)"
    assert "3 repetitions" in tables[0].note


def test_time_is_compared_as_ratios():
    config = {"data": "boston", "contamination": "clean", "protocol": "paper"}
    values = [{"seconds": {"gp": 1.0, "rcgp": s}, "ratio": {"gp": 1.0, "rcgp": s}} for s in (1.2, 1.4, 9.0)]
    seconds, ratio = time_tables(
        [make_record("table2", {**config, "index": i}, value) for i, value in enumerate(values)]
    )
    assert seconds.rows[1] == ["boston", "1.00", "1.40"]
    assert ratio.rows[1] == ["boston", "1.00", "1.40 / 2.7"]  # 5.1 / 1.9 in the paper


def test_tables_escape_what_html_would_take_for_markup():
    table = Table("<b>", ["", "<i>"], [["<u>"], ["a", "<s>"]], "x < y")
    html = table.html()
    assert not re.search(r"<(b|i|u|s)>", html)
    assert "&lt;s&gt;" in html
    assert "| **<u>** |  |" in table.markdown()


def test_records_become_files(tmp_path):
    markdown, html = render("table1", accuracy_records(), tmp_path)
    assert "| yacht | 0.300 (0.100)" in markdown.read_text()
    assert "<td>0.300 (0.100)" in html.read_text()
    assert render("table1", [], tmp_path) == []


def test_every_figure_experiment_has_a_drawing():
    assert set(DRAWINGS) == {name for name in EXPERIMENTS if name.startswith("figure")}


@pytest.mark.parametrize("name", ["figure_weights", "figure_outliers"])
def test_figures_are_drawn_as_pdf_and_png(name, tmp_path):
    record = make_record(name, {"index": 0}, EXPERIMENTS[name].run({"index": 0}))
    paths = draw_figure(record, tmp_path)
    assert [path.suffix for path in paths] == [".pdf", ".png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert paths[1].stat().st_size > 5_000
    content = paths[1].read_bytes()
    draw_figure(record, tmp_path)
    assert paths[1].read_bytes() == content


def test_the_page_holds_everything_in_one_file(tmp_path, browser):
    record = make_record("figure_weights", {"index": 0}, EXPERIMENTS["figure_weights"].run({"index": 0}))
    path = write_page({"table1": accuracy_records(), "figure_weights": [record], "table2": []}, tmp_path)
    page = browser.new_page()
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(path.as_uri())
    assert page.locator("table").count() == 5
    assert page.locator("img").evaluate("image => image.naturalWidth") > 100
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    page.close()
