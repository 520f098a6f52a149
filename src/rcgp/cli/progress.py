"""Fits with a progress bar on a terminal and without warnings, which the results report."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sklearn.exceptions import ConvergenceWarning

from rcgp import FitError
from rcgp.cli.options import many
from rcgp.estimator import IntervalWarning, NoiseLawWarning
from rcgp.table import TableError

__all__ = ["progress_bar", "quiet_fit"]

Table: TypeAlias = "pd.Series[float] | pd.DataFrame"


def quiet_fit(model: Any, X: Any, y: Table, used: Table, console: Console, title: str) -> None:
    """Fit any estimator, with progress on a terminal and without warnings, which the results report.

    An error names one of the rows of y that the model uses.
    """
    with progress_bar(console, title) as report, warnings.catch_warnings():
        for category in (ConvergenceWarning, NoiseLawWarning, IntervalWarning):
            warnings.simplefilter("ignore", category)  # reported by the summary, the doubts and a notice
        try:
            model.set_params(progress=report).fit(X, y)
        except FitError as error:
            clue = error.clue or f"whose {_cells(used, error.row)}"
            raise TableError(f"the fit failed: {error.reason}; look at row {used.index[error.row]}, {clue}") from error
    model.set_params(progress=False)


def _cells(y: Table, row: int) -> str:
    """The observations of a row, for messages."""
    cells = {y.name: y.iloc[row]} if isinstance(y, pd.Series) else y.iloc[row].dropna().to_dict()
    return " and ".join(f"{name!r} is {value:g}" for name, value in cells.items())


class _Report:
    """A callback that moves a progress bar with each evaluation of the objective and each chunk of a sparse fit."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._title, self._step = progress, title, ""
        self._task = progress.add_task(title, total=None)

    def __call__(self, evaluations: int, best: float) -> None:
        text = f"{self._title}{self._step}: {evaluations} evaluations, objective {best:.6g}"
        self._progress.update(self._task, description=text)

    def stage(self, name: str, done: int, total: int) -> None:
        """A step of a sparse fit, with the rows done and the total, 0 if unknown."""
        self._step = f", {name}"
        text = f"{self._title}{self._step}" + (f": {many(done)} of {many(total)} rows" if total else "")
        self._progress.update(self._task, description=text, completed=done, total=total or None)


@contextmanager
def progress_bar(console: Console, title: str) -> Iterator[_Report | bool]:
    """A bar that is removed at the end and pulses while the total is unknown; none without a terminal."""
    if not console.is_terminal:
        yield False
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Report(progress, title)
