"""What hangs on a parameter of a GPyTorch module: its constraint, and its prior.

GPyTorch keeps a transform as a function and the target of a prior as a closure. Functions are code and are not saved,
so the ones that can be are known by name here, and the others are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gpytorch
import torch
from gpytorch import constraints
from gpytorch.constraints.constraints import softplus
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from torch import Tensor, nn

from rcgp.models.defaults import AttributeOf, Between
from rcgp.saving.archive import SavedModelError, raw_bytes

__all__ = [
    "CONSTRAINTS",
    "PRIORS",
    "TRANSFORMS",
    "Take",
    "build_constraint",
    "build_prior",
    "describe_constraint",
    "describe_prior",
]

#: Gives the tensor of that name in a file, once; an error if there is none.
Take = Callable[[str], Tensor]

#: Constraints by name, and how each is made from a transform and its inverse, with bounds that do until they are set.
CONSTRAINTS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "Positive": (constraints.Positive, lambda *transforms: constraints.Positive(*transforms)),
    "GreaterThan": (constraints.GreaterThan, lambda *transforms: constraints.GreaterThan(0.0, *transforms)),
    "LessThan": (constraints.LessThan, lambda *transforms: constraints.LessThan(0.0, *transforms)),
    "Interval": (constraints.Interval, lambda *transforms: constraints.Interval(0.0, 1.0, *transforms)),
    "Between": (Between, lambda *transforms: Between(1.0, 2.0)),
}

#: Transforms by name, each with its inverse.
TRANSFORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softplus": (softplus, inv_softplus),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "exp": (torch.exp, torch.log),
}

#: Priors by name, and for each argument of the constructor the attribute that holds it.
PRIORS: dict[str, tuple[Any, dict[str, str]]] = {
    "GammaPrior": (gpytorch.priors.GammaPrior, {"concentration": "concentration", "rate": "rate"}),
    "HalfCauchyPrior": (gpytorch.priors.HalfCauchyPrior, {"scale": "scale"}),
    "HalfNormalPrior": (gpytorch.priors.HalfNormalPrior, {"scale": "scale"}),
    "LogNormalPrior": (gpytorch.priors.LogNormalPrior, {"loc": "loc", "scale": "scale"}),
    "NormalPrior": (gpytorch.priors.NormalPrior, {"loc": "loc", "scale": "scale"}),
    "SmoothedBoxPrior": (gpytorch.priors.SmoothedBoxPrior, {"a": "a", "b": "b", "sigma": "sigma"}),
    "UniformPrior": (gpytorch.priors.UniformPrior, {"a": "low", "b": "high"}),
}


@dataclass(frozen=True)
class _Setter:
    """The setting of an attribute to a sample of its prior, as GPyTorch's constructors have it."""

    name: str

    def __call__(self, module: gpytorch.Module, value: Tensor) -> None:
        if self.name in module._parameters:
            module.initialize(**{self.name: value})
        else:
            setattr(module, self.name, value)


