"""Kernels, means and weight functions as a JSON tree and named tensors, and back.

The tree holds the class of each module and its plain values; every fitted number is a tensor under its name in
``state_dict``. Only what :mod:`rcgp.saving.recipes` lists is described or built: functions are code, and code is not
saved.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, cast

import gpytorch
import torch
from gpytorch.constraints.constraints import softplus
from torch import Tensor, nn

from rcgp.models.defaults import AttributeOf, SetAttribute
from rcgp.saving.archive import SavedModelError, raw_bytes
from rcgp.saving.recipes import CONSTRAINTS, DERIVED, FAMILIES, PRIORS, RECIPES, TRANSFORMS, Recipe, check_arguments

__all__ = ["build_constraint", "build_prior", "describe", "describe_constraint", "describe_prior", "rebuild"]

#: JSON and tensors of a part.
Described = tuple[dict[str, Any], dict[str, Tensor]]

#: Returns the tensor of that name in a file, once; raises an error if it is missing.
Take = Callable[[str], Tensor]

#: Limit on the parts of a tree: parts may be shared, so a small file could describe a huge tree.
_MOST_PARTS = 100_000


def describe(module: nn.Module) -> Described:
    """A kernel, mean or weight function as plain values and tensors; :func:`rebuild` reverses it.

    Constraints, priors, ``requires_grad`` and shared parts are kept. Caches, initial values of constraints and the
    sharing of parameters between different modules (each gets its value) are not.

    Returns:
        A description in JSON values, and copies of the tensors on the CPU, by their names in ``state_dict``.

    Raises:
        SavedModelError: naming the part, if it or anything on it is code: a user's class or function.
    """
    noun = next((word for family, word in FAMILIES.items() if isinstance(module, family)), None)
    if noun is None:
        raise SavedModelError(f"a {type(module).__name__} is neither a kernel nor a mean nor a weight function")
    writer = _Writer(noun)
    try:
        description = writer.node(module, "")
    except RecursionError as error:
        raise SavedModelError(f"the {noun} is nested too deeply to be saved") from error
    try:
        _check_same(module, _assemble(description, writer.tensors))  # refuse now what could not be read later
    except Exception as error:
        raise SavedModelError(f"the {noun} cannot be saved: {_reason(error)}") from error
    return description, writer.tensors


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """The module that :func:`describe` described, equal to the bit. Only classes of the tables are built.

    Each tensor must be used; the module gets copies.

    Raises:
        SavedModelError: for a description that makes no sense, and for missing, misshapen or unused tensors.
    """
    try:
        return _assemble(description, tensors)
    except Exception as error:  # constructors may raise anything for nonsense in a file
        raise SavedModelError(f"the saved model makes no sense: {_reason(error)}") from error


def _assemble(description: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """The module, or any error."""
    reader = _Reader(tensors)
    with torch.random.fork_rng(devices=[]):  # some constructors draw random numbers
        module = reader.module(description, "")
    if reader.unused:
        raise SavedModelError(f"nothing in it uses the tensor {min(reader.unused)!r}")
    surplus = itertools.islice(module.named_modules(remove_duplicate=False), _MOST_PARTS, None)
    if next(surplus, None) is not None:
        raise SavedModelError(f"it has more than {_MOST_PARTS} parts")
    return module


class _Writer:
    """Describes the modules of a tree and collects their tensors."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.tensors: dict[str, Tensor] = {}
        self._paths: dict[nn.Module, str] = {}

    def node(self, module: nn.Module, path: str) -> dict[str, Any]:
        """The description of a module and all its parts."""
        if module in self._paths:
            return {"same_as": self._paths[module]}
        self._paths[module] = path
        place = f"the {self.noun}'s part {path}" if path else f"the {self.noun}"
        recipe = self._recipe(module, place)
        if len(getattr(module, "batch_shape", ())) > 0:
            raise SavedModelError(f"{place}: {type(module).__name__} with a batch shape cannot be saved")
        arguments = check_arguments(recipe, {key: read(module) for key, read in recipe.arguments.items()}, place)
        shapes = recipe.shapes(arguments)
        own = {name: getattr(module, name) for name in shapes}
        for name, value in own.items():
            if value.shape != shapes[name]:
                wanted, got = shapes[name], tuple(value.shape)
                raise SavedModelError(f"{place}: {name} must have shape {wanted} to be saved, got {got}")
        self._keep(path, own)
        node: dict[str, Any] = {
            "class": type(module).__name__,
            "arguments": arguments,
            "requires_grad": {key: part.requires_grad for key, part in own.items() if isinstance(part, nn.Parameter)},
            "constraints": {},
            "priors": {},
            "parts": [self.node(part, _join(path, name)) for name, part in _parts(recipe, module)],
        }
        for name, constraint in getattr(module, "_constraints", {}).items():
            node["constraints"][name], bounds = describe_constraint(constraint, f"{place}, {name}")
            self._keep(_join(path, name), bounds)
        for name in getattr(module, "_priors", {}):
            node["priors"][name], held = describe_prior(module, name, f"{place}, {name}")
            self._keep(_join(path, name), held)
        return node

    def _recipe(self, module: nn.Module, place: str) -> Recipe:
        name = type(module).__name__
        recipe = RECIPES.get(name)
        if recipe is None or type(module) is not recipe.cls:
            known = [row.cls.__name__ for row in RECIPES.values() if FAMILIES[row.family] == self.noun]
            foreign = type(module).__module__.split(".")[0] != "gpytorch"
            why = "your own functions and classes are code, and code is not saved; " if foreign else ""
            if name in ("MultitaskKernel", "LCMKernel"):
                why = "outputs are correlated in the same way by a kernel of one output, such as RBFKernel(); "
            raise SavedModelError(f"{place}: {name} cannot be saved: {why}what can be: {', '.join(known)}")
        return recipe

    def _keep(self, path: str, tensors: dict[str, Tensor]) -> None:
        for name, value in tensors.items():
            self.tensors[_join(path, name)] = value.detach().cpu().clone(memory_format=torch.contiguous_format)


