"""Several outputs: sensors of one process help each other
=========================================================

Three sensors watch one process. The third was off for a while, and each of them has some bad readings. A model for each
sensor knows nothing about the third one in the gap. One model of all cells (``outputs="correlated"``) learns how the
sensors go together: the other two fill the gap. A bad cell loses its own weight only, not that of its row.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rcgp import RCGPRegressor
from rcgp.estimator import NoiseLawWarning

random = np.random.default_rng(3)
x = np.linspace(0, 12, 70)
process, drift = np.sin(x) + 0.4 * np.sin(2.3 * x), np.cos(0.5 * x)
truth = np.stack([process, 5 - 2 * process + 0.5 * drift, 20 + 4 * process - drift], axis=1)
spread = truth.std(axis=0)
Y = truth + 0.08 * spread * random.standard_normal(truth.shape)
bad = random.random(Y.shape) < 0.07
Y[bad] += (4 * spread * random.choice([-1, 1], Y.shape))[bad]
Y[28:45, 2] = np.nan  # the third sensor is off
missing = np.isnan(Y)

warnings.simplefilter("ignore", NoiseLawWarning)
models = {
    "a model for each": RCGPRegressor(outputs="independent").fit(x[:, None], Y),
    "one model of all cells": RCGPRegressor(outputs="correlated").fit(x[:, None], Y),
}
for name, model in models.items():
    error = np.abs(model.predict(x[:, None]) - truth) / spread
    found = (model.outliers_ & bad)[~missing].sum()
    print(
        f"{name:22} error {error[~missing].mean():.3f} where observed, {error[missing].mean():.3f} in the gap; "
        f"{found} of {bad[~missing].sum()} bad cells flagged, {(model.outliers_ & ~bad).sum()} others"
    )
print("correlation of the outputs:", *models["one model of all cells"].output_correlation_.round(2).tolist(), sep="\n")

# %%
# Crosses are flagged cells. In the gap of the third sensor, its own model can only interpolate; the joint model
# follows the other two.

figure, axes = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
joint = models["one model of all cells"]
fine = np.linspace(0, 12, 400)[:, None]
for t, axis in enumerate(axes):
    good = ~joint.outliers_[:, t]
    axis.plot(x[good], Y[good, t], ".", color="#555555", markersize=5)
    axis.plot(x[~good], Y[~good, t], "x", color="#e41a1c", label="flagged")
    axis.plot(x, truth[:, t], color="black", linewidth=1, linestyle="--", label="truth")
    for (name, model), colour in zip(models.items(), ("#ff7f00", "#377eb8"), strict=True):
        mean, std = (part[:, t] for part in model.predict(fine, return_std=True))
        axis.plot(fine, mean, color=colour, label=name)
        axis.fill_between(fine[:, 0], mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.15, linewidth=0)
    axis.set(ylabel=f"sensor {t + 1}")
axes[0].legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
axes[-1].set(xlabel="hours")
plt.show()