def describe_constraint(constraint: nn.Module, place: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Class and transform of a constraint, and its bounds. Its initial value is not kept: it has served.

    Args:
        constraint: of a parameter.
        place: where in the model this is, for the error.
    """
    name = type(constraint).__name__
    if name not in CONSTRAINTS or type(constraint) is not CONSTRAINTS[name][0]:
        raise SavedModelError(f"{place}: {name} cannot be saved; the constraints that can be are {_names(CONSTRAINTS)}")
    transform = _transform_name(constraint)
    if transform is None and constraint._transform is not None:
        raise SavedModelError(
            f"{place}: a function is code, and code is not saved; the transforms that can be, each with its own "
            f"inverse, are {_names(TRANSFORMS)} and None"
        )
    bounds = {key: getattr(constraint, key) for key in ("lower_bound", "upper_bound")}
    return {"class": name, "transform": transform}, bounds


def _transform_name(constraint: Any) -> str | None:
    """Name of the transform of a constraint, None where it has none or is not in the table."""
    transform, inverse = constraint._transform, constraint._inv_transform
    # GPyTorch's softplus is a module: copies of a model have copies of it.
    is_copy = type(transform) is nn.Softplus and (transform.beta, transform.threshold) == (1, 20)
    if is_copy or transform is nn.functional.softplus:
        transform = softplus
    for name, pair in TRANSFORMS.items():
        if pair[0] is transform and pair[1] is inverse:
            return name
    return None


def build_constraint(node: Any, take: Take, shape: torch.Size, place: str) -> nn.Module:
    """The constraint that a file describes, for a parameter of that shape."""
    if not isinstance(node, dict) or set(node) != {"class", "transform"}:
        raise SavedModelError(f"{place}: a constraint has a class and a transform, got {node!r}")
    _, build = _row(CONSTRAINTS, node["class"], place)
    constraint = build(*((None, None) if node["transform"] is None else _row(TRANSFORMS, node["transform"], place)))
    if _transform_name(constraint) != node["transform"]:
        raise SavedModelError(f"{place}: {node['class']} does not take the transform {node['transform']!r}")
    # Set and not given to the constructor, which would round them to single precision.
    lower, upper = take("lower_bound"), take("upper_bound")
    bounds = (lower + upper).shape
    fits = len(bounds) <= len(shape) and all(b in (1, s) for b, s in zip(bounds[::-1], shape[::-1], strict=False))
    if not fits or not bool((lower < upper).all()):
        raise SavedModelError(f"{place}: the bounds do not make an interval for a parameter of shape {tuple(shape)}")
    constraint.lower_bound, constraint.upper_bound = lower, upper
    return cast(nn.Module, constraint)


def describe_prior(module: gpytorch.Module, name: str, place: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Class of a prior and its arguments.

    Args:
        module: the module on which it is registered.
        name: the name under which it is.
        place: where in the model this is, for the error.
    """
    prior, closure, _ = module._priors[name]
    kind = type(prior).__name__
    if kind not in PRIORS or type(prior) is not PRIORS[kind][0]:
        raise SavedModelError(f"{place}: {kind} cannot be saved; the priors that can be are {_names(PRIORS)}")
    if prior._transform is not None:
        raise SavedModelError(f"{place}: its transform is a function, which is code, and code is not saved")
    attribute = _attribute_under(module, name)
    if attribute is None or not _returns(module, closure, attribute):
        raise SavedModelError(
            f"{place}: its closure is code, and code is not saved; a prior can be if it is named after the attribute "
            "that it sits on, such as lengthscale_prior on lengthscale"
        )
    # log_prob uses the attributes. Transformed distributions also have copies of them as buffers, and .to() casts
    # only those: both are kept.
    tensors = {key: getattr(prior, key) for key in PRIORS[kind][1].values()}
    return {"class": kind, "validate_args": bool(prior._validate_args)}, {**dict(prior._buffers), **tensors}


def build_prior(module: gpytorch.Module, name: str, node: Any, take: Take, place: str) -> None:
    """Register the prior that a file describes on a module that has its parameters already."""
    if not isinstance(node, dict) or set(node) != {"class", "validate_args"}:
        raise SavedModelError(f"{place}: a prior has a class and validate_args, got {node!r}")
    if type(node["validate_args"]) is not bool:
        raise SavedModelError(f"{place}: validate_args must be true or false, got {node['validate_args']!r}")
    attribute = _attribute_under(module, name)
    if attribute is None:
        raise SavedModelError(f"{place}: {type(module).__name__} has no parameter for it")
    cls, arguments = _row(PRIORS, node["class"], place)
    values = {key: take(held) for key, held in arguments.items()}
    prior = cls(**values, validate_args=node["validate_args"])
    for key in set(prior._buffers) - set(arguments.values()):
        prior._buffers[key] = take(key).reshape(prior._buffers[key].shape)
    # An error now, and not in a fit, for a prior whose shape cannot go with that of its parameter.
    torch.broadcast_tensors(*values.values(), getattr(module, attribute))  # type: ignore[no-untyped-call]
    module.register_prior(name, prior, AttributeOf(attribute), _Setter(attribute))


def _attribute_under(module: nn.Module, name: str) -> str | None:
    """The attribute on which a prior of that name sits by convention, None where the module has no such parameter."""
    # GPyTorch breaks its convention in one place.
    attribute = "constant" if name == "mean_prior" else name.removesuffix("_prior")
    known = attribute != name and (attribute in module._parameters or f"raw_{attribute}" in module._parameters)
    return attribute if known else None


def _returns(module: gpytorch.Module, closure: Callable[[Any], Any], attribute: str) -> bool:
    """Whether a closure gives the value of an attribute, tried where all values differ.

    At the values that the parameters have, √l could pass for l, where l is 1.
    """
    try:
        trial = copy.deepcopy(module)
        with torch.no_grad():
            for i, parameter in enumerate(trial.parameters()):
                values = 0.2 + 0.11 * i + torch.linspace(0.0, 0.5, parameter.numel())
                parameter.copy_(values.reshape(parameter.shape))
            value, expected = closure(trial), getattr(trial, attribute)
        return bool(value.shape == expected.shape and raw_bytes(value) == raw_bytes(expected))
    except Exception:  # a stranger's function may raise anything
        return False


def _row(table: dict[str, Any], name: Any, place: str) -> Any:
    if not isinstance(name, str) or name not in table:
        raise SavedModelError(f"{place}: {name!r} is not one of {_names(table)}")
    return table[name]


def _names(table: dict[str, Any]) -> str:
    return ", ".join(table)
