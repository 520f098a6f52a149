"""The command ``rcgp reproduce``: run what is missing of the paper's tables and figures, then render them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rcgp.data import PROTOCOLS
from rcgp.experiments import EXPERIMENTS, Experiment, Options, RecordFile, run_experiment
from rcgp.experiments.records import Config
from rcgp.experiments.runner import Progress as Report
from rcgp.report.reproduction import render, write_page

__all__ = ["list_experiments", "reproduce"]

#: So many failed runs of an experiment are shown one by one.
_MOST_FAILURES = 10


def list_experiments(console: Console) -> None:
    """The names that ``reproduce`` takes, and what each is."""
    width = max(map(len, EXPERIMENTS))
    for name, experiment in EXPERIMENTS.items():
        console.print(f"{name:<{width}}  {experiment.title}", markup=False, soft_wrap=True)


def reproduce(
    name: str,
    protocol: str | None,
    splits: int | None,
    quick: bool,
    redo: str | None,
    folder: Path,
    jobs: int,
    console: Console,
) -> Path | None:
    """Do what the command line asks for; returns the page of everything, if that is part of it.

    Args:
        name: of an experiment, ``"all"`` or ``"report"``.
        protocol, splits: None where they were not given.
        quick: a small part only.
        redo: a method, or ``"all"``, whose recorded runs are made again instead.
        folder: of records, tables and figures.
        jobs: processes.
        console: for notices and progress.
    """
    if name not in ("all", "report", *EXPERIMENTS):
        raise ValueError(f"there is no experiment {name!r}: 'rcgp reproduce --list' shows all")
    names = list(EXPERIMENTS) if name == "all" else [name]
    options = Options(quick=quick)
    options = replace(options, protocol=protocol or options.protocol, splits=splits or options.splits)
    values = {"--protocol": protocol, "--splits": splits, "--quick": quick or None, "--redo": redo}
    given = [option for option, value in values.items() if value is not None]
    if name == "report":
        _tell([f"{option} means nothing to report" for option in given], console)
        return _page_of_all(folder, console)
    if redo is not None:
        _tell([f"{option} means nothing with --redo" for option in given if option != "--redo"], console)
    else:
        _tell(_ignored(names, options, given), console)
    if _run_and_render(names, options, folder, jobs, console, redo):
        raise ValueError("some runs failed, see above; the same command tries them again")
    return _page_of_all(folder, console) if name == "all" else None


def _run_and_render(
    names: Sequence[str], options: Options, folder: Path, jobs: int, console: Console, redo: str | None
) -> int:
    """Run and render experiments. Returns how many runs failed; each is told of and has no record."""
    if redo is not None:
        _check_redo(names, folder, redo)
    failed = 0
    for name in names:
        experiment = EXPERIMENTS[name]
        with _progress(experiment, console) as report:
            _, failures, notices = run_experiment(experiment, options, folder, jobs, report, redo)
        # Everything that the file holds, not only what was asked for now.
        paths, told = render(name, RecordFile(folder / f"{name}.jsonl").read()[0], folder)
        _tell([*notices, *told], console)
        for failure in failures[:_MOST_FAILURES]:
            _say(f"failed: {name} {failure.config}: {failure.error}", console)
        if len(failures) > _MOST_FAILURES:
            _say(f"failed: {name}, {len(failures) - _MOST_FAILURES} more", console)
        failed += len(failures)
        for path in paths:
            _say(f"{name}: {path}", console)
    return failed


def _page_of_all(folder: Path, console: Console) -> Path:
    """One page of every experiment that has records in the folder; what is wrong with them is told."""
    records = {}
    for name in EXPERIMENTS:
        records[name], notices = RecordFile(folder / f"{name}.jsonl").read()
        _tell(notices, console)
    if not any(records.values()):
        raise ValueError(f"there are no records in {str(folder)!r}: run 'rcgp reproduce all --quick' first")
    path, notices = write_page(records, folder)
    _tell(notices, console)
    return path


def _ignored(names: Sequence[str], options: Options, given: Sequence[str]) -> list[str]:
    """What to say of the options that were given but change nothing, or less than they say, in some experiments.

    Args:
        names: of the experiments.
        options: as given, with defaults.
        given: those of ``"--protocol"`` and ``"--splits"`` that are not defaults.
    """
    notices = []
    if "--protocol" in given:
        other = next(protocol for protocol in PROTOCOLS if protocol != options.protocol)
        same = [name for name in names if _configs(name, options) == _configs(name, replace(options, protocol=other))]
        if same:
            notices.append(f"--protocol means nothing to {', '.join(same)}")
    if "--splits" in given:
        fewer: dict[int, list[str]] = {}
        for name in names:
            repetitions = len({config.get("index") for config in _configs(name, options)})
            if repetitions < options.splits:
                fewer.setdefault(repetitions, []).append(name)
        for repetitions, those in fewer.items():
            times = "one repetition" if repetitions == 1 else f"{repetitions} repetitions"
            quick = " with --quick" if options.quick else ""
            notices.append(f"--splits {options.splits} is more than there are{quick}: {times} of {', '.join(those)}")
    return notices


def _tell(notices: Iterable[str], console: Console) -> None:
    """Show notices, one on a line."""
    for notice in notices:
        _say(f"note: {notice}", console)


def _say(text: str, console: Console) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _configs(name: str, options: Options) -> list[Config]:
    return list(EXPERIMENTS[name].configs(options))


def _check_redo(names: Sequence[str], folder: Path, redo: str) -> None:
    """Refuse a method that has no records: they cannot be made again."""
    records = [record for name in names for record in RecordFile(folder / f"{name}.jsonl")]
    methods = [record.config.get("method") for record in records]
    if not records or redo not in ("all", *methods):
        recorded = sorted({method for method in methods if isinstance(method, str)})
        known = f"; there are those of {', '.join(recorded)}" if recorded else ""
        raise ValueError(f"there are no records of {redo!r} to redo in {str(folder)!r}{known}")


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
    # By default only the last half minute counts, and the time left vanishes when a run takes longer.
    with Progress(*columns, console=console, speed_estimate_period=3600.0) as progress:
        task = progress.add_task(experiment.name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
