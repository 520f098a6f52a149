"""The estimator's parameters, checked and resolved: names become objects, and objects copies that a fit may change.

scikit-learn asks that a constructor stores its arguments untouched; so they are checked here, when a fit begins.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk

from rcgp.training.objectives import OBJECTIVES, Objective
from rcgp.training.search import Progress
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential, WeightFunction

__all__ = ["Recipe", "one_of", "recipe", "whole"]


@dataclass(frozen=True)
class Recipe:
    """How each output is modelled and fitted."""

    kernel: gpytorch.kernels.Kernel | sk.Kernel | None
    mean: Any
    adaptive: bool
    make_weight: Callable[[], WeightFunction]
    objective: str | Objective | None
    restarts: int
    normalize: bool
    priors: str | None
    max_iterations: int
    fit_rows: int | None
    progress: bool | Progress


def recipe(estimator: Any) -> Recipe:
    """The parameters of an ``RCGPRegressor``, or an error that names the one that is wrong."""
    one_of(estimator.centre, ("adaptive", "prior"), "centre")
    adaptive = estimator.centre == "adaptive"
    if adaptive:
        _check_nothing_chosen(estimator)
    one_of(estimator.priors, ("weak", None), "priors")
    objective = estimator.objective
    if not callable(objective):
        exact = tuple(name for name in OBJECTIVES if name != "elbo")  # that is for sparse models
        one_of(objective, (*exact, None), "objective", "or a function")
    if not isinstance(estimator.normalize, bool | np.bool_):
        raise TypeError(f"normalize must be True or False, got {estimator.normalize!r}")
    kernel = estimator.kernel
    if kernel is not None and not isinstance(kernel, gpytorch.kernels.Kernel | sk.Kernel):
        raise TypeError(f"kernel must be a kernel of GPyTorch or scikit-learn, or None, got {kernel!r}")
    mean = "median" if (adaptive or estimator.normalize) and _is(estimator.mean, "constant") else estimator.mean
    return Recipe(
        kernel=kernel,
        mean=mean,
        adaptive=adaptive,
        make_weight=_weight_maker("imq" if estimator.weight is None else estimator.weight, estimator.epsilon),
        objective=objective,
        restarts=whole(estimator.n_restarts, "n_restarts", least=0),
        normalize=bool(estimator.normalize),
        priors=estimator.priors,
        max_iterations=whole(estimator.max_iter, "max_iter", least=1),
        fit_rows=None if estimator.fit_rows is None else whole(estimator.fit_rows, "fit_rows", least=2),
        progress=estimator.progress,
    )


def _check_nothing_chosen(estimator: Any) -> None:
    """Centres, thresholds and hyperparameters are found together, which leaves no room for other choices.

    What has no say is refused, not ignored, and does not change the method: a grid over it would compare methods.
    """
    unsaid = {"weight": None, "epsilon": None, "objective": "loo", "n_restarts": 0}
    chosen = [name for name, value in unsaid.items() if not _equal(getattr(estimator, name), value)]
    if chosen:
        raise ValueError(
            f"centre='adaptive' chooses weights and hyperparameters by itself: leave {', '.join(chosen)} out, or say "
            "centre='prior' for weights centred on the prior mean"
        )


def _equal(value: Any, default: Any) -> bool:
    """Whether a parameter has its default value, as a number or text of any library."""
    return value is default or (isinstance(value, str | Real) and bool(value == default))


def _weight_maker(weight: Any, epsilon: Any) -> Callable[[], WeightFunction]:
    """What makes a new weight function for each output."""
    if epsilon is not None and (not isinstance(epsilon, Real) or not 0.0 <= float(epsilon) < 1.0):  # nor is NaN
        raise ValueError(f"epsilon must be a share in [0, 1), got {epsilon!r}")
    if epsilon is not None and (isinstance(weight, WeightFunction) or _is(weight, "constant")):
        raise ValueError(f"epsilon belongs to weight='imq' or 'se', and means nothing to {weight!r}: leave it out")
    if isinstance(weight, WeightFunction):
        return lambda: copy.deepcopy(weight)
    share = 0.05 if epsilon is None else float(epsilon)
    named: dict[str, Callable[[], WeightFunction]] = {
        "imq": lambda: InverseMultiquadric(epsilon=share),
        "se": lambda: SquaredExponential(epsilon=share),
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
