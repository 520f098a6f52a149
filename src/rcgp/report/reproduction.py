"""What a reproduction writes: tables in Markdown and HTML, figures, and one page of it all, from records alone."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from rcgp.experiments import EXPERIMENTS, Record
from rcgp.report.comparison import tables_of
from rcgp.report.paper_figures import DRAWINGS, draw_figure
from rcgp.saving import write_whole

__all__ = ["render", "write_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2230;
  background: #fff }
h1 { margin-bottom: 0 } h2 { margin: 2.5rem 0 .5rem; font-size: 1.15rem } section { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #dde; text-align: right; white-space: nowrap }
th:first-child { text-align: left } th.group { background: #f3f5f9 } img { max-width: 100%; height: auto }
p { color: #556 } figure { margin: 0 }
@media (prefers-color-scheme: dark) {
  body { background: #14171f; color: #e6e9f0 } th, td { border-color: #333a48 } th.group { background: #1f2530 }
  p { color: #a8b0c0 } img { background: #fff; border-radius: 6px }
}
"""


def render(experiment: str, records: Sequence[Record], folder: Path) -> list[Path]:
    """Write the tables, or the figure, that records of an experiment give. Returns the files."""
    if not records:
        return []
    if experiment in DRAWINGS:
        return draw_figure(records[-1], folder)
    tables = tables_of(experiment, records)
    title = EXPERIMENTS[experiment].title
    markdown = f"## {title}\n\n" + "\n".join(table.markdown() for table in tables)
    html = _page(title, "".join(table.html() for table in tables))
    paths = [folder / f"{experiment}.md", folder / f"{experiment}.html"]
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, (markdown, html), strict=True):
        write_whole(path, content.encode())
    return paths


def write_page(records: Mapping[str, Sequence[Record]], folder: Path) -> Path:
    """One HTML page with all tables and figures, pictures inside, so that it can be sent as one file."""
    parts = []
    for name, found in records.items():
        if not found:
            continue
        if name in DRAWINGS:
            _, picture = draw_figure(found[-1], folder)
            data = base64.b64encode(picture.read_bytes()).decode()
            title = escape(EXPERIMENTS[name].title)
            parts.append(
                f"<section><h2>{title}</h2><figure>"
                f'<img alt="{title}" src="data:image/png;base64,{data}"></figure></section>'
            )
        else:
            parts += [table.html() for table in tables_of(name, found)]
    path = folder / "reproduction.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, _page("Robust and conjugate Gaussian process regression, reproduced", "".join(parts)).encode())
    return path


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )
