"""The paper's Bayesian optimisation as experiments: regret and clock time, with and without outliers.

Four functions, scaled as in the authors' experiment, are minimised from 5 points by 50 steps. Each evaluation, the
first five too, is an outlier with probability 0.2: larger by U(1, 2). All methods of a repetition have the same first
points and the same outliers.

GP is BoTorch's ``SingleTaskGP``, RCGP our ``SingleTaskRCGP``, both by their defaults and ``fit_gpytorch_mll``. Beside
them: RCGP as in the paper (prior mean zero, weights centred on it, c = 1 or, for Branin, 2, no priors) and the t-GP of
the other tables, which learns its degrees of freedom.

Each figure has its own runs. The table shows the runs of all figures and adds PI without outliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rcgp_paper.experiments.records import Config, Record
from rcgp_paper.experiments.runner import Experiment, Options

__all__ = ["FIGURES_BO", "FUNCTION_TITLES", "METHOD_TITLES", "TABLE_BO", "clock_time", "cumulative_regret", "longest"]

#: Names of the functions in tables.
FUNCTION_TITLES: Mapping[str, str] = MappingProxyType(
    {"camel": "six-hump camel", "branin": "Branin", "mccormick": "McCormick", "rosenbrock": "Rosenbrock"}
)

#: Names of the methods in tables.
METHOD_TITLES: Mapping[str, str] = MappingProxyType(
    {"gp": "GP", "rcgp": "RCGP", "rcgp_paper": "RCGP as in the paper", "t-gp": "t-GP"}
)

# For --quick. It includes the slow methods once, in the paper's main figure.
_QUICK_FUNCTIONS, _QUICK_METHODS = ("camel",), ("gp", "rcgp")

# Repetitions, steps and first points: as in the paper, and for --quick.
_REPETITIONS, _STEPS, _QUICK_STEPS, _FIRST = 10, 50, 2, 5

_PROBABILITY = 0.2


def _configs(acquisition: str, outliers: bool, options: Options) -> list[Config]:
    """The first repetition of all functions and methods before the second of any; the same for both protocols."""
    repetitions = min(options.splits, 1 if options.quick else _REPETITIONS)
    methods = _QUICK_METHODS if options.quick and (acquisition, outliers) != ("ucb", True) else METHOD_TITLES
    return [
        {
            "function": function,
            "acquisition": acquisition,
            "outliers": outliers,
            "method": method,
            "steps": _QUICK_STEPS if options.quick else _STEPS,
            "index": index,
        }
        for index in range(repetitions)
        for function in (_QUICK_FUNCTIONS if options.quick else FUNCTION_TITLES)
        for method in methods
    ]


def _run(config: Config) -> dict[str, Any]:
    """One method minimises one function: regret and seconds of each step."""
    # Here, because importing BoTorch is slow and changes settings of the linear algebra.
    from rcgp_paper.experiments import trials

    function = trials.FUNCTIONS[config["function"]]
    fits = {
        "gp": trials.fit_gp,
        "rcgp": trials.fit_rcgp,
        "rcgp_paper": trials.fit_rcgp_as_in_paper(function.threshold),
        "t-gp": trials.fit_student_t,
    }
    # A stream for each function and repetition. First points before outliers: both are the same for all methods.
    seed = 1000 * list(trials.FUNCTIONS).index(config["function"]) + config["index"]
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(_FIRST, 2, dtype=torch.float64, generator=generator)
    contamination = trials.Contamination(generator, probability=_PROBABILITY if config["outliers"] else 0.0)
    fit, acquisition = fits[config["method"]], config["acquisition"]
    trial = trials.minimise(function, fit, acquisition, first, config["steps"], contamination, 1000 * seed)
    regret = [value - function.minimum for value in trial.values]
    return {
        "first_regret": regret[:_FIRST],
        "regret": regret[_FIRST:],
        "fit_seconds": trial.fit_seconds,
        "acquisition_seconds": trial.acquisition_seconds,
        "failed": trial.failed,
        "converged": not trial.failed,
        "point": trial.points,
        "observed": trial.observed,
        "outlier": trial.outlier,
        "suspected": trial.suspected,
    }


def _experiment(name: str, title: str, acquisition: str, outliers: bool) -> Experiment:
    # No lambda: experiments are sent to other processes.
    return Experiment(name, title, partial(_configs, acquisition, outliers), _run)


#: The paper's three figures of Bayesian optimisation. The paper does not name the acquisition function of the third.
FIGURES_BO = (
    _experiment("figure_bo_ucb", "Figure 8: Bayesian optimisation by UCB with 20 % outliers", "ucb", True),
    _experiment("figure_bo_pi", "Appendix: Bayesian optimisation by PI with 20 % outliers", "pi", True),
    _experiment("figure_bo_clean", "Appendix: Bayesian optimisation by UCB without outliers", "ucb", False),
)
TABLE_BO = _experiment(
    "table_bo", "Bayesian optimisation in numbers: all runs of the figures, and PI without outliers", "pi", False
)


def longest(records: Sequence[Record]) -> list[Record]:
    """The runs with the most steps."""
    most = max(record.config["steps"] for record in records)
    return [record for record in records if record.config["steps"] == most]


def cumulative_regret(record: Record) -> NDArray[np.float64]:
    """After each step, the first points not counted."""
    total: NDArray[np.float64] = np.cumsum(np.asarray(record.values["regret"], dtype=np.float64))
    return total


def clock_time(record: Record) -> NDArray[np.float64]:
    """Seconds of fits and acquisition after each step."""
    parts = [np.asarray(record.values[key], dtype=np.float64) for key in ("fit_seconds", "acquisition_seconds")]
    total: NDArray[np.float64] = np.cumsum(parts[0] + parts[1])
    return total
