"""Writes the tables (Markdown, HTML), the figures and one page of everything, from records alone."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TypeVar

from rcgp.saving import write_atomically
from rcgp_paper.experiments import EXPERIMENTS, Options, Record, RecordFile
from rcgp_paper.experiments.optimisation import FIGURES_BO
from rcgp_paper.experiments.records import key_of
from rcgp_paper.report.figures import DRAWINGS, draw_figure
from rcgp_paper.report.tables import Table, tables_of

__all__ = ["origin_of", "render", "write_page"]

T = TypeVar("T")

#: Errors of values that are missing, of another type or of another length.
_ODD = (LookupError, TypeError, ValueError)

#: Experiments whose records a table shows in addition to its own.
_SHOWN_ALSO = {"table_bo": tuple(experiment.name for experiment in FIGURES_BO)}

_INTRODUCTION = (
    "Every table and figure below was made from records of runs on this package's own code. In tables our number comes "
    "first, the paper's behind a slash; smaller errors are better, and the best of each row is in bold. GP is the "
    "ordinary Gaussian process, RCGP the paper's method, RCGP with a learned law what this package does by default; "
    "t-GP, m-GP and winsorized GP are the competitors. SVGP and RCSVGP are GP and RCGP seen through inducing points."
)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 88rem; padding: 0 1rem; color: #1c2230;
  background: #fff }
h1 { margin-bottom: 0; font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.25 }
h2 { margin: 2.5rem 0 .5rem; font-size: 1.3rem; line-height: 1.3 }
.wide { overflow-x: auto } code span { white-space: nowrap }
h3 { margin: 1.5rem 0 .5rem; font-size: 1.05rem }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; font-size: .85rem }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #dde; text-align: right; white-space: nowrap }
th:first-child { text-align: left; position: sticky; left: 0; background: #fff }
th.group:first-child { background: #f3f5f9 } th.group span { position: sticky; left: .7rem }
p { color: #556 } figure { margin: 0 } img { height: auto }
@media (prefers-color-scheme: dark) {
  body, th:first-child { background: #14171f; color: #e6e9f0 } th, td { border-color: #333a48 }
  th.group:first-child { background: #1f2530 }
  p { color: #a8b0c0 } img { background: #fff; border-radius: 6px }
}
"""


def render(experiment: str, records: Sequence[Record], folder: Path) -> tuple[list[Path], list[str]]:
    """Write the tables or the figure of an experiment from its records. Returns the files, and notices."""
    if not records:
        return [], []
    if experiment in DRAWINGS:
        return _drawn(experiment, records, folder)
    found = {name: RecordFile(folder / f"{name}.jsonl").read()[0] for name in _SHOWN_ALSO.get(experiment, ())}
    shown = {experiment: records, **found}
    tables, notices = _tabled(experiment, [record for some in shown.values() for record in some])
    title, origin = EXPERIMENTS[experiment].title, _origins(shown)
    markdown = f"## {title}\n\n{origin}\n\n" + "\n".join(table.markdown() for table in tables)
    html = _page(title, _paragraph(origin) + "".join(table.html() for table in tables))
    paths = [folder / f"{experiment}.md", folder / f"{experiment}.html"]
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, (markdown, html), strict=True):
        write_atomically(path, content.encode())
    return paths, notices


def write_page(records: Mapping[str, Sequence[Record]], folder: Path) -> tuple[Path, list[str]]:
    """Write one HTML page with all tables and figures, pictures included. Returns the file, and notices."""
    parts, notices, contents = [], [], []
    for name in records:
        shown = {part: records.get(part, ()) for part in (name, *_SHOWN_ALSO.get(name, ()))}
        found = [record for some in shown.values() for record in some]
        if not found:
            continue
        title = escape(EXPERIMENTS[name].title)
        contents.append(f'<li><a href="#{name}">{title}</a></li>')
        if name in DRAWINGS:
            paths, more = _drawn(name, found, folder)
            content = "".join(_picture(title, path.read_bytes()) for path in paths if path.suffix == ".png")
        else:
            tables, more = _tabled(name, found)
            content = "".join(table.html(level=3) for table in tables)
        notices += more
        parts.append(f'<section><h2 id="{name}">{title}</h2>{_paragraph(_origins(shown))}{content}</section>')
    path = folder / "reproduction.html"
    folder.mkdir(parents=True, exist_ok=True)
    body = f"<p>{escape(_INTRODUCTION)}</p><nav><ul>{''.join(contents)}</ul></nav>{''.join(parts)}"
    write_atomically(path, _page("Robust and conjugate Gaussian process regression, reproduced", body).encode())
    return path, notices


