"""What both regressors do alike to keep scikit-learn's contract, and the project's: a failed fit changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

__all__ = ["all_or_nothing", "as_tensor", "validated"]


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
    try:
        checked = validate_data(estimator, X, *y, dtype=np.float64, ensure_all_finite=False, **options)
        return (checked[0], np.asarray(checked[1], dtype=np.float64)) if y else checked
    except ValueError as error:
        if not str(error).startswith("could not convert"):
            raise
        for name, values in zip("Xy", (X, *y), strict=False):
            _refuse_words(values, name)
        raise


def _refuse_words(values: Any, name: str) -> None:
    """Raise a ValueError that names the first column with a word, and its first row."""
    cells = np.atleast_1d(np.asarray(values, dtype=object))
    for column, cells_of_column in enumerate(cells.reshape(len(cells), -1).T):
        row = next((row for row, cell in enumerate(cells_of_column) if _is_word(cell)), None)
        if row is None:
            continue
        label = repr(str(values.columns[column])) if hasattr(values, "columns") else column
        where = f"row {row}" if cells.ndim == 1 else f"column {label} in row {row}"
        advice = "encode the column, as OneHotEncoder in a ColumnTransformer of scikit-learn does"
        raise ValueError(
            f"{name} must be numbers, but {where} is {str(cells_of_column[row])[:40]!r}"
            + (f"; {advice}" if name == "X" else "")
        ) from None


def _is_word(cell: Any) -> bool:
    try:
        float(cell)
    except ValueError:
        return True
    except TypeError:  # such as None, which stands for a missing value
        return False
    return False
