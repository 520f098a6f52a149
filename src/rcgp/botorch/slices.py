"""Modules that hold hyperparameters for a batch of models: some of the batch, and back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["is_batched", "sliced", "write_slice"]

#: Where in the batch dimensions: a number, a list of numbers or a slice for each of them.
Index = tuple[Any, ...]


def is_batched(module: nn.Module, batch_shape: torch.Size) -> bool:
    """Whether every parameter of a module has an entry for each model of the batch; none is shared."""
    return all(_has_batch(parameter, batch_shape) for parameter in module.parameters())


def sliced(module: Any, batch_shape: torch.Size, index: Index) -> Any:
    """A copy of a module for some models of the batch; what all models share is copied as it is.

    Args:
        module: a GPyTorch module.
        batch_shape: shape of the batch.
        index: which models.
    """
    clone = copy.deepcopy(module)
    if not batch_shape or not is_batched(clone, batch_shape):
        return clone
    kept = torch.empty(batch_shape)[index].shape
    for part in clone.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and _has_batch(tensor, batch_shape):
                    tensors[name] = _like(tensor, tensor.detach()[index])
        if getattr(part, "batch_shape", None) == batch_shape:
            part.batch_shape = kept
    return clone


def write_slice(module: nn.Module, index: Index, values: nn.Module) -> None:
    """Write the parameters of one model's module, as :func:`sliced` made it, back into those of the batch."""
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values.parameters(), strict=True):
            parameter[index].copy_(value)


def _has_batch(tensor: Tensor, batch_shape: torch.Size) -> bool:
    return tensor.shape[: len(batch_shape)] == batch_shape


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    values = values.clone()
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
