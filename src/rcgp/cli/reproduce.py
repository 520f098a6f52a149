"""The command ``rcgp reproduce``: run what is missing of the paper's tables and figures, then render them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rcgp.experiments import EXPERIMENTS, Experiment, Options, Record, RecordFile, run_experiment
from rcgp.experiments.runner import Progress as Report
from rcgp.report.reproduction import render, write_page

__all__ = ["list_experiments", "page_of_all", "reproduce"]


def list_experiments(console: Console) -> None:
    """The names that ``reproduce`` takes, and what each is."""
    width = max(map(len, EXPERIMENTS))
    for name, experiment in EXPERIMENTS.items():
        console.print(f"{name:<{width}}  {experiment.title}", markup=False, soft_wrap=True)


def reproduce(names: Sequence[str], options: Options, folder: Path, jobs: int, console: Console) -> int:
    """Run and render experiments. Returns how many runs failed; each is told of and has no record."""
    failed = 0
    for name in names:
        experiment = EXPERIMENTS[name]
        with _progress(experiment, console) as report:
            _, failures, notices = run_experiment(experiment, options, folder, jobs, report)
        for notice in notices:
            console.print(f"note: {notice}", markup=False, soft_wrap=True)
        for failure in failures:
            console.print(f"failed: {name} {failure.config}: {failure.error}", markup=False, soft_wrap=True)
        failed += len(failures)
        # Everything that the file holds, not only what was asked for now.
        for path in render(name, _records(name, folder), folder):
            console.print(f"{name}: {path}", markup=False, soft_wrap=True)
    return failed


def page_of_all(folder: Path) -> Path:
    """One page of every experiment that has records in the folder."""
    records = {name: _records(name, folder) for name in EXPERIMENTS}
    if not any(records.values()):
        raise ValueError(f"there are no records in {str(folder)!r}: run 'rcgp reproduce all --quick' first")
    return write_page(records, folder)


def _records(name: str, folder: Path) -> list[Record]:
    return RecordFile(folder / f"{name}.jsonl").read()[0]


@contextmanager
def _progress(experiment: Experiment, console: Console) -> Iterator[Report | None]:
    """A bar with the time left; where nobody looks, none."""
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(experiment.name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
