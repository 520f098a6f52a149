"""A table in chunks, and the checks that every row passes when it is read.

Rows may lie in memory, in files or on the workers of a cluster. A source can be read as often as needed, always in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["Chunk", "Chunks", "Piece", "check_finite", "checked", "default_rows", "names_of", "rows_of", "split"]

# A chunk has at most this many rows, and at most this many bytes of inputs.
_ROWS, _BYTES = 16_384, 32 * 2**20


class Chunk(NamedTuple):
    """Consecutive rows.

    Attributes:
        X: ``b x d`` inputs in float64.
        y: ``b`` observations; NaN for a missing one, in a row of weight 0.
        sample_weight: ``b`` factors on the precision of each row, or None.
        first: the number of the first row in the table.
    """

    X: Tensor
    y: Tensor
    sample_weight: Tensor | None
    first: int


#: Reads a unit of the source, such as a row group of a file, in chunks.
Piece = Callable[[], Iterator[Chunk]]


class Chunks(Protocol):
    """A table of rows in chunks, which can be read as often as needed.

    Attributes:
        columns: the number of features, d.
        names: distinct names of the features, or None.
    """

    columns: int
    names: tuple[str, ...] | None

    def pieces(self) -> Iterator[Piece]:
        """The units to read, in the order of the rows; each may be read in another thread."""
        ...

    def __iter__(self) -> Iterator[Chunk]:
        for piece in self.pieces():
            yield from piece()


def default_rows(columns: int, rows: int | None = None) -> int:
    """Rows of a chunk: as requested, else 16 384, or fewer if those exceed 32 MB of inputs."""
    if rows is None:
        return max(1, min(_ROWS, _BYTES // (8 * max(1, columns))))
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    return int(rows)


def rows_of(values: Any, name: str, ndim: int) -> int:
    """The number of rows, or a ValueError for another number of dimensions."""
    if values.ndim == ndim:
        return int(values.shape[0])
    expected = "n x d, with rows and columns" if ndim == 2 else "n, one number for each row"
    raise ValueError(f"{name} must have shape {expected}, got {tuple(values.shape)}")


def names_of(X: Any) -> tuple[str, ...] | None:
    """The names of the columns of a data frame, by scikit-learn's rule: only text is a name.

    ``None`` for an array, or if no label is text. A mixture, or the same name twice, raises an error.
    """
    labels = list(getattr(X, "columns", ()))
    text = [isinstance(label, str) for label in labels]
    if not any(text):
        return None
    if not all(text):
        raise TypeError(f"the column names of X must all be text, or none, got {labels}")
    twice = next((label for i, label in enumerate(labels) if label in labels[:i]), None)
    if twice is not None:
        raise ValueError(f"X has more than one column {twice!r}: give each a name of its own")
    return tuple(map(str, labels))


def checked(
    X: Any, y: Any, sample_weight: Any, first: int, columns: int, names: tuple[str, ...] | None = None
) -> Chunk:
    """Tensors, arrays or data frames copied to a chunk of float64, or a ValueError that names the argument and the row.

    The message names the first bad row of any argument, so it does not depend on the chunks. The chunk must have the
    given number of columns; their names are for messages. In rows of weight 0 an observation that is not
    finite is missing.
    """
    b = rows_of(X, "X", 2)
    if X.shape[1] != columns:
        raise ValueError(f"X must have {columns} columns in all rows, got {X.shape[1]} from row {first} on")
    arguments = {"X": _numbers(X, "X", first, names)}
    for name, values in (("y", y), ("sample_weight", sample_weight)):
        if values is None:
            continue
        if (got := rows_of(values, name, 1)) != b:
            raise ValueError(f"X and {name} must have the same number of rows, got {b} and {got} from row {first} on")
        arguments[name] = _numbers(values, name, first, None)
    observed, weights = arguments["y"], arguments.get("sample_weight")
    missing = torch.zeros(b, dtype=torch.bool) if weights is None else (weights == 0) & ~observed.isfinite()
    _check_rows({**arguments, "y": observed.masked_fill(missing, 0.0)} if missing.any() else arguments, first, names)
    return Chunk(arguments["X"], observed.masked_fill_(missing, torch.nan), weights, first)


def split(chunk: Chunk, rows: int) -> Iterator[Chunk]:
    """The chunk in parts of at most this many rows, which share its memory."""
    X, y, sample_weight, first = chunk
    for start in range(0, X.shape[0], rows):
        part = slice(start, start + rows)
        yield Chunk(X[part], y[part], None if sample_weight is None else sample_weight[part], first + start)


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
    """A copy as a float64 array, with NaN for missing values."""
    for kind in [values.dtype] if hasattr(values, "dtype") else values.dtypes:
        if kind.kind not in "biufO":
            raise TypeError(f"{kind} is not a type of numbers")
    if hasattr(values, "iloc"):  # pandas
        return np.array(values.to_numpy(dtype=np.float64, na_value=np.nan), order="C")
    if isinstance(values, np.ma.MaskedArray):
        return np.array(np.ma.filled(values.astype(np.float64), np.nan), order="C")
    return np.array(values, dtype=np.float64, order="C")


def _unreadable_column(values: Any, names: tuple[str, ...] | None) -> str:
    """The first column of an array or data frame that cannot be read as numbers, for a message."""
    for column in range(values.shape[1]):
        try:
            _array(values.iloc[:, column] if hasattr(values, "iloc") else values[:, column])
        except (TypeError, ValueError):
            return _label(column, names)
    return "not known"


def _check_rows(arguments: dict[str, Tensor], first: int, names: tuple[str, ...] | None) -> None:
    """Raise a ValueError for the first row with a value that is not finite, or with a negative weight."""
    weights = arguments.get("sample_weight")
    negative = weights is not None and bool((weights < 0).any())
    if not negative and all(_has_finite_sum(values) for values in arguments.values()):
        return
    bad = {name: (~values.isfinite()).reshape(len(values), -1).any(dim=1) for name, values in arguments.items()}
    if weights is not None:
        bad["sample_weight"] |= weights < 0
    rows = torch.stack(list(bad.values())).any(dim=0).nonzero()
    if not len(rows):
        return
    row = int(rows[0])
    name = next(name for name, flags in bad.items() if flags[row])
    value = arguments[name][row]
    if name == "sample_weight" and bool(value.isfinite()):
        raise ValueError(f"sample_weight must not be negative, got {float(value):g} in row {first + row}")
    check_finite(arguments[name], name, first, names if name == "X" else None)


def _has_finite_sum(values: Tensor) -> bool:
    """Whether all values are finite, in one pass and without a copy; False also if the sum overflows."""
    return bool(values.sum().isfinite())


def check_finite(values: Tensor, name: str, first: int, names: tuple[str, ...] | None, of: str = "") -> None:
    """Raise a ValueError that names the first row, and column, of ``b`` or ``b x d`` values that is NaN or infinite.

    Rows are counted from ``first``; ``of`` follows the row number in the message.
    """
    if _has_finite_sum(values):
        return
    bad = (~values.isfinite()).nonzero()
    if not len(bad):
        return
    row, *column = bad[0].tolist()
    where = f"row {first + row}{of}" + "".join(f", column {_label(c, names)}" for c in column)
    value = str(float(values[tuple(bad[0])])).replace("nan", "NaN")
    many = len(set(bad[:, 0].tolist()))
    if many > 1:  # of the rows read so far
        where += f" ({many} bad rows among {first} to {first + len(values) - 1})"
    raise ValueError(f"{name} has {value} in {where}; drop or impute such rows")


def _label(column: int, names: tuple[str, ...] | None) -> str:
    return str(column) if names is None else repr(names[column])
