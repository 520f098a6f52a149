"""The page of several outputs."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from rcgp.estimator import NoiseLawWarning, RCGPRegressor
from rcgp.report import report_html
from rcgp.report.figures import correlation_figure
from report.reading import figures_of


def make_table(n=30, seed=0):
    random = np.random.default_rng(seed)
    X = pd.DataFrame({"hour": np.linspace(0, 9, n), "load": random.uniform(0, 1, n)}, index=np.arange(1, n + 1))
    f = np.sin(X["hour"].to_numpy()) + X["load"].to_numpy()
    Y = np.stack([f, 10.0 - 5.0 * f], axis=1) + 0.1 * random.standard_normal((n, 2))
    Y[4, 0] += 8.0
    Y[9, 1] -= 40.0
    Y[15:20, 1] = np.nan
    return X, pd.DataFrame(Y, columns=["a", "b"], index=X.index)


def fitted(outputs, **options):
    X, Y = make_table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        return RCGPRegressor(outputs=outputs, **options).fit(X, Y), X, Y


@pytest.fixture(scope="module")
def joint():
    model, X, Y = fitted("correlated")
    plain, _, _ = fitted("correlated", weight="constant")
    return model, X, Y, report_html(model, plain, X, Y, target=["heat <b>", "flow"])


def test_each_output_has_a_panel_with_its_sections(joint):
    *_, html = joint
    assert html.count("<details class=output open>") == 2
    for key in ("fit", "law", "weights", "residuals", "comparison"):
        for output in (0, 1):
            assert html.count(f'<section id="{key}-{output}" class="{key}">') == 1
    assert "heat &lt;b&gt; <span>30 cells, 1 flagged</span>" in html
    assert "flow <span>25 cells, 1 flagged</span>" in html
    assert "heat <b>" not in html
    drawn = figures_of(html)
    assert {"law-0", "law-1", "effect-0-0", "effect-0-1", "correlation"} <= set(drawn)
    assert f'id="figure-{"law-1"}"' in html


def test_the_summary_counts_cells(joint):
    *_, html = joint
    assert "; 2 of 55 cells are flagged</h1>" in html
    assert "91.7 % of all" in html
    assert "one model of all cells" in html


def test_suspicious_cells_name_their_output(joint):
    *_, html = joint
    listing = html[html.index('<section id="rows">') :]
    body = listing[listing.index("<tbody>") : listing.index("</tbody>")]
    flagged = [row for row in body.split("<tr") if "class=flagged" in row]
    assert len(flagged) == 2
    assert {("flow" in row, ">10<" in row) for row in flagged} == {(True, True), (False, False)}
    assert "All 2 flagged cells" in listing or "2 cells flagged" in listing


def test_the_map_of_correlations_shows_numbers(joint):
    model, *_ = joint
    figure = correlation_figure(model.output_correlation_, ["heat <b>", "flow"])
    assert [note.text for note in figure.layout.annotations] == [f"{v:.2f}" for v in model.output_correlation_.ravel()]
    assert figure.layout.xaxis.ticktext[0] == "heat &lt;b&gt;"
    assert model.output_correlation_[0, 1] < -0.9


def test_independent_outputs_have_no_correlation_and_their_own_fits():
    model, X, Y = fitted("independent")
    html = report_html(model, None, X, Y, target=["a", "b"])
    assert 'id="correlation"' not in html
    assert "a model for each output" in html
    assert "<h3>a</h3>" in html
    assert "<h3>b</h3>" in html


def test_names_and_outputs_must_agree(joint):
    model, X, Y, _ = joint
    for target, y in (("a", Y), (["a"], Y), (["a", "b", "c"], Y), (["a", "b"], Y["a"])):
        with pytest.raises(ValueError, match="one name for each output"):
            report_html(model, None, X, y, target=target)
