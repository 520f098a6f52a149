"""The cells of one column: missing ones, the kind of the column, and values.

A pandas column (text from CSV, Arrow types from Parquet, numpy arrays) becomes an Arrow array of numbers, timestamps or
text. Text is matched by our own patterns: Python's ``float`` accepts ``1_000``, and pandas has its own missing values,
guesses the order of day and month cell by cell, and has no years before 1677.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rcgp.table.encoding import CsvFormat, Kind, TableError, printable, shown

__all__ = [
    "MISSING",
    "MISSING_AMONG_NUMBERS",
    "NUMBER",
    "Cells",
    "cast",
    "date_advice",
    "day_of",
    "days_as_formatted",
    "named_cells",
    "number_advice",
]

#: Texts, in lower case, for a missing value: in any column, and in columns of numbers or dates.
MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null")
MISSING_AMONG_NUMBERS = ("none", "-", "–", "—", "?")

NUMBER = r"^[+−-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+−-]?[0-9]+)?$"
_INFINITE = r"^[+−-]?(?i:inf|infinity|∞)$"
#: 1,5 or 1,234.5 or 1.234,5: an ambiguous number.
_WITH_COMMA = r"^[+−-]?([0-9]*(,[0-9]+)+(\.[0-9]*)?|[0-9]{1,3}(\.[0-9]{3})+,[0-9]*)$"
#: 1 234,5 or 1'234.5; not 030 123 456, which is a telephone number.
_WITH_GAPS = "^[+−-]?[1-9][0-9]{0,2}([ '’\u00a0\u202f][0-9]{3})+([.,][0-9]*)?$"
#: $10.50, 12 € or 15%.
_WITH_SYMBOL = r"^[+−-]?([$€£¥]\s*[0-9.,]*[0-9][0-9.,]*|[0-9.,]*[0-9][0-9.,]*\s*[$€£¥%])$"
#: 12 kg or 3.5m/s.
_WITH_UNIT = r"^[+−-]?[0-9][0-9.,]*\s*(?P<unit>[A-Za-zµ°][A-Za-zµ°²³/]*)$"

#: Cells named in a notice; of more, only the number is given.
_NAMED = 5
_DROP = "correct it, or use --missing drop to leave such rows out"

#: Day and month, or month and day.
_AMBIGUOUS_DATE = r"^[0-9]{1,2}(/[0-9]{1,2}/([0-9]{2}|[0-9]{4})|[.-][0-9]{1,2}[.-][0-9]{4})([T ,]|$)"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_YEAR, _MONTH, _DAY = r"(?P<year>[0-9]{4})", r"(?P<month>[0-9]{1,2})", r"(?P<day>[0-9]{1,2})"
_MONTH_NAME = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
_TIME = (
    r"(?:(?:T|,? )(?P<hour>[01]?[0-9]|2[0-3]):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9](?:\.[0-9]+)?|60))?"
    r"(?: ?(?:Z|UTC|(?P<sign>[+-])(?P<zone_hour>[01][0-9]|2[0-3]):?(?P<zone_minute>[0-5][0-9])?))?)?$"
)
#: Unambiguous forms of dates.
_DATES = (
    f"^{_YEAR}-{_MONTH}-{_DAY}{_TIME}",
    f"^{_YEAR}/{_MONTH}/{_DAY}{_TIME}",
    rf"^{_YEAR}\.{_MONTH}\.{_DAY}{_TIME}",
    f"^{_YEAR}-{_MONTH}(?P<day>){_TIME}",  # a month is its first day
    f"^{_DAY}[ -]{_MONTH_NAME}[ -]{_YEAR}{_TIME}",
    f"^{_MONTH_NAME} {_DAY},? {_YEAR}{_TIME}",
    f"^{_YEAR}[ -]{_MONTH_NAME}[ -]{_DAY}{_TIME}",
)


@dataclass(frozen=True)
class Cells:
    """The cells of one column.

    Attributes:
        name: of the column, for messages.
        values: ``n`` Arrow numbers, dates, timestamps, or texts without spaces around them; null where missing.
        rows: ``n`` row numbers, for messages.
        form: how numbers and dates are written.
    """

    name: str
    values: pa.Array
    rows: pd.Index
    form: CsvFormat

    @classmethod
    def of(cls, column: pd.Series, name: str, form: CsvFormat) -> Cells:
        """The cells of a pandas column. Raises TableError for types that are neither number, date nor text."""
        try:
            values = pa.Array.from_pandas(column)
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            return cls(name, _cleaned(values), column.index, form)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            kind = getattr(column.dtype, "pyarrow_dtype", column.dtype)
            what = "values of mixed types" if kind == np.dtype(object) else f"values of type {shown(str(kind))}"
            remedy = "which are neither numbers, dates nor text: leave it out with --exclude"
            raise TableError(f"column {shown(name)} holds {what}, {remedy}") from None

    def missing(self) -> NDArray[np.bool_]:
        """Which of the ``n`` cells hold no value."""
        mask: NDArray[np.bool_] = self.values.is_null().to_numpy(zero_copy_only=False)
        return mask

    def codes(self) -> list[str]:
        """Two different texts with a zero in front, if all are digits of one length, as codes are: 00531, 08130.

        Two digits may be an hour or a month, which are numbers.
        """
        if not (pa.types.is_string(self.values.type) or pa.types.is_large_string(self.values.type)):
            return []
        texts = self.values.drop_null()
        lengths = pc.min_max(pc.utf8_length(texts)).as_py()
        digits = pc.all(pc.match_substring_regex(texts, "^[0-9]{3,}$")).as_py()
        if not digits or lengths["min"] != lengths["max"]:
            return []
        found: list[str] = texts.filter(pc.starts_with(texts, "0")).unique()[:2].to_pylist()
        return found

    def looks_like_dates(self) -> str:
        """A notice if all cells, none missing, are texts such as 20240131; else empty."""
        if not self._is_text() or not pc.all(pc.match_substring_regex(self.values, "^(19|20)[0-9]{6}$")).as_py():
            return ""
        dates = not np.isnan(days_as_formatted(self.values, "%Y%m%d")).any()
        return "numbers that look like dates; --date-format %Y%m%d reads them as dates" if dates else ""

    def where(self, keep: NDArray[np.bool_]) -> Cells:
        """The cells of some of the rows."""
        return replace(self, values=self.values.filter(pa.array(keep)), rows=self.rows[keep])

    def without(self, bad: NDArray[np.bool_]) -> Cells:
        """The same with some of the cells missing."""
        return replace(self, values=pc.if_else(pa.array(bad), pa.scalar(None, self.values.type), self.values))

    def kind(self) -> Kind:
        """What at least half of the cells hold, so that bad cells do not make numbers a category.

        Missing cells do not count.
        """
        if not self._is_text():
            return "date" if pa.types.is_temporal(self.values.type) else "number"
        text = self.values.drop_null()
        if self.form.date_format and _most(~np.isnan(days_as_formatted(text, self.form.date_format))):
            return "date"
        if cast(self._pointed(), pa.float64()) is not None or _most(_look_like_numbers(text)):
            return "number"
        if _most(_look_like_dates(text)):
            return "date"
        return "number" if _share_a_unit(text) else "category"

    def read(self, kind: Literal["number", "date"]) -> NDArray[np.float64]:
        """The ``n`` cells as finite numbers or as days since 1970-01-01; NaN where one is missing or neither.

        Raises TableError if the column has another type.
        """
        temporal = pa.types.is_temporal(self.values.type)
        if not self._is_text() and temporal != (kind == "date"):
            self._refuse_type("dates" if kind == "date" else "numbers")
        if kind == "date":
            days = np.full(len(self.values), np.nan)
            days[~self.missing()] = self._days(self.values.drop_null())
            return days
        values = self.values
        if self._is_text():
            text = self._pointed()
            values = cast(text, pa.float64())
            if values is None:
                fits = pc.match_substring_regex(text, NUMBER)
                values = pc.if_else(fits, text, pa.scalar(None, pa.string())).cast(pa.float64())
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.where(np.isfinite(numbers), numbers, np.nan)

    def bad(self, kind: Literal["number", "date"]) -> NDArray[np.bool_]:
        """Which of the ``n`` cells hold a value that is not one of this kind."""
        return np.isnan(self.read(kind)) & ~self.missing()

    def require(self, kind: Literal["number", "date"]) -> NDArray[np.float64]:
        """As :meth:`read` for cells without missing values. Raises TableError naming the first bad cell."""
        values = self.read(kind)
        bad = np.isnan(values)
        if bad.any():
            self.refuse(bad, kind)
        return values

    def texts(self) -> pa.Array:
        """The ``n`` cells as names of categories; true and false in lower case, as different programs write them."""
        if not self._is_text():
            self._refuse_type("text")
        truth = pc.match_substring_regex(self.values, "^(?i:true|false)$")
        return pc.if_else(truth, pc.utf8_lower(self.values), self.values)

    def row(self, position: int) -> str:
        """Where a cell is, for messages: ``row 3 of column 'size'``."""
        return f"row {self.rows[position]} of column {shown(self.name)}"

    def refuse(self, bad: NDArray[np.bool_], kind: Literal["number", "date"]) -> NoReturn:
        """Raise TableError naming the first bad cell, and what to write instead."""
        first, count = int(bad.argmax()), np.count_nonzero(bad)
        cell = str(self.values[first].as_py())
        wanted, advice = date_advice(cell) if kind == "date" else number_advice(cell, self.form.decimal == ",")
        others = f" ({count} of its {len(bad)} cells are not)" if count > 1 else ""
        raise TableError(f"{self.row(first)} is {shown(cell)}, which is not {wanted}{others}: {advice}")

    def _refuse_type(self, wanted: str) -> NoReturn:
        training = f"but the model was trained with {wanted} there: convert the column"
        raise TableError(f"column {shown(self.name)} holds values of type {self.values.type}, {training}")

    def _is_text(self) -> bool:
        return bool(pa.types.is_string(self.values.type))

    def _pointed(self) -> pa.Array:
        """The texts with a decimal point for a decimal comma; a point then is no part of a number."""
        text = pc.replace_substring(self.values, "−", "-")
        if self.form.decimal != ",":
            return text
        return pc.replace_substring(pc.replace_substring(text, ".", "_"), ",", ".")

    def _days(self, values: pa.Array) -> NDArray[np.float64]:
        """Days since 1970-01-01 of values that are not missing; NaN where one is not a date."""
        if not self._is_text():
            return _days_of_timestamps(values)
        days = _days_of_texts(values)
        if self.form.date_format:
            formatted = days_as_formatted(values, self.form.date_format)
            days = np.where(np.isnan(formatted), days, formatted)
        return days


def named_cells(rows: pd.Index, values: Any, chosen: NDArray[np.bool_]) -> str:
    """The first chosen rows with their values, numbers or Arrow texts, and how many more there are."""
    places = chosen.nonzero()[0].tolist()
    some = [(rows[i], values[i]) for i in places[:_NAMED]]
    texts = [f"row {row} ({shown(str(v)) if isinstance(v, pa.Scalar) else format(v, 'g')})" for row, v in some]
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return ", ".join(texts) + more


def number_advice(cell: str, decimal_comma: bool) -> tuple[str, str]:
    """What a cell that is not a number should be, and a remedy."""
    finite = not decimal_comma and re.search(f"{NUMBER}|{_INFINITE}", cell)  # a number in form, beyond all floats
    advice = _DROP
    if re.search(_WITH_COMMA, cell) or re.search(_WITH_GAPS, cell):
        comma = "," in cell and "." not in cell.rpartition(",")[2]
        mark = "comma" if decimal_comma else "point"
        advice = f"write a decimal {mark} and no thousands separators"
        advice += ", or use --decimal ," if comma and not decimal_comma else ""
    elif re.search(f"[$€£¥%]|{_WITH_UNIT}", cell):
        advice = "write the number without its unit, or leave the column out with --exclude"
    elif decimal_comma and re.search(NUMBER, cell):
        advice = "write a decimal comma, or leave --decimal out"
    return "a finite number" if finite else "a number", advice


def date_advice(cell: str) -> tuple[str, str]:
    """What a cell that is not a date should be, and a remedy."""
    if not re.search(_AMBIGUOUS_DATE, cell):
        return "a date", f"write dates as 2024-12-31, name their form with --date-format, or {_DROP}"
    _, mark, _, _, year = re.split("([/.-])", cell.split()[0], maxsplit=2)
    form = f"%d{mark}%m{mark}{'%y' if len(year) == 2 else '%Y'}"
    return "an unambiguous date", f"write dates as 2024-12-31, or use --date-format '{form}'"


def _cleaned(values: pa.Array) -> pa.Array:
    """Numbers, dates and timestamps as they are, all else that can be read as trimmed text; null where missing."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_floating(kind):
        values = values.cast(pa.float64())
        return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return values
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    # Decimals go through their digits, which gives the nearest float; booleans are the categories false and true.
    if not any(is_kind(kind) for is_kind in (*texts, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)):
        raise TypeError(str(kind))
    text = values.cast(pa.string())
    numbers = cast(text, pa.float64())
    if numbers is not None and not pc.any(pc.is_nan(numbers)).as_py():
        return text  # nothing to trim, and nothing missing
    text = pc.utf8_trim_whitespace(text)
    lower, nothing = pc.utf8_lower(text), pa.scalar(None, pa.string())
    text = pc.if_else(pc.is_in(lower, pa.array(MISSING)), nothing, text)
    doubtful = pc.is_in(lower, pa.array(MISSING_AMONG_NUMBERS))
    if pc.any(doubtful).as_py():
        others = text.filter(pc.and_(pc.invert(doubtful), pc.is_valid(text)))
        if _most(_look_like_numbers(others)) or _most(_look_like_dates(others)):
            text = pc.if_else(doubtful, nothing, text)
    return text


def cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """All texts as another type; ``None`` if one of them cannot be."""
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


def _most(mask: NDArray[np.bool_]) -> bool:
    """Whether at least half of the cells are true; false without cells."""
    return bool(len(mask)) and bool(np.mean(mask) >= 0.5)


def _matches(text: pa.Array, *patterns: str) -> NDArray[np.bool_]:
    masks = [pc.match_substring_regex(text, pattern).to_numpy(zero_copy_only=False) for pattern in patterns]
    mask: NDArray[np.bool_] = np.logical_or.reduce(masks)
    return mask


def _look_like_numbers(text: pa.Array) -> NDArray[np.bool_]:
    """Which texts, none missing, are numbers, well written or not."""
    return _matches(text, "|".join((NUMBER, _INFINITE, _WITH_COMMA, _WITH_GAPS, _WITH_SYMBOL)))


def _share_a_unit(text: pa.Array) -> bool:
    """Whether at least half of the texts are numbers with the same unit, as in 12 kg, and more than two differ."""
    units = pc.extract_regex(text, _WITH_UNIT).drop_null().field("unit")
    most_common = Counter(units.to_pylist()).most_common(1)
    return bool(most_common) and 2 * most_common[0][1] >= len(text) and len(pc.unique(text)) > 2


def _look_like_dates(text: pa.Array) -> NDArray[np.bool_]:
    """Which texts are written as dates, even if ambiguous or not in the calendar."""
    return np.ones(len(text), dtype=bool) if _iso(text) is not None else _matches(text, *_DATES, _AMBIGUOUS_DATE)


