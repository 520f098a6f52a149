"""The paper's problems of Bayesian optimisation: functions to minimise, and what spoils their evaluations.

Each function is one of BoTorch's test functions on the unit square, shifted and scaled as in the authors' experiment;
McCormick's is written here. Where the paper's text is wrong the original definitions count: McCormick's function and
Rosenbrock's have squares that are missing there, Branin's second input begins at 0 and Rosenbrock's ends at 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from botorch.test_functions import Branin, Rosenbrock, SixHumpCamel
from botorch.test_functions.synthetic import SyntheticTestFunction
from torch import Tensor

__all__ = ["FUNCTIONS", "Contamination", "McCormick", "ScaledFunction"]


class McCormick(SyntheticTestFunction):  # type: ignore[misc]
    """sin(x + x') + (x − x')² − 1.5x + 2.5x' + 1 on [−1.5, 4] x [−3, 4].

    Its minimum is −√3/2 − π/3 = −1.9132 at (½ − π/3, −½ − π/3).
    """

    dim = 2
    continuous_inds: ClassVar[list[int]] = [0, 1]  # BoTorch wants lists
    _bounds: ClassVar[list[tuple[float, float]]] = [(-1.5, 4.0), (-3.0, 4.0)]
    _optimal_value = -math.sqrt(3.0) / 2.0 - math.pi / 3.0
    _optimizers: ClassVar[list[tuple[float, ...]]] = [(0.5 - math.pi / 3.0, -0.5 - math.pi / 3.0)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x, y = X[..., 0], X[..., 1]
        return torch.sin(x + y) + (x - y).square() - 1.5 * x + 2.5 * y + 1.0


@dataclass(frozen=True)
class ScaledFunction:
    """(g(x) − shift) / scale at x = low + u (high − low) for u in [0, 1]².

    Attributes:
        make: gives BoTorch's test function g, with its bounds.
        least: the minimum of g, to more digits than BoTorch has it: a regret is never negative.
        shift, scale: of its values.
        threshold: the paper's c of the RCGP that optimises it.
    """

    make: Callable[[], SyntheticTestFunction]
    least: float
    shift: float = 0.0
    scale: float = 1.0
    threshold: float = 1.0

    def __call__(self, U: Tensor) -> Tensor:
        """Values at ``... x 2`` points of the unit square: ``...``."""
        function = self.make()
        low, high = function.bounds.to(U)
        values: Tensor = function.evaluate_true(low + U * (high - low))
        return (values - self.shift) / self.scale

    @property
    def minimum(self) -> float:
        """The smallest value."""
        return (self.least - self.shift) / self.scale


#: The four functions by name, with the authors' scalings.
FUNCTIONS: Mapping[str, ScaledFunction] = MappingProxyType(
    {
        "camel": ScaledFunction(lambda: SixHumpCamel(bounds=[(-2.0, 2.0), (-1.0, 1.0)]), -1.0316284534898774),
        "branin": ScaledFunction(Branin, 5.0 / (4.0 * math.pi), 54.81, 51.95, threshold=2.0),
        "mccormick": ScaledFunction(McCormick, McCormick._optimal_value, scale=20.0),
        "rosenbrock": ScaledFunction(Rosenbrock, 0.0, scale=3.755e5),
    }
)


@dataclass(frozen=True)
class Contamination:
    """Evaluations that, each with the same probability, come out too large: by u ~ U(low, high).

    Two numbers are drawn for every evaluation, an outlier or not: from the same generator the i-th evaluation has the
    same fate, whatever was evaluated.

    Attributes:
        generator: where the draws come from.
        probability: of an outlier.
        low, high: limits of the shift.
    """

    generator: torch.Generator
    probability: float = 0.2
    low: float = 1.0
    high: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability must be between 0 and 1, got {self.probability}")
        if not 0.0 <= self.low <= self.high < math.inf:
            raise ValueError(f"low and high must be 0 ≤ low ≤ high, got {self.low} and {self.high}")

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluations, ``n``, as they come out, and which of them are outliers, ``n``."""
        draws = torch.rand(*values.shape, 2, dtype=torch.float64, generator=self.generator)
        outlier = draws[..., 0] < self.probability
        shift = self.low + (self.high - self.low) * draws[..., 1]
        return torch.where(outlier, values + shift.to(values), values), outlier
