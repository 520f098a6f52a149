"""From a table to a series: a column of times, dates with or without a time zone or numbers, and columns of values.

A value may be missing, a time may not. Rows of a stream, one at a time, are read by the same rules.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from rcgp.table.cells import (
    MISSING,
    MISSING_AMONG_NUMBERS,
    NUMBER,
    Cells,
    cast,
    date_advice,
    day_of,
    days_as_formatted,
    number_advice,
)
from rcgp.table.encoding import CsvFormat, TableError, shown
from rcgp.table.features import (
    Missing,
    cells_of,
    check_columns,
    check_target,
    check_targets,
    target_values,
    without_bad,
)

__all__ = ["TimeSeries", "number_of", "read_series", "time_of"]

#: The zone after a time of day: Z, UTC, +02:00, -0530 or +01.
_ZONE = r":[0-9.:]*\s?(Z|UTC|[+-][0-9]{2}:?([0-9]{2})?)$"
_UTC = r"(Z|UTC|[+-]00:?(00)?)$"
#: Dates that a count of nanoseconds since 1970 can hold.
_FIRST, _LAST = np.datetime64("1678-01-01", "us"), np.datetime64("2262-01-01", "us")
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True)
class TimeSeries:
    """Times and values of ``n`` rows.

    Attributes:
        times: ``n`` numbers, or dates: in local time without a zone, else with theirs.
        values: ``n x targets``, NaN where a value is missing; the index holds the row numbers.
        notices: sentences for the user about what was done.
        dropped: how many rows were left out, as they have no time.
    """

    times: pd.Index
    values: pd.DataFrame
    notices: list[str]
    dropped: int


def read_series(
    table: pd.DataFrame, time: str, targets: Sequence[str], missing: Missing = "error", form: CsvFormat | None = None
) -> TimeSeries:
    """The times and values of a table. Empty cells of a target are missing values.

    Args:
        table: as :func:`rcgp.table.read_table` gives it.
        time: column of the times, numbers or dates.
        targets: columns of the values, numbers.
        missing: whether rows without a time are refused or left out. In the latter case, a cell that is not a number or
            date among at least as many that are counts as missing.
        form: how numbers and dates are written.

    Raises:
        TableError: for columns that do not exist, cells that are neither dates nor numbers, times with and without a
            time zone in one column, and a target that is constant or has fewer than two values.
    """
    check_columns(table)
    check_targets(targets)
    if time in targets:
        raise TableError(f"column {shown(time)} cannot be the time and the target: name another one")
    cells, notices = cells_of(table, [time, *targets], form or CsvFormat()), list[str]()
    for name, column in cells.items():
        if column.missing().all():
            raise TableError(f"column {shown(name)} has no values at all: fill it in, or name another column")
    kind = cells[time].kind()
    if kind == "category":
        cells[time].refuse(cells[time].bad("date"), "date")
    for name in targets:
        check_target(cells[name])
    if missing == "drop":
        cells = {
            name: without_bad(column, kind if name == time else "number", notices) for name, column in cells.items()
        }
    gap = cells[time].missing()
    count = int(np.count_nonzero(gap))
    if count and missing == "error":
        lack = f"has no time ({count} of {len(gap)} rows lack one)"
        remedy = "fill it in, or use --missing drop to leave such rows out"
        raise TableError(f"{cells[time].row(int(gap.argmax()))} {lack}: {remedy}")
    if count == len(gap):
        raise TableError(f"no cell of column {shown(time)} is a time")
    if count:
        cells = {name: column.where(~gap) for name, column in cells.items()}
        notices.append(f"{count} of {len(gap)} rows left out: they have no time")
    if kind == "number" and (dates := cells[time].looks_like_dates()):
        notices.append(f"column {shown(time)}: {dates}")
    times = _dates(cells[time], notices) if kind == "date" else pd.Index(cells[time].require("number"))
    values = pd.DataFrame({name: target_values(cells[name]) for name in targets}, index=cells[time].rows)
    return TimeSeries(times.rename(time), values, notices, count)


def time_of(text: str, form: CsvFormat, *, dates: bool, zoned: bool) -> float | datetime.datetime:
    """One time as those of a series: a number, or a date with the zone UTC or without one.

    Raises:
        TableError: for any other text.
    """
    cell = text.strip()
    if cell.lower() in (*MISSING, *MISSING_AMONG_NUMBERS):
        raise TableError("the time is missing")
    if not dates:
        return number_of(cell, form)
    day, has_zone = math.nan, bool(re.search(_ZONE, cell))
    if form.date_format:
        day = float(days_as_formatted(pa.array([cell]), form.date_format)[0])
        has_zone = has_zone if math.isnan(day) else "%z" in form.date_format
    day = day_of(cell) if math.isnan(day) else day
    if math.isnan(day):
        wanted, _ = date_advice(cell)
        raise TableError(f"the time {shown(cell)} is not {wanted}")
    if has_zone != zoned:
        have = ("has no time zone", "have one") if zoned else ("has a time zone", "have none")
        raise TableError(f"the time {shown(cell)} {have[0]}, and those of the history {have[1]}")
    if not _FIRST <= np.datetime64(round(day * 86_400), "s") < _LAST:
        raise TableError(f"the time {shown(cell)} is out of range: dates must be from 1678 to 2261")
    when = _EPOCH + datetime.timedelta(microseconds=round(day * 86_400e6))
    return when.replace(tzinfo=datetime.UTC) if zoned else when


def number_of(text: str, form: CsvFormat) -> float:
    """One number, NaN for a missing one. Raises TableError for any other text."""
    cell = text.strip()
    if cell.lower() in (*MISSING, *MISSING_AMONG_NUMBERS):
        return math.nan
    pointed = cell.replace("−", "-")
    if form.decimal == ",":
        pointed = pointed.replace(".", "_").replace(",", ".")
    value = float(pointed) if re.search(NUMBER, pointed) else math.nan
    if not math.isfinite(value):
        wanted, _ = number_advice(cell, form.decimal == ",")
        raise TableError(f"{shown(cell)} is not {wanted}")
    return value


def _dates(cells: Cells, notices: list[str]) -> pd.DatetimeIndex:
    """Dates, none missing, with their zone if they have one."""
    kind, days = cells.values.type, cells.require("date")
    if pa.types.is_timestamp(kind):
        unit = cast(cells.values, pa.timestamp("ns", kind.tz))
        when = np.full(len(days), "NaT", "M8[ns]") if unit is None else unit.cast(pa.int64()).to_numpy().view("M8[ns]")
        zone = kind.tz
    else:
        when = np.round(days * 86_400e6).astype("M8[us]")
        zone = None if pa.types.is_date(kind) else _zone(cells, notices)
    if (out := ~((when >= _FIRST) & (when < _LAST))).any():
        raise TableError(f"{cells.row(int(out.argmax()))} is out of range: dates must be from 1678 to 2261")
    index = pd.DatetimeIndex(when.astype("M8[ns]"))
    return index if zone is None else index.tz_localize("UTC").tz_convert(zone)


def _zone(cells: Cells, notices: list[str]) -> str | None:
    """The zone of dates that are texts: UTC, to which offsets are converted, or none."""
    text, form = cells.values, cells.form.date_format
    if not form and cast(text, pa.timestamp("us")) is not None:
        return None
    zoned = pc.match_substring_regex(text, _ZONE).to_numpy(zero_copy_only=False)
    if not form and cast(text, pa.timestamp("us", "UTC")) is not None:
        zoned = np.ones(len(text), dtype=bool)
    if form:
        zoned = np.where(np.isnan(days_as_formatted(text, form)), zoned, "%z" in form)
    if not zoned.any():
        return None
    if not zoned.all():
        first, other = int((~zoned).argmax()), int(zoned.argmax())
        has = f"row {cells.rows[other]} has one ({shown(text[other].as_py())})"
        remedy = "write all times with a zone, or all without"
        raise TableError(
            f"{cells.row(first)} is {shown(text[first].as_py())}, without a time zone, and {has}: {remedy}"
        )
    if form or not pc.all(pc.match_substring_regex(text, _UTC)).as_py():
        notices.append(f"column {shown(cells.name)}: times with an offset are converted to UTC")
    return "UTC"
