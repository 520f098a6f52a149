"""The frame of a page: verdict, numbers to remember, sections, and the scripts that draw its figures.

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

from plotly.offline import get_plotlyjs

from rcgp.report.sections import Panel, Section
from rcgp.report.summary import Rows, Scores, converged, skill_of
from rcgp.report.text import counted, for_html, number, percent
from rcgp.saving import write_atomically

__all__ = ["GRADES", "fit_summary", "grade_of", "page_html", "sections_html", "summary_html", "write_page"]

#: Features that save less than this share of a constant's error hardly predict the target.
_LITTLE_SKILL = 0.1
#: Headlines, from good to bad.
GRADES = ("No sign of trouble", "Read this fit with care", "Do not rely on this fit yet")
#: Tolerated shortfall of the coverage of 95 % intervals: this, or two standard errors if that is more.
_SHORTFALL = 0.05


def write_page(path: str | os.PathLike[str], make: Callable[[], str]) -> None:
    """Make a page and write it to a file whose folder exists."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    # A name may hold half a surrogate pair, which no encoding can write.
    write_atomically(path, make().encode("utf-8", errors="replace"))


def page_html(
    target: str, summary: str, notices: Iterable[str], sections: Sequence[Section], fits: str, body: str | None = None
) -> str:
    """The page of these parts.

    Args:
        target: name of what is predicted.
        summary, fits: the top of the page, and a table, in HTML.
        notices: sentences for the reader.
        sections: all sections, for their figures.
        body: the sections in HTML, if they are not simply one after the other.
    """
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
        sections=sections_html(sections) if body is None else body,
        fits=fits,
        figures=_figures_json([panel for section in sections for panel in (*section.panels, *section.folded)]),
        library=base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        script=script,
    )


def summary_html(
    verdict: tuple[str, str], doubts: Iterable[str], lead: str, cards: Iterable[tuple[str, str, str]]
) -> str:
    """The top of the page: verdict, doubts, a lead in HTML, and numbers with a name and a note."""
    headline, reasons = (for_html(part) for part in verdict)
    listed = "".join(f"<p><strong>Doubt:</strong> {for_html(doubt)}.</p>" for doubt in doubts)
    items = "".join(f"<div><dt>{a}</dt><dd>{b}</dd><dd class=note>{c}</dd></div>" for a, b, c in cards)
    box = f'<div class="doubts" role="alert">{listed}</div>' if listed else ""
    return f"<h1>{headline}</h1><p class=verdict>{reasons}</p>{box}<p class=lead>{lead}</p><dl>{items}</dl>"


def fit_summary(
    model: Any, rows: Rows, scores: Sequence[Scores], weak: str, lead: str, first: tuple[str, str, str]
) -> str:
    """The top of a page about one output: how far to trust the fit, how many rows are flagged, and cards.

    Args:
        model: the fitted estimator, with its doubts.
        rows: the rows that it was fitted to.
        scores: of the model on these rows and, if there is one, of an ordinary GP.
        weak: the reason to give if the model predicts hardly better than a constant.
        lead: the first sentence, in HTML.
        first: the first card.
    """
    flagged, n = int(rows.flagged.sum()), len(rows.label)
    grade, reasons = grade_of(model, rows, scores[0], weak)
    tail = f"none of {counted(n, 'row')} is flagged"
    if flagged:
        reasons.append("Flagged means more likely an outlier than not.")
        tail = f"{flagged:,} of {counted(n, 'row')} {'is' if flagged == 1 else 'are'} flagged"
    error = "".join(f"; ordinary GP {number(other.mean_error_kept)}" for other in scores[1:])
    coverage = "".join(f"; ordinary GP {percent(other.coverage_kept)}" for other in scores[1:])
    cards = [
        first,
        ("flagged rows", f"{flagged:,}", percent(flagged / n)),
        ("mean absolute error", number(scores[0].mean_error_kept), f"rows not flagged{error}"),
        ("coverage of 95 % intervals", percent(scores[0].coverage_kept), f"rows not flagged{coverage}"),
    ]
    lead = f"{lead} {for_html(str(model.noise_law_).splitlines()[0])}"
    return summary_html((f"{GRADES[grade]}; {tail}", " ".join(reasons)), model.doubts_, lead, cards)


def grade_of(model: Any, rows: Rows, scores: Scores, weak: str) -> tuple[int, list[str]]:
    """How far to trust a fit, a position in :data:`GRADES`, and the reasons. Arguments as for :func:`fit_summary`."""
    flagged, n, doubts = int(rows.flagged.sum()), len(rows.label), len(model.doubts_)
    covered, settled = scores.coverage_kept, converged(model)
    reasons = []
    if not settled:
        reasons.append("The fit did not converge, so every number below may change: allow more iterations or restarts.")
    if doubts:
        reasons.append(f"{'A doubt is' if doubts == 1 else f'{doubts} doubts are'} listed below.")
    if skill_of(rows, scores) < _LITTLE_SKILL:
        reasons.append(weak)
    within = f"{percent(covered)} of the rows that are not flagged lie in their 95 % interval."
    if flagged == n:
        reasons.append("Every row is flagged, so no row is left to check the fit with.")
    elif 0.95 - covered > max(_SHORTFALL, 2.0 * (0.95 * 0.05 / (n - flagged)) ** 0.5):
        reasons.append(f"Only {within}")
    if reasons:
        return (1 if settled else 2), reasons
    start = "Its hyperparameters were given" if getattr(model, "fit_report_", None) is None else "It converged"
    return 0, [f"{start}, there are no doubts about the noise law, and {within}"]


def sections_html(sections: Iterable[Section]) -> str:
    """Sections one after the other."""
    return "".join(_section_html(section) for section in sections)


def _section_html(section: Section) -> str:
    parts = [f"<h2>{for_html(section.heading)}</h2><p>{section.words}</p>", _figures_html(section.panels)]
    if section.folded:
        parts.append(f"<details><summary>{for_html(section.fold)}</summary>{_figures_html(section.folded)}</details>")
    if section.table:
        label = for_html(f"{section.heading}, table")
        parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{section.table}</div>')
    kind = f' class="{section.kind}"' if section.kind else ""
    return f'<section id="{section.key}"{kind}>{"".join(parts)}</section>'


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
