"""A fitted estimator as one file, and back: all that it takes to predict, to inspect and to fit again.

The file holds the data and the hyperparameters to the bit, not the factorisation: that is recomputed at the first
prediction, by the same operations on the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
import os
from numbers import Integral, Real
from typing import Any

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from torch import Tensor, nn

from rcgp.estimator.kernels import known_kernels
from rcgp.estimator.output import Output
from rcgp.estimator.parameters import recipe
from rcgp.estimator.regressor import RCGPRegressor
from rcgp.models import RCGP
from rcgp.saving import SavedModelError, describe, read_archive, rebuild, write_archive
from rcgp.saving.attachments import build_constraint, build_prior, describe_constraint, describe_prior
from rcgp.training import AdaptiveReport, FitReport, Round
from rcgp.training.tails import Tail
from rcgp.weights import Constant, WeightFunction

__all__ = ["load", "load_with_table", "save"]

_KIND = "RCGPRegressor"
_PARTS = {"kernel": gpytorch.kernels.Kernel, "mean": gpytorch.means.Mean, "weight": WeightFunction}
_PER_ROW = ("weights", "outlier_scores", "outliers", "loo_mean", "loo_std")


def save(estimator: RCGPRegressor, path: str | os.PathLike[str], table: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator to one file, whole or not at all.

    Not kept: a ``progress`` function and a random generator given as ``random_state``, which are not part of the model.

    Args:
        estimator: fitted.
        path: the file to write; an earlier one is replaced when the new one is complete.
        table: how the training table became numbers, for those who predict from tables.

    Raises:
        SavedModelError: naming the part that cannot be saved because it is code (a function as mean or objective, a
            kernel or weight class of one's own), or why the file cannot be written. Nothing is written then.
    """
    if not hasattr(estimator, "models_"):
        raise SavedModelError("the model is not fitted yet: call fit before save")
    write_archive(path, *_contents(estimator, table))


def _contents(estimator: RCGPRegressor, table: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is written: a description and tensors."""
    tensors: dict[str, Tensor] = {}
    parameters = {name: _describe_value(value, name, tensors) for name, value in estimator.get_params(False).items()}
    names = getattr(estimator, "feature_names_in_", None)
    description = {
        "kind": _KIND,
        "parameters": parameters,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
        "outputs": [_describe_output(estimator, i, tensors) for i in range(estimator.n_outputs_)],
        "table": table,
    }
    return description, tensors


def load(path: str | os.PathLike[str]) -> RCGPRegressor:
    """Read a model that :meth:`RCGPRegressor.save` wrote. Its predictions are the same to the bit.

    Nothing in the file is executed: it holds text and numbers only.

    Args:
        path: the file.

    Returns:
        The fitted estimator.

    Raises:
        SavedModelError: for a file that is missing, damaged, of another program or of a newer version.
    """
    return load_with_table(path)[0]


def load_with_table(path: str | os.PathLike[str]) -> tuple[RCGPRegressor, Any]:
    """As :func:`load`, and what was saved with it as ``table``."""
    description, tensors = read_archive(path)
    if description.get("kind") != _KIND:
        raise SavedModelError(f"{os.fspath(path)!r} holds a {description.get('kind')!r}, not a {_KIND}")
    try:
        estimator = _rebuild_estimator(description, tensors)
        _check_estimator(estimator, tensors)
        return estimator, description.get("table")
    except SavedModelError as error:
        raise SavedModelError(f"{os.fspath(path)!r}: {error}") from error
    except Exception as error:  # a file with a good checksum may still hold nonsense
        raise SavedModelError(f"{os.fspath(path)!r} makes no sense: {error or type(error).__name__}") from error


def _check_estimator(estimator: RCGPRegressor, tensors: dict[str, Tensor]) -> None:
    """Refuse what no estimator that was fitted can be."""
    recipe(estimator)
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and (
        len(names) != estimator.n_features_in_ or not all(isinstance(name, str) for name in names)
    ):
        raise SavedModelError("its names are not those of its features")
    rows = len(np.atleast_1d(estimator.weights_))
    for model in estimator.models_:
        if model.train_X.shape[1] != estimator.n_features_in_ or len(model.train_y) > rows:
            raise SavedModelError("its data do not fit together")
        if not all(bool(value.isfinite().all()) for value in (model.noise, *model.parameters())):
            raise SavedModelError("a hyperparameter is not a finite number")
    for name in _PER_ROW:
        column = getattr(estimator, f"{name}_")
        kind = "b" if name == "outliers" else "f"
        if column.shape[0] != rows or column.dtype.kind != kind:
            raise SavedModelError(f"its {name} are not what a fit gives")
    if _contents(estimator, None)[1].keys() != tensors.keys():
        raise SavedModelError("it holds tensors that nothing in it uses")


def _describe_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A parameter of the estimator as JSON; its tensors go among the others."""
    if name == "progress":
        return bool(value) and not callable(value)
    if name == "random_state" and not isinstance(value, Integral):
        return None
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, sk.Kernel):
        return {"sklearn": _describe_sklearn(value)}
    if isinstance(value, nn.Module):
        described, held = describe(value)
        tensors.update({f"parameters.{name}.{key}": tensor for key, tensor in held.items()})
        return {"module": described}
    raise SavedModelError(f"{name}={value!r} cannot be saved: a function is code, and code is not saved")


def _rebuild_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"sklearn"}:
        return _rebuild_sklearn(value["sklearn"])
    return rebuild(value["module"], _under(f"parameters.{name}", tensors))


