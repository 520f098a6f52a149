"""Tables of what can be saved: for each class, the plain values and tensors that make it.

Only classes listed here are built from a file, by exact type: a subclass may compute something else. A file is checked
against these tables before a constructor is called, so it can neither name other code nor request more memory than its
tensors fill.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias, cast

import torch
from gpytorch import constraints, kernels, means, priors
from gpytorch.constraints.constraints import softplus
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from torch import Tensor, nn

from rcgp import weights
from rcgp.models.coregion import CoregionKernel
from rcgp.models.defaults import Between
from rcgp.models.means import OutputMeans, PolynomialMean
from rcgp.saving.archive import SavedModelError
from rcgp.weights.noise_law import SCALES

__all__ = ["CONSTRAINTS", "DERIVED", "FAMILIES", "PRIORS", "RECIPES", "TRANSFORMS", "Recipe", "check_arguments"]

#: Constraints by name, and how each is made from a transform and its inverse, with bounds to be set later.
CONSTRAINTS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "Positive": (constraints.Positive, lambda *transforms: constraints.Positive(*transforms)),
    "GreaterThan": (constraints.GreaterThan, lambda *transforms: constraints.GreaterThan(0.0, *transforms)),
    "LessThan": (constraints.LessThan, lambda *transforms: constraints.LessThan(0.0, *transforms)),
    "Interval": (constraints.Interval, lambda *transforms: constraints.Interval(0.0, 1.0, *transforms)),
    "Between": (Between, lambda *transforms: Between(1.0, 2.0)),
}

#: Transforms of constraints by name, each with its inverse.
TRANSFORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softplus": (softplus, inv_softplus),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "exp": (torch.exp, torch.log),
}

#: Priors by name, and for each argument of the constructor the attribute that holds it.
PRIORS: dict[str, tuple[Any, dict[str, str]]] = {
    "GammaPrior": (priors.GammaPrior, {"concentration": "concentration", "rate": "rate"}),
    "HalfCauchyPrior": (priors.HalfCauchyPrior, {"scale": "scale"}),
    "HalfNormalPrior": (priors.HalfNormalPrior, {"scale": "scale"}),
    "LogNormalPrior": (priors.LogNormalPrior, {"loc": "loc", "scale": "scale"}),
    "NormalPrior": (priors.NormalPrior, {"loc": "loc", "scale": "scale"}),
    "SmoothedBoxPrior": (priors.SmoothedBoxPrior, {"a": "a", "b": "b", "sigma": "sigma"}),
    "UniformPrior": (priors.UniformPrior, {"a": "low", "b": "high"}),
}

Arguments: TypeAlias = dict[str, Any]
Shapes: TypeAlias = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe:
    """How a class is described and built.

    Attributes:
        cls: the class.
        shapes: name and shape of each of its own parameters and buffers, given its arguments.
        arguments: name of each plain argument, and how to read it from a module.
        build: builds a module from its arguments and parts; its tensors are set afterwards.
        part: attribute with the module that it wraps, or the list of modules that it combines.
        many: whether that is a list.
    """

    cls: type[nn.Module]
    shapes: Callable[[Arguments], Shapes]
    arguments: dict[str, Callable[[Any], Any]]
    build: Callable[[Arguments, list[nn.Module]], nn.Module]
    part: str | None = None
    many: bool = False

    @property
    def family(self) -> type[nn.Module]:
        """The base class that its parts share with it."""
        return next(family for family in FAMILIES if issubclass(self.cls, family))


def _positive_integer(value: Any) -> bool:
    return type(value) is int and value > 0


def _shares(value: Any) -> bool:
    numbers_only = isinstance(value, list) and len(value) == len(SCALES) + 1 and all(type(x) is float for x in value)
    return numbers_only and min(value) >= 0.0 and abs(sum(value) - 1.0) < 1e-6


#: Kinds of threshold c of a weight: whether the constructor is given c, and whether c is trainable.
_THRESHOLDS = {
    "rule": (False, False),
    "fixed": (True, False),
    "trainable": (True, True),
    "trainable from rule": (False, True),
}

_POSITIVE = ("a positive integer", _positive_integer)
_OPTIONAL = ("a positive integer or null", lambda value: value is None or _positive_integer(value))

#: What an argument must be, in any class, and the test.
_REQUIREMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("input_size", "num_mixtures", "outputs", "rows", "terms"), _POSITIVE),
    **dict.fromkeys(("active_dims", "ard_num_dims"), _OPTIONAL),
    "bias": ("true or false", lambda value: type(value) is bool),
    "degree": ("0, 1 or 2", lambda value: type(value) is int and 0 <= value <= 2),
    "epsilon": ("a number in [0, 1]", lambda value: type(value) in (int, float) and 0 <= value <= 1),
    "nu": ("0.5, 1.5 or 2.5", lambda value: type(value) is float and value in (0.5, 1.5, 2.5)),
    "power": ("a finite number", lambda value: type(value) in (int, float) and math.isfinite(value)),
    "rank": ("a whole number, at least 0", lambda value: type(value) is int and value >= 0),
    "q": ("0, 1, 2 or 3", lambda value: type(value) is int and 0 <= value <= 3),
    "shares": (f"{len(SCALES) + 1} shares that add up to one", _shares),
    "side": ("above or below", lambda value: isinstance(value, str) and value in ("above", "below")),
    "width": ("a positive number or null", lambda value: value is None or (type(value) is float and value > 0)),
    "threshold": (f"one of {', '.join(_THRESHOLDS)}", lambda value: isinstance(value, str) and value in _THRESHOLDS),
}


def check_arguments(recipe: Recipe, arguments: Any, place: str) -> Arguments:
    """The arguments of a class, from a module or a file, as plain Python values; or an error that names the place."""
    name = recipe.cls.__name__
    if not isinstance(arguments, dict) or set(arguments) != set(recipe.arguments):
        raise SavedModelError(f"{place}: {name} takes the arguments {sorted(recipe.arguments)}, got {arguments!r:.200}")
    plain = {key: _plain(value) for key, value in arguments.items()}
    for key, value in plain.items():
        wanted, holds = _REQUIREMENTS[key]
        if not holds(value):
            raise SavedModelError(f"{place}: {key} of {name} must be {wanted}, got {value!r}")
    return plain


def _plain(value: Any) -> Any:
    """Any real number as an int or float of Python."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _kernel(
    cls: type[nn.Module],
    shapes: Callable[[int, Arguments], Shapes],
    *names: str,
    part: str | None = None,
    many: bool = False,
) -> Recipe:
    """The recipe of a kernel whose arguments are attributes of the same names.

    Its shapes are given the number of lengthscales, too.
    """

    def all_shapes(arguments: Arguments) -> Shapes:
        own = shapes(arguments.get("ard_num_dims") or 1, arguments)
        return own if arguments["active_dims"] is None else {**own, "active_dims": (arguments["active_dims"],)}

    def build(arguments: Arguments, parts: list[nn.Module]) -> nn.Module:
        given = {key: arguments[key] for key in names if arguments[key] is not None}
        kernel: Any = cls(*parts, **given)
        kernel.active_dims = None  # a ScaleKernel copies its part's
        return cast(nn.Module, kernel)

    def active(kernel: Any) -> int | None:
        return None if kernel.active_dims is None else kernel.active_dims.numel()

    reads = {name: attrgetter(name) for name in names}
    return Recipe(cls, all_shapes, {"active_dims": active, **reads}, build, part, many)


