"""How far is too far: a threshold for residuals from the tail that the bulk of them suggests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["Tail", "fit_tail"]

Numbers = NDArray[np.float64]

# Residuals beyond this many standard deviations take no part: they may be outliers.
_BULK = 3.0

# The threshold is where so many of n residuals would lie farther out, were there no outliers, and never below this.
_EXPECTED, _LEAST = 0.2, 3.5

# Beyond so many standard deviations residuals are followed as long as each is at most so many times the one before.
_START, _GAP = 5.0, 1.5

# Degrees of freedom and scales that are tried. Heavier tails than the first cannot be told from outliers.
_DEGREES = np.array([1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0, np.inf])
_SCALES = np.geomspace(0.1, 2.0, 40)


@dataclass(frozen=True)
class Tail:
    """The distribution of residuals that are no outliers: scale times Student's t.

    Attributes:
        degrees: of freedom; infinite for a normal distribution.
        scale: in the units of the residuals.
        threshold: size beyond which a residual is taken for an outlier.
    """

    degrees: float
    scale: float
    threshold: float


def fit_tail(size: Numbers) -> Tail:
    """A t distribution fitted to the bulk of standardised residuals, and the threshold that it sets.

    By maximum likelihood among those below three, given that they are: Σ log [ t_ν(a/s) / (s P(|T_ν| < 3/s)) ]. So
    outliers, which lie beyond, have no say, and residuals with a heavy tail of their own (noise that differs from place
    to place) are not taken for outliers as they would be by a fixed threshold. A heavy tail reaches far; where the
    residuals themselves end sooner, at a gap, the threshold is in the middle of it.

    Args:
        size: ``n`` absolute residuals in standard deviations.

    Returns:
        The tail. Cost O(n).
    """
    bulk = size[size <= _BULK]
    best, degrees, scale = -np.inf, np.inf, 1.0
    if bulk.size:
        squares = np.square(bulk[:, None] / _SCALES)  # n x scales
        for nu in _DEGREES[::-1]:  # the lightest tail wins a tie
            value = _log_density(squares, nu).sum(axis=0) - bulk.size * (np.log(_SCALES) + np.log(_inside(nu)))
            if value.max() > best:
                best, degrees, scale = float(value.max()), float(nu), float(_SCALES[value.argmax()])
    upper = 1.0 - 0.5 * min(_EXPECTED / max(size.size, 1), 1.0)
    quantile = special.ndtri(upper) if np.isinf(degrees) else special.stdtrit(degrees, upper)
    return Tail(degrees, scale, max(_LEAST, min(scale * float(quantile), _first_gap(size))))


def _first_gap(size: Numbers) -> float:
    """The geometric middle of the first gap between residuals far out; infinite where there is none."""
    farther = np.concatenate([[_START], np.sort(size[size > _START])])
    gaps = np.flatnonzero(farther[1:] > _GAP * farther[:-1])
    return float(np.sqrt(farther[gaps[0]]) * np.sqrt(farther[gaps[0] + 1])) if gaps.size else np.inf


def _log_density(squares: Numbers, nu: float) -> Numbers:
    """log t_ν of the roots of these squares."""
    density: Numbers
    if np.isinf(nu):
        density = -0.5 * squares - 0.5 * np.log(2.0 * np.pi)
    else:
        constant = special.gammaln(0.5 * (nu + 1.0)) - special.gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)
        density = constant - 0.5 * (nu + 1.0) * np.log1p(squares / nu)
    return density


def _inside(nu: float) -> Numbers:
    """P(|T_ν| < 3/s) for every scale s."""
    limits = _BULK / _SCALES
    below = special.ndtr(limits) if np.isinf(nu) else special.stdtr(nu, limits)
    return np.asarray(2.0 * below - 1.0, dtype=np.float64)
