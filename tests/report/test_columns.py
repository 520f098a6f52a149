"""Dates and categories of a table on its page, and the effects that are folded away."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from rcgp.report import report_html
from rcgp.report.text import number
from rcgp.table import Column
from report.reading import Table, decoded, figures_of


class Folds(HTMLParser):
    """The figures of a page, shown at once or folded, and the line of each fold."""

    def __init__(self, html):
        super().__init__()
        self.shown, self.folded, self.lines, self.depth, self.reading = [], [], [], 0, False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.depth += tag == "details"
        if tag == "summary":
            self.reading = True
            self.lines.append("")
        if "figure" in dict(attributes).get("class", "").split():
            (self.folded if self.depth else self.shown).append(dict(attributes)["id"].removeprefix("figure-"))

    def handle_data(self, data):
        if self.reading:
            self.lines[-1] += data

    def handle_endtag(self, tag):
        self.depth -= tag == "details"
        if tag == "summary":
            self.reading = False


@pytest.fixture(scope="module")
def page(mixed):
    columns, X, y, robust, plain = mixed
    return report_html(robust, plain, X, y, target="price", columns=columns)


def effects_of(html):
    """Key and figure of each effect by the name of its column, in the order of the page."""
    figures = figures_of(html).items()
    return {figure["layout"]["xaxis"]["title"]["text"]: (key, figure) for key, figure in figures if "effect" in key}


def test_rows_are_listed_with_dates_and_levels(page, mixed):
    X = mixed[1]
    head, *body = Table(page).rows
    assert head[8:] == ["sold", "type", "garden", "size", "noise"]
    for cells in body:
        row = X.loc[int(cells[0])]
        assert cells[8] == str(np.datetime64(int(row["sold"]), "D"))
        assert row[f"type={cells[9]}"] == 1.0
        assert cells[10] == ("yes" if row["garden=yes"] else "no")
        assert cells[11:] == [number(row["size"]), number(row["noise"])]
        assert f'<td class="number" data-value="{float(row["sold"])!r}">{cells[8]}</td>' in page  # sorted by day
    assert re.search("<td>(flat|terraced|detached)</td>", page)  # sorted as text
    assert "from 5 features" in page


def test_an_effect_of_dates_is_drawn_on_an_axis_of_dates(page, mixed):
    _, X, _, robust, _ = mixed
    _, figure = effects_of(page)["sold"]
    curve = figure["data"][-1]
    assert curve["name"] == "robust GP"
    seconds = np.array(curve["x"], dtype="datetime64[s]").astype(float)
    days = seconds / 86_400
    assert (days == np.round(days)).all()
    assert X["sold"].min() <= days.min() < days.max() <= X["sold"].max()
    for trace in figure["data"]:
        assert list(trace["x"]) == list(curve["x"])
    means = [robust.predict(X.assign(sold=day)).mean() for day in days]
    np.testing.assert_allclose(decoded(curve["y"]), means)
    assert [at for at, _ in curve["customdata"]] == [str(np.datetime64(int(day), "D")) for day in days]
    assert [shown for _, shown in curve["customdata"]] == [number(mean) for mean in means]


def test_an_effect_of_a_category_has_a_point_and_a_bar_for_each_level(page, mixed):
    _, X, _, robust, plain = mixed
    _, figure = effects_of(page)["type"]
    axis = figure["layout"]["xaxis"]
    assert axis["ticktext"] == ["flat", "terraced", "detached"]  # lowest first
    ordinary, ours = figure["data"]
    for trace, model in ((ordinary, plain), (ours, robust)):
        assert trace["mode"] == "markers"
        assert list(decoded(trace["x"])) == list(decoded(axis["tickvals"])) == [0, 1, 2]
        assert [at for at, _ in trace["customdata"]] == axis["ticktext"]
        for i, level in enumerate(axis["ticktext"]):
            at = X.assign(**{name: float(name == f"type={level}") for name in X.columns if name.startswith("type=")})
            mean, covariance = model.predict(at, return_cov=True)
            assert decoded(trace["y"])[i] == pytest.approx(mean.mean())
            if model is robust:
                bar = 1.959964 * np.sqrt(covariance.mean())
                assert decoded(trace["error_y"]["array"])[i] == pytest.approx(bar, rel=1e-6)


def test_effects_that_matter_are_shown_and_the_others_folded(page, mixed):
    _, _, y, robust, _ = mixed
    effects, folds = effects_of(page), Folds(page)
    assert set(effects) == {"size", "type", "sold", "noise", "garden"}
    limit = 0.2 * np.std(y[~robust.outliers_])
    widths = {name: np.ptp(decoded(figure["data"][-1]["y"])) for name, (_, figure) in effects.items()}
    assert list(widths) == sorted(widths, key=widths.get, reverse=True)
    for name, (key, _) in effects.items():
        assert (widths[name] < limit) == (name in ("noise", "garden"))
        assert key in (folds.folded if widths[name] < limit else folds.shown)
    assert len(folds.folded) == 2
    assert folds.lines[0] == "2 features with hardly any effect: " + ", ".join(list(effects)[3:])
    assert len({tuple(figure["layout"]["yaxis"]["range"]) for _, figure in effects.values()}) == 1


def test_the_strongest_effect_is_shown_even_if_it_is_weak(table, invented):
    X, y = table(30, ("size", "age"))
    model = invented(X, y)

    def predict(X, return_cov=False, **_):
        mean = 0.001 * X["age"].to_numpy()
        return (mean, np.zeros((len(X), len(X)))) if return_cov else mean

    model.predict = predict
    html = report_html(model, None, X, y, target="price")
    folds = Folds(html)
    assert list(effects_of(html)) == ["age", "size"]
    assert "effect-0" in folds.shown
    assert folds.folded == ["effect-1"]
    assert folds.lines[0] == "1 feature with hardly any effect: size"


def test_without_weak_effects_there_is_no_fold(table, invented):
    X, y = table(30, ("size", "age"))
    folds = Folds(report_html(invented(X, y), None, X, y, target="price"))
    assert folds.folded == []
    assert folds.lines == ["How the models were fitted"]


def test_a_single_column_of_dates_has_a_curve_on_an_axis_of_dates(table, invented):
    X, y = table(40)
    X["size"] = 19_000.0 + np.arange(40) * 20.25  # at midnight, at six, noon and eighteen o'clock
    html = report_html(invented(X, y, 2), None, X, y, target="price", columns=[Column("size", "date")])
    *_, rows, curve, flagged = figures_of(html)["fit"]["data"]
    seconds = np.array([*rows["x"], *flagged["x"]], dtype="datetime64[s]").astype(float)
    np.testing.assert_array_equal(np.sort(seconds), np.sort(X["size"]) * 86_400)
    ends = np.array([curve["x"][0], curve["x"][-1]], dtype="datetime64[s]").astype(float) / 86_400
    assert ends[0] < X["size"].min() < X["size"].max() < ends[1]
    for cells in Table(html).rows[1:]:
        day = X["size"].loc[int(cells[0])]
        form = "%Y-%m-%d" if day % 1 == 0 else "%Y-%m-%d %H:%M"
        assert cells[8] == pd.Timestamp(day * 86_400, unit="s").strftime(form)
    assert "lengthscale of size (days)" in html


def test_a_single_category_has_levels_instead_of_a_curve(table, invented):
    X, y = table(40, ("garden=yes",))
    X["garden=yes"] = np.arange(40.0) % 2
    columns = [Column("garden", "category", ("no", "yes"))]
    html = report_html(invented(X, y), None, X, y, target="price", columns=columns)
    assert "fit" not in figures_of(html)
    assert sorted(effects_of(html)["garden"][1]["layout"]["xaxis"]["ticktext"]) == ["no", "yes"]
    for cells in Table(html).rows[1:]:
        assert cells[8] == ("yes" if X["garden=yes"].loc[int(cells[0])] else "no")


@pytest.mark.parametrize(("count", "size"), [(6, "third"), (7, "whole")])
def test_a_category_with_many_levels_has_the_whole_width(table, invented, count, size):
    levels = tuple("abcdefg"[:count])
    X, y = table(42, tuple(f"kind={level}" for level in levels))
    X[:] = np.eye(count)[np.arange(42) % count]
    html = report_html(invented(X, y), None, X, y, target="t", columns=[Column("kind", "category", levels)])
    assert f'class="figure {size}" id="figure-effect-0"' in html


def test_names_of_levels_are_never_markup(table, invented):
    levels = ("%{x}", "</script><script>alert(1)</script>", "<b>bold</b>")
    X, y = table(30, tuple(f"kind={level}" for level in levels))
    X[:] = np.eye(3)[np.arange(30) % 3]
    html = report_html(invented(X, y), None, X, y, target="t", columns=[Column("kind", "category", levels)])
    tags = [tag for tag, _ in Table(html).tags]
    assert tags.count("script") == 3
    assert "b" not in tags
    assert set(levels) == {cells[8] for cells in Table(html).rows[1:]}
    assert not any("<" in text for text in effects_of(html)["kind"][1]["layout"]["xaxis"]["ticktext"])


def test_without_columns_every_feature_is_a_number(mixed):
    _, X, y, robust, _ = mixed
    html = report_html(robust, None, X, y, target="price")
    assert Table(html).rows[0][8:] == list(X.columns)
    assert "from 7 features" in html


def test_columns_of_another_table_are_a_clear_error(mixed):
    columns, X, y, robust, _ = mixed
    with pytest.raises(ValueError, match="columns do not give the features of X"):
        report_html(robust, None, X, y, target="price", columns=columns[1:])