def _coregion_kernel(arguments: Arguments, parts: list[nn.Module]) -> nn.Module:
    terms = len(parts) // 2
    if len(parts) != 2 * terms or not all(isinstance(part, kernels.IndexKernel) for part in parts[terms:]):
        raise SavedModelError("a kernel of several outputs has an index kernel for each of its kernels")
    return CoregionKernel(parts[:terms], parts[terms:])


def _polynomial_mean(arguments: Arguments, parts: list[nn.Module]) -> nn.Module:
    degree, d = arguments["degree"], arguments["input_size"]
    if arguments["terms"] != math.comb(d + degree, degree):
        raise SavedModelError(f"a polynomial of degree {degree} in {d} inputs does not have {arguments['terms']} terms")
    return PolynomialMean(degree, torch.zeros(1, d), lambda features: features[0])


def _threshold_weight(cls: type[nn.Module]) -> Recipe:
    """The recipe of a weight with a threshold c: by the rule, a buffer, or a parameter."""

    def kind(weight: Any) -> str:
        if weight.log_c is None:
            return "rule"
        if not isinstance(weight.log_c, nn.Parameter):
            return "fixed"
        return "trainable from rule" if weight._starts_from_rule else "trainable"

    def build(arguments: Arguments, parts: list[nn.Module]) -> nn.Module:
        given, trainable = _THRESHOLDS[arguments["threshold"]]
        return cls(1.0 if given else None, arguments["epsilon"], trainable)  # the tensor of c is set afterwards

    return Recipe(
        cls,
        lambda arguments: {} if arguments["threshold"] == "rule" else {"log_c": ()},
        {"epsilon": attrgetter("epsilon"), "threshold": kind},
        build,
    )


def _weight(cls: type[nn.Module], part: str | None = None, *names: str, many: bool = False) -> Recipe:
    """The recipe of a weight without tensors, made of other weights or of none."""
    return Recipe(
        cls,
        lambda arguments: {},
        {name: attrgetter(name) for name in names},
        lambda arguments, parts: cls(*parts, **arguments),
        part,
        many,
    )


def _law_weight(arguments: Arguments, parts: list[nn.Module]) -> nn.Module:
    *shares, outlier_share = arguments["shares"]
    width = math.inf if arguments["width"] is None else arguments["width"]  # which JSON does not have
    rows = torch.zeros(arguments["rows"])
    return weights.LawWeight(weights.NoiseLaw(tuple(shares), outlier_share, width), rows, rows)


