"""The cells of one column: which are missing, what kind of column they make, and their values.

Whatever pandas holds (text from CSV, Arrow types from Parquet, numpy arrays) becomes one of three Arrow arrays here:
numbers, timestamps or text. All work on text is done by Arrow in bulk, with patterns of our own: Python's ``float``
would take ``1_000``, and pandas decides for itself what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NoReturn, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rcgp.table.dates import AMBIGUOUS_DATE, days_from_text, days_from_timestamps, looks_like_a_date
from rcgp.table.errors import TableError, reason, shown
from rcgp.table.format import CsvFormat

__all__ = ["Cells", "Kind"]

Kind: TypeAlias = Literal["number", "date", "category"]

#: Texts, in lower case, that say that there is no value.
_MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null")
#: The same where the other cells are numbers or dates; among categories they may be one.
_MISSING_AMONG_NUMBERS = ("none", "-", "?")
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITE = r"^[+-]?(?i:inf|infinity|∞)$"
_DROP = "correct it, or use --missing drop to leave such rows out"
#: $10.50, 12 € or 15%.
_WITH_UNIT = r"^[+-]?([$€£¥]\s*[0-9.,]*[0-9][0-9.,]*|[0-9.,]*[0-9][0-9.,]*\s*[$€£¥%])$"
#: 1,5 or 1,234.5 or 1.234,5: a number to the eye, but not certainly which.
_WITH_COMMA = r"^[+-]?([0-9]*(,[0-9]+)+(\.[0-9]*)?|[0-9]{1,3}(\.[0-9]{3})+,[0-9]*)$"


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
            raise TableError(
                f"column {shown(name)} holds {what}, which are neither numbers, dates nor text: leave it out with "
                "--exclude"
            ) from None

    def missing(self) -> NDArray[np.bool_]:
        """Which of the ``n`` cells hold no value."""
        mask: NDArray[np.bool_] = self.values.is_null().to_numpy(zero_copy_only=False)
        return mask

    def where(self, keep: NDArray[np.bool_]) -> Cells:
        """The cells of some of the rows."""
        return replace(self, values=self.values.filter(pa.array(keep)), rows=self.rows[keep])

    def kind(self) -> Kind:
        """What the column holds, by the majority of its cells: half of them numbers make it a column of numbers.

        So a column of numbers with a bad cell is not taken for a category. Missing cells do not count.
        """
        if not self._is_text():
            return "date" if pa.types.is_temporal(self.values.type) else "number"
        text = self.values.drop_null()
        if self.form.date_format and _most(_dates_as_formatted(text, self.form.date_format)):
            return "date"
        if _cast(self._pointed(), pa.float64()) is not None or _most(_look_like_numbers(text)):
            return "number"
        return "date" if _most(looks_like_a_date(text)) else "category"

    def read(self, kind: Literal["number", "date"]) -> NDArray[np.float64]:
        """The ``n`` cells as finite numbers or as days since 1970-01-01; NaN where one is missing or neither.

        Raises TableError where the type of the column is another.
        """
        if kind == "date":
            if not self._is_text() and not pa.types.is_temporal(self.values.type):
                self._refuse_type("dates")
            return self._days()
        if pa.types.is_temporal(self.values.type):
            self._refuse_type("numbers")
        values = self.values
        if self._is_text():
            text = self._pointed()
            values = _cast(text, pa.float64())
            if values is None:
                fits = pc.match_substring_regex(text, _NUMBER)
                values = pc.if_else(fits, text, pa.scalar(None, pa.string())).cast(pa.float64())
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.where(np.isfinite(numbers), numbers, np.nan)

    def bad(self, kind: Literal["number", "date"]) -> NDArray[np.bool_]:
        """Which of the ``n`` cells hold a value that is not one of this kind."""
        return np.isnan(self.read(kind)) & ~self.missing()

    def numbers(self) -> NDArray[np.float64]:
        """The ``n`` cells, none missing, as finite numbers. Raises TableError naming the first that is not one."""
        values = self.read("number")
        bad = np.isnan(values)
        if bad.any():
            self._refuse_number(bad)
        return values

    def dates(self) -> NDArray[np.float64]:
        """The ``n`` cells, none missing, as days since 1970-01-01. Raises TableError naming the first bad one."""
        days = self.read("date")
        bad = np.isnan(days)
        if bad.any():
            self.refuse_date(bad)
        return days

    def texts(self) -> pa.Array:
        """The ``n`` cells as names of categories; true and false in lower case, as different programs write them."""
        if not self._is_text():
            self._refuse_type("text")
        truth = pc.match_substring_regex(self.values, "^(?i:true|false)$")
        return pc.if_else(truth, pc.utf8_lower(self.values), self.values)

    def without(self, bad: NDArray[np.bool_]) -> Cells:
        """The same with some of the cells missing."""
        return replace(self, values=pc.if_else(pa.array(bad), pa.scalar(None, self.values.type), self.values))

    def row(self, position: int) -> str:
        """Where a cell is, for messages: ``row 3 of column 'size'``."""
        return f"row {self.rows[position]} of column {shown(self.name)}"

    def _is_text(self) -> bool:
        return bool(pa.types.is_string(self.values.type))

    def _pointed(self) -> pa.Array:
        """The texts with a decimal point where the file has a comma; a point is no part of a number there."""
        if self.form.decimal != ",":
            return self.values
        return pc.replace_substring(pc.replace_substring(self.values, ".", "_"), ",", ".")

    def _days(self) -> NDArray[np.float64]:
        """As :meth:`read`."""
        present = ~self.missing()
        days = np.full(len(present), np.nan)
        values = self.values.drop_null()
        if not self._is_text():
            days[present] = days_from_timestamps(values)
            return days
        read = days_from_text(values)
        if self.form.date_format:
            formatted = _dates_as_formatted(values, self.form.date_format)
            read = np.where(np.isnan(formatted), read, formatted)
        days[present] = read
        return days

    def _refuse_number(self, bad: NDArray[np.bool_]) -> NoReturn:
        cell = str(self.values[int(bad.argmax())].as_py())
        text = pa.scalar(cell)
        advice = _DROP
        if bool(pc.match_substring_regex(text, _WITH_COMMA).as_py()):
            advice = "write a decimal point and no thousands separators"
            advice += "" if self.form.decimal == "," else ", or use --decimal ,"
        elif bool(pc.match_substring_regex(text, r"[$€£¥%]").as_py()):
            advice = "write the number without its unit"
        elif self.form.decimal == "," and bool(pc.match_substring_regex(text, _NUMBER).as_py()):
            advice = "write a decimal comma, or leave --decimal out"
        infinite = f"{_NUMBER}|{_INFINITE}"  # what is a number in form is refused only for being beyond all floats
        finite = self.form.decimal != "," and bool(pc.match_substring_regex(text, infinite).as_py())
        self._refuse(bad, "a finite number" if finite else "a number", advice)

    def refuse_date(self, bad: NDArray[np.bool_]) -> NoReturn:
        """Raise TableError naming the first bad cell."""
        ambiguous = bool(pc.match_substring_regex(self.values[int(bad.argmax())], AMBIGUOUS_DATE).as_py())
        if ambiguous:
            self._refuse(bad, "an unambiguous date", "write dates as 2024-12-31, or use --date-format '%d/%m/%Y'")
        self._refuse(bad, "a date", f"write dates as 2024-12-31, name their form with --date-format, or {_DROP}")

    def refuse(self, bad: NDArray[np.bool_], kind: Literal["number", "date"]) -> NoReturn:
        """Raise TableError naming the first cell that is not a number or not a date."""
        if kind == "number":
            self._refuse_number(bad)
        self.refuse_date(bad)

    def _refuse(self, bad: NDArray[np.bool_], wanted: str, advice: str) -> NoReturn:
        first, count = int(bad.argmax()), np.count_nonzero(bad)
        others = f" ({count} of its {len(bad)} cells are not)" if count > 1 else ""
        cell = shown(str(self.values[first].as_py()))
        raise TableError(f"{self.row(first)} is {cell}, which is not {wanted}{others}: {advice}")

    def _refuse_type(self, wanted: str) -> NoReturn:
        raise TableError(
            f"column {shown(self.name)} holds values of type {self.values.type}, but the model was trained with "
            f"{wanted} there: convert the column"
        )


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
    numbers = _cast(text, pa.float64())
    if numbers is not None and not pc.any(pc.is_nan(numbers)).as_py():
        return text  # nothing to trim, and nothing that stands for a missing value
    text = pc.utf8_trim_whitespace(text)
    lower, nothing = pc.utf8_lower(text), pa.scalar(None, pa.string())
    text = pc.if_else(pc.is_in(lower, pa.array(_MISSING)), nothing, text)
    doubtful = pc.is_in(lower, pa.array(_MISSING_AMONG_NUMBERS))
    if pc.any(doubtful).as_py():
        others = text.filter(pc.and_(pc.invert(doubtful), pc.is_valid(text)))
        if len(others) and (_most(_look_like_numbers(others)) or _most(looks_like_a_date(others))):
            text = pc.if_else(doubtful, nothing, text)
    return text


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """All texts as another type; ``None`` if one of them cannot be."""
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


def _most(cells: NDArray[np.bool_] | NDArray[np.float64]) -> bool:
    """Whether at least half of the cells are true, or numbers."""
    return bool(len(cells)) and bool(np.mean(cells if cells.dtype == bool else ~np.isnan(cells)) >= 0.5)


def _look_like_numbers(text: pa.Array) -> NDArray[np.bool_]:
    """Which texts, none missing, are numbers, well written or not."""
    patterns = (_NUMBER, _INFINITE, _WITH_COMMA, _WITH_UNIT)
    mask: NDArray[np.bool_] = pc.match_substring_regex(text, "|".join(patterns)).to_numpy(zero_copy_only=False)
    return mask


def _dates_as_formatted(text: pa.Array, date_format: str) -> NDArray[np.float64]:
    """Days since 1970-01-01 of texts, none missing, in this format; NaN where one is in another."""
    cells = text.to_pandas()
    try:
        when = pd.to_datetime(cells, format=date_format, errors="coerce", utc=True)
    except ValueError as error:
        raise TableError(f"--date-format {shown(date_format)} is not a format: {reason(error)}") from None
    since = when.dt.tz_localize(None).to_numpy("M8[us]") - np.datetime64(0, "us")
    days = since / np.timedelta64(1, "D")
    # 123456 may be read by %Y%m%d as a day in the year 1234, but is not written so.
    same = ~_look_like_numbers(text) | (when.dt.strftime(date_format) == cells).to_numpy(dtype=bool)
    return np.where(same, days, np.nan)
