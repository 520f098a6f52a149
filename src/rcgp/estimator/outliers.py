"""Which rows to look at: the rule behind ``outlier_scores_`` and ``outliers_``."""

from __future__ import annotations

import torch
from scipy import special
from torch import Tensor

__all__ = ["flagged", "outlier_scores", "score_limit"]

#: Robust standard deviations from the leave-one-out prediction beyond which a row of a large table is flagged. Of
#: normal observations about one in two thousand lies farther out.
THRESHOLD = 3.5

#: Calibrated standard deviations beyond which, in a large table, a row that adaptive centring does not trust is
#: flagged, and the weight below which it does not: that at its threshold.
ADAPTIVE_THRESHOLD, TRUST = 5.0, 0.5**0.5

# Degrees of freedom for each row but two. For weights centred on the prior mean one would be too few: of gross outliers
# among 15 rows 26 % were missed then, 20 % with two, and 17 % with the limit of a large table.
_ADAPTIVE_DEGREES, _DEGREES = 1, 2

# A deviation below this share of the size of an observation is rounding, not an outlier.
_ROUNDING = 1e-9
# Where most rows are predicted exactly, any other lies infinitely far out; a number is easier to live with.
_LARGEST = 1e6


def flagged(scores: Tensor, weights: Tensor, adaptive: bool, rows: int) -> Tensor:
    """The rows to look at: ``n`` flags.

    With weights centred on the prior mean, those whose score is beyond ±3.5. With adaptive centring a row is trusted as
    far as the tail of all others makes it likely; flagged are those that are not trusted and beyond ±5 as well, by
    standard deviations that have been calibrated. In small tables the limits are wider: see :func:`score_limit`.

    Args:
        scores: ``n`` scores.
        weights: ``n`` weights.
        adaptive: which of the two rules.
        rows: number of rows in the model.
    """
    far: Tensor = scores.abs() > score_limit(adaptive, rows)
    return (weights < TRUST) & far if adaptive else far


def score_limit(adaptive: bool, rows: int) -> float:
    """The size of a score beyond which a row of a table is flagged.

    A few rows do not know their own standard deviation: scores of clean rows then have the heavy tails of Student's t.
    So the limit is the quantile of t_ν with the tail of a normal variable beyond 5 (3.5),

        t_ν⁻¹(Φ(5)),        ν = max(n − 2, 1)        (Φ(3.5) and ν = max(2(n − 2), 1) for weights centred on the prior)

    With adaptive centring that is 157 for 5 rows, 14 for 10, 7.5 for 20, 5.8 for 50 and 5.1 for 300.

    Args:
        adaptive: which of the two rules.
        rows: number n of rows in the model.
    """
    limit, each = (ADAPTIVE_THRESHOLD, _ADAPTIVE_DEGREES) if adaptive else (THRESHOLD, _DEGREES)
    return float(-special.stdtrit(max(each * (rows - 2), 1), special.ndtr(-limit)))


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
