"""The paper's figure of sparse models as an experiment: time of a fit and error against the number of rows.

The paper prints neither the numbers of rows nor how its synthetic data grow with them. Here there are 100 to 3200
training rows, each time twice as many, equispaced on [0, 20] as the 300 of the other experiments are: more rows are
more of the same function. Each repetition has a function of its own, the same for every number of rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcgp_paper.data import Problem, Uniform
from rcgp_paper.experiments.methods import run_method
from rcgp_paper.experiments.records import Config
from rcgp_paper.experiments.runner import Experiment, Options
from rcgp_paper.experiments.scores import score

__all__ = ["FIGURE_SPARSE"]

Numbers = NDArray[np.float64]

_METHODS = ("svgp", "svgp-noise", "rcsvgp", "rcsvgp-loo")
_SIZES, _QUICK_SIZES = (100, 200, 400, 800, 1600, 3200), (100, 400)

# Repetitions, as many as in the paper.
_REPETITIONS = 10

# Test observations, without outliers: at random places between the training inputs.
_TESTS = 500

_END = 20.0


def _configs(options: Options) -> list[Config]:
    """The first repetition of all sizes before the second of any; of the paper's text whatever the protocol."""
    repetitions = min(options.splits, 1 if options.quick else _REPETITIONS)
    sizes = _QUICK_SIZES if options.quick else _SIZES
    return [{"n": n, "index": index} for index in range(repetitions) for n in sizes]


def _against_n(config: Config) -> dict[str, Any]:
    """Seconds of a fit and root mean square error of each method, with √n inducing points.

    All on the same data in the same process, one after the other; which one goes first rotates with the index.
    """
    problem = _problem(config["n"], config["index"])
    inducing = round(math.sqrt(config["n"]))
    run_method("svgp", problem, inducing=inducing)  # warm: imports, caches of memory
    first = config["index"] % len(_METHODS)
    outcomes = {
        method: run_method(method, problem, inducing=inducing) for method in _METHODS[first:] + _METHODS[:first]
    }
    return {
        "inducing": inducing,
        "seconds": {method: outcomes[method].seconds for method in _METHODS},
        "rmse": {method: score(problem.test_y, outcomes[method].prediction)["rmse"] for method in _METHODS},
        "converged": {method: outcomes[method].converged for method in _METHODS},
    }


def _problem(n: int, index: int) -> Problem:
    """n training rows with 10 % uniform outliers, and test rows, of a function that is drawn anew for each index."""
    rng = np.random.default_rng(index)
    function = _Function(rng)
    test_x = rng.uniform(0.0, _END, _TESTS)
    test_y = function(test_x) + 0.1 * rng.standard_normal(_TESTS)
    x = np.linspace(0.0, _END, n)
    altered = Uniform()(x[:, None], function(x) + 0.1 * rng.standard_normal(n), rng)
    return Problem(
        train_X=altered.X,
        train_y=altered.y,
        test_X=test_x[:, None],
        test_y=test_y,
        train_rows=np.arange(n),
        test_rows=np.arange(n, n + _TESTS),
        mask=altered.mask,
        initial=None,
        source=f"generated with seed {index}",
    )


class _Function:
    """A draw from the GP of the synthetic data: squared exponential kernel, lengthscale and variance 1, on [0, 20].

    f(x) = k(x, g) L⁻ᵀ ε with L Lᵀ = k(g, g) on a grid g so fine that it determines f: the cost of n values is O(n)
    where a draw from the n x n kernel matrix has O(n³).
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.grid = np.linspace(0.0, _END, 101)
        # The grid is finer than it need be: without a little noise its kernel matrix has no Cholesky factor.
        L = np.linalg.cholesky(_kernel(self.grid, self.grid) + 1e-8 * np.eye(self.grid.size))
        self.coefficients = np.linalg.solve(L.T, rng.standard_normal(self.grid.size))

    def __call__(self, x: Numbers) -> Numbers:
        values: Numbers = _kernel(x, self.grid) @ self.coefficients
        return values


def _kernel(x: Numbers, other: Numbers) -> Numbers:
    values: Numbers = np.exp(-0.5 * (x[:, None] - other) ** 2)
    return values


FIGURE_SPARSE = Experiment(
    "figure_sparse",
    "Figure 6: sparse models with √n inducing points and 10 % outliers, against the number of rows",
    _configs,
    _against_n,
    most_jobs=1,
)
