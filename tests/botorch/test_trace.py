"""The file of an optimisation's evaluations: what was finished is never lost and never repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rcgp.botorch.evaluations import Box, Evaluation
from rcgp.botorch.trace import Trace

BOX = Box.of({"x": (0, 1), "y": (-5, 10)})


def opened(path, box=BOX, maximise=False, seed=3, initial=None):
    return Trace(path, box, maximise, seed, initial)


def ended(number, x, y, value, reason="", seconds=0.0):
    return Evaluation(number, {"x": x, "y": y}, value, reason, seconds)


def fill(path, numbers=(1, 2)):
    with opened(path) as trace:
        for number in numbers:
            trace.start(number, {"x": 0.5, "y": 0.1 * number})
            trace.finish(ended(number, 0.5, 0.1 * number, 1.5 * number, seconds=0.25))


def test_what_is_written_is_read_again_to_the_bit(tmp_path):
    path = tmp_path / "trace.jsonl"
    awkward = ended(1, 1 / 3, 0.1 + 0.2, 2.0**-1074, seconds=0.125)
    failed = ended(2, 0.0, -5.0, None, 'ValueError: "no"\n\udc80', 1.0)
    with opened(path) as trace:
        trace.start(1, awkward.x)
        trace.finish(awkward)
        trace.finish(failed)
        trace.start(3, {"x": 1.0, "y": 10.0})
    with opened(path) as trace:
        assert [vars(e) for e in trace.finished.values()] == [vars(awkward), vars(failed)]
        assert trace.started == {1: awkward.x, 3: {"x": 1.0, "y": 10.0}}
        assert (trace.seed, trace.initial) == (3, 5)


def test_seed_and_initial_are_those_of_the_file_where_none_are_given(tmp_path):
    path = tmp_path / "trace.jsonl"
    with opened(path, seed=None, initial=9) as drawn:
        pass
    with opened(path, seed=None) as trace:
        assert (trace.seed, trace.initial) == (drawn.seed, 9)


def test_the_header_says_what_is_optimised(tmp_path):
    import rcgp

    fill(tmp_path / "trace.jsonl")
    first, second, third = (tmp_path / "trace.jsonl").read_text().splitlines()[:3]
    assert json.loads(first) == {
        "rcgp_trace": 1,
        "version": rcgp.__version__,
        "bounds": {"x": [0.0, 1.0], "y": [-5.0, 10.0]},
        "maximise": False,
        "seed": 3,
        "initial": 5,
    }
    assert json.loads(second) == {"event": "started", "number": 1, "x": {"x": 0.5, "y": 0.1}}
    assert json.loads(third)["event"] == "finished"


def test_a_file_cut_at_any_byte_is_read_as_far_as_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and only a crash needs it
    whole = tmp_path / "whole.jsonl"
    fill(whole)
    content, path = whole.read_bytes(), tmp_path / "cut.jsonl"
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        # A line is whole without the newline, too.
        lines = [line for line in content[: size + 1].splitlines(keepends=True)[1:] if line.endswith(b"\n")]
        finished = sum(b'"finished"' in line for line in lines)
        with opened(path) as trace:
            assert len(trace.finished) == finished, size
            trace.finish(ended(9, 0.5, 0.5, 9.0))
        with opened(path) as trace:
            assert sorted(trace.finished) == [*range(1, finished + 1), 9], size


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"box": Box.of({"x": (0, 2), "y": (-5, 10)})}, "bounds"),
        ({"box": Box.of({"y": (-5, 10), "x": (0, 1)})}, "bounds"),
        ({"box": Box.of([(0, 1), (-5, 10)])}, "bounds"),
        ({"maximise": True}, "maximise"),
        ({"seed": 4}, "seed"),
        ({"initial": 6}, "initial"),
    ],
)
def test_a_trace_of_another_optimisation_is_refused_and_left_as_it_was(tmp_path, changed, name):
    path = tmp_path / "trace.jsonl"
    fill(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"trace .*another optimisation: its {name} is"), opened(path, **changed):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"row,price\n1,2\n", b"{}\n", b'{"rcgp_trace": 2}\n', b"\xff\xfe", b"[" * 99999])
def test_a_file_of_another_kind_is_refused_and_left_as_it_was(tmp_path, content):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"trace .*another kind"), opened(path):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "finished", "number": 3, "x": {"x": 0.5, "y": 0.1}, "seconds": 1}',
        '{"event": "finished", "number": 3, "x": {"x": 0.5, "y": 0.1}, "seconds": 1, "value": NaN}',
        '{"event": "finished", "number": 3, "x": {"x": 0.5, "y": 0.1}, "seconds": 1, "value": "1"}',
        '{"event": "started", "number": 3, "x": {"x": 7, "y": 0.1}}',
        '{"event": "started", "number": 3, "x": {"x": 0.5}}',
        '{"event": "started", "number": 0, "x": {"x": 0.5, "y": 0.1}}',
        '{"event": "finished", "number": 3, "x": {"x": 0.5, "y": 0.1}, "seconds": NaN, "value": 1}',
        '{"event": "finished", "number": 3, "x": {"x": 0.5, "y": 0.1}, "seconds": 1, "value": 1' + 400 * "0" + "}",
        '{"event": "started", "number": 1' + 40 * "0" + ', "x": {"x": 0.5, "y": 0.1}}',
        '{"event": "begun", "number": 3, "x": {"x": 0.5, "y": 0.1}}',
        "[]",
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    fill(path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"trace .*damaged in line 6"), opened(path):
        pass


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"event": "started", "number": 3}', "x"),
        ('{"number": 3, "x": {"x": 0.5, "y": 0.1}}', "event"),
        ('{"event": "finished", "number": 3, "x": {"x": 0.5, "y": 0.1}, "seconds": 1}', "value"),
    ],
)
def test_a_field_that_is_missing_is_named(tmp_path, line, field):
    path = tmp_path / "trace.jsonl"
    fill(path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=f"damaged in line 6: it has no field '{field}'; repair"), opened(path):
        pass


@pytest.mark.parametrize("line", [b"", b"null", b"\x00\x00", b"\xff", b'{"event": "finis', b'"finished"', b"[" * 99999])
@pytest.mark.parametrize("place", [1, 2, 4, 5])
def test_an_unreadable_line_other_than_a_torn_end_is_named_and_kept(tmp_path, line, place):
    path = tmp_path / "trace.jsonl"
    fill(path)
    lines = path.read_bytes().splitlines()
    content = b"\n".join([*lines[:place], line, *lines[place:], b""])
    for end in (b"", b'{"event": "star'):  # a torn line at the end changes nothing
        path.write_bytes(content + end)
        told = rf"trace .*trace.jsonl' is damaged in line {place + 1}: it is not a JSON object; repair that line"
        with pytest.raises(ValueError, match=told), opened(path):
            pass
        assert path.read_bytes() == content + end


@pytest.mark.parametrize("torn", [b"{", b'{"event": "finished", "number": 3, "x": {"x": 0.', b"\x00\x00\x00", b"\xff"])
def test_a_last_line_cut_short_is_removed(tmp_path, torn):
    path = tmp_path / "trace.jsonl"
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with opened(path) as trace:
        assert sorted(trace.finished) == [1, 2]
    assert path.read_bytes() == whole
    fill(path, numbers=(3,))
    for line in path.read_bytes().splitlines():
        json.loads(line)


@pytest.mark.parametrize("first", ["finished", "failed"])
@pytest.mark.parametrize("second", ["finished", "failed"])
def test_an_evaluation_that_ends_twice_is_named(tmp_path, first, second):
    path = tmp_path / "trace.jsonl"
    fill(path, numbers=(1,))
    ends = {"finished": ended(2, 0.5, 0.2, 1.0), "failed": ended(2, 0.5, 0.2, None, "no")}
    with opened(path) as trace:
        trace.finish(ends[first])
        trace.start(2, {"x": 0.5, "y": 0.2})  # as often as it likes
        trace.start(2, {"x": 0.5, "y": 0.2})
    with opened(path) as trace:
        trace.finish(ends[second])
    with pytest.raises(ValueError, match=r"damaged in line 7: evaluation 2 has already ended"), opened(path):
        pass


def test_a_file_is_locked_against_others_and_free_afterwards(tmp_path):
    path = tmp_path / "trace.jsonl"
    code = (
        "import sys; from rcgp.botorch.evaluations import Box; from rcgp.botorch.trace import Trace\n"
        "box = Box.of({'x': (0, 1), 'y': (-5, 10)})\n"
        "with Trace(sys.argv[1], box, False, 3, None): print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(ValueError, match=r"trace .*in use"), opened(path):
            pass
    finally:
        other.kill()
        other.communicate()
    with opened(path), pytest.raises(ValueError, match=r"trace .*in use"), opened(path):
        pass
    with opened(path):
        pass


def test_a_file_that_cannot_be_written_raises_at_once(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "trace.jsonl", os.devnull):
        with pytest.raises(ValueError, match=r"trace .*cannot be written"), opened(path):
            pass


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(None)
    assert not list(tmp_path.iterdir())
