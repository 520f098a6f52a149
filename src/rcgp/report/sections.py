"""The sections of the page in reading order, each with a heading, a few words, figures or a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from rcgp.estimator import FLAG_RULE
from rcgp.report import figures
from rcgp.report.effects import MOST_EFFECTS, Effect, fitted_curve, partial_dependences
from rcgp.report.summary import (
    MOST_DRAWN,
    Fit,
    Numbers,
    Range,
    Rows,
    as_fitted,
    converged,
    drawn_rows,
    frame_of,
    listed_rows,
    predictive_law,
)
from rcgp.report.text import counted, for_html, fraction, number, percent

__all__ = [
    "Panel",
    "Section",
    "beyond",
    "facts_of",
    "facts_table",
    "fit_table",
    "law_section",
    "row_section",
    "row_table",
    "sections_of",
]

#: Columns shown beside each listed row; more do not fit on a page.
_MOST_COLUMNS = 40
#: An effect whose range is below this share of the standard deviation of y is folded away: a straight effect of that
#: range explains 0.2² / 12 = 0.3 % of the variance, and looks flat.
_WEAK = 0.2
#: Levels of a category that fit into a small figure.
_MOST_LEVELS = 6


@dataclass(frozen=True)
class Panel:
    """A figure with its key on the page, a description for screen readers, and its size."""

    key: str
    figure: go.Figure
    description: str
    size: str = "whole"


@dataclass(frozen=True)
class Section:
    """A part of the page. ``words`` and ``table`` are HTML, ``heading`` and ``fold`` are text.

    The panels in ``folded`` are hidden behind a line that reads ``fold``. ``kind`` is the key of such a section on a
    page with one output.
    """

    key: str
    heading: str
    words: str
    panels: tuple[Panel, ...] = ()
    table: str = ""
    fold: str = ""
    folded: tuple[Panel, ...] = ()
    kind: str = ""


def sections_of(fit: Fit, most_drawn: int = MOST_DRAWN) -> list[Section]:
    """All sections; figures draw at most ``most_drawn`` rows."""
    drawn = drawn_rows(fit.rows, most_drawn)
    few = fit.rows.take(drawn)
    thinned = "" if len(drawn) == len(fit.rows.label) else _thinned(fit.rows, len(drawn))
    if fit.X.shape[1] == 1 and fit.columns[0].kind != "category":
        first = _curve_section(fit, few, fit.columns[0].values(fit.X)[drawn], thinned)
    else:
        first = _effects_section(fit, partial_dependences(fit.robust, fit.plain, fit.X, fit.columns))
    if fit.other is None:
        words = "Each row is predicted from all others."
        scores = Section("scores", "In numbers", words, table=_score_table(fit))
    else:
        scores = _comparison_section(fit, few, fit.other.take(drawn).expected, thinned)
    law, weights = law_section(fit.robust, fit.rows, np.asarray(fit.robust.noise_std(as_fitted(fit.robust, fit.X))))
    return [first, law, weights, _residual_section(fit, few, thinned), scores, _row_section(fit)]


def _curve_section(fit: Fit, few: Rows, x: Numbers, thinned: str) -> Section:
    rows, effect = fit.rows, fitted_curve(fit.robust, fit.plain, fit.X, fit.columns[0])
    kept = np.concatenate([rows.observed[~rows.flagged], effect.mean])
    y_range = frame_of(np.concatenate([kept, rows.observed]), kept)
    every, ends = effect.column.values(fit.X), (float(effect.grid.min()), float(effect.grid.max()))
    x_range = ends if every.min() < ends[0] or every.max() > ends[1] else None
    figure = figures.curve_figure(effect, x, few, fit.target, x_range, y_range)
    ordinary = "" if effect.plain is None else " The dashed line is an ordinary GP, which weights all rows equally."
    words = (
        "The line is the mean of the robust GP. The dark band holds the true curve, the light band a new observation "
        f"that is not an outlier, each with 95 % probability.{ordinary}{beyond(rows.observed, y_range)}"
        f"{beyond(every, x_range, marked=False)}{thinned}"
    )
    panel = Panel("fit", figure, f"Fitted curve of {fit.target} against {effect.column.name}")
    return Section("fit", "The fit", words, (panel,))


def _effects_section(fit: Fit, effects: tuple[Effect, ...]) -> Section:
    """The strongest effect and all that are not weak; the others folded away."""
    if not effects:
        return Section("fit", "The fit", "Every feature has a single value, so there is no effect to show.")
    ends = [e.mean + side * 2 * e.std for e in effects for side in (-1, 1)]
    together = np.concatenate([*ends, *(e.plain for e in effects if e.plain is not None)])
    low, high = float(together.min()), float(together.max())
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    y_range = low - margin, high + margin
    panels = tuple(
        Panel(
            f"effect-{i}",
            figures.effect_figure(effect, fit.target, y_range),
            f"Partial dependence of {fit.target} on {effect.column.name}",
            size="whole" if len(effect.column.levels) > _MOST_LEVELS else "third",
        )
        for i, effect in enumerate(effects)
    )
    kept = fit.rows.observed[~fit.rows.flagged]
    limit = _WEAK * float(np.std(kept if len(kept) else fit.rows.observed))
    strong = max(1, sum(bool(np.ptp(effect.mean) >= limit) for effect in effects))
    varying = sum(len(np.unique(column.values(fit.X))) > 1 for column in fit.columns)
    dropped, constant = varying - len(effects), len(fit.columns) - varying
    ordinary = "" if fit.plain is None else " An ordinary GP is dashed; for categories, open circles."
    words = (
        f"How the average prediction moves with one feature while the others stay as they are.{ordinary} "
        "Strongest effect first, all on the same vertical scale. Bands and bars hold the average with 95 % probability."
    )
    if dropped:
        words += f" Only the {MOST_EFFECTS} strongest effects are drawn; {counted(dropped, 'feature')} left out."
    if constant:
        words += f" {counted(constant, 'feature')} with a single value cannot be shown."
    names = ", ".join(effect.column.name for effect in effects[strong:])
    fold = f"{counted(len(effects) - strong, 'feature')} with hardly any effect: {names}"
    return Section("fit", "What each feature does", words, panels[:strong], fold=fold, folded=panels[strong:])


def law_section(robust: Any, rows: Rows, noise: Numbers) -> tuple[Section, Section]:
    """The noise law, and the weights of the rows; ``noise`` has standard deviations at some inputs."""
    words = for_html(str(robust.noise_law_).splitlines()[0])
    if robust.weight != "learned":
        words += " It was learned after the fit and only flags rows: the weights were given."
    if noise.max() > noise.min() * (1.0 + 1e-6):
        words += (
            f" The noise varies: its standard deviation is {number(float(noise.min()))} to "
            f"{number(float(noise.max()))}, and intervals follow it."
        )
    words += " Bars are residuals of the rows that are not flagged; they should follow the solid line."
    shares = facts_table(
        ["noise", "share of rows"], [(name, [percent(share)]) for name, share in robust.noise_law_.components()]
    )
    figure = figures.law_figure(predictive_law(robust), rows)
    panel = Panel("law", figure, "Density of the noise law and histogram of residuals")
    law = Section("law", "The noise law", words, (panel,), shares)
    words = "How much each row counts: 1 in full, near 0 hardly at all."
    words += " Above 1 where the noise is locally small." if rows.weight.max() > 1.0 else ""
    panel = Panel("weights", figures.weight_figure(rows.weight), "Weights")
    return law, Section("weights", "Weights", words, (panel,))


def _residual_section(fit: Fit, few: Rows, thinned: str) -> Section:
    residual = fit.rows.residual
    # This figure is about outliers: only absurd ones are marked at its edge instead.
    y_range = frame_of(residual, residual[~fit.rows.flagged], widest=50.0)
    words = (
        "Observed minus expected, where each row is predicted from all others. Points far from the dotted line "
        f"contradict the other rows.{beyond(residual, y_range)}{thinned}"
    )
    panel = Panel("residuals", figures.residual_figure(few, fit.target, y_range), f"Residuals of {fit.target}")
    return Section("residuals", "Residuals", words, (panel,))


def _comparison_section(fit: Fit, few: Rows, plain_expected: Numbers, thinned: str) -> Section:
    both = np.stack([fit.rows.expected, fit.rows.expected if fit.other is None else fit.other.expected])
    both_range = frame_of(both.ravel(), both[:, ~fit.rows.flagged].ravel())
    figure = figures.comparison_figure(few, plain_expected, fit.target, both_range)
    words = (
        "What the two models expect of each row, given all others. On the dotted line they agree; they differ where "
        f"outliers pull the ordinary GP.{beyond(both.ravel(), both_range, marked=False)}{thinned} In the table, “not "
        "flagged” leaves out the rows that the robust GP flags, for both models."
    )
    if not converged(fit.plain):
        words += " The fit of the ordinary GP did not converge, so it may do better than shown."
    panel = Panel("comparison", figure, f"Expected {fit.target}, robust against ordinary")
    return Section("comparison", "Robust against ordinary", words, (panel,), _score_table(fit))


def _row_section(fit: Fit) -> Section:
    """The most suspicious rows with their features."""
    chosen, further = listed_rows(fit.rows), []
    for column in fit.columns[:_MOST_COLUMNS]:
        values = column.values(fit.X)[chosen]
        sorted_as = None if column.kind == "category" else values
        further.append((column.name, [column.text(value) for value in values], sorted_as))
    more = f" The first {_MOST_COLUMNS} of {len(fit.columns)} features are shown."
    table = row_table(fit.rows.take(chosen), further)
    return row_section(fit.rows, table, more if len(fit.columns) > _MOST_COLUMNS else "")


def row_section(rows: Rows, table: str, more: str = "", noun: str = "row") -> Section:
    """The table of the most suspicious rows, with a few words about which are listed."""
    flagged, listed = int(rows.flagged.sum()), len(listed_rows(rows))
    if not flagged:
        words = f"No {noun} is flagged. These are the {listed} most suspicious."
    elif flagged < listed:
        words = f"{counted(flagged, noun)} flagged, and the most suspicious of the others up to {listed} in all."
    elif flagged == listed:
        words = f"All {counted(flagged, f'flagged {noun}')}."
    else:
        words = f"The {listed} most suspicious of {counted(flagged, f'flagged {noun}')}."
    rule = FLAG_RULE.replace("rows", f"{noun}s")
    words += (
        f" {rule[0].upper()}{rule[1:]}.{more} The score is the residual in standard deviations. Most "
        "suspicious first; press a column's name to sort by it, and again to reverse."
    )
    return Section("rows", f"Suspicious {noun}s" if flagged else f"Most suspicious {noun}s", words, table=table)


def _thinned(rows: Rows, drawn: int) -> str:
    if int(rows.flagged.sum()) > drawn:
        return f" The {drawn:,} most suspicious of {counted(len(rows.label), 'row')} are drawn."
    return f" {drawn:,} of {counted(len(rows.label), 'row')} are drawn: all flagged ones and a random sample."


def beyond(values: Numbers, frame: Range | None, noun: str = "point", marked: bool = True) -> str:
    """A sentence on points outside the frame, which may be marked at its edge."""
    count = 0 if frame is None else int(((values < frame[0]) | (values > frame[1])).sum())
    if not count:
        return ""
    lie, are = ("lies", "is") if count == 1 else ("lie", "are")
    advice = f"beyond the frame and {are} marked at its edge; point there to read the value"
    advice = advice if marked else "outside the frame: double-click the figure to see all"
    return f" {counted(count, noun)} {lie} {advice}."


def fit_table(fit: Fit) -> str:
    """Objective, outcome, steps and lengthscales of each fit."""
    models = [model for model in (fit.robust, fit.plain) if model is not None]
    facts = [facts_of(getattr(model, "fit_report_", None)) for model in models]
    lines = [(name, [one.get(name, "–") for one in facts]) for name in max(facts, key=len)]
    features = [(column, feature) for column in fit.columns for feature in column.features]
    for i, (column, feature) in enumerate(features[:_MOST_COLUMNS]):
        unit = " (days)" if column.kind == "date" else ""
        parts = [np.atleast_2d(np.asarray(model.lengthscales_, dtype=np.float64)) for model in models]
        # A kernel made of several parts has a lengthscale in each.
        cells = [", ".join("∞" if np.isinf(p[i]) else number(float(p[i])) for p in part) or "–" for part in parts]
        lines.append((f"lengthscale of {feature}{unit}", cells))
    return facts_table(_heads(fit), lines)


def facts_of(report: Any) -> dict[str, str]:
    """Objective, outcome, time and steps of a fit; empty if hyperparameters were given."""
    if report is None:
        return {}
    return {
        "objective": f"{report.objective} = {number(float(report.value))}",
        "converged": "yes" if report.converged else f"no: {report.message}",
        "time": f"{report.seconds:.2f} s",
        **{
            f"step {i}": f"{step.name}: {step.kept:,.0f} rows kept, log evidence {number(step.evidence)}"
            for i, step in enumerate(getattr(report, "rounds", ()), start=1)
        },
    }


def _score_table(fit: Fit) -> str:
    """Scores of the robust GP and, if there is one, of the ordinary GP."""
    lines = [
        ("mean absolute error, rows not flagged", [number(s.mean_error_kept) for s in fit.scores]),
        ("mean absolute error, all rows", [number(s.mean_error) for s in fit.scores]),
        ("median absolute error, all rows", [number(s.median_error) for s in fit.scores]),
        ("in their 95 % interval, rows not flagged", [percent(s.coverage_kept) for s in fit.scores]),
        ("in their 95 % interval, all rows", [percent(s.coverage) for s in fit.scores]),
        ("noise, standard deviation", [number(s.noise_std) for s in fit.scores]),
    ]
    return facts_table(_heads(fit), lines)


def _heads(fit: Fit) -> list[str]:
    return ["", "robust GP", *([] if fit.plain is None else ["ordinary GP"])]


def facts_table(heads: Sequence[str], lines: Iterable[tuple[str, list[str]]]) -> str:
    head = "".join(f'<th scope="col">{for_html(name)}</th>' if name else "<td></td>" for name in heads)
    body = "".join(
        f'<tr><th scope="row">{for_html(name)}</th>{"".join(f"<td>{for_html(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def row_table(rows: Rows, further: Iterable[tuple[str, Sequence[str], Numbers | None]], before: int = 0) -> str:
    """A table of rows; the script of the page makes it sortable.

    Args:
        rows: the rows, in order.
        further: name, texts and, unless these are sorted as text, numbers of further columns.
        before: how many of the further columns come directly after the row's label.
    """
    columns = [("row", [str(label) for label in rows.label], _numeric(rows.label))]
    numbers = {"observed": rows.observed, "expected": rows.expected, "residual": rows.residual, "score": rows.score}
    # Scores are sorted by size: large ones of either sign are suspicious.
    columns += [(k, list(map(number, v)), np.abs(v) if v is rows.score else v) for k, v in numbers.items()]
    parts = {"weight": rows.weight, "outlier probability": rows.probability}
    columns += [(k, list(map(fraction, v)), v) for k, v in parts.items()]
    columns.append(("flagged", ["yes" if flag else "no" for flag in rows.flagged], None))
    added = [(name, list(texts), values) for name, texts, values in further]
    columns = [columns[0], *added[:before], *columns[1:], *added[before:]]
    # Buttons, which keyboards reach and screen readers announce.
    head = "".join(
        f'<th scope="col" aria-sort="{"descending" if name == "outlier probability" else "none"}">'
        f'<button type="button" data-column="{i}">{for_html(name)}</button></th>'
        for i, (name, _, _) in enumerate(columns)
    )
    body = []
    for i, flagged in enumerate(rows.flagged):
        cells = "".join(_cell(texts[i], None if values is None else values[i]) for _, texts, values in columns)
        body.append(f"<tr{' class=flagged' if flagged else ''}>{cells}</tr>")
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def _numeric(labels: Sequence[object]) -> Any:
    """Labels as numbers to sort by, ``None`` where one is a text; ``None`` without numbers."""
    found = [v if isinstance(v, int | float | np.number) and not isinstance(v, bool) else None for v in labels]
    return found if any(value is not None for value in found) else None


def _cell(text: object, sorted_as: Any = None) -> str:
    """A cell that is sorted by a number, or as text without one."""
    value = "" if sorted_as is None else f' class="number" data-value="{float(sorted_as)!r}"'
    return f"<td{value}>{for_html(text)}</td>"
