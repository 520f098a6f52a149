"""One self-contained HTML page from a fitted model, its table and, for comparison, an ordinary GP.

The page holds Plotly's script, several megabytes, compressed. A content security policy forbids every request and
every script except the two whose hashes it names: a name from the data that slipped through as markup would not run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd
from plotly.offline import get_plotlyjs

from rcgp.estimator.base import BaseRegressor
from rcgp.report.sections import Panel, Section, fit_table, sections_of
from rcgp.report.summary import EncodedColumn, Fit, Rows, Scores, columns_of, converged, rows_of
from rcgp.report.text import counted, for_html, number, percent
from rcgp.saving import write_atomically

__all__ = ["LITTLE_SKILL", "page_html", "report_html", "summary_html", "verdict_of", "write_page", "write_report"]

#: Features that save less than this share of a constant's error hardly predict the target.
LITTLE_SKILL = 0.1
#: Tolerated shortfall of the coverage of 95 % intervals: this, or two standard errors if that is more.
_SHORTFALL = 0.05


def write_report(
    path: str | os.PathLike[str],
    robust: BaseRegressor,
    plain: BaseRegressor | None,
    X: pd.DataFrame,
    y: pd.Series[float],
    *,
    target: str,
    rows: Sequence[object] | None = None,
    notices: Iterable[str] = (),
    columns: Iterable[EncodedColumn] | None = None,
) -> None:
    """Write :func:`report_html` to a file, completely or not at all.

    Args:
        path: file to write; its folder must exist.
        robust, plain, X, y, target, rows, notices, columns: as for :func:`report_html`.
    """
    arguments = {"target": target, "rows": rows, "notices": notices, "columns": columns}
    write_page(path, lambda: report_html(robust, plain, X, y, **arguments))  # type: ignore[arg-type]


def write_page(path: str | os.PathLike[str], make: Callable[[], str]) -> None:
    """Make a page and write it to a file whose folder exists."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    # A name may hold half a surrogate pair, which no encoding can write.
    write_atomically(path, make().encode("utf-8", errors="replace"))


