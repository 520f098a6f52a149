"""Rows in Dask arrays and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isnan
from typing import Any

import numpy as np

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows, names_of, split, wanted_shape

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise ImportError(f'Dask arrays and data frames need dask ({error}): pip install "rcgp[dask]"') from error

__all__ = ["DaskChunks"]


class DaskChunks(Chunks):
    """The blocks of Dask collections, cut along the rows as X is.

    Blocks whose number of rows is not known are counted once, when it is first needed. Without a cluster each block is
    computed when it is read, in every pass anew; memory O(block · d).

    Args:
        X: an array ``n x d``, or a data frame.
        y: an array ``n``, or a series, in blocks of any sizes.
        sample_weight: likewise, or None.
        rows: the most rows of a chunk; longer blocks are split.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any = None, rows: int | None = None) -> None:
        for values, name, ndim in ((X, "X", 2), (y, "y", 1), (sample_weight, "sample_weight", 1)):
            if values is not None:
                _check_kind(values, name, ndim)
        self._collections = [values for values in (X, y, sample_weight) if values is not None]
        self.names = names_of(X)
        self.columns = int(X.shape[1])
        if not self.columns:
            raise ValueError("X is empty: it has no columns")
        self.rows = default_rows(self.columns, rows)
        self._sizes: list[tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return sum(-(-size // self.rows) for size in self._counted(self._collections, _compute)[0])

    def pieces(self) -> Iterator[Piece]:
        return (partial(_read, block, self.rows) for block in self.blocks())

    def blocks(
        self,
        compute: Callable[[list[Any]], Sequence[Any]] | None = None,
        persist: Callable[[list[Any]], list[Any]] | None = None,
    ) -> list[Any]:
        """Delayed chunks, one of each block with at least one row, in order.

        Args:
            compute: gives the values of delayed numbers of rows; without it, Dask's own default.
            persist: keeps collections on a cluster before their rows are counted, so that they are computed once.
        """
        collections = self._collections
        if persist is not None and self._sizes is None and not all(map(_known, collections)):
            collections = persist(collections)
        sizes = self._counted(collections, compute or _compute)
        X, *others = (_as_array(values, size, self.columns) for values, size in zip(collections, sizes, strict=True))
        rows = X.chunks[0]
        columns = [X.to_delayed().ravel(), *(values.rechunk((rows,)).to_delayed().ravel() for values in others)]
        firsts = np.concatenate([[0], np.cumsum(rows)]).tolist()
        check = dask.delayed(_checked, pure=False)
        return [
            check(firsts[i], self.columns, self.names, *(values[i] for values in columns))
            for i in range(len(rows))
            if rows[i]
        ]

    def _counted(self, collections: list[Any], compute: Callable[[list[Any]], Sequence[Any]]) -> list[tuple[int, ...]]:
        """The numbers of rows of the blocks of each collection; of unknown ones they are computed, once."""
        if self._sizes is not None:
            return self._sizes
        unknown = [values for values in collections if not _known(values)]
        blocks = [_row_blocks(values) for values in unknown]
        counts = iter(compute([dask.delayed(len)(block) for parts in blocks for block in parts]) if unknown else ())
        lengths = iter([tuple(int(next(counts)) for _ in parts) for parts in blocks])
        sizes = [tuple(values.chunks[0]) if _known(values) else next(lengths) for values in collections]
        totals = list(map(sum, sizes))
        if totals[0] == 0:
            raise ValueError("X is empty: it has no rows")
        for name, total in zip(("y", "sample_weight"), totals[1:], strict=False):
            if total != totals[0]:
                raise ValueError(f"X and {name} must have the same number of rows, got {totals[0]} and {total}")
        self._sizes = sizes
        return sizes


def _check_kind(values: Any, name: str, ndim: int) -> None:
    """Raise an error unless it is a collection of Dask of the right shape, of numbers."""
    if not hasattr(values, "__dask_graph__") or not hasattr(values, "ndim"):
        raise TypeError(
            f"{name} must be a Dask array or data frame as X is, got {type(values).__name__}; "
            f"use dask.array.from_array({name})"
        )
    if values.ndim != ndim:
        raise ValueError(f"{name} must have shape {wanted_shape(ndim)}, got {values.ndim} dimensions")
    if _is_array(values):
        if ndim == 2 and isnan(values.shape[1]):
            raise ValueError(f"{name} has an unknown number of columns; use {name}.compute_chunk_sizes()")
        return
    for column, kind in values.dtypes.items() if ndim == 2 else [(values.name, values.dtype)]:
        # pandas calls its text and its categories objects, too
        if kind.kind not in "biuf" and kind != np.dtype(object):
            raise ValueError(f"{name} must be numbers, but column {str(column)!r} is of type {kind}")


def _is_array(values: Any) -> bool:
    return isinstance(values, da.Array)


def _known(values: Any) -> bool:
    """Whether the numbers of rows of its blocks are known without computing them."""
    return _is_array(values) and not any(map(isnan, values.chunks[0]))


def _row_blocks(values: Any) -> list[Any]:
    """Delayed blocks of rows, with all columns in each."""
    if not _is_array(values):
        return list(values.to_delayed())
    if values.ndim == 2:
        values = values.rechunk({1: -1})
    return list(values.to_delayed().ravel())


def _as_array(values: Any, sizes: tuple[int, ...], columns: int) -> Any:
    """A Dask array with blocks of known sizes, cut along the rows only."""
    if _known(values):
        return values.rechunk({1: -1}) if values.ndim == 2 else values
    tail = (columns,) if values.ndim == 2 else ()
    number = dask.delayed(_plain)
    return da.concatenate(
        [
            da.from_delayed(number(block), (size, *tail), meta=np.empty((0,) * values.ndim))
            for block, size in zip(_row_blocks(values), sizes, strict=True)
        ]
    )


def _plain(block: Any) -> Any:
    """A block of pandas as an array, of float64 if it holds numbers: NaN where one is missing; another as it is."""
    if not hasattr(block, "iloc"):
        return block
    try:
        return block.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):  # to be reported with its row
        return block.to_numpy()


def _checked(first: int, columns: int, names: Sequence[str] | None, X: Any, y: Any, sample_weight: Any = None) -> Chunk:
    return checked(X, y, sample_weight, first, columns, None if names is None else tuple(names))


def _compute(values: list[Any]) -> Sequence[Any]:
    computed: Sequence[Any] = dask.compute(*values)
    return computed


def _read(block: Any, rows: int) -> Iterator[Chunk]:
    (chunk,) = _compute([block])
    return split(chunk, rows)
