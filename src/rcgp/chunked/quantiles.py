"""Quantiles over rows that are gone through in pieces: exact, whatever their number.

The bits of non-negative floating-point numbers, read as whole numbers, have the order of the numbers. So the k-th
smallest is found digit by digit: how many begin with each 16 bits, then, of those that begin like it, with each next 16
bits, and so on. Four passes of counting, and nothing is kept but counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.chunks import Chunk, Chunks, Engine

__all__ = ["order_statistics", "quantiles"]

# A float64 as four digits.
_DIGIT, _SHIFTS = 16, (48, 32, 16, 0)


def quantiles(
    sizes: Callable[[Chunk], Tensor], chunks: Chunks, engine: Engine, shares: Sequence[float], rows: int
) -> list[float]:
    """The quantiles of a number that each row has, interpolated as :func:`torch.quantile` does.

    Args:
        sizes: the numbers of a chunk, not negative.
        chunks, engine: the rows, and who goes through them.
        shares: which quantiles, in [0, 1].
        rows: how many numbers there are in all.

    Returns:
        The quantiles. Cost four passes.
    """
    places = [share * (rows - 1) for share in shares]
    ranks = sorted({whole for place in places for whole in (math.floor(place), math.ceil(place))})
    found = dict(zip(ranks, order_statistics(sizes, chunks, engine, ranks), strict=True))
    return [_between(found[math.floor(place)], found[math.ceil(place)], place % 1.0) for place in places]


def order_statistics(
    sizes: Callable[[Chunk], Tensor], chunks: Chunks, engine: Engine, ranks: Sequence[int]
) -> list[float]:
    """The numbers at these places, from 0, when those of all rows are sorted. Four passes; memory O(len(ranks))."""
    heads, left = [0] * len(ranks), list(ranks)  # the digits so far, and the rank among those that begin with them
    for shift in _SHIFTS:
        distinct = tuple(sorted(set(heads)))
        below = engine.reduce(_Digits(sizes, distinct, shift), chunks).cumsum(dim=1)  # heads x 65536
        for i, head in enumerate(heads):
            row = below[distinct.index(head)]
            digit = int(torch.searchsorted(row, left[i], right=True))
            left[i] -= int(row[digit - 1]) if digit else 0
            heads[i] = (head << _DIGIT) | digit
    return torch.tensor(heads, dtype=torch.int64).view(torch.float64).tolist()


@dataclass(frozen=True)
class _Digits:
    """How often each next digit follows the first ones: ``heads x 65536`` counts."""

    sizes: Callable[[Chunk], Tensor]
    heads: tuple[int, ...]
    shift: int

    def __call__(self, chunk: Chunk) -> Tensor:
        bits = self.sizes(chunk).double().contiguous().view(torch.int64) >> self.shift
        digits, first = bits & (2**_DIGIT - 1), bits >> _DIGIT
        counts = [torch.bincount(digits[first == head], minlength=2**_DIGIT) for head in self.heads]
        return torch.stack(counts)


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low) if share < 0.5 else high - (1.0 - share) * (high - low)
