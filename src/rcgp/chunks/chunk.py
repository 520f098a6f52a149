"""What a table in pieces is, and the check that every piece passes when it is read.

Rows may lie in memory, in files or on the workers of a cluster. All that is asked of a source is that it can be gone
through as often as needed, always in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "Chunk",
    "Chunks",
    "Piece",
    "check_finite",
    "checked",
    "default_rows",
    "names_of",
    "rows_of",
    "split",
    "wanted_shape",
]

# A chunk has at most this many rows, and at most this many bytes of inputs.
_ROWS, _BYTES = 16_384, 32 * 2**20


class Chunk(NamedTuple):
    """Some rows that follow each other.

    Attributes:
        X: ``b x d`` inputs in float64.
        y: ``b`` observations.
        sample_weight: ``b`` factors on the precision of each row, or None.
        first: the number of the first of them in the whole table.
    """

    X: Tensor
    y: Tensor
    sample_weight: Tensor | None
    first: int


#: Reads what is read at once, such as a row group of a file, and gives its chunks.
Piece = Callable[[], Iterator[Chunk]]


class Chunks(Protocol):
    """A table of rows in chunks, which can be gone through as often as needed.

    Attributes:
        columns: the number of features, d.
        names: of the features, where they have any: all of them text, and none twice.
    """

    columns: int
    names: tuple[str, ...] | None

    def __len__(self) -> int:
        """Number of chunks."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """The parts that are read at once, unread and in the order of the rows: each may be read in another thread."""
        ...

    def __iter__(self) -> Iterator[Chunk]:
        for piece in self.pieces():
            yield from piece()


def default_rows(columns: int, rows: int | None = None) -> int:
    """Rows of a chunk: as asked for, else 16 384, or as many as 32 MB of inputs hold."""
    if rows is None:
        return max(1, min(_ROWS, _BYTES // (8 * max(1, columns))))
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    return int(rows)


def rows_of(values: Any, name: str, ndim: int) -> int:
    """The number of rows of something with a shape, or a ValueError unless it has the right number of dimensions."""
    shape = tuple(values.shape)
    if len(shape) == ndim:
        return int(shape[0])
    raise ValueError(f"{name} must have shape {wanted_shape(ndim)}, got {shape}")


def wanted_shape(ndim: int) -> str:
    """The shape of inputs, of two dimensions, or of observations, of one, for a message."""
    return "n x d, with rows and columns" if ndim == 2 else "n, one number for each row"


def names_of(X: Any) -> tuple[str, ...] | None:
    """The names of the columns of a data frame, by the rule of scikit-learn: only text is a name.

    ``None`` for an array, and where no column is called by a text. Some of either, or the same name twice, is refused.
    """
    labels = list(getattr(X, "columns", ()))
    text = [isinstance(label, str) for label in labels]
    if not any(text):
        return None
    if not all(text):
        raise TypeError(f"the columns of X must all be called by text, or none, got {labels}")
    twice = next((label for i, label in enumerate(labels) if label in labels[:i]), None)
    if twice is not None:
        raise ValueError(f"X has more than one column {twice!r}: give each a name of its own")
    return tuple(map(str, labels))


def checked(
    X: Any, y: Any, sample_weight: Any, first: int, columns: int, names: tuple[str, ...] | None = None
) -> Chunk:
    """Rows of any numeric type as a chunk of its own in float64, or a ValueError that names the argument and the row.

    Of several bad rows that is the first, whichever argument it is bad in: the same one however the rows are cut.

    Args:
        X: ``b x d`` numbers: a tensor, an array or a data frame.
        y: ``b`` numbers, likewise.
        sample_weight: ``b`` numbers that are not negative, or None.
        first: the number of the first row in the whole table.
        columns: d.
        names: of the columns, for the messages.
    """
    b = rows_of(X, "X", 2)
    if X.shape[1] != columns:
        raise ValueError(f"X must have {columns} columns in all rows, got {X.shape[1]} from row {first} on")
    inputs, targets = _numbers(X, "X", first, names), _per_row(y, "y", b, first)
    weights = None if sample_weight is None else _per_row(sample_weight, "sample_weight", b, first)
    _check_rows(inputs, targets, weights, first, names)
    return Chunk(inputs, targets, weights, first)


def split(chunk: Chunk, rows: int) -> Iterator[Chunk]:
    """The chunk in chunks of so many rows, which share its memory."""
    X, y, sample_weight, first = chunk
    for start in range(0, X.shape[0], rows):
        part = slice(start, start + rows)
        yield Chunk(X[part], y[part], None if sample_weight is None else sample_weight[part], first + start)


def _per_row(values: Any, name: str, count: int, first: int) -> Tensor:
    """One number for each row."""
    got = rows_of(values, name, 1)
    if got != count:
        raise ValueError(f"X and {name} must have the same number of rows, got {count} and {got} from row {first} on")
    return _numbers(values, name, first, None)


def _numbers(values: Any, name: str, first: int, names: tuple[str, ...] | None) -> Tensor:
    """A copy in float64, so that no task can change the caller's data."""
    if isinstance(values, Tensor):
        if values.is_complex() or values.layout != torch.strided:
            raise ValueError(f"{name} must be real and dense, got {values.dtype} with layout {values.layout}")
        return values.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    try:
        return torch.from_numpy(_array(values))
    except (TypeError, ValueError) as error:
        where = f"rows {first} to {first + len(values) - 1}"
        if values.ndim == 2 and values.shape[1] > 1:
            where += f", column {_unreadable_column(values, names)}"
        raise ValueError(f"{name} cannot be read as numbers in {where}: {error}") from None


