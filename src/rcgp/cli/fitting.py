"""From a table in a file to a fitted model, and from a saved model and a table to predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sklearn.exceptions import ConvergenceWarning

from rcgp import FitError
from rcgp.chunked.resources import available_memory, gigabytes, inducing_bytes
from rcgp.cli.options import Choice, FormatOptions, Options, ReadingOptions, Weight, many
from rcgp.estimator import IntervalWarning, NoiseLawWarning, RCGPRegressor, SparseRCGPRegressor
from rcgp.estimator.base import BaseRegressor
from rcgp.estimator.saved import load_with_table
from rcgp.estimator.sparse import doubt_of
from rcgp.models.defaults import NORMAL_MAD
from rcgp.saving import SavedModelError
from rcgp.table import (
    Column,
    CsvFormat,
    Encoding,
    TableError,
    encode,
    learn_encoding,
    read_table,
    row_names,
    suspicious_inputs,
)

__all__ = ["Fitted", "csv_format", "fit_plain", "fit_table", "predictions", "quiet_fit"]

# Peak memory, measured in n x n matrices of float64: of the search for hyperparameters on n rows, and of an exact
# model of n rows.
_SEARCH_MATRICES, _MODEL_MATRICES = 4.5, 3.5
# A target is strongly skewed if its 95 % quantile is this many times as far from the median as its 5 % quantile, as for
# a lognormal variable whose logarithm has a standard deviation of 2/3. With fewer rows skewness is not judged.
_SKEWED, _SKEW_ROWS = 3.0, 20


@dataclass(frozen=True)
class Fitted:
    """A fitted model, its training data and notices for the user.

    Attributes:
        y: ``n`` observations in the units of the table.
        table: as read, including rows that were left out.
        names: of the ``n`` rows, if there is a column of names.
    """

    model: BaseRegressor
    encoding: Encoding
    X: pd.DataFrame
    y: pd.Series[float]
    notices: list[str]
    table: pd.DataFrame
    names: pd.Series[str] | None

    @property
    def fitted_y(self) -> pd.Series[float]:
        """The ``n`` observations in the units of the fit."""
        return self.y.transform(np.log) if self.encoding.log else self.y

    @property
    def expected(self) -> NDArray[np.float64]:
        """Leave-one-out predictions of the ``n`` rows in the units of the table."""
        mean: NDArray[np.float64] = self.model.loo_mean_
        with np.errstate(over="ignore"):
            return np.exp(mean) if self.encoding.log else mean

    @property
    def labels(self) -> list[object]:
        """Names of the ``n`` rows, or their numbers."""
        rows = list(self.y.index)
        return rows if self.names is None else [name or row for name, row in zip(self.names, rows, strict=True)]


def fit_table(path: Path, options: Options, console: Console, new_columns: Sequence[str] = ()) -> Fitted:
    """Read a table, encode it and fit the robust model, with progress on the console.

    Raises:
        TableError: also if the table already has one of the new columns.
    """
    form = csv_format(options)
    table = read_table(path, form)
    columns = list(table.columns)
    for name in set(new_columns) & set(columns):
        raise TableError(f"the table already has a column {name!r}: rename it, or start from the table without it")
    features = _column_names(options.features, columns) if options.features else None
    exclude = _column_names(options.exclude or (), columns)
    encoding, notices = learn_encoding(table, options.target, features, options.missing, exclude, form, options.row_id)
    encoding = replace(encoding, log=options.log)
    encoded = encode(table, encoding, options.missing)
    assert encoded.y is not None
    rows = len(encoded.y)
    choice = options.for_rows(rows)
    _check_memory(rows, choice, options)
    y = _logarithm(encoded.y) if options.log else encoded.y
    model = _regressor(options, choice, options.weight)
    _fit(model, encoded.X, y, console, "Fitting the model")
    notices += [*encoded.notices, *suspicious_inputs(encoded.X, encoding)]
    notices += [] if options.log else _skew_notices(encoded.y)
    notices += _fit_notices(model, y, choice, options)
    names = row_names(table, encoding.row_id)
    names = None if names is None else names.loc[encoded.y.index]
    return Fitted(model, encoding, encoded.X, encoded.y, notices, table, names)


def fit_plain(fitted: Fitted, options: Options, console: Console) -> BaseRegressor:
    """An ordinary GP of the same data, for comparison; sparse if the other is."""
    plain = _regressor(options, options.for_rows(len(fitted.y)), "constant")
    _fit(plain, fitted.X, fitted.fitted_y, console, "Fitting a plain GP to compare")
    return plain


def predictions(model_path: Path, data_path: Path, options: ReadingOptions) -> tuple[pd.DataFrame, list[str]]:
    """Mean, standard deviation and 95 % interval of a new observation in each row of a table, and notices.

    The table is read as the training table was, except for the given options.
    """
    try:
        model, saved = load_with_table(model_path)
    except SavedModelError as error:
        if data_path.suffix == ".rcgp":
            raise TableError(f"{error}; the model comes first, then the table") from error
        raise
    if (outputs := model.n_outputs_) > 1:
        raise TableError(f"{str(model_path)!r} has {outputs} outputs; predict with it in Python: rcgp.load(...)")
    known = None if saved is None else Encoding.from_json(saved)
    given = csv_format(options)
    form = given if known is None else known.form.overridden_by(given)
    table = read_table(data_path, form)
    encoding = replace(_columns_of(model, table) if known is None else known, form=form)
    if options.row_id is not None and options.row_id not in table.columns:
        raise TableError(f"there is no column {options.row_id!r} for --id")
    encoded = encode(table, encoding, options.missing, with_target=False)
    inputs = encoded.X if hasattr(model, "feature_names_in_") else encoded.X.to_numpy()
    mean, std = model.predict(inputs, return_std=True, include_noise=True)
    lower, upper = model.predict_interval(inputs)
    predicted = {"mean": mean, "std": std, "lower": lower, "upper": upper}
    if encoding.log:
        predicted = _from_logarithm(predicted)
    names = row_names(table, options.row_id or encoding.row_id)
    rows: dict[str, Any] = {"row": encoded.X.index.to_numpy()}
    if names is not None:
        rows["id"] = names.loc[encoded.X.index].to_numpy()
    return pd.DataFrame({**rows, **predicted}), encoded.notices


def _from_logarithm(predicted: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Predictions of a logarithm in the units of the target: moments of a lognormal variable, and its median."""
    with np.errstate(over="ignore", invalid="ignore"):
        variance = predicted["std"] ** 2
        mean = np.exp(predicted["mean"] + variance / 2)
        return {
            "mean": mean,
            "std": mean * np.sqrt(np.expm1(variance)),
            "lower": np.exp(predicted["lower"]),
            "upper": np.exp(predicted["upper"]),
            "median": np.exp(predicted["mean"]),
        }


