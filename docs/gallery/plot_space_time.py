"""Space and time: bad readings of a sensor network
==================================================

Twelve stations measure temperature every hour for six days. One reading in twenty is wrong, one in ten is missing, one
station is off for two days, and another one has never worked. :class:`rcgp.SpaceTimeRCGP` is a robust GP of the whole
table, stations by hours, with a kernel in time times a kernel in space. It weighs each cell by what the other hours
*and* the other stations say, in time linear in the hours.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from rcgp import SpaceTimeRCGP, fit, fit_robust

Array = NDArray[np.float64]

GOOD, WRONG, ROBUST, PLAIN = "#777777", "#e41a1c", "#6a1b9a", "#4daf4a"


def temperature(hours: Array, sites: Array) -> Array:
    """Days and nights, colder in the north, and a warm front that passes from west to east: hours x sites."""
    east, north = sites.T / 100
    t = hours[:, None]
    day = 5 * np.sin(2 * np.pi * (t - 9) / 24) * (1 - 0.4 * north)
    front = 5 * np.exp(-(((t - 50) / 20 - 1.2 * east - 0.6 * north) ** 2))
    total: Array = 12 - 4 * north + day + front
    return total


random = np.random.default_rng(1)
hours, sites = np.arange(144.0), random.uniform(0, 100, (12, 2))
truth = temperature(hours, sites)
Y = truth + 0.4 * random.standard_normal(truth.shape)
wrong = random.random(Y.shape) < 0.05
Y[wrong] += random.choice([-1, 1], wrong.sum()) * random.uniform(3, 15, wrong.sum())
Y[random.random(Y.shape) < 0.1] = np.nan
OTHER, OFF, NEVER = 4, 9, 6
Y[60:108, OFF] = Y[:, NEVER] = np.nan
wrong &= ~np.isnan(Y)

# %%
# The robust fit learns the noise law and all hyperparameters; the ordinary GP has the same kernel and start. Cells that
# are more likely wrong than not are flagged.

robust, plain = SpaceTimeRCGP(hours, sites, Y), SpaceTimeRCGP(hours, sites, Y)
report = fit_robust(robust)
fit(plain, "marginal")
flagged = robust.cells(robust.outlier_probability()).numpy() > 0.5
print(report)
print(f"flagged: {(flagged & wrong).sum()} of {wrong.sum()} wrong readings, {(flagged & ~wrong).sum()} good ones")
models = {"ordinary GP": (plain, PLAIN), "SpaceTimeRCGP": (robust, ROBUST)}
answers = {name: model.posterior(hours) for name, (model, _) in models.items()}
for name, answer in answers.items():
    error = np.abs(answer.mean.numpy() - truth)
    print(f"{name}: mean error {error.mean():.2f}, at the station that never worked {error[:, NEVER].mean():.2f}")

# %%
# Above: three stations with both fits and their 95 % bands; the dashed line is the truth. Neighbours fill the two days
# without readings, and draw the curve of a station that has none. Below: all cells, stations by hours. The darker, the
# less a reading counts; circles are the wrong ones, blanks are missing.

figure, axes = plt.subplots(4, 1, figsize=(9, 9), sharex=True, height_ratios=[2, 2, 2, 2], layout="constrained")
titles = {OTHER: "a station", OFF: "off for two days", NEVER: "never worked"}
for panel, (site, title) in zip(axes, titles.items(), strict=False):
    panel.scatter(hours, Y[:, site], s=12, color=np.where(wrong[:, site], WRONG, GOOD), linewidths=0, zorder=3)
    panel.plot(hours, truth[:, site], color="black", linewidth=1, linestyle="--", label="truth", zorder=4)
    for name, answer in answers.items():
        mean, deviation = answer.mean[:, site].numpy(), answer.variance[:, site].sqrt().numpy()
        colour = models[name][1]
        panel.plot(hours, mean, color=colour, label=name)
        panel.fill_between(
            hours, mean - 1.96 * deviation, mean + 1.96 * deviation, color=colour, alpha=0.2, linewidth=0
        )
    panel.set(ylabel="°C", ylim=(truth.min() - 3, truth.max() + 3))
    panel.set_title(title, loc="left", fontsize="medium")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
weights = robust.cells(robust.weights()).numpy().T
axes[-1].pcolormesh(hours, np.arange(len(sites)), weights, cmap="gray", vmin=0, vmax=1.15)
times, stations = np.nonzero(wrong)
axes[-1].scatter(hours[times], stations, s=30, facecolors="none", edgecolors=WRONG)
axes[-1].set(xlabel="hour", ylabel="station", yticks=np.arange(0, 12, 2))
axes[-1].set_title("weights", loc="left", fontsize="medium")
plt.show()

# %%
# At new places, the field at one hour: the truth, what the robust GP makes of the stations, and its standard deviation.
# Dots are the stations; the one that never worked is empty.

ticks, hour = np.linspace(0, 100, 30), np.array([72.0])
grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
answer = robust.posterior(hour, grid)
maps = {
    "truth, °C": temperature(hour, grid)[0],
    "posterior mean, °C": answer.mean[0].numpy(),
    "standard deviation, °C": answer.variance[0].sqrt().numpy(),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
limits = {"vmin": min(maps["truth, °C"]), "vmax": max(maps["truth, °C"])}
for panel, (title, values) in zip(axes, maps.items(), strict=True):
    spread = title.startswith("standard")
    shown = panel.pcolormesh(
        ticks,
        ticks,
        values.reshape(30, 30),
        cmap="Purples" if spread else "RdYlBu_r",
        **({"vmin": 0} if spread else limits),
    )
    panel.scatter(*sites.T, s=18, color=["none" if i == NEVER else "black" for i in range(12)], edgecolors="black")
    panel.set(title=title, xlabel="km east", aspect="equal")
    figure.colorbar(shown, ax=panel, shrink=0.8)
axes[0].set_ylabel("km north")
plt.show()