def _drawn(experiment: str, records: Sequence[Record], folder: Path) -> tuple[list[Path], list[str]]:
    """The files of a figure; none, and a notice, if its records have other values."""
    try:
        return draw_figure(experiment, records, folder), []
    except _ODD as error:
        reason = f"{type(error).__name__}: {error}"
        return [], [f"{experiment}: its record cannot be drawn ({reason}); --redo all makes it again"]


def _picture(title: str, png: bytes) -> str:
    """A figure inside the page. On a narrow page it scrolls, so that its text stays legible."""
    least = 0.5 * int.from_bytes(png[16:20], "big")  # the width of the picture, in its header
    return (
        f'<figure class="wide" role="region" tabindex="0" aria-label="{title}">'
        f'<img alt="{title}" style="max-width: max(100%, {least:.0f}px)" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}"></figure>'
    )


def _tabled(experiment: str, records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """The tables of an experiment, and notices; no table, and a notice, if a record has other values."""
    try:
        return tables_of(experiment, records)
    except _ODD as error:
        reason = f"{type(error).__name__}: {error}"
        return [], [f"{experiment}: its records make no table ({reason}); --redo all makes them again"]


def origin_of(experiment: str, records: Sequence[Record]) -> str:
    """The command, dates, machines and versions of the records, in one line of Markdown."""
    dates = sorted({record.time[:10] for record in records if record.time})
    when = f" on {dates[0]}" if len(dates) == 1 else f" from {dates[0]} to {dates[-1]}" if dates else ""
    commands = [f"`{command}`" for command in _commands(experiment, records)]
    machines = _different(_machine(record) for record in records if record.machine)
    versions = [
        f"{name} {' and '.join(_different(str(r.versions[name]) for r in records if name in r.versions))}"
        for name in _different(name for record in records for name in record.versions)
    ]
    parts = [
        f"{len(records)} run{'s' if len(records) > 1 else ''}, made{when} by {' and '.join(commands)}",
        *([f"on {' and '.join(machines)}"] if machines else []),
        *([f"with {', '.join(versions)}"] if versions else []),
    ]
    return f"{'; '.join(parts)}."


def _origins(records: Mapping[str, Sequence[Record]]) -> str:
    return " ".join(origin_of(name, found) for name, found in records.items() if found)


def _paragraph(text: str) -> str:
    """Text as escaped HTML; text between backquotes as code that breaks between words only, not at hyphens."""

    def code(found: re.Match[str]) -> str:
        return f"<code>{' '.join(f'<span>{word}</span>' for word in found[1].split(' '))}</code>"

    return f"<p>{re.sub('`([^`]*)`', code, escape(text))}</p>"


def _commands(experiment: str, records: Sequence[Record]) -> list[str]:
    """The shortest command for these runs of each protocol."""
    commands = []
    named = [record.config.get("protocol") for record in records]
    protocols: list[str | None] = _different(protocol for protocol in named if isinstance(protocol, str))
    for protocol in protocols or [None]:  # a figure has none
        chosen = [record for record in records if record.config.get("protocol") == protocol]
        indices = [record.config.get("index") for record in chosen]
        splits = 1 + max((index for index in indices if isinstance(index, int)), default=0)
        options = Options(protocol=protocol or "paper", splits=splits, quick=True)
        quick = {key_of(config) for config in EXPERIMENTS[experiment].configs(options)}
        words = [f"rcgp reproduce {experiment}", *([f"--protocol {protocol}"] if protocol is not None else [])]
        if len(EXPERIMENTS[experiment].configs(Options())) > 1:  # most figures are one run
            words.append("--quick" if {record.key for record in chosen} <= quick else f"--splits {splits}")
        commands.append(" ".join(words))
    return commands


def _machine(record: Record) -> str:
    units = {"cores": "cores", "memory": "GiB of memory"}
    return ", ".join(f"{record.machine[name]} {unit}" for name, unit in units.items() if name in record.machine)


def _different(values: Iterable[T]) -> list[T]:
    """Each value once, in order of appearance."""
    return list(dict.fromkeys(values))


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )
