"""Columns to predict: numbers, of which some may be missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rcgp.table.cells import Cells
from rcgp.table.encoding import TableError, listed, shown

__all__ = ["check_distinct_targets", "check_target", "target_values"]


def check_distinct_targets(names: Sequence[str]) -> None:
    """Refuse an empty list of targets, and one named twice."""
    if not names:
        raise TableError("there is no target: name a column to predict")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"--target names {listed(twice)} more than once: name each column once")


def check_target(target: Cells) -> None:
    """Refuse a target that is not numbers where it has a value."""
    cells = target.where(~target.missing())
    kind = cells.kind() if len(cells.rows) else "number"
    if kind != "number":
        what = "dates" if kind == "date" else f"text such as {shown(cells.texts()[0].as_py())}"
        name = shown(cells.name)
        raise TableError(f"the target must be a column of numbers, but {name} holds {what}: choose another")


def target_values(cells: Cells) -> NDArray[np.float64]:
    """The ``n`` values of a target, NaN where missing.

    Raises TableError for cells that are not numbers, fewer than two values, and values that are all the same.
    """
    if (bad := cells.bad("number")).any():
        cells.refuse(bad, "number")
    values = cells.read("number")
    seen = values[~np.isnan(values)]
    if len(seen) < 2:
        raise TableError(
            f"column {shown(cells.name)} has {'only one value' if len(seen) else 'no values'}: at least two are needed"
        )
    if (seen == seen[0]).all():
        raise TableError(f"every value of {shown(cells.name)} is {float(seen[0])}: there is nothing to predict")
    return values
