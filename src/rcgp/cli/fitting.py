"""From a table in a file to a fitted model: what ``fit``, ``outliers`` and ``report`` have in common."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sklearn.exceptions import ConvergenceWarning

from rcgp import AdaptiveReport, FitError
from rcgp.estimator import RCGPRegressor
from rcgp.table import Encoding, Missing, TableError, encode, learn_encoding, read_table

__all__ = ["Fitted", "Options", "fit_plain", "fit_table"]

# n x n matrices of float64 that a leave-one-out prediction of all rows holds at once, at its peak.
_MATRICES = 5


@dataclass(frozen=True)
class Options:
    """How to fit, as the command line says."""

    target: str
    features: Sequence[str] | None
    exclude: Sequence[str]
    missing: Missing
    centre: str
    weight: str | None
    epsilon: float | None
    mean: str
    restarts: int
    fit_rows: int
    seed: int


@dataclass(frozen=True)
class Fitted:
    """A fitted model, the numbers that it was fitted to, and what the user should know."""

    model: RCGPRegressor
    encoding: Encoding
    X: pd.DataFrame
    y: pd.Series[float]
    notices: list[str]


def fit_table(path: Path, options: Options, console: Console) -> Fitted:
    """Read a table, turn it into numbers and fit the robust model, showing progress on the console."""
    table = read_table(path)
    columns = list(table.columns)
    features = None if options.features is None else _column_names(options.features, columns)
    exclude = _column_names(options.exclude, columns)
    encoding, notices = learn_encoding(table, options.target, features, options.missing, exclude)
    encoded = encode(table, encoding, options.missing)
    if encoded.y is None:  # which encode gives when asked for it
        raise TypeError("the target is missing")
    notices += encoded.notices
    rows = len(encoded.y)
    _check_memory(rows)
    if rows > options.fit_rows:
        notices.append(
            f"hyperparameters were chosen on a random sample of {options.fit_rows} of {rows} rows (--fit-rows); the "
            "fitted model uses all rows"
        )
    objective = "marginal" if options.weight == "constant" else "loo"
    model = _regressor(options, options.centre, options.weight, objective)
    _fit(model, encoded.X, encoded.y, console, "Fitting the model")
    return Fitted(model, encoding, encoded.X, encoded.y, notices + _fit_notices(model, encoded.y))


def fit_plain(fitted: Fitted, options: Options, console: Console) -> RCGPRegressor:
    """An ordinary GP of the same data, for comparison."""
    plain = _regressor(options, "prior", "constant", "marginal")
    _fit(plain, fitted.X, fitted.y, console, "Fitting a plain GP to compare")
    return plain


def _fit(model: RCGPRegressor, X: pd.DataFrame, y: pd.Series[float], console: Console, title: str) -> None:
    """Fit, with progress on a terminal; a fit that fails names the row of the file."""
    with _progress(console, title) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the summary says so
        try:
            model.set_params(progress=report).fit(X, y)
        except FitError as error:
            raise TableError(
                f"the fit failed: {error.reason}; look at row {y.index[error.row]}, whose {y.name!r} is "
                f"{y.iloc[error.row]:g}"
            ) from error
    model.set_params(progress=False)


def _regressor(options: Options, centre: str, weight: str | None, objective: str) -> RCGPRegressor:
    return RCGPRegressor(
        centre=centre,
        weight=weight,
        objective=objective,
        epsilon=options.epsilon,
        mean=options.mean,
        n_restarts=options.restarts,
        fit_rows=options.fit_rows,
        random_state=options.seed,
    )


def _column_names(given: Sequence[str], columns: list[str]) -> list[str]:
    """The columns that ``--features`` names: each value is a column's name, or several with commas between."""
    names: list[str] = []
    for value in given:
        names += [value] if value in columns else [part.strip() for part in value.split(",")]
    return names


def _check_memory(rows: int) -> None:
    """Refuse a table whose exact fit needs more memory than there is."""
    needed, free = _MATRICES * 8 * rows**2, _available_memory()
    if free is not None and needed > free:
        raise TableError(
            f"an exact fit of {rows} rows needs about {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} are "
            "free: use fewer rows"
        )


def _available_memory() -> int | None:
    """Free memory in bytes, within the limit of a container if there is one; None where the system does not say."""
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        free.append(int(limit) - int(used))
    return min(free, default=None)


def _fit_notices(model: RCGPRegressor, y: pd.Series[float]) -> list[str]:
    """What the numbers of a fit say about the fit itself."""
    if isinstance(model.fit_report_, AdaptiveReport):  # whose variances are calibrated
        return []
    typical = float(np.median(np.abs(y.to_numpy() - model.loo_mean_) / model.loo_std_)) / 0.6745
    if typical < 1 / 3 and model.outliers_.any() and model.noise_variance_ > 1e-6 * float(y.var()):
        return [
            f"outliers have inflated the fitted noise: errors are typically {typical:.2g} of what the model expects, "
            "so intervals are too wide; a fit without the flagged rows narrows them"
        ]
    return []


class _Report:
    """A callback that moves a progress bar with each evaluation of the objective."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._title = progress, title
        self._task = progress.add_task(title, total=None)

    def __call__(self, evaluations: int, best: float) -> None:
        text = f"{self._title}: {evaluations} evaluations, objective {best:.6g}"
        self._progress.update(self._task, description=text)


@contextmanager
def _progress(console: Console, title: str) -> Iterator[_Report | bool]:
    """A bar that pulses (nobody knows how many evaluations there will be) and goes away at the end.

    Where nobody looks, in a pipe or a file, there is none.
    """
    if not console.is_terminal:
        yield False
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Report(progress, title)
