"""A rough, very robust idea of the function, without a model: the median of the nearest rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.models.defaults import robust_scales
from rcgp.training.rows import robust_spread_of

__all__ = ["Neighbours", "ask_neighbours"]

# Rows that are asked, and rows of the n x n distances held at a time.
_NEAREST, _CHUNK = 15, 256

# Scales of its column from where on an input is as far as any: the squares of distances must be numbers.
_FARTHEST = 1e100

# Robust standard deviations from the median of its neighbours within which a row is asked again.
_AGREES = 2.0


class Neighbours(NamedTuple):
    """What its neighbours say of each row.

    Attributes:
        median: ``n`` medians of the observations next to each row, without its own.
        spread: robust standard deviation of the residuals of the rows that agree with their neighbours.
    """

    median: Tensor
    spread: float


def ask_neighbours(X: Tensor, y: Tensor) -> Neighbours:
    """The median of the fifteen nearest rows (in units of the columns' scales; of more, where distances are equal).

    In two passes: the second asks only those rows that agreed with their neighbours in the first. Up to half of the
    neighbours of a row may be outliers. Cost O(n²d) in chunks of rows.

    Args:
        X: ``n x d`` inputs.
        y: ``n`` observations, at least two.
    """
    # From the middle: divided as they are, inputs far from zero (dates) would lose the digits in which they differ.
    scaled = ((X - X.median(dim=0).values) / robust_scales(X)).clamp(-_FARTHEST, _FARTHEST)
    everyone = torch.ones_like(y, dtype=torch.bool)
    first = _medians(scaled, y, everyone)
    spread = robust_spread_of(y - first)
    agreeing = (y - first).abs() <= _AGREES * spread
    second = _medians(scaled, y, agreeing)
    second = torch.where(second.isnan(), first, second)
    spread = robust_spread_of((y - second)[agreeing])
    return Neighbours(second, spread)


def _medians(X: Tensor, y: Tensor, asked: Tensor) -> Tensor:
    """Median of y over the nearest rows of each row, of those that are asked; NaN where there are none."""
    n, count = y.shape[0], min(_NEAREST, y.shape[0] - 1)
    missing = y.new_tensor(torch.nan)
    medians = []
    for start in range(0, n, _CHUNK):
        rows = torch.arange(start, min(start + _CHUNK, n), device=y.device)
        # By differences: from products, equal distances would differ by rounding errors.
        distance = torch.cdist(X[rows], X, compute_mode="donot_use_mm_for_euclid_dist")  # chunk x n
        distance[torch.arange(len(rows)), rows] = torch.inf
        farthest = distance.kthvalue(count, dim=1, keepdim=True).values
        # All that are as far away as the last: which of them came first must not matter.
        near = (distance <= farthest * (1.0 + 1e-9)) & asked & distance.isfinite()
        medians.append(torch.where(near, y, missing).nanquantile(0.5, dim=1))
    return torch.cat(medians)
