"""The page of several outputs: one verdict, a panel for each output, their correlation, and suspicious cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rcgp.report.figures import correlation_figure
from rcgp.report.frame import GRADES, grade_of, page_html, sections_html, summary_html, weak_of
from rcgp.report.sections import Panel, Section, facts_table, fit_table, row_section, row_table, sections_of
from rcgp.report.summary import MOST_DRAWN, Column, Fit, Numbers, Rows, listed_rows, rows_of, scores_of
from rcgp.report.text import counted, for_html, number, percent

__all__ = ["outputs_page"]

#: With more outputs, only the panel of the first is open at the start.
_MOST_OPEN = 3


def outputs_page(
    robust: Any,
    plain: Any,
    X: pd.DataFrame,
    Y: Numbers,
    names: Sequence[str],
    labels: Sequence[object],
    notices: Iterable[str],
    columns: tuple[Column, ...],
) -> str:
    """The page of a fitted regressor of several outputs.

    Args:
        robust, plain: as for :func:`rcgp.report.report_html`.
        X, Y: ``n x d`` inputs, and ``n x T`` observations, NaN where a cell is missing.
        names: of the outputs.
        labels: names of the rows.
        notices: sentences for the reader.
        columns: the columns behind the features.
    """
    fits = [_fit_of(robust, plain, t, X, Y[:, t], name, labels, columns) for t, name in enumerate(names)]
    panels = [_sections_of(fit, t, MOST_DRAWN // len(fits)) for t, fit in enumerate(fits)]
    first = [_overview(fits), *_correlation(robust, names)]
    last = _cell_section(fits)
    unfolded = len(fits) if len(fits) <= _MOST_OPEN else 1
    folds = [_fold(fit, part, t < unfolded) for t, (fit, part) in enumerate(zip(fits, panels, strict=True))]
    body = sections_html(first) + "".join(folds) + sections_html([last])
    sections = [*first, *(section for part in panels for section in part), last]
    return page_html(
        ", ".join(names),
        _summary(fits, int(np.isfinite(Y).any(axis=1).sum())),
        notices,
        sections,
        _fit_tables(fits),
        body,
    )


def _fit_of(
    robust: Any,
    plain: Any,
    t: int,
    X: pd.DataFrame,
    y: Numbers,
    name: str,
    labels: Sequence[object],
    columns: tuple[Column, ...],
) -> Fit:
    """One output with the rows in which it was observed."""
    seen = np.flatnonzero(np.isfinite(y))
    X, label = X.iloc[seen], tuple(labels[i] for i in seen.tolist())
    own, other = robust.output(t), None if plain is None else plain.output(t)
    others = None if other is None else rows_of(other, X, y[seen], label)
    return Fit(own, other, X, columns, name, rows_of(own, X, y[seen], label), others)


def _sections_of(fit: Fit, t: int, most_drawn: int) -> list[Section]:
    """The sections of one output, with keys of their own; suspicious rows of all outputs have a common table."""
    found = []
    for section in sections_of(fit, most_drawn)[:-1]:
        shown, folded = (
            tuple(replace(panel, key=f"{panel.key}-{t}") for panel in part) for part in (section.panels, section.folded)
        )
        found.append(replace(section, key=f"{section.key}-{t}", kind=section.key, panels=shown, folded=folded))
    return found


def _fold(fit: Fit, sections: Sequence[Section], unfolded: bool) -> str:
    """The panel of one output, which its first line opens and closes."""
    cells, flagged = counted(len(fit.rows.label), "cell"), int(fit.rows.flagged.sum())
    line = f"{for_html(fit.target)} <span>{cells}, {flagged:,} flagged</span>"
    start = "<details class=output open>" if unfolded else "<details class=output>"
    return f"{start}<summary>{line}</summary><div>{sections_html(sections)}</div></details>"


def _summary(fits: Sequence[Fit], rows: int) -> str:
    """The worst verdict of the outputs with the reasons of each, their doubts, and numbers to remember."""
    grades = [grade_of(fit.robust, fit.rows, fit.scores[0], weak_of(fit)) for fit in fits]
    worst = max(grade for grade, _ in grades)
    cells, flagged = sum(len(fit.rows.label) for fit in fits), sum(int(fit.rows.flagged.sum()) for fit in fits)
    tail = f"{flagged:,} of {counted(cells, 'cell')} {'is' if flagged == 1 else 'are'} flagged"
    told = [f"{fit.target}: {' '.join(why)}" for fit, (grade, why) in zip(fits, grades, strict=True) if grade == worst]
    reasons = told if worst else ["There is no doubt about the fit or the noise law of any output."]
    if flagged:
        reasons.append("Flagged means more likely an outlier than not.")
    doubts = [f"{fit.target}: {doubt}" for fit in fits for doubt in fit.robust.doubts_]
    together = Rows.together([fit.rows for fit in fits])
    coverage = scores_of(together, together.flagged, float("nan")).coverage_kept
    features = len(fits[0].columns)
    names = ", ".join(f"<strong>{for_html(fit.target)}</strong>" for fit in fits)
    how = "one model of all cells" if _is_joint(fits[0].robust) else "a model for each output"
    lead = f"Robust Gaussian processes predict {names} from {counted(features, 'feature')}: {how}."
    cards = [
        ("outputs", f"{len(fits)}", f"{counted(rows, 'row')}, {counted(features, 'feature')}"),
        ("observed cells", f"{cells:,}", percent(cells / (rows * len(fits))) + " of all"),
        ("flagged cells", f"{flagged:,}", percent(flagged / cells)),
        ("coverage of 95 % intervals", percent(coverage), "cells not flagged"),
    ]
    return summary_html((f"{GRADES[worst]}; {tail}", " ".join(reasons)), doubts, lead, cards)


def _overview(fits: Sequence[Fit]) -> Section:
    """The outputs side by side."""
    heads = ["", "cells", "flagged", "mean error", "coverage", "noise"]
    if fits[0].plain is not None:
        heads.append("ordinary GP's error")
    lines = []
    for fit in fits:
        score, *ordinary = fit.scores
        counts = [f"{len(fit.rows.label):,}", f"{int(fit.rows.flagged.sum()):,}"]
        errors = [number(score.mean_error_kept), percent(score.coverage_kept), number(score.noise_std)]
        lines.append((fit.target, [*counts, *errors, *(number(other.mean_error_kept) for other in ordinary)]))
    words = (
        "Errors are absolute and coverage is the share of cells in their 95 % interval, both of cells that are not "
        "flagged, each predicted from all other cells. Noise is its standard deviation."
    )
    return Section("outputs", "Outputs", words, table=facts_table(heads, lines))


def _correlation(robust: Any, names: Sequence[str]) -> list[Section]:
    """The correlation of the functions of the outputs, for one model of all."""
    if not _is_joint(robust):
        return []
    words = (
        "How far the functions of two outputs go together: 1 in step, −1 in opposite directions, 0 not at all. Where "
        "they do, a cell of one helps to predict and to judge the other, also where that is missing."
    )
    figure = correlation_figure(np.asarray(robust.output_correlation_), names)
    size = "half" if len(names) <= 6 else "whole"
    panel = Panel("correlation", figure, "Correlation of the outputs", size)
    return [Section("correlation", "Correlation of the outputs", words, (panel,))]


def _cell_section(fits: Sequence[Fit]) -> Section:
    """The most suspicious cells of all outputs."""
    rows = Rows.together([fit.rows for fit in fits])
    names = np.array([fit.target for fit in fits for _ in fit.rows.label], dtype=object)
    chosen = listed_rows(rows)
    table = row_table(rows.take(chosen), [("output", list(names[chosen]), None)], before=1)
    return row_section(rows, table, noun="cell")


def _fit_tables(fits: Sequence[Fit]) -> str:
    """How the models were fitted: one table for a model of all outputs, else one for each."""
    if _is_joint(fits[0].robust):
        return fit_table(fits[0])
    return "".join(f"<h3>{for_html(fit.target)}</h3>{fit_table(fit)}" for fit in fits)


def _is_joint(model: Any) -> bool:
    return hasattr(model, "output_correlation_")
