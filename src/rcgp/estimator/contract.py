"""What both regressors do alike to keep scikit-learn's contract, and the project's: a failed fit changes nothing."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

__all__ = ["all_or_nothing", "as_tensor", "validated"]

# Kinds of NumPy's types that are numbers; those of pandas have the same letters.
_NUMERIC = "biufc"

# Of a data frame, cells of these are dates, and spans of time.
_DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


@contextmanager
def all_or_nothing(estimator: Any) -> Iterator[None]:
    """Whatever ends a fit early, an interrupt too, leaves the estimator as it was."""
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


def as_tensor(values: Any) -> Tensor:
    """An array as a tensor of float64; a copy where it is read-only, which torch does not know."""
    return torch.from_numpy(np.require(values, dtype=np.float64, requirements=["C", "W"]))


def validated(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """X, or X and y, in float64 by scikit-learn's checks; of a word among the numbers column and row are named."""
    for name, values in zip("Xy", (X, *y), strict=False):
        if _all_dates(values):  # which scikit-learn takes for numbers in units of its own
            _refuse_words(values, name)
    try:
        checked = validate_data(estimator, X, *y, dtype=np.float64, ensure_all_finite=False, **options)
        return (checked[0], np.asarray(checked[1], dtype=np.float64)) if y else checked
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not str(error).startswith("could not convert"):
            raise
        for name, values in zip("Xy", (X, *y), strict=False):
            _refuse_words(values, name)
        raise


def _all_dates(values: Any) -> bool:
    """Whether all columns of a table, or an array, are dates or spans of time."""
    dtypes = list(getattr(values, "dtypes", [])) if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    return bool(dtypes) and all(getattr(dtype, "kind", None) in ("m", "M") for dtype in dtypes)


def _refuse_words(values: Any, name: str) -> None:
    """Raise a ValueError that names the first column with a word or a date, and its first row."""
    for label, column in _columns_of_objects(values):
        row = next((row for row, cell in enumerate(column) if isinstance(cell, _DATES) or _is_word(cell)), None)
        if row is None:
            continue
        where = f"row {row}" if label is None else f"column {label} in row {row}"
        advice = "encode the column, as OneHotEncoder in a ColumnTransformer of scikit-learn does"
        if isinstance(column[row], _DATES):
            advice = "turn dates into numbers, such as days since the first of them"
        raise ValueError(
            f"{name} must be numbers, but {where} is {str(column[row])[:40]!r}" + (f"; {advice}" if name == "X" else "")
        ) from None


def _columns_of_objects(values: Any) -> Iterator[tuple[object, Any]]:
    """Columns that are not of numbers, by name or number, of a vector without; of a large table no other is copied."""
    if hasattr(values, "iloc") and hasattr(values, "columns"):
        for number, label in enumerate(values.columns):
            column = values.iloc[:, number]
            if column.dtype.kind not in _NUMERIC:
                yield repr(str(label)), np.asarray(column, dtype=object)
        return
    cells = np.atleast_1d(values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object))
    if cells.dtype.kind in _NUMERIC:
        return
    if cells.ndim == 1:
        yield None, cells
    else:
        yield from enumerate(cells.reshape(len(cells), -1).T)


def _is_word(cell: Any) -> bool:
    try:
        float(cell)
    except ValueError:
        return True
    except TypeError:  # such as None, which stands for a missing value
        pass
    return False
