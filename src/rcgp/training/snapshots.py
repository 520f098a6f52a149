"""The hyperparameters of a model: where searches begin, and what to come back to after one that led nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rcgp.models import RCGP

__all__ = ["hyperparameters_of", "restore_hyperparameters", "scale_lengthscales", "shorter_starts"]


# Factors on the first lengthscales that are looked at, too: each about a third of the one before.
_SHORTER = (0.3, 0.1)

# Part of a bound by which scaled lengthscales stay away from it: at a bound most constraints have no gradient.
_MARGIN = 0.01


def hyperparameters_of(model: RCGP) -> list[Tensor]:
    """A copy of each parameter."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def restore_hyperparameters(model: RCGP, values: list[Tensor]) -> None:
    """Write the copies back, to the bit; the model must have the same parameters as then."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


def shorter_starts(model: RCGP) -> Iterator[None]:
    """Give a model its present hyperparameters with shorter lengthscales, a third and a tenth.

    A function that is faster than its first lengthscales looks like noise from there. The model stays where the caller
    leaves it.
    """
    first = hyperparameters_of(model)
    for factor in _SHORTER:
        restore_hyperparameters(model, first)
        scale_lengthscales(model, factor)
        yield


def scale_lengthscales(model: RCGP, factor: float) -> None:
    """Multiply every lengthscale that is fitted by a factor, within its bounds."""
    with torch.no_grad():
        for part in model.kernel.modules():
            raw = getattr(part, "raw_lengthscale", None)
            if raw is not None and raw.requires_grad:
                constraint = part.raw_lengthscale_constraint
                lower, upper = (1.0 + _MARGIN) * constraint.lower_bound, (1.0 - _MARGIN) * constraint.upper_bound
                part.lengthscale = (part.lengthscale * factor).clamp(lower, upper)
