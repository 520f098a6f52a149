"""Running an experiment: what is not recorded yet, in parallel, one thread to a process.

A run may be killed at any time. Finished runs are on disk and are not repeated; a run that was under way is made again.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from rcgp.experiments.records import Config, Record, RecordFile, key_of

__all__ = ["Experiment", "Failure", "Options", "Progress", "run_experiment"]

#: Told the number of finished runs and of all runs.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Options:
    """How much to run.

    Attributes:
        protocol: ``"paper"``, the text of the paper, or ``"published"``, the authors' experiment.
        splits: repetitions of each configuration.
        quick: a small part of everything, to see that it works.
    """

    protocol: str = "paper"
    splits: int = 50
    quick: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: as the command line calls it.
        title: one line.
        configs: all runs for given options; each a dictionary of plain values.
        run: makes one of them and gives its values, also plain.
    """

    name: str
    title: str
    configs: Callable[[Options], Sequence[Config]]
    run: Callable[[Config], dict[str, Any]]


@dataclass(frozen=True)
class Failure:
    """A run that raised."""

    config: Config
    error: str


def run_experiment(
    experiment: Experiment, options: Options, folder: Path, jobs: int = 1, progress: Progress | None = None
) -> tuple[list[Record], list[Failure], list[str]]:
    """Make every run that has no record yet.

    Args:
        experiment: what to run.
        options: how much of it.
        folder: where ``NAME.jsonl`` is.
        jobs: processes, each with one thread.
        progress: told after each run.

    Returns:
        The records of all configurations, old and new; the runs that failed, which stay without a record; and notices.
    """
    file = RecordFile(folder / f"{experiment.name}.jsonl")
    records, notices = file.read()
    known = {record.key: record for record in records}
    wanted = list(experiment.configs(options))
    missing = [config for config in wanted if key_of(config) not in known]
    done, failures = len(wanted) - len(missing), []
    if progress is not None:
        progress(done, len(wanted))
    for outcome in _outcomes(experiment, missing, jobs):
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            file.append(outcome)
            known[outcome.key] = outcome
        done += 1
        if progress is not None:
            progress(done, len(wanted))
    return [known[key_of(config)] for config in wanted if key_of(config) in known], failures, notices


def _outcomes(experiment: Experiment, configs: Sequence[Config], jobs: int) -> Iterator[Record | Failure]:
    """What comes of each run, as it comes."""
    if not configs:
        return
    # Started anew and not forked, since a fork inherits the state of torch's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare_worker, initargs=(os.getpid(),)) as pool:
        queue = iter(configs)
        pending: set[Future[Record | Failure]] = set()
        try:
            while True:
                # A few at a time: when interrupted, nothing but these is waited for.
                while len(pending) < 2 * jobs and (config := next(queue, None)) is not None:
                    pending.add(pool.submit(_run_one, experiment, config))
                if not pending:
                    return
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
    )


def _prepare_worker(parent: int) -> None:
    """One thread for each process, and no process that outlives a parent that was killed."""
    torch.set_num_threads(1)
    threadpool_limits(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _versions() -> dict[str, str]:
    names = ("rcgp", "torch", "gpytorch", "scipy", "numpy")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}
