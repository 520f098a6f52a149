"""Kernels, means and weight functions as a JSON tree and named tensors, and back.

The tree says which class stands where and with which plain values; every number that was fitted is a tensor under the
name that it has in ``state_dict``. Nothing but the classes in :mod:`rcgp.saving.recipes` is described or built.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from rcgp.saving.archive import SavedModelError, raw_bytes
from rcgp.saving.attachments import Take, build_constraint, build_prior, describe_constraint, describe_prior
from rcgp.saving.recipes import FAMILIES, RECIPES, Recipe, check_arguments

__all__ = ["describe", "rebuild"]

#: A part may stand in many places at once, so a small file could describe a tree too large to walk through.
_MOST_PARTS = 100_000


def describe(module: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A kernel, mean or weight function as plain values and tensors, from which :func:`rebuild` makes it again.

    Constraints, priors, ``requires_grad`` and parts that stand in several places are kept; what can be recomputed, the
    initial value of a constraint and parameters shared between different modules (each gets its value) are not.

    Returns:
        A description that JSON can hold, and copies of the tensors on the CPU, by their names in ``state_dict``.

    Raises:
        SavedModelError: naming the part, if it or anything on it is code: a user's class or function.
    """
    noun = next((word for family, word in FAMILIES.items() if isinstance(module, family)), None)
    if noun is None:
        raise SavedModelError(f"a {type(module).__name__} is neither a kernel nor a mean nor a weight function")
    taken = _TakenApart(noun)
    try:
        description = taken.node(module, "")
    except RecursionError as error:
        raise SavedModelError(f"the {noun} is nested too deeply to be saved") from error
    try:
        # Tried at once, so that what could not be read later is refused now.
        _check_same(module, _assemble(description, taken.tensors))
    except Exception as error:
        raise SavedModelError(f"the {noun} cannot be saved: {_reason(error)}") from error
    return description, taken.tensors


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """The module that :func:`describe` described, equal to the bit. Only classes of the tables are ever built.

    Args:
        description: as ``describe`` gave it.
        tensors: as ``describe`` gave them, each of which must be used. The module gets copies.

    Raises:
        SavedModelError: for a description that makes no sense, and for missing, misshapen or unused tensors.
    """
    try:
        return _assemble(description, tensors)
    except Exception as error:  # constructors may raise anything when a file asks for nonsense
        raise SavedModelError(f"the saved model makes no sense: {_reason(error)}") from error


