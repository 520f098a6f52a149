"""Figures of a series: values, band, flags and forecast over time, and the components.

Long series are thinned: of each stretch of consecutive values the lowest and the highest are drawn, at their own times,
and so is every flagged value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rcgp.estimator.series import Forecast
from rcgp.report.figures import BAND, HALF_WIDTH, ROBUST, WEIGHT_COLOURS, add_band, at_edge, blank_figure, hover
from rcgp.report.summary import Numbers, Positions, Range, Rows
from rcgp.report.text import for_plotly, fraction, number, times

__all__ = ["MOST_DRAWN", "MOST_STRETCHES", "component_figure", "series_figure", "thinned"]

#: Values that are not flagged, and points of a curve, in one figure.
MOST_DRAWN = 3000
#: Stretches of missing values that are shaded; more are slow to draw.
MOST_STRETCHES = 200
_FORECAST, _FORECAST_BAND = "#009E73", "rgba(0, 158, 115, 0.25)"
_MISSING = "rgba(138, 143, 152, 0.18)"
_OUTLINE = "#5A2A00"


def thinned(y: Numbers, limit: int = MOST_DRAWN) -> Positions:
    """Positions, in order, of at most ``limit`` of ``n`` consecutive values; all of them if they are that few.

    The lowest and the highest of each of ``limit / 2 - 1`` stretches of equally many values, the first and the last.
    """
    n = len(y)
    if n <= limit:
        return np.arange(n)
    stretches = max(limit // 2 - 1, 1)
    stretch = np.arange(n) * stretches // n
    order = np.lexsort((y, stretch))
    starts = np.searchsorted(stretch, np.arange(stretches))
    ends = np.append(starts[1:], n) - 1
    return np.unique(np.concatenate([[0, n - 1], order[starts], order[ends]]))


def _on_axis(when: Any) -> Any:
    """Times for a Plotly axis: numbers, or for dates local times, which make it an axis of dates."""
    index = pd.Index(when)
    if not isinstance(index, pd.DatetimeIndex):
        return np.asarray(index, dtype=np.float64)
    return np.datetime_as_string(index.tz_localize(None).to_numpy().astype("M8[us]"))


def series_figure(
    curve: Forecast,
    rows: Rows,
    when: Any,
    *,
    target: str,
    axis: str,
    coverage: str,
    y_range: Range | None,
    forecast: Forecast | None = None,
    missing: Sequence[tuple[Any, Any]] = (),
    slider: bool = True,
) -> go.Figure:
    """A series: values, expected value with its band, flagged values, missing stretches and the forecast.

    Args:
        curve: expected value and interval of a value, by time.
        rows: the ``n`` values that are not missing, by time.
        when: their ``n`` times.
        target, axis: titles of the axes.
        coverage: of the band, as text.
        y_range: frame of the vertical axis. Flagged values beyond it are also marked at its edge.
        forecast: what comes next.
        missing: first and last time of stretches without values.
        slider: whether a strip below the figure selects a stretch.
    """
    figure = blank_figure(for_plotly(axis), for_plotly(target), y_range=y_range)
    _add_band(figure, curve, BAND, f"{coverage} band")
    good, flagged = np.flatnonzero(~rows.flagged), np.flatnonzero(rows.flagged)
    good = good[thinned(rows.observed[good])]
    dot = {"size": 4 if len(good) > 500 else 5, "color": WEIGHT_COLOURS[-1][1], "opacity": 0.75}
    figure.add_trace(_points(rows, when, good, "values", dot))
    _add_line(figure, curve, "expected", {"color": ROBUST, "width": 1.8})
    if forecast is not None:
        _add_band(figure, forecast, _FORECAST_BAND)
        _add_line(figure, forecast, "forecast", {"color": _FORECAST, "width": 2.2})
    # Smaller where they are many, so that they do not hide the series.
    size, width = (9, 1.0) if len(flagged) <= 100 else (6, 0.5) if len(flagged) <= 500 else (4, 0.0)
    look = {"color": WEIGHT_COLOURS[0][1], "line": {"width": width, "color": _OUTLINE}}
    figure.add_trace(_points(rows, when, flagged, "flagged", {"size": size, "symbol": "diamond", **look}))
    if y_range is not None:
        far, symbol, height = at_edge(rows.observed[flagged], y_range)
        some = thinned(rows.observed[flagged[far]])  # marks beside the values themselves
        marker = {"size": size + 1, "symbol": symbol[some], **look}
        marks = _points(rows, when, flagged[far[some]], "flagged, beyond the frame", marker)
        figure.add_trace(marks.update(y=height[some]))
    if missing:
        ends = (_on_axis([one for one, _ in missing]), _on_axis([other for _, other in missing]))
        box = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "fillcolor": _MISSING, "layer": "below"}
        box["line"] = {"width": 1, "color": _MISSING}
        figure.update_layout(shapes=[{**box, "x0": x0, "x1": x1} for x0, x1 in zip(*ends, strict=True)])
        square = {"symbol": "square", "size": 12, "color": _MISSING}
        figure.add_scatter(x=[None], y=[None], mode="markers", name="missing", marker=square)
    if slider:
        # A slider fixes the vertical axis, so that dragging chooses a stretch of time.
        strip = {"visible": True, "thickness": 0.1, "bgcolor": "rgba(138, 143, 152, 0.06)", "borderwidth": 0}
        figure.update_xaxes(rangeslider=strip)
    return figure


def component_figure(when: Any, mean: Numbers, std: Numbers, name: str, cut: str, target: str) -> go.Figure:
    """A component with its normal 95 % band; ``cut`` names in the title the part that is drawn."""
    figure, half = blank_figure("", for_plotly(target)), HALF_WIDTH * std
    curve = Forecast(pd.Index(when), mean, std, mean - half, mean + half)
    _add_band(figure, curve, BAND)
    _add_line(figure, curve, name, {"color": ROBUST, "width": 1.8})
    title = {"text": for_plotly(name) + cut, "x": 0, "xref": "paper", "y": 1, "yanchor": "top", "font": {"size": 14}}
    figure.update_yaxes(nticks=5)
    return figure.update_layout(showlegend=False, title=title, margin_t=26)


def _points(rows: Rows, when: Any, chosen: Positions, name: str, marker: dict[str, Any]) -> go.Scatter:
    """Some of the values, with what was expected of each in its hover box."""
    some, at = rows.take(chosen), pd.Index(when)[chosen]
    texts = (
        ("row", map(for_plotly, some.label)),
        ("time", map(for_plotly, times(at))),
        ("observed", map(number, some.observed)),
        ("expected", map(number, some.expected)),
        ("outlier probability", (for_plotly(fraction(value)) for value in some.probability)),
    )
    return go.Scatter(
        x=_on_axis(at),
        y=some.observed,
        mode="markers",
        name=name,
        marker=marker,
        showlegend=bool(len(chosen)),
        **hover(*texts),
    )


def _add_band(figure: go.Figure, curve: Forecast, colour: str, name: str = "") -> None:
    """Shade between the ends, each thinned by itself."""
    low, high = thinned(curve.lower), thinned(curve.upper)
    lower, upper = _on_axis(curve.times[low]), _on_axis(curve.times[high])
    add_band(figure, (lower, curve.lower[low]), (upper, curve.upper[high]), colour, name)


def _add_line(figure: go.Figure, curve: Forecast, name: str, line: dict[str, Any]) -> None:
    """The mean, with time and value in its hover box."""
    drawn = thinned(curve.mean)
    when, mean = curve.times[drawn], curve.mean[drawn]
    box = hover(("", times(when)), ("", map(number, mean)), first=for_plotly(name))
    figure.add_scatter(x=_on_axis(when), y=mean, mode="lines", name=name, line=line, **box)
