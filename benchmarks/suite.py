"""Regression problems with known errors: ten real tables and ten functions, eleven kinds of errors.

The test part of every problem is clean. Half of the tables and functions are for development (``TUNE``), the other half
(``JUDGE``) for judging: every second one of each list, in alphabetical order for the tables and in the order of the
list for the functions, so that nobody chose them.
"""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["FUNCTIONS", "JUDGE", "KINDS", "SCATTERED", "TABLES", "TUNE", "Problem", "problem"]

Array = NDArray[np.float64]

#: Real tables, read from the folder ``suite`` of the data folder; the target is the last column.
TABLES = (
    "airquality", "concrete", "diamonds", "electricity", "gagurine", "housing", "mpg", "naval", "quakes", "wine_red",
)  # fmt: skip

# Rows of a table that are trained on and tested on, at most.
_TRAIN, _TEST = 500, 500


@dataclass(frozen=True)
class Problem:
    """Training rows, some of them wrong, and a clean test part.

    Attributes:
        train_X, test_X: ``n x d`` and ``q x d`` inputs.
        clean_y: ``n`` observations without errors.
        train_y: ``n`` observations with errors.
        wrong: ``n`` flags of the rows that have an error. No row has one for the kinds "none" and "t2".
        test_y: ``q`` observations.
    """

    train_X: Array
    clean_y: Array
    train_y: Array
    wrong: NDArray[np.bool_]
    test_X: Array
    test_y: Array


def problem(name: str, kind: str, split: int = 0) -> Problem:
    """One data set with one kind of errors.

    Args:
        name: of a table or function.
        kind: of errors, one of :data:`KINDS`.
        split: number of the random split. The rows are the same for all kinds of errors.
    """
    rows = (_table if name in TABLES else _sampled)(name, _random(name, "rows", split))
    if kind == "none":
        return rows
    y, wrong = KINDS[kind](rows, _random(name, kind, split))
    return replace(rows, train_y=y, wrong=wrong)


def _random(*key: object) -> np.random.Generator:
    """A generator that depends on these words alone."""
    return np.random.default_rng([zlib.crc32(str(part).encode()) for part in key])


def _table(name: str, random: np.random.Generator) -> Problem:
    home = Path(os.environ.get("RCGP_DATA_HOME", "../shared/data"))
    with open(home / "suite" / f"{name}.csv", newline="") as file:
        values = np.array(list(csv.reader(file))[1:], dtype=np.float64)
    values = values[random.permutation(len(values))]
    train = min(_TRAIN, int(0.8 * len(values)))
    X, y = values[:, :-1], values[:, -1]
    return _clean(X[:train], y[:train], X[train : train + _TEST], y[train : train + _TEST])


def _clean(train_X: Array, train_y: Array, test_X: Array, test_y: Array) -> Problem:
    return Problem(train_X, train_y, train_y, np.zeros(len(train_y), dtype=bool), test_X, test_y)


@dataclass(frozen=True)
class _Function:
    """A function of ``d`` inputs, uniform on a box, observed ``rows`` times with normal noise."""

    value: Callable[[Array], Array]
    box: tuple[tuple[float, float], ...]
    noise: Callable[[Array], Array]
    rows: int = 200


def _sampled(name: str, random: np.random.Generator) -> Problem:
    function = FUNCTIONS[name]
    low, high = np.array(function.box).T

    def draw(count: int) -> tuple[Array, Array]:
        X = low + (high - low) * random.random((count, len(low)))
        return X, function.value(X) + function.noise(X) * random.standard_normal(count)

    return _clean(*draw(function.rows), *draw(_TEST))


def _level(sd: float) -> Callable[[Array], Array]:
    return lambda X: np.full(len(X), sd)


def _friedman1(X: Array) -> Array:
    return 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


def _impedance(X: Array) -> tuple[Array, Array]:
    return X[:, 0], X[:, 1] * X[:, 2] - 1 / (X[:, 1] * X[:, 3])


def _friedman2(X: Array) -> Array:
    resistance, reactance = _impedance(X)
    return np.hypot(resistance, reactance)


def _friedman3(X: Array) -> Array:
    resistance, reactance = _impedance(X)
    return np.arctan2(reactance, resistance)


_JUMPS = np.array([0.1, 0.13, 0.15, 0.23, 0.25, 0.4, 0.44, 0.65, 0.76, 0.78, 0.81])


def _blocks(X: Array) -> Array:
    heights = np.array([4, -5, 3, -4, 5, -4.2, 2.1, 4.3, -3.1, 2.1, -4.2])
    f: Array = 2.0 * (heights * (1 + np.sign(X - _JUMPS)) / 2).sum(axis=1)
    return f


def _bumps(X: Array) -> Array:
    heights = np.array([4, 5, 3, 4, 5, 4.2, 2.1, 4.3, 3.1, 5.1, 4.2])
    widths = np.array([0.005, 0.005, 0.006, 0.01, 0.01, 0.03, 0.01, 0.01, 0.005, 0.008, 0.005])
    f: Array = 4.0 * (heights * (1 + np.abs((X - _JUMPS) / widths)) ** -4.0).sum(axis=1)
    return f


def _heavisine(X: Array) -> Array:
    x = X[:, 0]
    return 4 * np.sin(4 * np.pi * x) - np.sign(x - 0.3) - np.sign(0.72 - x)


