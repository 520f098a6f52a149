"""Numbers and names as people should see them.

Names of columns come from files of strangers. HTML and Plotly read markup in two dialects, so each has its own escape
here, and no other file writes a name without one of them.
"""

from __future__ import annotations

import html
import math

__all__ = ["counted", "for_html", "for_plotly", "number", "percent"]

#: Longer names are cut in figures, where there is no room; tables show them whole.
_LONGEST_IN_FIGURES = 28


def number(value: float) -> str:
    """A number with four significant digits, more only where whole digits would be lost: 0.1235, 20241, 1.235e-12."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        return f"{value:.4g}".replace("e+", "e")
    return f"{value:.0f}" if size >= 1e4 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share as percent with one decimal, as in 94.2 %."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "–"


def counted(count: int, noun: str) -> str:
    """A count with its noun, as in 1 row, 10,000 rows."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def for_html(text: object) -> str:
    """Text that HTML shows as it is, in an element or in a quoted attribute."""
    return html.escape(str(text), quote=True)


def for_plotly(text: object) -> str:
    """Text that Plotly shows as it is in titles, labels and hover boxes, cut to 28 characters.

    Plotly reads a few tags and entities, fills ``%{...}`` in hover templates and takes ``$...$`` for TeX. It does not
    know ``&quot;``, so quotes stay.
    """
    shown = " ".join(str(text).split())
    if len(shown) > _LONGEST_IN_FIGURES:
        shown = shown[: _LONGEST_IN_FIGURES - 1] + "…"
    return html.escape(shown, quote=False).replace("{", "&#123;").replace("$", "&#36;")
