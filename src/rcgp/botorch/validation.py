"""Checks of arguments, with BoTorch's error types: each message names what is wrong, where, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from rcgp.models.validation import check_finite
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential, WeightFunction

__all__ = [
    "check_fixed_noise",
    "check_likelihood",
    "check_long_format",
    "check_observations",
    "check_outputs",
    "check_tasks",
    "check_test_inputs",
    "check_training_data",
    "check_weight",
]

_WEIGHTS: Mapping[str, Callable[[], WeightFunction] | None] = MappingProxyType(
    {"learned": None, "imq": InverseMultiquadric, "se": SquaredExponential, "constant": Constant}
)


def check_weight(weight: Any) -> WeightFunction | None:
    """The weight function given by name or as such, ``None`` for a learned noise law; raises for anything else."""
    if isinstance(weight, WeightFunction):
        return weight
    if not isinstance(weight, str) or weight not in _WEIGHTS:
        listed = ", ".join(f'"{name}"' for name in _WEIGHTS)
        raise ValueError(f"weight must be {listed} or a weight function of rcgp.weights, got {weight!r}")
    make = _WEIGHTS[weight]
    return None if make is None else make()


def check_likelihood(
    likelihood: Any, known: Sequence[type] = (GaussianLikelihood, FixedNoiseGaussianLikelihood)
) -> None:
    """Raise unless a likelihood is ``None`` or of a known, Gaussian kind."""
    # What a subclass adds, such as support for missing observations, would have no effect.
    if likelihood is not None and type(likelihood) not in known:
        names = [kind.__name__ for kind in known]
        raise TypeError(
            f"likelihood must be a {', '.join(names[:-1])} or {names[-1]} of GPyTorch, got "
            f"{type(likelihood).__name__}: outliers are for the weights, so that the posterior stays in closed form"
        )
    if isinstance(likelihood, FixedNoiseGaussianLikelihood) and likelihood.second_noise_covar is not None:
        raise ValueError(
            "likelihood has learn_additional_noise=True, but noise is either known or learned: leave that out, or use "
            "a GaussianLikelihood"
        )


def check_tasks(tasks: Collection[float], known: Collection[int]) -> None:
    """Raise unless tasks are named and known."""
    unknown = [task for task in tasks if task not in known]
    if unknown or not tasks:
        given = f"{unknown[0]:g} is none of them" if unknown else "none is given"
        raise ValueError(f"the tasks of the model are {sorted(known)}, but {given}")


def check_long_format(X: Tensor, Y: Tensor, task_feature: int) -> None:
    """Raise unless each row has one observation, and a whole number in the column of the task."""
    if Y.shape[-1] != 1:
        raise BotorchTensorDimensionError(
            f"train_Y must have shape n x 1, one observation in each row, got {tuple(Y.shape)}: repeat a row of "
            "train_X for each task that is observed there"
        )
    if -X.shape[-1] < task_feature < X.shape[-1]:  # else BoTorch refuses it
        task = X[..., task_feature]
        wrong = (task != task.round()) | (task < 0)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, -1])
            raise InputDataError(
                f"column {task_feature} of train_X must hold tasks, whole numbers from 0 on, got "
                f"{float(task[..., row]):g} in row {row}"
            )


def check_fixed_noise(likelihood: Any, y: Tensor) -> None:
    """Raise unless known noises of a likelihood have the shape of the observations, ``... x n``."""
    if isinstance(likelihood, FixedNoiseGaussianLikelihood) and likelihood.noise.shape != y.shape:
        raise BotorchTensorDimensionError(
            f"the noise of likelihood must have the shape of the observations, {tuple(y.shape)} with outputs before "
            f"rows, got {tuple(likelihood.noise.shape)}"
        )


def check_training_data(X: Tensor, Y: Tensor, Yvar: Tensor | None, after: str = "") -> None:
    """Raise unless inputs and observations have matching shapes and are finite."""
    given = {"train_X": X, "train_Y": Y} if Yvar is None else {"train_X": X, "train_Y": Y, "train_Yvar": Yvar}
    for name, values in given.items():
        if not isinstance(values, Tensor):
            raise InputDataError(f"{name} must be a tensor, got {type(values).__name__}")
    if X.ndim < 2 or Y.ndim != X.ndim or X.shape[:-1] != Y.shape[:-1]:
        hint = "; use train_Y.unsqueeze(-1)" if Y.shape == X.shape[:-1] else ""
        raise BotorchTensorDimensionError(
            f"train_X must have shape ... x n x d and train_Y ... x n x m, got {tuple(X.shape)} and "
            f"{tuple(Y.shape)}{hint}"
        )
    if Yvar is not None and Yvar.shape != Y.shape:
        raise BotorchTensorDimensionError(
            f"train_Yvar must have the shape of train_Y, {tuple(Y.shape)}, got {tuple(Yvar.shape)}"
        )
    if X.shape[-2] == 0 or X.shape[-1] == 0:
        raise BotorchTensorDimensionError(f"train_X is empty: its shape is {tuple(X.shape)}")
    for name, values in given.items():
        _check_finite(values, name + after)
    if Yvar is not None and not bool((Yvar > 0).all()):
        row = int((Yvar <= 0).nonzero()[0, -2])
        raise InputDataError(f"train_Yvar must be positive, but is not in row {row}")


def check_observations(X: Tensor, Y: Tensor, model: Any, m: int, columns: int | None = None) -> None:
    """Raise unless new observations of m outputs are finite and have the shapes of a model, or that many columns."""
    d = model.train_inputs[0].shape[-1] if columns is None else columns
    if not hasattr(model, "input_transform") and X.shape[-1] != d:
        raise BotorchTensorDimensionError(f"X must have shape ... x n' x {d}, got {tuple(X.shape)}")
    if Y.shape[-2:] != torch.Size([X.shape[-2], m]):
        raise BotorchTensorDimensionError(
            f"Y must have shape ... x {X.shape[-2]} x {m}, a row for each of X and {m} outputs, got {tuple(Y.shape)}"
        )
    _check_finite(X.detach(), "X")
    _check_finite(Y.detach(), "Y")


def check_test_inputs(X: Tensor, train_X: Tensor) -> Tensor:
    """Test inputs, checked for the columns of the training inputs."""
    if X.ndim < 2 or X.shape[-1] != train_X.shape[-1]:
        raise BotorchTensorDimensionError(
            f"X must have shape ... x q x {train_X.shape[-1]} like the training inputs, got {tuple(X.shape)}"
        )
    return X


def check_outputs(indices: Sequence[int] | None, outputs: int, name: str) -> None:
    """Raise if the list is empty or an output does not exist."""
    if indices is not None and len(indices) == 0:
        raise ValueError(f"{name} is empty: it must name at least one of {outputs} outputs")
    for index in indices or ():
        if not -outputs <= index < outputs:
            raise IndexError(f"{name} has {index}, but the model has {outputs} output{'s'[: outputs > 1]}")


def _check_finite(values: Tensor, name: str) -> None:
    try:
        check_finite(values, name)
    except ValueError as error:
        raise InputDataError(str(error)) from None
