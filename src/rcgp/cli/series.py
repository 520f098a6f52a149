"""The command ``rcgp series``: from a table with times to a summary, a page, a forecast, or a judge of new values."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console

import rcgp
from rcgp.cli.fitting import csv_format
from rcgp.cli.follow import follow
from rcgp.cli.options import SeriesOptions, many
from rcgp.cli.progress import quiet_fit
from rcgp.cli.results import (
    error_fact,
    noise_fact,
    number,
    optimiser_fact,
    print_columns,
    print_doubts,
    print_notices,
    print_rows,
    suspicion,
    verdict_facts,
    verdict_json,
    write_table,
)
from rcgp.estimator import FLAG_RULE
from rcgp.estimator.series import MOST_STEPS, Forecast, RCGPSeries
from rcgp.report.series import gap_text, series_rows, write_series_report
from rcgp.report.summary import Rows
from rcgp.report.text import times
from rcgp.series.clock import duration
from rcgp.table import TableError, read_series, read_table
from rcgp.table.encoding import printable, shown

__all__ = ["FittedSeries", "run_series"]

_STEPS_SHOWN = 10


@dataclass(frozen=True)
class FittedSeries:
    """A fitted series of one target, with notices for the user.

    Attributes:
        y: ``n`` values, NaN where one is missing, with the numbers of their rows.
        rows: those that are not missing, as the model sees them.
    """

    model: RCGPSeries
    times: pd.Index
    y: pd.Series[float]
    rows: Rows
    forecast: Forecast | None
    notices: list[str]


def run_series(data: Path | None, options: SeriesOptions, results: Console, messages: Console) -> None:
    """Run ``rcgp series`` with these options."""
    if data is None:
        if not options.follow or options.model is None:
            raise typer.BadParameter("is missing; only --follow with --model does without", param_hint=["DATA"])
        follow(_loaded(options.model), options, messages)
        return
    fitted = fit_series(data, options, messages)
    print_notices(fitted[0].notices, messages)
    written = _write_files(fitted, options, messages)  # before printing, which a closed pipe ends
    for one in fitted:
        if options.as_json:
            typer.echo(json.dumps(_as_json(one, options.top), ensure_ascii=False))
        else:
            _print_series(one, messages if options.follow else results, options.top)
        print_doubts(one.model.doubts_, messages)
    for sentence in written:
        messages.print(sentence, markup=False, soft_wrap=True)
    if options.follow:
        follow(fitted[0].model, options, messages)


def fit_series(data: Path, options: SeriesOptions, console: Console) -> list[FittedSeries]:
    """Read a table and fit each target.

    Raises:
        TableError: for a table that cannot be read or fitted.
        typer.BadParameter: for options that are missing or do not suit the times.
    """
    targets = options.target or []
    if options.time is None or not targets:
        raise typer.BadParameter("is missing", param_hint=["--target" if options.time else "--time"])
    form = csv_format(options)
    series = read_series(read_table(data, form), options.time, targets, options.missing, form)
    dates = isinstance(series.times, pd.DatetimeIndex)
    periods = [_length(text, "--period", dates) for text in options.period or ()]
    horizon = None if options.forecast is None else _horizon(options.forecast, dates)
    fitted = []
    for target in targets:
        y = series.values[target]
        model = RCGPSeries(periods=periods, local_noise=options.local_noise, stuck=options.stuck, random_state=0)
        title = f"Fitting {many(len(y))} values of {printable(target, 40)}"
        quiet_fit(model, series.times, y, y.dropna(), console, title)
        forecast = None if horizon is None else _forecast(model, horizon, options.coverage)
        rows = series_rows(model, series.times, y, tuple(y.index))
        fitted.append(FittedSeries(model, series.times, y, rows, forecast, series.notices))
    return fitted


def _loaded(path: Path) -> RCGPSeries:
    """A saved series. Raises TableError if the file holds another model."""
    model: Any = rcgp.load(path)
    if not isinstance(model, RCGPSeries):
        raise TableError(f"{str(path)!r} holds a {type(model).__name__}, not a series: 'rcgp series --model' saves one")
    if model.n_outputs_ > 1:
        raise TableError(
            f"{str(path)!r} has {model.n_outputs_} columns; follow each of them in Python: model.streams()"
        )
    return model


def _length(text: str, option: str, dates: bool) -> Any:
    """A length of time: a duration as it is written for dates, a number for numbers."""
    try:
        if dates:
            duration(text, option)
            return text
        if (length := float(text)) > 0.0 and np.isfinite(length):
            return length
    except ValueError:
        pass
    wanted = "a duration such as 1D, 12h or 30min" if dates else "a positive number, as the times are numbers"
    raise typer.BadParameter(f"must be {wanted}, got {shown(text)}", param_hint=[option])


def _horizon(text: str, dates: bool) -> Any:
    """How far to forecast: a length of time, or a number of steps."""
    if match := re.fullmatch(r"\s*(\d+)\s*steps?\s*", text):
        steps = int(match[1])
        if not 1 <= steps <= MOST_STEPS:
            raise typer.BadParameter(f"must be 1 to {many(MOST_STEPS)} steps, got {steps}", param_hint=["--forecast"])
        return steps
    return _length(text, "--forecast", dates)


def _forecast(model: RCGPSeries, horizon: Any, coverage: float) -> Forecast:
    try:
        model.forecast_numbers(horizon)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=["--forecast"]) from None
    return model.forecast(horizon, coverage)


def typical_gap(model: RCGPSeries) -> float:
    """The median gap between the times of values, in the unit of the clock; the step of a forecast."""
    numbers = model.forecast_numbers(2)
    return float(numbers[1] - numbers[0])


def _suspicion(fitted: FittedSeries) -> pd.DataFrame:
    """Every row with a value, the most suspicious first."""
    seen = fitted.y.notna().to_numpy()
    when = pd.Series(times(fitted.times[seen]), fitted.y.index[seen], dtype=object)
    rows = suspicion(fitted.model, fitted.y).dropna(subset="observed")
    rows.insert(1, "time", when.loc[rows["row"]].to_numpy())
    return rows


def _print_series(fitted: FittedSeries, console: Console, shown_rows: int) -> None:
    """The series, its leave-one-out error, its noise law, the most suspicious rows and the ends of the forecast."""
    model, rows = fitted.model, fitted.rows
    zone = model.clock_.zone
    missing = len(fitted.y) - len(rows.label)
    first, last = times([fitted.times.min(), fitted.times.max()])
    facts = (
        ("target", printable(fitted.y.name)),
        ("rows", f"{many(len(fitted.y))}, {many(missing)} without a value" if missing else many(len(fitted.y))),
        ("span", f"{first} to {last}{f' ({zone})' if zone else ''}, typical gap {gap_text(model, typical_gap(model))}"),
        noise_fact(model.noise_std(fitted.times), "in time"),
        error_fact(rows.residual),
        *verdict_facts(model, rows),
        optimiser_fact(model),
    )
    print_columns(facts, console)
    if shown_rows:
        console.print("\nMost suspicious rows, predicted from all others:")
        print_rows(_suspicion(fitted).head(shown_rows), console)
    if fitted.forecast is not None:
        _print_forecast(fitted.forecast, console)
    console.print()


def _print_forecast(forecast: Forecast, console: Console) -> None:
    """The forecast; of a long one evenly spaced steps."""
    count = len(forecast.mean)
    chosen = np.unique(np.linspace(0, count - 1, _STEPS_SHOWN).round().astype(int))
    some = "" if count <= _STEPS_SHOWN else f", {len(chosen)} of its {many(count)} steps"
    console.print(f"\nForecast{some}:")
    lines = [["time", "expected", "lower", "upper"]]
    for i, text in zip(chosen, np.array(times(forecast.times))[chosen], strict=True):
        lines.append([text, *(number(part[i]) for part in (forecast.mean, forecast.lower, forecast.upper))])
    print_columns(lines, console, right=range(4), head=True)


def _as_json(fitted: FittedSeries, top: int) -> dict[str, Any]:
    """A fitted series as JSON: all flagged rows, and further suspicious ones up to ``top``."""
    model, rows = fitted.model, _suspicion(fitted)
    listed = rows.head(max(top, int(model.outliers_.sum())))
    listed = listed.assign(time=_iso(fitted.times[fitted.y.index.get_indexer(pd.Index(listed["row"]))]))
    ahead = fitted.forecast
    steps = [] if ahead is None else zip(_iso(pd.Index(ahead.times)), *map(np.ndarray.tolist, ahead[1:]), strict=True)
    first, last = _iso(pd.Index([fitted.times.min(), fitted.times.max()]))
    return {
        "target": fitted.y.name,
        "values": len(fitted.y),
        "missing": int(fitted.y.isna().sum()),
        "first": first,
        "last": last,
        "typical_gap": typical_gap(model),
        "flag_rule": FLAG_RULE,
        **verdict_json(model, fitted.rows),
        "rows": listed.to_dict(orient="records"),
        "forecast": [dict(zip(("time", *Forecast._fields[1:]), step, strict=True)) for step in steps],
        "notices": fitted.notices,
    }


def _iso(index: pd.Index) -> list[Any]:
    """Dates as ISO 8601, with the offset of their zone if they have one; numbers as they are."""
    return [when.isoformat() for when in index] if isinstance(index, pd.DatetimeIndex) else index.tolist()


def _write_files(fitted: list[FittedSeries], options: SeriesOptions, messages: Console) -> list[str]:
    """Write those of the page, the table of predictions and the model that the options name; a sentence for each."""
    written = []
    one = fitted[0]
    if options.output is not None:
        with messages.status("Drawing the page"):
            write_series_report(
                options.output,
                one.model,
                one.times,
                one.y,
                target=str(one.y.name),
                time=str(one.times.name),
                forecast=one.forecast,
                coverage=options.coverage,
                rows=tuple(one.y.index),
                notices=one.notices,
            )
        size = options.output.stat().st_size / 1e6
        written.append(f"report written to {options.output} ({size:.1f} MB): open it in a browser")
    if options.predictions is not None:
        table = pd.concat([_predictions(part, options.coverage, len(fitted) > 1) for part in fitted], ignore_index=True)
        write_table(table, options.predictions)
        written.append(f"{many(len(table))} predictions written to {options.predictions}")
    if options.model is not None:
        one.model.save(options.model)
        written.append(f"model saved in {options.model}")
    return written


def _predictions(fitted: FittedSeries, coverage: float, named: bool) -> pd.DataFrame:
    """Predictions at the time of each row, and the forecast, whose rows have neither number nor value."""
    model, index, seen = fitted.model, fitted.times, fitted.y.notna().to_numpy()
    mean, std = model.predict(index, return_std=True)
    lower, upper = model.predict_interval(index, coverage)
    rows: dict[str, Any] = {"row": pd.Series(fitted.y.index, dtype="Int64"), "time": index}
    rows |= {"observed": fitted.y.to_numpy(), "mean": mean, "std": std, "lower": lower, "upper": upper}
    rows["outlier"] = pd.Series(model.outliers_, dtype="boolean").where(seen)
    table = pd.DataFrame(rows)
    if fitted.forecast is not None:
        ahead = pd.DataFrame(fitted.forecast._asdict()).rename(columns={"times": "time"})
        every: list[pd.DataFrame] = [table, ahead.assign(observed=np.nan)]
        table = pd.concat(every, ignore_index=True)[list(rows)]
    if named:
        table.insert(0, "target", str(fitted.y.name))
    return table
