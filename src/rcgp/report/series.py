"""A page about a series: doubts about the fit, the series over time, its forecast, its components, its flags."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rcgp.estimator.series import Forecast, RCGPSeries
from rcgp.report.frame import fit_summary, page_html, write_page
from rcgp.report.sections import Panel, Section, beyond, facts_of, facts_table, law_section, row_section, row_table
from rcgp.report.series_figures import MOST_DRAWN, MOST_STRETCHES, component_figure, series_figure
from rcgp.report.summary import (
    Numbers,
    Positions,
    Range,
    Rows,
    Scores,
    frame_of,
    half_widths,
    listed_rows,
    predictive_law,
    rows_of,
    scores_of,
)
from rcgp.report.text import counted, for_html, number, times
from rcgp.series.clock import Duration

__all__ = ["gap_text", "series_html", "series_rows", "write_series_report"]

#: Evenly spaced times at which curves are evaluated, beside those of the rows.
_EVEN = 600
#: A season with more cycles than that would be a solid block: its last four are drawn.
_MOST_CYCLES, _LAST_CYCLES = 8, 4


@dataclass(frozen=True)
class _Fit:
    """A fitted series; ``rows`` and ``when``, its values that are not missing and their times, are in order of time."""

    model: RCGPSeries
    times: pd.Index
    y: Numbers
    target: str
    time: str
    coverage: float
    forecast: Forecast | None
    rows: Rows
    when: pd.Index

    @property
    def axis(self) -> str:
        """Title of the axis of time."""
        zone = self.model.clock_.zone
        return f"{self.time} ({zone})" if zone else self.time

    @property
    def band(self) -> str:
        return f"{100 * self.coverage:.4g} %"

    @property
    def scores(self) -> Scores:
        return scores_of(self.rows, self.rows.flagged, float(np.median(np.sqrt(self.rows.noise))))

    @cached_property
    def curve(self) -> Forecast:
        """Expected value and interval at the times of all rows and at evenly spaced ones, up to the forecast."""
        clock = self.model.clock_
        own = np.unique(clock.numbers(self.times))
        # Values may be missing at the end, where the forecast has begun.
        if self.forecast is not None and clock.numbers(self.forecast.times)[-1] >= own[-1]:
            own = own[own <= clock.numbers(self.when[-1:])]
        grid = np.union1d(own, np.linspace(own[0], own[-1], _EVEN))
        when = pd.Index(clock.times(grid))
        mean, std = self.model.predict(when, return_std=True)
        law = predictive_law(self.model)
        noise = np.square(self.model.noise_std(when)) / law.variance
        half = half_widths(law, np.square(std), noise, self.coverage)
        return Forecast(when, mean, std, mean - half, mean + half)

    def figure(self, curve: Forecast, rows: Rows, when: pd.Index, y_range: Range | None, **options: Any) -> go.Figure:
        """A figure of these rows, with the forecast."""
        options |= {"target": self.target, "axis": self.axis, "coverage": self.band, "forecast": self.forecast}
        return series_figure(curve, rows, when, y_range=y_range, **options)


def write_series_report(path: str | os.PathLike[str], model: RCGPSeries, t: Any, y: Any, **options: Any) -> None:
    """Write :func:`series_html` to a file, completely or not at all; its folder must exist."""
    write_page(path, lambda: series_html(model, t, y, **options))


def series_html(
    model: RCGPSeries,
    t: Any,
    y: Any,
    *,
    target: str,
    time: str = "time",
    forecast: Forecast | None = None,
    coverage: float = 0.95,
    rows: Sequence[object] | None = None,
    notices: Iterable[str] = (),
) -> str:
    """The page as a string.

    Args:
        model: fitted series of one column.
        t, y: ``n`` times and values, as in the fit; NaN is a missing value.
        target, time: names of y and t.
        forecast: what ``model.forecast`` returned, with the same coverage.
        coverage: of the band.
        rows: names of the rows. Default: their numbers from 1.
        notices: sentences for the reader.

    Raises:
        ValueError: for a model of several columns, and numbers of rows that do not agree.
    """
    when, values = pd.Index(t), np.asarray(y, dtype=np.float64)
    if model.n_outputs_ != 1:
        raise ValueError(f"the page is about one column, the model has {model.n_outputs_}: fit them one by one")
    labels = tuple(range(1, len(when) + 1)) if rows is None else tuple(rows)
    if not len(when) == len(values) == len(labels):
        raise ValueError(f"t, y and rows must be of one length, got {len(when)}, {len(values)} and {len(labels)}")
    order = np.argsort(model.clock_.numbers(when), kind="stable")
    seen = order[~np.isnan(values[order])]
    forecast = None if forecast is None else forecast._replace(times=pd.Index(forecast.times))
    every = rows_of(model, when, values, labels)
    fit = _Fit(model, when, values, target, time, coverage, forecast, every.take(seen), when[seen])
    sections = [_series_section(fit)]
    if forecast is not None:
        sections.append(_forecast_section(fit))
    sections.append(_component_section(fit))
    sections += law_section(model, fit.rows, model.noise_std(fit.when))
    sections.append(_row_section(fit))
    return page_html(target, _summary(fit), notices, sections, _fit_table(model))


def series_rows(model: RCGPSeries, t: Any, y: Any, labels: Sequence[object]) -> Rows:
    """The rows of a series of one column that are not missing, in the order of the fit, with their names."""
    values = np.asarray(y, dtype=np.float64)
    return rows_of(model, t, values, tuple(labels)).take(np.flatnonzero(~np.isnan(values)))


def gap_text(model: RCGPSeries, length: float) -> str:
    """A length of time as people read it: 5 min, 1.5 D; a number where times are numbers."""
    if not model.clock_.dates:
        return number(length)
    value, unit = Duration(length).in_unit
    return f"{number(value)} {unit.replace('us', 'µs')}"


def _summary(fit: _Fit) -> str:
    missing = int(np.isnan(fit.y).sum())
    weak = f"Time hardly predicts {fit.target}: a constant would do nearly as well."
    first, last = (for_html(time) for time in times([fit.times.min(), fit.times.max()]))
    lead = f"A robust Gaussian process of <strong>{for_html(fit.target)}</strong> over time, from {first} to {last}."
    card = "rows", f"{len(fit.y):,}", f"{missing:,} without a value" if missing else "no value is missing"
    return fit_summary(fit.model, fit.rows, [fit.scores], weak, lead, card)


def _series_section(fit: _Fit) -> Section:
    rows, curve = fit.rows, fit.curve
    good = int((~rows.flagged).sum())
    y_range = _frame(fit, rows)
    stretches, missing = _missing_stretches(fit)
    words = (
        f"The line is the expected value; the band holds a value that is not an outlier with {fit.band} probability. "
        f"Drag across the figure, or move the ends of the strip below it, to look closer; double-click to see all."
    )
    if good > MOST_DRAWN or len(curve.times) > MOST_DRAWN:
        words += (
            f" Of {counted(good, 'value')} that are not flagged the lowest and highest of each stretch are drawn, and "
            "so are those of line and band; flagged values are all drawn."
        )
    if len(missing) < stretches:
        words += f" The {len(missing)} longest of {stretches:,} stretches of missing values are shaded."
    elif missing:
        words += " Missing values are shaded."
    figure = fit.figure(curve, rows, fit.when, y_range, missing=missing)
    panel = Panel("fit", figure, f"{fit.target} over time, with flagged values", size="whole tall")
    return Section("fit", "The series", words + _beyond(rows, y_range), (panel,))


def _forecast_section(fit: _Fit) -> Section:
    """The forecast beside the end of the series, at least twice as long."""
    ahead, clock = fit.forecast, fit.model.clock_
    assert ahead is not None
    end = clock.numbers(ahead.times)
    before = clock.numbers(fit.when)
    recent = max(min(int(np.searchsorted(before, before[-1] - 2.0 * (end[-1] - before[-1]))), len(before) - 20), 0)
    chosen = np.arange(recent, len(before))
    grid = clock.numbers(fit.curve.times)
    first = int(np.searchsorted(grid, before[recent]))
    curve, rows = Forecast(*(part[first:] for part in fit.curve)), fit.rows.take(chosen)
    y_range = _frame(fit, rows)
    figure = fit.figure(curve, rows, fit.when[chosen], y_range, slider=False)
    count, step = len(end), float(end[0] - before[-1]) if len(end) == 1 else float(end[1] - end[0])
    last = times(ahead.times)[-1]
    words = (
        f"{counted(count, 'step')} of {gap_text(fit.model, step)}, to {for_html(last)}. The band holds a new value "
        f"that is not an outlier with {fit.band} probability.{_beyond(rows, y_range)}"
    )
    ends = {"lower end": ahead.lower, "upper end": ahead.upper}
    parts = {"expected": ahead.mean, **{f"{fit.band} interval, {end}": y for end, y in ends.items()}}
    lines = [(name, [number(y[0]), number(y[-1])]) for name, y in parts.items()]
    table = facts_table(["", "first step", "last step"], lines)
    return Section("forecast", "The forecast", words, (Panel("forecast", figure, f"Forecast of {fit.target}"),), table)


def _component_section(fit: _Fit) -> Section:
    """A panel for each component, and its range; a level that is constant is a number."""
    clock, curve, panels, lines = fit.model.clock_, fit.curve, list[Panel](), list[tuple[str, list[str]]]()
    grid = clock.numbers(curve.times)
    parts, words = fit.model.components(curve.times), ""
    periods = dict(zip(fit.model.component_names_[3:], fit.model.periods, strict=True))
    for i, part in enumerate(parts):
        lines.append((part.name, [number(float(part.mean.min())), number(float(part.mean.max()))]))
        if part.name == "level" and np.ptp(part.mean) <= 1e-9 * np.abs(part.mean).max():
            words = f" The level is {number(float(part.mean[0]))} throughout."
            continue
        when, cut = curve.times, ""
        length = clock.length(periods[part.name], "period") if part.name in periods else np.inf
        if grid[-1] - grid[0] > _MOST_CYCLES * length:
            when = clock.times(grid[-1] - _LAST_CYCLES * length * np.linspace(1.0, 0.0, _EVEN + 1))
            part, cut = fit.model.components(when)[i], ", last four cycles"
        figure = component_figure(when, part.mean, part.std, part.name, cut, fit.target)
        panels.append(Panel(f"component-{i}", figure, f"Component {part.name}{cut}", size="strip"))
    words = f"The expected value is the sum of these parts, each with its 95 % band and on its own scale.{words}"
    table = facts_table(["component", "lowest", "highest"], lines)
    return Section("components", "Components", words, tuple(panels), table)


def _row_section(fit: _Fit) -> Section:
    chosen = listed_rows(fit.rows)
    at = fit.when[chosen]
    further = [(fit.axis, times(at), fit.model.clock_.numbers(at))]
    return row_section(fit.rows, row_table(fit.rows.take(chosen), further, before=1))


def _fit_table(model: RCGPSeries) -> str:
    """Outcome of the fit, and its hyperparameters."""
    lines = [(name, [value]) for name, value in facts_of(model.fit_report_).items()]
    for name, values in model.fit_report_.hyperparameters.items():
        lines.append((name, [", ".join(gap_text(model, v) if isinstance(v, Duration) else number(v) for v in values)]))
    return facts_table(["", "robust GP"], lines)


def _frame(fit: _Fit, rows: Rows) -> Range | None:
    """The frame of a figure, if flagged values would squeeze all others into a line."""
    kept = [rows.observed[~rows.flagged], fit.curve.mean, *(() if fit.forecast is None else (fit.forecast.mean,))]
    inside = np.concatenate(kept)
    if frame_of(np.concatenate([inside, rows.observed]), inside) is None:
        return None
    span = np.ptp(inside)
    near = np.append(inside, rows.observed[np.abs(rows.observed - inside.mean()) <= 3.0 * span])
    low, high = float(near.min()), float(near.max())
    return low - 0.15 * (high - low), high + 0.15 * (high - low)


def _beyond(rows: Rows, y_range: Range | None) -> str:
    """A sentence on flagged values beyond the frame."""
    return beyond(rows.observed[rows.flagged], y_range, "flagged value")


def _missing_stretches(fit: _Fit) -> tuple[int, list[tuple[Any, Any]]]:
    """How many stretches of missing values there are, and the first and last time of the longest of them."""
    clock = fit.model.clock_
    numbers = clock.numbers(fit.times)
    order: Positions = np.argsort(numbers, kind="stable")
    at, gone = numbers[order], np.isnan(fit.y[order])
    edges = np.diff(np.concatenate([[0], gone.astype(np.int8), [0]]))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    # To half of the way to the values around it, so that a single missing value has a width.
    low = 0.5 * (at[first] + at[np.maximum(first - 1, 0)])
    high = 0.5 * (at[last] + at[np.minimum(last + 1, len(at) - 1)])
    longest = np.sort(np.argsort(low - high, kind="stable")[:MOST_STRETCHES])
    if not len(longest):
        return 0, []
    return len(first), list(zip(clock.times(low[longest]), clock.times(high[longest]), strict=True))