def _columns_of(model: BaseRegressor, table: pd.DataFrame) -> Encoding:
    """For a model saved in Python: columns of numbers with its feature names, or all columns in their order."""
    names = getattr(model, "feature_names_in_", None)
    if not hasattr(model, "n_features_in_"):
        raise TableError("the model is of a series: use 'rcgp series --forecast' or, with --model, --follow")
    if names is None and len(table.columns) != model.n_features_in_:
        raise TableError(
            f"the model was fitted to {model.n_features_in_} columns without names and the table has "
            f"{len(table.columns)}; give a table of just those columns, in their order"
        )
    columns = [str(name) for name in (table.columns if names is None else names)]
    # Such a model has no name of its target; no column has this one.
    return Encoding("\0", tuple(Column(name, "number", ()) for name in columns))


def csv_format(options: FormatOptions) -> CsvFormat:
    """How the options say that a CSV file is written."""
    return CsvFormat(options.encoding, options.separator, options.decimal, options.date_format)


def _fit(model: BaseRegressor, X: pd.DataFrame, y: pd.Series[float], console: Console, title: str) -> None:
    """Fit, with progress on a terminal; a fit that fails names the row of the file."""
    quiet_fit(model, X, y, y, console, title)


def quiet_fit(model: Any, X: Any, y: pd.Series[float], used: pd.Series[float], console: Console, title: str) -> None:
    """Fit any estimator, with progress on a terminal and without warnings, which the results report.

    Args:
        model: the estimator.
        X, y: what it is fitted to.
        used: the rows of y that the model uses, one of which an error names.
        console: for the progress.
        title: of the progress.
    """
    with _progress(console, title) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the summary reports it
        warnings.simplefilter("ignore", NoiseLawWarning)  # doubts are printed after the results
        warnings.simplefilter("ignore", IntervalWarning)  # a notice reports it
        try:
            model.set_params(progress=report).fit(X, y)
        except FitError as error:
            clue = error.clue or f"whose {y.name!r} is {used.iloc[error.row]:g}"
            raise TableError(f"the fit failed: {error.reason}; look at row {used.index[error.row]}, {clue}") from error
    model.set_params(progress=False)


