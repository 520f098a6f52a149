"""The observed cells of several outputs, as the rows of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcgp.models.validation import as_real_tensor, check_finite, check_inputs

__all__ = ["Cells", "arranged", "cell_weights"]


@dataclass(frozen=True)
class Cells:
    """The observed cells of several outputs.

    Attributes:
        X: ``N x d`` input of each cell.
        y: ``N`` observations.
        output: ``N`` numbers of outputs.
        outputs: number T of outputs.
        observed: which cells are observed, ``n x T`` or, in the long format, ``n``.
    """

    X: Tensor
    y: Tensor
    output: Tensor
    outputs: int
    observed: Tensor

    @classmethod
    def of(cls, train_X: Any, train_Y: Any, output: Any) -> Cells:
        """Cells of ``n x T`` observations, or of ``n`` with the number of an output for each; or a ValueError."""
        X, Y = check_inputs(train_X), as_real_tensor(train_Y, "train_Y")
        if Y.ndim != (2 if output is None else 1) or not Y.numel():
            hint = "; with one output for each row give their numbers as output=..." if Y.ndim == 1 else ""
            wanted = "n x T" if output is None else "n where output is given"
            raise ValueError(f"train_Y must have shape {wanted}, got {tuple(Y.shape)}{hint}")
        if len(X) != len(Y):
            raise ValueError(f"train_X and train_Y must have the same number of rows, got {len(X)} and {len(Y)}")
        if X.device != Y.device:
            raise ValueError(f"train_X and train_Y must be on the same device, got {X.device} and {Y.device}")
        check_finite(Y, "train_Y", missing=True)
        dtype = torch.promote_types(X.dtype, Y.dtype)
        X, Y, observed = X.detach().to(dtype), Y.detach().to(dtype), ~Y.isnan()
        if not bool(observed.any()):
            raise ValueError(f"train_Y has no observed cell: all {Y.numel()} are missing")
        if output is None:
            row, number = observed.nonzero().T
            outputs = Y.shape[1]
        else:
            number = _numbers(output, len(Y), X.device)
            outputs = int(number.max()) + 1
            row, number = observed.nonzero().squeeze(-1), number[observed]
        found = cls(X[row].clone(), Y[observed].clone(), number, outputs, observed)
        seen = torch.unique(number)
        if len(seen) != outputs:
            gaps = (seen != torch.arange(len(seen), device=seen.device)).nonzero()
            empty = int(gaps[0]) if len(gaps) else len(seen)
            raise ValueError(f"output {empty} has no observed cell: leave it out")
        return found

    def of_output(self, output: int) -> tuple[Tensor, Tensor]:
        """Inputs and observations of one output."""
        rows = self.output == output
        return self.X[rows], self.y[rows]


def _numbers(output: Any, n: int, device: torch.device) -> Tensor:
    """Numbers of outputs, ``n``; or a ValueError."""
    number = as_real_tensor(output, "output")
    if number.shape != (n,):
        raise ValueError(f"output must have one number for each of the {n} rows, got shape {tuple(number.shape)}")
    wrong = ~((number >= 0) & (number == number.round()) & number.isfinite())
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"output must be whole numbers from 0 on, got {float(number[row]):g} in row {row}")
    return number.long().to(device)


def arranged(values: Any, observed: Tensor) -> Tensor:
    """One value for each observed cell, ``N``, arranged like the cells; NaN for missing cells.

    Args:
        values: ``N`` values.
        observed: which cells are observed, any shape.
    """
    numbers = as_real_tensor(values, "values")
    if numbers.shape != (count := (int(observed.sum()),)):
        raise ValueError(f"values must have shape {count}, one for each observed cell, got {tuple(numbers.shape)}")
    table = numbers.new_full(observed.shape, torch.nan)
    table[observed] = numbers
    return table


def cell_weights(sample_weight: Any, observed: Tensor) -> Tensor | None:
    """Sample weights of the observed cells, ``N``; ``None`` without sample weights.

    Args:
        sample_weight: ``None``, a number for each of the ``n`` rows, or one for each cell, observed or not.
        observed: ``n x T`` or ``n``, which cells are observed.
    """
    if sample_weight is None:
        return None
    weights = as_real_tensor(sample_weight, "sample_weight")
    if weights.shape == observed.shape[:1]:
        weights = weights.reshape(-1, *[1] * (observed.ndim - 1)).expand(observed.shape)
    if weights.shape != observed.shape:
        shapes = " or ".join(dict.fromkeys((f"{tuple(observed.shape[:1])}", f"{tuple(observed.shape)}")))
        raise ValueError(f"sample_weight must have shape {shapes}, got {tuple(weights.shape)}")
    return weights[observed]
