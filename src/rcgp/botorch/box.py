"""The box that an optimisation searches: names and bounds, checked, and the way to the unit cube and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Box", "Parameters"]

#: What an objective is given: values by name, or a vector.
Parameters = dict[str, float] | NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """Bounds of each parameter.

    Attributes:
        names: of the parameters; ``None`` where they have none, and an objective takes a vector.
        pairs: low and high of each.
    """

    names: tuple[str, ...] | None
    pairs: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, bounds: Any) -> Box:
        """The box that a user means.

        Args:
            bounds: a dictionary of names and pairs (low, high), a sequence of pairs, or a tensor as BoTorch has it,
                ``2 x d``, lows above highs.

        Raises:
            TypeError: where bounds are something else.
            ValueError: where there are none, or one is not finite or not below the other.
        """
        if isinstance(bounds, Mapping):
            for name in bounds:
                if not isinstance(name, str):
                    raise TypeError(f"bounds must have names that are strings, got {name!r}")
            names, pairs = tuple(bounds), list(bounds.values())
        elif isinstance(bounds, Tensor):
            if bounds.ndim != 2 or bounds.shape[0] != 2:
                raise ValueError(
                    "bounds that are a tensor are BoTorch's, 2 x d: a row of lows and a row of highs; got shape "
                    f"{tuple(bounds.shape)}"
                )
            names, pairs = None, bounds.T.tolist()
        elif isinstance(bounds, Sequence | np.ndarray) and not isinstance(bounds, str | bytes):
            names, pairs = None, list(bounds)
        else:
            raise TypeError(
                f"bounds must be a dictionary of (low, high) or a sequence of them, got {type(bounds).__name__}"
            )
        if not pairs:
            raise ValueError("bounds are empty: give at least one parameter")
        labels = [repr(name) for name in names] if names else [str(i) for i in range(len(pairs))]
        return cls(names, tuple(_pair(label, pair) for label, pair in zip(labels, pairs, strict=True)))

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return len(self.pairs)

    def from_unit(self, point: Tensor) -> tuple[float, ...]:
        """Values of the parameters at a point of the unit cube."""
        values = (low + u * (high - low) for u, (low, high) in zip(point.tolist(), self.pairs, strict=True))
        # Rounding must not lead out of the box.
        return tuple(min(max(value, low), high) for value, (low, high) in zip(values, self.pairs, strict=True))

    def to_unit(self, points: Sequence[Sequence[float]]) -> Tensor:
        """Points of the unit cube, ``n x d``, in double precision."""
        low, high = torch.tensor(self.pairs, dtype=torch.double).mT
        values = torch.tensor(points, dtype=torch.double).reshape(len(points), self.dimension)
        unit: Tensor = (values - low) / (high - low)
        return unit.clamp(0.0, 1.0)

    def parameters(self, values: Sequence[float]) -> Parameters:
        """Values as an objective gets them."""
        return np.array(values, dtype=np.float64) if self.names is None else dict(zip(self.names, values, strict=True))

    def to_json(self) -> Any:
        """Bounds for JSON, in their order."""
        pairs = [list(pair) for pair in self.pairs]
        return pairs if self.names is None else dict(zip(self.names, pairs, strict=True))

    def values_to_json(self, values: Sequence[float]) -> Any:
        """A point for JSON."""
        return list(values) if self.names is None else dict(zip(self.names, values, strict=True))

    def values_from_json(self, content: Any) -> tuple[float, ...]:
        """The point that :meth:`values_to_json` wrote.

        Raises:
            ValueError: if it is none of this box.
        """
        if self.names is not None and isinstance(content, dict) and set(content) == set(self.names):
            content = [content[name] for name in self.names]
        if not isinstance(content, list) or len(content) != self.dimension:
            raise ValueError(f"a point must have {self.dimension} values, got {content!r}")
        for value, (low, high) in zip(content, self.pairs, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValueError(f"{value!r} is no number from {low:g} to {high:g}")
        return tuple(float(value) for value in content)


def _pair(label: str, pair: Any) -> tuple[float, float]:
    """Low and high of one parameter."""
    try:
        low, high = (float(value) for value in pair)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"bounds of parameter {label} must be a pair (low, high), got {pair!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
        raise ValueError(f"bounds of parameter {label} must be finite, got ({low:g}, {high:g})")
    if not low < high:
        raise ValueError(f"bounds of parameter {label} must be low < high, got ({low:g}, {high:g})")
    return low, high
