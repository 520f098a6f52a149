"""What an optimisation found: the best point by the model, every evaluation, and the outliers among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rcgp.botorch.box import Parameters
from rcgp.weights.noise_law import FLAGGED

__all__ = ["Evaluation", "OptimisationResult"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation.

    Attributes:
        number: from 1.
        x: the parameters, as the objective got them.
        value: what it returned; ``None`` if it failed.
        reason: why it failed, else empty.
        seconds: how long it took.
        weight: weight of the value in the model, from 0 to 1; ``None`` where there is no value or no model.
        outlier_probability: probability that the value is an outlier; ``None`` likewise.
        expected: prediction from all other evaluations; ``None`` likewise.
        deviation: its standard deviation; ``None`` likewise.
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
    """What :func:`rcgp.botorch.optimise` returns. ``print(result)`` shows it.

    Attributes:
        x: the best parameters: those of the evaluation with the best posterior mean, outliers excluded. ``None`` if
            no evaluation has a value.
        value: the posterior mean there, which is not what was observed.
        deviation: its standard deviation; ``None`` where there was no model, with fewer than two values.
        number: of the evaluation at x.
        evaluations: all of them, in order.
        maximise: the direction.
    """

    x: Parameters | None
    value: float | None
    deviation: float | None
    number: int | None
    evaluations: tuple[Evaluation, ...]
    maximise: bool

    @property
    def outliers(self) -> tuple[Evaluation, ...]:
        """Evaluations whose values are outliers with a probability above one half."""
        return tuple(e for e in self.evaluations if (e.outlier_probability or 0.0) > FLAGGED)

    @property
    def failed(self) -> tuple[Evaluation, ...]:
        """Evaluations without a value."""
        return tuple(e for e in self.evaluations if e.value is None)

    def __str__(self) -> str:
        return "\n".join([*self._best(), *self._flagged(), *self._failures()])

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
        lines = [
            ["  evaluation", "observed", "expected", "probability", *(name for name, _ in _named(self.outliers[0].x))]
        ]
        for e in self.outliers:
            numbers = (f"{value:.4g}" for _, value in _named(e.x))
            expected = f"{e.expected:.4g} ± {e.deviation:.2g}"
            lines.append([f"  {e.number}", f"{e.value:.4g}", expected, f"{e.outlier_probability:.3g}", *numbers])
        return [f"{_counted(len(self.outliers), 'outlying ')}, by the predictions from all others:", *_aligned(lines)]

    def _failures(self) -> list[str]:
        if not self.failed:
            return []
        lines = [f"  {e.number}  {_printable(e.reason)}" for e in self.failed]
        return [f"{_counted(len(self.failed), 'failed ')}:", *lines]


def _named(x: Parameters) -> list[tuple[str, float]]:
    return [(f"x[{i}]", float(v)) for i, v in enumerate(x)] if isinstance(x, np.ndarray) else list(x.items())


def _printable(text: str) -> str:
    """Text that does nothing to a terminal, whoever wrote it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _counted(count: int, kind: str = "") -> str:
    return f"{count} {kind}evaluation{'' if count == 1 else 's'}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
