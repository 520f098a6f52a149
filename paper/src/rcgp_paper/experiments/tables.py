"""The paper's tables as experiments: Table 1 (accuracy), Table 2 (fit time) and the appendix's, c by LOO and sparse."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from rcgp_paper.data import Problem, prepare, protocol_data
from rcgp_paper.experiments.methods import run_method
from rcgp_paper.experiments.paper_values import CONTAMINATIONS, DATA
from rcgp_paper.experiments.records import Config
from rcgp_paper.experiments.runner import Experiment, Options
from rcgp_paper.experiments.scores import score

__all__ = ["TABLE_1", "TABLE_2", "TABLE_C_LOO", "TABLE_SPARSE"]

_METHODS_1 = ("gp", "rcgp", "learned", "t-gp", "m-gp", "winsorized")
_METHODS_2 = ("gp", "rcgp", "learned", "t-gp", "m-gp")
_METHODS_SPARSE = ("svgp", "svgp-noise", "rcsvgp", "rcsvgp-loo")
_QUICK_DATA = ("synthetic", "yacht")

# Repetitions of RRP: a fit takes minutes.
_RRP_SPLITS = 2

# Repetitions of the table of sparse models, as many as in the paper.
_SPARSE_SPLITS = 10

# Fits behind a time, of which the median counts; a method this many times slower than the GP is fitted once.
_FITS, _SLOW = 3, 10.0


def _accuracy_configs(options: Options, methods: tuple[str, ...], contaminations: tuple[str, ...]) -> list[Config]:
    """Every cell, the first repetition of all cells before the second of any: a killed run has a whole table."""
    splits = min(options.splits, 1) if options.quick else options.splits
    return [
        {"data": data, "contamination": contamination, "method": method, "protocol": options.protocol, "index": index}
        for index in range(splits)
        for data in (_QUICK_DATA if options.quick else DATA)
        for contamination in contaminations
        for method in methods
    ]


def _problem(config: Config) -> Problem:
    return prepare(config["data"], config["contamination"], config["protocol"], config["index"])


def _data_of(config: Config) -> str | None:
    """The data set of a run; None for a configuration that is none of ours."""
    data = config.get("data")
    return protocol_data(data, config.get("protocol", "")) if data in DATA else None


def _accuracy(config: Config) -> dict[str, Any]:
    """Scores of one method on one problem."""
    problem = _problem(config)
    outcome = run_method(config["method"], problem)
    return {
        **score(problem.test_y, outcome.prediction),
        "fit_seconds": outcome.seconds,
        "evaluations": outcome.evaluations,
        "converged": outcome.converged,
        "source": problem.source,
    }


def _table_1_configs(options: Options) -> list[Config]:
    """All cells, and those of RRP after them: for few repetitions, and never quick."""
    configs = _accuracy_configs(options, _METHODS_1, CONTAMINATIONS)
    if options.quick:
        return configs
    few = dataclasses.replace(options, splits=min(options.splits, _RRP_SPLITS))
    return configs + _accuracy_configs(few, ("rrp",), CONTAMINATIONS)


def _table_c_loo_configs(options: Options) -> list[Config]:
    return _accuracy_configs(options, ("gp", "rcgp", "rcgp-c-loo"), ("clean", "focused", "asymmetric"))


def _table_sparse_configs(options: Options) -> list[Config]:
    few = dataclasses.replace(options, splits=min(options.splits, _SPARSE_SPLITS))
    return _accuracy_configs(few, _METHODS_SPARSE, ("clean", "focused", "asymmetric"))


def _table_2_configs(options: Options) -> list[Config]:
    """All methods on the same problem in the same process, one after the other: their ratios mean something.

    Meant to be run by one process at a time, so that nothing else of ours competes for the memory.
    """
    splits = min(options.splits, 1) if options.quick else min(options.splits, 10)
    return [
        {"data": data, "contamination": contamination, "protocol": options.protocol, "index": index}
        for index in range(splits)
        for data in (_QUICK_DATA if options.quick else DATA)
        for contamination in ("clean", "uniform")
    ]


def _times(config: Config) -> dict[str, Any]:
    """Seconds of a fit by each method, and its ratio to the GP's.

    The median of three fits each, made in three rounds of all methods; which one goes first rotates with the index of
    the repetition. Methods that take more than ten times as long as the GP are fitted once. A method has converged if
    all of its fits have.
    """
    problem = _problem(config)
    run_method("gp", problem)  # warm: imports, caches of memory
    first = config["index"] % len(_METHODS_2)
    measured: dict[str, list[float]] = {method: [] for method in _METHODS_2}
    converged = dict.fromkeys(_METHODS_2, True)
    for _ in range(_FITS):
        for method in _METHODS_2[first:] + _METHODS_2[:first]:
            times = measured[method]
            if not times or times[0] <= _SLOW * measured["gp"][0]:
                outcome = run_method(method, problem)
                times.append(outcome.seconds)
                converged[method] = converged[method] and outcome.converged
    seconds = {method: statistics.median(times) for method, times in measured.items()}
    return {
        "seconds": seconds,
        "ratio": {method: value / seconds["gp"] for method, value in seconds.items()},
        "converged": converged,
    }


TABLE_1 = Experiment(
    "table1",
    "Table 1: accuracy with and without outliers",
    _table_1_configs,
    _accuracy,
    data_of=_data_of,
)
TABLE_2 = Experiment(
    "table2",
    f"Table 2: time of a fit, the median of {_FITS} in rotating order (one fit where it takes {_SLOW:g} × the GP's)",
    _table_2_configs,
    _times,
    most_jobs=1,
    data_of=_data_of,
)
TABLE_C_LOO = Experiment(
    "table_c_loo",
    "Appendix: the threshold c by leave-one-out or by its rule",
    _table_c_loo_configs,
    _accuracy,
    data_of=_data_of,
)
TABLE_SPARSE = Experiment(
    "table_sparse",
    "Appendix: sparse models, with 100 inducing points",
    _table_sparse_configs,
    _accuracy,
    data_of=_data_of,
)
