"""Bayesian optimisation drawn and tabled from records: cumulative regret and clock time over the steps.

The paper's layout: a column for each function, regret above, time below; GP green, RCGP blue, t-GP orange.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rcgp_paper.experiments import Record
from rcgp_paper.experiments.optimisation import FUNCTION_TITLES, METHOD_TITLES
from rcgp_paper.report.comparison import Table

__all__ = ["draw_optimisation", "optimisation_tables"]

Numbers = NDArray[np.float64]

#: Colour and style of the line of each method: dashed what stands beside the paper's three.
_LINES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"gp": ("#4daf4a", "-"), "rcgp": ("#377eb8", "-"), "rcgp_paper": ("#377eb8", "--"), "t-gp": ("#ff7f00", "-")}
)

_GREY = "#777777"
_SMALL = 8.0

_SETTINGS: Mapping[tuple[str, bool], str] = MappingProxyType(
    {
        ("ucb", True): "UCB, 20 % outliers",
        ("pi", True): "PI, 20 % outliers",
        ("ucb", False): "UCB, no outliers",
        ("pi", False): "PI, no outliers",
    }
)


def draw_optimisation(records: Sequence[Record]) -> Figure:
    """Mean cumulative regret (above) and clock time (below) against the steps, with standard errors.

    Only of runs with as many steps as the longest: a quick look has fewer.
    """
    records = _longest(records)
    functions = _in_order(FUNCTION_TITLES, records, "function")
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axes = figure.subplots(2, len(functions), sharex=True, squeeze=False)
    several = False
    for column, function in enumerate(functions):
        for method in _in_order(METHOD_TITLES, records, "method"):
            found = [r for r in records if (r.config["function"], r.config["method"]) == (function, method)]
            several = several or len(found) > 1
            for axis, curve in zip(axes[:, column], (_cumulative_regret, _clock_time), strict=True):
                if found:
                    _curve(axis, np.array([curve(record) for record in found]), method)
        axes[0, column].set_title(FUNCTION_TITLES[function], fontsize=10)
        axes[1, column].set(xlabel="step", yscale="log")
        axes[1, column].set_ylim(*_decades(axes[1, column].get_ylim()))
        axes[1, column].xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes[0, 0].set(ylabel="cumulative regret")
    axes[1, 0].set(ylabel="clock time (s)")
    for axis in axes.flat:
        axis.tick_params(labelsize=_SMALL)
        axis.minorticks_off()
    handles, labels = _legend(axes.flat)
    if several:
        handles, labels = [*handles, Patch(color=_GREY, alpha=0.3, linewidth=0)], [*labels, "± standard error"]
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False, fontsize=_SMALL)
    return figure


def _curve(axis: Any, runs: Numbers, method: str) -> None:
    """The mean over runs, ``runs x steps``, and where there are several its standard error as a band."""
    colour, style = _LINES[method]
    steps, mean = np.arange(1, runs.shape[1] + 1), runs.mean(axis=0)
    axis.plot(steps, mean, style, color=colour, linewidth=1.2, label=METHOD_TITLES[method])
    if len(runs) > 1:
        error = runs.std(axis=0, ddof=1) / math.sqrt(len(runs))
        axis.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def _decades(limits: tuple[float, float]) -> tuple[float, float]:
    """Whole powers of ten around limits: a logarithmic axis names no others."""
    return 10.0 ** math.floor(math.log10(limits[0])), 10.0 ** math.ceil(math.log10(limits[1]))


def _legend(axes: Any) -> tuple[list[Any], list[str]]:
    """Each series once, although a function may lack some."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = [title for title in METHOD_TITLES.values() if title in found]
    return [found[label] for label in labels], labels


