"""Series whose noise varies in time, fitted with and without local noise: error, coverage by loudness, flags.

python benchmarks/series_noise.py    # two minutes; the table of docs/series.md
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import RCGPSeries
from series import FUNCTIONS, NOISE, Array, precision_recall


def _garch(n: int, random: np.random.Generator) -> Array:
    """Standard deviations that cluster: a GARCH(1, 1) process of variance one."""
    std, variance = np.empty(n), 1.0
    for i in range(n):
        std[i] = np.sqrt(variance)
        variance = 0.02 + (0.12 * random.standard_normal() ** 2 + 0.86) * variance
    return std


def _loud_and_quiet(n: int, random: np.random.Generator) -> Array:
    """Stretches of 100 to 400 values, quiet and four times as loud in turn."""
    lengths = random.integers(100, 401, n // 100)
    return np.repeat(np.where(np.arange(len(lengths)) % 2, 4.0, 1.0), lengths)[:n]


VOLATILITY: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "constant": lambda n, random: np.ones(n),
    "clusters": _garch,
    "steps": _loud_and_quiet,
    "grows": lambda n, random: np.exp(np.linspace(-1.0, 1.0, n)),
}


def compare() -> None:
    """Series of 3000 values with 3 % errors: a fit of the first 2000, judged on new values there; then a stream.

    Quiet and loud are the thirds of the values with the least and the largest standard deviation of the noise.
    """
    columns = "noise, local noise, error, coverage, quiet, loud, precision, recall, stream: coverage, quiet, loud"
    print(f"| {columns.replace(', ', ' | ')} |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, volatility in VOLATILITY.items():
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for function, draw in FUNCTIONS["judge"].items():
            for seed in range(200, 205):
                random = np.random.default_rng([seed, zlib.crc32(function.encode()), zlib.crc32(name.encode())])
                t = np.sort(random.uniform(0.0, 300.0, 3000))
                f = draw(t, random)
                f = (f - f.mean()) / f.std()
                std = NOISE * volatility(3000, random)
                y = f + std * random.standard_normal(3000)
                bad = random.random(3000) < 0.03
                y[bad] += random.choice([-1.0, 1.0], bad.sum()) * random.uniform(3.0, 9.0, bad.sum())
                fresh = f + std * random.standard_normal(3000)
                for local in found:
                    found[local].append(_with_volatility(t, y, f, std, bad, fresh, local))
        plain = np.array(found[False])[:, 0]
        for local, rows in found.items():
            values = np.array(rows)
            error = np.exp(np.log(values[:, 0] / plain).mean())
            cells = [f"{value:.3f}" for value in (error, *values[:, 1:].mean(axis=0))]
            print(f"| {name} | {'yes' if local else 'no'} | {' | '.join(cells)} |", flush=True)


def _with_volatility(
    t: Array, y: Array, f: Array, std: Array, bad: NDArray[np.bool_], fresh: Array, local: bool
) -> list[float]:
    """Error, coverage of all, quiet and loud values, precision and recall of a fit; coverages of a stream after it."""
    past, new = slice(0, 2000), slice(2000, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RCGPSeries(local_noise=local).fit(t[past], y[past])
    results = [float(np.abs(model.predict(t[past]) - f[past]).mean())]
    results += _coverages(*model.predict_interval(t[past]), fresh[past], std[past])
    results += precision_recall(model.outliers_, bad[past])
    ahead, good = model.stream().update_many(t[new], y[new]), ~bad[new]
    return results + _coverages(ahead.lower[good], ahead.upper[good], y[new][good], std[new][good])


def _coverages(lower: Array, upper: Array, y: Array, std: Array) -> list[float]:
    inside, order = (lower <= y) & (y <= upper), np.argsort(std, kind="stable")
    third = len(order) // 3
    return [float(inside[rows].mean()) for rows in (order, order[:third], order[-third:])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    compare()