def _doppler(X: Array) -> Array:
    x = X[:, 0]
    return 20 * np.sqrt(x * (1 - x)) * np.sin(2.1 * np.pi / (x + 0.05))


def _neal(X: Array) -> Array:
    x = X[:, 0]
    return 0.3 + 0.4 * x + 0.5 * np.sin(2.7 * x) + 1.1 / (1 + x**2)


def _eight(X: Array) -> Array:
    return np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + np.exp(-X[:, 3]) + 0.5 * X[:, 4] - 0.3 * X[:, 5] ** 2


_UNIT = ((0.0, 1.0),)
_CIRCUIT = ((0.0, 100.0), (40 * np.pi, 560 * np.pi), (0.0, 1.0), (1.0, 11.0))

#: Friedman's functions, those of Donoho and Johnstone, Neal's, one whose noise grows, and eight inputs with 40 rows.
FUNCTIONS = {
    "friedman1": _Function(_friedman1, 10 * _UNIT, _level(1.0)),
    "friedman2": _Function(_friedman2, _CIRCUIT, _level(125.0)),
    "friedman3": _Function(_friedman3, _CIRCUIT, _level(0.1)),
    "blocks": _Function(_blocks, _UNIT, _level(1.0), 256),
    "bumps": _Function(_bumps, _UNIT, _level(1.0), 256),
    "heavisine": _Function(_heavisine, _UNIT, _level(0.5), 256),
    "doppler": _Function(_doppler, _UNIT, _level(1.0), 256),
    "neal": _Function(_neal, ((-3.0, 3.0),), _level(0.1), 60),
    "growing_noise": _Function(lambda X: np.sin(6 * X[:, 0]), _UNIT, lambda X: 0.02 + 0.6 * X[:, 0] ** 2),
    "eight_inputs": _Function(_eight, 8 * _UNIT, _level(0.05), 40),
}

#: The half to develop on, and the half to judge with.
TUNE = (*TABLES[::2], *list(FUNCTIONS)[::2])
JUDGE = (*TABLES[1::2], *list(FUNCTIONS)[1::2])

Errors = Callable[[Problem, np.random.Generator], tuple[Array, NDArray[np.bool_]]]


def _chosen(rows: Problem, share: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Random rows, a share of all."""
    wrong = np.zeros(len(rows.clean_y), dtype=bool)
    wrong[random.permutation(len(wrong))[: round(share * len(wrong))]] = True
    return wrong


def _shifted(share: float, low: float, high: float, sides: int = 2) -> Errors:
    """Errors of so many standard deviations of y, to both sides or to a random one."""

    def errors(rows: Problem, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
        wrong, sd = _chosen(rows, share, random), rows.clean_y.std()
        side = np.where(random.random(len(wrong)) < 0.5, -1.0, 1.0) if sides == 2 else random.choice([-1.0, 1.0])
        return rows.clean_y + wrong * side * sd * random.uniform(low, high, len(wrong)), wrong

    return errors


def _heavy_tails(rows: Problem, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    noise = 0.2 * rows.clean_y.std() * random.standard_t(2.0, len(rows.clean_y))
    return rows.clean_y + noise, np.zeros(len(noise), dtype=bool)


def _decimal(rows: Problem, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    wrong = _chosen(rows, 0.10, random)
    return np.where(wrong, 10.0 * rows.clean_y, rows.clean_y), wrong


def _sentinel(rows: Problem, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    wrong = _chosen(rows, 0.10, random)
    return np.where(wrong, -999.0, rows.clean_y), wrong


def _swapped(rows: Problem, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    wrong, y = _chosen(rows, 0.15, random), rows.clean_y.copy()
    y[wrong] = random.permutation(y[wrong])
    return y, wrong & (y != rows.clean_y)


def _cluster(rows: Problem, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    X = (rows.train_X - rows.train_X.mean(axis=0)) / np.maximum(rows.train_X.std(axis=0), 1e-300)
    distance = np.square(X - X[random.integers(len(X))]).sum(axis=1)
    wrong = np.zeros(len(X), dtype=bool)
    wrong[np.argsort(distance)[: round(0.07 * len(X))]] = True
    shift = random.choice([-1.0, 1.0]) * rows.clean_y.std() * random.uniform(5.0, 7.0, len(X))
    return rows.clean_y + wrong * shift, wrong


#: The kinds of errors; standard deviations are those of y.
KINDS: dict[str, Errors] = {
    "none": lambda rows, random: (rows.clean_y, rows.wrong),
    "two-sided 15 %": _shifted(0.15, 3.0, 9.0),
    "one-sided 15 %": _shifted(0.15, 3.0, 9.0, sides=1),
    "mild 15 %": _shifted(0.15, 1.0, 3.0),
    "two-sided 35 %": _shifted(0.35, 3.0, 9.0),
    "t2 noise": _heavy_tails,
    "gross 5 %": _shifted(0.05, 1e6, 1e6),
    "decimal 10 %": _decimal,
    "sentinel 10 %": _sentinel,
    "swapped 15 %": _swapped,
    "cluster 7 %": _cluster,
}

#: Kinds whose errors lie anywhere and can be told from good rows.
SCATTERED = tuple(kind for kind in KINDS if kind not in ("none", "t2 noise", "swapped 15 %", "cluster 7 %"))
