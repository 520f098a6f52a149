"""The predictive distribution of good observations: a mixture of normal distributions of one mean."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from rcgp.weights.quantiles import mixture_quantile

__all__ = ["NoiseMixture"]


class NoiseMixture(MixtureSameFamily):
    """Σ_k π_k N(m, v + σ²s_k²) at each row: mean, variance, log density, samples, and quantiles.

    Args:
        shares: ``... x 4`` shares of the scales among good observations.
        mean: ``...`` means m.
        variance: ``... x 4`` variances v + σ²s_k².
    """

    def __init__(self, shares: Tensor, mean: Tensor, variance: Tensor) -> None:
        self._shares = shares.expand_as(variance)
        parts = Normal(mean.unsqueeze(-1).expand_as(variance), variance.sqrt(), validate_args=False)
        super().__init__(Categorical(probs=self._shares), parts, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NoiseMixture:
        """The same distributions with a larger batch shape."""
        normal = self._components()
        shape = (*batch_shape, normal.loc.shape[-1])
        variance = normal.scale.square().expand(shape)
        return NoiseMixture(self._shares.expand(shape), normal.loc[..., 0].expand(batch_shape), variance)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density; a scale without a share adds nothing."""
        terms = self._components().log_prob(value.unsqueeze(-1))  # type: ignore[no-untyped-call]
        return torch.logsumexp(terms + self._shares.log(), dim=-1)

    def quantile(self, q: float | Tensor) -> Tensor:
        """The value below which an observation lies with probability ``q``, which broadcasts with the rows."""
        normal = self._components()
        level = torch.as_tensor(q, dtype=normal.loc.dtype, device=normal.loc.device)
        if not bool(((level > 0.0) & (level < 1.0)).all()):
            raise ValueError(f"q must hold probabilities in (0, 1), got {q!r}")
        level = level.expand(torch.broadcast_shapes(level.shape, normal.loc.shape[:-1]))  # type: ignore[no-untyped-call]
        return mixture_quantile(level, self._shares, normal.loc, normal.scale)

    def confidence_region(self) -> tuple[Tensor, Tensor]:
        """Ends of the central interval that holds 95 % of good observations."""
        return self.quantile(0.025), self.quantile(0.975)

    def _components(self) -> Normal:
        return cast(Normal, self.component_distribution)
