"""Inputs that are probably mistakes: values far from all others, and placeholders of missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rcgp.table.cells import named_cells
from rcgp.table.encoding import Encoding, shown

__all__ = ["suspicious_inputs"]

#: What programs write for a missing number. It is suspicious if it is this many times as common as nine tenths of at
#: least this many other values: counts such as 0, 1 and 2 have few values, and measurements hardly repeat.
_PLACEHOLDERS = (0, -1, -9, -99, -999, -9999, 99, 999, 9999)
_TIMES_AS_COMMON, _FEWEST_OTHERS = 3, 10
#: A value is far if it lies this many times as far from the median as at least nine tenths of the column.
_TIMES_AS_FAR, _NEAR_SHARE, _FEWEST_NEAR = 10.0, 0.9, 5


def suspicious_inputs(X: pd.DataFrame, encoding: Encoding) -> list[str]:
    """One sentence for each column with values far from all others, and for each placeholder of missing values.

    Args:
        X: ``n x d`` features, as :func:`encode` gives them.
        encoding: what the columns hold.
    """
    notices = []
    for column in encoding.columns:
        if column.kind == "category":
            continue
        values, start = X[column.name].to_numpy(), f"column {shown(column.name)}:"
        if (far := _far(values)).any():
            centre = float(np.median(values))
            near = float(np.median(np.abs(values - centre)))
            others = f"while half of the column lies within {near:.3g} of {centre:.3g}"
            notices.append(f"{start} look at {named_cells(X.index, values, far)}, {others}")
        for value in _placeholders(values):
            equal = values == value
            count = f"{np.count_nonzero(equal)} values are exactly {value} and the others hardly repeat"
            remedy = f"if {value} stands for a missing value, empty these cells and use --missing drop"
            notices.append(f"{start} {count}; {remedy}: {named_cells(X.index, values, equal)}")
    return notices


def _placeholders(values: NDArray[np.float64]) -> list[int]:
    """Placeholders of missing values that are much more common than most of many other values."""
    distinct, repeats = np.unique(values, return_counts=True)
    found = []
    for place in np.flatnonzero(np.isin(distinct, _PLACEHOLDERS)):
        others = np.delete(repeats, place)
        if len(others) >= _FEWEST_OTHERS and repeats[place] >= _TIMES_AS_COMMON * np.quantile(others, _NEAR_SHARE):
            found.append(int(distinct[place]))
    return found


def _far(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Values beyond a gap that separates them from at least nine tenths of the column."""
    with np.errstate(over="ignore"):  # a distance beyond all floats is far
        distance = np.abs(values - np.median(values))
    inner = np.sort(distance[distance > 0])
    start = max(int(_NEAR_SHARE * len(inner)), _FEWEST_NEAR)
    nearer = inner[start - 1 : -1] if start < len(inner) else inner[:0]
    gaps = np.flatnonzero(inner[start:] > _TIMES_AS_FAR * nearer)
    far: NDArray[np.bool_] = distance >= (inner[start + gaps[0]] if len(gaps) else np.inf)
    return far
