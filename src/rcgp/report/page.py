"""One self-contained HTML page from two fitted models and their table.

Plotly's script is several megabytes, so it travels compressed inside the page and the browser inflates it. A content
security policy forbids every request and every script but the two whose hashes it names: should a name from the data
ever slip through as markup, it would still not run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
from plotly.offline import get_plotlyjs

from rcgp.estimator.outliers import FLAG_RULE
from rcgp.report.sections import Panel, Section, median_noise, sections_of
from rcgp.report.summary import Numbers, Regressor, Rows, rows_of, scores_of
from rcgp.report.tables import fit_table
from rcgp.report.text import counted, for_html, number, percent
from rcgp.saving import write_whole

__all__ = ["report_html", "write_report"]


def write_report(
    path: str | os.PathLike[str],
    robust: Regressor,
    plain: Regressor | None,
    X: pd.DataFrame,
    y: pd.Series[float],
    *,
    target: str,
    rows: Sequence[object] | None = None,
    notices: Iterable[str] = (),
) -> None:
    """Write :func:`report_html` to a file, which is either complete or, should anything fail, as it was before.

    Args:
        path: file to write; its folder must exist.
        robust: fitted robust regressor.
        plain: ordinary GP fitted to the same rows, or ``None``.
        X: ``n x d`` features.
        y: ``n`` observations.
        target: name of y.
        rows: what to call the rows. Default: the index of X.
        notices: sentences for the reader.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    page = report_html(robust, plain, X, y, target=target, rows=rows, notices=notices)
    # A name may hold half a surrogate pair, which no encoding can write.
    write_whole(path, page.encode("utf-8", errors="replace"))


def report_html(
    robust: Regressor,
    plain: Regressor | None,
    X: pd.DataFrame,
    y: pd.Series[float],
    *,
    target: str,
    rows: Sequence[object] | None = None,
    notices: Iterable[str] = (),
) -> str:
    """The page as a string of two to four megabytes, most of it Plotly.

    Args:
        robust: fitted robust regressor with one output.
        plain: ordinary GP fitted to the same rows, or ``None`` to leave out the comparison.
        X: ``n x d`` features of the rows that both were fitted to, in the order of the fit.
        y: ``n`` observations.
        target: name of y.
        rows: what to call the rows. Default: the index of X.
        notices: sentences for the reader, such as what was left out when the file was read.

    Raises:
        ValueError: if the numbers of rows or features do not agree.
    """
    observed, labels = _checked(robust, X, y, rows)
    seen = rows_of(robust, X, observed, labels)
    other = None if plain is None else rows_of(plain, X, observed, labels)
    sections = sections_of(robust, plain, X, seen, other, target)
    script, style, page = (_packaged(f"page.{kind}") for kind in ("js", "css", "html"))
    library = get_plotlyjs()
    return Template(page).substitute(
        policy=for_html(_policy(script, library)),
        title=for_html(f"{target}: a robust fit"),
        target=for_html(target),
        style=style,
        summary=_summary(robust, plain, X, seen, other, target),
        notices=_notices([*_fit_notices(robust, plain), *notices]),
        sections="".join(_section_html(section) for section in sections),
        fits=fit_table(robust, plain, [str(name) for name in X.columns]),
        figures=_figures_json([panel for section in sections for panel in section.panels]),
        library=base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        script=script,
    )


def _checked(
    robust: Regressor, X: pd.DataFrame, y: pd.Series[float], rows: Sequence[object] | None
) -> tuple[Numbers, tuple[object, ...]]:
    """The observations as numbers, and the names of the rows."""
    if not isinstance(X, pd.DataFrame):
        raise TypeError(f"X must be a pandas DataFrame, whose columns name the features, got {type(X).__name__}")
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
    return observed, labels


