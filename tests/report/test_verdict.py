"""The top of the page: whether the fit can be relied on, how many rows are flagged, and why."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rcgp.estimator import NoiseLawWarning, RCGPRegressor
from rcgp.report import report_html
from rcgp.report.summary import rows_of
from rcgp.report.text import percent
from report.reading import header_of

EVIL = "<script>alert(1)</script>"


def headline_of(html):
    return re.search("<h1>(.*?)</h1>", header_of(html))[1]


def reasons_of(html):
    return re.search("<p class=verdict>(.*?)</p>", header_of(html))[1]


def doubts_of(html):
    return re.findall("<p><strong>Doubt:</strong> (.*?)</p>", header_of(html))


@pytest.fixture
def page_of(table, invented):
    """The maker of a page of thirty rows, after a change of the robust model."""

    def make(change=lambda model, y: None, flagged=0, plain=None, target="price"):
        X, y = table(30)
        model = invented(X, y, flagged)
        change(model, y)
        return report_html(model, None if plain is None else plain(X, y), X, y, target=target)

    return make


def test_the_verdict_comes_first_and_its_numbers_are_the_models(one_feature):
    X, y, robust, plain = one_feature
    assert robust.doubts_ == ()
    html = report_html(robust, plain, X, y, target="price")
    flagged = robust.outliers_
    assert headline_of(html) == f"No sign of trouble; {flagged.sum()} of 60 rows are flagged"
    covered = percent(rows_of(robust, X, y.to_numpy(), tuple(X.index)).inside[~flagged].mean())
    assert reasons_of(html) == (
        f"It converged, there are no doubts about the noise law, and {covered} of the rows that are not flagged lie in "
        "their 95 % interval. Flagged means more likely an outlier than not."
    )
    assert str(robust.noise_law_).splitlines()[0] in header_of(html)
    assert "Doubt" not in header_of(html)
    order = [html.index(part) for part in ("<h1>", "<p class=verdict>", "<p class=lead>", "<dl>", "<section")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("flagged", "headline"),
    [(0, "none of 30 rows is flagged"), (1, "1 of 30 rows is flagged"), (2, "2 of 30 rows are flagged")],
)
def test_flags_are_counted_in_the_headline_and_explained_if_there_are_any(page_of, flagged, headline):
    html = page_of(flagged=flagged)
    assert headline_of(html) == f"No sign of trouble; {headline}"
    assert ("Flagged means" in reasons_of(html)) == bool(flagged)


def test_every_doubt_is_at_the_top_and_never_markup(page_of):
    def doubt(model, y):
        model.doubts_ = ("12 rows are too few", EVIL)

    html = page_of(doubt)
    assert headline_of(html).startswith("Read this fit with care; ")
    assert reasons_of(html) == "2 doubts are listed below."
    assert doubts_of(html) == ["12 rows are too few.", "&lt;script&gt;alert(1)&lt;/script&gt;."]
    assert html.index("<p class=verdict>") < html.index('role="alert"') < html.index("<p class=lead>")
    assert html.count("<script") == 3


def test_the_doubts_of_a_model_are_on_its_page(table):
    X, y = table(6)
    with pytest.warns(NoiseLawWarning):
        robust = RCGPRegressor().fit(X, y)
    assert len(robust.doubts_) == 1
    html = report_html(robust, None, X, y, target="price")
    assert doubts_of(html) == [f"{robust.doubts_[0]}."]
    assert headline_of(html).startswith("Read this fit with care; ")
    assert "A doubt is listed below." in reasons_of(html)


def test_a_fit_that_did_not_converge_is_not_to_be_relied_on(page_of):
    def stop(model, y):
        model.fit_report_.converged, model.fit_report_.message = False, "<limit> reached"
        model.doubts_ = ("all is strange",)

    html = page_of(stop)
    assert headline_of(html).startswith("Do not rely on this fit yet; ")
    assert reasons_of(html).startswith("The fit did not converge, so every number below may change")
    assert "A doubt is listed below." in reasons_of(html)
    assert "converged</th><td>no: &lt;limit&gt; reached</td>" in html
    assert "No sign of trouble" not in html


def test_the_comparison_reports_an_ordinary_gp_that_did_not_converge(page_of, invented):
    def stopped(X, y):
        model = invented(X, y)
        model.fit_report_.converged, model.fit_report_.message = False, "limit reached"
        return model

    sentence = "The fit of the ordinary GP did not converge"
    html = page_of(plain=stopped)
    comparison = html[html.index('<section id="comparison">') :]
    assert sentence in comparison[: comparison.index("</p>")]
    assert "converged</th><td>yes</td><td>no: limit reached</td>" in html
    assert headline_of(html).startswith("No sign of trouble; ")
    assert sentence not in page_of(plain=invented)


def test_features_that_hardly_predict_are_a_reason_for_care(page_of):
    def shrink(share):
        def change(model, y):
            median = float(np.median(y))
            model.loo_mean_ = median + share * (y.to_numpy() - median)  # 1 − share times the error of the median
            model.loo_std_ = np.full(30, 3.0 * float(np.std(y)))  # wide enough for every row

        return change

    html = page_of(shrink(0.09), target="<price>")
    assert headline_of(html) == "Read this fit with care; none of 30 rows is flagged"
    assert reasons_of(html) == "The features hardly predict &lt;price&gt;: a constant would do nearly as well."
    assert headline_of(page_of(shrink(0.11))).startswith("No sign of trouble; ")


def test_flagged_rows_do_not_count_against_the_features(page_of):
    def miss_the_first(model, y):
        model.loo_mean_ = y.to_numpy() + 0.1
        model.loo_mean_[0] = 1e6

    assert headline_of(page_of(miss_the_first, flagged=1)).startswith("No sign of trouble; ")
    assert "hardly predict price" in reasons_of(page_of(miss_the_first))


def test_low_coverage_is_a_reason_for_care(page_of):
    def outside(count):
        def change(model, y):
            model.weight = "imq"  # its doubts are about the noise law, which has no part in the intervals
            model.loo_mean_ = y.to_numpy() + np.where(np.arange(30) < count, 2.1, 0.1) * model.loo_std_

        return change

    html = page_of(outside(8))
    assert headline_of(html).startswith("Read this fit with care; ")
    assert reasons_of(html) == f"Only {percent(22 / 30)} of the rows that are not flagged lie in their 95 % interval."
    assert headline_of(page_of(outside(3))).startswith("No sign of trouble; ")  # by chance, of thirty


def test_a_table_of_only_flagged_rows_is_a_reason_for_care(page_of):
    html = page_of(flagged=30)
    assert headline_of(html) == "Read this fit with care; 30 of 30 rows are flagged"
    assert "Every row is flagged, so no row is left to check the fit with." in reasons_of(html)


def test_given_hyperparameters_are_not_reported_as_converged(page_of):
    def give(model, y):
        model.fit_report_ = None

    html = page_of(give)
    assert headline_of(html).startswith("No sign of trouble; ")
    assert reasons_of(html).startswith("Its hyperparameters were given, there are no doubts")
