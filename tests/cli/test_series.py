"""The command for series: what it prints and writes, what it refuses, and how it follows new values."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pandas as pd
import pytest

import rcgp
from cli.houses import ClosedPipe, assert_one_sentence, rcgp_command
from rcgp.cli import series as command
from rcgp.cli.follow import judge_lines
from rcgp.estimator import FLAG_RULE
from rcgp.table import CsvFormat, TableError

BAD, MISSING = [20, 47], [30, 31, 32, 55]


def series_table(zone="Z"):
    """Three days of hours with two outliers and four missing values."""
    random = np.random.default_rng(0)
    when = pd.date_range("2024-03-01", periods=72, freq="1h")
    load = 10.0 + 3.0 * np.sin(np.arange(72) / 8.0) + 0.1 * random.standard_normal(72)
    load[BAD] += 9.0
    load[MISSING] = np.nan
    return pd.DataFrame({"when": when.strftime("%Y-%m-%dT%H:%M") + zone, "load": load.round(4)})


def run_captured(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = rcgp_command(*arguments)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    series_table().to_csv(folder / "s.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def printed(folder):
    """What a run with every output prints; the one fit of this file that is not small."""
    files = ("--output", folder / "s.html", "--predictions", folder / "p.csv")
    return run_captured("series", folder / "s.csv", "--time", "when", "--target", "load", "--forecast", "6h", *files)


@pytest.fixture(scope="module")
def fitted(folder):
    options = command.SeriesOptions(time="when", target=["load"], forecast="6h")
    return command.fit_series(folder / "s.csv", options, command.Console(stderr=True))[0]


@pytest.fixture
def one_fit(fitted, monkeypatch):
    """Commands take the fit of the fixture instead of their own."""
    monkeypatch.setattr(command, "quiet_fit", lambda model, *_: model.__dict__.update(fitted.model.__dict__))
    return fitted


def test_the_summary_names_rows_noise_law_suspicious_rows_and_forecast(printed, fitted):
    code, out, err = printed
    assert code == 0
    assert re.search(r"^rows +72, 4 without a value$", out, re.MULTILINE)
    assert re.search(r"^span +2024-03-01 00:00 to 2024-03-03 23:00 \(UTC\), typical gap 1 h$", out, re.MULTILINE)
    law = str(fitted.model.noise_law_).splitlines()[0]
    assert re.search(rf"^noise law +{re.escape(law)}$", out, re.MULTILINE)
    assert f"2 {FLAG_RULE}" in out
    assert "lie in their 95 % interval" in out
    flagged = [line.split() for line in out.splitlines() if line.endswith("outlier")]
    assert sorted((int(line[0]), " ".join(line[1:3])) for line in flagged) == [
        (21, "2024-03-01 20:00"),
        (48, "2024-03-02 23:00"),
    ]
    assert "Forecast:" in out
    assert re.search(r"^2024-03-04 00:00 +[\d.]+ +[\d.]+ +[\d.]+$", out, re.MULTILINE)
    assert "report written" in err
    assert "78 predictions written" in err


def test_predictions_hold_every_row_and_the_forecast(printed, folder, fitted):
    table = pd.read_csv(folder / "p.csv")
    assert list(table) == ["row", "time", "observed", "mean", "std", "lower", "upper", "outlier"]
    assert table["row"][:72].tolist() == list(range(1, 73))
    assert table["row"][72:].isna().all()
    assert table["observed"].isna().to_numpy().nonzero()[0].tolist() == [*MISSING, *range(72, 78)]
    assert table["outlier"].isna().equals(table["observed"].isna())
    lower, upper = fitted.model.predict_interval(fitted.times)
    np.testing.assert_allclose(table["lower"][:72], lower, rtol=1e-9)
    np.testing.assert_allclose(table["upper"][72:], fitted.forecast.upper, rtol=1e-9)
    assert (lower < upper).all()
    assert pd.to_datetime(table["time"]).diff().dropna().eq(pd.Timedelta("1h")).all()


def test_the_page_is_about_the_series(printed, folder):
    page = (folder / "s.html").read_text(encoding="utf-8")
    assert "<h2>The series</h2>" in page
    assert "<h2>The forecast</h2>" in page
    assert "2 of 68 rows are flagged" in page


def test_json_holds_all_flagged_rows_and_the_forecast(folder, one_fit, capsys):
    arguments = ("--time", "when", "--target", "load", "--json", "--top", "0", "--forecast", "6h")
    assert rcgp_command("series", folder / "s.csv", *arguments) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["values"], content["missing"], content["flagged"]) == (72, 4, 2)
    assert content["first"] == "2024-03-01T00:00:00+00:00"
    assert content["typical_gap"] == 3600.0
    assert {row["row"]: row["time"] for row in content["rows"]} == {
        21: "2024-03-01T20:00:00+00:00",
        48: "2024-03-02T23:00:00+00:00",
    }
    assert all(row["outlier"] for row in content["rows"])
    assert 0.8 < content["coverage"]["not_flagged"] <= 1.0
    assert len(content["forecast"]) == 6
    assert content["forecast"][0]["time"] == "2024-03-04T00:00:00+00:00"
    assert content["forecast"][0]["mean"] == pytest.approx(one_fit.forecast.mean[0])
    assert content["doubts"] == list(one_fit.model.doubts_)


def test_several_targets_are_fitted_one_by_one(folder, tmp_path, one_fit, capsys):
    series_table().assign(other=lambda table: table["load"]).to_csv(tmp_path / "two.csv", index=False)
    arguments = ("series", tmp_path / "two.csv", "--time", "when", "--target", "load", "--target", "other")
    assert rcgp_command(*arguments, "--json", "--predictions", tmp_path / "p.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["target"] for line in lines] == ["load", "other"]
    assert pd.read_csv(tmp_path / "p.csv")["target"].value_counts().to_dict() == {"load": 72, "other": 72}
    assert rcgp_command(*arguments, "--output", tmp_path / "p.html") == 2
    assert_one_sentence(capsys, "--output.*one --target only")


@pytest.mark.parametrize("zone", ["", "+02:00"])
def test_times_may_have_no_zone_or_an_offset(tmp_path, fitted, monkeypatch, capsys, zone):
    series_table(zone).to_csv(tmp_path / "s.csv", index=False, sep=";", decimal=",")
    given = []
    monkeypatch.setattr(
        command,
        "quiet_fit",
        lambda model, t, *_: (given.append(t), model.__dict__.update(fitted.model.__dict__))[0],
    )
    for name in ("series_rows", "_print_series"):
        monkeypatch.setattr(command, name, lambda *_: None)
    arguments = ("--time", "when", "--target", "load", "--decimal", ",")
    assert rcgp_command("series", tmp_path / "s.csv", *arguments) == 0
    first = pd.Timestamp(f"2024-03-01T00:00{zone}")
    assert given[0][0] == first
    assert (given[0].tz is None) == (zone == "")
    assert ("converted to UTC" in capsys.readouterr().err) == (zone != "")


def test_numbers_are_times_too(tmp_path, capsys):
    random = np.random.default_rng(1)
    t = np.sort(random.uniform(0, 50, 40)).round(3)
    y = np.sin(t / 5) + 0.05 * random.standard_normal(40)
    y[10] += 4
    pd.DataFrame({"t": t, "y": y}).sample(frac=1.0, random_state=0).to_csv(tmp_path / "s.csv", index=False)
    arguments = ("--time", "t", "--target", "y", "--forecast", "3 steps", "--top", "1")
    assert rcgp_command("series", tmp_path / "s.csv", *arguments) == 0
    out = capsys.readouterr().out
    assert f"{t[10]:.12g} " in next(line for line in out.splitlines() if line.endswith("outlier"))
    assert f"span                    {t[0]:.12g} to {t[-1]:.12g}, typical gap" in out
    assert len(out.partition("Forecast:")[2].strip().splitlines()) == 4


def test_a_forecast_begins_after_the_last_row_although_its_value_is_missing(tmp_path, capsys):
    y = pd.Series(np.sin(np.arange(30) / 4.0)).where(np.arange(30) < 27)
    pd.DataFrame({"t": np.arange(30), "y": y}).to_csv(tmp_path / "s.csv", index=False)
    arguments = ("--time", "t", "--target", "y", "--forecast", "2 steps", "--json")
    assert rcgp_command("series", tmp_path / "s.csv", *arguments) == 0
    assert [step["time"] for step in json.loads(capsys.readouterr().out)["forecast"]] == [30.0, 31.0]


def change(row, column, text):
    def changed(table):
        table = table.astype(object)
        table.loc[row, column] = text
        return table

    return changed


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change(6, "when", "yesterday"), r"row 7 of column 'when' is 'yesterday', which is not a date"),
        (change(6, "when", "2024-02-30T00:00Z"), r"row 7 of column 'when' is '2024-02-30T00:00Z', which is not a date"),
        (change(6, "when", "2024-03-01 06:00"), r"row 7 of column 'when' .* without a time zone, and row 1 has one"),
        (change(6, "when", ""), r"row 7 of column 'when' has no time \(1 of 72 rows lack one\).*--missing drop"),
        (change(6, "when", "03/04/2024"), r"row 7 of column 'when' .* not an unambiguous date.*--date-format"),
        (change(6, "load", "inf"), r"row 7 of column 'load' is 'inf', which is not a finite number"),
        (change(6, "load", "1,5"), r"row 7 of column 'load' is '1,5', which is not a number.*--decimal ,"),
        (lambda table: table.assign(load=""), r"column 'load' has no values at all"),
        (lambda table: table.assign(load=3.5), r"every value of 'load' is 3.5"),
        (lambda table: table.head(1), r"column 'load' has only one value"),
        (lambda table: table.head(0), r"has column names but no rows"),
        (lambda table: table.assign(load="wet"), r"target must be a column of numbers, but 'load' holds text"),
        (lambda table: table.rename(columns={"when": "When"}), r"no column 'when': did you mean 'When'"),
        (lambda table: table.assign(when="1500-01-01"), r"row 1 of column 'when' is out of range"),
    ],
)
def test_a_table_that_cannot_be_used_gives_one_sentence(tmp_path, capsys, spoil, message):
    spoil(series_table()).to_csv(tmp_path / "s.csv", index=False)
    assert rcgp_command("series", tmp_path / "s.csv", "--time", "when", "--target", "load") == 2
    assert_one_sentence(capsys, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "load"), "--time.*is missing"),
        (("--time", "when"), "--target.*is missing"),
        (("--time", "when", "--target", "when"), "cannot be the time and the target"),
        (("--time", "when", "--target", "load", "--period", "3"), "--period.*a duration such as 1D.*got '3'"),
        (("--time", "when", "--target", "load", "--period", "-1D"), "--period.*a duration such as 1D"),
        (("--time", "when", "--target", "load", "--forecast", "far"), "--forecast.*a duration such as 1D"),
        (("--time", "when", "--target", "load", "--forecast", "0 steps"), "--forecast.*must be 1 to 1 000 000 steps"),
        (("--time", "when", "--target", "load", "--coverage", "1"), "--coverage.*between 0 and 1"),
        (("--time", "when", "--target", "load", "--follow", "--json"), "--json.*--follow writes JSON already"),
        (("--time", "when", "--target", "load", "--output", "missing/folder.html"), "missing"),
    ],
)
def test_wrong_usage_gives_one_sentence(folder, capsys, arguments, message):
    assert rcgp_command("series", folder / "s.csv", *arguments) == 2
    assert_one_sentence(capsys, message)


def test_a_forecast_of_too_many_steps_is_refused(folder, one_fit, capsys):
    arguments = ("--time", "when", "--target", "load", "--forecast", "100000000h")
    assert rcgp_command("series", folder / "s.csv", *arguments) == 2
    assert_one_sentence(capsys, "horizon must be at most 1 000 000 steps of 1 h, got '100000000h'")


def test_rows_without_a_time_are_dropped_on_demand(tmp_path):
    spoilt = change(6, "when", "")(change(8, "load", "broken")(series_table()))
    spoilt.to_csv(tmp_path / "s.csv", index=False)
    series = command.read_series(command.read_table(tmp_path / "s.csv"), "when", ["load"], "drop")
    assert (len(series.times), series.dropped) == (71, 1)
    assert series.values["load"].isna().sum() == 5
    assert 7 not in series.values.index
    assert any("'broken'" in notice for notice in series.notices)
    assert "1 of 72 rows left out: they have no time" in series.notices


def test_the_model_is_saved_and_a_stream_starts_from_it(folder, tmp_path, one_fit, monkeypatch, capsys):
    path = tmp_path / "m.rcgp"
    assert rcgp_command("series", folder / "s.csv", "--time", "when", "--target", "load", "--model", path) == 0
    assert "model saved in" in capsys.readouterr().err
    np.testing.assert_array_equal(rcgp.load(path).predict(one_fit.times), one_fit.model.predict(one_fit.times))
    answers = []
    for arguments in ((folder / "s.csv", "--time", "when", "--target", "load"), ("--model", path)):
        with_input(monkeypatch, b"when,load\n2024-03-04T00:00Z,11.2\n2024-03-04T01:00Z,40\n")
        assert rcgp_command("series", "--follow", *arguments) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert answers[0].count('"outlier"') == len(answers[0].splitlines()) == 2


def test_a_closed_pipe_loses_no_file(folder, tmp_path, one_fit, monkeypatch):
    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    files = ("--model", tmp_path / "m.rcgp", "--predictions", tmp_path / "p.csv", "--output", tmp_path / "s.html")
    assert rcgp_command("series", folder / "s.csv", "--time", "when", "--target", "load", *files) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"m.rcgp", "p.csv", "s.html"}


def test_a_stream_starts_from_a_saved_series_only(houses, tmp_path, capsys):
    path = tmp_path / "houses.rcgp"
    rcgp_command("fit", houses, "--target", "price", "--model", path)
    capsys.readouterr()
    assert rcgp_command("series", "--follow", "--model", path) == 2
    assert_one_sentence(capsys, "holds a RCGPRegressor, not a series")
    assert rcgp_command("series", "--follow", "--model", tmp_path / "none.rcgp") == 2
    assert_one_sentence(capsys, "none.rcgp")
    assert rcgp_command("series", "--follow") == 2
    assert_one_sentence(capsys, "DATA.*is missing")


def with_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_stuck_values_are_flagged_and_reported(tmp_path, capsys):
    random = np.random.default_rng(2)
    y = np.sin(np.arange(60) / 5.0) + 0.1 * random.standard_normal(60)
    y[20:32] = y[20]
    pd.DataFrame({"t": np.arange(60), "y": y}).to_csv(tmp_path / "s.csv", index=False)
    command = ("series", tmp_path / "s.csv", "--time", "t", "--target", "y", "--json")
    assert rcgp_command(*command) == 0
    assert "stuck=True (--stuck) treats them as errors" in capsys.readouterr().err
    assert rcgp_command(*command, "--stuck") == 0
    out, err = capsys.readouterr()
    content = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert {row["row"] for row in content["rows"] if row["outlier"]} >= set(range(22, 33))
    assert "they are treated as errors" in err


ROWS = b"""when,load
2024-03-04T00:00Z,11.2
2024-03-04T01:00Z,40

