"""Records: append-only, and nothing that a crash leaves behind spoils them."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import subprocess
import sys

import pytest

from rcgp_paper.experiments import LockedError, Record, RecordFile
from rcgp_paper.experiments.records import key_of


def make_record(index, value=1.0):
    config = {"index": index, "data": "yacht"}
    return Record("table1", config, {"mae": value}, 0.5, {"rcgp": "0"}, "2026-01-01T00:00:00+00:00", index, "abc")


@pytest.fixture
def file(tmp_path):
    file = RecordFile(tmp_path / "folder" / "table1.jsonl")
    for index in range(3):
        file.append(make_record(index))
    return file


def test_records_are_restored_as_they_were(file):
    assert list(file) == [make_record(index) for index in range(3)]
    assert file.read()[1] == []
    assert len(file.path.read_text().splitlines()) == 3


def test_a_file_that_does_not_exist_has_no_records(tmp_path):
    assert RecordFile(tmp_path / "none.jsonl").read() == ([], [])
    assert not list(tmp_path.iterdir())


def state_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("cut", [2, 20, 60])
def test_reading_reports_a_line_cut_short_and_writes_nothing(file, cut):
    file.path.write_bytes(file.path.read_bytes()[:-cut])
    before = state_of(file.path.parent)
    for _ in range(2):
        records, notices = file.read()
        assert records == [make_record(0), make_record(1)]
        assert notices == [f"{file.path}: 1 broken line left out; 2 read"]
    assert state_of(file.path.parent) == before


@pytest.mark.parametrize("cut", [2, 20, 60])
def test_a_line_cut_short_is_set_aside_and_the_rest_kept(file, cut):
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-cut])
    aside = file.path.with_name("table1.jsonl.damaged")
    assert file.set_aside() == [f"{file.path}: 1 broken line set aside in {aside.name}; 2 kept"]
    lines = whole.splitlines(keepends=True)
    assert file.path.read_bytes() == b"".join(lines[:2])
    assert aside.read_bytes() == lines[2][:-cut] + b"\n"
    assert file.set_aside() == file.read()[1] == []  # reported once
    file.append(make_record(2))
    assert list(file) == [make_record(index) for index in range(3)]


def test_a_complete_line_without_a_newline_counts_and_is_not_extended(file):
    file.path.write_bytes(file.path.read_bytes()[:-1])
    assert file.read() == ([make_record(index) for index in range(3)], [])
    file.append(make_record(3))
    assert file.read() == ([make_record(index) for index in range(4)], [])


def test_a_record_does_not_become_part_of_a_line_cut_short(file):
    file.path.write_bytes(file.path.read_bytes()[:-20])
    file.append(make_record(3))
    assert list(file) == [make_record(index) for index in (0, 1, 3)]


@pytest.mark.parametrize(
    "junk", [b"not json\n", b"[1, 2]\n", b'{"config": 3}\n', b"\xff\xfe\n", b"\n", b"[" * 100_000 + b"\n"]
)
def test_broken_lines_anywhere_are_left_out_and_set_aside(file, junk):
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(lines[0] + junk + lines[1] + lines[2])
    assert list(file) == [make_record(index) for index in range(3)]
    assert len(file.read()[1]) == len(file.set_aside()) == 1
    assert file.path.read_bytes() == b"".join(lines)


WRITER = """
import json, sys, time

with open(sys.argv[1], "ab", buffering=0) as file:
    for index in range(40):
        values = {"curve": [index + 0.5] * 14_000}
        line = json.dumps({"experiment": "table1", "config": {"index": index}, "values": values}).encode() + b"\\n"
        file.write(line[:50_000])
        time.sleep(0.01)  # the moment in which a reader finds half a line
        file.write(line[50_000:])
