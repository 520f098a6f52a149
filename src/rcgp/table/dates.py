"""Dates written as text, to days since 1970-01-01: only forms that can be read in one way.

pandas would guess the order of day and month cell by cell, and cannot hold years before 1677 or after 2262. Here the
forms are listed, and a cell in any other form is not a date.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["AMBIGUOUS_DATE", "days_from_text", "days_from_timestamps", "looks_like_a_date"]

#: Day and month first, or month and day: nobody can tell.
AMBIGUOUS_DATE = r"^[0-9]{1,2}(/[0-9]{1,2}/([0-9]{2}|[0-9]{4})|[.-][0-9]{1,2}[.-][0-9]{4})([T ,]|$)"

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: What the first three letters of a month may be; the place in this list, modulo 12, is the month.
_MONTH_TEXTS = (*_MONTHS, *(f"{month:02}" for month in range(1, 13)), *(str(month) for month in range(1, 13)))

_YEAR, _MONTH, _DAY = r"(?P<year>[0-9]{4})", r"(?P<month>[0-9]{1,2})", r"(?P<day>[0-9]{1,2})"
_MONTH_NAME = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
_ZONE = r"(?: ?(?:Z|UTC|(?P<sign>[+-])(?P<zone_hour>[01][0-9]|2[0-3]):?(?P<zone_minute>[0-5][0-9])?))?"
_TIME = (
    r"(?:(?:T|,? )(?P<hour>[01]?[0-9]|2[0-3]):(?P<minute>[0-5][0-9])"
    r"(?::(?P<second>[0-5][0-9](?:\.[0-9]+)?|60))?" + _ZONE + r")?$"
)
_FORMS = (
    f"^{_YEAR}-{_MONTH}-{_DAY}{_TIME}",
    f"^{_YEAR}/{_MONTH}/{_DAY}{_TIME}",
    rf"^{_YEAR}\.{_MONTH}\.{_DAY}{_TIME}",
    f"^{_YEAR}-{_MONTH}(?P<day>){_TIME}",  # a month is its first day
    f"^{_DAY}[ -]{_MONTH_NAME}[ -]{_YEAR}{_TIME}",
    f"^{_MONTH_NAME} {_DAY},? {_YEAR}{_TIME}",
    f"^{_YEAR}[ -]{_MONTH_NAME}[ -]{_DAY}{_TIME}",
)


def looks_like_a_date(text: pa.Array) -> NDArray[np.bool_]:
    """Which cells are written as a date, also one that no calendar has or whose day and month are ambiguous."""
    if _iso(text) is not None:
        return np.ones(len(text), dtype=bool)
    matches = [
        pc.match_substring_regex(text, form).to_numpy(zero_copy_only=False) for form in (*_FORMS, AMBIGUOUS_DATE)
    ]
    alike: NDArray[np.bool_] = np.logical_or.reduce(matches)
    return alike


def days_from_text(text: pa.Array) -> NDArray[np.float64]:
    """Days since 1970-01-01 in UTC, with fractions; NaN where a cell is not a date.

    Read are ISO 8601 dates and times (``2024-03-01``, ``2024-03-01T12:30:15.5+02:00``, ``2024-03``), the same with
    ``/`` or ``.`` between year, month and day, and English month names (``1 March 2024``, ``Mar 1, 2024``,
    ``01-Mar-2024``). A time without a zone is taken for UTC.

    Args:
        text: ``n`` cells, none missing.

    Returns:
        ``n`` numbers, to a microsecond or better in this century. Cost O(n).
    """
    iso = _iso(text)
    if iso is not None:
        return days_from_timestamps(iso)
    days = np.full(len(text), np.nan)
    for form in _FORMS:
        parts = pc.extract_regex(text, form)
        matched = parts.is_valid().to_numpy(zero_copy_only=False)
        if matched.any():
            days[matched] = _days(parts.filter(pa.array(matched)))
    return days


def days_from_timestamps(values: pa.Array) -> NDArray[np.float64]:
    """Days since 1970-01-01 in UTC of Arrow dates and timestamps, none missing."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32()).to_numpy().astype(np.float64)  # type: ignore[no-any-return]
    unit = "ms" if pa.types.is_date64(values.type) else values.type.unit
    per_day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    # Exact for whole days in any unit: these have few enough digits for a float.
    return values.cast(pa.int64()).to_numpy() / per_day  # type: ignore[no-any-return]


def _iso(text: pa.Array) -> pa.Array | None:
    """Timestamps, if Arrow reads each text as one: ISO 8601 without a zone, which most tables have."""
    try:
        return text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None


def _days(parts: pa.StructArray) -> NDArray[np.float64]:
    """Days from the texts of year, month, day and time; NaN for a date that the calendar does not have."""
    month_text = pc.utf8_slice_codeunits(pc.utf8_lower(parts.field("month")), 0, 3)
    place = pc.fill_null(pc.index_in(month_text, pa.array(_MONTH_TEXTS)), -1).to_numpy()
    first = _number(parts, "year").astype(np.int64).astype("M8[Y]").astype("M8[M]")  # counts years from 0, not 1970
    first = first - np.timedelta64(1970 * 12, "M") + (place % 12).astype("m8[M]")
    day = _number(parts, "day", empty="1").astype(np.int64)
    date = first.astype("M8[D]") + (day - 1).astype("m8[D]")
    exists = (place >= 0) & (date.astype("M8[M]") == first)
    seconds = _number(parts, "hour") * 3600 + _number(parts, "minute") * 60 + _number(parts, "second")
    east = _number(parts, "zone_hour") * 3600 + _number(parts, "zone_minute") * 60
    seconds -= np.where(pc.equal(parts.field("sign"), "-").to_numpy(zero_copy_only=False), -east, east)
    return np.where(exists, date.astype(np.int64) + seconds / 86_400, np.nan)


def _number(parts: pa.StructArray, name: str, empty: str = "0") -> NDArray[np.float64]:
    """One part as numbers; where it is left out, ``empty``."""
    text = parts.field(name)
    filled = pc.if_else(pc.equal(text, ""), empty, text)
    return filled.to_numpy(zero_copy_only=False).astype(np.float64)  # type: ignore[no-any-return]
