"""Numbers to Plotly figures. Pure: no model is asked, nothing is drawn or written.

Figures are made for a white sheet, which is what their download button saves; the style sheet of the page restyles
text, lines and background for dark screens. Colours are from Okabe and Ito's palette, told apart by colour-blind
readers, and flagged rows differ in shape as well.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from rcgp.report.effects import Effect
from rcgp.report.summary import Numbers, Rows
from rcgp.report.text import counted, for_plotly, number
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import SCALES

__all__ = [
    "Range",
    "comparison_figure",
    "curve_figure",
    "effect_figure",
    "frame_of",
    "law_figure",
    "residual_figure",
    "weight_figure",
]

Range = tuple[float, float]

_ROBUST, _PLAIN, _DIAGONAL = "#0072B2", "#CC79A7", "#8A8F98"
#: Full weight is a quiet grey-blue; low weights stand out.
_WEIGHT_COLOURS = ((0.0, "#D55E00"), (0.35, "#E69F00"), (0.75, "#93A5B8"), (1.0, "#6D8BAC"))
_BAND, _WIDE_BAND = "rgba(0, 114, 178, 0.28)", "rgba(0, 114, 178, 0.11)"
#: Half the width of a normal 95 % interval in standard deviations.
_HALF_WIDTH = 1.959964
_BINS = 25


def frame_of(values: Numbers, kept: Numbers, widest: float = 8.0) -> Range | None:
    """A range for an axis if a few far values would squeeze all others into a line; ``None`` if all fit.

    Args:
        values: everything that might be shown.
        kept: values that must be in the frame.
        widest: how many times as wide as these a frame of all values may be.
    """
    if not len(kept) or not len(values):
        return None
    low, high = float(kept.min()), float(kept.max())
    span = high - low
    if span <= 0 or float(values.max()) - float(values.min()) <= widest * span:
        return None
    return low - 0.5 * span, high + 0.5 * span


def curve_figure(effect: Effect, x: Numbers, rows: Rows, target: str, y_range: Range | None) -> go.Figure:
    """The fit of one feature: rows coloured by weight, robust curve with bands for f and for new observations."""
    figure = _figure(for_plotly(effect.feature), for_plotly(target), y_range=y_range)
    if effect.interval is not None:
        _add_band(figure, effect.grid, effect.interval, _WIDE_BAND, "95 % for new observations")
    _add_band(figure, effect.grid, _normal_interval(effect), _BAND, "95 % for the curve")
    kept, flagged = _point_traces(
        x, rows.observed, rows, ("row", "observed", "expected", "weight", "outlier probability")
    )
    figure.add_trace(kept)
    _add_curves(figure, effect, target)
    figure.add_trace(flagged)
    return figure


def effect_figure(effect: Effect, target: str, y_range: Range) -> go.Figure:
    """Partial dependence of the target on one feature, on a vertical scale shared with its neighbours."""
    figure = _figure(for_plotly(effect.feature), for_plotly(target), y_range=y_range)
    _add_band(figure, effect.grid, _normal_interval(effect), _BAND, "95 % for the average")
    _add_curves(figure, effect, target)
    return figure.update_layout(showlegend=False)


def residual_figure(rows: Rows, target: str, y_range: Range | None) -> go.Figure:
    """Observed minus expected against expected, both leave-one-out."""
    name = for_plotly(target)
    figure = _figure(f"expected {name}", f"observed − expected {name}", y_range=y_range)
    figure.add_hline(y=0, line={"color": _DIAGONAL, "width": 1, "dash": "dot"})
    figure.add_traces(
        _point_traces(
            rows.expected, rows.residual, rows, ("row", "observed", "expected", "weight", "outlier probability")
        )
    )
    return figure


def weight_figure(weight: Numbers) -> go.Figure:
    """Histogram of the weights; counts on a logarithmic axis where the few outliers would vanish on a plain one."""
    edges = np.linspace(0.0, max(1.0, float(weight.max())), _BINS + 1)
    counts = np.histogram(weight, bins=edges)[0]
    logarithmic = bool(counts.max() > 50 * counts[counts > 0].min())
    figure = _figure("weight", "rows (logarithmic)" if logarithmic else "rows")
    centres = (edges[:-1] + edges[1:]) / 2
    spans = [f"weight {number(a)} to {number(b)}" for a, b in pairwise(edges)]
    # Colours themselves, not numbers on a scale: of those Plotly complains on the console when they colour bars.
    colours = sample_colorscale([list(stop) for stop in _WEIGHT_COLOURS], np.minimum(centres, 1.0))
    figure.add_trace(
        go.Bar(
            x=centres,
            y=counts,
            width=0.94 * np.diff(edges),
            marker={"color": colours, "line": {"width": 0}},
            customdata=[[span, counted(int(count), "row")] for span, count in zip(spans, counts.tolist(), strict=True)],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            showlegend=False,
        )
    )
    if logarithmic:
        # From one half, so that a bar of a single row has a height.
        top = np.log10(float(counts.max())) + 0.1
        figure.update_yaxes(type="log", range=[np.log10(0.5), top], dtick=1)
    return figure


def law_figure(law: NoiseLaw, rows: Rows) -> go.Figure:
    """Histogram of the standardised residuals of rows that are not flagged, against the density of the noise law
    without its widest scale, whose rows are flagged.

    A residual is divided by √(v + σ²), the standard deviation of its prediction if the noise were normal with the
    narrowest scale σ. The density of the law is averaged over these rows, whose uncertainty v differs.
    """
    kept = ~rows.flagged
    noise = rows.noise[kept]
    latent = np.maximum(rows.std[kept] ** 2 - law.variance * noise, 0.0)
    scale = np.sqrt(latent + noise)
    residual = rows.residual[kept] / np.where(scale > 0.0, scale, 1.0)
    reach = float(np.clip(1.1 * np.abs(residual).max(initial=0.0), 4.0, 1.1 * 3.0 * max(SCALES)))
    edges = np.linspace(-reach, reach, 2 * _BINS + 1 if len(residual) >= 200 else _BINS + 1)
    width = edges[1] - edges[0]
    counts = np.histogram(np.clip(residual, -reach, reach), bins=edges)[0]
    density = counts / max(len(residual), 1) / width
    grid = np.linspace(-reach, reach, 241)
    # Share of v in the variance, in a few groups of rows instead of all.
    shares = (
        np.quantile(latent / np.where(scale > 0.0, scale**2, 1.0), np.linspace(0.05, 0.95, 10))
        if len(latent)
        else np.zeros(1)
    )
    mixture = np.zeros_like(grid)
    for share in shares:
        for part, s in zip(law.unflagged.good_shares, SCALES, strict=True):
            mixture += part * _normal_density(grid, share + (1.0 - share) * s**2) / len(shares)
    figure = _figure("residual / standard deviation", "density")
    figure.add_trace(
        go.Bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=density,
            width=0.94 * width,
            name="rows that are not flagged",
            marker={"color": _WEIGHT_COLOURS[-1][1], "opacity": 0.55, "line": {"width": 0}},
            customdata=[
                [f"{number(a)} to {number(b)}", counted(int(c), "row")]
                for a, b, c in zip(edges, edges[1:], counts, strict=False)
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
    )
    curves = [("noise law", mixture, {"color": _ROBUST, "width": 2.4})]
    if not law.is_normal:
        curves.insert(
            0, ("normal noise", _normal_density(grid, 1.0), {"color": _DIAGONAL, "width": 1.6, "dash": "dot"})
        )
    for name, values, line in curves:
        figure.add_trace(go.Scatter(x=grid, y=values, mode="lines", name=name, line=line, hoverinfo="skip"))
    return figure


def _normal_density(x: Numbers, variance: float) -> Numbers:
    density: Numbers = np.exp(-0.5 * x**2 / variance) / np.sqrt(2.0 * np.pi * variance)
    return density


def comparison_figure(rows: Rows, plain_expected: Numbers, target: str, both_range: Range | None) -> go.Figure:
    """Leave-one-out predictions of the robust GP against those of the ordinary one."""
    name = for_plotly(target)
    figure = _figure(f"ordinary GP expects {name}", f"robust GP expects {name}", both_range, both_range)
    together = np.concatenate([plain_expected, rows.expected])
    figure.add_trace(_diagonal(both_range or (float(together.min()), float(together.max())), "equal"))
    labels = ("row", "observed", "robust expects", "weight", "outlier probability", "ordinary expects")
    figure.add_traces(_point_traces(plain_expected, rows.expected, rows, labels, plain_expected))
    return figure


def _point_traces(
    x: Numbers, y: Numbers, rows: Rows, labels: tuple[str, ...], further: Numbers | None = None
) -> tuple[go.Scatter, go.Scatter]:
    """Rows that are not flagged, and those that are, with the values of each in its hover box."""
    columns = [[for_plotly(label) for label in rows.label]]
    numbers = [rows.observed, rows.expected, rows.weight, rows.probability] + ([] if further is None else [further])
    columns += [[number(value) for value in column] for column in numbers]
    hover = "<br>".join(f"{label} %{{customdata[{i}]}}" for i, label in enumerate(labels))
    cells = list(zip(*columns, strict=True))

    def trace(chosen: Any, name: str, **marker: Any) -> go.Scatter:
        return go.Scatter(
            x=x[chosen],
            y=y[chosen],
            mode="markers",
            name=name,
            marker={"color": rows.weight[chosen], **_weight_scale(bar=name == "rows"), **marker},
            customdata=[cells[i] for i in chosen],
            hovertemplate=hover + "<extra></extra>",
            showlegend=bool(len(chosen)),
        )

    kept = trace(np.flatnonzero(~rows.flagged), "rows", size=6, opacity=0.8)
    outline = {"width": 1, "color": "#5A2A00"}
    return kept, trace(np.flatnonzero(rows.flagged), "flagged rows", size=10, symbol="diamond", line=outline)


def _normal_interval(effect: Effect) -> tuple[Numbers, Numbers]:
    """The 95 % interval of the function itself, which is normal whatever the noise."""
    return effect.mean - _HALF_WIDTH * effect.std, effect.mean + _HALF_WIDTH * effect.std


def _add_band(figure: go.Figure, grid: Numbers, interval: tuple[Numbers, Numbers], colour: str, name: str) -> None:
    """Shade an interval along a grid."""
    lower, upper = interval
    # Plotly draws such lines with fewer points where it can, and loses the last one far outside the frame.
    edge = {"x": grid, "mode": "lines", "line": {"width": 0, "simplify": False}, "hoverinfo": "skip"}
    figure.add_trace(go.Scatter(y=lower, showlegend=False, **edge))
    figure.add_trace(go.Scatter(y=upper, fill="tonexty", fillcolor=colour, name=name, **edge))


def _add_curves(figure: go.Figure, effect: Effect, target: str) -> None:
    """The robust mean, over the ordinary one if there is one."""
    curves = [("robust GP", effect.mean, {"color": _ROBUST, "width": 2.6})]
    if effect.plain is not None:
        curves.insert(0, ("ordinary GP", effect.plain, {"color": _PLAIN, "width": 2.2, "dash": "dash"}))
    feature, value = for_plotly(effect.feature), for_plotly(target)
    for name, mean, line in curves:
        figure.add_trace(
            go.Scatter(
                x=effect.grid,
                y=mean,
                mode="lines",
                name=name,
                line=line,
                customdata=[[number(at), number(y)] for at, y in zip(effect.grid, mean, strict=True)],
                hovertemplate=f"{name}<br>{feature} %{{customdata[0]}}<br>{value} %{{customdata[1]}}<extra></extra>",
            )
        )


def _weight_scale(bar: bool) -> dict[str, Any]:
    """How markers show weights by colour; one trace of a figure brings the colour bar."""
    return {
        "colorscale": [list(stop) for stop in _WEIGHT_COLOURS],
        "cmin": 0,
        "cmax": 1,
        "showscale": bar,
        "colorbar": {
            "title": {"text": "weight", "side": "right", "font": {"size": 12}},
            "thickness": 10,
            "outlinewidth": 0,
            "tickvals": [0, 0.5, 1],
        }
        if bar
        else None,
    }


def _diagonal(ends: Range, name: str) -> go.Scatter:
    line = {"color": _DIAGONAL, "width": 1.2, "dash": "dot"}
    return go.Scatter(x=list(ends), y=list(ends), mode="lines", name=name, line=line, hoverinfo="skip")


def _figure(x_title: str, y_title: str, x_range: Range | None = None, y_range: Range | None = None) -> go.Figure:
    """An empty figure with the look that all share. Titles are in Plotly's markup already."""
    axis = {
        "gridcolor": "#E6E8EC",
        "zeroline": False,
        "exponentformat": "power",
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
