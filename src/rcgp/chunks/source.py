"""From whatever holds the rows to chunks, and to the engine that goes through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rcgp.chunks.arrays import ArrayChunks
from rcgp.chunks.chunk import Chunks
from rcgp.chunks.engines import Engine, Serial, Threads
from rcgp.chunks.pairs import PairChunks, as_array

__all__ = ["check_kind", "chunks_of", "engine_for"]


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
