"""From a table to features and target: learn the encoding on the training table, apply it to any table.

Both go through the same steps (names checked, cells cleaned, incomplete rows set aside, cells read), so a table that
gave an encoding can be encoded, and a new one is read exactly as the training table was.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rcgp.table.cells import Cells, named_cells
from rcgp.table.encoding import MOST_LEVELS, Column, CsvFormat, Encoding, Kind, TableError, listed, repeated, shown
from rcgp.table.suspicion import FEWEST_NAMES, names_rows

__all__ = [
    "Encoded",
    "Missing",
    "cells_of",
    "check_columns",
    "check_target",
    "check_targets",
    "encode",
    "learn_encoding",
    "row_names",
    "target_values",
    "without_bad",
]

Missing: TypeAlias = Literal["drop", "error"]

#: A text column whose levels are more than this share of its rows names the rows.
_IDENTIFIER_SHARE = 0.9


@dataclass(frozen=True)
class Encoded:
    """A table as numbers.

    Attributes:
        X: ``n x d`` features in float64, with their names and the numbers of the rows that were kept.
        y: ``n`` values of the target, or ``n x T`` of several, NaN where a cell is empty; ``None`` if not asked for.
        notices: sentences for the user about what was done.
        dropped: how many rows were left out.
    """

    X: pd.DataFrame
    y: pd.Series[float] | pd.DataFrame | None
    notices: list[str]
    dropped: int


def learn_encoding(
    table: pd.DataFrame,
    target: str | Sequence[str],
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
        target: the column to predict, or several. Cells of several may be empty in rows that have one of them.
        features: the columns to predict it from. ``None``: all others, except for empty ones and identifiers.
        missing: refuse rows that lack a value, or drop them. Then a cell that is not a number or date, in a column
            where at least half of the cells are, counts as missing.
        exclude: columns to leave out.
        form: how numbers and dates are written.
        row_id: column that names the rows, not a feature. ``None``: a first column without a name that holds a
            different whole number or text in each row.

    Returns:
        The encoding, and notices for the user about every column that is not simply numbers. Cost O(cells).

    Raises:
        TableError: for columns that do not exist or cannot be used, cells that do not fit their column, missing
            values, fewer than two usable rows, and a target that is constant.
    """
    check_columns(table)
    targets, form = [target] if isinstance(target, str) else list(target), form or CsvFormat()
    check_targets(targets)
    for name in (*exclude, *([] if row_id is None else [row_id])):
        _check_exists(name, table)
    if row_id is not None and row_id in (*targets, *(features or ())):
        raise TableError(f"the id {shown(row_id)} cannot be the target or a feature as well: name another column")
    notices, excluded = [], {*exclude, row_id}
    if counting := _counts_rows(table, features, {*targets, *(features or ()), *excluded}, form):
        use = "left out, as it" if row_id else "names the rows and is not a feature: it"
        notices.append(f"column {shown(counting)}: {use} has no name in the file and differs in each row")
        excluded.add(counting)
    names = [name for name in table.columns if name not in targets] if features is None else list(features)
    names = [name for name in names if name not in excluded]
    _check_features(names, targets)
    cells = cells_of(table, [*targets, *names], form)
    for name in targets:
        check_target(cells[name])  # first: what is missing elsewhere does not matter if this cannot be predicted
    kinds = {name: column.kind() for name, column in cells.items()}
    if features is None:  # a column that the user did not name and that cannot be used is left out
        why = {name: _unusable(cells[name], kinds[name]) for name in names}
        notices += [f"column {shown(name)}: left out, as it {reason}" for name, reason in why.items() if reason]
        names = [name for name in names if not why[name]]
        if not names:
            raise TableError(f"there is no column to predict {listed(targets)} from: {'; '.join(notices)}")
    cells, _, _ = _complete({name: cells[name] for name in [*targets, *names]}, kinds, missing, targets)
    if len(cells[targets[0]].rows) < 2:
        raise TableError("the table has only one usable row: at least two are needed")
    for name in targets:
        target_values(cells[name])
    learned = [_learn_column(cells[name], kinds[name], features is None, len(names)) for name in names]
    notices += [notice for _, own in learned for notice in own]
    columns = tuple(column for column, _ in learned)
    return Encoding(targets[0], columns, form, row_id or counting, further=tuple(targets[1:])), notices


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
            did not have, missing values, and a table without a complete row.
    """
    check_columns(table)
    names = [column.name for column in encoding.columns]
    kinds: dict[str, Kind] = {column.name: column.kind for column in encoding.columns}
    targets = encoding.targets if with_target else ()
    kinds |= dict.fromkeys(targets, "number")
    cells, dropped, notices = _complete(cells_of(table, [*names, *targets], encoding.form), kinds, missing, targets)
    rows = cells[names[0]].rows
    features: dict[str, NDArray[np.float64]] = {}
    for column in encoding.columns:
        features |= zip(column.feature_names, _features(column, cells[column.name]), strict=True)
    if dropped:
        notices.append(f"{dropped} of {len(table)} rows left out: they lack a value")
    y: pd.Series[float] | pd.DataFrame | None = None
    if len(targets) == 1:
        y = pd.Series(cells[encoding.target].require("number"), index=rows, name=encoding.target)
    elif targets:
        y = pd.DataFrame({name: target_values(cells[name]) for name in targets}, index=rows)
    return Encoded(pd.DataFrame(features, index=rows), y, notices, dropped)


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
    identifier = rows >= FEWEST_NAMES and len(levels) > _IDENTIFIER_SHARE * rows
    if len(levels) <= MOST_LEVELS and not identifier:
        return ""
    some = listed(levels[:2].to_pylist())
    return f"holds {len(levels)} different texts in {rows} rows, such as {some}, too many for categories"


def _learn_column(cells: Cells, kind: Kind, unasked: bool, columns: int) -> tuple[Column, list[str]]:
    """What a column holds, and what the user, who may not have named it, should know about it."""
    if kind == "category" and (why := _unusable(cells, kind)):
        raise TableError(f"column {shown(cells.name)} {why}: leave it out")
    levels = tuple(sorted(pc.unique(cells.texts()).to_pylist())) if kind == "category" else ()
    said = []
    if len(levels) == 1:
        said.append(f"every value is {shown(levels[0])}, so it carries no information; kept")
    elif len(levels) == 2:
        said.append(f"2 categories, read as 0 for {shown(levels[0])} and 1 for {shown(levels[1])}")
    elif levels:
        said.append(f"{len(levels)} categories, a feature for each: {listed(levels, MOST_LEVELS)}")
    if kind != "category":
        values = cells.require(kind)
        said += ["dates read as days since 1970-01-01"] if kind == "date" else []
        said += ["every value is the same, so it carries no information; kept"] if (values == values[0]).all() else []
    if kind == "number":
        if codes := cells.codes():
            look = f"although its cells look like codes ({listed(codes)})"
            said.append(f"read as numbers, {look}; --exclude leaves it out")
        if dates := cells.looks_like_dates():
            said.append(dates)
        elif unasked and columns > 1 and names_rows(values):
            said.append(f"a different whole number in each row; if it only names the rows, use --id {cells.name}")
    if unasked and cells.name.startswith("Unnamed: "):
        said.append("has no name in the file; if it counts rows, leave it out with --exclude")
    return Column(cells.name, kind, levels), [f"column {shown(cells.name)}: {sentence}" for sentence in said]


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
    cells: dict[str, Cells], kinds: dict[str, Kind], missing: Missing, targets: Sequence[str]
) -> tuple[dict[str, Cells], int, list[str]]:
    """The cells of complete rows, the number of rows left out, and notices of cells that count as missing.

    A row is complete if it has all inputs and, if there are targets, at least one of them.
    """
    if missing not in get_args(Missing):
        raise TableError(f"missing must be {listed(get_args(Missing))}, got {missing!r:.50}")
    notices: list[str] = []
    if missing == "drop":
        cells = {name: without_bad(column, kinds[name], notices) for name, column in cells.items()}
    gaps = {name: column.missing() for name, column in cells.items()}
    for name, gap in gaps.items():
        if gap.all():
            raise TableError(f"column {shown(name)} has no values at all: fill it in, or leave it out with --exclude")
    lacking = {name: gap for name, gap in gaps.items() if name not in targets}
    if targets:
        lacking[targets[0]] = np.logical_and.reduce([gaps[name] for name in targets])
    incomplete = np.logical_or.reduce(list(lacking.values()))
    dropped = int(np.count_nonzero(incomplete))
    if not dropped:
        return cells, 0, notices
    if missing == "error":
        first = int(incomplete.argmax())
        name = next(name for name in cells if name in lacking and lacking[name][first])
        other = ", nor has any other target" if name in targets[:1] and len(targets) > 1 else ""
        count, remedy = f"{dropped} of {len(incomplete)}", "fill it in, or use --missing drop to leave such rows out"
        raise TableError(f"{cells[name].row(first)} has no value{other} ({count} rows lack one): {remedy}")
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
    named = named_cells(cells.rows, cells.values, bad)
    counts = f"counts as missing, as it is not a {kind}" if count == 1 else f"count as missing, as they are not {kind}s"
    notices.append(f"column {shown(cells.name)}: {named} {counts}")
    return cells.without(bad)


def cells_of(table: pd.DataFrame, names: list[str], form: CsvFormat) -> dict[str, Cells]:
    """The cells of some columns; each must exist."""
    for name in names:
        _check_exists(name, table)
    return {name: Cells.of(table[name], name, form) for name in names}


def _check_exists(name: str, table: pd.DataFrame) -> None:
    """Refuse a column that does not exist, naming similar and existing ones."""
    names = list(table.columns)
    if name in names:
        return
    alike = {other[:80].casefold(): other for other in names}  # cut: the cost is the square of the length
    close = [shown(alike[match]) for match in difflib.get_close_matches(name[:80].casefold(), alike)]
    sentence = f"there is no column {shown(name)}" + (f": did you mean {' or '.join(close)}?" if close else "")
    if len(names) <= 10 or not close:
        sentence += f" (the columns are {listed(names)})"
    if len(names) == 1 and len(names[0].split()) > 1:
        sentence += ": separate cells by a comma, a semicolon, a tab or a bar, not by spaces"
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
    if twice := repeated(table.columns):
        raise TableError(f"more than one column is called {listed(twice)}: give each a name of its own")


def check_targets(names: Sequence[str]) -> None:
    """Refuse an empty list of targets, and one named twice."""
    if not names:
        raise TableError("there is no target: name a column to predict")
    if twice := repeated(names):
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
        count = "only one value" if len(seen) else "no values"
        raise TableError(f"column {shown(cells.name)} has {count}: at least two are needed")
    if (seen == seen[0]).all():
        raise TableError(f"every value of {shown(cells.name)} is {float(seen[0])}: there is nothing to predict")
    return values


def _check_features(names: list[str], targets: Sequence[str]) -> None:
    """Refuse an empty list of features, one named twice, and a target among them."""
    if both := [name for name in targets if name in names]:
        raise TableError(f"the target {shown(both[0])} cannot be one of the features as well: name other features")
    if not names:
        raise TableError(f"there is no column to predict {listed(targets)} from: the table needs at least one more")
    if twice := repeated(names):
        raise TableError(f"the features name {listed(twice)} more than once: name each column once")
