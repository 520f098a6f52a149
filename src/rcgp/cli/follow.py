"""``rcgp series --follow``: new values from standard input, one JSON line for each on standard output.

A row is ``time,value``, as in a CSV file without a header; an empty value is a missing one. A row that cannot be read
gives a line with an error, and changes nothing.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console

from rcgp.cli.fitting import csv_format
from rcgp.cli.options import SeriesOptions
from rcgp.estimator.series import RCGPSeries
from rcgp.series import Stream
from rcgp.table import CsvFormat, TableError
from rcgp.table.encoding import printable
from rcgp.table.series import number_of, time_of

__all__ = ["follow", "judge_lines"]


def follow(model: RCGPSeries, options: SeriesOptions, messages: Console) -> None:
    """Judge the rows of standard input until it ends or the user interrupts."""
    stream = model.stream(options.coverage)
    assert isinstance(stream, Stream)
    names = [options.time or "", *(options.target or [""])]
    messages.print("reading rows 'time,value' from standard input", markup=False)
    try:
        judge_lines(stream, sys.stdin.buffer, sys.stdout, csv_format(options), names)
    except KeyboardInterrupt:
        messages.print("interrupted")


def judge_lines(
    stream: Stream, lines: Iterable[bytes], output: TextIO, form: CsvFormat, names: Iterable[str] = ()
) -> None:
    """Write one JSON line for each row, at once: time, value, and what :meth:`Stream.update` says of it.

    Blank lines, and a first line that is the header, are skipped. A row that cannot be read or is refused gives
    ``{"error": ..., "line": ...}``, and the stream goes on.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = _decoded(line, form.encoding or "utf-8").removeprefix("\ufeff" if number == 1 else "")
            if not text.strip():
                continue
            time, value = _cells(text.rstrip("\r\n"), form)
            if number == 1 and [time.strip(), value.strip()] == list(names):
                continue
            answer = _judged(stream, time, value, form)
        except ValueError as error:  # a TableError is one
            answer = {"error": printable(" ".join(str(error).split())), "line": number}
        output.write(json.dumps(answer) + "\n")
        output.flush()


def _decoded(line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeError:
        raise TableError(f"the row is not text in {encoding.upper()}") from None


def _cells(text: str, form: CsvFormat) -> list[str]:
    """The two cells of a row."""
    separator = form.separator or ","
    try:
        (cells,) = csv.reader([text], delimiter=separator, strict=True, skipinitialspace=True)
    except csv.Error as error:
        raise TableError(f"the row cannot be read: {error}; is a quotation mark left open?") from None
    if len(cells) != 2:
        raise TableError(f"a row must be 'time{separator}value', got {len(cells)} cell{'s' if len(cells) > 1 else ''}")
    return cells


def _judged(stream: Stream, time: str, value: str, form: CsvFormat) -> dict[str, Any]:
    """The row, and what the stream says of it."""
    clock = stream.clock
    assert clock is not None
    when = time_of(time, form, dates=clock.dates, zoned=clock.zone is not None)
    y = number_of(value, form)
    result = stream.update(when, y)
    return {
        "time": time.strip() if clock.dates else when,
        "value": None if math.isnan(y) else y,
        **result._asdict(),
        "probability": None if math.isnan(result.probability) else result.probability,
    }
