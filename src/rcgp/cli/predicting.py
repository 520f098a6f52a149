"""From a saved model and a table in a file to a table of predictions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rcgp.cli.fitting import Fitted, Regressor
from rcgp.estimator.saved import load_with_table
from rcgp.saving import SavedModelError, write_whole
from rcgp.table import Column, CsvFormat, Encoding, Missing, TableError, encode, read_table, row_names

__all__ = ["cleaned", "predictions", "write_table"]


def predictions(
    model_path: Path, data_path: Path, missing: Missing, row_id: str | None, form: CsvFormat
) -> tuple[pd.DataFrame, list[str]]:
    """Mean, standard deviation and 95 % interval of a new observation in each row of a table, and notices.

    What ``row_id`` and ``form`` leave open is as in the training table.
    """
    try:
        model, saved = load_with_table(model_path)
    except SavedModelError as error:
        if data_path.suffix == ".rcgp":
            raise TableError(f"{error}; the model comes first, then the table") from error
        raise
    if model.n_outputs_ > 1:
        raise TableError(
            f"{str(model_path)!r} has {model.n_outputs_} outputs; predict with it in Python: rcgp.load(...)"
        )
    known = None if saved is None else Encoding.from_json(saved)
    form = form if known is None else known.form.overridden_by(form)
    table = read_table(data_path, form)
    encoding = replace(_columns_of(model, table) if known is None else known, form=form)
    if row_id is not None and row_id not in table.columns:
        raise TableError(f"there is no column {row_id!r} for --id")
    encoded = encode(table, encoding, missing, with_target=False)
    inputs = encoded.X if hasattr(model, "feature_names_in_") else encoded.X.to_numpy()
    mean, std = model.predict(inputs, return_std=True, include_noise=True)
    lower, upper = model.predict_interval(inputs)
    predicted = {"mean": mean, "std": std, "lower": lower, "upper": upper}
    if encoding.log:
        predicted = _from_logarithm(predicted)
    names = row_names(table, row_id or encoding.row_id)
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


def cleaned(fitted: Fitted, drop: bool) -> tuple[pd.DataFrame, str]:
    """The table with new columns about outliers, or without flagged and incomplete rows; and what that is, in words."""
    model, table = fitted.model, fitted.table
    flagged = pd.Series(model.outliers_, index=fitted.y.index)
    left_out = len(table) - len(flagged)
    if drop:
        kept = table.loc[flagged.index[~flagged]]
        incomplete = f" and {left_out} that lack a value" if left_out else ""
        return kept, f"{len(kept)} of {len(table)} rows, without {int(flagged.sum())} flagged{incomplete},"
    new = pd.DataFrame({"outlier_probability": model.outlier_probability_, "expected": fitted.expected}, flagged.index)
    marked = table.join(new).assign(outlier=flagged.astype("boolean").reindex(table.index))
    incomplete = f" and {left_out} not judged, as they lack a value" if left_out else ""
    return marked, f"{len(table)} rows, {int(flagged.sum())} of them flagged{incomplete},"


def write_table(table: pd.DataFrame, path: Path | None, separator: str = ",", decimal: str = ".") -> None:
    """Write a table as CSV or, by its suffix, Parquet; whole or not at all. ``None`` is standard output."""
    if path is None:
        table.to_csv(sys.stdout, index=False)
        return
    parquet = path.suffix.lower() in (".parquet", ".pq")
    text = None if parquet else table.to_csv(index=False, sep=separator, decimal=decimal)
    write_whole(path, table.to_parquet(index=False) if text is None else text.encode())


def _columns_of(model: Regressor, table: pd.DataFrame) -> Encoding:
    """For a model saved in Python: columns of numbers with its feature names, or all columns in their order."""
    names = getattr(model, "feature_names_in_", None)
    if names is None and len(table.columns) != model.n_features_in_:
        raise TableError(
            f"the model was fitted to {model.n_features_in_} columns without names and the table has "
            f"{len(table.columns)}; give a table of just those columns, in their order"
        )
    columns = [str(name) for name in (table.columns if names is None else names)]
    # The target has no name in such a model; this one cannot be that of a column.
    return Encoding("\0", tuple(Column(name, "number", ()) for name in columns))
