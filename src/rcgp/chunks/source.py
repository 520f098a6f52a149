"""Rows from anywhere in chunks: arrays, data frames and pairs here; Parquet files and Dask data in their own files."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows, names_of, rows_of, split

__all__ = ["ArrayChunks", "PairChunks", "check_kind", "chunks_of"]


class ArrayChunks(Chunks):
    """Slices of tensors, arrays or data frames, converted to float64 one at a time: the table is never copied."""

    def __init__(self, X: Any, y: Any, sample_weight: Any = None, rows: int | None = None) -> None:
        self._size = rows_of(X, "X", 2)
        self.columns = int(X.shape[1])
        self.names = names_of(X)
        if not self._size or not self.columns:
            raise ValueError(f"X is empty: it has {self._size} rows and {self.columns} columns")
        for values, name in ((y, "y"), (sample_weight, "sample_weight")):
            if values is not None and (got := rows_of(values, name, 1)) != self._size:
                raise ValueError(f"X and {name} must have the same number of rows, got {self._size} and {got}")
        self._table = X, y, sample_weight
        self.rows = default_rows(self.columns, rows)

    def __len__(self) -> int:
        return -(-self._size // self.rows)

    def pieces(self) -> Iterator[Piece]:
        return (partial(self._read, start) for start in range(0, self._size, self.rows))

    def _read(self, start: int) -> Iterator[Chunk]:
        part = slice(start, start + self.rows)
        X, y, weights = (None if values is None else getattr(values, "iloc", values)[part] for values in self._table)
        chunk = checked(X, y, weights, start, self.columns, self.names)
        for values in self._table:
            _drop_pages(values)
        yield chunk


def _drop_pages(values: Any) -> None:
    """Drop the pages of a memory-mapped file that have been read; changes written to them stay in the file.

    Otherwise the process seems to grow by the size of the file. Not in mode "c": private changes would be lost.
    """
    if isinstance(values, np.memmap) and values.mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED"):
        pages: mmap.mmap | None = getattr(values, "_mmap", None)
        if pages is not None:
            pages.madvise(mmap.MADV_DONTNEED)


def _dense(values: Any, name: str) -> Any:
    """The values, as a numpy array unless they can be sliced."""
    if isinstance(values, Tensor | np.ndarray) or hasattr(values, "iloc"):
        return values
    if hasattr(values, "toarray"):
        raise TypeError(f"{name} must be dense, got {type(values).__name__}; use {name}.toarray()")
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as an array: {error}") from None


class PairChunks(Chunks):
    """Pairs (X, y), or triples (X, y, sample_weight), of any lengths; empty ones are skipped, long ones split."""

    def __init__(self, pairs: Iterable[Any], rows: int | None = None) -> None:
        if iter(pairs) is iter(pairs):  # a generator is its own iterator
            raise TypeError(
                "X can be iterated over only once, and several passes are needed: "
                "pass a list, or an object whose iter() starts again"
            )
        self._pairs = pairs
        self._total: int | None = None
        first = next((parts[0] for parts in map(_parts, pairs) if len(parts[0])), None)
        if first is None or not first.shape[1]:
            raise ValueError("X is empty: no pair in it has a row and a column")
        self.columns = int(first.shape[1])
        self.names = names_of(first)
        self._labels = _labels(first)
        self.rows = default_rows(self.columns, rows)

    def pieces(self) -> Iterator[Piece]:
        first = 0
        for parts in map(_parts, self._pairs):
            if len(parts[0]):
                yield partial(self._read, parts, first)
            first += len(parts[0])
        if self._total is None:
            self._total = first
        elif first != self._total:
            raise ValueError(
                f"X had {self._total} rows in the first pass and {first} now: "
                "pass a list, or an object whose iter() starts again"
            )

    def _read(self, parts: tuple[Any, Any, Any], first: int) -> Iterator[Chunk]:
        labels = _labels(parts[0])
        if labels != self._labels and parts[0].shape[1] == self.columns:  # the check reports another width
            raise ValueError(
                f"the columns of X must be those of the first pair, {self._labels or 'without names'}, got "
                f"{labels or 'none with names'} from row {first} on: give each pair the same columns in the same order"
            )
        return split(checked(*parts, first, self.columns, self.names), self.rows)


def _labels(X: Any) -> list[Any] | None:
    """Labels of the columns of a data frame; None for an array."""
    return list(X.columns) if hasattr(X, "columns") else None


def _parts(pair: Any) -> tuple[Any, Any, Any]:
    """Inputs, observations and weights of a pair or triple."""
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise TypeError(
            f"without y, X must hold pairs (X, y) or triples (X, y, sample_weight), got {type(pair).__name__}"
            + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
        )
    X, y = _dense(pair[0], "X"), _dense(pair[1], "y")
    rows_of(X, "X", 2)
    return X, y, None if len(pair) == 2 or pair[2] is None else _dense(pair[2], "sample_weight")


def chunks_of(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    rows: int | None = None,
    features: Sequence[str] | None = None,
) -> Chunks:
    """Rows in chunks of float64 tensors, which are read and checked one at a time.

    Args:
        X: ``n x d`` inputs: an array, a memory-mapped array, a tensor or a data frame; or a Dask array or data frame;
            or the path of a Parquet file, several paths, or a pattern such as ``"data/*.parquet"``; or, without y, a
            list (or an object whose ``iter()`` starts again) of pairs ``(X, y)`` or triples ``(X, y, sample_weight)``.
        y: ``n`` observations, of the same kind; for Parquet files the name of their column.
        sample_weight: ``n`` factors on the precision, not negative, or None; for Parquet files a name.
        rows: the most rows of a chunk; by default 16 384, or fewer if those exceed 32 MB of inputs.
        features: for Parquet files, the columns to take; by default all others, which then must be numbers.

    Returns:
        The chunks. They refer to the data and do not copy them. A row that is not finite, or of another width, raises
        a ValueError with its number in the table when it is read.
    """
    if _is_path(X) or (isinstance(X, list | tuple) and X and all(map(_is_path, X))):
        for name, value, kind in (("y", y, str), ("sample_weight", sample_weight, str | None)):
            if not isinstance(value, kind):
                raise TypeError(f"for Parquet files {name} must be the name of a column, got {type(value).__name__}")
        from rcgp.chunks.parquet import ParquetChunks

        return ParquetChunks(X, y, sample_weight, features, rows)
    if features is not None:
        raise TypeError("features= is for Parquet files; select the columns of X before")
    check_kind(X, y)
    if y is not None:
        if hasattr(X, "__dask_graph__"):
            from rcgp.chunks.dask import DaskChunks

            return DaskChunks(X, y, sample_weight, rows)
        for values, name in ((y, "y"), (sample_weight, "sample_weight")):
            if hasattr(values, "__dask_graph__"):
                raise TypeError(f"{name} is a Dask collection and X is not: use dask.array.from_array(X)")
        weights = None if sample_weight is None else _dense(sample_weight, "sample_weight")
        return ArrayChunks(_dense(X, "X"), _dense(y, "y"), weights, rows)
    if hasattr(X, "shape") or not isinstance(X, Iterable):
        raise TypeError(f"y is missing: X is a {type(X).__name__}, which needs one")
    if sample_weight is not None:
        raise TypeError("for pairs (X, y), sample_weight is the third member: pass triples (X, y, sample_weight)")
    return PairChunks(X, rows)


def check_kind(X: Any, y: Any) -> None:
    """Raise a TypeError with a remedy for common mistakes with rows that are not Parquet files."""
    pairs = "chunks are pairs (X, y), as in fit([(X1, y1), (X2, y2)])"
    if callable(X) and not hasattr(X, "shape"):
        raise TypeError(
            f"X is a function: {pairs}; for data larger than memory, pass an object whose __iter__ calls the function"
        )
    if isinstance(y, str):
        where = f"X[{y!r}]" if hasattr(X, "columns") else "an array"
        raise TypeError(
            f"y is the name {y!r}, which is for Parquet files, and X a {type(X).__name__}: give y as {where}, and X "
            "without it"
        )
    if y is None:
        return
    items = X if isinstance(X, list | tuple) else ()
    in_pieces = bool(items) and all(
        _is_table(item) or (isinstance(item, list | tuple) and len(item) in (2, 3) and _is_table(item[0]))
        for item in items
    )
    read_once = isinstance(X, Iterable) and not any(hasattr(X, name) for name in ("__len__", "shape", "__array__"))
    if in_pieces or read_once:
        raise TypeError(f"X is in pieces, and y is also given: {pairs}; leave y out")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path)


def _is_table(value: Any) -> bool:
    """Whether it has rows and columns."""
    return len(getattr(value, "shape", ())) == 2
