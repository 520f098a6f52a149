"""The runner: what has a record is never run again, whatever happened to the run before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rcgp.experiments import Experiment, Options, RecordFile, run_experiment

SCRIPT = """
import os, sys, time
from pathlib import Path
from rcgp.experiments import Experiment, Options, run_experiment

FOLDER = Path(sys.argv[1])

def configs(options):
    return [{"index": index} for index in range(8)]

def run(config):
    with open(FOLDER / "runs.log", "a") as log:
        log.write(f"{config['index']} {os.getpid()}\\n")
    time.sleep(0.3)
    return {"value": config["index"] ** 2}

if __name__ == "__main__":
    records, failures, notices = run_experiment(Experiment("slow", "slow", configs, run), Options(), FOLDER, jobs=2)
    print(len(records), len(failures), *notices)
"""


def started(script, folder):
    return subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True)


def log_of(folder):
    path = folder / "runs.log"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def is_running(pid):
    """Whether a process is there and not merely waiting to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_run_killed_without_warning_goes_on_where_it_stopped(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    records = RecordFile(tmp_path / "slow.jsonl")
    process = started(script, tmp_path)
    wait_for(lambda: len(list(records)) >= 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {record.config["index"] for record in records}
    workers = {pid for _, pid in log_of(tmp_path)}
    wait_for(lambda: not any(map(is_running, workers)))  # no worker outlives its parent
    before = len(log_of(tmp_path))
    assert started(script, tmp_path).communicate()[0].split()[:2] == ["8", "0"]
    again = {index for index, _ in log_of(tmp_path)[before:]}
    assert again == set(range(8)) - finished
    lines = records.path.read_text().splitlines()
    assert len(lines) == 8
    assert {record.config["index"]: record.values["value"] for record in records} == {i: i**2 for i in range(8)}


def configs(options):
    return [{"index": index} for index in range(options.splits)]


def run(config):
    if config["index"] == 1:
        raise ValueError("this one fails")
    return {"process": os.getpid()}


def test_a_run_that_fails_is_told_of_and_tried_again(tmp_path):
    experiment, told = Experiment("some", "some", configs, run), []
    for _ in range(2):
        records, failures, _ = run_experiment(
            experiment, Options(splits=4), tmp_path, jobs=2, progress=lambda done, total: told.append((done, total))
        )
        assert [record.config["index"] for record in records] == [0, 2, 3]
        assert [(failure.config, failure.error) for failure in failures] == [
            ({"index": 1}, "ValueError: this one fails")
        ]
    assert told[-1] == (4, 4)
    assert told[0] == (0, 4)
    assert (3, 4) in told[5:]  # the second time three are there from the beginning
    assert os.getpid() not in {record.values["process"] for record in records}


def test_more_repetitions_add_to_what_is_there(tmp_path):
    experiment = Experiment("some", "some", configs, _index)
    run_experiment(experiment, Options(splits=2), tmp_path)
    times = [record.time for record in RecordFile(tmp_path / "some.jsonl")]
    records, _, _ = run_experiment(experiment, Options(splits=3), tmp_path)
    assert [record.values["index"] for record in records] == [0, 1, 2]
    assert [record.time for record in records[:2]] == times


def _index(config):
    return {"index": config["index"]}
