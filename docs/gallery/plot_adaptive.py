"""Adaptive centring: weights that ask the other rows
====================================================

The paper centres the weight of each observation on the prior mean. A good observation far from that mean loses trust,
and a wrong one near it keeps its own. :func:`rcgp.training.fit_adaptive` centres it on what all other rows predict
instead. :doc:`/adaptive` says how and why.

The synthetic data of the paper, 300 rows with noise of standard deviation 0.1, with three kinds of outliers: 10 % of
the rows moved up and down, 10 % of them put in one place, and 40 % moved up and down.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rcgp import RCGP, fit
from rcgp.baselines import GaussianGP
from rcgp.data import Contaminated, Focused, Uniform, load
from rcgp.models.defaults import add_weak_priors
from rcgp.training import fit_adaptive

GOOD, WRONG = "#999999", "#e41a1c"
COLOURS = {"GP": "#4daf4a", "paper's RCGP": "#377eb8", "adaptive": "#6a1b9a"}


def fitted(altered: Contaminated) -> dict[str, RCGP]:
    """The three models, with the same kernel."""
    X, y = torch.from_numpy(altered.X), torch.from_numpy(altered.y)
    gp, paper, adaptive = GaussianGP(X, y), RCGP(X, y), RCGP(X, y, mean="median")
    gp.fit()
    fit(paper)
    add_weak_priors(adaptive)
    fit_adaptive(adaptive)
    return dict(zip(COLOURS, (gp, paper, adaptive), strict=True))


def draw_weights(axis: Axes, altered: Contaminated, model: RCGP) -> NDArray[np.float64]:
    """The weight of every row; returns them."""
    weights: NDArray[np.float64] = model.weights().detach().numpy()
    for rows, colour in ((~altered.mask, GOOD), (altered.mask, WRONG)):
        axis.scatter(altered.X[rows, 0], weights[rows], s=6, color=colour, linewidths=0)
    axis.set_ylim(-0.05, 1.05)
    return weights


# %%
# Top: the data, outliers in red, the true function as a broad grey line, and the three fits; points beyond the frame
# are not shown. Below: how much each row counts, first in the paper's method, then in the adaptive fit. What one wishes
# for is grey at 1 and red at 0.

data = load("synthetic")
truth = np.zeros(0) if data.truth is None else data.truth
settings = {"10 % outliers": Uniform(), "10 % in one place": Focused(), "40 % outliers": Uniform(share=0.4)}
figure, axes = plt.subplots(
    3, 3, figsize=(11, 7), sharex=True, sharey="row", height_ratios=[3, 1, 1], layout="constrained"
)
for (title, contaminate), (top, middle, bottom) in zip(settings.items(), axes.T, strict=True):
    altered = contaminate(data.X, data.y, np.random.default_rng(1))
    models = fitted(altered)
    top.scatter(altered.X[:, 0], altered.y, s=6, color=np.where(altered.mask, WRONG, GOOD), linewidths=0)
    top.plot(data.X[:, 0], truth, color="#cccccc", linewidth=5, label="truth", zorder=0)
    errors = []
    for name, model in models.items():
        mean = model.posterior(torch.from_numpy(data.X)).mean.detach().numpy()
        top.plot(data.X[:, 0], mean, color=COLOURS[name], linewidth=1.3, label=name)
        errors.append(f"{name} {np.abs(mean - truth).mean():.2f}")
    top.set_title(f"{title}\nerrors: {', '.join(errors)}", fontsize=8)
    draw_weights(middle, altered, models["paper's RCGP"])
    low = draw_weights(bottom, altered, models["adaptive"]) < 0.5
    print(f"{title}: mean error {', '.join(errors)}")
    print(
        f"    adaptive weights below 1/2: {(low & altered.mask).sum()} of {altered.mask.sum()} outliers, "
        f"{(low & ~altered.mask).sum()} of {(~altered.mask).sum()} good rows"
    )
axes[0, 0].set(ylabel="y", ylim=(truth.min() - 2.5, truth.max() + 2.5))
axes[1, 0].set_ylabel("weight,\npaper's RCGP")
axes[2, 0].set_ylabel("weight,\nadaptive")
for axis in axes[2]:
    axis.set_xlabel("x")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
plt.show()
