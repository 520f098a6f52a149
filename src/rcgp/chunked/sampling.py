"""A random sample of rows that are gone through in pieces: the same rows, however they are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.chunked.passes import used_rows
from rcgp.chunks import Chunk, Chunks, Engine

__all__ = ["Sample", "draw", "take_all"]


class Sample(NamedTuple):
    """Some rows, in their order, none of which has the weight zero.

    Attributes:
        X: ``k x d`` inputs.
        y: ``k`` observations.
        precision: ``k`` factors on their precision, or None where all are 1.
        numbers: ``k`` their numbers among all rows.
    """

    X: Tensor
    y: Tensor
    precision: Tensor | None
    numbers: Tensor

    def chunk(self) -> Chunk:
        """These rows as a chunk."""
        return Chunk(self.X, self.y, self.precision, 0)


def draw(chunks: Chunks, engine: Engine, sizes: tuple[int, int], seed: int) -> tuple[Sample, Sample, int]:
    """A random sample without replacement, a larger one that contains it, and the number of rows that count.

    Two passes: one counts the rows, and so checks them all; one fetches those that were drawn.

    Args:
        chunks, engine: the rows, and who goes through them.
        sizes: of the two samples. Where there are fewer rows, all are taken.
        seed: of the choice.
    """
    counted = engine.collect(_count, chunks)
    total = sum(used for _, used in counted)
    if total == 0:
        raise ValueError("there is no row to fit: sample_weight is zero in every row")
    drawn = np.random.default_rng(seed).choice(total, min(total, max(sizes)), replace=False)
    before = np.cumsum([0, *(used for _, used in counted)])
    # By the number of a chunk's first row; an empty chunk shares it with the next, which overwrites it.
    starts = {first: int(count) for (first, _), count in zip(counted, before, strict=False)}
    some = _joined(engine.collect(_Fetch(np.sort(drawn), starts), chunks))
    few = torch.from_numpy(np.isin(np.sort(drawn), drawn[: min(sizes)]))
    return _part(some, few), some, total


def take_all(chunks: Chunks, engine: Engine) -> Sample:
    """All rows that count, in memory."""
    return _joined(engine.collect(_every, chunks))


def _count(chunk: Chunk) -> tuple[int, int]:
    """The number of the first row, and how many count."""
    used = used_rows(chunk)
    return chunk.first, len(chunk.y) if used is None else int(used.sum())


def _every(chunk: Chunk) -> Sample:
    used = used_rows(chunk)
    rows = torch.arange(len(chunk.y)) if used is None else used.nonzero().squeeze(-1)
    precision = None if chunk.sample_weight is None else chunk.sample_weight[rows]
    return Sample(chunk.X[rows], chunk.y[rows], precision, chunk.first + rows)


@dataclass(frozen=True)
class _Fetch:
    """The rows of a chunk that are wanted.

    Attributes:
        wanted: sorted numbers, counted among the rows that count.
        starts: how many of those come before a chunk, by the number of its first row.
    """

    wanted: NDArray[np.int64]
    starts: dict[int, int]

    def __call__(self, chunk: Chunk) -> Sample:
        every = _every(chunk)
        start = self.starts[chunk.first]
        low, high = np.searchsorted(self.wanted, [start, start + len(every.y)])
        return _part(every, torch.from_numpy(self.wanted[low:high] - start))


def _part(sample: Sample, rows: Tensor) -> Sample:
    """Some rows of a sample, by flags or numbers."""
    precision = None if sample.precision is None else sample.precision[rows]
    return Sample(sample.X[rows], sample.y[rows], _told_apart(precision), sample.numbers[rows])


def _joined(parts: list[Sample]) -> Sample:
    X, y, numbers = (torch.cat([getattr(part, name) for part in parts]) for name in ("X", "y", "numbers"))
    if all(part.precision is None for part in parts):
        return Sample(X, y, None, numbers)
    ones = [torch.ones_like(part.y) if part.precision is None else part.precision for part in parts]
    return Sample(X, y, _told_apart(torch.cat(ones)), numbers)


def _told_apart(precision: Tensor | None) -> Tensor | None:
    """The factors, unless all are ones: those are no weights at all."""
    return None if precision is None or bool((precision == 1).all()) else precision
