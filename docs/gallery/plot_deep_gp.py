"""Steps: a deep Gaussian process with errors
===========================================

The function "blocks" of Donoho and Johnstone with 15 % wrong rows. :class:`rcgp.DeepRCGPRegressor` warps the inputs by
a first GP before the second one sees them; :class:`rcgp.RCGPRegressor` has one smoothness for the whole range. Both
learn the noise law. :doc:`/plug_in` says when a deep GP helps.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rcgp import DeepRCGPRegressor, RCGPRegressor
from rcgp.estimator import NoiseLawWarning

JUMPS = np.array([0.1, 0.13, 0.15, 0.23, 0.25, 0.4, 0.44, 0.65, 0.76, 0.78, 0.81])
HEIGHTS = 2.0 * np.array([4, -5, 3, -4, 5, -4.2, 2.1, 4.3, -3.1, 2.1, -4.2])


def blocks(x: np.ndarray) -> np.ndarray:
    """The function."""
    values: np.ndarray = (HEIGHTS * (x[:, None] > JUMPS)).sum(axis=1)
    return values


random = np.random.default_rng(0)
x = np.sort(random.random(256))
truth = blocks(x)
wrong = random.random(256) < 0.15
y = truth + random.standard_normal(256) + wrong * random.choice([-1.0, 1.0], 256) * random.uniform(15, 45, 256)
models = {"RCGPRegressor": RCGPRegressor(), "DeepRCGPRegressor": DeepRCGPRegressor(random_state=0)}
colours = {"RCGPRegressor": "#4daf4a", "DeepRCGPRegressor": "#6a1b9a"}

figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
grid = np.linspace(0, 1, 1000)
axis.scatter(x, y, s=10, color=np.where(wrong, "#e41a1c", "#999999"), linewidths=0)
axis.plot(grid, blocks(grid), color="#cccccc", linewidth=5, zorder=0, label="truth")
for name, model in models.items():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        model.fit(x[:, None], y)
    mean = model.predict(grid[:, None])
    print(f"{name}: mean error {np.abs(mean - blocks(grid)).mean():.2f}, flagged {model.outliers_[wrong].sum()} of "
          f"{wrong.sum()} wrong rows and {model.outliers_[~wrong].sum()} good ones")  # fmt: skip
    axis.plot(grid, mean, color=colours[name], linewidth=1.3, label=name)
axis.set(xlabel="x", ylabel="y", ylim=(-20, 25))
axis.legend(frameon=False)
plt.show()
