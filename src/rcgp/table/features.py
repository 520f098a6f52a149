"""From a table to features and target: learn the encoding on the training table, apply it to that and to new ones.

Both ways go through the same steps (names checked, cells cleaned, incomplete rows set aside, cells read), so that a
table which could be learnt from can be encoded, and a new one is read exactly as the training table was.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rcgp.table.cells import Cells, Kind
from rcgp.table.encoding import MOST_LEVELS, Column, Encoding
from rcgp.table.errors import TableError, listed, shown
from rcgp.table.format import CsvFormat

__all__ = ["Encoded", "Missing", "encode", "learn_encoding", "row_names"]

Missing: TypeAlias = Literal["drop", "error"]

#: A text column whose levels are more than this share of its rows names the rows.
_IDENTIFIER_SHARE = 0.9
#: With fewer rows, different texts in all of them say nothing.
_IDENTIFIER_ROWS = 5
#: Cells named in a notice; of more, only the number is given.
_NAMED_CELLS = 5


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

    A column is what at least half of its cells look like: numbers (with a decimal point; ``1,5`` is refused, as it may
    be one and a half or a thousand and more), dates (see :func:`rcgp.table.dates.days_from_text`; ``03/04/2024`` is
    refused, as it may be in March or April), else categories, one feature for each level, or a single one if there are
    two levels. Truth values are categories. The format may state how numbers and dates are written.

    Args:
        table: the training table, as :func:`rcgp.table.read_table` gives it; its index holds the row numbers that
            messages name.
        target: the column to predict.
        features: the columns to predict it from. ``None``: all others, but for empty ones and identifiers.
        missing: what to do with rows that lack a value: refuse them or leave them out. In the latter case, a cell that
            is not a number or date among at least as many that are counts as missing.
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
    _check_columns(table)
    form = form or CsvFormat()
    for name in {*exclude, *([] if row_id is None else [row_id])} - set(table.columns):
        raise TableError(_no_such_column(name, list(table.columns)))
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
    cells = _cells(table, [target, *names], form)
    _check_kind(cells[target])  # first: what is missing elsewhere does not matter if this cannot be predicted
    kinds = {name: column.kind() for name, column in cells.items()}
    if features is None:
        # Not asked for by name: a column that cannot be used is no reason to refuse the table.
        unusable = _unusable({name: cells[name] for name in names}, kinds)
        notices += [f"column {shown(name)}: left out, as it {why}" for name, why in unusable.items()]
        names = [name for name in names if name not in unusable]
        if not names:
            raise TableError(f"there is no column to predict {shown(target)} from: {'; '.join(notices)}")
    cells, _, _ = _complete({name: cells[name] for name in [target, *names]}, kinds, missing)
    if len(cells[target].rows) < 2:
        raise TableError("the table has only one usable row: at least two are needed")
    _check_target(cells.pop(target))
    columns = []
    for name in names:
        column, notice = _learn_column(cells[name], kinds[name])
        columns.append(column)
        notices.extend(notice)
        if features is None and name.startswith("Unnamed: "):
            notices.append(
                f"column {shown(name)}: has no name in the file; if it counts rows, leave it out with --exclude"
            )
    return Encoding(target, tuple(columns), form, row_id or counting), notices


def row_names(table: pd.DataFrame, row_id: str | None) -> pd.Series[str] | None:
    """The names of all rows as text, empty where missing; ``None`` if no column of the table holds them."""
    if row_id not in table.columns:
        return None
    names = table[row_id]
    return names.astype(str).where(names.notna(), "").str.strip()


def _counts_rows(
    table: pd.DataFrame, features: Sequence[str] | None, used: set[str | None], form: CsvFormat
) -> str | None:
    """The first column, if it has no name and a different whole number or text in each row."""
    first = str(table.columns[0])
    if first != "Unnamed: 0" or first in used or len(table) < 2:
        return None
    if not features and not set(table.columns) - used - {first}:
        return None  # the only input that there is
    cells = Cells.of(table[first], first, form)
    kind = cells.kind()
    if kind == "date" or cells.missing().any() or len(pc.unique(cells.values)) < len(table):
        return None
    return first if kind == "category" or not (cells.read("number") % 1).any() else None


def _unusable(cells: dict[str, Cells], kinds: dict[str, Kind]) -> dict[str, str]:
    """Columns that hold nothing, or a different text in nearly every row, and why each cannot be used."""
    reasons = {}
    for name, column in cells.items():
        present = column.where(~column.missing()) if column.values.null_count else column
        if not len(present.rows):
            reasons[name] = "has no values at all"
        elif kinds[name] == "category" and (count := _too_many_levels(present)):
            reasons[name] = f"holds {count} different texts in {len(present.rows)} rows, too many for categories"
    return reasons


def _too_many_levels(cells: Cells) -> int:
    """The number of different texts in a column where there are too many for categories, else 0."""
    levels, rows = len(pc.unique(cells.texts())), len(cells.rows)
    identifier = rows >= _IDENTIFIER_ROWS and levels > _IDENTIFIER_SHARE * rows
    return levels if levels > MOST_LEVELS or identifier else 0


def encode(table: pd.DataFrame, encoding: Encoding, missing: Missing = "error", with_target: bool = True) -> Encoded:
    """Turn a table into numbers as the training table was.

    Args:
        table: the table; columns that the encoding does not name are ignored.
        encoding: learnt from the training table.
        missing: as for :func:`learn_encoding`.
        with_target: read the target too. Without it, as in prediction, the column need not exist.

    Returns:
        Features and target of the rows that are complete. Cost O(cells).

    Raises:
        TableError: for columns that do not exist, cells that do not fit their column, levels that the training table
            did not have, missing values, and a table of which no row is left.
    """
    _check_columns(table)
    names = [column.name for column in encoding.columns]
    kinds: dict[str, Kind] = {column.name: column.kind for column in encoding.columns}
    kinds[encoding.target] = "number"
    every = _cells(table, [*names, encoding.target] if with_target else names, encoding.form)
    cells, dropped, notices = _complete(every, kinds, missing)
    rows = cells[names[0]].rows
    features: dict[str, NDArray[np.float64]] = {}
    for column in encoding.columns:
        features |= zip(column.feature_names, _features(column, cells[column.name]), strict=True)
    y = pd.Series(cells[encoding.target].numbers(), index=rows, name=encoding.target) if with_target else None
    if dropped:
        notices.append(f"{dropped} of {len(table)} rows left out: they lack a value")
    return Encoded(pd.DataFrame(features, index=rows), y, notices, dropped)


def _learn_column(cells: Cells, kind: Kind) -> tuple[Column, list[str]]:
    """What a column holds, and what the user should know about it."""
    start = f"column {shown(cells.name)}:"
    if kind == "category":
        column = Column(cells.name, kind, _learn_levels(cells))
        if len(column.levels) == 1:
            return column, [f"{start} every value is {shown(column.levels[0])}, so it tells nothing; kept"]
        if len(column.levels) == 2:
            no, yes = (shown(level) for level in column.levels)
            return column, [f"{start} 2 categories, read as 0 for {no} and 1 for {yes}"]
        return column, [
            f"{start} {len(column.levels)} categories, a feature for each: {listed(column.levels, MOST_LEVELS)}"
        ]
    values = cells.numbers() if kind == "number" else cells.dates()
    notices = [f"{start} dates read as days since 1970-01-01"] if kind == "date" else []
    if (values == values[0]).all():
        notices.append(f"{start} every value is the same, so it tells nothing; kept")
    return Column(cells.name, kind), notices


def _learn_levels(cells: Cells) -> tuple[str, ...]:
    """The sorted levels of a category; TableError if there are so many that it is none."""
    levels = sorted(pc.unique(cells.texts()).to_pylist())
    if _too_many_levels(cells):
        raise TableError(
            f"column {shown(cells.name)} holds {len(levels)} different texts in {len(cells.rows)} rows, such as "
            f"{listed(levels[:2])}, too many for categories: leave it out"
        )
    return tuple(levels)


def _features(column: Column, cells: Cells) -> list[NDArray[np.float64]]:
    """The features that a column gives, ``n`` numbers each."""
    if column.kind == "number":
        return [cells.numbers()]
    if column.kind == "date":
        return [cells.dates()]
    texts = cells.texts()
    place = pc.fill_null(pc.index_in(texts, pa.array(column.levels, pa.string())), -1).to_numpy(zero_copy_only=False)
    unknown = place < 0
    if unknown.any():
        first = int(unknown.argmax())
        raise TableError(
            f"{cells.row(first)} is {shown(texts[first].as_py())}, which the training table did not have: correct it "
            f"or leave the row out, as the model knows only {listed(column.levels)}"
        )
    return [(place == column.levels.index(level)).astype(np.float64) for level in column.indicated]


def _complete(
    cells: dict[str, Cells], kinds: dict[str, Kind], missing: Missing
) -> tuple[dict[str, Cells], int, list[str]]:
    """The cells of the rows that lack no value, how many rows are left out, and which cells count as missing."""
    if missing not in get_args(Missing):
        raise TableError(f"missing must be {listed(get_args(Missing))}, got {missing!r:.50}")
    notices = []
    if missing == "drop":
        cells = dict(cells)
        for name, column in cells.items():
            cells[name], notice = _without_bad(column, kinds[name])
            notices += notice
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
        raise TableError(
            f"{cells[name].row(first)} has no value ({dropped} of {len(incomplete)} rows lack one): fill it in, or use "
            "--missing drop to leave such rows out"
        )
    if dropped == len(incomplete):
        raise TableError("every row lacks a value: leave out the columns that are mostly empty with --exclude")
    return {name: column.where(~incomplete) for name, column in cells.items()}, dropped, notices


def _without_bad(cells: Cells, kind: Kind) -> tuple[Cells, list[str]]:
    """The same with cells that are not of a kind missing, and a notice naming them. Refused if most are not."""
    if kind == "category" or not (bad := cells.bad(kind)).any():
        return cells, []
    count = int(np.count_nonzero(bad))
    if 2 * count > len(bad) - cells.values.null_count:
        cells.refuse(bad, kind)
    some = [f"row {cells.rows[i]} ({shown(str(cells.values[i].as_py()))})" for i in bad.nonzero()[0][:_NAMED_CELLS]]
    more = f" and {count - len(some)} more" if count > len(some) else ""
    counts = "counts as missing, as it is" if count == 1 else "count as missing, as they are"
    what = "no number" if kind == "number" else "no date"
    return cells.without(bad), [f"column {shown(cells.name)}: {', '.join(some)}{more} {counts} {what}"]


def _cells(table: pd.DataFrame, names: list[str], form: CsvFormat) -> dict[str, Cells]:
    """The cells of some columns; TableError naming similar columns for one that does not exist."""
    for name in names:
        if name not in table.columns:
            raise TableError(_no_such_column(name, list(table.columns)))
    return {name: Cells.of(table[name], name, form) for name in names}


def _no_such_column(name: str, names: list[str]) -> str:
    """The sentence for a column that does not exist."""
    # Cut, as the comparison takes the square of the length, and a name may be as long as a file.
    alike = {other[:80].casefold(): other for other in names}
    close = [alike[match] for match in difflib.get_close_matches(name[:80].casefold(), alike)]
    sentence = f"there is no column {shown(name)}"
    if close:
        sentence += f": did you mean {' or '.join(shown(other) for other in close)}?"
    return f"{sentence} (the columns are {listed(names)})" if len(names) <= 10 or not close else sentence


def _check_columns(table: pd.DataFrame) -> None:
    """Refuse a table without rows, or whose columns cannot be told apart by name."""
    if not len(table):
        raise TableError("the table has no rows")
    odd = [str(name) for name in table.columns if not isinstance(name, str)]
    if odd:
        raise TableError(f"column names must be text, got {listed(odd)}")
    repeated = list(table.columns[table.columns.duplicated()].unique())
    if repeated:
        raise TableError(f"more than one column is called {listed(repeated)}: give each a name of its own")


def _check_features(names: list[str], target: str) -> None:
    """Refuse features that are none, or named twice, or the target."""
    if target in names:
        raise TableError(f"the target {shown(target)} cannot be one of the features as well: name other features")
    if not names:
        raise TableError(f"there is no column to predict {shown(target)} from: the table needs at least one more")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(f"the features name {listed(repeated)} more than once: name each column once")


def _check_kind(target: Cells) -> None:
    """Refuse a target that is not numbers where it has a value."""
    cells = target.where(~target.missing())
    kind = cells.kind() if len(cells.rows) else "number"
    if kind != "number":
        what = "dates" if kind == "date" else f"text such as {shown(cells.texts()[0].as_py())}"
        raise TableError(
            f"the target must be a column of numbers, but {shown(cells.name)} holds {what}: choose another"
        )


def _check_target(cells: Cells) -> None:
    """Refuse a target with a cell that is not a number, or that is always the same one."""
    values = cells.numbers()
    if (values == values[0]).all():
        raise TableError(f"every value of {shown(cells.name)} is {float(values[0])}: there is nothing to predict")
