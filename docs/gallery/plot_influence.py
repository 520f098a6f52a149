"""How far one observation can move the posterior
==================================================

The posterior influence function of the paper's Figure 2: one observation is moved away from where it was, and the
divergence between the posteriors before and after is drawn. For the plain GP it grows without bound, quadratically; for
the robust weights it settles at the influence that leaving the point out would have. The last panel shows that the same
holds up to 1e300.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from rcgp import RCGP, posterior_influence
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential

INDEX = 60
generator = torch.Generator().manual_seed(0)
X = torch.linspace(0, 10, 100, dtype=torch.float64).unsqueeze(-1)
y = torch.sin(X[:, 0]) + 0.1 * torch.randn(100, generator=generator, dtype=torch.float64)

figure, (near, far) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
weights = {"GP": Constant(), "RCGP, IMQ": InverseMultiquadric(), "RCGP, SE": SquaredExponential()}
for (name, weight), colour in zip(weights.items(), ("#4daf4a", "#377eb8", "#ff7f00"), strict=True):
    model = RCGP(X, y, weight=weight, noise=0.01)
    steps = torch.linspace(-8, 8, 400, dtype=torch.float64)
    near.plot(steps, posterior_influence(model, INDEX, y[INDEX] + steps), color=colour, label=name)
    steps = torch.logspace(-1, 300, 600, dtype=torch.float64)
    influence = posterior_influence(model, INDEX, y[INDEX] + steps)
    far.plot(steps.log10(), influence.clamp_max(1e30), color=colour, label=name)
    print(f"{name:10} influence at 1e300: {influence[-1]:.3g}")
near.set(xlabel="moved by", ylabel="influence (KL)", ylim=(0, 30))
far.set(xlabel="moved by, log₁₀", yscale="log", ylim=(1e-3, 1e12))
near.legend(frameon=False)
plt.show()
