"""Which rows to look at: the rule behind ``outliers_``."""

from __future__ import annotations

from torch import Tensor

__all__ = ["THRESHOLD", "flag_outliers"]

#: Robust standard deviations from the leave-one-out prediction beyond which a row is flagged. Of normal observations
#: about one in two thousand lies farther out.
THRESHOLD = 3.5

# A deviation below this share of the size of an observation is rounding, not an outlier.
_ROUNDING = 1e-9


def flag_outliers(y: Tensor, mean: Tensor, std: Tensor, used: Tensor) -> Tensor:
    """Rows that lie far from what all other rows predict there.

    With t_i = (y_i − μ_i) / s_i, the leave-one-out residual in its own standard deviations, row i is flagged where

        |t_i| > 3.5 τ,        τ = median_j |t_j| / 0.6745.

    τ is the robust standard deviation of the t: one where the model's noise is right, less where outliers have
    inflated it, as they do in a fit by leave-one-out. So the flags do not depend on how far the outliers lie.

    Args:
        y: ``n`` observations.
        mean, std: ``n`` leave-one-out means and standard deviations of them.
        used: ``n`` flags of the rows that the median is taken over: those in the model.

    Returns:
        ``n`` flags. Cost O(n).
    """
    deviation = (y - mean).abs()
    size = deviation / std
    tau = size[used].quantile(0.5) / 0.6745
    return (size > THRESHOLD * tau) & (deviation > _ROUNDING * (y.abs() + mean.abs()))