_ALL = (
    _kernel(kernels.RBFKernel, lambda d, a: {"raw_lengthscale": (1, d)}, "ard_num_dims"),
    _kernel(kernels.MaternKernel, lambda d, a: {"raw_lengthscale": (1, d)}, "ard_num_dims", "nu"),
    _kernel(kernels.RQKernel, lambda d, a: {"raw_lengthscale": (1, d), "raw_alpha": (1,)}, "ard_num_dims"),
    _kernel(
        kernels.PeriodicKernel,
        lambda d, a: {"raw_lengthscale": (1, d), "raw_period_length": (1, d)},
        "ard_num_dims",
    ),
    _kernel(kernels.CosineKernel, lambda d, a: {"raw_period_length": (1, 1)}, "ard_num_dims"),
    _kernel(kernels.LinearKernel, lambda d, a: {"raw_variance": (1, d)}, "ard_num_dims"),
    _kernel(kernels.PolynomialKernel, lambda d, a: {"raw_offset": (1,)}, "ard_num_dims", "power"),
    _kernel(kernels.PiecewisePolynomialKernel, lambda d, a: {"raw_lengthscale": (1, d)}, "ard_num_dims", "q"),
    _kernel(kernels.ConstantKernel, lambda d, a: {"raw_constant": (1,)}),
    _kernel(
        kernels.SpectralMixtureKernel,
        lambda d, a: {
            "raw_mixture_weights": (a["num_mixtures"],),
            "raw_mixture_means": (a["num_mixtures"], 1, d),
            "raw_mixture_scales": (a["num_mixtures"], 1, d),
        },
        "ard_num_dims",
        "num_mixtures",
    ),
    _kernel(kernels.ScaleKernel, lambda d, a: {"raw_outputscale": ()}, "ard_num_dims", part="base_kernel"),
    _kernel(kernels.AdditiveKernel, lambda d, a: {}, part="kernels", many=True),
    _kernel(kernels.ProductKernel, lambda d, a: {}, part="kernels", many=True),
    Recipe(
        kernels.IndexKernel,
        lambda a: {"covar_factor": (a["outputs"], a["rank"]), "raw_var": (a["outputs"],)},
        {
            "outputs": lambda kernel: kernel.covar_factor.shape[-2],
            "rank": lambda kernel: kernel.covar_factor.shape[-1],
        },
        lambda a, parts: kernels.IndexKernel(a["outputs"], a["rank"]),
    ),
    Recipe(CoregionKernel, lambda a: {}, {}, _coregion_kernel, "parts", many=True),
    Recipe(means.ZeroMean, lambda a: {}, {}, lambda a, parts: means.ZeroMean()),
    Recipe(means.ConstantMean, lambda a: {"raw_constant": ()}, {}, lambda a, parts: means.ConstantMean()),
    Recipe(
        means.LinearMean,
        lambda a: {"weights": (a["input_size"], 1), **({"bias": (1,)} if a["bias"] else {})},
        {"input_size": lambda mean: mean.weights.shape[-2], "bias": lambda mean: mean.bias is not None},
        lambda a, parts: means.LinearMean(**a),
    ),
    Recipe(
        PolynomialMean,
        lambda a: {"centre": (a["input_size"],), "scale": (a["input_size"],), "coefficients": (a["terms"],)},
        {
            "degree": attrgetter("degree"),
            "input_size": lambda mean: mean.centre.shape[-1],
            "terms": lambda mean: mean.coefficients.shape[-1],
        },
        _polynomial_mean,
    ),
    Recipe(OutputMeans, lambda a: {}, {}, lambda a, parts: OutputMeans(parts), "means", many=True),
    _weight(weights.Constant),
    _threshold_weight(weights.InverseMultiquadric),
    _threshold_weight(weights.SquaredExponential),
    Recipe(
        weights.LawWeight,
        lambda a: dict.fromkeys(("mean", "variance", "local", "relative"), (a["rows"],)),
        {
            "rows": lambda weight: weight.mean.shape[0],
            "shares": lambda weight: [*weight.law.shares, weight.law.outlier_share],
            "width": lambda weight: weight.law.width if math.isfinite(weight.law.width) else None,
        },
        _law_weight,
    ),
    _weight(weights.OneSided, "weight", "side"),
    _weight(weights.NoShrinkage, "weight"),
    _weight(weights.NoNoiseTerm, "weight"),
    _weight(weights.Product, "weights", many=True),
    _weight(weights.ByOutput, "weights", many=True),
)

#: Attributes beside parameters that may have a prior.
DERIVED: dict[str, tuple[str, ...]] = {"CoregionKernel": ("output_variance",)}

#: The recipes by the name of their class, as in a file.
RECIPES: dict[str, Recipe] = {recipe.cls.__name__: recipe for recipe in _ALL}

#: Nouns for the families, for messages.
FAMILIES: dict[type[nn.Module], str] = {kernels.Kernel: "kernel", means.Mean: "mean", weights.WeightFunction: "weight"}