"""


def test_reading_while_another_process_appends_loses_nothing(tmp_path):
    """Records of 70 KB and more, which a reader may meet half written."""
    file, met = RecordFile(tmp_path / "table1.jsonl"), []
    with subprocess.Popen([sys.executable, "-c", WRITER, str(file.path)]) as writer:
        while writer.poll() is None:
            found, notices = file.read()
            assert [record.config["index"] for record in found] == list(range(len(found)))
            met += notices
    assert writer.returncode == 0
    assert any("1 broken line left out" in notice for notice in met)
    assert len(file.path.read_bytes()) > 40 * 70_000
    found, notices = file.read()
    assert [record.config["index"] for record in found] == list(range(40))
    assert all(record.values["curve"] == [index + 0.5] * 14_000 for index, record in enumerate(found))
    assert notices == []
    assert [path.name for path in tmp_path.iterdir()] == ["table1.jsonl"]


def test_unknown_fields_are_ignored_and_optional_ones_may_be_missing(file):
    lines = [
        {"experiment": "table1", "config": {"index": 7}, "values": {"mae": 1.0}, "colour": "blue"},
        {"experiment": "table1", "config": {"index": 8}, "values": {}, "seconds": "many", "versions": None, "seed": []},
    ]
    with open(file.path, "a") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    records, notices = file.read()
    assert notices == []
    for record in records[3:]:
        assert math.isnan(record.seconds)
        assert (record.versions, record.time, record.seed, record.code, record.machine) == ({}, "", None, "", {})
    assert [record.config["index"] for record in records] == [0, 1, 2, 7, 8]


def test_a_record_without_configuration_or_values_is_broken(file):
    for name in ("experiment", "config", "values"):
        fields = {"experiment": "table1", "config": {}, "values": {}, "seconds": 1.0}
        del fields[name]
        with open(file.path, "a") as out:
            out.write(json.dumps(fields) + "\n")
    records, notices = file.read()
    assert len(records) == 3
    assert "3 broken lines left out" in notices[0]


def test_numbers_that_are_not_finite_are_null_in_the_file_and_nan_again(file):
    values = {"mae": math.inf, "curve": [1.0, math.nan], "seconds": {"gp": -math.inf}, "name": "x"}
    file.append(Record("table1", {"index": 9}, values, seconds=math.nan))

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    line = json.loads(file.path.read_text().splitlines()[-1], parse_constant=refuse)
    assert line["values"] == {"mae": None, "curve": [1.0, None], "seconds": {"gp": None}, "name": "x"}
    record = list(file)[-1]
    assert math.isnan(record.values["mae"])
    assert record.values["curve"][0] == 1.0
    assert math.isnan(record.values["curve"][1])
    assert math.isnan(record.values["seconds"]["gp"])
    assert math.isnan(record.seconds)


def test_the_lock_is_held_by_one_and_leaves_nothing_behind(tmp_path):
    first, second = RecordFile(tmp_path / "new" / "table1.jsonl"), RecordFile(tmp_path / "new" / "table1.jsonl")
    for _ in range(2):
        with first.locked() as notices:
            assert notices == []
            with pytest.raises(LockedError, match="another process is running table1 in"), second.locked():
                pass
            with RecordFile(tmp_path / "new" / "table2.jsonl").locked():  # another experiment
                pass
        assert not list((tmp_path / "new").iterdir())


def test_a_lock_file_removed_before_it_is_locked_is_created_again(tmp_path, monkeypatch):
    """Between opening the lock file and locking it, its holder may have removed it: another is made then."""
    path, removed = tmp_path / "table1.jsonl.lock", []

    def late(handle, operation):
        if not removed:
            removed.append(path.unlink())
        return flock(handle, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", late)
    file = RecordFile(tmp_path / "table1.jsonl")
    with file.locked():
        assert path.exists()
        with pytest.raises(LockedError), file.locked():
            pass
    assert removed


def test_a_notice_warns_where_files_cannot_be_locked(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "no locks")

    file = RecordFile(tmp_path / "table1.jsonl")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with file.locked() as notices:
        assert "do not run this twice at the same time" in notices[0]
    assert not list(tmp_path.iterdir())


def test_of_two_records_of_a_run_the_last_counts(file):
    file.append(make_record(1, value=7.0))
    values = {record.config["index"]: record.values["mae"] for record in file}
    assert values == {0: 1.0, 1: 7.0, 2: 1.0}


def test_equal_configurations_have_equal_keys():
    assert key_of({"a": 1, "b": "ü"}) == key_of({"b": "ü", "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


def test_lines_are_json(file):
    fields = json.loads(file.path.read_text().splitlines()[0])
    assert set(fields) == {
        *("experiment", "config", "values", "seconds", "versions", "time", "seed", "code", "machine")
    }