2024-03-04T00:30Z,11.2
2024-03-04T02:00Z,
2024-03-04T03:00Z,nan
tomorrow,11.2
2024-03-04T04:00Z
2024-03-04T04:00Z,11.2,5
2024-03-04T04:00,11.2
2024-03-04T04:00Z,inf
2024-03-04T04:00Z,warm
,11.2
\xff,1
"2024-03-04T04:00Z,1
2024-03-04T04:00Z,1e400
2024-03-04T04:00Z,12.5"""

ERRORS = {
    5: "comes after 2024-03-04 01:00:00+00:00 in line 3",
    8: "'tomorrow' is not a date",
    9: "must be 'time,value', got 1 cell",
    10: "must be 'time,value', got 3 cells",
    11: "has no time zone",
    12: "'inf' is not a finite number",
    13: "'warm' is not a number",
    14: "the time is missing",
    15: "not text in UTF-8",
    16: "quotation mark",
    17: "not a finite number",
}


class Unbuffered(io.StringIO):
    """Output that knows how much of it has been flushed."""

    def __init__(self):
        super().__init__()
        self.flushed = 0

    def flush(self):
        self.flushed = len(self.getvalue())


def test_following_judges_good_rows_and_goes_on_after_bad_ones(fitted):
    output, stream, twin = Unbuffered(), fitted.model.stream(), fitted.model.stream()

    def watched():
        for line in ROWS.splitlines(keepends=True):
            assert output.flushed == len(output.getvalue())  # each answer is out before the next row is read
            yield line

    judge_lines(stream, watched(), output, CsvFormat())
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    errors = {line["line"]: line["error"] for line in lines if "error" in line}
    assert errors.keys() == ERRORS.keys()
    for number, words in ERRORS.items():
        assert words in errors[number]
    good = [line for line in lines if "error" not in line]
    assert list(good[0]) == ["time", "value", "expected", "lower", "upper", "probability", "outlier", "shift"]
    assert [(line["time"][11:], line["value"], line["outlier"]) for line in good] == [
        ("00:00Z", 11.2, False),
        ("01:00Z", 40.0, True),
        ("02:00Z", None, False),
        ("03:00Z", None, False),
        ("04:00Z", 12.5, good[-1]["outlier"]),
    ]
    assert [line["probability"] is None for line in good] == [False, False, True, True, False]
    for line in good:  # bad rows have changed nothing
        value = np.nan if line["value"] is None else line["value"]
        expected = twin.update(line["time"], value)
        assert (line["expected"], line["lower"], line["upper"]) == tuple(expected[:3])


def judged(stream, rows):
    output = io.StringIO()
    judge_lines(stream, [row.encode() for row in rows], output, CsvFormat())
    return [json.loads(line) for line in output.getvalue().splitlines()]


def hour(day, hour, value=11.0):
    return f"{day}T{hour:02}:00Z,{value}"


def test_one_time_in_the_far_future_does_not_end_the_stream(fitted):
    rows = [hour("2024-03-04", 0), hour("2042-03-04", 1), *(hour("2024-03-04", i) for i in (2, 3, 4))]
    lines = judged(fitted.model.stream(), rows)
    assert [line.get("line", line.get("time")) for line in lines] == [
        "2024-03-04T00:00Z",
        "2042-03-04T01:00Z",
        3,  # refused: late, or the row before it is wrong
        2,  # removed: two rows are against it
        "2024-03-04T03:00Z",
        "2024-03-04T04:00Z",
    ]
    assert "comes after 2042-03-04 01:00:00+00:00 in line 2" in lines[2]["error"]
    assert "removed: its time, 2042-03-04 01:00:00+00:00" in lines[3]["error"]
    twin = judged(fitted.model.stream(), [rows[0], *rows[3:]])
    assert [line for line in lines if "error" not in line and "2042" not in line["time"]] == twin


def test_late_rows_are_refused_unless_two_agree(fitted):
    day = "2024-03-04"
    # A late row each, with rows in order between them; and two that disagree.
    for hours, refused in [((0, 4, 3, 5, 4, 6), [3, 5]), ((2, 8, 4, 3, 9), [3, 4]), ((5, 8, 4, 6, 9), [3, 4])]:
        lines = judged(fitted.model.stream(), [hour(day, i) for i in hours])
        assert [line["line"] for line in lines if "error" in line] == refused
    lines = judged(fitted.model.stream(), [hour("2024-03-01", 0), hour("2024-03-01", 1)])
    assert all("2024-03-03 23:00:00+00:00 at the end of the history" in line["error"] for line in lines)


@pytest.mark.parametrize(
    ("first", "answers"),
    [("when,load", 1), ("Zeit ,  Wert", 1), ("when,11", 2), ("2024-03-04T00:00Z,load", 2), ("a,b,c", 2)],
)
def test_a_header_is_a_first_line_of_which_nothing_can_be_read(fitted, first, answers):
    assert len(judged(fitted.model.stream(), [first, hour("2024-03-04", 1)])) == answers
    assert len(judged(fitted.model.stream(), [hour("2024-03-04", 1), first])) == 2


@pytest.mark.parametrize("names", [("when", "load"), ("when", None), (None, "load")])
def test_a_header_in_the_other_order_ends_the_stream(fitted, names):
    rows = [b"load , when\n", b"40, 2024\n"]
    with pytest.raises(TableError, match="'load , when' has the value first"):
        judge_lines(fitted.model.stream(), rows, io.StringIO(), CsvFormat(), names)


def test_follow_knows_the_order_of_columns_from_its_options(folder, one_fit, monkeypatch, capsys):
    with_input(monkeypatch, b"load,when\n11.2,2024-03-04T00:00Z\n")
    assert rcgp_command("series", folder / "s.csv", "--time", "when", "--target", "load", "--follow") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "rcgp: the header 'load,when' has the value first" in err


def test_follow_writes_json_lines_only(folder, one_fit, monkeypatch, capsys):
    with_input(monkeypatch, ROWS)
    assert rcgp_command("series", folder / "s.csv", "--time", "when", "--target", "load", "--follow") == 0
    out, err = capsys.readouterr()
    assert len([json.loads(line) for line in out.splitlines()]) == len(ERRORS) + 5
    assert "noise law" in err


def test_an_interrupt_ends_the_stream_cleanly(folder, one_fit, monkeypatch, capsys):
    class Interrupted(io.BytesIO):
        def readline(self, *_):
            raise KeyboardInterrupt

        __next__ = readline

    class Input:
        buffer = Interrupted()

    monkeypatch.setattr(sys, "stdin", Input())
    assert rcgp_command("series", folder / "s.csv", "--time", "when", "--target", "load", "--follow") == 0
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.slow
def test_without_numba_the_extra_is_named(folder):
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from rcgp.cli import run\n"
        f"sys.exit(run(['series', {str(folder / 's.csv')!r}, '--time', 'when', '--target', 'load']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "rcgp: 'rcgp series' needs numba: pip install \"rcgp[series]\"\n"


def test_help_imports_nothing_slow():
    program = (
        "import sys; from rcgp.cli import run; run(['series', '--help'])\n"
        "assert not {'torch', 'numba', 'pandas', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_series_is_no_model_for_predict(tmp_path, capsys):
    t = np.arange(40.0)
    pd.DataFrame({"t": t, "y": np.sin(t)}).to_csv(tmp_path / "s.csv", index=False)
    path = tmp_path / "s.rcgp"
    assert rcgp_command("series", tmp_path / "s.csv", "--time", "t", "--target", "y", "--model", path) == 0
    capsys.readouterr()
    assert rcgp_command("predict", path, tmp_path / "s.csv") == 2
    assert_one_sentence(capsys, "is of a series")
