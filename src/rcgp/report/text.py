"""Numbers, dates and names as people read them.

Names of columns come from files of strangers. HTML and Plotly read markup in two dialects, so each has its own escape
here, and no other file writes a name without one of them.
"""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["counted", "date", "for_html", "for_plotly", "fraction", "number", "percent", "times"]

#: Longer names are cut in figures; tables show them whole.
_LONGEST_IN_FIGURES = 28


def number(value: float) -> str:
    """A number with four significant digits, or all whole ones: 0.1235, 2024, 20,241, 1.235e-7."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        digits, _, exponent = f"{value:.4g}".partition("e")
        return f"{digits}e{int(exponent)}" if exponent else digits
    return f"{value:,.0f}" if size >= 9999.5 else f"{value:.4g}"  # 9999.5 has five whole digits once rounded


def date(days: float) -> str:
    """Days since 1970-01-01 to a second, as short as it can be: 2024-12-31, 2024-12-31 18:30, 2024-12-31 18:30:05."""
    if not math.isfinite(days):
        return "–"
    text = str(np.datetime64(round(days * 86_400), "s")).replace("T", " ")
    return text.removesuffix(":00").removesuffix(" 00:00")


def times(values: Any) -> list[str]:
    """Times as people read them: dates without zeros that all share, in their own zone, and numbers in full.

    2024-12-31 for days, 2024-12-31 18:30 for minutes; the name of a zone is not part of the text.
    """
    index = pd.Index(values)
    if not isinstance(index, pd.DatetimeIndex):
        return [f"{value:.12g}" for value in np.asarray(index, dtype=np.float64)]
    local = index.tz_localize(None).to_numpy()
    for unit in ("D", "m", "s", "ms", "us", "ns"):
        if (local.astype(f"M8[{unit}]") == local).all():
            break
    return [text.replace("T", " ") for text in np.datetime_as_string(local.astype(f"M8[{unit}]")).tolist()]


def fraction(value: float) -> str:
    """A weight or a probability with three decimals: 0.125, <0.001, >0.999."""
    if 0.0 < value < 0.001:
        return "<0.001"
    return ">0.999" if 0.999 < value < 1.0 else f"{value:.3f}".rstrip("0").rstrip(".")


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
