"""From a table in a file to a fitted model, and from a saved model and a table to predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from rcgp.chunked.resources import check_memory, inducing_bytes
from rcgp.cli.options import CORRELATED_UP_TO, Choice, FormatOptions, Options, ReadingOptions, Weight, many
from rcgp.cli.progress import quiet_fit
from rcgp.estimator import RCGPRegressor, SparseRCGPRegressor
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
    suspicious_targets,
)

__all__ = ["Fitted", "FittedTable", "csv_format", "fit_plain", "fit_table", "predictions"]

# Peak memory, measured in n x n matrices of float64: of the search for hyperparameters on n rows, and of an exact
# model of n rows.
_SEARCH_MATRICES, _MODEL_MATRICES = 4.5, 3.5
# A target is strongly skewed if its 95 % quantile is this many times as far from the median as its 5 % quantile, as for
# a lognormal variable whose logarithm has a standard deviation of 2/3. With fewer rows skewness is not judged.
_SKEWED, _SKEW_ROWS = 3.0, 20


@dataclass(frozen=True)
class Fitted:
    """A fitted model of one target, and its training data.

    Attributes:
        y: ``n`` observations in the units of the table.
        names: of the ``n`` rows, if there is a column of names.
    """

    model: BaseRegressor
    encoding: Encoding
    X: pd.DataFrame
    y: pd.Series[float]
    names: pd.Series[str] | None

    @property
    def fitted_y(self) -> pd.Series[float]:
        """The ``n`` observations in the units of the fit."""
        return self.y.transform(np.log) if self.encoding.log else self.y

    @property
    def expected(self) -> NDArray[np.float64]:
        """Leave-one-out predictions of the ``n`` rows in the units of the table."""
        return _in_units(self.model.loo_mean_, self.encoding)


@dataclass(frozen=True)
class FittedTable:
    """A fitted model of one target or several, its training data and notices for the user.

    Attributes:
        Y: ``n x T`` observations in the units of the table, NaN where a cell is empty.
        table: as read, including rows that were left out.
        names: as for :class:`Fitted`.
    """

    model: Any
    encoding: Encoding
    X: pd.DataFrame
    Y: pd.DataFrame
    notices: list[str]
    table: pd.DataFrame
    names: pd.Series[str] | None

    @cached_property
    def targets(self) -> list[Fitted]:
        """Each target by itself, in the rows that have a value."""
        several, found = self.Y.shape[1] > 1, []
        for t, name in enumerate(self.Y.columns):
            y = self.Y[name].dropna()
            names = None if self.names is None else self.names.loc[y.index]
            model = self.model.output(t) if several else self.model
            found.append(Fitted(model, self.encoding, self.X.loc[y.index], y, names))
        return found

    @property
    def expected(self) -> NDArray[np.float64]:
        """``n x T`` leave-one-out predictions in the units of the table, also of empty cells."""
        return _in_units(self.model.loo_mean_, self.encoding).reshape(self.Y.shape)

    @property
    def correlation(self) -> Any:
        """The correlation of the targets' functions, ``T x T``; ``None`` for independent models."""
        return getattr(self.model, "output_correlation_", None)

    @property
    def fitted_y(self) -> pd.Series[float] | pd.DataFrame:
        """The observations in the units of the fit; those of one target without an axis for targets."""
        Y = self.Y.transform(np.log).set_axis(self.titles, axis=1) if self.encoding.log else self.Y
        return Y if Y.shape[1] > 1 else Y.iloc[:, 0]

    @property
    def titles(self) -> list[str]:
        """Names of the targets in the units of the fit."""
        return [f"log {name}" if self.encoding.log else str(name) for name in self.Y.columns]

    @property
    def labels(self) -> list[object]:
        """Names of the ``n`` rows, or their numbers."""
        rows = list(self.Y.index)
        return rows if self.names is None else [name or row for name, row in zip(self.names, rows, strict=True)]

    @property
    def doubts(self) -> list[str]:
        """Doubts about the noise law; of several targets with the name of theirs."""
        several = len(self.targets) > 1
        return [f"{one.y.name}: {doubt}" if several else doubt for one in self.targets for doubt in one.model.doubts_]


def _in_units(mean: NDArray[np.float64], encoding: Encoding) -> NDArray[np.float64]:
    """Predictions in the units of the table."""
    with np.errstate(over="ignore"):
        return np.exp(mean) if encoding.log else mean


