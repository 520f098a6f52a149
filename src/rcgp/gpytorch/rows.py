"""Shared by the likelihoods: a noise variance for each task, and rows of one task or several in one layout."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from rcgp.models.defaults import NORMAL_MAD, AttributeOf, SetAttribute, above, robust_spreads
from rcgp.models.validation import as_real_tensor, check_finite

__all__ = ["FIRST_NOISE", "RowLikelihood", "target_spread"]

# Initial noise variance, in squared robust standard deviations of the targets: nearly all is noise, so that a
# model that knows nothing yet takes few rows for outliers. It is GPyTorch's own, log 2, for standardised targets.
FIRST_NOISE = 0.69

# Least noise variance, in the same unit: far below what rounding leaves of a table.
_NOISE_FLOOR = 1e-8


class RowLikelihood(gpytorch.likelihoods.Likelihood):  # type: ignore[misc]
    """A likelihood of independent rows with a noise variance σ², around targets of known centre and spread.

    Inside, tensors of rows are ``... x t x n`` for t tasks (1 without tasks), parameters ``... x t``.

    Args:
        targets: all training targets, ``... x n``, or ``... x n x t`` for t tasks.
        num_tasks: number t of tasks; ``None`` for a model of one output.
        batch_shape: shape of a batch of independent models.
        centre: prior mean of the targets. Default: their median.
        noise: noise variance to start from. Default: 0.69 squared robust spreads.
        noise_prior: prior of the noise variance.
        noise_constraint: its constraint. Default: positive, on a logarithmic scale.
    """

    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        targets: Tensor,
        num_tasks: int | None,
        batch_shape: torch.Size,
        centre: float | Tensor | None,
        noise: float | Tensor | None,
        noise_prior: gpytorch.priors.Prior | None,
        noise_constraint: gpytorch.constraints.Interval | None,
    ) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        rows = self._training_rows(targets)  # ... x t x n
        shape = torch.Size((*batch_shape, num_tasks or 1))
        try:
            rows[..., 0].expand(shape)
        except RuntimeError as error:
            remedy = "; for n x 1 give targets.squeeze(-1)" if num_tasks is None and rows.shape[-1] == 1 else ""
            got = f"targets of shape {tuple(self._restored(rows).shape)} do not fit batch_shape={tuple(batch_shape)}"
            raise ValueError(got + remedy) from error
        self.num_rows = rows.shape[-1]
        middle = (
            rows.quantile(0.5, dim=-1)
            if centre is None
            else torch.as_tensor(centre, dtype=rows.dtype, device=rows.device)
        )
        self.register_buffer("centre", _expanded(middle, shape, "centre"))
        spread = target_spread(rows - middle.unsqueeze(-1))
        self.register_buffer("spread", spread.expand(shape).clone())
        self.register_parameter("raw_noise", torch.nn.Parameter(rows.new_zeros(shape)))
        if noise_prior is not None:
            self.register_prior("noise_prior", noise_prior, AttributeOf("noise"), SetAttribute("noise"))
        floor = above(_NOISE_FLOOR * float(spread.min()) ** 2)
        self.register_constraint("raw_noise", floor if noise_constraint is None else noise_constraint)
        self.noise = FIRST_NOISE * self.spread.square() if noise is None else noise

    @property
    def noise(self) -> Tensor:
        """Noise variance σ², ``... x t``: one for each task."""
        value: Tensor = self.raw_noise_constraint.transform(self.raw_noise)
        return value

    @noise.setter
    def noise(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value, dtype=self.raw_noise.dtype, device=self.raw_noise.device)
        if not bool((value.isfinite() & (value > 0)).all()):
            raise ValueError(f"noise must be a positive variance, got {value.tolist()}")
        self.initialize(raw_noise=self.raw_noise_constraint.inverse_transform(value).expand_as(self.raw_noise))

    def _training_rows(self, targets: Any) -> Tensor:
        rows = as_real_tensor(targets, "targets").detach()
        if rows.ndim < (1 if self.num_tasks is None else 2) or rows.shape[-1] == 0:
            raise ValueError(f"targets must have shape n, or n x t for num_tasks=t, got {tuple(rows.shape)}")
        check_finite(rows.reshape(-1), "targets")
        return self._laid_out(rows, "targets")

    def _laid_out(self, values: Tensor, name: str) -> Tensor:
        """Values of rows as ``... x t x n``."""
        if self.num_tasks is None:
            return values.unsqueeze(-2)
        if values.shape[-1] != self.num_tasks:
            raise ValueError(
                f"{name} must end with num_tasks={self.num_tasks} columns, got shape {tuple(values.shape)}"
            )
        return values.mT

    def _restored(self, values: Tensor) -> Tensor:
        """Values ``... x t x n`` in the layout of the function: ``... x n``, or ``... x n x t`` with tasks."""
        return values.squeeze(-2) if self.num_tasks is None else values.mT

    def _moments(self, function_dist: MultivariateNormal) -> tuple[Tensor, Tensor]:
        """Mean and variance of f, each ``... x t x n``."""
        several = len(function_dist.event_shape) == 2
        if several != (self.num_tasks is not None):
            got = f"has {function_dist.event_shape[-1]} tasks" if several else "has one output"
            raise ValueError(f"num_tasks={self.num_tasks}, but the distribution of the function {got}")
        mean, variance = function_dist.mean, function_dist.variance
        own = torch.Size((*self.raw_noise.shape[:-1], 1))
        try:
            torch.broadcast_shapes(mean.shape[: 1 - len(function_dist.event_shape) or None], own)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            message = f"the likelihood has batch_shape {tuple(own[:-1])}, the function the shape {tuple(mean.shape)}"
            raise ValueError(f"{message}: they do not fit together") from error
        return self._laid_out(mean, "the function"), self._laid_out(variance, "the function").clamp_min(0.0)

    def _observed(self, observations: Tensor, function_dist: MultivariateNormal) -> Tensor:
        """Observations ``... x t x n``, or an error that names what is wrong with them."""
        shape = function_dist.mean.shape
        event = len(function_dist.event_shape)
        try:
            torch.broadcast_shapes(observations.shape, shape)  # type: ignore[no-untyped-call]
            fits = observations.shape[-event:] == shape[-event:]
        except RuntimeError:
            fits = False
        if not fits:
            got = f"{tuple(observations.shape)} and {tuple(shape)}"
            raise ValueError(f"observations and function must have one value for each row, got the shapes {got}")
        if not bool(observations.isfinite().all()):
            place = (~observations.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"observations must be finite: entry {place} is not; leave the row out")
        return self._laid_out(observations, "observations")


def target_spread(deviation: Tensor) -> Tensor:
    """Standard deviation of ``... x n`` deviations of targets from their centre, robust to a quarter of outliers.

    By their median size, or by the width of their middle half, whichever is larger: where half of the targets agree, as
    on one side of a step, the median size is that of their noise, and the other half would start as outliers.
    """
    low, high = deviation.quantile(deviation.new_tensor([0.25, 0.75]), dim=-1)
    return torch.maximum(robust_spreads(deviation), (high - low) / (2.0 * NORMAL_MAD))


def _expanded(values: Tensor, shape: torch.Size, name: str) -> Tensor:
    try:
        return values.expand(shape).clone()
    except RuntimeError as error:
        raise ValueError(
            f"{name} must fit a batch of {tuple(shape[:-1])} with {shape[-1]} task(s), got {tuple(values.shape)}"
        ) from error
