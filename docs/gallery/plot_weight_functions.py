"""Weight functions, and what the threshold c and the two terms of the method do
================================================================================

Top: the weights of the paper's Figure 3 and two more of the vocabulary: one-sided, and a class of one's own, whose
derivative comes from autograd. Bottom: the paper's Figure 4, posterior means for several thresholds c = Q(1 − ε), for
the full method, without its shrinkage term and without its noise term. It is the noise term that makes it robust.
"""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from rcgp import RCGP
from rcgp.weights import (
    InverseMultiquadric,
    NoNoiseTerm,
    NoShrinkage,
    OneSided,
    SquaredExponential,
    WeightFunction,
)


class Triweight(WeightFunction):
    """A weight of one's own, zero beyond three."""

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return (1 - (residual / 3).clamp(-1, 1) ** 2) ** 1.5


def draw_weights(left: Axes, right: Axes) -> None:
    e = torch.linspace(-5, 5, 401, dtype=torch.float64)
    x, noise = torch.zeros(401, 1, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    imq = InverseMultiquadric(c=1.0)
    weights = {
        "IMQ": imq,
        "SE": SquaredExponential(c=1.0),
        "one-sided IMQ": OneSided(imq, "above"),
        "one's own": Triweight(),
    }
    for name, weight in weights.items():
        w, z = weight(e, x, noise), e - noise * weight.slope(e, x, noise)
        left.plot(e, w, label=name)
        right.plot(e, z.where(w > 1e-3, torch.nan), label=name)  # without weight the target does not matter
    left.set(xlabel="residual e, c = 1", ylabel="weight w̃")
    right.set(xlabel="residual e, σ = 1", ylabel="pseudo-target z", ylim=(-8, 8))
    left.legend(frameon=False, fontsize=8)


def draw_thresholds(axis: Axes, wrap: Callable[[WeightFunction], WeightFunction]) -> None:
    generator = torch.Generator().manual_seed(2)
    X = torch.linspace(0, 10, 150, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(X[:, 0]) + 0.1 * torch.randn(150, generator=generator, dtype=torch.float64)
    y[::10] += 4.0 * (torch.arange(15) % 2 * 2 - 1)
    axis.scatter(X[:, 0], y, s=6, color="grey")
    for epsilon in (0.0, 0.05, 0.2, 0.99):
        model = RCGP(X, y, weight=wrap(InverseMultiquadric(epsilon=epsilon)), noise=0.05)
        model.kernel.base_kernel.lengthscale = 1.0
        axis.plot(X[:, 0], model.posterior(X).mean, label=f"ε = {epsilon}", linewidth=1.2)
    axis.set_ylim(-5.5, 5.5)


# %%
# Everything in one figure.

figure = plt.figure(figsize=(10, 6.4), layout="constrained")
axes = figure.subplot_mosaic("AAABBB;CCDDEE")
draw_weights(axes["A"], axes["B"])
variants: dict[str, Callable[[WeightFunction], WeightFunction]] = {
    "full": lambda weight: weight,
    "no shrinkage term": NoShrinkage,
    "no noise term": NoNoiseTerm,
}
for axis, (name, wrap) in zip("CDE", variants.items(), strict=True):
    draw_thresholds(axes[axis], wrap)
    axes[axis].set_title(name, fontsize=10)
axes["C"].legend(frameon=False, fontsize=8)
plt.show()
