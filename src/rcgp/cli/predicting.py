"""From a saved model and a table in a file to a table of predictions."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from rcgp.cli.fitting import Regressor
from rcgp.estimator.saved import load_with_table
from rcgp.saving import SavedModelError, write_whole
from rcgp.table import Column, Encoding, Missing, TableError, encode, read_table

__all__ = ["predictions", "write_table"]


def predictions(model_path: Path, data_path: Path, missing: Missing) -> tuple[pd.DataFrame, list[str]]:
    """Mean, standard deviation and 95 % interval of a new observation in each row of a table, and notices."""
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
    table = read_table(data_path)
    encoding = _columns_of(model, table) if saved is None else Encoding.from_json(saved)
    encoded = encode(table, encoding, missing, with_target=False)
    inputs = encoded.X if hasattr(model, "feature_names_in_") else encoded.X.to_numpy()
    mean, std = model.predict(inputs, return_std=True, include_noise=True)
    lower, upper = model.predict_interval(inputs)
    predicted = pd.DataFrame(
        {
            "row": encoded.X.index.to_numpy(),
            "mean": mean,
            "std": std,
            "lower": lower,
            "upper": upper,
        }
    )
    return predicted, encoded.notices


def write_table(table: pd.DataFrame, path: Path | None) -> None:
    """Write a table as CSV or, by its suffix, Parquet; whole or not at all. ``None`` is standard output."""
    if path is None:
        table.to_csv(sys.stdout, index=False)
        return
    parquet = path.suffix.lower() in (".parquet", ".pq")
    write_whole(path, table.to_parquet(index=False) if parquet else table.to_csv(index=False).encode())


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
