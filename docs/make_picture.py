"""Draws the picture of the README: a plain and a robust Gaussian process on the same data with outliers.

Run ``python docs/make_picture.py``: it writes docs/images/outliers.png and prints what the picture shows.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from rcgp import RCGPRegressor

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

PICTURE = Path(__file__).parent / "images" / "outliers.png"
PLAIN, ROBUST, FLAGGED, DATA = "#d95f02", "#1f66b0", "#d0021b", "#444444"
ROWS, WRONG = 120, 24


def function(x: Numbers) -> Numbers:
    """The true function."""
    return np.asarray(np.sin(1.5 * x) + 0.25 * x - 0.5)


def made_up_data() -> tuple[Numbers, Numbers, Flags]:
    """Inputs, observations with noise of standard deviation 0.15, and which fifth of them is far off."""
    random = np.random.default_rng(4)
    x = np.sort(random.uniform(0, 10, ROWS))
    y = function(x) + 0.15 * random.standard_normal(ROWS)
    wrong = random.permutation(ROWS) < WRONG
    sign = np.where(random.random(ROWS) < 0.75, 1, -1)  # most errors are too high
    y[wrong] += sign[wrong] * random.uniform(2, 5, WRONG)
    return x, y, wrong


def draw(axis: Axes, x: Numbers, mean: Numbers, lower: Numbers, upper: Numbers, colour: str, title: str) -> None:
    """The true function, the fit and the 95 % interval of a new observation."""
    axis.fill_between(x, lower, upper, color=colour, alpha=0.18, linewidth=0)
    axis.plot(x, mean, color=colour, linewidth=2.6)
    axis.plot(x, function(x), color="black", linewidth=1.5, linestyle=(0, (4, 2.5)))
    axis.set_title(title, fontsize=13, loc="left", color=colour, weight="bold")
    axis.set(xlim=(0, 10), xlabel="x")
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Fit both, draw them side by side, print errors and flags."""
    x, y, wrong = made_up_data()
    X, grid = x[:, None], np.linspace(0, 10, 500)
    kernel = 1.0 * RBF() + WhiteKernel()
    plain = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=5, random_state=0).fit(X, y)
    robust = RCGPRegressor().fit(X, y)
    flagged = robust.outliers_
    plain_mean, plain_std = plain.predict(grid[:, None], return_std=True)
    robust_mean = np.asarray(robust.predict(grid[:, None]))
    plain_error, robust_error = (np.abs(mean - function(grid)).mean() for mean in (plain_mean, robust_mean))
    print(f"mean error: plain {plain_error:.2f}, robust {robust_error:.2f}")
    print(f"{(flagged & wrong).sum()} of {WRONG} outliers flagged, {(flagged & ~wrong).sum()} good rows")
    print(robust.noise_law_)

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), sharey=True, layout="constrained")
    low, high = plain_mean - 1.96 * plain_std, plain_mean + 1.96 * plain_std
    draw(left, grid, plain_mean, low, high, PLAIN, f"scikit-learn's GP: mean error {plain_error:.2f}")
    low, high = robust.predict_interval(grid[:, None])
    draw(right, grid, robust_mean, low, high, ROBUST, f"RCGPRegressor: mean error {robust_error:.2f}")
    left.scatter(x, y, s=18, color=DATA, linewidths=0, zorder=3)
    right.scatter(x[~flagged], y[~flagged], s=18, color=DATA, linewidths=0, zorder=3)
    right.scatter(x[flagged], y[flagged], s=48, color=FLAGGED, marker="x", linewidths=2, zorder=4)
    left.set_ylabel("y")
    for marks in (
        {"color": "black", "linestyle": (0, (4, 2.5)), "label": "true function"},
        {"color": DATA, "marker": "o", "linestyle": "", "markersize": 5, "label": "data, a fifth of them wrong"},
        {"color": FLAGGED, "marker": "x", "linestyle": "", "markeredgewidth": 2, "label": "flagged as outliers"},
    ):
        left.plot([], [], **marks)
    left.fill_between([], [], color="#999999", alpha=0.4, linewidth=0, label="95 % interval of a new observation")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main()
