"""Bayesian optimisation of a function that is sometimes wrong
=============================================================

Branin's function, which has three minima, is minimised by :func:`rcgp.botorch.optimise`; one evaluation in five is
wrong: too high by 50 to 100, or, worse, too low. :doc:`/optimisation` says what is done.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from rcgp.botorch import optimise
from rcgp.estimator import NoiseLawWarning

warnings.simplefilter("ignore", NoiseLawWarning)  # doubts are printed

INLIER, OUTLIER, BEST = "#4daf4a", "#e41a1c", "#6a1b9a"


def branin(x: float | NDArray[np.float64], y: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Smallest, 0.398, at three points."""
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return np.asarray(valley**2 + 10 * (1 - 1 / (8 * math.pi)) * np.cos(x) + 10)


random = np.random.default_rng(3)
wrong: list[bool] = []


def measured(point: NDArray[np.float64]) -> float:
    """The function, or, one time in five, something else."""
    wrong.append(bool(random.random() < 0.2))
    error = random.choice([-1.0, 1.0, 1.0]) * random.uniform(50, 100)
    return float(branin(*point) + wrong[-1] * error)


result = optimise(measured, [(-5, 10), (0, 15)], budget=30, seed=0, progress=False)
print(result)
assert isinstance(result.x, np.ndarray)
print(f"the function at the best point: {branin(*result.x):.4f}")

# %%
# Left: the function, darker where it is smaller, and all evaluations; those flagged as outliers are red, and
# those that were wrong have a ring. Right: observed values, beside the predictions from all other evaluations. A
# red one without a ring is right, but no other evaluation supports it.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
grid_x, grid_y = np.meshgrid(np.linspace(-5, 10, 120), np.linspace(0, 15, 120))
left.contourf(grid_x, grid_y, np.log(branin(grid_x, grid_y)), levels=20, cmap="Greys_r", alpha=0.6)
for evaluation, is_wrong in zip(result.evaluations, wrong, strict=True):
    assert evaluation.value is not None
    assert evaluation.expected is not None
    colour = OUTLIER if evaluation in result.outliers else INLIER
    ring: dict[str, Any] = {"edgecolors": "black" if is_wrong else "none", "color": colour, "s": 45, "zorder": 3}
    left.scatter(*evaluation.x, **ring)
    right.scatter(evaluation.number, evaluation.value, **ring)
    right.vlines(evaluation.number, evaluation.expected, evaluation.value, color=colour, linewidth=1)
    right.scatter(evaluation.number, evaluation.expected, color="black", marker="_", s=60)
left.scatter(*result.x, marker="*", s=250, color=BEST, edgecolors="white", zorder=4, label="best by the model")
left.set(xlabel="x", ylabel="y")
left.legend(loc="upper right")
right.set(xlabel="evaluation", ylabel="observed, and expected (bars)")
plt.show()
