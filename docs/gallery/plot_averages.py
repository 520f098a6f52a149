"""Averages as data: a function from its means over intervals
=============================================================

A meter reports the mean of a signal over intervals that differ in length and overlap. Some of the reports are wrong.
The model takes each for what it is, an average of the function, flags the wrong ones, and predicts the function itself
and its average over any other interval.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import AverageRCGP, fit_robust
from rcgp.training.fit import fit_ordinary
from rcgp.weights import Constant

Array = NDArray[np.float64]


def function(x: Array) -> Array:
    f: Array = np.sin(x) + 0.5 * np.cos(2 * x)
    return f


def integral(x: Array | float) -> Array:
    F: Array = np.sin(2 * x) / 4 - np.cos(x)
    return F


random = np.random.default_rng(4)
lower = np.sort(random.uniform(0, 9, 40))
upper = lower + random.uniform(0.2, 1.8, 40)
y = (integral(upper) - integral(lower)) / (upper - lower) + 0.05 * random.standard_normal(40)
bad = np.array([6, 17, 18, 30])
y[bad] += [1.5, -2.0, -1.2, 2.0]

robust = AverageRCGP.of_intervals(lower, upper, y)
print(fit_robust(robust))
ordinary = AverageRCGP.of_intervals(lower, upper, y, weight=Constant())
fit_ordinary(ordinary)
flagged = (robust.outlier_probability() > 0.5).numpy()
print("flagged:", flagged.nonzero()[0])

day = robust.posterior_of_intervals([0.0], [10.0])
truth = (integral(10.0) - integral(0.0)) / 10.0
print(f"average over all of it: {day.mean.item():.3f} ± {1.96 * day.variance.sqrt().item():.3f}, in truth {truth:.3f}")

# %%
# Each observation is a line over its interval; what is flagged is red.

figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
axis.hlines(y[~flagged], lower[~flagged], upper[~flagged], color="#555555", linewidth=1.5, label="averages")
axis.hlines(y[flagged], lower[flagged], upper[flagged], color="#e41a1c", linewidth=2, label="flagged")
fine = np.linspace(0, 10, 300)
axis.plot(fine, function(fine), color="black", linewidth=1, linestyle="--", label="truth")
for model, colour, name in ((ordinary, "#ff7f00", "ordinary"), (robust, "#377eb8", "robust")):
    posterior = model.posterior(torch.from_numpy(fine[:, None]))
    mean, std = posterior.mean.numpy(), posterior.variance.sqrt().numpy()
    axis.plot(fine, mean, color=colour, label=name)
    axis.fill_between(fine, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.15, linewidth=0)
axis.set(xlabel="x", ylabel="f", ylim=(-3.8, 3.5))
axis.legend(frameon=False, ncols=5)
plt.show()
