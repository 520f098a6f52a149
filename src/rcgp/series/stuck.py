"""Stuck values: runs of one and the same value that chance does not explain.

A run is consecutive equal values in the order of time. That a value repeats the one before it has the probability

    p = max( (r + p̄) / (R + 1),  δ / (√(2π) s) ),

in which R values and r repetitions are those of all other runs of the same value (zeros of a rain gauge come and go),
p̄ is the share of all runs that go on at all, δ the resolution of the values (the median difference between two
neighbouring ones) and s the standard deviation of their predictions: coarse values repeat where the function is flat. A
run of k values has the probability p^(k−1) by chance. It is stuck where (k − 1) log(1/p) exceeds log(20 n): in at most
5 % of series of n values chance alone does so. All its values but the first are then bad.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FALSE_ALARM", "Repetition", "stuck_values"]

Array = NDArray[np.float64]

#: Reciprocal of the probability of a false alarm in a series as long as the one seen.
FALSE_ALARM = 20.0

# Values of which a stream remembers how often they repeat.
_COMMON = 100


def stuck_values(y: Array, spread: Array) -> NDArray[np.bool_]:
    """Which of ``n`` values in the order of time are stuck. Cost O(n log n).

    Args:
        y: finite values.
        spread: ``n`` standard deviations of their predictions, noise included.
    """
    begins, lengths = _runs(y)
    stuck = np.zeros(len(y), dtype=bool)
    if not (lengths > 1).any():
        return stuck
    known = Repetition.of(y)
    _, value = np.unique(y[begins], return_inverse=True)
    own, every = (np.bincount(value, weights=weights)[value] for weights in (lengths - 1, lengths))
    p = (own - (lengths - 1) + known.share) / (every - lengths + 1.0)
    p = np.minimum(np.maximum(p, known.coarse / np.maximum.reduceat(spread, begins)), 1.0)
    surprise = (lengths - 1) * -np.log(p)
    stuck = np.repeat(surprise > math.log(FALSE_ALARM * len(y)), lengths)
    stuck[begins] = False
    return stuck


@dataclass(frozen=True)
class Repetition:
    """How often values of a series repeat, for those that follow.

    Attributes:
        share: p̄.
        coarse: δ / √(2π), which over s is the other part of p.
        common: (r + p̄) / (R + 1) of the values that repeat most.
    """

    share: float
    coarse: float
    common: dict[float, float]

    @classmethod
    def of(cls, y: Array) -> Repetition:
        """Of ``n`` values in the order of time."""
        begins, lengths = _runs(y)
        levels, value = np.unique(y[begins], return_inverse=True)
        share = float((lengths > 1).sum() + 1.0) / (len(lengths) + 1.0)
        resolution = float(np.median(np.diff(levels))) if len(levels) > 1 else math.inf
        again, every = (np.bincount(value, weights=weights) for weights in (lengths - 1, lengths))
        p = (again + share) / (every + 1.0)
        most = np.argsort(-again, kind="stable")[:_COMMON]
        common = {float(levels[i]): float(p[i]) for i in most if again[i] > 0 and p[i] > share}
        return cls(share, resolution / math.sqrt(2.0 * math.pi), common)

    def surprise(self, value: float, spread: float) -> float:
        """log(1/p) of one more repetition of a value that is predicted with a standard deviation."""
        p = max(self.common.get(value, self.share), self.coarse / spread)
        return -math.log(min(p, 1.0))


def _runs(y: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where runs begin, and their lengths."""
    begins = np.flatnonzero(np.diff(y, prepend=np.nan) != 0.0)  # NaN differs from all
    return begins, np.diff(np.append(begins, len(y)))
