"""The runner: what has a record is never run again, whatever happened to the run before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rcgp_paper.experiments import (
    Experiment,
    LockedError,
    Options,
    Record,
    RecordFile,
    configs_of,
    run_experiment,
    runner,
    runs_to_make,
)
from rcgp_paper.experiments.runner import code_state


class Threads(ThreadPoolExecutor):
    """Instead of a pool of processes: each takes seconds to start, and the records are the same."""

    def __init__(self, jobs, **_):
        super().__init__(jobs)


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Threads)


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from rcgp_paper.experiments import Experiment, Options, run_experiment

FOLDER = Path(sys.argv[1])

def configs(options):
    return [{"index": index} for index in range(8)]

def run(config):
    with open(FOLDER / "runs.log", "a") as log:
        log.write(f"{config['index']} {os.getpid()}\\n")
    time.sleep(0.3)
    return {"value": config["index"] ** 2}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without it
    records, failures, notices = run_experiment(Experiment("slow", "slow", configs, run), Options(), FOLDER, jobs=2)
    print(len(records), len(failures), *notices)
"""


def started(script, folder, **options):
    return subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True, **options)


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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_killed_run_resumes_where_it_stopped(tmp_path):
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
    assert not (tmp_path / "slow.jsonl.lock").exists()
    assert {record.config["index"]: record.values["value"] for record in records} == {i: i**2 for i in range(8)}


