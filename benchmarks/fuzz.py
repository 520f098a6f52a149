"""Random fits of absurd tables: every one must give finite predictions, or a ValueError that names non-finite input.

    python benchmarks/fuzz.py 10000

Rows 1 to 120, inputs 1 to 8, scales 1e-8 to 1e8, units of y 1e-150 to 1e150, single values to 1e300 in y and X,
constant and repeated columns and rows, rounding, offsets. Failures are printed with the seed that repeats them:
``python benchmarks/fuzz.py --seed 123``.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import RCGPRegressor

Array = NDArray[np.float64]


def table(seed: int) -> tuple[Array, Array]:
    """A random table."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(1, 121)), int(random.integers(1, 9))
    X = random.standard_normal((n, d)) * 10.0 ** random.uniform(-8, 8, d)
    y = np.sin(3 * X[:, 0] / max(float(np.abs(X[:, 0]).max()), 1e-300)) + 0.1 * random.standard_normal(n)
    kinds = random.random(10) < 0.3
    if kinds[0]:
        y = np.round(y, int(random.integers(0, 3)))
    if kinds[1]:
        X[:, int(random.integers(d))] = 7.0
    if kinds[2]:
        X[random.integers(n, size=n // 2)] = X[0]
    if kinds[3]:
        y += 10.0 ** random.uniform(0, 6)
    if kinds[4]:
        X += 10.0 ** random.uniform(0, 9)
    y *= 10.0 ** random.uniform(-150, 150)
    if kinds[5]:
        y[int(random.integers(n))] = random.choice([-1.0, 1.0]) * 10.0 ** random.uniform(0, 300)
    if kinds[6]:
        place = int(random.integers(n)), int(random.integers(d))
        X[place] = random.choice([-1.0, 1.0]) * 10.0 ** random.uniform(0, 300)
    if kinds[7]:
        y[:] = y[0]
    if kinds[8]:
        wrong = random.random(n) < 0.2
        y[wrong] *= 10.0
    if kinds[9] and d > 1:
        X[:, 1] = X[:, 0]
    return X, y


def failure(seed: int) -> str | None:
    """What is wrong with one fit; ``None`` where nothing is."""
    X, y = table(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = RCGPRegressor().fit(X, y)
            mean, std = model.predict(X, return_std=True, include_noise=True)
            lower, upper = model.predict_interval(X)
    except Exception as error:  # all that a user may see
        if isinstance(error, ValueError) and ("infinite" in str(error) or "nan" in str(error).lower()):
            return None
        return "".join(traceback.format_exception(error)[-3:])
    answers = (mean, std, lower, upper, model.weights_, model.outlier_probability_)
    return None if all(np.isfinite(part).all() for part in answers) else "a prediction is not finite"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="one fit")
    parser.add_argument("--first", type=int, default=0, help="seed of the first fit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.first, arguments.first + arguments.count) if arguments.seed is None else [arguments.seed]
    failed = 0
    for seed in seeds:
        told = failure(seed)
        if told is not None:
            failed += 1
            print(f"seed {seed}: {told}", flush=True)
    print(f"{failed} of {len(seeds)} fits failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
