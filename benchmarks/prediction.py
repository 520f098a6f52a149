"""Predicting many points: time and memory against the number of points.

Run it with ``make benchmark`` or ``python benchmarks/prediction.py``. Means and variances of q points from n = 1000
training points are asked for in a process of its own for each q. Reported are the time, its ratio to the triangular
solve that variances cannot do without, and the peak of the resident set over its size before (Linux only). A q x q
matrix would take 80 GB at q = 10⁵.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import torch

from loo_objective import DIMENSIONS, data, resident_bytes
from rcgp import RCGP

TRAINING_POINTS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    print(f"n = {TRAINING_POINTS}, {DIMENSIONS} inputs, float64, {arguments.threads} threads")
    print(f"{'q':>8} {'seconds':>9} {'over solve':>11} {'peak MB':>9}")
    for q in arguments.points:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, solve, peak = pool.apply(measure, (q, arguments.threads))
        print(f"{q:>8} {seconds:>9.2f} {seconds / solve:>11.2f} {peak / 1e6:>9.0f}")


def measure(q: int, threads: int) -> tuple[float, float, int]:
    """Seconds for means and variances, seconds for the solve alone, and peak bytes."""
    torch.set_num_threads(threads)
    X, y = data(TRAINING_POINTS)
    model = RCGP(X, y)
    test_X = torch.rand(q, DIMENSIONS, dtype=torch.float64)
    model.posterior(test_X[:10]).variance  # noqa: B018  factorises, and loads every library
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # resets the peak
    before = resident_bytes("VmRSS")
    began = time.perf_counter()
    posterior = model.posterior(test_X)
    _ = posterior.mean, posterior.variance
    seconds, peak_bytes = time.perf_counter() - began, resident_bytes("VmHWM") - before
    L = torch.eye(TRAINING_POINTS, dtype=torch.float64)
    began = time.perf_counter()
    for part in torch.split(torch.rand(TRAINING_POINTS, min(q, 4096), dtype=torch.float64), 4096, dim=-1):
        torch.linalg.solve_triangular(L, part, upper=False)
    solve = (time.perf_counter() - began) * q / min(q, 4096)
    return seconds, solve, peak_bytes


if __name__ == "__main__":
    main()