def optimisation_tables(records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """Cumulative regret at the end, and the seconds of a step, for every setting; and notices."""
    fitting = [record for record in records if _fits(record)]
    notices = []
    if len(fitting) < len(records):
        foreign = next(record for record in records if not _fits(record))
        count = len(records) - len(fitting)
        told = "1 record has" if count == 1 else f"{count} records have"
        notices = [f"{foreign.experiment}: {told} no place in the tables, such as {foreign.key}"]
    if not fitting:
        return [], notices
    runs = _longest(fitting)
    steps = runs[0].config["steps"]
    below = f"{_repetitions(runs)}{_failures(runs)}{_states_of_code(runs)}"
    regret = _table(
        f"Cumulative regret after {steps} steps",
        runs,
        lambda record: float(_cumulative_regret(record)[-1]),
        f"Mean and standard deviation; the best of each row in bold. Values without outliers count.{below}",
        mark=True,
    )
    seconds = _table(
        "Seconds of a step, fit and acquisition",
        runs,
        lambda record: float(_clock_time(record)[-1]) / steps,
        f"Mean and standard deviation over runs of the mean over their steps.{below}",
    )
    return [regret, seconds], notices


def _table(
    title: str, records: Sequence[Record], number: Callable[[Record], float], note: str, mark: bool = False
) -> Table:
    """A row for each setting and function, a column for each method."""
    methods = _in_order(METHOD_TITLES, records, "method")
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for setting, name in _SETTINGS.items():
        chosen = [r for r in records if (r.config["acquisition"], r.config["outliers"]) == setting]
        rows += [[name]] if chosen else []
        for function in _in_order(FUNCTION_TITLES, chosen, "function"):
            cells = [
                [number(r) for r in chosen if (r.config["function"], r.config["method"]) == (function, method)]
                for method in methods
            ]
            means = [round(float(np.mean(cell)), 3) if cell else math.inf for cell in cells]
            if mark and sum(map(math.isfinite, means)) > 1:
                best += [(len(rows), column) for column, mean in enumerate(means, start=1) if mean == min(means)]
            rows.append([FUNCTION_TITLES[function], *map(_cell, cells)])
    return Table(title, ["", *(METHOD_TITLES[method] for method in methods)], rows, note, best)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.3f}" + (f" ({np.std(values, ddof=1):.3f})" if len(values) > 1 else "")


def _fits(record: Record) -> bool:
    config = record.config
    return (
        config.get("function") in FUNCTION_TITLES
        and config.get("method") in METHOD_TITLES
        and (config.get("acquisition"), config.get("outliers")) in _SETTINGS
        and isinstance(config.get("steps"), int)
    )


def _repetitions(records: Sequence[Record]) -> str:
    keys = ("function", "acquisition", "outliers", "method")
    counts = Counter(tuple(record.config[key] for key in keys) for record in records).values()
    fewest, most = min(counts), max(counts)
    if fewest != most:
        return f" Between {fewest} and {most} repetitions in a cell."
    return " One run in each cell." if most == 1 else f" {most} repetitions."


def _failures(records: Sequence[Record]) -> str:
    """How many fits of each method failed or did not converge, as a sentence."""
    parts = []
    for method, title in METHOD_TITLES.items():
        chosen = [record for record in records if record.config["method"] == method]
        failed = sum(len(record.values["failed"]) for record in chosen)
        if failed:
            parts.append(f"{title} {failed} of {sum(record.config['steps'] for record in chosen)}")
    return f" Fits that failed or did not converge: {', '.join(parts)}." if parts else " All fits converged."


def _states_of_code(records: Sequence[Record]) -> str:
    states = len({record.code for record in records})
    return f" The package's code changed between the runs (its states: {states})." if states > 1 else ""


def _longest(records: Sequence[Record]) -> list[Record]:
    """The runs with the most steps."""
    most = max(record.config["steps"] for record in records)
    return [record for record in records if record.config["steps"] == most]


def _cumulative_regret(record: Record) -> Numbers:
    """After each step, the first points not counted."""
    total: Numbers = np.cumsum(np.asarray(record.values["regret"], dtype=np.float64))
    return total


def _clock_time(record: Record) -> Numbers:
    """Seconds of fits and acquisition after each step."""
    parts = [np.asarray(record.values[key], dtype=np.float64) for key in ("fit_seconds", "acquisition_seconds")]
    total: Numbers = np.cumsum(parts[0] + parts[1])
    return total


def _in_order(titles: Mapping[str, str], records: Sequence[Record], key: str) -> list[str]:
    present = {record.config[key] for record in records}
    return [name for name in titles if name in present]