def report_html(
    robust: BaseRegressor,
    plain: BaseRegressor | None,
    X: pd.DataFrame,
    y: pd.Series[float],
    *,
    target: str,
    rows: Sequence[object] | None = None,
    notices: Iterable[str] = (),
    columns: Iterable[EncodedColumn] | None = None,
) -> str:
    """The page as a string of two to four megabytes, most of it Plotly.

    Args:
        robust: fitted robust regressor with one output.
        plain: ordinary GP fitted to the same rows, or ``None`` to leave out the comparison.
        X: ``n x d`` features of the rows that both were fitted to, in the order of the fit.
        y: ``n`` observations.
        target: name of y.
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
    for name, length in (("y", len(observed)), ("rows", len(labels))):
        if length != len(X):
            raise ValueError(f"X has {counted(len(X), 'row')} but {name} has {length:,}: give one for each row")
    if X.shape[1] != robust.n_features_in_:
        raise ValueError(
            f"X has {counted(X.shape[1], 'feature')} but the model was fitted to {robust.n_features_in_}: give the "
            "columns of the fit"
        )
    seen = np.flatnonzero(np.isfinite(observed))  # rows of weight 0 may lack an observation
    own = rows_of(robust, X, observed, labels).take(seen)
    other = None if plain is None else rows_of(plain, X, observed, labels).take(seen)
    fit = Fit(robust, plain, X.iloc[seen], columns_of(X, columns), target, own, other)
    return page_html(target, _summary(fit), notices, sections_of(fit), fit_table(fit))


def page_html(target: str, summary: str, notices: Iterable[str], sections: Sequence[Section], fits: str) -> str:
    """The page of these parts; ``summary`` and ``fits``, a table, are HTML."""
    parts = (files("rcgp.report").joinpath(f"page.{kind}") for kind in ("js", "css", "html"))
    script, style, page = (part.read_text(encoding="utf-8") for part in parts)
    items, library = "".join(f"<li>{for_html(notice)}</li>" for notice in notices), get_plotlyjs()
    return Template(page).substitute(
        policy=for_html(_policy(script, library)),
        title=for_html(f"{target}: a robust fit"),
        target=for_html(target),
        style=style,
        summary=summary,
        notices=f'<aside aria-label="Notices"><ul>{items}</ul></aside>' if items else "",
        sections="".join(_section_html(section) for section in sections),
        fits=fits,
        figures=_figures_json([panel for section in sections for panel in (*section.panels, *section.folded)]),
        library=base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        script=script,
    )


def _summary(fit: Fit) -> str:
    """The verdict, the doubts, and the numbers to remember."""
    flagged, n, features = int(fit.rows.flagged.sum()), len(fit.rows.label), len(fit.columns)
    robust, *ordinary = fit.scores
    weak = f"The features hardly predict {fit.target}: a constant would do nearly as well."
    verdict = verdict_of(fit.robust, fit.rows, robust, weak if fit.skill < LITTLE_SKILL else "")
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


def summary_html(
    verdict: tuple[str, str], doubts: Iterable[str], lead: str, cards: Iterable[tuple[str, str, str]]
) -> str:
    """The top of the page: verdict, doubts, a lead in HTML, and numbers with a name and a note."""
    headline, reasons = (for_html(part) for part in verdict)
    listed = "".join(f"<p><strong>Doubt:</strong> {for_html(doubt)}.</p>" for doubt in doubts)
    items = "".join(f"<div><dt>{a}</dt><dd>{b}</dd><dd class=note>{c}</dd></div>" for a, b, c in cards)
    box = f'<div class="doubts" role="alert">{listed}</div>' if listed else ""
    return f"<h1>{headline}</h1><p class=verdict>{reasons}</p>{box}<p class=lead>{lead}</p><dl>{items}</dl>"


def verdict_of(model: Any, rows: Rows, scores: Scores, weak: str = "") -> tuple[str, str]:
    """A headline, whether to trust the fit and how many rows are flagged, and the reasons.

    Args:
        model: the fitted estimator, with its doubts.
        rows: the rows that it was fitted to.
        scores: of the model on these rows.
        weak: a sentence if the model predicts hardly better than a constant.
    """
    flagged, n, doubts = int(rows.flagged.sum()), len(rows.label), len(model.doubts_)
    covered, settled = scores.coverage_kept, converged(model)
    reasons = []
    if not settled:
        reasons.append("The fit did not converge, so every number below may change: allow more iterations or restarts.")
    if doubts:
        reasons.append(f"{'A doubt is' if doubts == 1 else f'{doubts} doubts are'} listed below.")
    if weak:
        reasons.append(weak)
    within = f"{percent(covered)} of the rows that are not flagged lie in their 95 % interval."
    if flagged == n:
        reasons.append("Every row is flagged, so no row is left to check the fit with.")
    elif 0.95 - covered > max(_SHORTFALL, 2.0 * (0.95 * 0.05 / (n - flagged)) ** 0.5):
        reasons.append(f"Only {within}")
    verdict = "Read this fit with care" if settled else "Do not rely on this fit yet"
    if not reasons:
        verdict = "No sign of trouble"
        start = "Its hyperparameters were given" if getattr(model, "fit_report_", None) is None else "It converged"
        reasons = [f"{start}, there are no doubts about the noise law, and {within}"]
    if flagged:
        reasons.append("Flagged means more likely an outlier than not.")
        tail = f"{flagged:,} of {counted(n, 'row')} {'is' if flagged == 1 else 'are'} flagged"
    else:
        tail = f"none of {counted(n, 'row')} is flagged"
    return f"{verdict}; {tail}", " ".join(reasons)


def _section_html(section: Section) -> str:
    parts = [f"<h2>{for_html(section.heading)}</h2><p>{section.words}</p>", _figures_html(section.panels)]
    if section.folded:
        parts.append(f"<details><summary>{for_html(section.fold)}</summary>{_figures_html(section.folded)}</details>")
    if section.table:
        label = for_html(f"{section.heading}, table")
        parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{section.table}</div>')
    return f'<section id="{section.key}">{"".join(parts)}</section>'


def _figures_html(panels: Iterable[Panel]) -> str:
    places = "".join(
        f'<div class="figure {panel.size}" id="figure-{panel.key}" role="img" '
        f'aria-label="{for_html(panel.description)}"></div>'
        for panel in panels
    )
    return f'<div class="figures">{places}</div>' if places else ""


def _figures_json(panels: Iterable[Panel]) -> str:
    """All figures as one JSON object that cannot end its script element."""
    parts = (f'"{panel.key}":{panel.figure.to_json(engine="json")}' for panel in panels)
    # JSON has "<" in strings only, where this escape means the same. Plotly does not promise to escape it.
    return "{" + ",".join(parts).replace("<", "\\u003c") + "}"


def _policy(script: str, library: str) -> str:
    """Content security policy: no requests, the two scripts of the page, and styles, which Plotly sets."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, library))
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
