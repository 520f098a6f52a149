"""Many rows: a sparse robust fit
================================

Twenty thousand rows, a tenth of them wrong. An exact GP would need minutes and several n x n matrices.
:class:`rcgp.SparseRCGPRegressor` sees the function through a few inducing points instead; see :doc:`/sparse`.
For comparison, the ordinary sparse GP: the same model with a constant weight.

Nine in ten of the wrong rows are too low, the others too high: by 2 to 6, where the noise has a standard deviation of
0.2.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rcgp import SparseRCGPRegressor
from rcgp.estimator import NoiseLawWarning

GOOD, WRONG = "#999999", "#e41a1c"
COLOURS = {"ordinary sparse GP": "#4daf4a", "SparseRCGPRegressor": "#6a1b9a"}

random = np.random.default_rng(0)
n = 20_000
x = np.sort(random.uniform(0, 10, n))
truth = np.sin(2 * x) + np.sin(0.5 * x**1.5)
wrong = random.random(n) < 0.1
low = np.where(random.random(n) < 0.9, -1.0, 1.0)
y = truth + 0.2 * random.standard_normal(n) + wrong * low * random.uniform(2, 6, n)

models = {
    "ordinary sparse GP": SparseRCGPRegressor(100, weight="constant", fit_rows=500, random_state=0),
    "SparseRCGPRegressor": SparseRCGPRegressor(100, fit_rows=500, random_state=0),
}

# %%
# Top: a tenth of the rows, wrong ones in red, the true function as a broad grey line, and both fits with the interval
# that should hold 95 % of good observations; ticks are the inducing points of the robust fit. Below: the error of
# each fit.

figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=[3, 1], layout="constrained")
shown = np.arange(0, n, 10)
top.scatter(x[shown], y[shown], s=3, color=np.where(wrong[shown], WRONG, GOOD), linewidths=0)
top.plot(x, truth, color="#cccccc", linewidth=5, label="truth", zorder=0)
for name, model in models.items():
    with warnings.catch_warnings():
        if name == "ordinary sparse GP":  # which is here to be compared with
            warnings.simplefilter("ignore", NoiseLawWarning)
        model.fit(x[:, None], y)
    mean, (lower, upper) = model.predict(x[:, None]), model.predict_interval(x[:, None])
    top.plot(x, mean, color=COLOURS[name], linewidth=1.3, label=name)
    top.fill_between(x, lower, upper, color=COLOURS[name], alpha=0.15, linewidth=0)
    bottom.plot(x, mean - truth, color=COLOURS[name], linewidth=1.3)
    inside = ((lower < y) & (y < upper))[~wrong]
    print(f"{name}: {len(model.inducing_points_)} inducing points, {sum(model.model_.seconds.values()):.1f} s")
    print(
        f"    mean error {np.abs(mean - truth).mean():.3f}, noise {model.noise_variance_**0.5:.2f}, "
        f"{inside.mean():.1%} of the good rows in their 95 % interval"
    )
    print(
        f"    flagged: {model.outliers_[wrong].sum()} of {wrong.sum()} wrong rows, {model.outliers_[~wrong].sum()} good"
    )
points = models["SparseRCGPRegressor"].inducing_points_[:, 0]
top.plot(points, np.full(len(points), y[shown].min() - 1), "|", color=COLOURS["SparseRCGPRegressor"])
bottom.axhline(0.0, color="#cccccc", linewidth=1, zorder=0)
bottom.set(xlabel="x", ylabel="error")
top.set_ylabel("y")
figure.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
plt.show()
