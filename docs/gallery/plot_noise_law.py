"""A learned noise law: flags, intervals and growing noise
==========================================================

:class:`rcgp.RCGPRegressor` learns how the noise of a table is distributed: the shares of
normal noise, of its tail and of outliers. Weights, flags and intervals follow from that noise law.
:doc:`/noise_law` describes the method.

Three tables of the same function, 200 rows each: with normal noise, with 15 % outliers, and with noise that grows with
x.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rcgp import RCGPRegressor
from rcgp.estimator import FLAG_RULE, NoiseLawWarning

Numbers = NDArray[np.float64]

random = np.random.default_rng(3)
x = np.sort(random.uniform(0, 10, 200))
truth = np.sin(1.5 * x) + 0.3 * x
normal = 0.2 * random.standard_normal(200)
outlying = random.permutation(200) < 30
shift = np.where(outlying, random.choice([-1, 1], 200) * random.uniform(1.5, 5, 200), 0.0)
tables: dict[str, Numbers] = {
    "normal noise": truth + normal,
    "15 % outliers": truth + normal + shift,
    "growing noise": truth + (0.03 + 0.08 * x) * random.standard_normal(200),
}

# %%
# The law of each table. Where the noise is normal, all weights are one and the model is the ordinary GP. A fit that
# cannot rely on its law has doubts; each is a sentence and also a warning.

warnings.simplefilter("ignore", NoiseLawWarning)  # doubts are printed
models = {}
for name, y in tables.items():
    models[name] = RCGPRegressor().fit(x[:, None], y)
    print(f"{name}\n{models[name].noise_law_}")
    for doubt in models[name].doubts_:
        print(f"Doubt: {doubt}")
    print()

# %%
# Top: the data, flagged rows in red, the true function as a broad grey line, the fit, and the 95 % interval of a new
# observation that is not an outlier. The interval follows the noise. Bottom: the weight of each row, above one where
# the noise is locally small.


def draw(top: Axes, bottom: Axes, y: Numbers, model: RCGPRegressor) -> None:
    """Data, fit and interval above, weights below."""
    grid = np.linspace(0, 10, 300)
    lower, upper = model.predict_interval(grid[:, None])
    top.plot(x, truth, color="#cccccc", linewidth=5, zorder=0)
    top.plot(grid, model.predict(grid[:, None]), color="#6a1b9a", linewidth=1.3)
    top.fill_between(grid, lower, upper, color="#6a1b9a", alpha=0.2, linewidth=0)
    colours = np.where(model.outliers_, "#e41a1c", "#777777")
    top.scatter(x, y, s=8, color=colours, linewidths=0)
    bottom.scatter(x, model.weights_, s=8, color=colours, linewidths=0)
    bottom.set_xlabel("x")


figure, axes = plt.subplots(
    2, 3, figsize=(11, 5), sharex=True, sharey="row", height_ratios=[3, 1], layout="constrained"
)
for (name, model), (top, bottom) in zip(models.items(), axes.T, strict=True):
    draw(top, bottom, tables[name], model)
    top.set_title(f"{name}: {model.outliers_.sum()} rows flagged", fontsize=10)
axes[0, 0].set_ylabel("y")
axes[1, 0].set(ylabel="weight", ylim=(-0.05, 1.05 * max(model.weights_.max() for model in models.values())))
plt.show()

# %%
# Each row has a probability of being an outlier, and rows above one half are flagged. All 30 outliers are found, and no
# good row is flagged.

flagged = models["15 % outliers"].outliers_
print(FLAG_RULE)
print(f"{(flagged & outlying).sum()} of {outlying.sum()} outliers flagged, {(flagged & ~outlying).sum()} good rows")
print(f"mean error: {np.abs(models['15 % outliers'].predict(x[:, None]) - truth).mean():.3f}")
plain = RCGPRegressor(weight="constant").fit(x[:, None], tables["15 % outliers"])
print(f"ordinary GP: {np.abs(plain.predict(x[:, None]) - truth).mean():.3f}")

# %%
# The standard deviation of the noise differs from place to place where the evidence grows by a nat or more. It is
# smoothed towards its average: the growing noise has the true values 0.11 and 0.75.

ends = np.array([[1.0], [9.0]])
for name, model in models.items():
    low, high = model.noise_std(ends)
    print(f"{name:28} noise at x = 1: {low:.2f}, at x = 9: {high:.2f}")