def _assemble(description: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """The module, or whatever error comes up on the way."""
    together = _PutTogether(tensors)
    module = together.module(description, "")
    if together.unused:
        raise SavedModelError(f"nothing in it uses the tensor {min(together.unused)!r}")
    crowd = itertools.islice(module.named_modules(remove_duplicate=False), _MOST_PARTS, None)
    if next(crowd, None) is not None:
        raise SavedModelError(f"it has more than {_MOST_PARTS} parts")
    return module


class _TakenApart:
    """One module tree on its way to a description."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.tensors: dict[str, Tensor] = {}
        self._paths: dict[nn.Module, str] = {}

    def node(self, module: nn.Module, path: str) -> dict[str, Any]:
        """The description of a module and all that it holds; its tensors join the others."""
        if module in self._paths:
            return {"same_as": self._paths[module]}
        self._paths[module] = path
        place = f"the {self.noun}'s part {path}" if path else f"the {self.noun}"
        recipe = self._recipe(module, place)
        if len(getattr(module, "batch_shape", ())) > 0:
            raise SavedModelError(f"{place}: {type(module).__name__} with a batch shape cannot be saved")
        arguments = {key: read(module) for key, read in recipe.arguments.items()}
        arguments = check_arguments(recipe, arguments, place)
        own = {name: getattr(module, name) for name in recipe.shapes(arguments)}
        for name, shape in recipe.shapes(arguments).items():
            value = own[name]
            if value.shape != shape:
                raise SavedModelError(f"{place}: {name} must have shape {shape} to be saved, got {tuple(value.shape)}")
        self._keep(path, own)
        node: dict[str, Any] = {
            "class": type(module).__name__,
            "arguments": arguments,
            "requires_grad": {
                key: value.requires_grad for key, value in own.items() if isinstance(value, nn.Parameter)
            },
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
            raise SavedModelError(
                f"{place}: {name} cannot be saved, since a function or a class of one's own is code, and code is not "
                f"saved; what can be: {', '.join(known)}"
            )
        return recipe

    def _keep(self, path: str, tensors: dict[str, Tensor]) -> None:
        for name, value in tensors.items():
            self.tensors[_join(path, name)] = value.detach().cpu().clone(memory_format=torch.contiguous_format)


class _PutTogether:
    """One description on its way to a module tree."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.unused = dict(tensors)
        self._built: dict[str, nn.Module] = {}

    def module(self, node: Any, path: str) -> nn.Module:
        """The module that a node of the description stands for."""
        place = f"part {path}" if path else "the outermost part"
        if isinstance(node, dict) and set(node) == {"same_as"}:
            if not isinstance(node["same_as"], str) or node["same_as"] not in self._built:
                raise SavedModelError(f"{place} is said to be the same as {node['same_as']!r}, which is not there")
            return self._built[node["same_as"]]
        fields = {"class", "arguments", "requires_grad", "constraints", "priors", "parts"}
        if not isinstance(node, dict) or set(node) != fields:
            raise SavedModelError(f"{place} must be described by {', '.join(sorted(fields))}")
        recipe = RECIPES.get(node["class"]) if isinstance(node["class"], str) else None
        if recipe is None:
            raise SavedModelError(f"{place} names the class {node['class']!r}, which is not one that can be saved")
        arguments = check_arguments(recipe, node["arguments"], place)
        # Before anything is built, so that no file asks for more memory than it fills.
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
        if not isinstance(requires_grad, dict) or set(requires_grad) != parameters:
            raise SavedModelError(f"{place}: requires_grad must be given for {sorted(parameters)}")
        if not all(type(value) is bool for value in requires_grad.values()):
            raise SavedModelError(f"{place}: requires_grad must be true or false")
        for name, value in own.items():
            is_parameter = name in parameters
            setattr(module, name, nn.Parameter(value, requires_grad[name]) if is_parameter else value)

    def _attach(self, module: nn.Module, constraints: Any, priors: Any, path: str, place: str) -> None:
        if not isinstance(constraints, dict) or not isinstance(priors, dict):
            raise SavedModelError(f"{place}: constraints and priors must be given by name")
        if (constraints or priors) and not hasattr(module, "_constraints"):
            raise SavedModelError(f"{place}: {type(module).__name__} has neither constraints nor priors")
        if not set(getattr(module, "_constraints", {})) <= set(constraints):
            raise SavedModelError(f"{place}: a constraint is missing")
        for name, node in constraints.items():
            parameter = module._parameters.get(name.removesuffix("_constraint"))
            if parameter is None or not name.endswith("_constraint"):
                raise SavedModelError(f"{place}: {name!r} belongs to none of its parameters")
            constraint = build_constraint(node, self._taker(path, name), parameter.shape, f"{place}, {name}")
            module.register_constraint(name.removesuffix("_constraint"), constraint)  # type: ignore[operator]
        for name, node in priors.items():
            build_prior(module, name, node, self._taker(path, name), f"{place}, {name}")

    def _taker(self, path: str, name: str) -> Take:
        return lambda key: self._take(_join(_join(path, name), key))

    def _take(self, name: str, shape: tuple[int, ...] | None = None, integer: bool = False) -> Tensor:
        """A copy of the tensor of that name, which is then used up."""
        if name not in self.unused:
            raise SavedModelError(f"the tensor {name!r} is missing")
        value = self.unused.pop(name)
        if shape is not None and value.shape != shape:
            raise SavedModelError(f"the tensor {name!r} must have shape {shape}, got {tuple(value.shape)}")
        fits = value.dtype in (torch.int64, torch.int32) and bool((value >= 0).all())
        if not (fits if integer else value.is_floating_point()):
            raise SavedModelError(f"the tensor {name!r} must hold {'columns' if integer else 'real numbers'}")
        return value.detach().clone()


def _parts(recipe: Recipe, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Name and module of each part."""
    if recipe.part is None:
        return []
    held: Any = getattr(module, recipe.part)
    return [(f"{recipe.part}.{i}", part) for i, part in enumerate(held)] if recipe.many else [(recipe.part, held)]


def _check_same(module: nn.Module, restored: nn.Module) -> None:
    """An error unless both have the same parts with the same plain values and, to the bit, the same tensors."""
    old, new = module.state_dict(), restored.state_dict()
    differing = {key for key in old.keys() & new.keys() if not _same_bits(old[key], new[key])}
    for key in sorted((old.keys() ^ new.keys()) | differing):
        raise SavedModelError(f"{key} is not as its class has it")
    parts = dict(module.named_modules(remove_duplicate=False))
    for path, part in restored.named_modules(remove_duplicate=False):
        for key, value in vars(part).items():
            plain = isinstance(value, bool | int | float | str | tuple | None) and not key.startswith("_")
            if plain and key != "training" and path in parts and getattr(parts[path], key, None) != value:
                raise SavedModelError(f"{_join(path, key)} is not as its class has it")


def _reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).partition("\n")[0] or type(error).__name__


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and raw_bytes(first) == raw_bytes(second)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
