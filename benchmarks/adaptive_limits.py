"""How many outliers adaptive centring finds that are no larger than what the function does: by rows, inputs and share.

The function is sin 3x₀ + x₁² + 0.3 Σ_j x_j (j ≥ 2) on [−1, 1]^d with noise 0.1; outliers are one to four off. Counted
are draws in which at least 80 % of them are flagged, and the good rows that were flagged in all draws together.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from adaptive_bars import table
from rcgp.estimator import RCGPRegressor

SIZES = ((150, 5), (300, 5), (150, 10), (300, 10), (600, 10))
SHARES = (0.2, 0.3, 0.4)
SIDES = {"to both sides": (-1.0, 1.0), "to one side": (1.0,)}
FOUND = 0.8


def draw(rows: int, inputs: int, share: float, sides: tuple[float, ...], seed: int) -> tuple[bool, int]:
    """Whether the outliers of one draw were found, and how many good rows were flagged."""
    random = np.random.default_rng(seed)
    X = random.uniform(-1, 1, (rows, inputs))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.3 * X[:, 2:].sum(axis=1) + 0.1 * random.standard_normal(rows)
    outlying, count = np.zeros(rows, dtype=bool), round(share * rows)
    chosen = random.permutation(rows)[:count]
    outlying[chosen] = True
    y[chosen] += random.uniform(1, 4, count) * random.choice(sides, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags = RCGPRegressor().fit(X, y).outliers_
    return int((flags & outlying).sum()) >= FOUND * count, int((flags & ~outlying).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--first", type=int, default=500, help="seed of the first draw")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)
    seeds = range(arguments.first, arguments.first + arguments.draws)
    for title, sides in SIDES.items():
        lines = []
        for rows, inputs in SIZES:
            line = [f"{rows} rows, {inputs} inputs"]
            for share in SHARES:
                found, good = zip(*(draw(rows, inputs, share, sides, seed) for seed in seeds), strict=True)
                line.append(f"{sum(found)} of {len(found)}, {sum(good)}")
            lines.append(line)
            print(f"{title}, {', '.join(line)}", flush=True)
        print(f"\n{table([f'found, good rows flagged: {title}', *(f'{share:.0%}' for share in SHARES)], lines)}\n")


if __name__ == "__main__":
    main()