class _Reader:
    """Builds the modules of a description, each with its tensors."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.unused = dict(tensors)
        self._built: dict[str, nn.Module] = {}

    def module(self, node: Any, path: str) -> nn.Module:
        """The module that a node describes."""
        place = f"part {path}" if path else "the outermost part"
        if isinstance(node, dict) and set(node) == {"same_as"}:
            if not isinstance(node["same_as"], str) or node["same_as"] not in self._built:
                raise SavedModelError(f"{place} refers to {node['same_as']!r}, which does not exist")
            return self._built[node["same_as"]]
        fields = {"class", "arguments", "requires_grad", "constraints", "priors", "parts"}
        if not isinstance(node, dict) or set(node) != fields:
            raise SavedModelError(f"{place} must be described by {', '.join(sorted(fields))}")
        recipe = RECIPES.get(node["class"]) if isinstance(node["class"], str) else None
        if recipe is None:
            raise SavedModelError(f"{place} names the class {node['class']!r}, which cannot be saved")
        arguments = check_arguments(recipe, node["arguments"], place)
        # Taken before anything is built, so that no file requests more memory than it fills.
        own = {
            name: self._take(_join(path, name), shape, integer=name == "active_dims")
            for name, shape in recipe.shapes(arguments).items()
        }
        module = recipe.build(arguments, self._parts(recipe, node["parts"], path, place))
        self._set_tensors(module, own, node["requires_grad"], place)
        self._attach(module, node["constraints"], node["priors"], path, place)
        self._built[path] = module
        return module

    def _parts(self, recipe: Recipe, nodes: Any, path: str, place: str) -> list[nn.Module]:
        count = len(nodes) if isinstance(nodes, list) else -1
        if not (count >= 1 if recipe.many else count == (recipe.part is not None)):
            raise SavedModelError(f"{place}: {recipe.cls.__name__} does not have {nodes!r:.200} as its parts")
        names = [f"{recipe.part}.{i}" if recipe.many else str(recipe.part) for i in range(count)]
        parts = [self.module(node, _join(path, name)) for name, node in zip(names, nodes, strict=True)]
        if not all(isinstance(part, recipe.family) for part in parts):
            raise SavedModelError(f"{place}: every part of {recipe.cls.__name__} must be a {FAMILIES[recipe.family]}")
        return parts

    def _set_tensors(self, module: nn.Module, own: dict[str, Tensor], requires_grad: Any, place: str) -> None:
        parameters = {name for name, _ in module.named_parameters(recurse=False)}
        known = isinstance(requires_grad, dict) and set(requires_grad) == parameters
        if not known or not all(type(value) is bool for value in requires_grad.values()):
            raise SavedModelError(f"{place}: requires_grad must be given as true or false for {sorted(parameters)}")
        for name, value in own.items():
            setattr(module, name, nn.Parameter(value, requires_grad[name]) if name in parameters else value)

    def _attach(self, module: nn.Module, constraints: Any, priors: Any, path: str, place: str) -> None:
        """Register the constraints and priors."""
        if not isinstance(constraints, dict) or not isinstance(priors, dict):
            raise SavedModelError(f"{place}: constraints and priors must be given by name")
        if (constraints or priors) and not hasattr(module, "_constraints"):
            raise SavedModelError(f"{place}: {type(module).__name__} has neither constraints nor priors")
        if not set(getattr(module, "_constraints", {})) <= set(constraints):
            raise SavedModelError(f"{place}: a constraint is missing")
        for name, node in constraints.items():
            parameter = module._parameters.get(name.removesuffix("_constraint"))
            if parameter is None or not name.endswith("_constraint"):
                raise SavedModelError(f"{place}: {name!r} does not belong to a parameter")
            constraint = build_constraint(node, self._taker(path, name), parameter.shape, f"{place}, {name}")
            module.register_constraint(name.removesuffix("_constraint"), constraint)  # type: ignore[operator]
        for name, node in priors.items():
            build_prior(module, name, node, self._taker(path, name), f"{place}, {name}")

    def _taker(self, path: str, name: str) -> Take:
        return lambda key: self._take(_join(_join(path, name), key))

    def _take(self, name: str, shape: tuple[int, ...] | None = None, integer: bool = False) -> Tensor:
        """A copy of the tensor of that name, which then counts as used."""
        if name not in self.unused:
            raise SavedModelError(f"the tensor {name!r} is missing")
        value = self.unused.pop(name)
        if shape is not None and value.shape != shape:
            raise SavedModelError(f"the tensor {name!r} must have shape {shape}, got {tuple(value.shape)}")
        columns = value.dtype in (torch.int64, torch.int32) and bool((value >= 0).all())
        if not (columns if integer else value.is_floating_point()):
            raise SavedModelError(f"the tensor {name!r} must hold {'columns' if integer else 'real numbers'}")
        return value.detach().clone()


def _parts(recipe: Recipe, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Name and module of each part."""
    if recipe.part is None:
        return []
    held: Any = getattr(module, recipe.part)
    return [(f"{recipe.part}.{i}", part) for i, part in enumerate(held)] if recipe.many else [(recipe.part, held)]


