"""The units in which a search by formulas takes its steps: of several maxima, which one it ends in depends on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Logarithms", "Plain"]

Array = NDArray[np.float64]


class Logarithms:
    """The units of :class:`rcgp.training.quick_evidence.QuickEvidence`: logarithms, and the mean over the scatter of y.

    Attributes:
        memory: steps that L-BFGS-B remembers.
    """

    memory = 30

    def of(self, x: Array) -> Array:
        """Values ``... x k``, or bounds, in these units."""
        return x

    def to_logarithms(self, part: Array, free: NDArray[np.bool_]) -> Array:
        """The free ones of ``k`` values, back from these units."""
        return part

    def slope(self, x: Array, gradient: Array) -> Array:
        """The gradient with respect to these units, ``k``."""
        return gradient


class Plain:
    """Hyperparameters and the mean themselves.

    Args:
        count: of hyperparameters, before the mean.
        unit: of the mean.

    Attributes:
        memory: steps that L-BFGS-B remembers.
    """

    memory = 10  # SciPy's default

    def __init__(self, count: int, unit: float) -> None:
        self.count, self.unit = count, unit

    def of(self, x: Array) -> Array:
        """Values ``... x k``, or bounds, in these units."""
        return np.concatenate([np.exp(x[..., : self.count]), self.unit * x[..., self.count :]], axis=-1)

    def to_logarithms(self, part: Array, free: NDArray[np.bool_]) -> Array:
        """The free ones of ``k`` values, back from these units."""
        whole = np.ones(self.count + 1)
        whole[free] = part
        return np.append(np.log(whole[: self.count]), whole[self.count] / self.unit)[free]

    def slope(self, x: Array, gradient: Array) -> Array:
        """The gradient with respect to these units, ``k``."""
        slope: Array = gradient * np.append(np.exp(-x[: self.count]), 1.0 / self.unit)
        return slope
