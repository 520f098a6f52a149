"""Tensors on their way between processes."""

from __future__ import annotations

import io
import pickle
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import cloudpickle
import torch
from torch import Tensor

__all__ = ["Packed"]

T = TypeVar("T")


class Packed(Generic[T]):
    """A value whose tensors travel as plain arrays of their own numbers.

    Torch itself sends the whole storage that a tensor is a part of: a slice of a large matrix would take all of it
    along, and keep it in memory at the other end. The size is that of the tensors, by which Dask decides whether to
    move the data or the work.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (_packed(self.value),)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + _bytes(self.value)


def _bytes(value: Any) -> int:
    """Bytes of the tensors in a value: by itself, in a module, or as members of a tuple, list, dict or dataclass."""
    if isinstance(value, Tensor):
        return value.element_size() * value.nelement()
    if isinstance(value, torch.nn.Module):
        return sum(map(_bytes, [*value.parameters(), *value.buffers()]))
    if isinstance(value, tuple | list):
        return sum(map(_bytes, value))
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # not typed
    def reducer_override(self, value: Any) -> Any:
        # What numpy cannot hold, or what is more than numbers, goes as torch would send it.
        plain = type(value) is Tensor and value.layout == torch.strided and value.dtype != torch.bfloat16
        if plain and value.device.type == "cpu" and not value.requires_grad:
            return _tensor, (value.contiguous().numpy(force=True),)
        return super().reducer_override(value)


def _packed(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return file.getvalue()


def _unpacked(content: bytes) -> Packed[Any]:
    return Packed(pickle.loads(content))


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