def _describe_sklearn(kernel: sk.Kernel) -> dict[str, Any]:
    """A kernel of scikit-learn as JSON: its class and parameters, if it is one that can be translated."""
    name = type(kernel).__name__
    if known_kernels().get(name) is not type(kernel):
        raise SavedModelError(f"the kernel {name} cannot be saved; those that can be are {', '.join(known_kernels())}")
    return {"class": name, **{key: _plain(value) for key, value in kernel.get_params(deep=False).items()}}


def _rebuild_sklearn(description: Any) -> sk.Kernel:
    values = dict(description)
    cls = known_kernels().get(values.pop("class"))
    if cls is None:
        raise SavedModelError(f"{description['class']!r} is not a kernel that can be saved")
    return cls(**{key: _unplain(value) for key, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, sk.Kernel):
        return {"kernel": _describe_sklearn(value)}
    if isinstance(value, str):
        return value
    if np.ndim(value):
        return {"array": np.asarray(value, dtype=np.float64).tolist(), "tuple": isinstance(value, tuple)}
    return {"number": float(value) if math.isfinite(value) else str(value)}


def _unplain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if "kernel" in value:
        return _rebuild_sklearn(value["kernel"])
    if "array" in value:
        return tuple(value["array"]) if value["tuple"] else np.array(value["array"])
    return float(value["number"])


def _describe_output(estimator: RCGPRegressor, index: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """One fitted model and what it said of each row."""
    model, place = estimator.models_[index], f"outputs.{index}"
    held: dict[str, Tensor] = {"train_X": model.train_X, "train_y": model.train_y, "raw_noise": model.raw_noise}
    if model.sample_weight is not None:
        held["sample_weight"] = model.sample_weight
    for name in _PER_ROW:
        column = getattr(estimator, f"{name}_")
        held[name] = torch.from_numpy(np.ascontiguousarray(column if estimator.n_outputs_ == 1 else column[:, index]))
    parts = {}
    for name in _PARTS:
        parts[name], inner = describe(getattr(model, name))
        held.update({f"{name}.{key}": tensor for key, tensor in inner.items()})
    constraint, bounds = describe_constraint(model.raw_noise_constraint, "the noise")
    held.update({f"noise_constraint.{key}": tensor for key, tensor in bounds.items()})
    prior = None
    if "noise_prior" in model._priors:
        prior, inner = describe_prior(model, "noise_prior", "the noise")
        held.update({f"noise_prior.{key}": tensor for key, tensor in inner.items()})
    tensors.update({f"{place}.{key}": tensor for key, tensor in held.items()})
    report = estimator.fit_report_ if estimator.n_outputs_ == 1 else estimator.fit_report_[index]
    return {
        **parts,
        "noise_constraint": constraint,
        "noise_prior": prior,
        "noise_is_fitted": model.raw_noise.requires_grad,
        "report": None if report is None else _describe_report(report),
    }


def _rebuild_output(description: dict[str, Any], tensors: dict[str, Tensor]) -> Output:
    kernel, mean, weight = (_rebuild_part(name, description, tensors) for name in _PARTS)
    model = RCGP(
        tensors["train_X"],
        tensors["train_y"],
        kernel=kernel,
        mean=mean,
        weight=Constant(),  # a constructor starts a trainable threshold anew
        sample_weight=tensors.get("sample_weight"),
    )
    model.weight = weight
    bounds, prior = _under("noise_constraint", tensors), _under("noise_prior", tensors)
    shape = model.raw_noise.shape
    constraint = build_constraint(description["noise_constraint"], bounds.pop, shape, "the noise")
    model.register_constraint("raw_noise", constraint)
    with torch.no_grad():
        model.raw_noise.copy_(tensors["raw_noise"])
    model.raw_noise.requires_grad_(description["noise_is_fitted"])
    if description["noise_prior"] is not None:
        build_prior(model, "noise_prior", description["noise_prior"], prior.pop, "the noise")
    report = None if description["report"] is None else _rebuild_report(description["report"])
    return Output(model, report, **{name: tensors[name] for name in _PER_ROW})


def _rebuild_part(name: str, description: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    part = rebuild(description[name], _under(name, tensors))
    if not isinstance(part, _PARTS[name]):
        raise SavedModelError(f"its {name} is a {type(part).__name__}")
    return part


def _rebuild_estimator(description: dict[str, Any], tensors: dict[str, Tensor]) -> RCGPRegressor:
    values = description["parameters"].items()
    estimator = RCGPRegressor(**{name: _rebuild_value(value, name, tensors) for name, value in values})
    estimator.n_features_in_ = int(description["n_features_in"])
    if description["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(description["feature_names_in"], dtype=object)
    outputs = [
        _rebuild_output(output, _under(f"outputs.{i}", tensors)) for i, output in enumerate(description["outputs"])
    ]
    estimator._keep(outputs)
    return estimator


def _describe_report(report: FitReport) -> dict[str, Any]:
    """The report as JSON, which has no infinities: they are written as text."""
    fields: dict[str, Any] = _with_text(dataclasses.asdict(report))
    return fields


def _with_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_text(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rebuild_report(fields: dict[str, Any]) -> FitReport:
    values = {
        **fields,
        "starts": tuple(float(value) for value in fields["starts"]),
        "hyperparameters": {key: [float(value) for value in part] for key, part in fields["hyperparameters"].items()},
    }
    if "rounds" not in fields:
        return FitReport(**values)
    values["rounds"] = tuple(Round(**{**part, "score": float(part["score"])}) for part in fields["rounds"])
    values["tail"] = Tail(**{key: float(value) for key, value in fields["tail"].items()})
    return AdaptiveReport(**values)


def _under(place: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a place, by what follows it."""
    return {key.removeprefix(f"{place}."): value for key, value in tensors.items() if key.startswith(f"{place}.")}
