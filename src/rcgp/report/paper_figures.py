"""The paper's figures drawn from records, in the paper's layout and colours: GP green, RCGP blue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rcgp.experiments import Record

__all__ = ["DRAWINGS", "draw_figure"]

_GP, _RCGP, _SE, _BROWN, _POINTS = "#4daf4a", "#377eb8", "#ff7f00", "#a65628", "#777777"

Values = dict[str, Any]


def draw_figure(record: Record, folder: Path) -> list[Path]:
    """Draw the figure of a record as PDF and PNG; returns both files."""
    figure = DRAWINGS[record.experiment](record.values)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{record.experiment}.{suffix}" for suffix in ("pdf", "png")]
    for path in paths:
        # No date inside, so that the same record gives the same file.
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        figure.savefig(path, dpi=150, metadata=metadata)
    return paths


def _synthetic(values: Values) -> Figure:
    """Figure 1: both models and the truth."""
    figure = Figure(figsize=(6.5, 3.0), layout="constrained")
    axis = figure.subplots()
    _points(axis, values)
    axis.plot(values["truth_x"], values["truth"], color="black", linestyle="--", linewidth=0.8, label="truth")
    _band(axis, values["grid"], values["gp"], _GP, "GP")
    _band(axis, values["grid"], values["rcgp"], _RCGP, "RCGP")
    truth = np.array(values["truth"])
    # A range that shows the function: the farthest outliers are outside.
    axis.set(xlabel="x", ylabel="y", ylim=(truth.min() - 3.0, truth.max() + 3.0))
    _legend_above(figure, axis)
    return figure


def _influence(values: Values) -> Figure:
    """Figure 2: influence against the size of the move."""
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.plot(values["shift"], values["gp"], color=_GP, label="GP")
    axis.plot(values["shift"], values["rcgp"], color=_RCGP, label="RCGP")
    # The GP's grows as a parabola and leaves the picture.
    axis.set(xlabel="observation moved by", ylabel="influence", ylim=(0, 4.0 * max(values["rcgp"]) or 1.0))
    axis.legend(frameon=False)
    return figure


def _weights(values: Values) -> Figure:
    """Figure 3: both weight functions, the threshold c dashed."""
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.plot(values["residual"], values["imq"], color=_RCGP, label="IMQ")
    axis.plot(values["residual"], values["se"], color=_SE, label="SE")
    for side in (-1, 1):
        axis.axvline(side * values["c"], color="black", linestyle="--", linewidth=0.8)
    axis.set(xlabel="y − m(x)", ylabel="weight", ylim=(0, 1.05))
    axis.legend(frameon=False)
    return figure


def _varying_c(values: Values) -> Figure:
    """Figure 4: a panel for each variant of the method, darker for a larger ε."""
    figure = Figure(figsize=(10.0, 3.0), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    shades = np.linspace(0.25, 0.95, len(values["epsilon"]))
    for axis, panel in zip(axes, values["panels"], strict=True):
        axis.scatter(values["x"], values["y"], s=4, color=_POINTS, linewidths=0, label="observation")
        for epsilon, curve, shade in zip(values["epsilon"], panel["curves"], shades, strict=True):
            axis.plot(values["grid"], curve, color=(0.1, 0.3, 0.6, shade), linewidth=1.0, label=f"ε = {epsilon:g}")
        axis.set_title(panel["name"], fontsize=10)
        axis.set(xlabel="x")
    axes[0].set(ylabel="y", ylim=_middle(values["y"]))
    _legend_above(figure, axes[0])
    return figure


def _outliers(values: Values) -> Figure:
    """Figure 5: a panel for each regime."""
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name in zip(axes, ("asymmetric", "focused"), strict=True):
        _points(axis, values[name])
        axis.set_title(name, fontsize=10)
        axis.set(xlabel="x")
    axes[0].set(ylabel="y")
    _legend_above(figure, axes[0])
    return figure


def _flash_crash(values: Values) -> Figure:
    """Figure 7: both models above, the weights of RCGP below."""
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    hours = np.array(values["minute"]) / 60.0
    top.scatter(hours, values["price"], s=5, color=_POINTS, linewidths=0, label="observation")
    _band(top, hours, values["gp"], _GP, "GP")
    _band(top, hours, values["rcgp"], _RCGP, "RCGP")
    top.set(ylabel="DJIA")
    top.legend(frameon=False)
    bottom.plot(hours, values["weight"], color=_RCGP, linewidth=1.0)
    bottom.set(xlabel="hour of 23 April 2013", ylabel="weight", ylim=(0, 1.05))
    return figure


def _prior_mean(values: Values) -> Figure:
    """Appendix: both prior means, and the polynomial itself."""
    figure = Figure(figsize=(5.5, 3.0), layout="constrained")
    axis = figure.subplots()
    _points(axis, values)
    axis.plot(values["x"], values["truth"], color="black", linestyle="--", linewidth=0.8, label="truth")
    _band(axis, values["x"], values["zero"], _RCGP, "prior mean zero")
    _band(axis, values["x"], values["polynomial"], _BROWN, "polynomial prior mean")
    axis.plot(values["x"], values["prior"], color=_BROWN, linestyle=":", linewidth=0.8, label="polynomial")
    axis.set(xlabel="x", ylabel="y")
    _legend_above(figure, axis, columns=3)
    return figure


def _points(axis: Axes, values: Values) -> None:
    """The data, outliers as crosses."""
    x, y, outlier = (np.array(values[key]) for key in ("x", "y", "outlier"))
    axis.scatter(x[~outlier], y[~outlier], s=6, color=_POINTS, linewidths=0, label="observation")
    axis.scatter(x[outlier], y[outlier], s=14, marker="x", color="#e41a1c", linewidths=0.8, label="outlier")


def _legend_above(figure: Figure, axis: Axes, columns: int = 7) -> None:
    """What the series of one panel are, above all panels, where it covers no data."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)


def _band(axis: Axes, x: Any, curve: Values, colour: str, label: str) -> None:
    """A posterior mean and its central 95 % interval."""
    mean, std = np.array(curve["mean"]), np.array(curve["std"])
    axis.plot(x, mean, color=colour, label=label)
    axis.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.2, linewidth=0)


def _middle(y: list[float]) -> tuple[float, float]:
    """A range that shows the function and not all outliers."""
    low, high = np.quantile(y, [0.06, 0.94])
    return low - 1.0, high + 1.0


#: What draws each figure from the values of its record.
DRAWINGS: Mapping[str, Callable[[Values], Figure]] = MappingProxyType(
    {
        "figure_synthetic": _synthetic,
        "figure_influence": _influence,
        "figure_weights": _weights,
        "figure_varying_c": _varying_c,
        "figure_outliers": _outliers,
        "figure_flash_crash": _flash_crash,
        "figure_prior_mean": _prior_mean,
    }
)
