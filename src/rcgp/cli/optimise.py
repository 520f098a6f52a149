"""The command ``rcgp optimise``: an external program as the objective, a progress bar, and the result.

The program runs once for each evaluation. It reads the parameters, a JSON object, from its standard input, and writes a
number as the last line of its standard output.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rcgp.table.encoding import printable

if TYPE_CHECKING:
    from rcgp.botorch import Evaluation, OptimisationResult

__all__ = ["optimise_program", "parameter_bounds", "print_found", "program_of"]

# Exit codes: no evaluation has a value, and interrupted.
_NOTHING_FOUND, _INTERRUPTED = 1, 130

# Characters kept of a program's last line, the reason of a failure.
_LONGEST = 200

# Seconds between lines of progress without a terminal.
_LINE_EVERY = 10.0

# Words with a meaning in a shell only.
_OF_A_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "&>"}


def parameter_bounds(given: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Bounds from texts such as ``x:0:1``. Raises ValueError for other forms and for a repeated name."""
    bounds: dict[str, tuple[float, float]] = {}
    for text in given:
        name, _, rest = text.partition(":")
        try:
            low, high = (float(part) for part in rest.split(":"))
        except ValueError:
            raise ValueError(f"--parameter {text!r} must be name:low:high, as in x:0:1") from None
        if not name or not name.isprintable():
            raise ValueError(f"--parameter {text!r} needs a name, as in x:0:1")
        if name in bounds:
            raise ValueError(f"--parameter {name!r} is given twice")
        bounds[name] = low, high
    return bounds


def program_of(command: str) -> list[str]:
    """The words of a command, run without a shell. Raises ValueError if it is empty, for a shell, or no program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"--command {command!r} cannot be read: {error}") from None
    if not words:
        raise ValueError("--command is empty")
    written = []
    with suppress(ValueError):  # a quote behind a backslash
        written = shlex.split(command, posix=False)  # with quotes, so that words without them are known
    for word in (word for word in written if word in _OF_A_SHELL):
        raise ValueError(
            f"--command {command!r}: no shell runs it, so {word!r} has no meaning; "
            "give sh -c '...', or quote it if it is an argument of the program"
        )
    if shutil.which(words[0]) is None:
        raise ValueError(f"--command {command!r}: there is no program {words[0]!r}; no shell runs it")
    return words


def optimise_program(
    command: str,
    parameters: Sequence[str],
    budget: int,
    maximise: bool,
    seed: int | None,
    trace: Path | None,
    timeout: float | None,
    console: Console,
) -> OptimisationResult:
    """Optimise what an external program computes, as :func:`rcgp.botorch.optimise` does.

    Raises:
        typer.Exit: with code 130 after an interrupt; with code 1 if all first evaluations failed for the same reason.
        ValueError: for bad input, and if BoTorch is missing.
    """
    words, bounds = program_of(command), parameter_bounds(parameters)
    if timeout is not None and not 0.0 < timeout < math.inf:
        raise ValueError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    try:
        from rcgp.botorch import EvaluationError, NoiseLawWarning, optimise
    except ImportError as error:
        raise ValueError(str(error)) from error
    try:
        with _progress(console, budget) as report, warnings.catch_warnings():
            warnings.simplefilter("ignore", NoiseLawWarning)  # doubts are printed with the result
            objective = functools.partial(_run, words, timeout)
            return optimise(objective, bounds, budget, maximise=maximise, seed=seed, trace=trace, progress=report)
    except KeyboardInterrupt:
        left = "nothing was kept: use --trace to keep it" if trace is None else "the same command continues from there"
        console.print(f"rcgp: interrupted; {left}", markup=False, soft_wrap=True)
        raise typer.Exit(_INTERRUPTED) from None
    except EvaluationError as error:
        console.print(f"rcgp: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(_NOTHING_FOUND) from None


def print_found(result: OptimisationResult, console: Console, as_json: bool) -> None:
    """Show a result, for people or as one JSON object. Raises typer.Exit with code 1 if no evaluation has a value."""
    if as_json:
        found: dict[str, Any] = {"x": result.x, "value": result.value, "deviation": result.deviation}
        found |= {"evaluation": result.number, "maximise": result.maximise}
        found["doubts"] = list(result.doubts)
        found |= {name: [_row(e) for e in getattr(result, name)] for name in ("evaluations", "outliers", "failed")}
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
    else:
        console.print(str(result), markup=False, soft_wrap=True)
    if result.x is None:
        raise typer.Exit(_NOTHING_FOUND)


def _row(e: Evaluation) -> dict[str, Any]:
    row: dict[str, Any] = {"evaluation": e.number, "x": e.x, "seconds": e.seconds}
    if e.value is None:
        return {**row, "reason": e.reason}
    predicted = {"expected": e.expected, "deviation": e.deviation}
    return {**row, "value": e.value, **predicted, "weight": e.weight, "outlier_probability": e.outlier_probability}


def _run(words: Sequence[str], timeout: float | None, x: dict[str, float]) -> float:
    """Run the program once. Raises EvaluationError if it ends with an error, takes too long, or writes no number."""
    from rcgp.botorch import EvaluationError

    # In its own process group, so that its children can be ended with it.
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(json.dumps(x).encode(), timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        raise EvaluationError(f"it took longer than {timeout:g} s") from None
    except BaseException:
        _end(process)
        raise
    said = _last_line(err)
    if process.returncode:
        code = process.returncode
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        raise EvaluationError(f"{how}: {said}" if said else how)
    last = _last_line(out)
    try:
        return float(last)
    except ValueError:
        wrote = f"its last line is not a number: {last!r}" if last else "it wrote nothing"
        raise EvaluationError(f"{wrote}; {said}" if said else wrote) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children, except those in their own session."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    process.wait()
    # Closed without reading on: a child in its own session may keep the pipes open.
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # unread output
                pipe.close()


def _last_line(output: bytes) -> str:
    """The last line that is not blank, with control characters escaped."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return printable(lines[-1].strip())[:_LONGEST] if lines else ""


@contextmanager
def _progress(console: Console, budget: int) -> Iterator[Callable[[int, float], None]]:
    """A bar that is removed at the end; a line every few seconds if standard error is not a terminal, such as a log."""
    # Rich treats a log as a terminal if FORCE_COLOR is set, as it is in some CI.
    if not (console.is_terminal and console.file.isatty()):
        yield _lines(console, budget)
        return
    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), *times
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("optimise", total=budget)

        def report(done: int, best: float) -> None:
            bar.update(task, completed=done, description=f"optimise{_found(best)}")

        yield report


def _lines(console: Console, budget: int) -> Callable[[int, float], None]:
    """Print the number of evaluations and the best value every few seconds."""
    last = time.monotonic()

    def report(done: int, best: float) -> None:
        nonlocal last
        now = time.monotonic()
        if done and now - last >= _LINE_EVERY:
            last = now
            line = f"optimise: {done} of {budget} evaluations{_found(best)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    return report


def _found(best: float) -> str:
    return "" if math.isnan(best) else f", best {best:.6g}"
