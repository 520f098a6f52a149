"""Weight functions made of others: one-sided, products, one for each output, and the paper's ablations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from rcgp.weights.functions import WeightFunction

__all__ = ["ByOutput", "NoNoiseTerm", "NoShrinkage", "OneSided", "Product"]


class _Wrapper(WeightFunction):
    """A weight function made of another one."""

    def __init__(self, weight: WeightFunction) -> None:
        super().__init__()
        if not isinstance(weight, WeightFunction):
            raise TypeError(f"weight must be a WeightFunction, got {type(weight).__name__}")
        self.weight = weight

    @property
    def constant_in_y(self) -> bool:  # type: ignore[override]
        """Whether the wrapped weight is."""
        return bool(self.weight.constant_in_y)

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        w: Tensor = self.weight(residual, inputs, noise)
        return w

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return self.weight.slope(residual, inputs, noise)

    def initialise(self, residual: Tensor) -> None:
        self.weight.initialise(residual)

    def frozen(self, residual: Tensor) -> WeightFunction:
        clone = copy.deepcopy(self)
        clone.weight = self.weight.frozen(residual)
        return clone

    def of_row(self, row: int) -> WeightFunction:
        clone = copy.deepcopy(self)
        clone.weight = self.weight.of_row(row)
        return clone


class OneSided(_Wrapper):
    """Down-weight deviations on one side only; on the other side w̃ = 1.

    Robust against outliers on that side only.

    Args:
        weight: the weight function of the down-weighted side.
        side: ``"above"`` or ``"below"`` the prior mean.
    """

    def __init__(self, weight: WeightFunction, side: str) -> None:
        super().__init__(weight)
        if side not in ("above", "below"):
            raise ValueError(f'side must be "above" or "below", got {side!r}')
        self.side = side

    def extra_repr(self) -> str:
        return f"side={self.side!r}"

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        w = super().forward(residual, inputs, noise)
        return torch.where(self._down_weighted(residual), w, torch.ones_like(w))

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        slope = super().slope(residual, inputs, noise)
        return torch.where(self._down_weighted(residual), slope, torch.zeros_like(slope))

    def _down_weighted(self, residual: Tensor) -> Tensor:
        return residual > 0 if self.side == "above" else residual < 0


class NoShrinkage(_Wrapper):
    """The paper's ablation without the shrinkage term: pseudo-targets stay at y, pseudo-noise is weighted."""

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


class NoNoiseTerm(_Wrapper):
    """The paper's ablation without the noise term: every point keeps noise σ², pseudo-targets are shifted."""

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.ones_like(residual)


class _Combined(WeightFunction):
    """A weight function made of several others."""

    def __init__(self, *weights: WeightFunction) -> None:
        super().__init__()
        if not weights or not all(isinstance(weight, WeightFunction) for weight in weights):
            raise TypeError(f"{type(self).__name__} takes one or more WeightFunctions")
        self.weights = nn.ModuleList(weights)

    @property
    def constant_in_y(self) -> bool:  # type: ignore[override]
        """Whether every part is."""
        return all(bool(weight.constant_in_y) for weight in self.parts)

    @property
    def parts(self) -> tuple[WeightFunction, ...]:
        """The weight functions that it is made of."""
        return cast(tuple[WeightFunction, ...], tuple(self.weights))


class Product(_Combined):
    """w̃ = Π_k w̃_k; the slopes add. Robust if one factor is."""

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.stack([weight(residual, inputs, noise) for weight in self.weights]).prod(dim=0)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.stack([weight.slope(residual, inputs, noise) for weight in self.parts]).sum(dim=0)

    def initialise(self, residual: Tensor) -> None:
        for weight in self.parts:
            weight.initialise(residual)

    def frozen(self, residual: Tensor) -> WeightFunction:
        clone = copy.deepcopy(self)
        clone.weights = nn.ModuleList(weight.frozen(residual) for weight in self.parts)
        return clone

    def of_row(self, row: int) -> WeightFunction:
        clone = copy.deepcopy(self)
        clone.weights = nn.ModuleList(weight.of_row(row) for weight in self.parts)
        return clone


class ByOutput(_Combined):
    """A weight function for each of T outputs; the last column of the inputs is the number of the output.

    Each gets the residuals of its own rows and the noise variance of its output. So a threshold is that of the output,
    and a bad value does not down-weight other cells of its row.

    Args:
        weights: one weight function for each output.
    """

    @property
    def outputs(self) -> tuple[WeightFunction, ...]:
        """The weight function of each output."""
        return self.parts

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return self._of_rows(residual, inputs, noise, [weight.forward for weight in self.outputs])

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return self._of_rows(residual, inputs, noise, [weight.slope for weight in self.outputs])

    def frozen(self, residual: Tensor) -> WeightFunction:
        """Raises TypeError: the rows of each output are not known here."""
        raise TypeError("the rows of each output are not known: use MultiOutputRCGP.frozen_weight()")

    def of_row(self, row: int) -> WeightFunction:
        """Raises TypeError: the rows of each output are not known here."""
        raise TypeError("the rows of each output are not known: use MultiOutputRCGP.weight_of_row(row)")

    @staticmethod
    def _of_rows(
        residual: Tensor, inputs: Tensor, noise: Tensor, functions: list[Callable[[Tensor, Tensor, Tensor], Tensor]]
    ) -> Tensor:
        """A function of each output on its rows: ``... x n``.

        Args:
            residual: ``... x n`` residuals.
            inputs: ``... x n x (d + 1)`` inputs.
            noise: ``... x T`` noise variances.
            functions: map residuals, inputs without the last column and noise variance to a number for each row.
        """
        if residual.ndim > 1:  # a batch, whose members may have different rows of an output
            batch, n = residual.shape[:-1], residual.shape[-1]
            parts = zip(
                residual.reshape(-1, n),
                inputs.expand(*batch, *inputs.shape[-2:]).reshape(-1, *inputs.shape[-2:]),
                noise.expand(*batch, noise.shape[-1]).reshape(-1, noise.shape[-1]),
                strict=True,
            )
            return torch.stack([ByOutput._of_rows(*part, functions) for part in parts]).reshape(residual.shape)
        number, values = inputs[:, -1], torch.zeros_like(residual)
        for output, function in enumerate(functions):
            rows = (number == output).nonzero().squeeze(-1)
            if len(rows):
                found = function(residual[rows], inputs[rows, :-1], noise[output])
                values = values.index_copy(0, rows, found)
        return values
