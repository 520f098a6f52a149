"""The search space of an optimisation, its evaluations and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.weights.noise_law import FLAGGED

__all__ = ["Box", "Evaluation", "OptimisationResult", "Parameters"]

#: Argument of an objective: values by name, or a vector.
Parameters = dict[str, float] | NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """Bounds of each parameter.

    Attributes:
        names: names of the parameters; ``None`` if the objective takes a vector.
        pairs: low and high of each parameter.
    """

    names: tuple[str, ...] | None
    pairs: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, bounds: Any) -> Box:
        """The box with these bounds.

        Args:
            bounds: a dictionary of names and pairs (low, high), a sequence of pairs, or BoTorch's ``2 x d`` tensor, a
                row of lows and a row of highs.

        Raises:
            TypeError: if bounds are of another type.
            ValueError: if bounds are empty, or one is not finite or not low < high.
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

    def from_unit(self, point: Tensor) -> Parameters:
        """The parameters at a point of the unit cube."""
        low, high = torch.tensor(self.pairs, dtype=torch.double).mT
        return self._point((low + point * (high - low)).clamp(low, high).tolist())  # rounding may leave the box

    def to_unit(self, points: Sequence[Parameters]) -> Tensor:
        """Points of the unit cube, ``n x d``, in double precision."""
        low, high = torch.tensor(self.pairs, dtype=torch.double).mT
        rows = [list(x.values() if isinstance(x, dict) else x) for x in points]
        values = torch.tensor(rows, dtype=torch.double).reshape(len(points), self.dimension)
        unit: Tensor = (values - low) / (high - low)
        return unit.clamp(0.0, 1.0)

    def to_json(self) -> Any:
        """Bounds for JSON, in their order."""
        pairs = [list(pair) for pair in self.pairs]
        return pairs if self.names is None else dict(zip(self.names, pairs, strict=True))

    def parameters(self, content: Any) -> Parameters:
        """The parameters in a JSON object or list.

        Raises:
            ValueError: if they are not a point of this box.
        """
        if self.names is not None and isinstance(content, dict) and set(content) == set(self.names):
            content = [content[name] for name in self.names]
        if not isinstance(content, list) or len(content) != self.dimension:
            raise ValueError(f"a point must have {self.dimension} values, got {content!r}")
        for value, (low, high) in zip(content, self.pairs, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValueError(f"{value!r} is not a number from {low:g} to {high:g}")
        return self._point([float(value) for value in content])

    def _point(self, values: list[float]) -> Parameters:
        return np.array(values) if self.names is None else dict(zip(self.names, values, strict=True))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation.

    Attributes:
        number: counts from 1.
        x: argument of the objective.
        value: value of the objective; ``None`` if the evaluation failed.
        reason: why it failed, else empty.
        seconds: duration.
        weight: weight of the value in the model, from 0 to 1. This and all below are ``None`` without a value or model.
        outlier_probability: probability that the value is an outlier.
        expected: prediction from all other evaluations.
        deviation: standard deviation of the prediction.
    """

    number: int
    x: Parameters
    value: float | None
    reason: str
    seconds: float
    weight: float | None = None
    outlier_probability: float | None = None
    expected: float | None = None
    deviation: float | None = None


@dataclass(frozen=True, eq=False)
class OptimisationResult:
    """Result of :func:`rcgp.botorch.optimise`; ``print`` shows it.

    Attributes:
        x: parameters of the evaluation with the best posterior mean, outliers excluded; ``None`` if no evaluation has
            a value.
        value: posterior mean at x, which differs from the observed value.
        deviation: its standard deviation; ``None`` without a model, which needs two values.
        number: number of the evaluation at x.
        evaluations: all evaluations, in order.
        maximise: whether values were maximised.
        doubts: why outliers may have been missed, or good values flagged, a sentence each.
    """

    x: Parameters | None
    value: float | None
    deviation: float | None
    number: int | None
    evaluations: tuple[Evaluation, ...]
    maximise: bool
    doubts: tuple[str, ...] = ()

    @property
    def outliers(self) -> tuple[Evaluation, ...]:
        """Evaluations with an outlier probability above one half."""
        return tuple(e for e in self.evaluations if (e.outlier_probability or 0.0) > FLAGGED)

    @property
    def failed(self) -> tuple[Evaluation, ...]:
        """Evaluations without a value."""
        return tuple(e for e in self.evaluations if e.value is None)

    def __str__(self) -> str:
        failures = [f"  {e.number}  {_printable(e.reason)}" for e in self.failed]
        title = [f"{_counted(len(failures), 'failed ')}:"] if failures else []
        doubts = [f"in doubt: {'; '.join(self.doubts)}"] if self.doubts else []
        return "\n".join([*self._best(), *self._flagged(), *doubts, *title, *failures])

    def _best(self) -> list[str]:
        count = _counted(len(self.evaluations))
        if self.x is None or self.value is None or self.number is None:
            return [f"{count}, none of which has a value"]
        spread = "" if self.deviation is None else f" ± {self.deviation:.2g}"
        lines = [f"{'maximum' if self.maximise else 'minimum'} {self.value:.6g}{spread} after {count}"]
        observed = next(e.value for e in self.evaluations if e.number == self.number)
        lines += _aligned([[f"  {name}", f"{value:.6g}"] for name, value in _named(self.x)])
        by = "observed" if self.deviation is None else "by the model; observed was"
        return [*lines, f"  evaluation {self.number}, {by} {observed:.6g}"]

    def _flagged(self) -> list[str]:
        if not self.outliers:
            return []
        names = [name for name, _ in _named(self.outliers[0].x)]
        lines = [["  evaluation", "observed", "expected", "probability", *names]]
        for e in self.outliers:
            numbers = (f"{value:.4g}" for _, value in _named(e.x))
            expected = f"{e.expected:.4g} ± {e.deviation:.2g}"
            lines.append([f"  {e.number}", f"{e.value:.4g}", expected, f"{e.outlier_probability:.3g}", *numbers])
        return [f"{_counted(len(self.outliers), 'outlying ')}, by the predictions from all others:", *_aligned(lines)]


def _named(x: Parameters) -> list[tuple[str, float]]:
    return [(f"x[{i}]", float(v)) for i, v in enumerate(x)] if isinstance(x, np.ndarray) else list(x.items())


def _printable(text: str) -> str:
    """Text with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _counted(count: int, kind: str = "") -> str:
    return f"{count} {kind}evaluation{'' if count == 1 else 's'}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _pair(label: str, pair: Any) -> tuple[float, float]:
    try:
        if isinstance(pair, str | bytes):
            raise TypeError
        low, high = (float(value) for value in pair)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"bounds of parameter {label} must be a pair (low, high), got {pair!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
        raise ValueError(f"bounds of parameter {label} must be finite, got ({low:g}, {high:g})")
    if not low < high:
        raise ValueError(f"bounds of parameter {label} must be low < high, got ({low:g}, {high:g})")
    return low, high
