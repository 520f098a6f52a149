"""Rows in memory or in a memory-mapped file: numpy, torch, pandas."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows, names_of, rows_of

__all__ = ["ArrayChunks"]


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
