"""``rcgp optimise`` as its users meet it: their program, killed and resumed, and its errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rcgp.cli.optimise as commands
from rcgp.cli import run

# Reads the parameters, does what its first argument says, and writes one line for each call to its second.
PROGRAM = """
import json, os, sys, time
x = json.load(sys.stdin)
with open(sys.argv[2], "a") as log:
    print(json.dumps(x), file=log, flush=True)
number = len(open(sys.argv[2]).readlines())
value = (x["a"] - 0.3) ** 2 + 0.1 * x["b"] + 5.0 * (number == 4)
{body}
print("some text before")
print(value)
"""


@pytest.fixture
def program(tmp_path):
    """Makes a program with a body; returns its command, and its log."""

    def made(body="pass", log="log.txt"):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(body=body))
        return shlex.join([sys.executable, "-S", str(path), "text with spaces", str(tmp_path / log)]), tmp_path / log

    return made


def arguments(command, *more, budget=7):
    parameters = ["--parameter", "a:0:1", "--parameter", "b:-5:10"]
    return ["optimise", "--command", command, *parameters, "--budget", str(budget), "--seed", "0", *map(str, more)]


def calls(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_program_is_run_once_for_each_evaluation(program, capsys):
    command, log = program()
    assert run(arguments(command)) == 0
    out, err = capsys.readouterr()
    points = calls(log)
    assert len(points) == 7
    assert all(list(x) == ["a", "b"] and 0 <= x["a"] <= 1 and -5 <= x["b"] <= 10 for x in points)
    assert re.match(r"minimum -?[\d.e-]+ ± [\d.e-]+ after 7 evaluations\n  a  ", out)
    assert err == ""  # no terminal


def test_a_log_gets_lines_of_progress(program, capsys, monkeypatch):
    command, _ = program()
    monkeypatch.setattr(commands, "_LINE_EVERY", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # for which Rich takes a log for a terminal
    assert run(arguments(command)) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"optimise: {done} of 7 evaluations" for done in range(1, 8)]
    assert re.search(r", best -?[\d.e-]+$", lines[-1])


def test_it_stops_if_the_first_evaluations_all_fail_for_the_same_reason(program, capsys, tmp_path):
    command, log = program("sys.exit('no [flour]')")
    trace = tmp_path / "trace.jsonl"
    assert run(arguments(command, "--trace", trace, budget=30)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    reason = "all of the first 5 evaluations failed for the same reason: exit code 1: no [flour]"
    assert re.fullmatch(rf"rcgp: {re.escape(reason)}; .* with a new trace if there is one\n", err)
    assert len(calls(log)) == 5
    assert trace.read_text().count('"failed"') == 5


def test_quoted_shell_operators_are_arguments():
    assert commands.program_of("echo '|' a&b x>y") == ["echo", "|", "a&b", "x>y"]
    assert commands.program_of("sh -c 'echo 3 | cat'") == ["sh", "-c", "echo 3 | cat"]
    assert commands.program_of(r"echo it\'s") == ["echo", "it's"]


def test_json_holds_every_evaluation(program, capsys):
    command, log = program(body="if number == 2: sys.exit('no flour')")
    assert run(arguments(command, "--json", "--maximise")) == 0
    found = json.loads(capsys.readouterr().out)
    points = calls(log)
    assert [e["x"] for e in found["evaluations"]] == points
    assert found["failed"] == [found["evaluations"][1]]
    assert found["failed"][0]["reason"] == "exit code 1: no flour"
    assert found["x"] == points[found["evaluation"] - 1]
    assert found["maximise"] is True
    assert all(e["value"] < found["value"] + 5.5 for e in found["evaluations"] if "value" in e)
    assert found["outliers"] == [e for e in found["evaluations"] if (e.get("outlier_probability") or 0.0) > 0.5]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("raise ValueError('bad \\x1b[31m oven')", r"exit code 1: ValueError: bad \\x1b\[31m oven"),
        ("os.kill(os.getpid(), 9)", "ended by signal 9"),
        ("value = 'warm'", "its last line is not a number: 'warm'"),
        ("value = ''", "its last line is not a number: 'some text before'"),
        ("os._exit(0)", "it wrote nothing"),
        ("print('a hint', file=sys.stderr); os._exit(0)", "it wrote nothing; a hint"),
        ("value = 'nan'", "it returned nan"),
        ("value = '-inf'", "it returned -inf"),
        ("sys.stdout.buffer.write(bytes([255])); sys.stdout.flush(); os._exit(0)", "its last line is not a number"),
    ],
)
def test_a_program_that_fails_is_recorded_with_its_reason(program, capsys, body, reason):
    command, log = program(body)
    assert run(arguments(command, budget=2)) == 1
    out = capsys.readouterr().out
    assert out.startswith("2 evaluations, none of which has a value\n2 failed evaluations:\n  1  ")
    assert len(re.findall(reason, out)) == 2
    assert "\x1b" not in out
    assert len(calls(log)) == 2


def test_a_program_that_takes_too_long_is_ended_with_its_children(program, capsys, tmp_path):
    child = tmp_path / "child"
    body = f"""
