"""Gradients as data: a wrong derivative is down-weighted alone
===============================================================

A simulation gives values and slopes. Two of the slopes have the wrong sign, and one value is wrong. An ordinary GP with
derivatives takes them as they are and bends; the robust one flags these three, keeps the slope at the wrong value and
the values at the wrong slopes, and follows the function.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import GradientRCGP, fit_robust
from rcgp.training.fit import fit_ordinary
from rcgp.weights import Constant

Array = NDArray[np.float64]


def function(x: Array) -> Array:
    f: Array = np.sin(x) + 0.3 * x
    return f


random = np.random.default_rng(3)
x = np.linspace(0.3, 9.7, 12)
y = function(x) + 0.02 * random.standard_normal(12)
slope = np.cos(x) + 0.3 + 0.02 * random.standard_normal(12)
slope[[3, 7]] *= -1.0
y[9] += 1.5

robust = GradientRCGP(x[:, None], y, slope[:, None])
print(fit_robust(robust))
ordinary = GradientRCGP(x[:, None], y, slope[:, None], weight=Constant())
fit_ordinary(ordinary)
flagged = (robust.cells(robust.outlier_probability()) > 0.5).numpy()
print("flagged values:", flagged[:, 0].nonzero()[0], "flagged slopes:", flagged[:, 1].nonzero()[0])

# %%
# Each observation is a dot with a short line of the observed slope; what is flagged is red. Below, the posterior of the
# derivative, from the same model.

figure, axes = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
fine = np.linspace(0, 10, 300)
truths = function(fine), np.cos(fine) + 0.3
for output, (axis, truth) in enumerate(zip(axes, truths, strict=True)):
    axis.plot(fine, truth, color="black", linewidth=1, linestyle="--", label="truth")
    for model, colour, name in ((ordinary, "#ff7f00", "ordinary"), (robust, "#377eb8", "robust")):
        posterior = model.posterior(torch.from_numpy(fine[:, None]), outputs=[output])
        mean, std = posterior.mean[:, 0].numpy(), posterior.variance[:, 0].sqrt().numpy()
        axis.plot(fine, mean, color=colour, label=name)
        axis.fill_between(fine, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.15, linewidth=0)
for i in range(12):
    step = np.array([-0.25, 0.25])
    axes[0].plot(x[i] + step, y[i] + slope[i] * step, color="#e41a1c" if flagged[i, 1] else "#555555", linewidth=1.5)
colours = np.where(flagged, "#e41a1c", "#555555")
axes[0].scatter(x, y, color=colours[:, 0], s=22, zorder=3)
axes[1].scatter(x, slope, color=colours[:, 1], s=22, zorder=3)
axes[0].set(ylabel="f")
axes[1].set(xlabel="x", ylabel="df/dx")
axes[0].legend(frameon=False, ncols=3)
plt.show()
