"""The paper's figures drawn from records, in the paper's layout and colours: GP green, RCGP blue.

At the size of a journal, one or two columns wide, where no text is smaller than 8 points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from rcgp_paper.experiments import Record
from rcgp_paper.experiments.methods import TITLES
from rcgp_paper.experiments.optimisation import FUNCTION_TITLES, METHOD_TITLES, clock_time, cumulative_regret, longest

__all__ = ["DRAWINGS", "draw_figure"]

_GP, _RCGP, _SE, _BROWN, _POINTS, _OUTLIER = "#4daf4a", "#377eb8", "#ff7f00", "#a65628", "#777777", "#e41a1c"
_LEARNED = "#984ea3"

#: Inches: the text of two columns.
_WIDE = 7.0
_SMALL = 8.0

_INTERVAL = "95 % interval of f"

#: Colour and style of each method's line in Bayesian optimisation; methods that the paper does not have are dashed.
_OPTIMISATION_LINES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"gp": (_GP, "-"), "rcgp": (_RCGP, "-"), "rcgp_paper": (_RCGP, "--"), "t-gp": (_SE, "-")}
)

#: Colour and name of each method in the two days of the flash crash.
_CRASH_LINES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "gp": (_GP, "GP"),
        "rcgp": (_RCGP, "RCGP"),
        "st_rcgp": (_SE, "ST-RCGP's rule"),
        "learned": (_LEARNED, TITLES["learned"]),
    }
)
_FLAGGED = "flagged by the learned law"

#: Minutes of a day; the deepest minute of the crash, on the second day; and the minutes around it that are shown.
_DAY, _CRASH, _AROUND = 1440.0, 1440.0 + 789.0, 12.0

Values = dict[str, Any]


def draw_figure(experiment: str, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw the figure of an experiment from its records as PDF and PNG; returns both files."""
    figure = DRAWINGS[experiment](records)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{experiment}.{suffix}" for suffix in ("pdf", "png")]
    for path in paths:
        # No date inside, so that the same records give the same file.
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        figure.savefig(path, dpi=150, metadata=metadata)
    return paths


def _synthetic(values: Values) -> Figure:
    """Figure 1: both models and the truth."""
    figure = Figure(figsize=(_WIDE, 4.2), layout="constrained")
    axis = figure.subplots()
    _points(axis, values)
    axis.plot(values["truth_x"], values["truth"], color="black", linestyle="--", linewidth=0.8, label="truth")
    _band(axis, values["grid"], values["gp"], _GP, "GP")
    _band(axis, values["grid"], values["rcgp"], _RCGP, "RCGP")
    axis.set(xlabel="x", ylabel="y", xlim=_range_of(values["grid"]))
    _legend_above(figure, axis, bands=_INTERVAL)
    return figure


def _influence(values: Values) -> Figure:
    """Figure 2: influence against the size of the move."""
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.plot(values["shift"], values["gp"], color=_GP, label="GP")
    axis.plot(values["shift"], values["rcgp"], color=_RCGP, label="RCGP")
    # The GP's grows as a parabola and leaves the picture.
    axis.set(
        xlabel="observation moved by (units of y)",
        ylabel="influence (KL divergence, nats)",
        ylim=(0, 4.0 * max(values["rcgp"]) or 1.0),
    )
    axis.legend(frameon=False)
    return figure


def _weights(values: Values) -> Figure:
    """Figure 3: both weight functions, the threshold c dashed."""
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.plot(values["residual"], values["imq"], color=_RCGP, label="IMQ")
    axis.plot(values["residual"], values["se"], color=_SE, label="SE")
    for side, label in ((-1, None), (1, f"±c = ±{values['c']:g}")):
        axis.axvline(side * values["c"], color="black", linestyle="--", linewidth=0.8, label=label)
    axis.set(xlabel="y − m(x)", ylabel="weight", ylim=(0, 1.05))
    axis.legend(frameon=False)
    return figure


