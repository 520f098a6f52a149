"""Scores of normal predictions against what was observed. Lower is better, but for coverage, which should be 0.95."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["score"]

Numbers = NDArray[np.float64]


def score(y: Numbers, mean: Numbers, std: Numbers) -> dict[str, float]:
    """Scores of the predictions N(mean, std²) of new observations y, each ``n``; the std includes the noise.

    Returns:
        ``mae``, ``rmse``; ``nlpd``, the negative mean log density; ``coverage`` of the central 95 % interval;
        ``crps``, the continuous ranked probability score, σ [t (2Φ(t) − 1) + 2φ(t) − 1/√π] with t = (y − μ)/σ.
    """
    error = y - mean
    t = error / std
    density = np.exp(-0.5 * t**2) / math.sqrt(2.0 * math.pi)
    crps = std * (t * (2.0 * ndtr(t) - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "nlpd": float((0.5 * t**2 + np.log(std) + 0.5 * math.log(2.0 * math.pi)).mean()),
        "coverage": float((np.abs(t) < 1.959963984540054).mean()),
        "crps": float(crps.mean()),
    }