import subprocess
child = subprocess.Popen(["sleep", "60"])  # holds the output open
open({str(child)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    command, _ = program(body)
    began = time.monotonic()
    assert run(arguments(command, "--timeout", "1.5", budget=1)) == 1
    assert time.monotonic() - began < 30
    assert "it took longer than 1.5 s" in capsys.readouterr().out
    with pytest.raises(ProcessLookupError):
        wait_for_end(int(child.read_text()))


def wait_for_end(pid):
    """Raises ProcessLookupError once the process is gone: its end may take a moment."""
    for _ in range(100):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":  # ended, but not waited for
                raise ProcessLookupError
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--parameter", "c"], "'c' must be name:low:high"),
        (["--parameter", "c:0"], "'c:0' must be name:low:high"),
        (["--parameter", "c:0:1:2"], "'c:0:1:2' must be name:low:high"),
        (["--parameter", "c:low:1"], "'c:low:1' must be name:low:high"),
        (["--parameter", ":0:1"], "needs a name"),
        (["--parameter", "a:0:1"], "'a' is given twice"),
        (["--parameter", "c:1:0"], "bounds of parameter 'c' must be low < high, got (1, 0)"),
        (["--parameter", "c:0:inf"], "bounds of parameter 'c' must be finite"),
        (["--parameter", "c:nan:1"], "bounds of parameter 'c' must be finite"),
        (["--budget", "0"], "budget"),
        (["--timeout", "0"], "--timeout must be a number of seconds above 0"),
        (["--timeout", "nan"], "--timeout must be a number of seconds above 0"),
        (["--command", ""], "--command is empty"),
        (["--command", "no-such-program-here"], "there is no program 'no-such-program-here'"),
        (["--command", "echo 'open"], "cannot be read"),
        (["--command", "echo 3 | cat"], "no shell runs it, so '|' has no meaning; give sh -c '...'"),
        (["--command", "echo 3 && echo 4"], "'&&' has no meaning"),
        (["--command", "cd"], "there is no program 'cd'; no shell runs it"),
        (["--trace", "no/such/folder/trace.jsonl"], "cannot be written: there is no folder"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_input_is_one_sentence_and_runs_nothing(program, capsys, monkeypatch, tmp_path, changed, message):
    monkeypatch.chdir(tmp_path)
    command, log = program()
    assert run(arguments(command, *changed)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rcgp: ")
    assert len(err.splitlines()) == 1
    assert message in err
    assert not log.exists()


def test_parameters_and_command_are_required(capsys):
    assert run(["optimise", "--command", "true"]) == 2
    assert "--parameter" in capsys.readouterr().err
    assert run(["optimise", "--parameter", "a:0:1"]) == 2
    assert "--command" in capsys.readouterr().err


def test_a_trace_of_other_bounds_is_refused(program, capsys, tmp_path):
    command, log = program()
    trace = tmp_path / "trace.jsonl"
    assert run(arguments(command, "--trace", trace, budget=1)) == 0
    assert run(arguments(command, "--trace", trace, "--maximise", budget=2)) == 2
    assert "another optimisation: its maximise is false and not true" in capsys.readouterr().err
    assert len(calls(log)) == 1


def test_without_botorch_the_extra_is_named(program, capsys, monkeypatch):
    command, log = program()
    for name in [name for name in sys.modules if name.startswith("rcgp.botorch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botorch", None)
    assert run(arguments(command)) == 2
    assert "pip install 'rcgp[botorch]'" in capsys.readouterr().err
    assert not log.exists()


def test_an_interrupt_ends_the_program_and_explains_how_to_resume(program, capsys, monkeypatch, tmp_path):
    command, _ = program()
    ended = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *arguments, **options):
            if not ended:
                ended.append(self)
                raise KeyboardInterrupt
            return super().communicate(*arguments, **options)

    monkeypatch.setattr(commands.subprocess, "Popen", Interrupted)
    trace = tmp_path / "trace.jsonl"
    assert run(arguments(command, "--trace", trace)) == 130
    assert "interrupted; the same command continues from there" in capsys.readouterr().err
    assert ended[0].returncode is not None
    assert [json.loads(line).get("event") for line in trace.read_text().splitlines()] == [None, "started"]
    ended.clear()
    assert run(arguments(command)) == 130
    assert "nothing was kept: use --trace" in capsys.readouterr().err


@pytest.mark.slow
def test_after_kill_9_the_same_command_resumes_without_repeating_evaluations(program, tmp_path, capsys):
    """Killed during the seventh evaluation, the second that the model chose."""
    command, log = program()
    assert run(arguments(command, "--json", budget=9)) == 0
    whole, points = json.loads(capsys.readouterr().out), calls(log)

    held = tmp_path / "held"
    hold = f"""
if number == 7:
    open({str(held) + ".new"!r}, "w").write(str(os.getpid()))
    os.rename({str(held) + ".new"!r}, {str(held)!r})
    time.sleep(60)
"""
    slow, other_log = program(hold, log="other.txt")
    trace = tmp_path / "trace.jsonl"
    line = [sys.executable, "-W", "ignore", "-m", "rcgp", *arguments(slow, "--trace", trace, budget=9)]
    process = subprocess.Popen(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
    try:
        for _ in range(2400):
            assert process.poll() is None
            if held.exists():
                break
            time.sleep(0.05)
        refused = run(arguments(command, "--trace", trace, budget=9))
        assert refused == 2
        assert "in use by another optimisation" in capsys.readouterr().err
    finally:
        process.kill()
        process.wait()
        if held.exists():
            os.kill(int(held.read_text()), signal.SIGKILL)  # which is orphaned
    assert process.returncode == -signal.SIGKILL
    assert len(calls(other_log)) == 7
    with trace.open("ab") as file:
        file.write(b'{"event": "finished", "number": 7, "x": {"a": 0.')  # half a line, as a kill may leave it

    # The program that goes on counts its calls on, and the seventh evaluation is made again.
    again, _ = program("number -= 1", log="other.txt")
    assert run(arguments(again, "--trace", trace, "--json", budget=9)) == 0
    resumed = json.loads(capsys.readouterr().out)
    made = calls(other_log)
    assert made[:7] == points[:7]
    assert made[7:] == points[6:]
    for one, other in zip(whole["evaluations"], resumed["evaluations"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert resumed["value"] == whole["value"]


def test_the_commands_that_the_page_shows_exist(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "optimisation.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert run(["optimise", "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    used = {word for line in lines if line.startswith("rcgp optimise") for word in line.split() if word[:2] == "--"}
    assert "--trace" in used
    assert used - {'--fast"'} <= known