def test_while_another_runs_the_same_nothing_is_run(tmp_path):
    with (
        RecordFile(tmp_path / "some.jsonl").locked(),
        pytest.raises(LockedError, match="another process is running some in"),
    ):
        run_experiment(Experiment("some", "some", configs, run), Options(splits=1), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_interrupt_ends_the_run_at_once_and_without_a_word_from_the_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("time.sleep(0.3)", "time.sleep(0.3 if config['index'] < 2 else 600)"))
    process = started(script, tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    records = RecordFile(tmp_path / "slow.jsonl")
    wait_for(lambda: len(list(records)) == 2 and len(log_of(tmp_path)) == 4)
    os.killpg(process.pid, signal.SIGINT)  # as the keyboard does: to all processes
    _, err = process.communicate(timeout=30)
    assert err.count("Traceback") == 1  # of the script itself
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert len(list(records)) == 2
    assert not any(is_running(pid) for _, pid in log_of(tmp_path))
    assert not (tmp_path / "slow.jsonl.lock").exists()


def configs(options):
    return [{"index": index} for index in range(options.splits)]


def run(config):
    if config["index"] == 1:
        raise ValueError("this one fails")
    return {"process": os.getpid()}


@pytest.mark.slow
def test_a_failed_run_is_reported_and_tried_again(tmp_path):
    experiment, reports = Experiment("some", "some", configs, run), []
    for _ in range(2):
        records, failures, _ = run_experiment(
            experiment, Options(splits=4), tmp_path, jobs=2, progress=lambda done, total: reports.append((done, total))
        )
        assert [record.config["index"] for record in records] == [0, 2, 3]
        assert [(failure.config, failure.error) for failure in failures] == [
            ({"index": 1}, "ValueError: this one fails")
        ]
    assert reports[-1] == (4, 4)
    assert reports[0] == (0, 4)
    assert (3, 4) in reports[5:]  # the second time three are there from the beginning
    assert os.getpid() not in {record.values["process"] for record in records}


def _slow(config):
    time.sleep(0.5)
    return {}


def test_progress_is_reported_while_no_run_ends(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_TICK", 0.02)
    reports = []
    experiment = Experiment("some", "some", configs, _slow)
    records, failures, _ = run_experiment(
        experiment, Options(splits=1), tmp_path, progress=lambda done, total: reports.append((done, total))
    )
    assert (len(records), failures) == (1, [])
    assert reports[0] == (0, 1)
    assert reports.count((0, 1)) > 5
    assert reports.count((1, 1)) == 1


def _by_parity(config):
    return ("even", "odd")[config["index"] % 2]


def test_runs_without_their_data_are_left_out_and_recorded_ones_are_not(threads, tmp_path):
    recorded(tmp_path, [{"index": 1}])
    experiment, reports = Experiment("some", "some", configs, _process, data_of=_by_parity), []
    records, failures, _ = run_experiment(
        experiment,
        Options(splits=5),
        tmp_path,
        progress=lambda done, total: reports.append((done, total)),
        without=("odd",),
    )
    assert failures == []
    assert [record.config["index"] for record in records] == [0, 1, 2, 4]
    assert (reports[0], reports[-1]) == ((1, 4), (4, 4))
    assert runs_to_make(experiment, Options(splits=5), tmp_path) == [{"index": 3}]
    # Recorded runs cannot be made again without their data either.
    redone, failures, _ = run_experiment(experiment, Options(), tmp_path, redo="all", without=("odd", "even"))
    assert (redone, failures) == ([], [])
    assert len(RecordFile(tmp_path / "some.jsonl").path.read_bytes().splitlines()) == 4


def test_runs_to_make_are_listed_without_writing(tmp_path):
    experiment = Experiment("some", "some", _methods, _process)
    recorded(tmp_path / "there", [{"method": "gp", "index": 0}], code_state())
    assert runs_to_make(experiment, Options(splits=1), tmp_path / "there") == [{"method": "rcgp", "index": 0}]
    assert runs_to_make(experiment, Options(), tmp_path / "there", redo="gp") == [{"method": "gp", "index": 0}]
    assert len(runs_to_make(experiment, Options(splits=3), tmp_path / "new")) == 6
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "some.jsonl"]


def test_some_methods_are_run_and_runs_of_no_method_all(threads, tmp_path):
    experiment = Experiment("some", "some", _methods, _process)
    records, _, _ = run_experiment(experiment, Options(splits=2, methods=("rcgp",)), tmp_path)
    assert [record.config for record in records] == [{"method": "rcgp", "index": index} for index in range(2)]
    whole = Experiment("some", "some", configs, _process)
    assert configs_of(whole, Options(splits=3, methods=("rcgp",))) == configs(Options(splits=3))


def recorded(folder, configs, code="older"):
    """A file of records that other code has made."""
    file = RecordFile(folder / "some.jsonl")
    for config in configs:
        file.append(Record("some", config, {"process": 0}, code=code))
    return file


def _process(config):
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return {"process": os.getpid(), "deaf": signal.SIGINT in held}


def test_more_repetitions_add_to_what_is_there(tmp_path):
    recorded(tmp_path, configs(Options(splits=2)))
    records, _, _ = run_experiment(Experiment("some", "some", configs, _process), Options(splits=3), tmp_path)
    assert [record.config["index"] for record in records] == [0, 1, 2]
    assert [record.code for record in records[:2]] == ["older", "older"]
    new = records[2]
    assert re.fullmatch("[0-9a-f]{12}", new.code)
    assert new.values["deaf"]  # an interrupt is for the process that the user started: it ends the others
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert new.seed == 2
    assert new.machine["cores"] == os.cpu_count()
    assert {"python", "rcgp", "torch"} <= set(new.versions)


def test_broken_lines_are_set_aside_by_a_run(tmp_path):
    path = recorded(tmp_path, configs(Options(splits=2))).path
    path.write_bytes(path.read_bytes() + b'{"cut sho')
    experiment = Experiment("some", "some", configs, _process)
    records, _, notices = run_experiment(experiment, Options(splits=2), tmp_path)
    assert notices == [f"{path}: 1 broken line set aside in some.jsonl.damaged; 2 kept"]
    assert RecordFile(path).read()[1] == []
    assert [record.config["index"] for record in records] == [0, 1]


def _deadly(config):
    if config["index"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does when memory is short
    return {}


@pytest.mark.slow
def test_a_process_that_dies_is_a_failure_and_the_others_continue(tmp_path):
    experiment, reports = Experiment("some", "some", configs, _deadly), []
    records, failures, _ = run_experiment(
        experiment, Options(splits=4), tmp_path, progress=lambda done, total: reports.append((done, total))
    )
    assert [record.config["index"] for record in records] == [0, 2, 3]
    assert [(failure.config, failure.error) for failure in failures] == [
        ({"index": 1}, "the process died; out of memory?")
    ]
    assert reports[-1] == (4, 4)


def _always_deadly(config):
    os._exit(1)


def test_an_experiment_whose_processes_always_die_is_abandoned(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_MOST_DEATHS", 1)
    experiment = Experiment("some", "some", configs, _always_deadly)
    records, failures, _ = run_experiment(experiment, Options(splits=3), tmp_path)
    assert records == []
    assert [failure.config["index"] for failure in failures] == list(range(3))
    assert [failure.error.startswith("not tried") for failure in failures] == [False, True, True]


def test_the_code_is_identified_by_the_content_of_its_files(tmp_path, monkeypatch):
    (tmp_path / "core").mkdir()
    path = tmp_path / "core" / "file.py"
    monkeypatch.setattr(runner, "__file__", str(path))
    states = []
    for content in ("a = 1", "a = 2", "a = 1"):
        path.write_text(content)
        states.append(code_state.__wrapped__())
    assert states[0] == states[2] != states[1]
    # What draws and prints has no say in what comes out of a run.
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "file.py").write_text("b = 1")
    assert code_state.__wrapped__() == states[0]
    path.rename(tmp_path / "core" / "other.py")
    assert code_state.__wrapped__() not in states


def _methods(options):
    return [{"method": method, "index": index} for index in range(options.splits) for method in ("gp", "rcgp")]


def test_the_records_of_one_method_are_made_again_and_the_new_ones_count(threads, tmp_path):
    file = recorded(tmp_path, _methods(Options(splits=2)), code_state())
    lines = file.path.read_bytes()
    # All are of this code: all of the method are made again, and nothing that was never run.
    redone, failures, _ = run_experiment(
        Experiment("some", "some", _methods, _process), Options(splits=9), tmp_path, redo="gp"
    )
    assert failures == []
    assert [record.config for record in redone] == [{"method": "gp", "index": index} for index in range(2)]
    assert file.path.read_bytes().startswith(lines)  # append-only
    assert len(file.path.read_bytes().splitlines()) == 6
    assert {(record.config["method"], record.values["process"] > 0) for record in file} == {
        ("gp", True),
        ("rcgp", False),
    }
    assert len(list(file)) == 4


def test_redo_continues_with_records_of_other_code(threads, tmp_path):
    first, *others = _methods(Options(splits=2))
    file = recorded(tmp_path, others, code_state())
    recorded(tmp_path, [first], "older")
    redone, _, _ = run_experiment(Experiment("some", "some", _methods, _process), Options(), tmp_path, redo="all")
    assert [record.config for record in redone] == [first]
    assert "older" not in {record.code for record in file}


def test_records_of_a_removed_method_are_kept_but_not_repeated(threads, tmp_path):
    file = recorded(tmp_path, [*_methods(Options(splits=1)), {"method": "gone", "index": 0}], "older")
    some = Experiment("some", "some", _methods, _process)
    redone, failures, _ = run_experiment(some, Options(), tmp_path, redo="all")
    assert failures == []
    assert {record.config["method"] for record in redone} == {"gp", "rcgp"}
    assert {record.config["method"] for record in file} == {"gp", "rcgp", "gone"}


def _two_at_a_time(options):
    return [{"index": index} for index in range(2)]


def _own_process(config):
    return {"process": os.getpid()}


def test_an_experiment_that_measures_time_has_the_machine_to_itself(tmp_path):
    alone = Experiment("alone", "", _two_at_a_time, _own_process, most_jobs=1)
    records, failures, _ = run_experiment(alone, Options(), tmp_path, jobs=2)
    assert not failures
    assert len({record.values["process"] for record in records}) == 1
