"""Times as people have them, numbers or dates with or without a time zone, and as models see them: numbers.

Dates become seconds after the first one. Only numpy is needed: an index of pandas is read by its own methods.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
import sys
import zoneinfo
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Clock", "Duration", "duration", "times_and_values"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "D": 86400.0, "W": 7 * 86400.0}
_DURATION = re.compile(rf"\s*(\d*\.?\d*)\s*({'|'.join(sorted(_UNITS, key=len, reverse=True))})\s*", re.IGNORECASE)
_BY_CASE = {unit.lower(): size for unit, size in _UNITS.items()}
# Seconds from 1970 that fit into 64 bits in each unit of dates.
_LAST_SECOND = {"ns": 9.22e9, "us": 9.15e12}
_SHOWN = ("D", "h", "min", "s", "ms", "us")


class Duration(float):
    """A length of time: a number of seconds that prints in the unit that suits it, such as ``8.75 D``."""

    @property
    def in_unit(self) -> tuple[float, str]:
        """The length as a number of the largest unit that it reaches, and that unit."""
        unit = next((unit for unit in _SHOWN if self >= (1.0 - 1e-9) * _UNITS[unit]), _SHOWN[-1])
        return float(self) / _UNITS[unit], unit

    def __format__(self, spec: str) -> str:
        value, unit = self.in_unit
        return f"{value:{spec or '.4g'}} {unit}"

    def __str__(self) -> str:
        return format(self)

    __repr__ = __str__


@dataclass(frozen=True)
class Clock:
    """How times become numbers.

    Attributes:
        origin: the time that becomes zero: a number, or for dates an ISO string in UTC, or in local time without zone.
        dates: whether times are dates.
        zone: name of the time zone that they were given in, if any.
    """

    origin: float | int | str
    dates: bool = False
    zone: str | None = None

    @classmethod
    def of(cls, times: Any, name: str = "times") -> tuple[Clock, NDArray[np.float64]]:
        """The clock of training times, which starts at the first of them, and these as numbers."""
        values, zone = _read(times, name)
        if values.size == 0:
            raise ValueError(f"{name} is empty: at least one time is needed")
        dates = values.dtype.kind == "M"
        clock = cls(str(values.min()), True, zone) if dates else cls(values.min().item())
        return clock, clock._numbers(values)

    def numbers(self, times: Any, name: str = "times") -> NDArray[np.float64]:
        """Times as numbers.

        Raises:
            ValueError: for dates where the clock has numbers, numbers where it has dates, and a time zone where it has
                none or the other way round.
        """
        values, zone = _read(times, name)
        if (values.dtype.kind == "M") != self.dates:
            kinds = ("dates", "numbers") if self.dates else ("numbers", "dates")
            raise ValueError(f"{name} must be {kinds[0]}, as in the fit, got {kinds[1]}")
        if self.dates and (zone is None) != (self.zone is None):
            has, lacks = ("has", "none") if self.zone is None else ("has no", f"{self.zone!r}")
            raise ValueError(f"{name} {has} time zone, but the times of the fit had {lacks}")
        return self._numbers(values)

    def number(self, time: Any) -> float:
        """One time as a number, as :meth:`numbers` has it. A float or ``datetime`` takes about a microsecond."""
        if type(time) is float and not self.dates and math.isfinite(time):
            return time - float(self.origin)
        if getattr(time, "nanosecond", 1) == 0:  # a timestamp of pandas
            time = time.to_pydatetime(warn=False)
        first = self._first
        if type(time) is datetime.datetime and first is not None and (time.tzinfo is None) == (self.zone is None):
            gap = time.replace(microsecond=0) - first.replace(microsecond=0)
            return gap.days * 86400.0 + gap.seconds + (time.microsecond / 1e6 - first.microsecond / 1e6)
        return float(self.numbers([time] if np.ndim(time) == 0 else time)[0])

    @functools.cached_property
    def _first(self) -> datetime.datetime | None:
        """The origin as a ``datetime``; ``None`` for numbers, and dates with parts of a microsecond."""
        if not self.dates or (moment := np.datetime64(str(self.origin))).astype("M8[us]") != moment:
            return None
        first: datetime.datetime = moment.astype("M8[us]").item()
        return first if self.zone is None else first.replace(tzinfo=datetime.UTC)

    def times(self, numbers: NDArray[np.float64]) -> Any:
        """Numbers as times: floats, ``datetime64`` or, with a time zone, an index of pandas where that is loaded.

        Dates are in nanoseconds, or in microseconds if one of them lies outside the years 1678 to 2262.

        Raises:
            ValueError: for dates beyond 290 000 years from 1970.
        """
        if not self.dates:
            return numbers + float(self.origin)
        first, whole = np.datetime64(str(self.origin)), np.floor(numbers)
        start = first.astype("datetime64[s]")
        unit = _date_unit(whole + start.astype(np.int64))
        rest = np.round((numbers - whole) * 1e9).astype("timedelta64[ns]") + (first - start)
        values = (start + whole.astype("timedelta64[s]")).astype(f"M8[{unit}]") + rest.astype(f"m8[{unit}]")
        pandas = sys.modules.get("pandas")
        if self.zone is None or pandas is None:
            return values
        return pandas.DatetimeIndex(values, tz="UTC").tz_convert(self.zone)

    def length(self, value: Any, name: str) -> float:
        """A duration as a number: in seconds for dates (``"1D"``, ``timedelta``), else a number as it is."""
        if self.dates:
            return duration(value, name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < float(value) < np.inf:
            raise ValueError(f"{name} must be a positive number in the unit of the times, got {value!r}")
        return float(value)

    def duration(self, number: float) -> float:
        """A number of :meth:`length` for people: a :class:`Duration` for dates, else the number as it is."""
        return Duration(number) if self.dates else number

    def _numbers(self, values: NDArray[Any]) -> NDArray[np.float64]:
        if not self.dates:
            if isinstance(self.origin, float):
                return values.astype(np.float64) - self.origin
            # Integers are subtracted as such: nanoseconds since 1970 have more digits than a float.
            return np.asarray(values - values.dtype.type(self.origin), dtype=np.float64)
        first = np.datetime64(str(self.origin))
        seconds, origin = values.astype("datetime64[s]"), first.astype("datetime64[s]")
        rest = (values - seconds) / np.timedelta64(1, "s") - (first - origin) / np.timedelta64(1, "s")
        return np.asarray((seconds - origin).astype(np.float64) + rest)


def times_and_values(t: Any, y: Any) -> tuple[Any, Any]:
    """Times and values, where a series or data frame of pandas may stand for both: its index has the times."""
    if y is not None:
        return t, y
    if not hasattr(t, "iloc") or not hasattr(t, "index"):
        raise ValueError("y is missing: give times and values, or one series of pandas")
    return t.index, t


def duration(value: Any, name: str) -> float:
    """Seconds of a duration such as ``"1D"``, ``"90min"`` or a ``timedelta``."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        number = float(match[1] or 1.0) if match[1] != "." else 0.0
        if number > 0:
            return number * _BY_CASE[match[2].lower()]
    elif isinstance(value, np.timedelta64) or hasattr(value, "total_seconds"):
        seconds = value / np.timedelta64(1, "s") if isinstance(value, np.timedelta64) else value.total_seconds()
        if 0.0 < seconds < np.inf:
            return float(seconds)
    raise ValueError(f"{name} must be a duration such as '1D', '12h' or '30min', got {value!r}")


