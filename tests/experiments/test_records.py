"""Records: append-only, and nothing that a crash leaves behind spoils them."""

from __future__ import annotations

import json

import pytest

from rcgp.experiments import Record, RecordFile
from rcgp.experiments.records import key_of


def make_record(index, value=1.0):
    config = {"index": index, "data": "yacht"}
    return Record("table1", config, {"mae": value}, 0.5, {"rcgp": "0"}, "2026-01-01T00:00:00+00:00")


@pytest.fixture
def file(tmp_path):
    file = RecordFile(tmp_path / "folder" / "table1.jsonl")
    for index in range(3):
        file.append(make_record(index))
    return file


def test_records_come_back_as_they_were(file):
    assert list(file) == [make_record(index) for index in range(3)]
    assert file.read()[1] == []
    assert len(file.path.read_text().splitlines()) == 3


def test_a_file_that_does_not_exist_has_no_records(tmp_path):
    assert RecordFile(tmp_path / "none.jsonl").read() == ([], [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_cut_short_is_set_aside_and_the_rest_kept(file, cut):
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-cut])
    records, notices = file.read()
    assert records == [make_record(0), make_record(1)]
    assert len(notices) == 1
    assert "1 broken line set aside in table1.jsonl.damaged; 2 kept" in notices[0]
    assert file.path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    assert file.path.with_name("table1.jsonl.damaged").exists()
    assert file.read()[1] == []  # told of once
    file.append(make_record(2))
    assert list(file) == [make_record(index) for index in range(3)]


@pytest.mark.parametrize("junk", [b"not json\n", b"[1, 2]\n", b'{"config": 3}\n', b"\xff\xfe\n", b"\n"])
def test_broken_lines_anywhere_are_set_aside(file, junk):
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(lines[0] + junk + lines[1] + lines[2])
    assert list(file) == [make_record(index) for index in range(3)]


def test_of_two_records_of_a_run_the_last_counts(file):
    file.append(make_record(1, value=7.0))
    values = {record.config["index"]: record.values["mae"] for record in file}
    assert values == {0: 1.0, 1: 7.0, 2: 1.0}


def test_equal_configurations_have_equal_keys():
    assert key_of({"a": 1, "b": "ü"}) == key_of({"b": "ü", "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


def test_lines_are_json(file):
    fields = json.loads(file.path.read_text().splitlines()[0])
    assert set(fields) == {"experiment", "config", "values", "seconds", "versions", "time"}
