"""The cells of one column: which are missing, what kind of column they make, and their values.

Whatever pandas holds (text from CSV, Arrow types from Parquet, numpy arrays) becomes one of three Arrow arrays here:
numbers, timestamps or text. All work on text is done by Arrow in bulk, with patterns of our own: Python's ``float``
would take ``1_000``, and pandas decides for itself what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rcgp.table.dates import AMBIGUOUS_DATE, days_from_text, days_from_timestamps, looks_like_a_date
from rcgp.table.errors import TableError, shown

__all__ = ["Cells", "Kind"]

Kind: TypeAlias = Literal["number", "date", "category"]

#: Texts, in lower case, that say that there is no value.
_MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null")
#: The same where the other cells are numbers or dates; among categories they may be one.
_MISSING_AMONG_NUMBERS = ("none", "-", "?")
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITE = r"^[+-]?(?i:inf|infinity|∞)$"
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
    """

    name: str
    values: pa.Array
    rows: pd.Index

    @classmethod
    def of(cls, column: pd.Series, name: str) -> Cells:
        """The cells of a pandas column. Raises TableError for types that are neither number, date nor text."""
        try:
            values = pa.Array.from_pandas(column)
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            return cls(name, _cleaned(values), column.index)
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
        return Cells(self.name, self.values.filter(pa.array(keep)), self.rows[keep])

    # Below, no cell may be missing any more.

    def kind(self) -> Kind:
        """What the column holds, by the majority of its cells: half of them numbers make it a column of numbers.

        So a column of numbers with a bad cell is not taken for a category; :meth:`numbers` names the cell.
        """
        if not self._is_text():
            return "date" if pa.types.is_temporal(self.values.type) else "number"
        if _look_like_numbers(self.values).mean() >= 0.5:
            return "number"
        return "date" if looks_like_a_date(self.values).mean() >= 0.5 else "category"

    def numbers(self) -> NDArray[np.float64]:
        """The ``n`` cells as finite numbers. Raises TableError naming the first that is not one."""
        if pa.types.is_temporal(self.values.type):
            self._refuse_type("numbers")
        if self._is_text():
            numbers = np.full(len(self.values), np.nan)
            fits = self._matches(_NUMBER)
            numbers[fits] = self.values.filter(pa.array(fits)).to_numpy(zero_copy_only=False).astype(np.float64)
        else:
            numbers = self.values.to_numpy(zero_copy_only=False).astype(np.float64)
        bad = ~np.isfinite(numbers)
        if bad.any():
            self._refuse_number(bad)
        return numbers

    def dates(self) -> NDArray[np.float64]:
        """The ``n`` cells as days since 1970-01-01. Raises TableError naming the first that is not a date."""
        if pa.types.is_temporal(self.values.type):
            return days_from_timestamps(self.values)
        if not self._is_text():
            self._refuse_type("dates")
        days = days_from_text(self.values)
        bad = np.isnan(days)
        if bad.any():
            ambiguous = bool(pc.match_substring_regex(self.values[int(bad.argmax())], AMBIGUOUS_DATE).as_py())
            wanted = "an unambiguous date" if ambiguous else "a date"
            self._refuse(bad, wanted, "write dates as 2024-12-31, or leave the cell empty and use --missing drop")
        return days

    def texts(self) -> pa.Array:
        """The ``n`` cells as names of categories; true and false in lower case, as different programs write them."""
        if not self._is_text():
            self._refuse_type("text")
        truth = pc.match_substring_regex(self.values, "^(?i:true|false)$")
        return pc.if_else(truth, pc.utf8_lower(self.values), self.values)

    def row(self, position: int) -> str:
        """Where a cell is, for messages: ``row 3 of column 'size'``."""
        return f"row {self.rows[position]} of column {shown(self.name)}"

    def _is_text(self) -> bool:
        return bool(pa.types.is_string(self.values.type))

    def _matches(self, pattern: str) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = pc.match_substring_regex(self.values, pattern).to_numpy(zero_copy_only=False)
        return mask

    def _refuse_number(self, bad: NDArray[np.bool_]) -> NoReturn:
        cell = str(self.values[int(bad.argmax())].as_py())
        text = pa.scalar(cell)
        advice = "correct it, or leave the cell empty and use --missing drop"
        if bool(pc.match_substring_regex(text, _WITH_COMMA).as_py()):
            advice = "write a decimal point and no thousands separators"
        elif bool(pc.match_substring_regex(text, r"[$€£¥%]").as_py()):
            advice = "write the number without its unit"
        infinite = f"{_NUMBER}|{_INFINITE}"  # what is a number in form is refused only for being beyond all floats
        self._refuse(
            bad, "a finite number" if bool(pc.match_substring_regex(text, infinite).as_py()) else "a number", advice
        )

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
    text = pc.utf8_trim_whitespace(values.cast(pa.string()))
    nothing = pa.scalar(None, pa.string())
    text = pc.if_else(pc.is_in(pc.utf8_lower(text), pa.array(_MISSING)), nothing, text)
    doubtful = pc.is_in(pc.utf8_lower(text), pa.array(_MISSING_AMONG_NUMBERS))
    if pc.any(doubtful).as_py():
        others = text.filter(pc.and_(pc.invert(doubtful), pc.is_valid(text)))
        if len(others) and max(_look_like_numbers(others).mean(), looks_like_a_date(others).mean()) >= 0.5:
            text = pc.if_else(doubtful, nothing, text)
    return text


def _look_like_numbers(text: pa.Array) -> NDArray[np.bool_]:
    """Which texts are numbers, well written or not."""
    patterns = (_NUMBER, _INFINITE, _WITH_COMMA, _WITH_UNIT)
    mask: NDArray[np.bool_] = pc.match_substring_regex(text, "|".join(patterns)).to_numpy(zero_copy_only=False)
    return mask
