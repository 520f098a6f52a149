"""A table of text in cells: it becomes Markdown for the repository and HTML for a page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        title: above it.
        head: names of the columns, the first of the rows.
        rows: cells as text, the first the name of the row. A row of a single cell is a heading within the table.
        note: below it.
        best: row and column of cells to emphasise.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    best: Collection[tuple[int, int]] = ()

    def markdown(self) -> str:
        """As a table of GitHub's Markdown."""
        lines = [f"### {self.title}", "", "| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        for i, row in enumerate(self.rows):
            cells = [f"**{cell}**" if (i, j) in self.best else cell for j, cell in enumerate(row)]
            if len(row) == 1:
                cells = [f"**{row[0]}**", *[""] * (len(self.head) - 1)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def html(self, level: int = 2) -> str:
        """As HTML, all text escaped, with a heading of that level."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        body = []
        for i, row in enumerate(self.rows):
            if len(row) == 1:
                body.append(f'<tr><th class="group" colspan="{len(self.head)}"><span>{escape(row[0])}</span></th></tr>')
            else:
                marked = [
                    f"<strong>{escape(cell)}</strong>" if (i, j) in self.best else escape(cell)
                    for j, cell in enumerate(row)
                ]
                cells = "".join(f"<td>{cell}</td>" for cell in marked[1:])
                body.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        # The table alone scrolls where it is too wide, also by keyboard; its title and note stay in view.
        return (
            f"<section><h{level}>{escape(self.title)}</h{level}>"
            f'<div class="wide" role="region" tabindex="0" aria-label="{escape(self.title)}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{note}</section>"
        )
