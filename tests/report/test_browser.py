"""The page as a reader meets it: opened from disk in Chromium, offline, pointed at, sorted, made narrow and dark."""

from __future__ import annotations

import re
import warnings
from itertools import product

import numpy as np
import pandas as pd
import pytest

from rcgp import RCGPRegressor
from rcgp.report import report_html, write_report
from rcgp.report.text import fraction, number
from rcgp.table import Column
from report.reading import opened

pytestmark = pytest.mark.slow  # test_page.py has the one test of make test that needs a browser

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def path(one_feature, tmp_path_factory):
    X, y, robust, plain = one_feature
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, robust, plain, X, y, target="price", notices=["2 rows had no price."])
    return path


@pytest.fixture(scope="module")
def page(browser, path):
    with opened(browser, path) as page:
        yield page


def column(page, index):
    return page.eval_on_selector_all(
        "table.sortable tbody tr", "(rows, i) => rows.map((row) => row.cells[i].textContent)", index
    )


def test_no_button_sends_the_data_away(page):
    buttons = page.eval_on_selector_all(".modebar-btn", "all => all.map((one) => one.dataset.title)")
    assert set(buttons) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_pointing_at_a_row_shows_its_values(page, one_feature):
    X, y, robust, _ = one_feature
    place = page.locator("#figure-residuals .trace.scatter >> nth=-1").locator("path.point").first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#figure-residuals .hovertext")
    shown = page.eval_on_selector_all("#figure-residuals .hovertext .line", "all => all.map((one) => one.textContent)")
    i = X.index.get_loc(int(shown[0].removeprefix("row ")))
    assert robust.outliers_[i]
    assert shown[1:] == [
        f"observed {number(y.iloc[i])}",
        f"expected {number(robust.loo_mean_[i])}",
        f"weight {fraction(robust.weights_[i])}",
        f"outlier probability {fraction(robust.outlier_probability_[i])}",
    ]


def test_a_press_on_a_heading_sorts_and_another_reverses(page):
    heading = page.locator("table.sortable th").nth(1)
    button = heading.locator("button")
    assert page.locator("table.sortable th").nth(6).get_attribute("aria-sort") == "descending"
    button.click()
    values = [float(text) for text in column(page, 1)]
    assert values == sorted(values)
    assert values != sorted(values, key=str)  # as text the order would be another
    assert heading.get_attribute("aria-sort") == "ascending"
    assert page.locator("table.sortable th[aria-sort=none]").count() == 8
    button.click()
    assert [float(text) for text in column(page, 1)] == values[::-1]
    assert heading.get_attribute("aria-sort") == "descending"


def test_the_keyboard_sorts_and_text_is_sorted_as_text(page):
    button = page.locator("table.sortable th").nth(7).locator("button")
    button.focus()
    page.keyboard.press("Enter")
    flags = column(page, 7)
    assert flags == sorted(flags)
    assert set(flags) == {"yes", "no"}
    page.keyboard.press("Space")
    assert column(page, 7) == flags[::-1]


def test_names_are_text_and_run_nothing(browser, table, invented, tmp_path):
    X, y = table(30, (EVIL, "<b>%{x}</b> <br>"))
    X.index = y.index = [f"<img src=x onerror=alert({i})>" for i in range(30)]
    path, target = tmp_path / "page.html", "<i>t</i> &lt; %{y}"
    write_report(path, invented(X, y, 3), invented(X, y), X, y, target=target, notices=[EVIL])
    with opened(browser, path) as page:
        titles = page.eval_on_selector_all("#fit .figure .xtitle", "all => all.map((one) => one.textContent)")
        assert sorted(titles) == sorted([EVIL, "<b>%{x}</b> <br>"])
        assert page.text_content("#fit .figure .ytitle") == target
        assert page.text_content("aside li") == EVIL
        page.evaluate("Plotly.Fx.hover('figure-residuals', [{curveNumber: 1, pointNumber: 0}])")
        assert page.text_content("#figure-residuals .hovertext .line").startswith("row <img src=x onerror=al")
        page.evaluate("Plotly.Fx.hover('figure-effect-0', [{curveNumber: 3, pointNumber: 4}])")
        hover = page.eval_on_selector_all("#figure-effect-0 .hovertext .line", "all => all.map((o) => o.textContent)")
        assert hover[0] == "robust GP"
        assert hover[1].startswith(titles[0] + " ")
        assert hover[2].startswith(target + " ")


