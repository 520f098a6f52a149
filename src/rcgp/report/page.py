"""One self-contained HTML page from a fitted model, its table and, for comparison, an ordinary GP.

With several outputs the page has one verdict, a panel for each output, their correlation, and suspicious cells.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rcgp.estimator.base import BaseRegressor
from rcgp.report.figures import correlation_figure
from rcgp.report.frame import GRADES, fit_summary, grade_of, page_html, sections_html, summary_html, write_page
from rcgp.report.sections import Panel, Section, facts_table, fit_table, row_section, row_table, sections_of
from rcgp.report.summary import MOST_DRAWN, Column, Fit, Numbers, Rows, columns_of, listed_rows, rows_of, scores_of
from rcgp.report.text import counted, for_html, number, percent

__all__ = ["report_html", "write_report"]

#: With more outputs, only the panel of the first is open at the start.
_MOST_OPEN = 3


def write_report(
    path: str | os.PathLike[str],
    robust: BaseRegressor,
    plain: BaseRegressor | None,
    X: pd.DataFrame,
    y: pd.Series[float] | pd.DataFrame,
    **options: Any,
) -> None:
    """Write :func:`report_html` of the same arguments to a file, completely or not at all; its folder must exist."""
    write_page(path, lambda: report_html(robust, plain, X, y, **options))


def report_html(
    robust: BaseRegressor,
    plain: BaseRegressor | None,
    X: pd.DataFrame,
    y: pd.Series[float] | pd.DataFrame,
    *,
    target: str | Sequence[str],
    rows: Sequence[object] | None = None,
    notices: Iterable[str] = (),
    columns: Iterable[Any] | None = None,
) -> str:
    """The page as a string of two to four megabytes, most of it Plotly.

    Args:
        robust: fitted robust regressor. With several outputs the page has a panel for each, the correlation of those
            that are correlated, and a table of suspicious cells.
        plain: ordinary GP fitted to the same rows, or ``None`` to leave out the comparison.
        X: ``n x d`` features of the rows that both were fitted to, in the order of the fit.
        y: ``n`` observations, or ``n x T`` of several outputs, NaN where a cell is missing.
        target: name of y, or a name for each output.
        rows: names of the rows. Default: the index of X.
        notices: sentences for the reader, such as what was left out when the file was read.
        columns: the table's columns that X encodes, as in ``rcgp.table.Encoding.columns``: dates and categories are
            then shown as such. Default: every feature is a number.

    Raises:
        ValueError: if the numbers of rows or features do not agree.
    """
    if not isinstance(X, pd.DataFrame):
        raise TypeError(f"X must be a pandas DataFrame, whose columns name the features, got {type(X).__name__}")
    if not X.columns.is_unique:
        raise ValueError("X has columns of the same name: give each its own")
    observed = np.asarray(y, dtype=np.float64)
    labels = tuple(X.index if rows is None else rows)
    if observed.shape[1:] != (() if isinstance(target, str) else (len(target),)):
        raise ValueError(f"y has the shape {observed.shape}: target must be one name for each output")
    for name, length in (("y", len(observed)), ("rows", len(labels))):
        if length != len(X):
            raise ValueError(f"X has {counted(len(X), 'row')} but {name} has {length:,}: give one for each row")
    if X.shape[1] != robust.n_features_in_:
        raise ValueError(
            f"X has {counted(X.shape[1], 'feature')} but the model was fitted to {robust.n_features_in_}: give the "
            "columns of the fit"
        )
    encoded = columns_of(X, columns)
    if isinstance(target, str):
        fit = _fit_of(robust, plain, X, observed, encoded, target, labels)
        return page_html(target, _summary(fit), notices, sections_of(fit), fit_table(fit))
    fits, models = [], list[Any]([robust] if plain is None else [robust, plain])
    for t, name in enumerate(target):
        seen = np.flatnonzero(np.isfinite(observed[:, t]))
        own, *other = (model.output(t) for model in models)  # of the rows in which it was observed
        label = tuple(labels[i] for i in seen)
        fits.append(_fit_of(own, other[0] if other else None, X.iloc[seen], observed[seen, t], encoded, name, label))
    return _outputs_html(robust, fits, int(np.isfinite(observed).any(axis=1).sum()), notices)


def _fit_of(
    robust: Any,
    plain: Any,
    X: pd.DataFrame,
    y: Numbers,
    columns: tuple[Column, ...],
    target: str,
    label: tuple[Any, ...],
) -> Fit:
    """Both models of one output with its observed rows: those of weight 0 may lack an observation."""
    seen = np.flatnonzero(np.isfinite(y))
    own, *other = (rows_of(model, X, y, label).take(seen) for model in (robust, plain) if model is not None)
    return Fit(robust, plain, X.iloc[seen], columns, target, own, other[0] if other else None)


def _summary(fit: Fit) -> str:
    features = counted(len(fit.columns), "feature")
    lead = f"A robust Gaussian process predicts <strong>{for_html(fit.target)}</strong> from {features}."
    return fit_summary(fit.robust, fit.rows, fit.scores, fit.weak, lead, ("rows", f"{len(fit.rows.label):,}", features))


def _outputs_html(robust: Any, fits: Sequence[Fit], rows: int, notices: Iterable[str]) -> str:
    """The page of several outputs; ``rows`` have a cell."""
    panels = [_sections_of(fit, t, MOST_DRAWN // len(fits)) for t, fit in enumerate(fits)]
    first, last = [_overview(fits), *_correlation(robust, [fit.target for fit in fits])], _cell_section(fits)
    unfolded = len(fits) if len(fits) <= _MOST_OPEN else 1
    folds = [_fold(fit, part, t < unfolded) for t, (fit, part) in enumerate(zip(fits, panels, strict=True))]
    body = sections_html(first) + "".join(folds) + sections_html([last])
    sections = [*first, *(section for part in panels for section in part), last]
    title, table = ", ".join(fit.target for fit in fits), fit_table(fits[0])
    if not _is_joint(robust):
        table = "".join(f"<h3>{for_html(fit.target)}</h3>{fit_table(fit)}" for fit in fits)
    return page_html(title, _outputs_summary(fits, rows), notices, sections, table, body)


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


def _outputs_summary(fits: Sequence[Fit], rows: int) -> str:
    """The worst verdict of the outputs with the reasons of each, their doubts, and numbers to remember."""
    grades = [grade_of(fit.robust, fit.rows, fit.scores[0], fit.weak) for fit in fits]
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
        "How closely the functions of two outputs follow each other: 1 in step, −1 in opposite directions, 0 not at "
        "all. Where they do, a cell of one helps to predict and to judge the other, even if that is missing."
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


def _is_joint(model: Any) -> bool:
    return hasattr(model, "output_correlation_")