def _check_same(module: nn.Module, restored: nn.Module) -> None:
    """Raise an error unless both have the same parts, plain values and, to the bit, tensors."""
    old, new = (
        {key: (value.dtype, value.shape, raw_bytes(value)) for key, value in each.state_dict().items()}
        for each in (module, restored)
    )
    for key in sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)):
        raise SavedModelError(f"{key} is not as its class has it")
    parts = dict(module.named_modules(remove_duplicate=False))
    for path, part in restored.named_modules(remove_duplicate=False):
        for key, value in vars(part).items():
            plain = isinstance(value, bool | int | float | str | tuple | None) and not key.startswith("_")
            if plain and key != "training" and path in parts and getattr(parts[path], key, None) != value:
                raise SavedModelError(f"{_join(path, key)} is not as its class has it")


def _reason(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).partition("\n")[0] or type(error).__name__


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def describe_constraint(constraint: nn.Module, place: str) -> Described:
    """Class, transform and bounds of a constraint; ``place`` is for errors. Its initial value is not saved."""
    name = type(constraint).__name__
    if name not in CONSTRAINTS or type(constraint) is not CONSTRAINTS[name][0]:
        known = ", ".join(CONSTRAINTS)
        raise SavedModelError(f"{place}: {name} cannot be saved; the constraints that can be are {known}")
    transform = _transform_name(constraint)
    if transform is None and constraint._transform is not None:
        raise SavedModelError(
            f"{place}: a function is code, and code is not saved; the transforms that can be, with their inverses, "
            f"are {', '.join(TRANSFORMS)} and None"
        )
    bounds = {key: getattr(constraint, key) for key in ("lower_bound", "upper_bound")}
    return {"class": name, "transform": transform}, bounds


def _transform_name(constraint: Any) -> str | None:
    """Name of the transform of a constraint; ``None`` if it has none, or one that is not in the table."""
    transform, inverse = constraint._transform, constraint._inv_transform
    # GPyTorch's softplus is a module: copies of a model have copies of it.
    is_copy = type(transform) is nn.Softplus and (transform.beta, transform.threshold) == (1, 20)
    if is_copy or transform is nn.functional.softplus:
        transform = softplus
    return next((name for name, pair in TRANSFORMS.items() if pair[0] is transform and pair[1] is inverse), None)


