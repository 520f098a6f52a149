"""The estimator's parameters, checked and resolved: names become objects, and objects copies that a fit may change.

scikit-learn asks that a constructor stores its arguments untouched; so they are checked here, when a fit begins.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk

from rcgp.training.search import Progress
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential, WeightFunction

__all__ = ["Recipe", "one_of", "recipe", "whole"]


@dataclass(frozen=True)
class Recipe:
    """How each output is modelled and fitted.

    Attributes:
        kernel, mean, normalize, priors, fit_rows, progress: as given.
        make_weight: makes a weight function for each output; ``None`` learns the noise law.
        local_noise: whether the noise may differ from place to place.
        restarts, max_iterations: of the searches.
    """

    kernel: gpytorch.kernels.Kernel | sk.Kernel | None
    mean: Any
    make_weight: Callable[[], WeightFunction] | None
    local_noise: bool
    restarts: int
    normalize: bool
    priors: str | None
    max_iterations: int
    fit_rows: int | None
    progress: bool | Progress


def recipe(estimator: Any) -> Recipe:
    """The parameters of an ``RCGPRegressor``, or an error that names the one that is wrong."""
    one_of(estimator.priors, ("weak", None), "priors")
    for name in ("normalize", "local_noise"):
        if not isinstance(getattr(estimator, name), bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {getattr(estimator, name)!r}")
    kernel = estimator.kernel
    if kernel is not None and not isinstance(kernel, gpytorch.kernels.Kernel | sk.Kernel):
        raise TypeError(f"kernel must be a kernel of GPyTorch or scikit-learn, or None, got {kernel!r}")
    return Recipe(
        kernel=kernel,
        mean=estimator.mean,
        make_weight=_weight_maker(estimator.weight),
        local_noise=bool(estimator.local_noise),
        restarts=whole(estimator.n_restarts, "n_restarts", least=0),
        normalize=bool(estimator.normalize),
        priors=estimator.priors,
        max_iterations=whole(estimator.max_iter, "max_iter", least=1),
        fit_rows=None if estimator.fit_rows is None else whole(estimator.fit_rows, "fit_rows", least=2),
        progress=estimator.progress,
    )


def _weight_maker(weight: Any) -> Callable[[], WeightFunction] | None:
    """What makes a new weight function for each output; ``None`` where the noise law is learned."""
    if isinstance(weight, WeightFunction):
        return lambda: copy.deepcopy(weight)
    named: dict[str, Callable[[], WeightFunction] | None] = {
        "learned": None,
        "imq": InverseMultiquadric,
        "se": SquaredExponential,
        "constant": Constant,
    }
    one_of(weight, tuple(named), "weight", "or a weight function of rcgp.weights")
    return named[weight]


def one_of(value: Any, names: tuple[str | None, ...], argument: str, alternative: str = "") -> None:
    """Refuse a value that is none of these names; the alternative is what the message offers besides."""
    if not any(_is(value, name) for name in names):
        listed = (", " if alternative else " or ").join([", ".join(map(repr, names[:-1])), repr(names[-1])])
        raise ValueError(f"{argument} must be {listed} {alternative}".rstrip() + f", got {value!r}")


def _is(value: Any, name: str | None) -> bool:
    return value is None if name is None else isinstance(value, str) and value == name


def whole(value: Any, argument: str, least: int) -> int:
    """A whole number of at least so much, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{argument} must be a whole number, at least {least}, got {value!r}")
    return int(value)
