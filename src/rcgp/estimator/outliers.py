"""Which rows to look at: the rule behind ``outlier_scores_`` and ``outliers_``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["flagged", "outlier_scores"]

#: Robust standard deviations from the leave-one-out prediction beyond which a row is flagged. Of normal observations
#: about one in two thousand lies farther out.
THRESHOLD = 3.5

#: Calibrated standard deviations beyond which a row that adaptive centring does not trust is flagged, and the weight
#: below which it does not: that at its threshold.
ADAPTIVE_THRESHOLD, TRUST = 5.0, 0.5**0.5

# A deviation below this share of the size of an observation is rounding, not an outlier.
_ROUNDING = 1e-9
# Where most rows are predicted exactly, any other lies infinitely far out; a number is easier to live with.
_LARGEST = 1e6


def flagged(scores: Tensor, weights: Tensor, adaptive: bool) -> Tensor:
    """The rows to look at: ``n`` flags.

    With weights centred on the prior mean, those whose score is beyond ±3.5. With adaptive centring a row is trusted as
    far as the tail of all others makes it likely; flagged are those that are not trusted and beyond ±5 as well, by
    standard deviations that have been calibrated.
    """
    size = scores.abs()
    flags: Tensor = (weights < TRUST) & (size > ADAPTIVE_THRESHOLD) if adaptive else size > THRESHOLD
    return flags


def outlier_scores(y: Tensor, mean: Tensor, std: Tensor, used: Tensor, calibrated: bool) -> Tensor:
    """How far each row lies from what all other rows predict there, in robust standard deviations.

    With t_i = (y_i − μ_i) / s_i, the leave-one-out residual in the model's own standard deviations, the score is

        t_i / τ,        τ = median_j |t_j| / 0.6745.

    τ is the robust standard deviation of the t: one where the model's noise is right, less where outliers have
    inflated it, as they do in a fit by leave-one-out. So the scores do not depend on how far the outliers lie.

    Args:
        y: ``n`` observations.
        mean, std: ``n`` leave-one-out means and standard deviations of them.
        used: ``n`` flags of the rows that the median is taken over: those in the model.
        calibrated: whether the standard deviations are right already, so that τ = 1.

    Returns:
        ``n`` scores, of either sign, at most a million. Cost O(n).
    """
    deviation = y - mean
    t = deviation / std
    tau = t.new_ones(()) if calibrated else t[used].abs().quantile(0.5) / 0.6745
    scores = (t / tau.clamp_min(torch.finfo(t.dtype).tiny)).clamp(-_LARGEST, _LARGEST)
    rounding = deviation.abs() <= _ROUNDING * (y.abs() + mean.abs())
    return torch.where(rounding, torch.zeros_like(scores), scores)
