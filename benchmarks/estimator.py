"""What the estimator adds to the model: time of a fit by ``RCGPRegressor`` over that of ``RCGP`` and ``fit``.

Both choose the same hyperparameters from the same start, and are timed in turn. The estimator also checks its input,
computes leave-one-out predictions and flags rows. Then the time that importing the package takes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import RCGP, RCGPRegressor, fit

Numbers = NDArray[np.float64]


def seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def fit_model(X: Numbers, y: Numbers) -> None:
    fit(RCGP(torch.from_numpy(X), torch.from_numpy(y), mean="median"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{'rows':>6}{'model':>9}{'estimator':>11}{'ratio':>8}{'evaluations':>13}")
    for n in arguments.rows:
        random = np.random.default_rng(0)
        X = random.uniform(-2, 2, (n, 5))
        y = np.sin(X.sum(axis=1)) + 0.1 * random.standard_normal(n)
        y[:: max(n // 20, 1)] += 4.0
        bare = RCGPRegressor(weight="imq", priors=None)

        model = partial(fit_model, X, y)
        estimator = partial(bare.fit, X, y)
        for warm in (model, estimator):
            warm()
        times = [(seconds(model), seconds(estimator)) for _ in range(arguments.repeats)]
        ratio = statistics.median(after / before for before, after in times)
        before, after = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{n:6d}{before:8.3f}s{after:10.3f}s{ratio:8.3f}{bare.fit_report_.evaluations:13d}")
    code = "import time; began = time.perf_counter(); import rcgp; print(time.perf_counter() - began)"
    imports = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"\nimport rcgp: {statistics.median(imports):.2f} s (median of {len(imports)})")


if __name__ == "__main__":
    main()
