"""From a table to features and target: learn the encoding on the training table, apply it to any table.

Both go through the same steps (names checked, cells cleaned, incomplete rows set aside, cells read), so a table that
gave an encoding can be encoded, and a new one is read exactly as the training table was.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rcgp.table.cells import Cells
from rcgp.table.encoding import MOST_LEVELS, Column, CsvFormat, Encoding, Kind, TableError, listed, shown

__all__ = ["Encoded", "Missing", "encode", "learn_encoding", "row_names", "suspicious_inputs"]

Missing: TypeAlias = Literal["drop", "error"]

#: A text column whose levels are more than this share of its rows names the rows.
_IDENTIFIER_SHARE = 0.9
#: With fewer rows, different texts in all of them are no evidence.
_IDENTIFIER_ROWS = 5
#: Cells named in a notice; of more, only the number is given.
_NAMED_CELLS = 5

#: What programs write for a missing number. It is suspicious if it is this many times as common as nine tenths of at
#: least this many other values: counts such as 0, 1 and 2 have few values, and measurements hardly repeat.
_PLACEHOLDERS = (0, -1, -9, -99, -999, -9999, 99, 999, 9999)
_TIMES_AS_COMMON, _FEWEST_OTHERS = 3, 10
#: A value is far if it lies this many times as far from the median as at least nine tenths of the column.
_TIMES_AS_FAR, _NEAR_SHARE, _FEWEST_NEAR = 10.0, 0.9, 5


@dataclass(frozen=True)
class Encoded:
    """A table as numbers.

    Attributes:
        X: ``n x d`` features in float64, with their names and the numbers of the rows that were kept.
        y: ``n`` values of the target; ``None`` if it was not asked for.
        notices: sentences for the user about what was done.
        dropped: how many rows were left out.
    """

    X: pd.DataFrame
    y: pd.Series[float] | None
    notices: list[str]
    dropped: int


def learn_encoding(
    table: pd.DataFrame,
    target: str,
    features: Sequence[str] | None = None,
    missing: Missing = "error",
    exclude: Sequence[str] = (),
    form: CsvFormat | None = None,
    row_id: str | None = None,
) -> tuple[Encoding, list[str]]:
    """Decide how a training table becomes numbers.

    A column is what at least half of its cells look like: numbers (``1,5`` is refused, as it may be one and a half or a
    thousand and more), dates (``03/04/2024`` is refused, as it may be in March or April), else categories, one feature
    for each level, or a single one if there are two. Truth values are categories.

    Args:
        table: the training table, as :func:`rcgp.table.read_table` gives it; its index holds the row numbers that
            messages name.
        target: the column to predict.
        features: the columns to predict it from. ``None``: all others, except for empty ones and identifiers.
        missing: whether rows that lack a value are refused or left out. In the latter case, a cell that is not a number
            or date among at least as many that are counts as missing.
        exclude: columns to leave out.
        form: how numbers and dates are written.
        row_id: column that names the rows, which is no feature. ``None``: a first column without a name that holds a
            different whole number or text in each row.

    Returns:
        The encoding, and notices for the user about every column that is not simply numbers. Cost O(cells).

    Raises:
        TableError: for columns that do not exist or cannot be used, cells that do not fit their column, missing
            values, fewer than two usable rows, and a target that is constant.
    """
    check_columns(table)
    form = form or CsvFormat()
    for name in (*exclude, *([] if row_id is None else [row_id])):
        _check_exists(name, table)
    if row_id is not None and row_id in (target, *(features or ())):
        raise TableError(f"the id {shown(row_id)} cannot be the target or a feature as well: name another column")
    notices, excluded = [], {*exclude, row_id}
    counting = _counts_rows(table, features, {target, *(features or ()), *excluded}, form)
    if counting is not None:
        use = "left out, as it" if row_id else "names the rows and is no feature: it"
        notices.append(f"column {shown(counting)}: {use} has no name in the file and differs in each row")
        excluded.add(counting)
    names = [name for name in table.columns if name != target] if features is None else list(features)
    names = [name for name in names if name not in excluded]
    _check_features(names, target)
    cells = cells_of(table, [target, *names], form)
    check_target(cells[target])  # first: what is missing elsewhere does not matter if this cannot be predicted
    kinds = {name: column.kind() for name, column in cells.items()}
    if features is None:
        # Not named by the user, so a column that cannot be used is left out.
        for name in list(names):
            if why := _unusable(cells[name], kinds[name]):
                notices.append(f"column {shown(name)}: left out, as it {why}")
                names.remove(name)
        if not names:
            raise TableError(f"there is no column to predict {shown(target)} from: {'; '.join(notices)}")
    cells, _, _ = _complete({name: cells[name] for name in [target, *names]}, kinds, missing)
    if len(cells[target].rows) < 2:
        raise TableError("the table has only one usable row: at least two are needed")
    y = cells[target].require("number")
    if (y == y[0]).all():
        raise TableError(f"every value of {shown(target)} is {float(y[0])}: there is nothing to predict")
    columns = []
    for name in names:
        column, notice = _learn_column(cells[name], kinds[name], unasked=features is None and len(names) > 1)
        columns.append(column)
        notices.extend(notice)
        if features is None and name.startswith("Unnamed: "):
            remedy = "if it counts rows, leave it out with --exclude"
            notices.append(f"column {shown(name)}: has no name in the file; {remedy}")
    return Encoding(target, tuple(columns), form, row_id or counting), notices


def row_names(table: pd.DataFrame, row_id: str | None) -> pd.Series[str] | None:
    """The names of all rows as text, empty where missing; ``None`` if no column of the table holds them."""
    if row_id not in table.columns:
        return None
    names = table[row_id]
    return names.astype(str).where(names.notna(), "").str.strip()


def encode(table: pd.DataFrame, encoding: Encoding, missing: Missing = "error", with_target: bool = True) -> Encoded:
    """Turn a table into numbers as the training table was.

    Args:
        table: the table; columns that the encoding does not name are ignored.
        encoding: learned from the training table.
        missing: as for :func:`learn_encoding`.
        with_target: read the target too. Without it, as in prediction, the column need not exist.

    Returns:
        Features and target of the rows that are complete. Cost O(cells).

    Raises:
        TableError: for columns that do not exist, cells that do not fit their column, levels that the training table
            did not have, missing values, and a table of which no row is left.
    """
    check_columns(table)
    names = [column.name for column in encoding.columns]
    kinds: dict[str, Kind] = {column.name: column.kind for column in encoding.columns}
    kinds[encoding.target] = "number"
    every = cells_of(table, [*names, encoding.target] if with_target else names, encoding.form)
    cells, dropped, notices = _complete(every, kinds, missing)
    rows = cells[names[0]].rows
    features: dict[str, NDArray[np.float64]] = {}
    for column in encoding.columns:
        features |= zip(column.feature_names, _features(column, cells[column.name]), strict=True)
    if dropped:
        notices.append(f"{dropped} of {len(table)} rows left out: they lack a value")
    y = cells[encoding.target].require("number") if with_target else None
    target = None if y is None else pd.Series(y, index=rows, name=encoding.target)
    return Encoded(pd.DataFrame(features, index=rows), target, notices, dropped)


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
            notices.append(f"{start} look at {_named(X.index, values, far)}, {others}")
        for value in _placeholders(values):
            equal = values == value
            count = f"{np.count_nonzero(equal)} values are exactly {value} and the others hardly repeat"
            remedy = f"if {value} stands for a missing value, empty these cells and use --missing drop"
            notices.append(f"{start} {count}; {remedy}: {_named(X.index, values, equal)}")
    return notices


def _counts_rows(
    table: pd.DataFrame, features: Sequence[str] | None, used: set[str | None], form: CsvFormat
) -> str | None:
    """The first column, if it has no name and a different whole number or text in each row."""
    first = str(table.columns[0])
    if first != "Unnamed: 0" or first in used or len(table) < 2:
        return None
    if not features and not set(table.columns) - used - {first}:
        return None  # the only input
    cells = Cells.of(table[first], first, form)
    kind = cells.kind()
    if kind == "date" or cells.missing().any() or len(pc.unique(cells.values)) < len(table):
        return None
    return first if kind == "category" or not (cells.read("number") % 1).any() else None


def _unusable(cells: Cells, kind: Kind) -> str:
    """Why a column cannot be used: it holds nothing, or too many different texts. Empty if it can."""
    present = cells.where(~cells.missing()) if cells.values.null_count else cells
    rows = len(present.rows)
    if not rows:
        return "has no values at all"
    if kind != "category":
        return ""
    levels = pc.unique(present.texts())
    identifier = rows >= _IDENTIFIER_ROWS and len(levels) > _IDENTIFIER_SHARE * rows
    if len(levels) <= MOST_LEVELS and not identifier:
        return ""
    some = listed(levels[:2].to_pylist())
    return f"holds {len(levels)} different texts in {rows} rows, such as {some}, too many for categories"


def _learn_column(cells: Cells, kind: Kind, unasked: bool) -> tuple[Column, list[str]]:
    """What a column holds, and what the user should know about it."""
    start = f"column {shown(cells.name)}"
    if kind == "category":
        if why := _unusable(cells, kind):
            raise TableError(f"{start} {why}: leave it out")
        column = Column(cells.name, kind, tuple(sorted(pc.unique(cells.texts()).to_pylist())))
        if len(column.levels) == 1:
            return column, [f"{start}: every value is {shown(column.levels[0])}, so it tells nothing; kept"]
        if len(column.levels) == 2:
            no, yes = (shown(level) for level in column.levels)
            return column, [f"{start}: 2 categories, read as 0 for {no} and 1 for {yes}"]
        levels = listed(column.levels, MOST_LEVELS)
        return column, [f"{start}: {len(column.levels)} categories, a feature for each: {levels}"]
    values = cells.require(kind)
    notices = [f"{start}: dates read as days since 1970-01-01"] if kind == "date" else []
    if (values == values[0]).all():
        notices.append(f"{start}: every value is the same, so it tells nothing; kept")
    if unasked and kind == "number" and len(values) >= _IDENTIFIER_ROWS and (np.diff(values) == 1).all():
        notices.append(f"{start}: counts the rows; if it only names them, use --id {cells.name}")
    return Column(cells.name, kind), notices


def _features(column: Column, cells: Cells) -> list[NDArray[np.float64]]:
    """The features that a column gives, ``n`` numbers each."""
    if column.kind != "category":
        return [cells.require(column.kind)]
    texts = cells.texts()
    place = pc.fill_null(pc.index_in(texts, pa.array(column.levels, pa.string())), -1).to_numpy(zero_copy_only=False)
    unknown = place < 0
    if unknown.any():
        first = int(unknown.argmax())
        remedy = f"correct it or leave the row out, as the model knows only {listed(column.levels)}"
        new = shown(texts[first].as_py())
        raise TableError(f"{cells.row(first)} is {new}, which the training table did not have: {remedy}")
    return [(place == column.levels.index(level)).astype(np.float64) for level in column.indicated]


def _complete(
    cells: dict[str, Cells], kinds: dict[str, Kind], missing: Missing
) -> tuple[dict[str, Cells], int, list[str]]:
    """The cells of complete rows, the number of rows left out, and notices of cells that count as missing."""
    if missing not in get_args(Missing):
        raise TableError(f"missing must be {listed(get_args(Missing))}, got {missing!r:.50}")
    notices: list[str] = []
    if missing == "drop":
        cells = {name: without_bad(column, kinds[name], notices) for name, column in cells.items()}
    gaps = {name: column.missing() for name, column in cells.items()}
    for name, gap in gaps.items():
        if gap.all():
            raise TableError(f"column {shown(name)} has no values at all: fill it in, or leave it out with --exclude")
    incomplete = np.logical_or.reduce(list(gaps.values()))
    dropped = int(np.count_nonzero(incomplete))
    if not dropped:
        return cells, 0, notices
    if missing == "error":
        first = int(incomplete.argmax())
        name = next(name for name, gap in gaps.items() if gap[first])
        count, remedy = f"{dropped} of {len(incomplete)}", "fill it in, or use --missing drop to leave such rows out"
        raise TableError(f"{cells[name].row(first)} has no value ({count} rows lack one): {remedy}")
    if dropped == len(incomplete):
        raise TableError("every row lacks a value: leave out the columns that are mostly empty with --exclude")
    return {name: column.where(~incomplete) for name, column in cells.items()}, dropped, notices


def without_bad(cells: Cells, kind: Kind, notices: list[str]) -> Cells:
    """The same with cells that are not of a kind missing; a notice names them. Refused if most are not."""
    if kind == "category" or not (bad := cells.bad(kind)).any():
        return cells
    count = int(np.count_nonzero(bad))
    if 2 * count > len(bad) - cells.values.null_count:
        cells.refuse(bad, kind)
    named = _named(cells.rows, cells.values, bad)
    counts = "counts as missing, as it is" if count == 1 else "count as missing, as they are"
    notices.append(f"column {shown(cells.name)}: {named} {counts} no {kind}")
    return cells.without(bad)


def _named(rows: pd.Index, values: Any, chosen: NDArray[np.bool_]) -> str:
    """The first chosen rows with their values, numbers or Arrow texts, and how many more there are."""
    places = chosen.nonzero()[0].tolist()
    some = [(rows[i], values[i]) for i in places[:_NAMED_CELLS]]
    texts = [f"row {row} ({shown(str(v)) if isinstance(v, pa.Scalar) else format(v, 'g')})" for row, v in some]
    more = f" and {len(places) - _NAMED_CELLS} more" if len(places) > _NAMED_CELLS else ""
    return ", ".join(texts) + more


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


def cells_of(table: pd.DataFrame, names: list[str], form: CsvFormat) -> dict[str, Cells]:
    """The cells of some columns, each of which must exist."""
    for name in names:
        _check_exists(name, table)
    return {name: Cells.of(table[name], name, form) for name in names}


def _check_exists(name: str, table: pd.DataFrame) -> None:
    """Refuse a column that does not exist, naming similar and existing ones."""
    names = list(table.columns)
    if name in names:
        return
    # Cut, as the comparison takes the square of the length, and a name may be as long as a file.
    alike = {other[:80].casefold(): other for other in names}
    close = [shown(alike[match]) for match in difflib.get_close_matches(name[:80].casefold(), alike)]
    sentence = f"there is no column {shown(name)}" + (f": did you mean {' or '.join(close)}?" if close else "")
    if len(names) <= 10 or not close:
        sentence += f" (the columns are {listed(names)})"
    if pd.to_numeric(pd.Series(names), errors="coerce").notna().all():
        sentence += ": the first line must be a header, and these are numbers"
    raise TableError(sentence)


def check_columns(table: pd.DataFrame) -> None:
    """Refuse a table without rows, or without a distinct name for each column."""
    if not len(table):
        raise TableError("the table has no rows")
    odd = [str(name) for name in table.columns if not isinstance(name, str)]
    if odd:
        raise TableError(f"column names must be text, got {listed(odd)}")
    if twice := list(table.columns[table.columns.duplicated()].unique()):
        raise TableError(f"more than one column is called {listed(twice)}: give each a name of its own")


def _check_features(names: list[str], target: str) -> None:
    """Refuse an empty list of features, one named twice, and the target among them."""
    if target in names:
        raise TableError(f"the target {shown(target)} cannot be one of the features as well: name other features")
    if not names:
        raise TableError(f"there is no column to predict {shown(target)} from: the table needs at least one more")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"the features name {listed(twice)} more than once: name each column once")


def check_target(target: Cells) -> None:
    """Refuse a target that is not numbers where it has a value."""
    cells = target.where(~target.missing())
    kind = cells.kind() if len(cells.rows) else "number"
    if kind != "number":
        what = "dates" if kind == "date" else f"text such as {shown(cells.texts()[0].as_py())}"
        name = shown(cells.name)
        raise TableError(f"the target must be a column of numbers, but {name} holds {what}: choose another")