def _array(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A copy as a float64 array; what is missing becomes NaN, which is then reported with its row."""
    kinds = [values.dtype] if hasattr(values, "dtype") else list(values.dtypes)
    for kind in kinds:
        if kind.kind not in "biufO":
            raise TypeError(f"{kind} is not a type of numbers")
    if hasattr(values, "iloc"):  # of pandas
        return np.array(values.to_numpy(dtype=np.float64, na_value=np.nan), order="C")
    if isinstance(values, np.ma.MaskedArray):
        return np.array(np.ma.filled(values.astype(np.float64), np.nan), order="C")
    return np.array(values, dtype=np.float64, order="C")


def _unreadable_column(values: Any, names: tuple[str, ...] | None) -> str:
    """Which column of an array or data frame cannot be read as numbers, for a message."""
    for column in range(values.shape[1]):
        try:
            _array(values.iloc[:, column] if hasattr(values, "iloc") else values[:, column])
        except (TypeError, ValueError):
            return _label(column, names)
    return "not known"


def _check_rows(X: Tensor, y: Tensor, weights: Tensor | None, first: int, names: tuple[str, ...] | None) -> None:
    """Raise a ValueError that names the first row with a value that is not finite, or with a negative weight."""
    bad_X, bad_y = _first_bad(X), _first_bad(y)
    bad_weight = len(y) if weights is None else _first_bad(weights, lowest=0.0)
    row = min(bad_X, bad_y, bad_weight)
    if row == len(y):
        return
    if row == bad_X:
        check_finite(X, "X", first, names)
    elif row == bad_y:
        check_finite(y, "y", first, None)
    elif weights is not None and bool(weights[row].isfinite()):
        raise ValueError(f"sample_weight must not be negative, got {float(weights[row]):g} in row {first + row}")
    elif weights is not None:
        check_finite(weights, "sample_weight", first, None)


def _first_bad(values: Tensor, lowest: float = -math.inf) -> int:
    """The first row that holds a value which is not finite, or too low; the number of rows where there is none."""
    if bool(values.sum().isfinite()) and (lowest == -math.inf or not bool((values < lowest).any())):
        return len(values)
    bad = (~values.isfinite() | (values < lowest)).nonzero()
    return int(bad[0, 0]) if len(bad) else len(values)


def check_finite(values: Tensor, name: str, first: int, names: tuple[str, ...] | None, of: str = "") -> None:
    """Raise a ValueError that names the first row, and column, that is NaN or infinite.

    Args:
        values: ``b`` or ``b x d`` numbers.
        name: the argument's name.
        first: the number of the first row.
        names: of the columns, where they have any.
        of: what rows are counted in, if that is not the whole.
    """
    if bool(values.sum().isfinite()):  # one pass and no copy; a sum that overflows is looked at again below
        return
    bad = (~values.isfinite()).nonzero()
    if not len(bad):
        return
    row, *column = bad[0].tolist()
    where = f"row {first + row}{of}" + "".join(f", column {_label(c, names)}" for c in column)
    value = str(float(values[tuple(bad[0])])).replace("nan", "NaN")
    many = len(set(bad[:, 0].tolist()))
    if many > 1:  # as far as it was read
        where += f" ({many} bad rows among {first} to {first + len(values) - 1})"
    raise ValueError(f"{name} has {value} in {where}; drop or impute such rows")


def _label(column: int, names: tuple[str, ...] | None) -> str:
    return str(column) if names is None else repr(names[column])
