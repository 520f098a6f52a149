"""The hyperparameters of a model, to come back to after a search that led nowhere."""

from __future__ import annotations

import torch
from torch import Tensor

from rcgp.models import RCGP

__all__ = ["hyperparameters_of", "restore_hyperparameters"]


def hyperparameters_of(model: RCGP) -> list[Tensor]:
    """A copy of each parameter."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def restore_hyperparameters(model: RCGP, values: list[Tensor]) -> None:
    """Write the copies back, to the bit; the model must have the same parameters as then."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
