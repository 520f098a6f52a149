"""Six Gaussian processes on the same outliers
==============================================

The synthetic data of the paper with three kinds of outliers, and the models that the benchmark compares: an ordinary
GP, the robust conjugate one as published and with a learned noise law, Student-t noise, a mixture of inliers and
outliers, and clipping.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch

from rcgp import RCGP, fit, fit_robust
from rcgp.models.defaults import add_weak_priors
from rcgp_paper.baselines import GaussianGP, MixtureGP, StudentTGP, WinsorizedGP
from rcgp_paper.data import Asymmetric, Focused, Uniform, load

data = load("synthetic")
truth = np.zeros(0) if data.truth is None else data.truth
models = {
    "GP": GaussianGP,
    "RCGP": RCGP,
    "learned law": RCGP,
    "t-GP": StudentTGP,
    "m-GP": MixtureGP,
    "winsorized": WinsorizedGP,
}
colours = ("#4daf4a", "#377eb8", "#000000", "#ff7f00", "#984ea3", "#a65628")


def fit_one(name: str, X: torch.Tensor, y: torch.Tensor) -> RCGP:
    """The fitted model of that name."""
    if name == "learned law":
        model = RCGP(X, y, mean="median")
        add_weak_priors(model)
        fit_robust(model)
        return model
    model = models[name](X, y)
    fit(model) if name == "RCGP" else model.fit()
    return model


figure, axes = plt.subplots(3, 1, figsize=(9, 8.4), sharex=True, layout="constrained")
X = torch.from_numpy(data.X)
for axis, contaminate in zip(axes, (Uniform(), Asymmetric(), Focused()), strict=True):
    altered = contaminate(data.X, data.y, np.random.default_rng(1))
    axis.scatter(altered.X[:, 0], altered.y, s=6, color=np.where(altered.mask, "#e41a1c", "#777777"), linewidths=0)
    errors = []
    for name, colour in zip(models, colours, strict=True):
        model = fit_one(name, torch.from_numpy(altered.X), torch.from_numpy(altered.y))
        mean = model.posterior(X).mean.detach().numpy()
        axis.plot(data.X[:, 0], mean, color=colour, linewidth=1.2, label=name)
        errors.append(f"{name} {np.abs(mean - truth).mean():.2f}")
    title = type(contaminate).__name__.lower()
    axis.set_title(f"{title} outliers; mean errors: {', '.join(errors)}", fontsize=9)
    axis.set_ylim(truth.min() - 2, truth.max() + 2)
    print(f"{title}: {', '.join(errors)}")
axes[0].legend(frameon=False, ncols=6, fontsize=8, loc="lower left")
plt.show()