def _regressor(options: Options, choice: Choice, weight: Weight) -> BaseRegressor:
    """The model to fit."""
    common: dict[str, Any] = {
        "weight": weight,
        "local_noise": options.local_noise,
        "mean": options.mean,
        "fit_rows": choice.fit_rows,
        "random_state": options.seed,
    }
    if choice.sparse:
        return SparseRCGPRegressor(n_inducing=choice.inducing, **common)
    return RCGPRegressor(n_restarts=options.restarts or 0, **common)


def _column_names(given: Sequence[str], columns: list[str]) -> list[str]:
    """The columns that ``--features`` names: each value is a column, or several separated by commas."""
    names: list[str] = []
    for value in given:
        names += [value] if value in columns else [part.strip() for part in value.split(",")]
    return names


def _check_memory(rows: int, choice: Choice, options: Options) -> None:
    """Refuse a fit that needs more memory than is free."""
    searched = min(rows, choice.fit_rows)
    search = 8 * _SEARCH_MATRICES * searched**2
    if choice.sparse:
        model = inducing_bytes(choice.inducing, rows)
        what, remedy = f"a sparse fit with {many(choice.inducing)} inducing points needs", "lower --inducing"
    else:
        model = round(8 * _MODEL_MATRICES * rows**2)
        what = f"an exact fit of {many(rows)} rows needs"
        remedy = "leave --exact out" if options.sparse is False else "add --sparse"
    if search > model:
        what, remedy = f"choosing hyperparameters on {many(searched)} rows needs", "lower --fit-rows"
    needed, free = max(search, model), available_memory()
    if free is not None and needed > free:
        raise TableError(f"{what} about {gigabytes(needed)} GB of memory, and {gigabytes(free)} are free: {remedy}")


def _logarithm(y: pd.Series[float]) -> pd.Series[float]:
    """The logarithm of the target. Raises TableError naming the first row that is not positive."""
    bad = (y <= 0).to_numpy()
    if bad.any():
        first = int(bad.argmax())
        raise TableError(
            f"row {y.index[first]} of column {str(y.name)!r} is {y.iloc[first]:g}, and --log needs positive values "
            f"({int(bad.sum())} of {len(y)} are not): correct it, or leave --log out"
        )
    log = y.transform(np.log).rename(f"log {y.name}")
    if log.nunique() == 1:
        raise TableError(f"every value of {str(y.name)!r} has the same logarithm: there is nothing to predict")
    return log


def _skew_notices(y: pd.Series[float]) -> list[str]:
    """Suggest --log for a positive target with a long upper tail that its logarithm does not have."""
    if len(y) < _SKEW_ROWS or y.min() <= 0:
        return []
    low, middle, high = (float(value) for value in np.quantile(y, [0.05, 0.5, 0.95]))
    if high - middle < _SKEWED * (middle - low):
        return []
    tails = (math.log(high / middle), math.log(middle / low))
    if max(tails) > 2 * min(tails):
        return []
    return [
        f"the target {str(y.name)!r} is positive and strongly skewed: 50 % of it is below {middle:.4g} and 5 % above "
        f"{high:.4g}; --log may fit better"
    ]


def _fit_notices(model: BaseRegressor, y: pd.Series[float], choice: Choice, options: Options) -> list[str]:
    """Choices made for the number of rows, and reasons to doubt the fit."""
    notices, rows = [], len(y)
    if isinstance(model, SparseRCGPRegressor):
        if options.sparse is None:
            points = many(len(model.inducing_points_))
            notices.append(f"{many(rows)} rows: fitted through {points} inducing points; --exact for the exact model")
        if doubt := doubt_of(model.model_):
            notices.append(f"{doubt}; raise --inducing, or --fit-rows")
    if rows > choice.fit_rows:
        sample = f"a random sample of {many(choice.fit_rows)} of {many(rows)} rows (--fit-rows)"
        notices.append(f"hyperparameters were chosen on {sample}; the fitted model uses all rows")
    if model.weight == "learned":
        return notices
    # With a given weight outliers inflate the noise.
    typical = float(np.median(np.abs(y.to_numpy() - model.loo_mean_) / model.loo_std_)) / NORMAL_MAD
    if typical < 1 / 3 and model.outliers_.any() and model.noise_variance_ > 1e-6 * float(y.var()):
        notices.append(
            f"outliers have inflated the fitted noise: errors are typically {typical:.2g} of what the model expects, "
            "so intervals are too wide; --weight learned narrows them"
        )
    return notices


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
def _progress(console: Console, title: str) -> Iterator[_Report | bool]:
    """A bar that is removed at the end and pulses while the total is unknown; none without a terminal."""
    if not console.is_terminal:
        yield False
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Report(progress, title)
