"""Inputs that are probably mistakes: zeros that stand for missing values, and values far from all others."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rcgp.table.encoding import Encoding
from rcgp.table.errors import shown

__all__ = ["suspicious_inputs"]

#: Zeros are suspicious if they are this many times as common as any other value, of which there are that many or more:
#: counts such as 0, 1 and 2 have few values, and measurements hardly repeat one.
_TIMES_AS_COMMON, _FEWEST_OTHERS, _FEWEST_ZEROS = 5, 10, 3
#: A value is far if it lies this many times as far from the median as nine tenths of the column or more do; 999 or -99
#: for a missing age or temperature does.
_TIMES_AS_FAR, _NEAR_SHARE, _FEWEST_NEAR = 10.0, 0.9, 5
#: Rows named for each column; of more, only the number is given.
_NAMED_ROWS = 5


def suspicious_inputs(X: pd.DataFrame, encoding: Encoding) -> list[str]:
    """One sentence for each column of numbers or dates with suspicious values, naming rows and values.

    Args:
        X: ``n x d`` features, as :func:`rcgp.table.encode` gives them.
        encoding: what the columns hold.
    """
    notices = []
    for name in (column.name for column in encoding.columns if column.kind != "category"):
        values = X[name].to_numpy()
        far, zero = _far(values), _zeros(values)
        if far.any():
            centre = float(np.median(values))
            near = float(np.median(np.abs(values - centre)))
            others = f"while half of the column lies within {near:.3g} of {centre:.3g}"
            notices.append(f"column {shown(name)}: look at {_rows(X.index, values, far)}, {others}")
        if zero.any():
            what = f"{np.count_nonzero(zero)} values are exactly 0 and the others hardly repeat"
            remedy = "if 0 stands for a missing value, empty these cells and use --missing drop"
            notices.append(f"column {shown(name)}: {what}; {remedy}: {_rows(X.index, values, zero)}")
    return notices


def _rows(index: pd.Index, values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> str:
    """The first rows with their values, and how many more there are."""
    places = chosen.nonzero()[0]
    some = ", ".join(f"row {index[i]} ({values[i]:g})" for i in places[:_NAMED_ROWS])
    return some if len(places) <= _NAMED_ROWS else f"{some} and {len(places) - _NAMED_ROWS} more"


def _zeros(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Exact zeros, if they are much more common than any other of many values."""
    zero: NDArray[np.bool_] = values == 0
    count = np.count_nonzero(zero)
    if count >= _FEWEST_ZEROS:
        _, repeats = np.unique(values[~zero], return_counts=True)
        if len(repeats) >= _FEWEST_OTHERS and count >= _TIMES_AS_COMMON * repeats.max():
            return zero
    return np.zeros(len(values), dtype=bool)


def _far(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Values beyond a gap that separates them from at least nine tenths of the column."""
    with np.errstate(over="ignore"):  # a distance beyond all floats is far
        distance = np.abs(values - np.median(values))
    inner = np.sort(distance[distance > 0])
    start = max(int(_NEAR_SHARE * len(inner)), _FEWEST_NEAR)
    apart = inner[start:] > _TIMES_AS_FAR * inner[start - 1 : -1] if start < len(inner) else np.zeros(0, dtype=bool)
    if not apart.any():
        return np.zeros(len(values), dtype=bool)
    far: NDArray[np.bool_] = distance >= inner[start + int(apart.argmax())]
    return far
