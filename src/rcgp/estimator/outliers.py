"""Which rows to look at: ``outlier_probability_``, ``outlier_scores_`` and the warning that the fit cannot tell."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FLAG_RULE", "NoiseLawWarning", "outlier_scores"]

#: The rule in words, for wherever flags are shown.
FLAG_RULE = "flagged: rows that are more likely outliers than not (probability above 0.5) by the learned noise law"

# A deviation below this share of the size of an observation is rounding.
_ROUNDING = 1e-9
# Where most rows are predicted exactly, any other lies infinitely far out; a number is easier to live with.
_LARGEST = 1e6


class NoiseLawWarning(UserWarning):
    """The fit cannot tell errors from good rows, or its noise law does not fit the rows."""


def outlier_scores(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """How far each row lies from what all other rows predict there, in standard deviations: (y − mean) / std.

    Args:
        y: ``n`` observations.
        mean, std: ``n`` leave-one-out means and standard deviations of them.

    Returns:
        ``n`` scores, of either sign, at most a million. Cost O(n).
    """
    deviation = y - mean
    scores = (deviation / std).clamp(-_LARGEST, _LARGEST)
    rounding = deviation.abs() <= _ROUNDING * (y.abs() + mean.abs())
    return torch.where(rounding, torch.zeros_like(scores), scores)
