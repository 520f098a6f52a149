"""Sample weights: what you know about the precision of each row
================================================================

Half of the measurements were repeated nine times and averaged. A sample weight of nine says so: these rows have a ninth
of the noise variance, and the fit follows them more closely. Without it, two kinds of noise look like heavy tails, and
the fit doubts its noise law.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rcgp import RCGPRegressor
from rcgp.estimator import NoiseLawWarning

random = np.random.default_rng(1)
x = np.linspace(0, 10, 40)
repeats = np.where(np.arange(40) % 2, 1, 9)
truth = np.sin(x)
y = truth + 0.6 * random.standard_normal(40) / np.sqrt(repeats)
y[10] += 5.0

warnings.simplefilter("ignore", NoiseLawWarning)  # doubts are printed
models = {
    "all rows alike": RCGPRegressor().fit(x[:, None], y),
    "with sample weights": RCGPRegressor().fit(x[:, None], y, sample_weight=repeats),
}
for name, model in models.items():
    error = np.abs(model.predict(x[:, None]) - truth).mean()
    noise = np.median(model.noise_std(x[:, None]))
    print(f"{name:20} mean error {error:.3f}, noise of a single measurement {noise:.2f} (the truth: 0.6)")
    for doubt in model.doubts_:
        print(f"    Doubt: {doubt}")

# %%
# The averaged measurements are the large points.

figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
axis.scatter(x, y, s=4 + 5 * repeats, color="#555555", linewidths=0)
axis.plot(x, truth, color="black", linewidth=1, linestyle="--", label="truth")
fine = np.linspace(0, 10, 300)[:, None]
for (name, model), colour in zip(models.items(), ("#ff7f00", "#377eb8"), strict=True):
    mean, std = model.predict(fine, return_std=True)
    axis.plot(fine, mean, color=colour, label=name)
    axis.fill_between(fine[:, 0], mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.15, linewidth=0)
axis.set(xlabel="x", ylabel="y", ylim=(-3, 3.5))
axis.legend(frameon=False, ncols=3)
plt.show()