def _read(times: Any, name: str) -> tuple[NDArray[Any], str | None]:
    """Times as an array of floats or of ``datetime64`` in UTC, or in local time without zone; and the zone's name."""
    zone = None
    if str(getattr(times, "dtype", "")).startswith("period"):  # of pandas
        times = times.dt.to_timestamp() if hasattr(times, "dt") else times.to_timestamp()
    if hasattr(times, "dt") and not hasattr(times, "tz"):  # a column of pandas
        times = sys.modules["pandas"].DatetimeIndex(times) if times.dtype.kind == "M" or _zoned(times) else times
    if getattr(times, "tz", None) is not None:
        zone, times = _zone_name(times.tz), times.tz_convert(None)
    values = times.to_numpy() if hasattr(times, "to_numpy") else np.asarray(times)
    if values.dtype.kind in "OUST":
        values, zone = _parse(values, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {values.shape}")
    if values.dtype.kind not in "biufM":
        raise ValueError(f"{name} must be numbers or dates, got {values.dtype}")
    bad = np.isnat(values) if values.dtype.kind == "M" else ~np.isfinite(values.astype(np.float64))
    if bad.any():
        raise ValueError(f"{name} has no finite time in row {int(np.flatnonzero(bad)[0])}; drop such rows")
    return values, zone


def _date_unit(seconds: NDArray[Any]) -> str:
    """Unit in which 64 bits hold dates that many seconds from 1970, or a ValueError."""
    furthest = np.abs(seconds).max(initial=0)
    if not furthest < _LAST_SECOND["us"]:
        raise ValueError("dates must lie within 290 000 years of 1970")
    return "ns" if furthest < _LAST_SECOND["ns"] else "us"


def _zone_name(zone: Any) -> str:
    """The name of a time zone; UTC for one that has no name by which it can be found again."""
    try:
        return str(zoneinfo.ZoneInfo(str(zone)))
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return "UTC"


def _zoned(times: Any) -> bool:
    return getattr(times.dtype, "tz", None) is not None


def _parse(values: NDArray[Any], name: str) -> tuple[NDArray[Any], str | None]:
    """Text and objects as dates: ISO strings, ``datetime`` objects; with one time zone, or none."""
    moments, zones = [], set()
    for row, value in enumerate(values.reshape(-1).tolist()):
        try:
            zone = getattr(value, "tzinfo", None)
            if zone is not None:
                zones.add(str(zone))
                value = value.astimezone(datetime.UTC).replace(tzinfo=None)
            elif isinstance(value, str):
                value = value.strip()
                if re.fullmatch(r"[\d.]+", value):  # numpy would take it for a year
                    raise ValueError
                if re.search(r"\d:\d.*(Z|[+-]\d\d(:?\d\d)?)$", value):
                    zones.add("UTC")
                    value = datetime.datetime.fromisoformat(value).astimezone(datetime.UTC).replace(tzinfo=None)
                else:
                    zones.add("")
                    value = value.replace(" ", "T")
            elif isinstance(value, int | float):
                raise ValueError
            else:
                zones.add("")
            if hasattr(value, "to_datetime64"):  # of pandas, with nanoseconds
                value = value.to_datetime64()
            moments.append(np.datetime64(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be read as a date in row {row}: {value!r}") from error
    if len(zones) > 1:
        named = ", ".join(sorted(zone or "none" for zone in zones))
        raise ValueError(f"{name} has several time zones ({named}): convert them to one, such as UTC")
    unit = _date_unit(np.array(moments, dtype="datetime64[s]").astype(np.int64))
    return np.array(moments, dtype=f"datetime64[{unit}]"), (zones.pop() or None) if zones else None
