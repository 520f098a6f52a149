"""Weights that do not depend on y: the ordinary GP, and one with noise of its own at each point."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rcgp.weights.base import WeightFunction

__all__ = ["Constant", "Heteroskedastic"]


class Constant(WeightFunction):
    """w̃ = 1: every observation is trusted. The standard GP."""

    constant_in_y = True

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.ones_like(residual)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


class Heteroskedastic(WeightFunction):
    """w̃ = σ / r(x): a GP whose noise at x has standard deviation r(x). Not robust.

    The pseudo-noise σ²/w̃² is r(x)², whatever σ is; so the weight may exceed 1, where r(x) < σ. σ² itself then has no
    effect on the posterior of f: it is what ``posterior(..., observation_noise=True)`` adds and leave-one-out assumes.

    Args:
        noise_rate: the callable r, from ``... x n x d`` inputs to ``... x n`` positive numbers. A torch module given
            as r is not trained.
    """

    constant_in_y = True

    def __init__(self, noise_rate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if not callable(noise_rate):
            raise TypeError(f"noise_rate must be a callable r(x), got {type(noise_rate).__name__}")
        # In a tuple, so that a torch module given as a function is not registered and trained.
        self._noise_rate = (noise_rate,)
        self._dtype: torch.dtype | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Heteroskedastic:
        clone = type(self)(self._noise_rate[0])  # not every function can be copied
        clone._dtype = self._dtype
        return clone

    def initialise(self, residual: Tensor) -> None:
        self._dtype = residual.dtype  # a fit in higher precision still calls r with the type that it knows

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            rate = self._noise_rate[0](inputs.to(self._dtype or inputs.dtype))
        if not isinstance(rate, Tensor) or rate.shape[-1:] != residual.shape[-1:]:
            got = tuple(rate.shape) if isinstance(rate, Tensor) else type(rate).__name__
            raise ValueError(f"noise_rate must give a tensor of shape {tuple(inputs.shape[:-1])}, got {got}")
        rate = rate.to(residual)
        if not bool((rate > 0).all()):
            row = int((~(rate > 0)).nonzero()[0, -1])
            raise ValueError(f"noise_rate must be positive: it is not in row {row}")
        return (noise.sqrt().unsqueeze(-1) / rate).expand_as(residual)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)