def test_markup_that_slipped_through_would_not_run(browser, path, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(path.read_text().replace("<main>", f"<main>{EVIL}<img src='data:,' onerror='alert(2)'>"))
    page = browser.new_page()
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(broken.as_uri())
    page.wait_for_selector("html[data-figures=drawn]")
    assert dialogs == []
    page.close()


def test_a_dark_screen_has_a_dark_page_with_light_labels(page):
    page.emulate_media(color_scheme="dark")
    assert brightness(page, "body", "backgroundColor") < 60
    assert brightness(page, "#figure-fit .xtitle", "fill") > 180
    page.emulate_media(color_scheme="dark", media="print")  # paper is white, whatever the screen
    assert brightness(page, "#figure-fit .xtitle", "fill") < 80
    page.emulate_media(color_scheme="light", media="screen")
    assert brightness(page, "body", "backgroundColor") > 200
    assert brightness(page, "#figure-fit .xtitle", "fill") < 80


def brightness(page, selector, attribute):
    colour = page.eval_on_selector(selector, "(one, name) => getComputedStyle(one)[name]", attribute)
    red, green, blue = (int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return (red + green + blue) / 3


def test_a_narrow_screen_does_not_scroll_sideways(browser, table, invented, tmp_path):
    X, y = table(30, ("size", "a name that goes on_and_on_" + "and_on_" * 20, "age"))
    write_report(tmp_path / "page.html", invented(X, y, 3), invented(X, y), X, y, target="t" * 90, notices=["n" * 300])
    with opened(browser, tmp_path / "page.html", width=400) as page:
        page.locator("#fits summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        widest = page.eval_on_selector_all(".figure svg.main-svg", "all => Math.max(...all.map((o) => o.clientWidth))")
        assert 250 < widest <= 400


def test_an_old_browser_gets_a_sentence_and_the_tables(browser, path):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-figures=missing]")
    assert "cannot be drawn in this browser" in page.text_content("#sorry")
    assert page.is_visible("#sorry")
    page.locator("table.sortable th button").first.click()
    assert [int(row) for row in column(page, 0)] == sorted(int(row) for row in column(page, 0))
    page.close()


def test_without_javascript_the_page_explains_itself(browser, path):
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri())
    assert page.locator("noscript").inner_text().startswith("Figures need JavaScript")
    page.close()


@pytest.fixture(scope="module")
def mixed_path(mixed, tmp_path_factory):
    columns, X, y, robust, plain = mixed
    path = tmp_path_factory.mktemp("report") / "mixed.html"
    write_report(path, robust, plain, X, y, target="price", columns=columns)
    return path


@pytest.fixture(scope="module")
def mixed_page(browser, mixed_path):
    with opened(browser, mixed_path) as page:
        yield page


def texts(page, selector):
    return page.eval_on_selector_all(selector, "all => all.map((one) => one.textContent)")


def effect(page, name):
    """The selector of the figure of a column's effect."""
    label = f"Partial dependence of price on {name}"
    return "#" + page.eval_on_selector(f'.figure[aria-label="{label}"]', "one => one.id")


def test_weak_effects_are_drawn_when_their_fold_opens(mixed_page):
    assert mixed_page.get_attribute("html", "data-figures") == "drawn"
    assert mixed_page.locator("#fit > .figures .figure svg.main-svg").count() > 0
    inside = mixed_page.locator("#fit details .figure")
    assert inside.count() == 2
    assert inside.locator("svg.main-svg").count() == 0
    assert not inside.first.is_visible()
    fold = mixed_page.locator("#fit details summary")
    assert fold.inner_text().startswith("2 features with hardly any effect: ")
    fold.click()
    for i in range(2):
        inside.nth(i).locator("svg.main-svg").first.wait_for()
        shown = mixed_page.locator("#fit > .figures .figure").first.bounding_box()
        drawn = inside.nth(i).locator("svg.main-svg").first.bounding_box()
        assert (drawn["width"], drawn["height"]) == pytest.approx((shown["width"], shown["height"]), abs=2)
    before = inside.first.inner_html()
    fold.click()
    fold.click()
    assert inside.first.inner_html() == before  # not drawn again


def test_dates_are_on_the_axis_and_levels_below_their_points(mixed_page):
    assert set(texts(mixed_page, f"{effect(mixed_page, 'sold')} .xtick text")) & {"2022", "Jan 2022", "Jul 2021"}
    assert texts(mixed_page, f"{effect(mixed_page, 'type')} .xtick text") == ["flat", "terraced", "detached"]
    figure = effect(mixed_page, "type")
    points = mixed_page.eval_on_selector_all(
        f"{figure} .trace.scatter:last-child path.point",
        "all => all.map((one) => { const box = one.getBoundingClientRect(); return box.x + box.width / 2; })",
    )
    labels = mixed_page.eval_on_selector_all(
        f"{figure} .xtick text",
        "all => all.map((one) => { const box = one.getBoundingClientRect(); return box.x + box.width / 2; })",
    )
    assert points == pytest.approx(labels, abs=3)


def test_pointing_at_a_level_or_a_date_names_it(mixed_page, mixed):
    X, robust = mixed[1], mixed[3]
    figure = effect(mixed_page, "type")
    mixed_page.evaluate(f"Plotly.Fx.hover('{figure[1:]}', [{{curveNumber: 1, pointNumber: 2}}])")
    at = X.assign(**{"type=detached": 1.0, "type=flat": 0.0, "type=terraced": 0.0})
    mean = number(robust.predict(at).mean())
    assert texts(mixed_page, f"{figure} .hovertext .line") == ["robust GP", "type detached", f"price {mean}"]
    figure = effect(mixed_page, "sold")
    mixed_page.evaluate(f"Plotly.Fx.hover('{figure[1:]}', [{{curveNumber: 3, pointNumber: 0}}])")
    first = float(np.round(np.quantile(X["sold"], 0.01)))
    mean = number(robust.predict(X.assign(sold=first)).mean())
    expected = ["robust GP", f"sold {np.datetime64(int(first), 'D')}", f"price {mean}"]
    assert texts(mixed_page, f"{figure} .hovertext .line") == expected


def test_long_names_of_levels_are_all_shown(browser, table, invented, tmp_path):
    levels = tuple(f"municipality of {name}" for name in ("Aarau", "Basel", "Chur", "Davos"))
    X, y = table(40, tuple(f"town={level}" for level in levels))
    X[:] = np.eye(4)[np.arange(40) % 4]
    columns = [Column("town", "category", levels)]
    write_report(tmp_path / "page.html", invented(X, y), None, X, y, target="price", columns=columns)
    with opened(browser, tmp_path / "page.html") as page:
        figure = effect(page, "town")
        assert sorted(texts(page, f"{figure} .xtick text")) == list(levels)
        assert all(label.is_visible() for label in page.locator(f"{figure} .xtick text").all())
        frame = page.locator(figure).bounding_box()
        for label in page.locator(f"{figure} .xtick text").all():
            box = label.bounding_box()
            assert frame["x"] <= box["x"] + 1
            assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1


def test_rows_are_sorted_by_date(mixed_page):
    heading = mixed_page.locator("table.sortable th").nth(8)
    heading.locator("button").click()
    days = column(mixed_page, 8)
    assert days == sorted(days)
    assert len(set(days)) == 20
    heading.locator("button").click()
    assert column(mixed_page, 8) == days[::-1]


def overlap(one, other):
    across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
    down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
    return across > 0 and down > 0


@pytest.mark.parametrize("width", [1200, 400])
def test_the_mode_bar_covers_neither_legend_nor_points_nor_text(browser, path, width):
    with opened(browser, path, width=width) as page:
        for figure in page.locator(".figure.whole").all():
            figure.hover()
            bar = figure.locator(".modebar").bounding_box()
            assert bar["width"] > 100
            for covered in (".legend", ".bglayer, .plot"):
                for place in figure.locator(covered).all():
                    box = place.bounding_box()
                    assert box is None or not overlap(bar, box)
            for words in figure.locator("xpath=ancestor::section/p").all():
                assert not overlap(bar, words.bounding_box())


@pytest.mark.parametrize("scale", [1e-3, 6e3, 4e5])
def test_ticks_are_plain_numbers(browser, table, invented, tmp_path, scale):
    X, y = table(40, target_scale=scale)
    X = X * scale
    write_report(tmp_path / "page.html", invented(X, y, 2), invented(X, y), X, y, target="price")
    with opened(browser, tmp_path / "page.html") as page:
        for key, axis in product(("fit", "residuals", "comparison"), "xy"):
            ticks = texts(page, f"#figure-{key} .{axis}tick text")
            assert len(ticks) >= 3
            for tick in ticks:
                assert re.fullmatch(r"−?(\d{1,3}(,\d{3})+|\d{1,4}|\d\.\d+)", tick), tick


def test_a_band_far_wider_than_the_frame_still_fills_it(browser, table, invented, tmp_path):
    X, y = table(60)
    model = invented(X, y, 1)
    model.predict_interval = lambda X: (np.full(len(X), -2e8), np.full(len(X), 2e8))
    y.iloc[0] = 1e9
    (tmp_path / "page.html").write_text(report_html(model, None, X, y, target="price"), encoding="utf-8")
    with opened(browser, tmp_path / "page.html") as page:
        fill = "one => { const box = one.getBBox(); return [box.width, box.height]; }"
        width, height = page.eval_on_selector("#figure-fit .fills .js-fill", fill)
        frame = page.locator("#figure-fit .bglayer, #figure-fit .plot").first.bounding_box()
        assert width > 0.9 * frame["width"]
        assert height > 400


def test_panels_of_several_outputs_are_drawn_open_or_when_opened(browser, tmp_path):
    random = np.random.default_rng(0)
    X = pd.DataFrame({"hour": np.linspace(0, 9, 20)})
    Y = np.sin(X.to_numpy()) * np.array([1.0, -2.0, 0.5, 3.0]) + 0.1 * random.standard_normal((20, 4))
    Y[5, 2] += 9.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RCGPRegressor(outputs="correlated", weight="constant", max_iter=10).fit(X, Y)
    write_report(tmp_path / "page.html", model, None, X, Y, target=[EVIL, "b", "c", "d"])
    with opened(browser, tmp_path / "page.html", color_scheme="dark") as page:
        assert page.get_attribute("html", "data-figures") == "drawn"
        assert page.locator("#figure-correlation .annotation").count() == 16
        assert page.locator("#fit-0 svg.main-svg").count() > 0
        panel = page.locator("details.output").nth(2)
        assert panel.locator("svg.main-svg").count() == 0
        panel.locator("summary").first.click()
        page.wait_for_selector("#residuals-2 svg.main-svg")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
