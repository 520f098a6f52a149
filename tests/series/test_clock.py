"""Times become numbers, seconds for dates, and back."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from rcgp.report.text import times as times_as_text
from rcgp.series.clock import Clock, Duration, duration

BERLIN = pd.date_range("2025-03-30", periods=4, freq="1h", tz="Europe/Berlin")  # the clock goes from 2 to 3
NAIVE = np.array(["2025-01-01T00:00", "2025-01-01T00:00:01.5"], dtype="datetime64[ns]")


def test_numbers_start_at_zero_and_come_back():
    clock, numbers = Clock.of([5.0, 3.0, 9.0])
    np.testing.assert_array_equal(numbers, [2.0, 0.0, 6.0])
    np.testing.assert_array_equal(clock.times(numbers), [5.0, 3.0, 9.0])
    assert clock.length(2, "step") == 2.0


def test_dates_are_seconds_after_the_first_and_come_back():
    clock, numbers = Clock.of(NAIVE)
    np.testing.assert_array_equal(numbers, [0.0, 1.5])
    np.testing.assert_array_equal(clock.times(numbers), NAIVE)


def test_hours_of_a_time_zone_are_hours_also_when_its_clock_changes():
    clock, numbers = Clock.of(BERLIN)
    np.testing.assert_array_equal(numbers, [0.0, 3600.0, 7200.0, 10800.0])
    assert list(clock.times(numbers)) == list(BERLIN)
    np.testing.assert_array_equal(clock.numbers(BERLIN.tz_convert("UTC")), numbers)


@pytest.mark.parametrize(
    "times",
    [
        pd.DatetimeIndex(NAIVE),
        pd.Series(NAIVE),
        pd.DatetimeIndex(NAIVE).to_period("ms"),
        list(NAIVE),
        ["2025-01-01", "2025-01-01 00:00:01.5"],
        [datetime.datetime(2025, 1, 1), datetime.datetime(2025, 1, 1, 0, 0, 1, 500_000)],
    ],
    ids=["index", "column", "periods", "list", "text", "datetime"],
)
def test_dates_of_many_kinds_are_read(times):
    np.testing.assert_array_equal(Clock.of(times)[1], [0.0, 1.5])


def test_iso_strings_with_an_offset_are_in_utc():
    clock, numbers = Clock.of(["2025-01-01T00:00:00+01:00", "2025-01-01T00:00:00Z"])
    np.testing.assert_array_equal(numbers, [0.0, 3600.0])
    assert clock.zone == "UTC"


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([], "is empty"),
        ([1.0, np.nan], "row 1"),
        ([1.0, np.inf], "row 1"),
        (["2025-01-01", "yesterday"], "row 1: 'yesterday'"),
        (["2025-01-01", "2025-01-01T00:00:00Z"], "several time zones"),
        (np.array(["2025-01-01", "NaT"], dtype="datetime64[s]"), "row 1"),
        ([[1.0, 2.0]], "one dimension"),
        (["1", "2"], "row 0: '1'"),
        ([1 + 2j], "numbers or dates"),
    ],
)
def test_times_that_are_none_are_refused(times, message):
    with pytest.raises(ValueError, match=message):
        Clock.of(times)


def test_new_times_are_of_the_same_kind():
    dates, zoned, numbers = Clock.of(NAIVE)[0], Clock.of(BERLIN)[0], Clock.of([1.0])[0]
    for clock, times, message in [
        (dates, [1.0], "must be dates"),
        (numbers, NAIVE, "must be numbers"),
        (dates, BERLIN, "has time zone"),
        (zoned, NAIVE, "has no time zone"),
    ]:
        with pytest.raises(ValueError, match=message):
            clock.numbers(times)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("1D", 86400.0), ("12h", 43200.0), ("30min", 1800.0), ("1.5s", 1.5), ("W", 604800.0), ("7d", 604800.0),
     (datetime.timedelta(hours=1), 3600.0), (np.timedelta64(1, "m"), 60.0), (pd.Timedelta("2h"), 7200.0)],
)  # fmt: skip
def test_durations(value, seconds):
    assert duration(value, "period") == pytest.approx(seconds)


def test_nanoseconds_as_integers_keep_their_digits():
    np.testing.assert_array_equal(
        Clock.of(1_700_000_000_000_000_000 + np.arange(4) * 100)[1], [0.0, 100.0, 200.0, 300.0]
    )


def test_dates_of_many_centuries_do_not_wrap_around():
    dates = np.array(["1000-01-01", "1990-01-01"], dtype="datetime64[D]")
    clock, numbers = Clock.of(dates)
    assert numbers[1] == (dates[1] - dates[0]).astype(float) * 86400.0
    np.testing.assert_array_equal(Clock.of(["2025-01-01 00:00:00+02", "2025-01-01T00:00:00Z"])[1], [0.0, 7200.0])
    assert clock.dates


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates_beyond_those_of_nanoseconds_come_back(zone):
    clock, _ = Clock.of(pd.DatetimeIndex(["2025-01-01T00:00:00.123456789"], tz=zone))
    far = pd.DatetimeIndex(np.array(["2263-05-06T07:08:09.5", "2300-01-01"], dtype="M8[us]"), tz=zone)
    numbers = clock.numbers(far)
    np.testing.assert_array_equal(clock.numbers([moment.isoformat() for moment in far]), numbers)
    np.testing.assert_array_equal(clock.numbers(list(far.to_pydatetime())), numbers)
    assert np.abs(pd.DatetimeIndex(clock.times(numbers)) - far).max() < pd.Timedelta("3us")
    assert times_as_text(far[:1]) == ["2263-05-06 07:08:09.500"]
    with pytest.raises(ValueError, match="within 290 000 years of 1970"):
        clock.times(np.array([1e13]))


def test_a_column_of_a_frame_is_read_by_its_values():
    frame = pd.DataFrame({"seconds": [5.0, 7.0]}, index=pd.DatetimeIndex(NAIVE))
    np.testing.assert_array_equal(Clock.of(frame["seconds"])[1], [0.0, 2.0])


@pytest.mark.parametrize("value", ["", "1", "day", "-1D", "0h", ".s", 5, None, datetime.timedelta(hours=-1), pd.NaT])
def test_durations_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match="duration such as"):
        duration(value, "period")


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("origin", ["2025-01-01", "1969-12-31T23:59:59.250001", "2025-03-30T00:59:59.123456789"])
def test_one_time_is_the_same_number_as_among_others(zone, origin):
    clock, _ = Clock.of(pd.DatetimeIndex([origin], tz=zone))
    moments = [
        "1950-06-01T03:04:05.6",
        "2025-03-30T04:00:00.000001",
        "2025-10-26T00:30",
        "2025-10-27T01:02:03.123456789",
    ]
    index = pd.DatetimeIndex(moments, tz=zone)
    numbers = clock.numbers(index)
    assert [clock.number(moment) for moment in index] == numbers.tolist()
    assert [clock.number(moment.to_pydatetime(warn=False)) for moment in index[:3]] == numbers[:3].tolist()
    if zone is None:
        assert [clock.number(moment) for moment in index.to_numpy()] == numbers.tolist()
    for other in (pd.Timestamp("2025-01-01", tz=None if zone else "UTC"), 3.0, pd.NaT):
        with pytest.raises(ValueError, match="times"):
            clock.number(other)


@pytest.mark.parametrize("first", [0.5, 3, 1_700_000_000_000_000_001])
def test_whole_times_are_as_far_from_the_first_as_floats(first):
    clock, _ = Clock.of([first, first + 1])
    assert clock.numbers([first + 7]).tolist() == [clock.number(first + 7)] == [7.0]
    whole = int(first) + 64  # exact as a float, up to the digits that it has
    assert clock.numbers([whole])[0] == whole - first
    assert clock.number(float(whole)) == clock.numbers([float(whole)])[0]


def test_a_duration_is_a_number_of_seconds_that_prints_in_its_unit():
    shown = {756366.3: "8.754 D", 86400.0: "1 D", 5400.0: "1.5 h", 0.25: "250 ms", 1e-9: "0.001 us", 0.0: "0 us"}
    assert {seconds: str(Duration(seconds)) for seconds in shown} == shown
    assert f"{Duration(90.0):.1f}, {[Duration(30.0)]}" == "1.5 min, [30 s]"
    assert Duration(90.0) == 90.0
    assert json.loads(json.dumps([Duration(90.5)])) == [90.5]
    assert str(Clock("2024-01-01", True).duration(7200.0)) == "2 h"
    assert str(Clock(0.0).duration(7200.0)) == "7200.0"
