"""Rows that come as pairs (X, y), from a list or from anything that can be gone through again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows, names_of, rows_of, split

__all__ = ["PairChunks", "as_array"]


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
