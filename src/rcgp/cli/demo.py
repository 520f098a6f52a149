"""The demonstration: a plain and a robust GP on made-up data with outliers, a table and a figure."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from rcgp.cli.results import number, print_columns, print_rows, suspicion
from rcgp.estimator import FLAG_RULE, NoiseLawWarning, RCGPRegressor
from rcgp.saving import write_atomically

__all__ = ["draw", "made_up_data", "run_demo"]

Numbers = NDArray[np.float64]

#: Half the width of a normal 95 % interval in standard deviations.
_NORMAL_95 = 1.959963984540054

_COLOURS = {"GP": "#4daf4a", "RCGP": "#377eb8"}


def made_up_data() -> tuple[pd.DataFrame, Numbers, NDArray[np.bool_]]:
    """A table of x and y, the true function, and which rows are outliers.

    The paper's synthetic setting: a draw from a GP, noise of standard deviation 0.1, and a tenth of the rows moved by 3
    to 9 standard deviations of y.
    """
    random, n = np.random.default_rng(7), 300
    x = np.linspace(0, 20, n)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-8 * np.eye(n)
    truth = np.linalg.cholesky(K) @ random.standard_normal(n)
    y = truth + 0.1 * random.standard_normal(n)
    outlying = np.zeros(n, dtype=bool)
    outlying[random.permutation(n)[: n // 10]] = True
    size = random.uniform(3, 9, n) * random.choice([-1, 1], n) * y.std()
    return pd.DataFrame({"x": x, "y": np.where(outlying, y + size, y)}), truth, outlying


def run_demo(folder: Path, console: Console) -> None:
    """Fit both models, print how they compare, and write the data and a figure to a folder."""
    import matplotlib.figure  # noqa: F401 (if it is missing, fail before the fits)

    table, truth, outlying = made_up_data()
    table.index += 1  # rows are numbered as in the file
    X, y = table[["x"]], table["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)  # about the plain GP
        models = {"GP": RCGPRegressor(weight="constant").fit(X, y), "RCGP": RCGPRegressor().fit(X, y)}
    folder.mkdir(parents=True, exist_ok=True)  # before printing, which a closed pipe ends
    write_atomically(folder / "demo.csv", table.to_csv(index=False).encode())
    draw(table, truth, models, folder / "demo.png")
    console.print(f"{len(y)} points, {outlying.sum()} of them outliers; errors against the true function\n")
    lines, widths = [["", "mean error", "rms error", "true f in 95 % band", "its width", "noise sd", "seconds"]], []
    for name, model in models.items():
        mean, std = model.predict(X, return_std=True)
        widths.append(2 * _NORMAL_95 * std.mean())
        error = np.abs(mean - truth)
        covered, seconds = f"{(error < _NORMAL_95 * std).mean():.1%}", f"{model.fit_report_.seconds:.2f}"
        numbers = (error.mean(), np.sqrt((error**2).mean()), widths[-1], float(np.median(model.noise_std(X))))
        mean_error, rms_error, width, noise = map(number, numbers)
        lines.append([name, mean_error, rms_error, covered, width, noise, seconds])
    print_columns(lines, console, right=range(1, len(lines[0])), head=True)
    console.print(
        f"\nThe GP's band covers the function because it is {widths[0] / widths[1]:.0f} times as wide. Errors along a "
        "curve are correlated, so the coverage of a narrow band varies around 95 % from one data set to the next.",
        soft_wrap=True,
    )
    law, flagged = models["RCGP"].noise_law_, models["RCGP"].outliers_
    console.print(f"\n{str(law).splitlines()[0]}", soft_wrap=True)
    found = f"{flagged.sum()} rows flagged, {(flagged & outlying).sum()} of them outliers ({FLAG_RULE})."
    console.print(f"{found}\n\nThe most suspicious:", soft_wrap=True)
    print_rows(suspicion(models["RCGP"], y).head(10), console)
    for line in (
        f"\nfigure: {folder / 'demo.png'}",
        f"data:   {folder / 'demo.csv'}",
        f"next:   rcgp report {folder / 'demo.csv'} --target y --output {folder / 'report.html'}",
    ):
        console.print(line, soft_wrap=True, markup=False)


def draw(table: pd.DataFrame, truth: Numbers, models: dict[str, RCGPRegressor], path: Path) -> None:
    """Both fits with their bands, and the weight of each point below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    x, y = table["x"].to_numpy(), table["y"].to_numpy()
    low, high = float(truth.min()) - 2.0, float(truth.max()) + 2.0
    for marker, shown in (("o", (y > low) & (y < high)), ("^", y >= high), ("v", y <= low)):
        height = y[shown].clip(low + 0.1, high - 0.1)  # points beyond the frame are drawn at its edge
        top.scatter(x[shown], height, s=9 if marker == "o" else 22, marker=marker, color="#555555", linewidths=0)
    top.plot(x, truth, color="black", linewidth=1, linestyle="--", label="truth")
    for name, model in models.items():
        mean, std = model.predict(table[["x"]], return_std=True)
        top.plot(x, mean, color=_COLOURS[name], label=name)
        half = _NORMAL_95 * std
        top.fill_between(x, mean - half, mean + half, color=_COLOURS[name], alpha=0.2, linewidth=0)
    top.set(ylabel="y", ylim=(low, high))
    top.legend(loc="lower left", ncols=3, frameon=False)
    top.set_title("10 % outliers (most beyond the frame): a plain and a robust conjugate GP, with bands of 95 % for f")
    weights = models["RCGP"].weights_
    bottom.bar(x, weights, width=0.07, color=_COLOURS["RCGP"])
    bottom.set(xlabel="x", ylabel="weight", ylim=(0, 1.05 * max(1.0, float(weights.max()))))
    figure.savefig(path, dpi=120)