def _iso(text: pa.Array) -> pa.Array | None:
    """Timestamps, if Arrow reads each text as one: ISO 8601, all without a zone or all with one."""
    without = cast(text, pa.timestamp("us"))
    return cast(text, pa.timestamp("us", "UTC")) if without is None else without


def _days_of_timestamps(values: pa.Array) -> NDArray[np.float64]:
    """Days since 1970-01-01 in UTC of Arrow dates and timestamps, none missing."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32()).to_numpy().astype(np.float64)  # type: ignore[no-any-return]
    unit = "ms" if pa.types.is_date64(values.type) else values.type.unit
    per_day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    # Exact for whole days in any unit: these have few enough digits for a float.
    return values.cast(pa.int64()).to_numpy() / per_day  # type: ignore[no-any-return]


def _days_of_texts(text: pa.Array) -> NDArray[np.float64]:
    """Days since 1970-01-01 in UTC, with fractions; NaN where a text, none missing, is not a date.

    Reads ISO 8601 dates and times (``2024-03-01``, ``2024-03-01T12:30:15.5+02:00``, ``2024-03``), the same with
    ``/`` or ``.`` between year, month and day, and English month names (``1 March 2024``, ``Mar 1, 2024``,
    ``01-Mar-2024``). A time without a zone is UTC. Exact to a microsecond in this century.
    """
    iso = _iso(text)
    if iso is not None:
        return _days_of_timestamps(iso)
    distinct = text.dictionary_encode()
    days: NDArray[np.float64] = np.array([day_of(cell) for cell in distinct.dictionary.to_pylist()])
    return days.take(np.asarray(distinct.indices))


def day_of(text: str) -> float:
    """Days since 1970-01-01 of one text; NaN if it is not a date, or one that the calendar does not have."""
    match = next((match for form in _DATES if (match := re.match(form, text))), None)
    if match is None:
        return np.nan
    part = {name: value or "0" for name, value in match.groupdict().items()}
    name = part["month"][:3].lower()
    try:
        month = _MONTHS.index(name) + 1 if name in _MONTHS else int(name)
        day = datetime.date(int(part["year"]), month, int(match["day"] or 1)) - datetime.date(1970, 1, 1)
    except ValueError:
        return np.nan
    seconds = 3600 * int(part["hour"]) + 60 * int(part["minute"]) + float(part["second"])
    east = 3600 * int(part["zone_hour"]) + 60 * int(part["zone_minute"])
    return day.days + (seconds + (east if part["sign"] == "-" else -east)) / 86_400


def days_as_formatted(text: pa.Array, date_format: str) -> NDArray[np.float64]:
    """Days since 1970-01-01 of texts, none missing, in this format; NaN where one is in another."""
    cells = text.to_pandas()
    try:
        when = pd.to_datetime(cells, format=date_format, errors="coerce", utc=True)
    except ValueError as error:
        raise TableError(f"--date-format {shown(date_format)} is not a format: {printable(error, 200)}") from None
    days = (when.dt.tz_localize(None).to_numpy("M8[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "D")
    # 123456 may be read by %Y%m%d as a day in the year 1234, but is not written so.
    same = ~_look_like_numbers(text) | (when.dt.strftime(date_format) == cells).to_numpy(dtype=bool)
    return np.where(same, days, np.nan)
