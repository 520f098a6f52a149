"""Chunks of rows in memory or in pairs, and the engine for any source: arrays, data frames, Parquet, Dask."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows, names_of, rows_of, split
from rcgp.chunks.engines import Engine, Serial, Threads

__all__ = ["ArrayChunks", "PairChunks", "as_array", "check_kind", "chunks_of", "engine_for"]


class ArrayChunks(Chunks):
    """Slices of arrays, each converted to float64 by itself: the whole is never copied.

    Args:
        X: ``n x d`` tensor, array or data frame.
        y: ``n`` observations: a tensor, an array or a series.
        sample_weight: ``n`` factors, or None.
        rows: of a chunk.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any = None, rows: int | None = None) -> None:
        self._size = rows_of(X, "X", 2)
        self.columns = int(X.shape[1])
        self.names = names_of(X)
        if not self._size or not self.columns:
            raise ValueError(f"X is empty: it has {self._size} rows and {self.columns} columns")
        for values, name in ((y, "y"), (sample_weight, "sample_weight")):
            if values is not None and rows_of(values, name, 1) != self._size:
                raise ValueError(
                    f"X and {name} must have the same number of rows, got {self._size} and {values.shape[0]}"
                )
        self._X, self._y, self._sample_weight = X, y, sample_weight
        self.rows = default_rows(self.columns, rows)

    def __len__(self) -> int:
        return -(-self._size // self.rows)

    def pieces(self) -> Iterator[Piece]:
        return (partial(self._read, start) for start in range(0, self._size, self.rows))

    def _read(self, start: int) -> Iterator[Chunk]:
        part = slice(start, start + self.rows)
        X, y, sample_weight = (
            values.iloc[part] if hasattr(values, "iloc") else None if values is None else values[part]
            for values in (self._X, self._y, self._sample_weight)
        )
        chunk = checked(X, y, sample_weight, start, self.columns, self.names)
        for values in (self._X, self._y, self._sample_weight):
            _forget(values)
        yield chunk


def _forget(values: Any) -> None:
    """Let the pages of a memory-mapped file go that have been read; what was written to them stays in the file.

    Else the memory of the process would seem to grow by the whole file. Not where changes are private to the mapping
    (mode "c"): there they would be lost.
    """
    if isinstance(values, np.memmap) and values.mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED"):
        pages: mmap.mmap | None = getattr(values, "_mmap", None)
        if pages is not None:
            pages.madvise(mmap.MADV_DONTNEED)


def as_array(values: Any, name: str) -> Any:
    """What has a shape and can be sliced, as it is; all else as a numpy array."""
    if isinstance(values, Tensor | np.ndarray) or hasattr(values, "iloc"):
        return values
    if hasattr(values, "toarray"):
        raise TypeError(f"{name} must be dense, got {type(values).__name__}; use {name}.toarray()")
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as an array: {error}") from None


class PairChunks(Chunks):
    """Pairs (X, y), or triples (X, y, sample_weight), of any number of rows; empty ones are passed over.

    Args:
        pairs: a list, or an object whose ``iter()`` starts again and gives the same each time.
        rows: the most rows of a chunk; longer pairs are split.
    """

    def __init__(self, pairs: Iterable[Any], rows: int | None = None) -> None:
        if iter(pairs) is iter(pairs):  # of a list each is another; a generator is its own
            raise TypeError(
                "X can be gone through only once, and several passes are needed: "
                "pass a list, or an object whose iter() starts again"
            )
        self._pairs = pairs
        self._total: int | None = None
        self._length: int | None = None
        first = next((parts[0] for parts in map(_parts, pairs) if len(parts[0])), None)
        if first is None or not first.shape[1]:
            raise ValueError("X is empty: no pair in it has a row and a column")
        self.columns = int(first.shape[1])
        self.names = names_of(first)
        self._labels = _labels(first)
        self.rows = default_rows(self.columns, rows)

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(-(-len(X) // self.rows) for X, _, _ in map(_parts, self._pairs))
        return self._length

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
                f"X had {self._total} rows when it was first gone through and {first} now: "
                "pass a list, or an object whose iter() starts again"
            )

    def _read(self, parts: tuple[Any, Any, Any], first: int) -> Iterator[Chunk]:
        labels = _labels(parts[0])
        if labels != self._labels and parts[0].shape[1] == self.columns:  # of another width is said by the check
            raise ValueError(
                f"the columns of X must be those of the first pair, {self._labels or 'without names'}, got "
                f"{labels or 'none with names'} from row {first} on: give each pair the same columns in the same order"
            )
        return split(checked(*parts, first, self.columns, self.names), self.rows)


def _labels(X: Any) -> list[Any] | None:
    """What the columns of a data frame are called; of an array nothing."""
    return list(X.columns) if hasattr(X, "columns") else None


def _parts(pair: Any) -> tuple[Any, Any, Any]:
    """Inputs, observations and weights of a pair or triple, with shapes."""
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise TypeError(
            f"without y, X must hold pairs (X, y) or triples (X, y, sample_weight), got {type(pair).__name__}"
            + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
        )
    X, y = as_array(pair[0], "X"), as_array(pair[1], "y")
    rows_of(X, "X", 2)
    return X, y, None if len(pair) == 2 or pair[2] is None else as_array(pair[2], "sample_weight")


def chunks_of(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    rows: int | None = None,
    features: Sequence[str] | None = None,
) -> Chunks:
    """Rows from anywhere, in chunks of float64 tensors that are read and checked one at a time.

    Args:
        X: ``n x d`` inputs: an array, a memory-mapped array, a tensor or a data frame; or a Dask array or data frame;
            or the path of a Parquet file, several paths, or a pattern such as ``"data/*.parquet"``; or, without y, a
            list (or an object whose ``iter()`` starts again) of pairs ``(X, y)`` or triples ``(X, y, sample_weight)``.
        y: ``n`` observations, of the same kind; for Parquet files the name of their column.
        sample_weight: ``n`` factors on the precision, not negative, or None; for Parquet files a name.
        rows: the most rows of a chunk; by default 16 384, or as many as 32 MB of inputs hold.
        features: for Parquet files, the columns to take; by default all others, which then must be numbers.

    Returns:
        The chunks. They refer to the data and do not copy them; a ValueError about a row that is not finite, or of
        another width, comes when that row is read, and gives its number in the whole.
    """
    if _is_path(X) or (isinstance(X, list | tuple) and X and all(map(_is_path, X))):
        if not isinstance(y, str):
            raise TypeError(f"for Parquet files y must be the name of a column, got {type(y).__name__}")
        if not isinstance(sample_weight, str | None):
            raise TypeError(
                f"for Parquet files sample_weight must be the name of a column, got {type(sample_weight).__name__}"
            )
        from rcgp.chunks.parquet import ParquetChunks

        return ParquetChunks(X, y, sample_weight, features, rows)
    if features is not None:
        raise TypeError("features= is for Parquet files; select the columns of X before")
    check_kind(X, y)
    if y is not None:
        if hasattr(X, "__dask_graph__"):
            from rcgp.chunks.dask_data import DaskChunks

            return DaskChunks(X, y, sample_weight, rows)
        for values, name in ((y, "y"), (sample_weight, "sample_weight")):
            if hasattr(values, "__dask_graph__"):
                raise TypeError(f"{name} is a Dask collection and X is not: use dask.array.from_array(X)")
        weights = None if sample_weight is None else as_array(sample_weight, "sample_weight")
        return ArrayChunks(as_array(X, "X"), as_array(y, "y"), weights, rows)
    if hasattr(X, "shape") or not isinstance(X, Iterable):
        raise TypeError(f"y is missing: X is a {type(X).__name__}, which needs one")
    if sample_weight is not None:
        raise TypeError("of pairs (X, y) the sample_weight is the third member: pass triples (X, y, sample_weight)")
    return PairChunks(X, rows)


def check_kind(X: Any, y: Any) -> None:
    """Raise a TypeError for mistakes that are easily made with rows that are no Parquet files, saying what to do."""
    pairs = "chunks are pairs (X, y), as in fit([(X1, y1), (X2, y2)])"
    if callable(X) and not hasattr(X, "shape"):
        raise TypeError(
            f"X is a function: {pairs}; for more than memory holds give an object whose __iter__ calls the function"
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
    in_pieces = bool(items) and all(_is_table(item) or (_is_pair(item) and _is_table(item[0])) for item in items)
    read_once = isinstance(X, Iterable) and not any(hasattr(X, name) for name in ("__len__", "shape", "__array__"))
    if in_pieces or read_once:
        raise TypeError(f"X is in pieces and y is given, too: {pairs}; leave y out")


def engine_for(chunks: Chunks, *, client: Any = None, threads: int | None = None) -> Engine:
    """Who goes through these chunks.

    Args:
        chunks: the rows.
        client: a ``distributed.Client``: the workers of its cluster, for Dask data and Parquet files.
        threads: so many threads of this process.

    Returns:
        By default, one chunk after the other in this process; for Dask data, the workers of Dask's default client if
        there is one.
    """
    if client is not None and threads is not None:
        raise ValueError("client and threads exclude each other: the workers of a cluster have threads of their own")
    if threads is not None:
        return Threads(threads)
    if client is None and not hasattr(chunks, "blocks"):  # which only Dask data have; Dask may not be installed
        return Serial()
    from rcgp.chunks.dask_engine import DaskEngine, current_client

    client = client if client is not None else current_client()
    return Serial() if client is None else DaskEngine(client)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) in (2, 3)


def _is_table(value: Any) -> bool:
    """Whether it has rows and columns."""
    return len(getattr(value, "shape", ())) == 2
