"""Plotly figures from numbers. No model is evaluated here.

Figures have a white background, which their download button saves; the style sheet restyles them for dark screens.
Colours are from Okabe and Ito's palette for colour-blind readers, and flagged rows also differ in shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from scipy.stats import norm

from rcgp.report.effects import Effect
from rcgp.report.summary import Column, Numbers, Positions, Range, Rows
from rcgp.report.text import counted, for_plotly, fraction, number
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import SCALES

__all__ = [
    "BAND",
    "HALF_WIDTH",
    "ROBUST",
    "WEIGHT_COLOURS",
    "add_band",
    "at_edge",
    "blank_figure",
    "comparison_figure",
    "correlation_figure",
    "curve_figure",
    "effect_figure",
    "hover",
    "law_figure",
    "residual_figure",
    "weight_figure",
]

ROBUST, _PLAIN, REFERENCE = "#0072B2", "#CC79A7", "#8A8F98"
#: Full weight is a quiet grey-blue; low weights stand out.
WEIGHT_COLOURS = ((0.0, "#D55E00"), (0.35, "#E69F00"), (0.75, "#93A5B8"), (1.0, "#6D8BAC"))
BAND, _WIDE_BAND = "rgba(0, 114, 178, 0.28)", "rgba(0, 114, 178, 0.11)"
#: Half the width of a normal 95 % interval in standard deviations.
HALF_WIDTH = 1.959964
_BINS = 25


def curve_figure(
    effect: Effect, x: Numbers, rows: Rows, target: str, x_range: Range | None, y_range: Range | None
) -> go.Figure:
    """The fit of one feature: rows coloured by weight, robust curve with bands for f and for new observations."""
    figure = blank_figure(for_plotly(effect.column.name), for_plotly(target), y_range=y_range)
    if effect.interval is not None:
        _add_band(figure, effect, effect.interval, _WIDE_BAND, "95 % for new observations")
    _add_band(figure, effect, None, BAND, "95 % for the curve")
    kept, *others = _point_traces(_on_axis(effect.column, x), rows.observed, rows, y_range=y_range)
    figure.add_trace(kept)
    _add_curves(figure, effect, target)
    if x_range is not None:
        figure.update_xaxes(range=_on_axis(effect.column, np.array(x_range)))
    return figure.add_traces(others)


def effect_figure(effect: Effect, target: str, y_range: Range) -> go.Figure:
    """Partial dependence of the target on one column, on a vertical scale shared with its neighbours."""
    figure = blank_figure(for_plotly(effect.column.name), for_plotly(target), y_range=y_range)
    if effect.column.kind == "category":
        _add_levels(figure, effect, target)
    else:
        _add_band(figure, effect, None, BAND, "95 % for the average")
        _add_curves(figure, effect, target)
    if effect.column.kind == "date":
        figure.update_xaxes(nticks=4)  # dates are long
    return figure.update_layout(showlegend=False)


def residual_figure(rows: Rows, target: str, y_range: Range | None) -> go.Figure:
    """Observed minus expected against expected, both leave-one-out."""
    name = for_plotly(target)
    figure = blank_figure(f"expected {name}", f"observed − expected {name}", y_range=y_range)
    figure.add_hline(y=0, line={"color": REFERENCE, "width": 1, "dash": "dot"})
    return figure.add_traces(_point_traces(rows.expected, rows.residual, rows, y_range=y_range))


def weight_figure(weight: Numbers) -> go.Figure:
    """Histogram of the weights; counts on a logarithmic axis if the outliers would vanish on a linear one."""
    edges = np.linspace(0.0, max(1.0, float(weight.max())), _BINS + 1)
    counts = np.histogram(weight, bins=edges)[0]
    logarithmic = bool(counts.max() > 50 * counts[counts > 0].min())
    figure = blank_figure("weight", "rows (logarithmic)" if logarithmic else "rows")
    # Explicit colours: Plotly complains on the console about a colour scale on bars.
    centres = (edges[:-1] + edges[1:]) / 2
    colours = sample_colorscale([list(stop) for stop in WEIGHT_COLOURS], np.minimum(centres, 1.0))
    figure.add_trace(_bars(edges, counts, counts, "weight ", color=colours))
    if logarithmic:
        # From one half, so that a bar of a single row has a height.
        top = np.log10(float(counts.max())) + 0.1
        figure.update_yaxes(type="log", range=[np.log10(0.5), top], dtick=1)
    return figure.update_layout(showlegend=False)


def law_figure(law: NoiseLaw, rows: Rows) -> go.Figure:
    """Histogram of the standardised residuals of rows that are not flagged, against the density of the noise law
    without its widest scale, whose rows are flagged.

    A residual is divided by √(v + σ²), the standard deviation of its prediction if the noise were normal with the
    narrowest scale σ. The density of the law is averaged over these rows, whose uncertainty v differs.
    """
    rows = rows.take(np.flatnonzero(~rows.flagged))
    latent = np.maximum(rows.std**2 - law.variance * rows.noise, 0.0)
    variance = latent + rows.noise
    variance = np.where(variance > 0.0, variance, 1.0)
    residual = rows.residual / np.sqrt(variance)
    reach = float(np.clip(1.1 * np.abs(residual).max(initial=0.0), 4.0, 1.1 * 3.0 * max(SCALES)))
    edges = np.linspace(-reach, reach, 2 * _BINS + 1 if len(residual) >= 200 else _BINS + 1)
    counts = np.histogram(np.clip(residual, -reach, reach), bins=edges)[0]
    density = counts / max(len(residual), 1) / (edges[1] - edges[0])
    grid = np.linspace(-reach, reach, 241)
    # The share of v in the variance, at ten quantiles instead of all rows.
    shares = np.quantile(latent / variance, np.linspace(0.05, 0.95, 10)) if len(latent) else np.zeros(1)
    mixture = sum(
        part * norm.pdf(grid, scale=np.sqrt(share + (1.0 - share) * scale**2)) / len(shares)
        for share in shares
        for part, scale in zip(law.unflagged.good_shares, SCALES, strict=True)
    )
    figure = blank_figure("residual / standard deviation", "density")
    figure.add_trace(_bars(edges, density, counts, "", color=WEIGHT_COLOURS[-1][1], opacity=0.55))
    curves = [("noise law", mixture, {"color": ROBUST, "width": 2.4})]
    if not law.is_normal:
        curves.insert(0, ("normal noise", norm.pdf(grid), {"color": REFERENCE, "width": 1.6, "dash": "dot"}))
    for name, values, line in curves:
        figure.add_trace(go.Scatter(x=grid, y=values, mode="lines", name=name, line=line, hoverinfo="skip"))
    return figure


def comparison_figure(rows: Rows, plain_expected: Numbers, target: str, both_range: Range | None) -> go.Figure:
    """Leave-one-out predictions: robust against ordinary GP."""
    name = for_plotly(target)
    figure = blank_figure(f"ordinary GP expects {name}", f"robust GP expects {name}", both_range, both_range)
    together = np.concatenate([plain_expected, rows.expected])
    ends = list(both_range or (float(together.min()), float(together.max())))
    line = {"color": REFERENCE, "width": 1.2, "dash": "dot"}
    figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", name="equal", line=line, hoverinfo="skip"))
    return figure.add_traces(_point_traces(plain_expected, rows.expected, rows, plain_expected))


def correlation_figure(correlation: Numbers, names: Sequence[str]) -> go.Figure:
    """The ``T x T`` correlation of outputs as a map of colours with numbers."""
    figure, places = blank_figure("", ""), np.arange(len(names))
    shown = [[f"{value:.2f}" for value in row] for row in correlation]
    pairs = [[f"{for_plotly(a)} and {for_plotly(b)}" for b in names] for a in names]
    # Pale enough for dark numbers, whatever the screen.
    scale = [[0.0, "#F2A46B"], [0.5, "#F4F5F7"], [1.0, "#6FB1DA"]]
    figure.add_heatmap(
        z=correlation, zmin=-1, zmax=1, colorscale=scale, xgap=3, ygap=3, customdata=pairs, showscale=False
    )
    figure.update_traces(hovertemplate="%{customdata}<br>%{z:.3f}<extra></extra>")
    for i, j in np.ndindex(*correlation.shape):
        figure.add_annotation(x=j, y=i, text=shown[i][j], showarrow=False)
    labels = {"tickvals": places, "ticktext": [for_plotly(name) for name in names], "showgrid": False}
    figure.update_xaxes(**labels, side="top", ticklabeloverflow="allow")
    return figure.update_yaxes(**labels, autorange="reversed")


def _bars(edges: Numbers, heights: Numbers, counts: Any, what: str, **marker: Any) -> go.Bar:
    """A histogram whose hover boxes give the range and the number of rows of each bar."""
    spans = [f"{what}{number(a)} to {number(b)}" for a, b in pairwise(edges)]
    return go.Bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=heights,
        width=0.94 * np.diff(edges),
        name="rows that are not flagged",
        marker={"line": {"width": 0}, **marker},
        **hover(("", spans), ("", (counted(int(count), "row") for count in counts))),
    )


def _point_traces(
    x: Any, y: Numbers, rows: Rows, plain: Numbers | None = None, y_range: Range | None = None
) -> list[go.Scatter]:
    """Rows that are not flagged, and those that are, with the values of each in its hover box.

    Those beyond the vertical frame are also marked at its edge.
    """
    x = np.asarray(x)

    def trace(chosen: Any, name: str, **marker: Any) -> go.Scatter:
        some = rows.take(chosen)
        texts = [
            ("row", map(for_plotly, some.label)),
            ("observed", map(number, some.observed)),
            ("expected" if plain is None else "robust GP expects", map(number, some.expected)),
            *([] if plain is None else [("ordinary GP expects", map(number, plain[chosen]))]),
            ("weight", (for_plotly(fraction(value)) for value in some.weight)),
            ("outlier probability", (for_plotly(fraction(value)) for value in some.probability)),
        ]
        scale = {"colorscale": [list(stop) for stop in WEIGHT_COLOURS], "cmin": 0, "cmax": 1}
        return go.Scatter(
            x=x[chosen],
            y=y[chosen],
            mode="markers",
            name=name,
            marker={"color": some.weight, **scale, **marker},
            showlegend=bool(len(chosen)),
            **hover(*texts),
        )

    bar = {"title": {"text": "weight", "side": "right", "font": {"size": 12}}, "thickness": 10, "outlinewidth": 0}
    bar["tickvals"] = [0, 0.5, 1]
    outline = {"width": 1, "color": "#5A2A00"}
    traces = [
        trace(np.flatnonzero(~rows.flagged), "rows", size=6, opacity=0.8, showscale=True, colorbar=bar),
        trace(np.flatnonzero(rows.flagged), "flagged rows", size=10, symbol="diamond", line=outline),
    ]
    far, symbol, height = at_edge(y, y_range)
    if len(far):
        traces.append(trace(far, "beyond the frame", size=10, symbol=symbol, line=outline).update(y=height))
    return traces


def hover(*columns: tuple[str, Iterable[str]], first: str = "") -> dict[str, Any]:
    """Hover boxes of a trace: a first line that all share, then a label and the text of each point."""
    labels, texts = zip(*columns, strict=True)
    lines = [f"{label} %{{customdata[{i}]}}".lstrip() for i, label in enumerate(labels)]
    template = "<br>".join([first, *lines] if first else lines)
    return {"customdata": list(zip(*texts, strict=True)), "hovertemplate": f"{template}<extra></extra>"}


def at_edge(y: Numbers, y_range: Range | None) -> tuple[Positions, Any, Numbers]:
    """Positions of the values beyond the frame, and the symbols and heights that mark them at its edge."""
    low, high = y_range or (-np.inf, np.inf)
    far = np.flatnonzero((y < low) | (y > high))
    above, margin = y[far] > high, 0.03 * (high - low)
    return far, np.where(above, "triangle-up", "triangle-down"), np.where(above, high - margin, low + margin)


def _on_axis(column: Column, values: Numbers) -> Any:
    """Values for a Plotly axis: numbers, or for days since 1970-01-01 the dates that make it an axis of dates."""
    if column.kind != "date":
        return values
    return np.datetime_as_string((values * 86400).round().astype("datetime64[s]"))


def _add_band(
    figure: go.Figure, effect: Effect, interval: tuple[Numbers, Numbers] | None, colour: str, name: str
) -> None:
    """Shade an interval along the grid; ``None`` is that of the function, which is normal whatever the noise."""
    x, half = _on_axis(effect.column, effect.grid), HALF_WIDTH * effect.std
    lower, upper = interval or (effect.mean - half, effect.mean + half)
    add_band(figure, (x, lower), (x, upper), colour, name)


def add_band(figure: go.Figure, lower: tuple[Any, Any], upper: tuple[Any, Any], colour: str, name: str) -> None:
    """Shade between two curves, each given as x and y; without a name the legend leaves the band out."""
    # Plotly's default simplification loses the last point far outside the frame.
    edge = {"mode": "lines", "line": {"width": 0, "simplify": False}, "hoverinfo": "skip"}
    figure.add_scatter(x=lower[0], y=lower[1], showlegend=False, **edge)
    band = {"fill": "tonexty", "fillcolor": colour, "name": name, "showlegend": bool(name)}
    figure.add_scatter(x=upper[0], y=upper[1], **band, **edge)


def _add_curves(figure: go.Figure, effect: Effect, target: str) -> None:
    """The robust mean, over the ordinary one if there is one."""
    x = _on_axis(effect.column, effect.grid)
    _add_mean(figure, effect, effect.plain, target, x=x, line={"color": _PLAIN, "width": 2.2, "dash": "dash"})
    _add_mean(figure, effect, effect.mean, target, x=x, line={"color": ROBUST, "width": 2.6})


def _add_levels(figure: go.Figure, effect: Effect, target: str) -> None:
    """The mean at each level of a category, with 95 % intervals; the ordinary GP as open circles."""
    x = np.arange(len(effect.grid))
    marker = {"color": _PLAIN, "size": 11, "symbol": "circle-open", "line": {"width": 2}}
    _add_mean(figure, effect, effect.plain, target, x=x, mode="markers", marker=marker)
    error = {"type": "data", "array": HALF_WIDTH * effect.std, "color": ROBUST, "thickness": 2, "width": 0}
    marker = {"color": ROBUST, "size": 8}
    _add_mean(figure, effect, effect.mean, target, x=x, mode="markers", marker=marker, error_y=error)
    names = [for_plotly(effect.column.text(value)) for value in effect.grid]
    figure.update_xaxes(tickvals=x, ticktext=names, range=[-0.5, len(x) - 0.5], showgrid=False)
    # Long names end below their level. Plotly's default angles start them there, and hide names that do not fit.
    figure.update_xaxes(autotickangles=[0, -35, -90], ticklabeloverflow="allow")


def _add_mean(figure: go.Figure, effect: Effect, mean: Numbers | None, target: str, **look: Any) -> None:
    """A posterior mean, if there is one, with the value of the column and of the mean in its hover box."""
    if mean is None:
        return
    name = "robust GP" if mean is effect.mean else "ordinary GP"
    at = for_plotly(effect.column.name), (for_plotly(effect.column.text(value)) for value in effect.grid)
    box = hover(at, (for_plotly(target), map(number, mean)), first=name)
    figure.add_scatter(**{"y": mean, "name": name, "mode": "lines", **look, **box})


def blank_figure(x_title: str, y_title: str, x_range: Range | None = None, y_range: Range | None = None) -> go.Figure:
    """An empty figure with the look that all share. Titles are in Plotly's markup already."""
    axis = {
        "gridcolor": "#E6E8EC",
        "zeroline": False,
        # Plain numbers from 0.000001 to 9,000,000; beyond that SI prefixes such as 20M.
        "exponentformat": "SI",
        "minexponent": 6,
        "automargin": True,
        "ticks": "",
        "title_standoff": 12,
        "title_font_size": 13,
    }
    return go.Figure(
        layout={
            "template": "none",
            "autosize": True,
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#2B303B"},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": "white", "align": "left"},
            "legend": {"orientation": "h", "traceorder": "normal", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "xaxis": {**axis, "title": {"text": x_title}, "range": x_range},
            "yaxis": {**axis, "title": {"text": y_title}, "range": y_range},
        }
    )
