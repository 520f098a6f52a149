"""Prices: noise that is quiet in some weeks and loud in others
============================================================

The noise of a price comes in clusters. With one level for all, intervals are too wide in quiet weeks and too narrow in
loud ones. ``RCGPSeries`` lets the noise vary in time where the data show it. A stream goes on from the last level.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from rcgp import RCGPSeries

random = np.random.default_rng(0)
days = np.datetime64("2022-01-01") + np.arange(1000)
std, variance = np.empty(1000), 1.0
for day in range(1000):  # GARCH(1, 1)
    std[day] = 0.5 * np.sqrt(variance)
    variance = 0.02 + (0.15 * random.standard_normal() ** 2 + 0.83) * variance
price = 100.0 + np.cumsum(0.15 * random.standard_normal(1000)) + std * random.standard_normal(1000)
bad = np.array([150, 420, 610, 880])
price[bad] += [6.0, -7.0, 6.0, -6.0]

past, new = slice(0, 800), slice(800, None)
model = RCGPSeries().fit(days[past], price[past])
print(model.fit_report_)
print("flagged:", np.flatnonzero(model.outliers_))

# %%
# The level of the noise, and intervals that follow it; after day 800 those of the stream.
found = model.stream().update_many(days[new], price[new])
same = RCGPSeries(local_noise=False).fit(days[past], price[past])
figure, axes = plt.subplots(2, 1, figsize=(10, 7), sharex=True, layout="constrained", height_ratios=[2, 1])
axes[0].fill_between(
    days[past], *model.predict_interval(days[past]), color="tab:blue", alpha=0.25, label="95 % interval"
)
axes[0].fill_between(days[new], found.lower, found.upper, color="tab:green", alpha=0.25, label="of the stream")
axes[0].plot(days, price, ".", color="0.4", markersize=2)
flagged = np.concatenate([model.outliers_, found.outlier])
axes[0].plot(days[flagged], price[flagged], "x", color="tab:red", label="flagged")
axes[0].legend(loc="upper left", ncols=3)
axes[0].set_ylabel("price")
axes[1].plot(days[past], std[past], color="0.6", linewidth=1, label="truth")
axes[1].plot(days[past], model.noise_std(days[past]), color="tab:blue", label="noise_std")
axes[1].plot(days[past], same.noise_std(days[past]), color="tab:orange", label="local_noise=False")
axes[1].legend(loc="upper left", ncols=3)
axes[1].set_ylabel("standard deviation")
plt.show()
