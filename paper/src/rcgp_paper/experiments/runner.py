"""Runs the missing part of an experiment in parallel, with one thread in each process; may be killed at any time."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.metadata
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from threadpoolctl import threadpool_limits

import rcgp
from rcgp_paper.experiments.records import Config, Record, RecordFile, key_of

__all__ = ["Experiment", "Failure", "Options", "Progress", "code_state", "configs_of", "run_experiment", "runs_to_make"]

#: Processes that die in a row, without a finished run in between, after which an experiment is abandoned.
_MOST_DEATHS = 5

#: Seconds between reports of progress while no run ends.
_TICK = 5.0

#: The rooms of both packages that influence the values of a run.
_ROOMS = (
    *("baselines", "botorch", "core", "data", "estimator", "experiments", "models", "series", "training", "weights"),
)

#: Called with the number of finished runs and of all runs.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Options:
    """The amount to run.

    Attributes:
        protocol: ``"paper"``, the text of the paper, or ``"published"``, the authors' experiment.
        splits: repetitions of each configuration.
        quick: a small part of everything, as a check.
        methods: of the runs of a single method, only these; ``None`` is all.
    """

    protocol: str = "paper"
    splits: int = 50
    quick: bool = False
    methods: tuple[str, ...] | None = None


def _no_data(config: Config) -> None:
    return None


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: as the command line calls it.
        title: one line.
        configs: all runs for given options; each a dictionary of plain values.
        run: makes one of them and returns its values, also plain.
        most_jobs: limit of processes at a time, for an experiment that measures time.
        data_of: the data set that a run loads by :func:`rcgp_paper.data.load`, or ``None``.
    """

    name: str
    title: str
    configs: Callable[[Options], Sequence[Config]]
    run: Callable[[Config], dict[str, Any]]
    most_jobs: int | None = None
    data_of: Callable[[Config], str | None] = _no_data


@dataclass(frozen=True)
class Failure:
    """A run that raised, or whose process died."""

    config: Config
    error: str


def run_experiment(
    experiment: Experiment,
    options: Options,
    folder: Path,
    jobs: int = 1,
    progress: Progress | None = None,
    redo: str | None = None,
    without: Collection[str] = (),
) -> tuple[list[Record], list[Failure], list[str]]:
    """Make every run that has no record yet, or repeat recorded ones.

    Args:
        experiment: what to run.
        options: the amount.
        folder: of the file ``NAME.jsonl``.
        jobs: processes, each with one thread.
        progress: called after each run, and every few seconds while none ends.
        redo: a method, or ``"all"``: repeat only its recorded runs, ignoring the options: those of other code, so that
            an interrupted redo continues, or all if no record is of other code. The newer record counts.
        without: missing data sets; runs that load one of them are left out and do not count as failures.

    Returns:
        The records, old and new; the runs that failed, which get no record; and notices.

    Raises:
        LockedError: if another process runs the same experiment in the same folder.
    """
    file = RecordFile(folder / f"{experiment.name}.jsonl")
    with file.locked() as notices:
        notices += file.set_aside()
        known = {record.key: record for record in file}
        wanted, missing = _wanted(experiment, options, known, redo)
        left_out = {key_of(config) for config in missing if experiment.data_of(config) in without}
        wanted = [config for config in wanted if key_of(config) not in left_out]
        missing = [config for config in missing if key_of(config) not in left_out]
        done, failures = len(wanted) - len(missing), []
        if progress is not None:
            progress(done, len(wanted))
        for outcome in _outcomes(experiment, missing, min(jobs, experiment.most_jobs or jobs)):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            elif outcome is not None:
                file.append(outcome)
                known[outcome.key] = outcome
            done += outcome is not None
            if progress is not None:
                progress(done, len(wanted))
    return [known[key_of(config)] for config in wanted if key_of(config) in known], failures, notices


def configs_of(experiment: Experiment, options: Options) -> list[Config]:
    """All runs for given options. The choice of methods does not apply to runs of several methods."""
    chosen = options.methods
    return [c for c in experiment.configs(options) if chosen is None or "method" not in c or c["method"] in chosen]


def runs_to_make(experiment: Experiment, options: Options, folder: Path, redo: str | None = None) -> list[Config]:
    """What :func:`run_experiment` would run now. Writes nothing."""
    known = {record.key: record for record in RecordFile(folder / f"{experiment.name}.jsonl")}
    return _wanted(experiment, options, known, redo)[1]


