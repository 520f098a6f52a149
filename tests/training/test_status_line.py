from __future__ import annotations

import sys

import pytest

from rcgp.training import status_line
from rcgp.training.status_line import StatusLine


@pytest.fixture
def clock(monkeypatch):
    """The time, which stands still unless it is told not to."""
    now = [0.0]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_is_written_over_and_nothing_longer_is_left_of(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = StatusLine()
    line.show("12345")
    line.show("67")
    line.end()
    line.show("8")
    line.end()
    assert capsys.readouterr() == ("", "\r12345\r67   \n\r8\n")


def test_a_log_gets_a_line_now_and_then_and_the_last_one(clock, capsys):
    line = StatusLine()
    for second in range(25):
        clock[0] = float(second)
        line.show(f"{second} done")
    line.end()
    line.end()
    assert capsys.readouterr().err.splitlines() == ["10 done", "20 done", "24 done"]


def test_a_text_that_was_written_is_not_written_again(clock, capsys):
    line = StatusLine()
    clock[0] = 10.0
    line.show("all done")
    line.end()
    assert capsys.readouterr().err == "all done\n"


class OnlyWrites:
    """What some take the place of standard error with."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("stream", [None, OnlyWrites()])
def test_standard_error_may_be_missing_or_replaced(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    line = StatusLine()
    line.show("all done")
    line.end()
    if stream is not None:
        assert stream.text == "all done\n"
