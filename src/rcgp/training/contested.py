"""Rows that crowd together and disagree: which of two groups at one place is right is for the others to say.

A cluster of outliers confirms itself. Where it outnumbers the good rows around it, a fit follows the cluster, its rows
predict each other well, and the good rows among them are the ones that are rejected. What gives it away is that the
rejected rows crowd together, while outliers that fall anywhere do not. Then both groups are set aside, the
hyperparameters are chosen without them, and both are judged by what the rows outside say.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.training.rows import Prediction, predict_from

__all__ = ["Verdict", "contested_rows", "judge"]

# Rejected rows crowd where their share, weighted by correlation, is this many times that among all rows; there must be
# so many of them, and the region around them, of this correlation, must leave most rows outside.
_CROWDING, _FEWEST, _NEAR, _LARGEST = 3.0, 5, 0.1, 0.5


class Verdict(NamedTuple):
    """What the rows outside a region say of it.

    Attributes:
        trusted: ``n`` flags of the rows that are trusted now.
        prediction: ``n`` means and variances by which they were judged.
    """

    trusted: Tensor
    prediction: Prediction


def contested_rows(model: RCGP, trusted: Tensor) -> Tensor | None:
    """The region around rejected rows that crowd together: ``n`` flags, or none. Cost O(kn) for k rejected rows.

    The share of rejected rows around a rejected row i is Σ_j ρ_ij [j rejected] / Σ_j ρ_ij over all j ≠ i, with ρ the
    prior correlation.
    """
    rejected = ~trusted
    if int(rejected.sum()) < _FEWEST:
        return None
    with torch.no_grad():
        X = model.train_X
        scale = model.kernel(X, diag=True).sqrt()
        correlation = dense_kernel(model.kernel, X[rejected], X) / (scale[rejected].unsqueeze(-1) * scale)
        correlation = correlation.clamp_min_(0.0)  # k x n
        own = correlation[torch.arange(correlation.shape[0]), rejected.nonzero().squeeze(-1)]
        around = (correlation.sum(dim=1) - own).clamp_min(1e-9)
        share = (correlation[:, rejected].sum(dim=1) - own) / around
        crowding = share > _CROWDING * float(rejected.double().mean())
        if int(crowding.sum()) < _FEWEST:
            return None
        region = correlation[crowding].amax(dim=0) > _NEAR
    return region if float(region.double().mean()) <= _LARGEST else None


def judge(model: RCGP, trusted: Tensor, region: Tensor, limit: float) -> Verdict | None:
    """Judge a contested region by the trusted rows outside it, whose hyperparameters the model has.

    First the rejected rows in it are judged by those outside, then the trusted ones by those outside and the ones that
    were acquitted. The verdict stands if most of the rejected rows are acquitted and several trusted ones are not.

    Args:
        model: fitted to the trusted rows outside.
        trusted: ``n`` flags before.
        region: ``n`` flags of the contested rows.
        limit: standard deviations beyond which a row is rejected.

    Returns:
        The verdict, or none where the rows outside do not contradict what was trusted before.
    """
    y = model.train_y
    outside, accused = trusted & ~region, ~trusted & region
    prediction = predict_from(model, outside)
    acquitted = accused & (prediction.score(y).abs() < limit)
    if 2 * int(acquitted.sum()) < int(accused.sum()):
        return None
    # Those acquitted lie among the trusted ones, where the rows outside may be far: they make the prediction sharp.
    sharper = predict_from(model, outside | acquitted)
    both = region & trusted
    prediction = Prediction(*(torch.where(both, new, old) for new, old in zip(sharper, prediction, strict=True)))
    convicted = both & (prediction.score(y).abs() >= limit)
    if int(convicted.sum()) < _FEWEST:
        return None
    return Verdict(outside | acquitted | (both & ~convicted), prediction)
