"""Quantiles of mixtures of normal distributions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mixture_quantile"]

# Steps of the bisection: 2⁻⁶⁰ of the bracket is below rounding error.
_BISECTIONS = 60


def mixture_quantile(q: Tensor, shares: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Quantiles of Σ_k π_k N(mean_k, std_k²), by bisection between the quantiles of the components. Cost O(K) each.

    Args:
        q: ``...`` probabilities in (0, 1).
        shares: ``... x K`` shares π, which add up to one.
        mean, std: ``... x K`` means and standard deviations; all broadcast.
    """
    each = mean + std * torch.special.ndtri(q).unsqueeze(-1)  # ... x K
    low, high = each.amin(dim=-1), each.amax(dim=-1)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        below = (shares * torch.special.ndtr((middle.unsqueeze(-1) - mean) / std)).sum(dim=-1) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    quantile: Tensor = 0.5 * (low + high)
    return quantile
