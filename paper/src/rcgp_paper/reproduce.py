"""Behind ``rcgp reproduce``: run the missing parts of the paper's tables and figures, then render them."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rcgp_paper.data import PROTOCOLS, unavailable
from rcgp_paper.experiments import (
    EXPERIMENTS,
    Experiment,
    Failure,
    Options,
    RecordFile,
    configs_of,
    run_experiment,
    runs_to_make,
)
from rcgp_paper.experiments.records import Config, hold_folder
from rcgp_paper.experiments.runner import Progress as Report
from rcgp_paper.report.reproduction import render, write_page

__all__ = ["list_experiments", "run_and_render_all"]

#: Failed runs of an experiment that are listed.
_MOST_FAILURES = 10

#: Seconds between lines of progress if standard error is not a terminal.
_LINE_EVERY = 30.0

#: The exit code if runs failed or lacked data; bad input has another.
_INCOMPLETE = 1


def list_experiments(console: Console) -> None:
    """Print the name and the title of each experiment."""
    width = max(map(len, EXPERIMENTS))
    for name, experiment in EXPERIMENTS.items():
        console.print(f"{name:<{width}}  {experiment.title}", markup=False, soft_wrap=True)


def run_and_render_all(
    name: str,
    protocol: str | None,
    splits: int | None,
    quick: bool,
    redo: str | None,
    folder: Path,
    jobs: int,
    console: Console,
    methods: Sequence[str] | None = None,
) -> Path | None:
    """Run and render experiments; returns the page of everything for ``"all"`` and ``"report"``.

    The arguments are the options of the command; None is the default. One failure does not stop the others; failures
    are listed at the end, and typer.Exit raised with code 1.
    """
    if name not in ("all", "report", *EXPERIMENTS):
        raise ValueError(f"there is no experiment {name!r}: 'rcgp reproduce --list' shows all")
    names = list(EXPERIMENTS) if name == "all" else [name]
    options = Options(quick=quick)
    options = replace(options, protocol=protocol or options.protocol, splits=splits or options.splits)
    values = {"--protocol": protocol, "--splits": splits, "--quick": quick, "--methods": methods, "--redo": redo}
    given = [option for option, value in values.items() if value]
    if name == "report":
        _print_notes([f"{option} has no effect on report" for option in given], console)
        page = _page_of_all(folder, console)
        if page is None:
            raise ValueError(f"there are no records in {str(folder)!r}: run 'rcgp reproduce all --quick' first")
        return page
    if redo is not None:
        _print_notes([f"{option} has no effect with --redo" for option in given if option != "--redo"], console)
        _check_redo(names, folder, redo)
    else:
        if methods:
            options = replace(options, methods=_known_methods(methods, names, options))
        _print_notes(_ignored(names, options, given), console)
    with hold_folder(folder):
        complete = _run_and_render(names, options, folder, jobs, console, redo)
    page = _page_of_all(folder, console) if name == "all" else None
    if not complete:
        if page is not None:
            typer.echo(page)
        _print("rcgp: not everything could be done, see above; the same command tries the rest again", console)
        raise typer.Exit(_INCOMPLETE)
    return page


def _run_and_render(
    names: Sequence[str], options: Options, folder: Path, jobs: int, console: Console, redo: str | None
) -> bool:
    """Run and render experiments; list failures, also at an interrupt. Returns whether there were none."""
    lacking, left_out = _missing_data(names, options, folder, redo)
    for reason in dict.fromkeys(lacking.values()):
        _print(f"missing data: {reason}", console)
    troubles: list[str] = []
    try:
        for name in names:
            try:
                failures = _run_and_render_one(EXPERIMENTS[name], options, folder, jobs, console, redo, lacking)
            except Exception as error:
                if len(names) == 1:
                    raise
                # The other experiments continue.
                troubles.append(f"failed: {name}: {type(error).__name__}: {error}")
            else:
                shown = failures[:_MOST_FAILURES]
                troubles += [f"failed: {name} {failure.config}: {failure.error}" for failure in shown]
                if len(failures) > len(shown):
                    troubles.append(f"failed: {name}, {len(failures) - len(shown)} more")
    finally:
        for (name, data), count in left_out.items():
            _print(f"not run: {name}, {_runs(count)}, for want of {data}", console)
        for trouble in troubles:
            _print(trouble, console)
    return not (troubles or left_out)


def _run_and_render_one(
    experiment: Experiment,
    options: Options,
    folder: Path,
    jobs: int,
    console: Console,
    redo: str | None,
    lacking: Mapping[str, str],
) -> list[Failure]:
    """Make the runs of an experiment whose data are there, and render all of its records. Returns failed runs."""
    name = experiment.name
    with _progress(experiment, console) as report:
        _, failures, notices = run_experiment(experiment, options, folder, jobs, report, redo, tuple(lacking))
    paths, more = render(name, RecordFile(folder / f"{name}.jsonl").read()[0], folder)
    _print_notes([*notices, *more], console)
    for path in paths:
        _print(f"{name}: {path}", console)
    return failures


def _missing_data(
    names: Sequence[str], options: Options, folder: Path, redo: str | None
) -> tuple[dict[str, str], Counter[tuple[str, str]]]:
    """Missing data sets with their remedies, and the number of runs that lack them, by experiment and data."""
    needed: Counter[tuple[str, str]] = Counter()
    for name in names:
        experiment = EXPERIMENTS[name]
        found = [experiment.data_of(config) for config in runs_to_make(experiment, options, folder, redo)]
        needed.update((name, data) for data in found if data is not None)
    lacking = unavailable(data for _, data in needed)
    return lacking, Counter({key: count for key, count in needed.items() if key[1] in lacking})


def _runs(count: int) -> str:
    return f"{count} run{'s' if count != 1 else ''}"


def _page_of_all(folder: Path, console: Console) -> Path | None:
    """One page of all experiments with records in the folder; None if there are none."""
    records = {}
    for name in EXPERIMENTS:
        records[name], notices = RecordFile(folder / f"{name}.jsonl").read()
        _print_notes(notices, console)
    if not any(records.values()):
        return None
    path, notices = write_page(records, folder)
    _print_notes(notices, console)
    return path


def _ignored(names: Sequence[str], options: Options, given: Sequence[str]) -> list[str]:
    """Notices about given options that have no effect, or a smaller one, in some experiments."""
    notices = []
    if "--methods" in given:
        whole = [name for name in names if any("method" not in config for config in _configs(name, options))]
        if whole:
            notices.append(f"--methods has no effect on {', '.join(whole)}")
    if "--protocol" in given:
        other = next(protocol for protocol in PROTOCOLS if protocol != options.protocol)
        same = [name for name in names if _configs(name, options) == _configs(name, replace(options, protocol=other))]
        if same:
            notices.append(f"--protocol has no effect on {', '.join(same)}")
    if "--splits" in given:
        fewer: dict[int, list[str]] = {}
        for name in names:
            repetitions = len({config.get("index") for config in _configs(name, options)})
            if 0 < repetitions < options.splits:
                fewer.setdefault(repetitions, []).append(name)
        for repetitions, some in fewer.items():
            times = "one repetition" if repetitions == 1 else f"{repetitions} repetitions"
            quick = " with --quick" if options.quick else ""
            notices.append(f"--splits {options.splits} is more than there are{quick}: {times} of {', '.join(some)}")
    return notices


def _print_notes(notices: Iterable[str], console: Console) -> None:
    for notice in notices:
        _print(f"note: {notice}", console)


def _print(text: str, console: Console) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _configs(name: str, options: Options) -> list[Config]:
    return configs_of(EXPERIMENTS[name], options)


def _known_methods(given: Sequence[str], names: Sequence[str], options: Options) -> tuple[str, ...]:
    """The methods named; raises ValueError for an unknown one."""
    methods = tuple(name.strip() for text in given for name in text.split(","))
    configs = [config for name in names for config in _configs(name, options)]
    known = list(dict.fromkeys(config["method"] for config in configs if "method" in config))
    if not known:
        raise ValueError(f"the runs of {', '.join(names)} are not of single methods: leave --methods out")
    unknown = [name for name in methods if name not in known]
    if unknown:
        raise ValueError(f"there is no method {unknown[0]!r}: name some of {', '.join(known)}")
    return methods


def _check_redo(names: Sequence[str], folder: Path, redo: str) -> None:
    """Raise ValueError for a method without records."""
    records = [record for name in names for record in RecordFile(folder / f"{name}.jsonl")]
    methods = [record.config.get("method") for record in records]
    if not records or redo not in ("all", *methods):
        recorded = sorted({method for method in methods if isinstance(method, str)})
        known = f"; there are those of {', '.join(recorded)}" if recorded else ""
        raise ValueError(f"there are no records of {redo!r} to redo in {str(folder)!r}{known}")


@contextmanager
def _progress(experiment: Experiment, console: Console) -> Iterator[Report]:
    """A bar with the time left; a line every half minute if standard error is not a terminal."""
    # Rich treats a log as a terminal if FORCE_COLOR is set, as in some CI.
    if not (console.is_interactive and console.file.isatty()):
        yield _lines(experiment, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # By default the time left vanishes when a run takes longer than half a minute.
    with Progress(*columns, console=console, speed_estimate_period=3600.0) as progress:
        task = progress.add_task(experiment.name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(experiment: Experiment, console: Console) -> Report:
    """Print the number of finished runs and the time left every half minute, and at the end.

    The time left is estimated from runs that ended in this session.
    """
    began = last = time.monotonic()
    before: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal before, last
        now = time.monotonic()
        before = done if before is None else before
        all_done_late = done == total and last > began
        if now - last < _LINE_EVERY and not all_done_late:
            return
        last = now
        new, elapsed = done - before, now - began
        left = f", about {_duration((total - done) * elapsed / new)} left" if new else ", time left not known yet"
        left = left if done < total else ""
        _print(f"{experiment.name}: {done} of {_runs(total)} done in {_duration(elapsed)}{left}", console)

    return report


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
