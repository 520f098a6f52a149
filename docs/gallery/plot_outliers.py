"""A plain and a robust Gaussian process on data with 10 % outliers
===================================================================

The synthetic problem of the paper: 300 points of a smooth function on [0, 20] with noise of standard deviation 0.1,
and 30 of them moved away by 3 to 9 standard deviations of y. Both models have the same kernel and start; the robust one
learns the noise law as well. This is what ``rcgp demo`` shows.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rcgp import RCGPRegressor
from rcgp.cli.demo import made_up_data
from rcgp.estimator import NoiseLawWarning

table, truth, outlying = made_up_data()
X, y = table[["x"]], table["y"]
warnings.simplefilter("ignore", NoiseLawWarning)  # the plain GP cannot tell errors from good rows
models = {
    "GP": RCGPRegressor(weight="constant").fit(X, y),
    "RCGP": RCGPRegressor().fit(X, y),
}
for name, model in models.items():
    print(f"{name:5} mean error {np.abs(model.predict(X) - truth).mean():.3f}")

# %%
# The plain GP is pulled about; the robust one follows the function. Points beyond the frame are not shown. Below, the
# weight of each point.

figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 5.4), sharex=True, height_ratios=[3, 1], layout="constrained")
x = table["x"]
top.scatter(x, y, s=9, color="#555555", linewidths=0)
top.plot(x, truth, color="black", linewidth=1, linestyle="--", label="truth")
for (name, model), colour in zip(models.items(), ("#4daf4a", "#377eb8"), strict=True):
    mean, std = model.predict(X, return_std=True)
    top.plot(x, mean, color=colour, label=name)
    top.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.2, linewidth=0)
top.set(ylabel="y", ylim=(truth.min() - 2, truth.max() + 2))
top.legend(loc="lower left", ncols=3, frameon=False)
bottom.bar(x, models["RCGP"].weights_, width=0.07, color="#377eb8")
bottom.set(xlabel="x", ylabel="weight", ylim=(0, None))
plt.show()

# %%
# The noise law has the share of outliers and the noise of all other points. Rows that are more likely outliers than not
# are flagged.

flagged = models["RCGP"].outliers_
print(models["RCGP"].noise_law_)
print(f"{flagged.sum()} rows flagged, {(flagged & outlying).sum()} of the {outlying.sum()} outliers among them")
print(f"noise: {np.median(models['RCGP'].noise_std(X)):.2f}, in truth 0.10")
