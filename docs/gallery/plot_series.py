"""A sensor series: bad values, a gap, stuck values and a level shift
====================================================================

A month of hourly readings with a daily season. A few are wrong, some are missing, the sensor is stuck for half a day.
Later readings arrive one by one, and the level shifts: the stream rejects the first values after it, and then follows.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from rcgp import RCGPSeries
from rcgp.estimator import NoiseLawWarning

random = np.random.default_rng(0)
hours = pd.date_range("2025-03-01", periods=24 * 37, freq="1h", tz="UTC")
count = np.arange(len(hours))
truth = 10.0 + 3.0 * np.sin(2.0 * np.pi * count / 24.0) + 0.8 * np.sin(count / 70.0)
values = truth + 0.3 * random.standard_normal(len(hours))
bad = random.random(len(hours)) < 0.05
values[bad] += random.choice([-1.0, 1.0], bad.sum()) * random.uniform(3.0, 9.0, bad.sum())
values[300:330] = np.nan
values[500:512] = values[500]
values[24 * 34 :] += 5.0

past, new = slice(0, 24 * 30), slice(24 * 30, None)
warnings.simplefilter("ignore", NoiseLawWarning)  # it says that stuck values were found
model = RCGPSeries(periods=["1D"]).fit(hours[past], values[past])
print(model.noise_law_)
print(
    f"{(model.outliers_ & bad[past]).sum()} of {bad[past].sum()} errors flagged, {model.outliers_.sum()} flags in all"
)

# %%
# The fit of the month. Stuck values are flagged, too, but for the first of them.
mean = model.predict(hours[past])
lower, upper = model.predict_interval(hours[past])
figure, axes = plt.subplots(2, 1, figsize=(10, 7), layout="constrained")
axes[0].fill_between(hours[past], lower, upper, color="tab:blue", alpha=0.2, label="95 % interval")
axes[0].plot(hours[past], values[past], ".", color="0.4", markersize=3, label="readings")
axes[0].plot(hours[past], mean, color="tab:blue", linewidth=1, label="RCGPSeries")
axes[0].plot(hours[past][model.outliers_], values[past][model.outliers_], "x", color="tab:red", label="flagged")
axes[0].set_ylim(top=27.0)
axes[0].legend(loc="upper right", ncols=4)
axes[0].set_title("A month: errors, a gap from the 13th on, stuck values on the 21st")

# %%
# The stream: each reading is judged before it is taken in.
stream = model.stream()
found = stream.update_many(hours[new], values[new])
axes[1].fill_between(hours[new], found.lower, found.upper, color="tab:blue", alpha=0.2)
axes[1].plot(hours[new], values[new], ".", color="0.4", markersize=4)
axes[1].plot(hours[new], found.expected, color="tab:blue", linewidth=1)
axes[1].plot(hours[new][found.outlier], values[new][found.outlier], "x", color="tab:red")
for when in hours[new][found.shift]:
    axes[1].axvline(when, color="tab:green", linestyle="--")
axes[1].set_title("A week of new readings: expected before they are seen; dashed, a level shift recognised")
plt.show()
