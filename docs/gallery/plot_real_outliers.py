"""Outliers that nobody put there
================================

Four series with outliers of their own, each fitted by ``RCGPRegressor()``; nothing was chosen for one of them. Rows
that are more likely outliers than not, by the learned noise law, are flagged.

- **Flash crash.** The Dow Jones index on 23 April 2013, every two minutes. A false report made it fall and recover
  within minutes.
- **Well log.** Nuclear magnetic resonance measured down a bore hole. The levels of the rock layers are real, the dips
  are not. Every sixth of the 4050 rows is used, so that this page is built in seconds.
- **Star cluster CYG OB1.** Light against temperature, both logarithms. Four giants do not belong to the main sequence.
- **Telephone calls in Belgium.** From 1964 to 1969, and for parts of 1963 and 1970, minutes were counted, not calls.

The files are looked for in the folder named by the environment variable ``RCGP_DATA_HOME``; a series whose file is not
there is left out.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from rcgp import RCGPRegressor
from rcgp.estimator import NoiseLawWarning
from rcgp_paper.data import DataError, Dataset, load

SERIES = {
    "flash_crash": ("flash crash", "hour of the day", "index"),
    "well_log": ("well log", "row", "response"),
    "stars_cyg": ("star cluster", "log temperature", "log light"),
    "telef": ("telephone calls", "year", "tens of millions"),
}


def load_some() -> dict[str, Dataset]:
    """Each series whose file is there, in the units of its picture."""
    series = {}
    for name in SERIES:
        try:
            data = load(name)
        except DataError as error:
            print(f"left out: {error}")
            continue
        step = 6 if name == "well_log" else 1
        X = {"flash_crash": data.X / 60, "telef": data.X + 1900}.get(name, data.X)
        series[name] = Dataset(name, X[::step], data.y[::step], data.feature_names, data.source)
    return series


def draw(top: Axes, bottom: Axes, data: Dataset, model: RCGPRegressor) -> None:
    """Data, fit with the 95 % interval of new observations, and weights."""
    x, flags = data.X[:, 0], model.outliers_
    grid = np.linspace(x.min(), x.max(), 1000)
    lower, upper = model.predict_interval(grid[:, None])
    top.plot(grid, model.predict(grid[:, None]), color="#6a1b9a", linewidth=1)
    top.fill_between(grid, lower, upper, color="#6a1b9a", alpha=0.2, linewidth=0)
    colours = np.where(flags, "#e41a1c", "#777777")
    sizes = np.where(flags, 16, 6)
    top.scatter(x, data.y, s=sizes, color=colours, linewidths=0, zorder=3)
    bottom.scatter(x, model.weights_, s=sizes, color=colours, linewidths=0)
    title, xlabel, ylabel = SERIES[data.name]
    top.set_title(f"{title}: {flags.sum()} of {len(x)} rows flagged", fontsize=10)
    top.set_ylabel(ylabel)
    if data.name == "stars_cyg":
        top.scatter(x[x < 3.6], data.y[x < 3.6], s=70, facecolors="none", edgecolors="black", label="giants")
        top.legend(frameon=False)
    bottom.sharex(top)
    top.tick_params(labelbottom=False)
    bottom.set(xlabel=xlabel, ylabel="weight", ylim=(-0.05, None))


# %%
# Flagged rows are red. Below each series, the weights. The noise law of each series is printed, and doubts about it.

series = load_some()
warnings.simplefilter("ignore", NoiseLawWarning)  # doubts are printed
models = {name: RCGPRegressor().fit(data.X, data.y) for name, data in series.items()}
flags = {name: model.outliers_ for name, model in models.items()}
for name, model in models.items():
    print(f"{SERIES[name][0]}: {model.noise_law_}")
    for doubt in model.doubts_:
        print(f"Doubt: {doubt}")
if series:
    figure = plt.figure(figsize=(11, 9), layout="constrained")
    axes = figure.subplot_mosaic("AB;ab;CD;cd", height_ratios=[3, 1, 3, 1])
    for place, (name, data) in zip("ABCD", series.items(), strict=False):
        draw(axes[place], axes[place.lower()], data, models[name])
    plt.show()

# %%
# What was flagged
# ----------------
# **Flash crash.** The two rows of the sell-off and no others. The paper's weight, centred on the mean of the day, gives
# the first minutes, when the index was low but right, about the weight of the first row of the sell-off.

if "flash_crash" in series:
    data, red = series["flash_crash"], flags["flash_crash"]
    paper = RCGPRegressor(weight="imq", mean="constant", priors=None).fit(data.X, data.y)
    first_hour = data.X[:, 0] < data.X[0, 0] + 1
    times = [f"{int(hour)}:{round(hour % 1 * 60):02d}" for hour in data.X[red, 0]]
    print(f"flagged: {', '.join(times)}; {red[first_hour].sum()} of {first_hour.sum()} rows of the first hour")
    for name, model in (("learned law", models["flash_crash"]), ("paper's RCGP", paper)):
        weights = model.weights_
        crash = " and ".join(f"{weight:.2g}" for weight in weights[red])
        print(f"{name}: smallest weight in the first hour {weights[first_hour].min():.2f}, in the sell-off {crash}")

# %%
# **Well log.** Most of the dips are flagged. Other rows count less than half without being flagged; more than half of
# these lie near a change of level, which the smooth default kernel cannot follow at once. So the tail of the noise law
# is heavy, and the fit doubts the law.

if "well_log" in series:
    data, red = series["well_log"], flags["well_log"]
    dips, weights = data.y < 1e5, models["well_log"].weights_
    print(f"below 100 000: {(red & dips).sum()} of {dips.sum()} flagged; above: {(red & ~dips).sum()} flagged")
    print(f"smallest weight of a row that is not flagged: {weights[~red].min():.2f}")
    print(f"lengthscale: {models['well_log'].lengthscales_[0]:.0f} rows of the whole series")

# %%
# **Star cluster.** The giants are *not* found, nor is any other row flagged: the noise is normal. The giants are alone
# at their temperatures and agree with each other, so nothing contradicts them but the idea that light rises with
# temperature everywhere, which a Gaussian process does not have. Straight lines by least trimmed squares do have it,
# and reject them (Rousseeuw and Leroy, 1987).

if "stars_cyg" in series:
    giants = series["stars_cyg"].X[:, 0] < 3.6
    weights = models["stars_cyg"].weights_[giants]
    print(f"{flags['stars_cyg'][giants].sum()} of {giants.sum()} giants flagged; weights {weights.min():.3f} and above")

# %%
# **Telephone calls.** All the years of minutes, and 1963 and 1970, which were counted in minutes in part. More than a
# third of 24 rows count less than half, so the fit doubts that the majority is right.

if "telef" in series:
    print("flagged:", *(f"{year:.0f}" for year in series["telef"].X[flags["telef"], 0]))
