"""A deep kernel in the robust fit
================================

A deep kernel passes its inputs through a small network before it compares them. Any GPyTorch kernel works in
:class:`rcgp.RCGP` and :func:`rcgp.fit_robust`, so this one does: the network's weights are hyperparameters like any
other, and the evidence of the pseudo-data trains them.

A function with a step, and a tenth of the rows are wrong. With a stationary kernel the GP has one smoothness for the
whole range: it rounds the step, or is rough beside it. The network stretches the inputs at the step.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from rcgp import RCGP, fit_robust


class DeepKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """k(x, x′) = k₀(x + g(x), x′ + g(x′)) with a network g; the inputs stay among the features."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(inputs, 10), nn.Tanh(), nn.Linear(10, inputs))
        self.base_kernel = gpytorch.kernels.RBFKernel(ard_num_dims=inputs)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **options: Any) -> Any:
        features = [x + self.network(x) for x in (x1, x2)]
        return self.base_kernel.forward(*features, diag=diag, **options)


torch.manual_seed(0)
x = torch.rand(150, dtype=torch.float64).sort().values * 4 - 2
truth = torch.sign(x) + 0.3 * torch.sin(3 * x)
wrong = torch.rand(150) < 0.1
y = truth + 0.1 * torch.randn(150, dtype=torch.float64) + wrong * 2.0

kernels = {"squared exponential": gpytorch.kernels.RBFKernel(ard_num_dims=1), "deep kernel": DeepKernel(1)}
colours = {"squared exponential": "#4daf4a", "deep kernel": "#6a1b9a"}
grid = torch.linspace(-2, 2, 400, dtype=torch.float64)
true = torch.sign(grid) + 0.3 * torch.sin(3 * grid)

figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
axis.scatter(x, y, s=10, color=["#e41a1c" if bad else "#999999" for bad in wrong.tolist()], linewidths=0)
axis.plot(grid, true, color="#cccccc", linewidth=5, zorder=0, label="truth")
for name, kernel in kernels.items():
    model = RCGP(x.unsqueeze(-1), y, kernel=gpytorch.kernels.ScaleKernel(kernel).double(), mean="median")
    report = fit_robust(model)
    flagged = model.outlier_probability() > 0.5
    with torch.no_grad():
        posterior = model.posterior(grid.unsqueeze(-1))
    error = float((posterior.mean - true).abs().mean())
    print(f"{name}: mean error {error:.3f}, evidence {report.evidence:.1f}, flagged {int((flagged & wrong).sum())} "
          f"of {int(wrong.sum())} wrong rows and {int((flagged & ~wrong).sum())} good ones")  # fmt: skip
    axis.plot(grid, posterior.mean, color=colours[name], linewidth=1.4, label=name)
axis.set(xlabel="x", ylabel="y")
axis.legend(frameon=False)
plt.show()