def build_constraint(node: Any, take: Take, shape: torch.Size, place: str) -> nn.Module:
    """The constraint that a file describes, for a parameter of that shape."""
    if not isinstance(node, dict) or set(node) != {"class", "transform"}:
        raise SavedModelError(f"{place}: a constraint has a class and a transform, got {node!r}")
    _, build = _row(CONSTRAINTS, node["class"], place)
    constraint = build(*((None, None) if node["transform"] is None else _row(TRANSFORMS, node["transform"], place)))
    if _transform_name(constraint) != node["transform"]:
        raise SavedModelError(f"{place}: {node['class']} does not take the transform {node['transform']!r}")
    # Set after the constructor, which would round them to single precision.
    lower, upper = take("lower_bound"), take("upper_bound")
    bounds = (lower + upper).shape
    fits = len(bounds) <= len(shape) and all(b in (1, s) for b, s in zip(bounds[::-1], shape[::-1], strict=False))
    if not fits or not bool((lower < upper).all()):
        raise SavedModelError(f"{place}: the bounds do not make an interval for a parameter of shape {tuple(shape)}")
    constraint.lower_bound, constraint.upper_bound = lower, upper
    return cast(nn.Module, constraint)


def describe_prior(module: gpytorch.Module, name: str, place: str) -> Described:
    """Class and arguments of the prior of that name; ``place`` is for errors."""
    prior, closure, _ = module._priors[name]
    kind = type(prior).__name__
    if kind not in PRIORS or type(prior) is not PRIORS[kind][0]:
        raise SavedModelError(f"{place}: {kind} cannot be saved; the priors that can be are {', '.join(PRIORS)}")
    if prior._transform is not None:
        raise SavedModelError(f"{place}: its transform is a function, which is code, and code is not saved")
    attribute = _prior_attribute(module, name)
    if attribute is None or not _returns(module, closure, attribute):
        raise SavedModelError(
            f"{place}: its closure is code, and code is not saved; a prior can be if it is named after its attribute, "
            "as lengthscale_prior after lengthscale"
        )
    # log_prob uses the attributes. Transformed distributions also have copies of them as buffers, and .to() casts
    # only those: both are kept.
    tensors = {key: getattr(prior, key) for key in PRIORS[kind][1].values()}
    return {"class": kind, "validate_args": bool(prior._validate_args)}, {**dict(prior._buffers), **tensors}


def build_prior(module: gpytorch.Module, name: str, node: Any, take: Take, place: str) -> None:
    """Register the prior that a file describes on a module that already has its parameters."""
    if not isinstance(node, dict) or set(node) != {"class", "validate_args"}:
        raise SavedModelError(f"{place}: a prior has a class and validate_args, got {node!r}")
    if type(node["validate_args"]) is not bool:
        raise SavedModelError(f"{place}: validate_args must be true or false, got {node['validate_args']!r}")
    attribute = _prior_attribute(module, name)
    if attribute is None:
        raise SavedModelError(f"{place}: {type(module).__name__} has no parameter for it")
    cls, arguments = _row(PRIORS, node["class"], place)
    values = {key: take(held) for key, held in arguments.items()}
    prior = cls(**values, validate_args=node["validate_args"])
    for key in set(prior._buffers) - set(arguments.values()):
        prior._buffers[key] = take(key).reshape(prior._buffers[key].shape)
    # Fails now, instead of in a fit, if the shapes of prior and parameter do not match.
    torch.broadcast_tensors(*values.values(), getattr(module, attribute))  # type: ignore[no-untyped-call]
    module.register_prior(name, prior, AttributeOf(attribute), SetAttribute(attribute))


def _prior_attribute(module: nn.Module, name: str) -> str | None:
    """The attribute of a prior by GPyTorch's convention; ``None`` if the module has no such parameter or value."""
    # GPyTorch breaks its convention in one place.
    attribute = "constant" if name == "mean_prior" else name.removesuffix("_prior")
    derived = attribute in DERIVED.get(type(module).__name__, ())
    known = derived or attribute in module._parameters or f"raw_{attribute}" in module._parameters
    return attribute if known and attribute != name else None


def _returns(module: gpytorch.Module, closure: Callable[[Any], Any], attribute: str) -> bool:
    """Whether a closure returns an attribute, tried at distinct values: at l = 1, √l and l agree."""
    try:
        trial = copy.deepcopy(module)
        with torch.no_grad():
            for i, parameter in enumerate(trial.parameters()):
                values = 0.2 + 0.11 * i + torch.linspace(0.0, 0.5, parameter.numel())
                parameter.copy_(values.reshape(parameter.shape))
            value, expected = closure(trial), getattr(trial, attribute)
        return bool(value.shape == expected.shape and raw_bytes(value) == raw_bytes(expected))
    except Exception:  # a user's function may raise anything
        return False


def _row(table: dict[str, Any], name: Any, place: str) -> Any:
    if not isinstance(name, str) or name not in table:
        raise SavedModelError(f"{place}: {name!r} is not one of {', '.join(table)}")
    return table[name]
