"""What is probably a mistake: values far from all others, placeholders of missing values, names of rows and copies of a
target as features."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rcgp.table.cells import named_cells
from rcgp.table.encoding import Encoding, shown

__all__ = ["FEWEST_NAMES", "names_rows", "suspicious_inputs", "suspicious_targets"]

#: What programs write for a missing number. It is suspicious if it is this many times as common as nine tenths of at
#: least this many other values: counts such as 0, 1 and 2 have few values, and measurements hardly repeat.
_PLACEHOLDERS = (0, -1, -9, -99, -999, -9999, 99, 999, 9999)
_TIMES_AS_COMMON, _FEWEST_OTHERS = 3, 10
#: A value is far if it lies this many times as far from the median as at least nine tenths of the column.
_TIMES_AS_FAR, _NEAR_SHARE, _FEWEST_NEAR = 10.0, 0.9, 5
#: A target is judged from this many cells on; deviations from a line below this share of its range are rounding.
_FEWEST_CELLS, _ROUNDING = 20, 1e-9
#: With fewer rows, different values in all of them are no evidence that they name the rows.
FEWEST_NAMES = 5
#: Probability below which whole numbers without a repetition are no coincidence.
_NO_CHANCE = 1e-3


def suspicious_inputs(X: pd.DataFrame, encoding: Encoding) -> list[str]:
    """One sentence for each column with values far from all others, and for each placeholder of missing values.

    The features X are as :func:`encode` gives them.
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
            count = f"{np.count_nonzero(equal)} values are exactly {value}, many more than of most others"
            remedy = f"if {value} stands for a missing value, empty these cells and use --missing drop"
            notices.append(f"{start} {count}; {remedy}: {named_cells(X.index, values, equal)}")
    return notices


def suspicious_targets(X: pd.DataFrame, Y: pd.DataFrame) -> list[str]:
    """One sentence for each target of two classes, and for each feature that determines a target by a straight line.

    Empty cells of the targets Y are NaN.
    """
    notices = []
    for name in Y.columns:
        y = Y[name].dropna()
        values, start = np.unique(y), f"the target {shown(str(name))}"
        if len(y) < _FEWEST_CELLS:
            continue
        if len(values) == 2:
            notices.append(
                f"{start} has two values, {values[0]:g} and {values[1]:g}, which are probably classes: a robust fit "
                "may flag the rarer one as outliers; --weight constant does not"
            )
            continue
        for feature in X.columns:
            if _on_a_line(X.loc[y.index, feature].to_numpy(), y.to_numpy()):
                copies = "if it was made from the target, leave it out with --exclude"
                notices.append(f"{start} is a linear function of column {shown(str(feature))}; {copies}")
    return notices


def _on_a_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    """Whether y, which is not constant, is a + bx up to rounding in every row."""
    low, high = int(x.argmin()), int(x.argmax())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        line = y[low] + (x - x[low]) / (x[high] - x[low]) * (y[high] - y[low])
        return bool(np.abs(y - line).max() <= _ROUNDING * np.ptp(y))


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


def names_rows(values: NDArray[np.float64]) -> bool:
    """Whether whole numbers differ in each row where chance would repeat some, and are no design with wider steps.

    n numbers drawn from m have no repetition with a probability of about exp(-n(n - 1)/2m).
    """
    n = len(values)
    if n < FEWEST_NAMES or (values % 1).any():
        return False
    steps = np.diff(np.sort(values))
    if steps.min() < 1.0 or (steps[0] > 1.0 and (steps == steps[0]).all()):
        return False
    span = float(np.ptp(values)) + 1.0
    return bool(span == n or n * (n - 1) / (2.0 * span) > -math.log(_NO_CHANCE))