def _wanted(
    experiment: Experiment, options: Options, known: Mapping[str, Record], redo: str | None
) -> tuple[list[Config], list[Config]]:
    """The requested configurations, and the configurations to run."""
    if redo is None:
        wanted = configs_of(experiment, options)
        return wanted, [config for config in wanted if key_of(config) not in known]
    # Records of a method that no longer exists stay in the file and are not repeated.
    methods = {config.get("method") for config in experiment.configs(Options())}
    chosen = [record for record in known.values() if redo in ("all", record.config.get("method"))]
    chosen = [record for record in chosen if record.config.get("method") in methods or redo != "all"]
    other = [record for record in chosen if record.code != code_state()]
    configs = [record.config for record in other or chosen]
    return configs, configs


def _outcomes(experiment: Experiment, configs: Sequence[Config], jobs: int) -> Iterator[Record | Failure | None]:
    """The outcome of each run as it ends, and None every few seconds while none ends.

    Runs whose process dies are failures, and the others continue in new processes, unless several die in a row.
    """
    waiting, deaths = deque(configs), 0
    while waiting and deaths < _MOST_DEATHS:
        for outcome in _outcomes_of_pool(experiment, waiting, jobs):
            if isinstance(outcome, _Died):
                deaths += 1
                yield from (Failure(config, "the process died; out of memory?") for config in outcome.configs)
            else:
                deaths = 0 if outcome is not None else deaths
                yield outcome
    yield from (Failure(config, f"not tried, after {deaths} processes died one after the other") for config in waiting)


@dataclass(frozen=True)
class _Died:
    """A process of the pool was killed in one of these runs."""

    configs: list[Config]


def _outcomes_of_pool(
    experiment: Experiment, waiting: deque[Config], jobs: int
) -> Iterator[Record | Failure | _Died | None]:
    """Make waiting runs until none is left or a process dies, which is then the last outcome."""
    # Not forked: a fork inherits the state of torch's threads.
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare_worker, initargs=(lifeline,))
    pending: dict[Future[Record | Failure], Config] = {}
    try:
        while waiting or pending:
            # No more than there are processes: when one dies, only these are lost.
            while waiting and len(pending) < jobs:
                with _interrupts_held():
                    future = pool.submit(_run_one, experiment, waiting[0])
                pending[future] = waiting.popleft()
            ended = wait(pending, timeout=_TICK, return_when=FIRST_COMPLETED).done
            if not ended:
                yield None
            for future in ended:
                outcome = future.result()
                del pending[future]
                yield outcome
    except BrokenProcessPool:
        lost = [config for future, config in pending.items() if not future.done() or future.exception() is not None]
        yield from (future.result() for future, config in pending.items() if config not in lost)
        # A death before any run was submitted counts for the next one, or it would repeat forever.
        yield _Died(lost or [waiting.popleft()])
    finally:
        if pending:  # interrupted
            held.close()
        pool.shutdown(cancel_futures=True)
        held.close()
        lifeline.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in this thread and in processes that it starts meanwhile, which stop by their lifeline."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_one(experiment: Experiment, config: Config) -> Record | Failure:
    began = time.perf_counter()
    try:
        values = experiment.run(config)
    except Exception as error:
        return Failure(config, f"{type(error).__name__}: {error}")
    return Record(
        experiment=experiment.name,
        config=config,
        values=values,
        seconds=time.perf_counter() - began,
        versions=_versions(),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seed=config.get("seed", config.get("index")),
        code=code_state(),
        machine=_machine(),
    )


def _prepare_worker(lifeline: Connection) -> None:
    """Use one thread, and exit when the other end of the lifeline is closed or its holder dies."""
    torch.set_num_threads(1)
    threadpool_limits(1)
    code_state()  # now: the source may change while the process runs

    def watch() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _versions() -> dict[str, str]:
    names = ["rcgp", "torch", "gpytorch", "botorch", "scipy", "numpy"]
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def _machine() -> dict[str, float]:
    """Cores, and memory in GiB."""
    return {"cores": os.cpu_count() or 1, "memory": round(psutil.virtual_memory().total / 2**30, 1)}


@functools.cache
def code_state() -> str:
    """A short hash of the names and contents of the source files that runs use, of rcgp and of this package."""
    digest = hashlib.sha256()
    for package in (Path(rcgp.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(path for room in _ROOMS for path in (package / room).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]