def _varying_c(values: Values) -> Figure:
    """Figure 4: a panel for each variant of the method, a colour for each ε.

    Lines become thinner, so that equal curves are all visible. Outliers beyond the range of the curves are arrows
    at the edge.
    """
    figure = Figure(figsize=(_WIDE, 3.8), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    count = len(values["epsilon"])
    colours = colormaps["plasma"](np.linspace(0.9, 0.0, count))
    widths = np.linspace(3.2, 0.8, count)
    low, high = _range_of([curve for panel in values["panels"] for curve in panel["curves"]], margin=0.1)
    for axis, panel in zip(axes, values["panels"], strict=True):
        _points(axis, values, (low, high))
        for epsilon, curve, colour, width in zip(values["epsilon"], panel["curves"], colours, widths, strict=True):
            axis.plot(values["grid"], curve, color=colour, linewidth=width, zorder=0.5, label=f"ε = {epsilon:g}")
        axis.set_title(panel["name"], fontsize=10)
        axis.set(xlabel="x", xlim=_range_of(values["grid"]))
    axes[0].set(ylabel="y", ylim=(low, high))
    _legend_above(figure, axes[0], columns=3)
    return figure


def _outliers(values: Values) -> Figure:
    """Figure 5: a panel for each regime."""
    figure = Figure(figsize=(_WIDE, 2.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name in zip(axes, ("asymmetric", "focused"), strict=True):
        _points(axis, values[name])
        axis.set_title(name, fontsize=10)
        axis.set(xlabel="x")
    axes[0].set(ylabel="y")
    _legend_above(figure, axes[0])
    return figure


def _flash_crash(records: Sequence[Record]) -> Figure:
    """Figure 7: the paper's series above, the two days below; only one of them if the other has no record."""
    newest = {"series" in record.config: record.values for record in records}
    heights = [height for two_days, height in ((False, 4.0), (True, 5.0)) if two_days in newest]
    figure = Figure(figsize=(_WIDE, 0.4 + sum(heights)), layout="constrained")
    parts = iter(figure.add_gridspec(len(heights), 1, height_ratios=heights))
    axes: list[Axes] = []
    if False in newest:
        axes += _crash_day(figure, next(parts), newest[False])
    if True in newest:
        axes += _crash_days(figure, next(parts), newest[True])
    _legend_above(figure, *axes, columns=4, bands=_INTERVAL)
    return figure


def _crash_day(figure: Figure, place: SubplotSpec, values: Values) -> list[Axes]:
    """Both models above, the weights of RCGP below."""
    rows = place.subgridspec(2, 1, height_ratios=[3, 1])
    top = figure.add_subplot(rows[0])
    bottom = figure.add_subplot(rows[1], sharex=top)
    hours = np.array(values["minute"]) / 60.0
    top.scatter(hours, values["price"], s=8, color=_POINTS, linewidths=0, label="observation")
    _band(top, hours, values["gp"], _GP, "GP")
    _band(top, hours, values["rcgp"], _RCGP, "RCGP")
    top.set(ylabel="DJIA (points)")
    top.tick_params(labelbottom=False)
    bottom.plot(hours, values["weight"], color=_RCGP, linewidth=1.0)
    bottom.set(xlabel="time of day on 23 April 2013 (hours)", ylabel="weight", ylim=(0, 1.05))
    return [top, bottom]


def _crash_days(figure: Figure, place: SubplotSpec, values: Values) -> list[Axes]:
    """Both days and the crash itself: prices and posteriors above, the weights of each robust method below."""
    minute, price, flagged = (np.array(values[key]) for key in ("minute", "price", "flagged"))
    second = minute >= _DAY
    panels = (
        ("22 April, every minute", "time of day (hours)", ~second, minute / 60.0),
        ("23 April", "time of day (hours)", second, (minute - _DAY) / 60.0),
        ("the crash", "minutes after 13:00", np.abs(minute - _CRASH) <= _AROUND, minute - _DAY - 780.0),
    )
    robust = [method for method in _CRASH_LINES if method != "gp"]
    grid = place.subgridspec(1 + len(robust), 3, height_ratios=[4, *[1] * len(robust)], width_ratios=[4, 4, 3])
    axes: Any = grid.subplots(sharex="col", sharey="row")
    for (top, *below), (title, name, rows, times) in zip(axes.T, panels, strict=True):
        x, bad = times[rows], flagged[rows]
        top.scatter(x[~bad], price[rows][~bad], s=8, color=_POINTS, linewidths=0, label="observation")
        for method, (colour, label) in _CRASH_LINES.items():
            _band(top, x, {key: np.array(part)[rows] for key, part in values[method].items()}, colour, label)
        if bad.any():
            crosses = top.scatter(
                x[bad], price[rows][bad], s=18, marker="x", color=_OUTLIER, linewidths=1.0, label=_FLAGGED
            )
            crosses.set_zorder(3)  # not below the lines
        for axis, method in zip(below, robust, strict=True):
            colour, label = _CRASH_LINES[method]
            axis.plot(x, np.array(values[method]["weight"])[rows], color=colour, linewidth=1.0, label=label)
            axis.set(ylim=(-0.05, 1.1), yticks=(0, 1))
        top.set_title(title, fontsize=10)
        below[-1].set(xlabel=name)
    axes[0, 0].set(ylabel="DJIA (points)", ylim=_range_of(price, margin=0.05))
    for axis in axes[1:, 0]:
        axis.set(ylabel="weight")
    return list(axes.flat)


def _prior_mean(values: Values) -> Figure:
    """Appendix: both prior means, and the polynomial itself."""
    figure = Figure(figsize=(_WIDE, 3.6), layout="constrained")
    axis = figure.subplots()
    _points(axis, values)
    axis.plot(values["x"], values["truth"], color="black", linestyle="--", linewidth=0.8, label="truth")
    _band(axis, values["x"], values["zero"], _RCGP, "RCGP, prior mean zero")
    _band(axis, values["x"], values["polynomial"], _BROWN, "RCGP, polynomial prior mean")
    axis.plot(values["x"], values["prior"], color=_BROWN, linestyle=":", linewidth=0.8, label="the polynomial")
    axis.set(xlabel="x", ylabel="y")
    _legend_above(figure, axis, columns=4, bands=_INTERVAL)
    return figure


def _sparse(records: Sequence[Record]) -> Figure:
    """Figure 6: clock time of a fit and root mean square error against n, from all runs of all sizes.

    Dashed where the noise variance is fitted, which the paper holds fixed.
    """
    figure = Figure(figsize=(_WIDE, 3.2), layout="constrained")
    names = {"seconds": "clock time of a fit (s)", "rmse": "root mean square error"}
    sizes = np.array(sorted({record.config["n"] for record in records}))
    lines = (("svgp", _GP, "-"), ("svgp-noise", _GP, "--"), ("rcsvgp", _RCGP, "-"), ("rcsvgp-loo", _RCGP, "--"))
    for axis, (key, name) in zip(figure.subplots(1, 2), names.items(), strict=True):
        for method, colour, style in lines:
            runs = [[r.values[key][method] for r in records if r.config["n"] == size] for size in sizes]
            _mean_line(axis, sizes, runs, colour, TITLES[method], linestyle=style, marker="o", markersize=3)
        axis.set_xscale("log")
        axis.set_xticks(sizes, [f"{size}" for size in sizes])
        axis.minorticks_off()
        axis.set(xlabel="number of rows n", ylabel=name)
        axis.set_ylim(bottom=0.0)
    _legend_above(figure, axis, columns=5, bands="± standard error" if len(records) > len(sizes) else "")
    return figure


def draw_optimisation(records: Sequence[Record]) -> Figure:
    """Bayesian optimisation: mean cumulative regret (above) and clock time (below) against the steps.

    A column for each function. Only runs with as many steps as the longest: a quick look has fewer.
    """
    records = longest(records)
    present = {record.config["function"] for record in records}
    functions = [function for function in FUNCTION_TITLES if function in present]
    figure = Figure(figsize=(_WIDE, 4.4), layout="constrained")
    axes = figure.subplots(2, len(functions), sharex=True, squeeze=False)
    several = False
    for (top, bottom), function in zip(axes.T, functions, strict=True):
        for method, (colour, style) in _OPTIMISATION_LINES.items():
            found = [r for r in records if (r.config["function"], r.config["method"]) == (function, method)]
            several = several or len(found) > 1
            for axis, curve in ((top, cumulative_regret), (bottom, clock_time)):
                if found:
                    runs = np.array([curve(record) for record in found])
                    steps = np.arange(1, runs.shape[1] + 1)
                    _mean_line(axis, steps, runs.T, colour, METHOD_TITLES[method], linestyle=style, linewidth=1.2)
        top.set_title(FUNCTION_TITLES[function], fontsize=10)
        bottom.set(xlabel="step", yscale="log")
        bottom.set_ylim(*_decades(bottom.get_ylim()))
        bottom.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes[0, 0].set(ylabel="cumulative regret")
    axes[1, 0].set(ylabel="clock time (s)")
    for axis in axes.flat:
        axis.tick_params(labelsize=_SMALL)
        axis.minorticks_off()
    _legend_above(figure, *axes[0], columns=5, bands="± standard error" if several else "")
    return figure


def _decades(limits: tuple[float, float]) -> tuple[float, float]:
    """Whole powers of ten around limits: a logarithmic axis labels no others."""
    return 10.0 ** math.floor(math.log10(limits[0])), 10.0 ** math.ceil(math.log10(limits[1]))


def _mean_line(axis: Axes, x: Any, columns: Any, colour: str, label: str, **style: Any) -> None:
    """The mean of the runs in each column, and the standard error of several runs as a band."""
    mean = np.array([np.mean(runs) for runs in columns])
    error = np.array([np.std(runs, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else 0.0 for runs in columns])
    axis.plot(x, mean, color=colour, label=label, **style)
    if error.any():
        axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def _points(axis: Axes, values: Values, view: tuple[float, float] = (-np.inf, np.inf)) -> None:
    """The data, outliers as crosses; those above or below the view as arrows at its edge."""
    x, y, outlier = (np.array(values[key]) for key in ("x", "y", "outlier"))
    axis.scatter(x[~outlier], y[~outlier], s=6, color=_POINTS, linewidths=0, label="observation")
    above, below = outlier & (y > view[1]), outlier & (y < view[0])
    inside = outlier & ~above & ~below
    axis.scatter(x[inside], y[inside], s=14, marker="x", color=_OUTLIER, linewidths=0.8, label="outlier")
    for beyond, marker, edge, label in ((above, "^", 0.98, "outlier beyond the axis"), (below, "v", 0.02, None)):
        if beyond.any():
            height = np.full(beyond.sum(), edge)
            place = axis.get_xaxis_transform()  # x in data, y as a share of the axis
            axis.scatter(
                x[beyond], height, s=14, marker=marker, color=_OUTLIER, linewidths=0, transform=place, label=label
            )


def _legend_above(figure: Figure, *axes: Axes, columns: int = 6, bands: str = "") -> None:
    """A legend of all panels, each series once, and of the bands, above the panels."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if bands:
        found[bands] = Patch(color=_POINTS, alpha=0.3, linewidth=0)
    figure.legend(found.values(), found, loc="outside upper center", ncols=columns, frameon=False, fontsize=_SMALL)


def _band(axis: Axes, x: Any, curve: Values, colour: str, label: str) -> None:
    """A posterior mean and its central 95 % interval."""
    mean, std = np.array(curve["mean"]), np.array(curve["std"])
    axis.plot(x, mean, color=colour, label=label)
    axis.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.2, linewidth=0)


def _range_of(values: Any, margin: float = 0.02) -> tuple[float, float]:
    """The range of values, widened on both sides by a share of it."""
    low, high = float(np.min(values)), float(np.max(values))
    return low - margin * (high - low), high + margin * (high - low)


def _newest(draw: Callable[[Values], Figure]) -> Callable[[Sequence[Record]], Figure]:
    """A figure of one run, drawn from the values of the newest of its records."""
    return lambda records: draw(records[-1].values)


#: The function that draws each figure from its records.
DRAWINGS: Mapping[str, Callable[[Sequence[Record]], Figure]] = MappingProxyType(
    {
        "figure_synthetic": _newest(_synthetic),
        "figure_influence": _newest(_influence),
        "figure_weights": _newest(_weights),
        "figure_varying_c": _newest(_varying_c),
        "figure_outliers": _newest(_outliers),
        "figure_sparse": _sparse,
        "figure_flash_crash": _flash_crash,
        "figure_prior_mean": _newest(_prior_mean),
        "figure_bo_ucb": draw_optimisation,
        "figure_bo_pi": draw_optimisation,
        "figure_bo_clean": draw_optimisation,
    }
)