def fit_table(path: Path, options: Options, console: Console, new_columns: Sequence[str] = ()) -> FittedTable:
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
    Y = pd.DataFrame(encoded.y)
    choice = _choice(Y, options)
    if options.log:
        _check_logarithms(Y)
    names = row_names(table, encoding.row_id)
    names = None if names is None else names.loc[Y.index]
    model = _regressor(options, choice, options.weight)
    notices += [*encoded.notices, *suspicious_inputs(encoded.X, encoding), *suspicious_targets(encoded.X, Y)]
    fitted = FittedTable(model, encoding, encoded.X, Y, notices, table, names)
    _fit(fitted, model, console, "Fitting the model")
    notices += [] if options.log else _skew_notices(Y)
    notices += _fit_notices(fitted, choice, options)
    return fitted


def fit_plain(fitted: FittedTable, options: Options, console: Console) -> BaseRegressor:
    """An ordinary GP of the same data, for comparison; sparse if the other is."""
    plain = _regressor(options, _choice(fitted.Y, options), "constant")
    _fit(fitted, plain, console, "Fitting a plain GP to compare")
    return plain


def predictions(model_path: Path, data_path: Path, options: ReadingOptions) -> tuple[pd.DataFrame, list[str]]:
    """Mean, standard deviation and 95 % interval of a new observation in each row of a table, and notices.

    The table is read as the training table was, except for the given options. For several targets the names of the
    columns begin with theirs.
    """
    try:
        model, saved = load_with_table(model_path)
    except SavedModelError as error:
        if data_path.suffix == ".rcgp":
            raise TableError(f"{error}; the model comes first, then the table") from error
        raise
    known = None if saved is None else Encoding.from_json(saved)
    outputs = model.n_outputs_
    if known is not None and outputs != len(known.targets):
        raise TableError(f"{str(model_path)!r} has {outputs} outputs and names of {len(known.targets)}: it is damaged")
    given = csv_format(options)
    form = given if known is None else known.form.overridden_by(given)
    table = read_table(data_path, form)
    encoding = replace(_columns_of(model, table) if known is None else known, form=form)
    if options.row_id is not None and options.row_id not in table.columns:
        raise TableError(f"there is no column {options.row_id!r} for --id")
    encoded = encode(table, encoding, options.missing, with_target=False)
    inputs = encoded.X if hasattr(model, "feature_names_in_") else encoded.X.to_numpy()
    names = row_names(table, options.row_id or encoding.row_id)
    columns: dict[str, Any] = {"row": encoded.X.index.to_numpy()}
    if names is not None:
        columns["id"] = names.loc[encoded.X.index].to_numpy()
    if outputs == 1:
        columns |= _predicted(model, inputs, encoding.log)
    else:
        named = getattr(model, "output_names_", None) or [f"output{t}" for t in range(outputs)]
        for t, target in enumerate(named if known is None else encoding.targets):
            parts = _predicted(model.output(t), inputs, encoding.log)
            columns |= {f"{target}_{name}": values for name, values in parts.items()}
    return pd.DataFrame(columns), encoded.notices


def _predicted(model: BaseRegressor, inputs: Any, log: bool) -> dict[str, NDArray[np.float64]]:
    """The columns of predictions of one target, in its units."""
    mean, std = model.predict(inputs, return_std=True, include_noise=True)
    lower, upper = model.predict_interval(inputs)
    if not log:
        return {"mean": mean, "std": std, "lower": lower, "upper": upper}
    with np.errstate(over="ignore", invalid="ignore"):
        lower, upper, median = np.exp(lower), np.exp(upper), np.exp(mean)
        mean = np.exp(mean + std**2 / 2)  # moments of a lognormal variable
        return {"mean": mean, "std": mean * np.sqrt(np.expm1(std**2)), "lower": lower, "upper": upper, "median": median}


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
    """The format of CSV files that the options state."""
    return CsvFormat(options.encoding, options.separator, options.decimal, options.date_format)


def _fit(fitted: FittedTable, model: BaseRegressor, console: Console, title: str) -> None:
    """Fit a model to the data; a fit that fails names the row of the file."""
    y = fitted.fitted_y
    quiet_fit(model, fitted.X, y, y, console, title)


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
    return RCGPRegressor(outputs=choice.outputs, n_restarts=options.restarts or 0, **common)


def _choice(Y: pd.DataFrame, options: Options) -> Choice:
    """What was not given, for ``n x T`` observations. Raises TableError if memory does not suffice."""
    rows, cells = len(Y), Y.count().to_numpy()
    choice = options.for_rows(rows) if len(cells) == 1 else options.for_cells(rows, int(cells.sum()))
    _check_memory(rows, cells, choice, options)
    return choice


def _column_names(given: Sequence[str], columns: list[str]) -> list[str]:
    """The columns that ``--features`` names: each value is a column, or several separated by commas."""
    names: list[str] = []
    for value in given:
        names += [value] if value in columns else [part.strip() for part in value.split(",")]
    return names


