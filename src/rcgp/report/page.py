"""One self-contained HTML page from a fitted model, its table and, for comparison, an ordinary GP."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rcgp.estimator.base import BaseRegressor
from rcgp.report.frame import page_html, summary_html, verdict_of, weak_of, write_page
from rcgp.report.sections import fit_table, sections_of
from rcgp.report.several import outputs_page
from rcgp.report.summary import EncodedColumn, Fit, columns_of, rows_of
from rcgp.report.text import counted, for_html, number, percent

__all__ = ["report_html", "write_report"]


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
    columns: Iterable[EncodedColumn] | None = None,
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
    observed, outputs = np.asarray(y, dtype=np.float64), () if isinstance(target, str) else tuple(target)
    labels = tuple(X.index if rows is None else rows)
    if observed.shape[1:] != (() if isinstance(target, str) else (len(outputs),)):
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
        seen = np.flatnonzero(np.isfinite(observed))  # rows of weight 0 may lack an observation
        own = rows_of(robust, X, observed, labels).take(seen)
        other = None if plain is None else rows_of(plain, X, observed, labels).take(seen)
        fit = Fit(robust, plain, X.iloc[seen], encoded, target, own, other)
        return page_html(target, _summary(fit), notices, sections_of(fit), fit_table(fit))
    return outputs_page(robust, plain, X, observed, outputs, labels, notices, encoded)


def _summary(fit: Fit) -> str:
    """The verdict, the doubts, and the numbers to remember."""
    flagged, n, features = int(fit.rows.flagged.sum()), len(fit.rows.label), len(fit.columns)
    robust, *ordinary = fit.scores
    verdict = verdict_of(fit.robust, fit.rows, robust, weak_of(fit))
    lead = (
        f"A robust Gaussian process predicts <strong>{for_html(fit.target)}</strong> from "
        f"{counted(features, 'feature')}. {for_html(str(fit.robust.noise_law_).splitlines()[0])}"
    )
    error = "".join(f"; ordinary GP {number(scores.mean_error_kept)}" for scores in ordinary)
    coverage = "".join(f"; ordinary GP {percent(scores.coverage_kept)}" for scores in ordinary)
    cards = [
        ("rows", f"{n:,}", counted(features, "feature")),
        ("flagged rows", f"{flagged:,}", percent(flagged / n)),
        ("mean absolute error", number(robust.mean_error_kept), f"rows not flagged{error}"),
        ("coverage of 95 % intervals", percent(robust.coverage_kept), f"rows not flagged{coverage}"),
    ]
    return summary_html(verdict, fit.robust.doubts_, lead, cards)