def _summary(
    robust: Regressor, plain: Regressor | None, X: pd.DataFrame, rows: Rows, other: Rows | None, target: str
) -> str:
    """The verdict, and the numbers to remember."""
    flagged, n, features = int(rows.flagged.sum()), len(rows.label), X.shape[1]
    looks = "looks" if flagged == 1 else "look"
    headline = f"{flagged:,} of {counted(n, 'row')} {looks} suspicious" if flagged else "No row looks suspicious"
    scores = scores_of(rows, rows.flagged, median_noise(robust, X))
    law = for_html(str(robust.noise_law_).splitlines()[0])
    verdict = f"{law} {flagged:,} {for_html(FLAG_RULE)}."
    words = (
        f"A robust Gaussian process predicts <strong>{for_html(target)}</strong> from {counted(features, 'feature')}. "
        f"The median error of a row predicted from all others is {number(scores.median_error)}"
    )
    error_note = ""
    coverage_note = "rows not flagged"
    if plain is not None and other is not None:
        ordinary = scores_of(other, rows.flagged, median_noise(plain, X))
        words += f"; for an ordinary one, to which all rows count alike, it is {number(ordinary.median_error)}"
        error_note = f"ordinary GP {number(ordinary.median_error)}"
        coverage_note += f"; ordinary GP {percent(ordinary.coverage_kept)}"
    cards = [
        ("rows", f"{n:,}", counted(features, "feature")),
        ("flagged rows", f"{flagged:,}", percent(flagged / n)),
        ("median absolute error", number(scores.median_error), error_note),
        ("coverage of 95 % intervals", percent(scores.coverage_kept), coverage_note),
    ]
    items = "".join(f"<div><dt>{a}</dt><dd>{b}</dd><dd class=note>{c}</dd></div>" for a, b, c in cards)
    verdict = f"<h1>{headline}</h1><p class=verdict>{verdict}</p>{_doubts(robust.doubts_)}"
    return f"{verdict}<p class=lead>{words}.</p><dl>{items}</dl>"


def _doubts(doubts: Iterable[str]) -> str:
    """Why the noise law may be wrong, in a box below the verdict."""
    items = "".join(f"<p><strong>Doubt:</strong> {for_html(doubt)}.</p>" for doubt in doubts)
    return f'<div class="doubts" role="alert">{items}</div>' if items else ""


def _fit_notices(robust: Regressor, plain: Regressor | None) -> list[str]:
    """Warnings that a reader needs before believing the page."""
    notices = []
    for name, model in (("robust", robust), ("ordinary", plain)):
        report = getattr(model, "fit_report_", None)
        if report is not None and not report.converged:
            notices.append(
                f"The fit of the {name} GP did not converge ({report.message}): its numbers may improve with more "
                "iterations or restarts."
            )
    return notices


def _notices(notices: Iterable[str]) -> str:
    items = "".join(f"<li>{for_html(notice)}</li>" for notice in notices)
    return f'<aside aria-label="Notices"><ul>{items}</ul></aside>' if items else ""


def _section_html(section: Section) -> str:
    figures = "".join(
        f'<div class="figure {panel.size}" id="figure-{panel.key}" role="img" '
        f'aria-label="{for_html(panel.description)}"></div>'
        for panel in section.panels
    )
    parts = [f"<h2>{for_html(section.heading)}</h2><p>{section.words}</p>"]
    if figures:
        parts.append(f'<div class="figures">{figures}</div>')
    if section.table:
        label = for_html(f"{section.heading}, table")
        parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{section.table}</div>')
    return f'<section id="{section.key}">{"".join(parts)}</section>'


def _figures_json(panels: Iterable[Panel]) -> str:
    """All figures as one JSON object that cannot end the script element it stands in."""
    parts = (f'"{panel.key}":{panel.figure.to_json(engine="json")}' for panel in panels)
    # Outside strings JSON has no "<", and inside them this escape means the same. Plotly promises no such thing.
    return "{" + ",".join(parts).replace("<", "\\u003c") + "}"


def _policy(script: str, library: str) -> str:
    """Content security policy: no request at all, the two scripts of the page, and styles, which Plotly sets."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, library))
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _packaged(name: str) -> str:
    return files("rcgp.report").joinpath(name).read_text(encoding="utf-8")
