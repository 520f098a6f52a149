"""``rcgp series --follow``: new values from standard input, one JSON line for each on standard output.

A row is ``time,value``, as in a CSV file; an empty value is a missing one. A row that cannot be read gives a line with
an error, and changes nothing. So does a row that goes back in time, but a single wrong time, such as 2042 for 2024,
does not end the stream: see :class:`_Follower`.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console

from rcgp.cli.fitting import csv_format
from rcgp.cli.options import SeriesOptions
from rcgp.estimator.series import RCGPSeries
from rcgp.series import Stream
from rcgp.table import CsvFormat, TableError
from rcgp.table.encoding import printable, shown
from rcgp.table.series import number_of, time_of

__all__ = ["follow", "judge_lines"]


def follow(model: RCGPSeries, options: SeriesOptions, messages: Console) -> None:
    """Judge the rows of standard input until it ends or the user interrupts."""
    messages.print("reading rows 'time,value' from standard input", markup=False)
    names = options.time, (options.target or model.output_names_ or (None,))[0]
    try:
        judge_lines(model.stream(options.coverage), sys.stdin.buffer, sys.stdout, csv_format(options), names)
    except KeyboardInterrupt:
        messages.print("interrupted")


class _OrderError(TableError):
    """A header with the value before the time: no row can be trusted."""


def judge_lines(
    stream: Stream,
    lines: Iterable[bytes],
    output: TextIO,
    form: CsvFormat,
    names: tuple[str | None, str | None] = (None, None),
) -> None:
    """Write one JSON line for each row, at once: time, value, and the result of :meth:`Stream.update`.

    Blank lines are skipped, and so is a header: a first line of two cells that cannot be read. A row that cannot be
    read, is refused or is removed later gives ``{"error": ..., "line": ...}``, and the stream continues.

    Raises:
        TableError: for a header in which one of the names of time and value, if known, is in the other's place.
    """
    follower = _Follower(stream, form)
    for number, line in enumerate(lines, start=1):
        try:
            text = _decoded(line, form.encoding or "utf-8").removeprefix("\ufeff" if number == 1 else "")
            if not text.strip():
                continue
            time, value = _cells(text.rstrip("\r\n"), form)
            if number == 1 and follower.is_header(time, value):
                if value.strip() == names[0] or time.strip() == names[1]:
                    raise _OrderError(f"the header {shown(text.strip())} has the value first: rows must be time, value")
                continue
            answers = follower.update(time, value, number)
        except _OrderError:
            raise
        except ValueError as error:  # a TableError is one
            answers = [_error(error, number)]
        output.writelines(json.dumps(answer) + "\n" for answer in answers)
        output.flush()


class _Follower:
    """A stream that a single wrong time does not end.

    A row whose time is before that of the last row is refused: it is late, or the last row has a wrong time. If the
    next row, too, lies before the last one, and the two are in order and not before the row that preceded it, they are
    two against one: the last row is removed, and the stream continues with the new one. If both were late after all,
    two rows are lost, as without this rule.
    """

    def __init__(self, stream: Stream, form: CsvFormat) -> None:
        assert stream.clock is not None
        self._clock, self._stream, self._form = stream.clock, stream, form
        self._before: Stream | None = None  # the stream before the last row
        # Times of the row before the last one, of the last one, and of one that was refused since then.
        self._earlier, self._last, self._late = -math.inf, self._clock.number(stream.last_time), math.inf
        self._line = 0  # of the last row; 0 for the history

    def is_header(self, time: str, value: str) -> bool:
        """Whether neither cell can be read."""
        for read, text in ((self._time, time), (self._number, value)):
            with suppress(TableError):
                read(text)
                return False
        return True

    def update(self, time: str, value: str, line: int) -> list[dict[str, Any]]:
        """The row with its result; before it a notice, if the row before is removed.

        Raises:
            ValueError: for a row that cannot be read or is refused.
        """
        when, y = self._time(time), self._number(value)
        t, notices = self._clock.number(when), []
        if t < self._last:
            if self._before is None or t < self._late:
                self._late = t if t >= self._earlier else math.inf
                place = f"in line {self._line}" if self._line else "at the end of the history"
                raise ValueError(f"times must not decrease: {when} comes after {self._stream.last_time} {place}")
            notices = [_error(f"removed: its time, {self._stream.last_time}, is after the next two", self._line)]
            self._stream, self._last = self._before, self._earlier
        before = self._stream.copy()
        result = self._stream.update(when, y)
        self._before, self._earlier, self._last, self._late, self._line = before, self._last, t, math.inf, line
        probability = None if math.isnan(result.probability) else result.probability
        row = {"time": when if isinstance(when, float) else time.strip(), "value": None if math.isnan(y) else y}
        return [*notices, row | result._asdict() | {"probability": probability}]

    def _time(self, text: str) -> Any:
        return time_of(text, self._form, dates=self._clock.dates, zoned=self._clock.zone is not None)

    def _number(self, text: str) -> float:
        return number_of(text, self._form)


def _error(message: object, line: int) -> dict[str, Any]:
    return {"error": printable(" ".join(str(message).split())), "line": line}


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
