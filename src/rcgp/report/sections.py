"""The sections of the page in the order in which they are read: a heading, a few plain words, figures, a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rcgp.estimator.outliers import FLAG_RULE
from rcgp.report import figures
from rcgp.report.effects import MOST_EFFECTS, Effect, fitted_curve, partial_dependences
from rcgp.report.summary import Numbers, Regressor, Rows, as_fitted, drawn_rows, listed_rows, predictive_law, scores_of
from rcgp.report.tables import MOST_COLUMNS, law_table, row_table, score_table
from rcgp.report.text import counted, for_html, number

__all__ = ["Panel", "Section", "median_noise", "sections_of"]


@dataclass(frozen=True)
class Panel:
    """A figure with a key of its own on the page, a description for those who cannot see it, and its size."""

    key: str
    figure: go.Figure
    description: str
    size: str = "whole"


@dataclass(frozen=True)
class Section:
    """A part of the page. ``words`` and ``table`` are HTML, ``heading`` is text."""

    key: str
    heading: str
    words: str
    panels: tuple[Panel, ...] = ()
    table: str = ""


def sections_of(
    robust: Regressor, plain: Regressor | None, X: pd.DataFrame, rows: Rows, other: Rows | None, target: str
) -> list[Section]:
    """All sections. ``rows`` and ``other`` are the table as the robust and the ordinary model see it."""
    drawn = drawn_rows(rows)
    thinned = "" if len(drawn) == len(rows.label) else _thinned(rows, len(drawn))
    few = _subset(rows, drawn)
    if X.shape[1] == 1:
        fit = _curve_section(fitted_curve(robust, plain, X), X, rows, drawn, target, thinned)
    else:
        fit = _effects_section(partial_dependences(robust, plain, X), X, plain is not None, target)
    sections = [
        fit,
        _law_section(robust, X, rows),
        _weight_section(rows),
        _residual_section(rows, few, target, thinned),
    ]
    if plain is not None and other is not None:
        sections.append(_comparison(robust, plain, X, rows, other, drawn, target, thinned))
    else:
        words = "Each row is predicted from all others, and the predictions are held against what was observed."
        table = score_table(scores_of(rows, rows.flagged, median_noise(robust, X)), None)
        sections.append(Section("scores", "In numbers", words, table=table))
    return [*sections, _listing(rows, X)]


def _curve_section(
    effect: Effect, X: pd.DataFrame, rows: Rows, drawn: np.typing.NDArray[np.intp], target: str, thinned: str
) -> Section:
    kept = np.concatenate([rows.observed[~rows.flagged], effect.mean])
    y_range = figures.frame_of(np.concatenate([kept, rows.observed]), kept)
    x = X.iloc[:, 0].to_numpy(dtype=np.float64)[drawn]
    figure = figures.curve_figure(effect, x, _subset(rows, drawn), target, y_range)
    ordinary = "" if effect.plain is None else " The dashed line is an ordinary GP, to which all rows count alike."
    words = (
        "The line is the mean of the robust GP. The dark band holds the true curve, the light band a new observation "
        f"that is no outlier, each with 95 % probability.{ordinary}{_outside(rows.observed, y_range)}{thinned}"
    )
    panel = Panel("fit", figure, f"Fitted curve of {target} against {effect.feature}")
    return Section("fit", "The fit", words, (panel,))


def _effects_section(effects: tuple[Effect, ...], X: pd.DataFrame, compared: bool, target: str) -> Section:
    if not effects:
        return Section("fit", "The fit", "Every feature has a single value, so there is no effect to show.")
    low = min(float((e.mean - 2 * e.std).min()) for e in effects)
    high = max(float((e.mean + 2 * e.std).max()) for e in effects)
    if compared:
        low = min(low, *(float(e.plain.min()) for e in effects if e.plain is not None))
        high = max(high, *(float(e.plain.max()) for e in effects if e.plain is not None))
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    panels = tuple(
        Panel(
            f"effect-{i}",
            figures.effect_figure(effect, target, (low - margin, high + margin)),
            f"Partial dependence of {target} on {effect.feature}",
            size="third",
        )
        for i, effect in enumerate(effects)
    )
    varying = int((X.nunique() > 1).sum())
    weaker = varying - len(effects)
    left_out = f" {counted(weaker, 'feature')} with weaker effects {'is' if weaker == 1 else 'are'} not drawn."
    constant = f" {counted(X.shape[1] - varying, 'feature')} with a single value cannot be shown."
    dashed = ", dashed for an ordinary GP" if compared else ""
    words = (
        f"How the average prediction moves with one feature while the others stay as they are in the table{dashed}. "
        "Strongest effect first; all on the same vertical scale. The band holds the average with 95 % probability."
        f"{left_out if varying > MOST_EFFECTS else ''}{constant if varying < X.shape[1] else ''}"
    )
    return Section("fit", "What each feature does", words, panels)


def _residual_section(rows: Rows, few: Rows, target: str, thinned: str) -> Section:
    # Outliers are what this figure is about: only absurd ones are left outside the frame.
    y_range = figures.frame_of(rows.residual, rows.residual[~rows.flagged], widest=50.0)
    words = (
        "Observed minus expected, where each row is predicted from all others. Points far from the dotted line "
        f"contradict the other rows.{_outside(rows.residual, y_range)}{thinned}"
    )
    panel = Panel("residuals", figures.residual_figure(few, target, y_range), f"Residuals of {target}")
    return Section("residuals", "Residuals", words, (panel,))


def _weight_section(rows: Rows) -> Section:
    words = "How much each row counts: 1 in full, near 0 hardly. Above 1 where the noise is locally small."
    return Section("weights", "Weights", words, (Panel("weights", figures.weight_figure(rows.weight), "Weights"),))


def _law_section(robust: Regressor, X: pd.DataFrame, rows: Rows) -> Section:
    law = predictive_law(robust)
    words = for_html(str(robust.noise_law_).splitlines()[0])
    if robust.weight != "learned":
        words += " It was learned after the fit and only flags rows: the weights were given."
    noise = np.asarray(robust.noise_std(as_fitted(robust, X)))
    if noise.max() > noise.min() * (1.0 + 1e-6):
        words += (
            f" The noise differs from place to place: its standard deviation is {number(float(noise.min()))} to "
            f"{number(float(noise.max()))}, and intervals follow it."
        )
    words += " Bars are residuals of the rows that are not flagged; they should follow the solid line."
    panel = Panel("law", figures.law_figure(law, rows), "Density of the noise law and histogram of residuals")
    return Section("law", "The noise law", words, (panel,), law_table(robust.noise_law_))


def median_noise(model: Regressor, X: pd.DataFrame) -> float:
    """Median over the rows of the standard deviation of the noise."""
    return float(np.median(np.asarray(model.noise_std(as_fitted(model, X)))))


def _comparison(
    robust: Regressor,
    plain: Regressor,
    X: pd.DataFrame,
    rows: Rows,
    other: Rows,
    drawn: np.typing.NDArray[np.intp],
    target: str,
    thinned: str,
) -> Section:
    together = np.concatenate([rows.expected, other.expected])
    kept = np.concatenate([rows.expected[~rows.flagged], other.expected[~rows.flagged]])
    both_range = figures.frame_of(together, kept)
    figure = figures.comparison_figure(_subset(rows, drawn), other.expected[drawn], target, both_range)
    words = (
        "What the two models expect of each row, given all others. On the dotted line they agree; they part "
        f"where unusual rows pull at the ordinary GP.{_outside(together, both_range)}{thinned} In the table both "
        "are judged by the same rows; those left out of “without flagged rows” are the ones that the robust GP flags."
    )
    scores = (
        scores_of(rows, rows.flagged, median_noise(robust, X)),
        scores_of(other, rows.flagged, median_noise(plain, X)),
    )
    panel = Panel("comparison", figure, f"Expected {target}, robust against ordinary")
    return Section("comparison", "Robust against ordinary", words, (panel,), score_table(*scores))


def _listing(rows: Rows, X: pd.DataFrame) -> Section:
    flagged, listed = int(rows.flagged.sum()), len(listed_rows(rows))
    if not flagged:
        words = f"No row is flagged. These are the {listed} most suspicious."
    elif flagged < listed:
        words = f"{counted(flagged, 'row')} flagged, and the most suspicious of the others up to {listed} in all."
    elif flagged == listed:
        words = f"All {counted(flagged, 'flagged row')}."
    else:
        words = f"The {listed} most suspicious of {counted(flagged, 'flagged row')}."
    words += f" {FLAG_RULE[0].upper()}{FLAG_RULE[1:]}."
    if X.shape[1] > MOST_COLUMNS:
        words += f" The first {MOST_COLUMNS} of {X.shape[1]} features are shown."
    words += (
        " The score is the residual in standard deviations. Most suspicious first; press a column's name to sort by "
        "it, and again to reverse."
    )
    heading = "Suspicious rows" if flagged else "Most suspicious rows"
    return Section("rows", heading, words, table=row_table(rows, X))


def _subset(rows: Rows, chosen: np.typing.NDArray[np.intp]) -> Rows:
    return replace(
        rows,
        label=tuple(rows.label[i] for i in chosen),
        observed=rows.observed[chosen],
        expected=rows.expected[chosen],
        std=rows.std[chosen],
        weight=rows.weight[chosen],
        flagged=rows.flagged[chosen],
        score=rows.score[chosen],
        probability=rows.probability[chosen],
        noise=rows.noise[chosen],
        half_width=rows.half_width[chosen],
    )


def _thinned(rows: Rows, drawn: int) -> str:
    if int(rows.flagged.sum()) > drawn:
        return f" Drawn are the {drawn:,} most suspicious of {counted(len(rows.label), 'row')}."
    return f" Drawn are {drawn:,} of {counted(len(rows.label), 'row')}: all flagged ones and a random sample."


def _outside(values: Numbers, frame: figures.Range | None) -> str:
    """A sentence on points that a frame leaves out."""
    if frame is None:
        return ""
    outside = int(((values < frame[0]) | (values > frame[1])).sum())
    if not outside:
        return ""
    verb = "lies" if outside == 1 else "lie"
    return f" {counted(outside, 'point')} {verb} outside the frame: double-click the figure to see all."
