"""Scores of predictive distributions. Lower is better; coverage should be 0.95.

A prediction is a normal distribution for each observation, or a mixture of normals with one mean, as for Student-t
noise around an uncertain function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["Prediction", "normal_prediction", "scale_mixture_prediction", "score"]

Numbers = NDArray[np.float64]

# 97.5 % quantile of the standard normal distribution.
_QUANTILE = 1.959963984540054

# Halvings of the interval that contains a quantile: to rounding error.
_HALVINGS = 60


@dataclass(frozen=True)
class Prediction:
    """The parts of n predictive distributions that the scores need, each ``n``.

    Attributes:
        mean: predicted means, which are the medians as well.
        log_density: log densities at the observations.
        low, high: ends of the central 95 % intervals.
        crps: continuous ranked probability scores, E|Y − y| − ½ E|Y − Y'| for independent predictions Y, Y'.
    """

    mean: Numbers
    log_density: Numbers
    low: Numbers
    high: Numbers
    crps: Numbers


def normal_prediction(y: Numbers, mean: Numbers, std: Numbers) -> Prediction:
    """Predictions N(mean, std²) of observations y, each ``n``; the std includes the noise.

    The CRPS is σ [t (2Φ(t) − 1) + 2φ(t) − 1/√π] with t = (y − μ)/σ.
    """
    t = (y - mean) / std
    log_density = -0.5 * t**2 - np.log(std) - 0.5 * math.log(2.0 * math.pi)
    crps = _distance(y - mean, std) - std / math.sqrt(math.pi)
    return Prediction(mean, log_density, mean - _QUANTILE * std, mean + _QUANTILE * std, crps)


def scale_mixture_prediction(
    y: Numbers, mean: Numbers, log_density: Numbers, weights: Numbers, stds: Numbers
) -> Prediction:
    """Predictions Σ_k w_k N(mean, s_k²) of observations y.

    Args:
        y, mean: ``n``.
        log_density: ``n`` log densities at y, which k normals do not give far out.
        weights: ``k``, with sum 1.
        stds: ``n x k``.

    Returns:
        Intervals by bisection, the CRPS by sums over all pairs of normals. Cost O(n k²).
    """
    half_width = np.array([_upper_quantile(weights, row) for row in stds])
    to_observation = _distance((y - mean)[:, None], stds) @ weights
    # Y − Y' is normal with variance s_k² + s_l², and the mean of its size √(2/π) times the root of that.
    apart = np.array([weights @ np.hypot(row[:, None], row) @ weights for row in stds]) * math.sqrt(2.0 / math.pi)
    return Prediction(mean, log_density, mean - half_width, mean + half_width, to_observation - 0.5 * apart)


def score(y: Numbers, prediction: Prediction) -> dict[str, float]:
    """Scores of predictions of new observations y, ``n``.

    Returns:
        ``mae``, ``rmse``; ``nlpd``, the negative mean log density; ``coverage`` of the central 95 % interval;
        ``crps``, the continuous ranked probability score.
    """
    error = y - prediction.mean
    inside = (prediction.low < y) & (y < prediction.high)
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "nlpd": float(-prediction.log_density.mean()),
        "coverage": float(inside.mean()),
        "crps": float(prediction.crps.mean()),
    }


def _distance(error: Numbers, std: Numbers) -> Numbers:
    """E|Y − y| for normal Y with mean y − error: error (2Φ(t) − 1) + 2 std φ(t), t = error/std; elementwise."""
    t = error / std
    distance: Numbers = error * (2.0 * ndtr(t) - 1.0) + std * np.exp(-0.5 * t**2) * math.sqrt(2.0 / math.pi)
    return distance


def _upper_quantile(weights: Numbers, stds: Numbers) -> float:
    """The 97.5 % quantile of Σ_k w_k N(0, s_k²)."""
    # A quantile of the mixture lies between those of its narrowest and its widest normal.
    low, high = _QUANTILE * float(stds.min()), _QUANTILE * float(stds.max())
    for _ in range(_HALVINGS):
        # The geometric mean, because the widest may be wider by any number of orders of magnitude.
        middle = math.sqrt(low) * math.sqrt(high)
        if float(weights @ ndtr(middle / stds)) < 0.975:
            low = middle
        else:
            high = middle
    return high
