"""Files of JSON lines: a torn line is neither extended nor read, and one process at a time holds a lock."""

from __future__ import annotations

import errno
import fcntl
import json

import pytest

from rcgp.saving.json_lines import LockedError, append_line, hold, parse_line


def test_a_line_after_an_incomplete_one_is_separate(tmp_path):
    path = tmp_path / "lines.jsonl"
    with open(path, "ab+") as file:
        append_line(file, json.dumps({"a": "β"}, ensure_ascii=False))
        file.write(b'{"a": ')
        append_line(file, "[1]")
        assert [parse_line(line) for line in path.read_bytes().splitlines()] == [{"a": "β"}, None, [1]]


def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path):
    path = tmp_path / "some.lock"
    for _ in range(2):
        with hold(path, "in use") as held:
            assert held
            with pytest.raises(LockedError, match="in use"), hold(path, "in use"):
                pass
            assert path.exists()
        assert not list(tmp_path.iterdir())


def test_without_locks_nothing_is_held(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold(tmp_path / "some.lock", "in use") as held:
        assert not held
    assert not list(tmp_path.iterdir())


def test_a_lock_file_that_cannot_be_created_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), hold(tmp_path / "file" / "some.lock", "in use"):
        pass