def _check_memory(rows: int, cells: NDArray[Any], choice: Choice, options: Options) -> None:
    """Refuse a fit that needs more memory than is free; each target has some cells in these rows."""
    sizes = np.array([cells.sum()]) if choice.outputs == "correlated" else cells
    search = 8 * _SEARCH_MATRICES * float(sizes.max() * min(1.0, choice.fit_rows / rows)) ** 2
    model = 8 * _MODEL_MATRICES * float((sizes.astype(np.float64) ** 2).sum())
    if choice.sparse:
        model = inducing_bytes(choice.inducing, rows)
        what, remedy = f"a sparse fit with {many(choice.inducing)} inducing points needs", "lower --inducing"
    elif choice.outputs == "correlated":
        what, remedy = f"one model of {many(int(cells.sum()))} cells needs", "use --outputs independent"
    elif len(cells) > 1:
        what = f"{len(cells)} exact fits of up to {many(int(cells.max()))} rows need"
        remedy = "fit each target by itself, with --sparse"
    else:
        what = f"an exact fit of {many(rows)} rows needs"
        remedy = "leave --exact out" if options.sparse is False else "add --sparse"
    if search > model and len(cells) == 1:
        what = f"choosing hyperparameters on {many(min(rows, choice.fit_rows))} rows needs"
        remedy = "lower --fit-rows"
    check_memory(max(search, model), what, remedy, TableError)


def _check_logarithms(Y: pd.DataFrame) -> None:
    """Raise TableError for a target that is not positive, naming the first row, or whose logarithm is constant."""
    for name in Y.columns:
        y = Y[name].dropna()
        bad = (y <= 0).to_numpy()
        if bad.any():
            first = int(bad.argmax())
            raise TableError(
                f"row {y.index[first]} of column {str(name)!r} is {y.iloc[first]:g}, and --log needs positive values "
                f"({int(bad.sum())} of {len(y)} are not): correct it, or leave --log out"
            )
        if y.transform(np.log).nunique() == 1:
            raise TableError(f"every value of {str(name)!r} has the same logarithm: there is nothing to predict")


def _skew_notices(Y: pd.DataFrame) -> list[str]:
    """Suggest --log if every target is positive with a long upper tail that its logarithm does not have."""
    notices = []
    for name in Y.columns:
        y = Y[name].dropna()
        if len(y) < _SKEW_ROWS or y.min() <= 0:
            return []
        low, middle, high = (float(value) for value in np.quantile(y, [0.05, 0.5, 0.95]))
        tails = (math.log(high / middle), math.log(middle / low))
        if high - middle < _SKEWED * (middle - low) or max(tails) > 2 * min(tails):
            return []
        where = f"50 % of it is below {middle:.4g} and 5 % above {high:.4g}"
        notices.append(f"the target {str(name)!r} is positive and strongly skewed: {where}; --log may fit better")
    return notices


def _fit_notices(fitted: FittedTable, choice: Choice, options: Options) -> list[str]:
    """Choices made for the number of rows, and reasons to doubt the fit."""
    model, rows, cells = fitted.model, len(fitted.Y), int(fitted.Y.count().sum())
    notices = []
    if isinstance(model, SparseRCGPRegressor):
        if options.sparse is None:
            points = many(len(model.inducing_points_))
            notices.append(f"{many(rows)} rows: fitted through {points} inducing points; --exact for the exact model")
        if doubt := doubt_of(model.model_):
            notices.append(f"{doubt}; raise --inducing, or --fit-rows")
    if len(fitted.targets) > 1 and options.outputs is None and choice.outputs == "independent":
        many_cells = f"{many(cells)} cells are more than {CORRELATED_UP_TO}"
        notices.append(f"{many_cells}: a model for each target; --outputs correlated for one of all, in more time")
    if rows > choice.fit_rows:
        sample = f"a random sample of {many(choice.fit_rows)} of {many(rows)} rows (--fit-rows)"
        notices.append(f"hyperparameters were chosen on {sample}; the fitted model uses all rows")
    given = [] if model.weight == "learned" else [_inflation(target) for target in fitted.targets]
    return notices + [sentence for sentence in given if sentence]


def _inflation(fitted: Fitted) -> str:
    """A sentence if outliers have inflated the noise, as they do with a given weight; else empty."""
    model, y = fitted.model, fitted.fitted_y
    typical = float(np.median(np.abs(y.to_numpy() - model.loo_mean_) / model.loo_std_)) / NORMAL_MAD
    if not (typical < 1 / 3 and model.outliers_.any() and model.noise_variance_ > 1e-6 * float(y.var())):
        return ""
    of = "" if not fitted.encoding.further else f" of {str(y.name)!r}"
    return (
        f"outliers have inflated the fitted noise{of}: errors are typically {typical:.2g} of what the model expects, "
        "so intervals are too wide; --weight learned narrows them"
    )
