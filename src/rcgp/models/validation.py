"""Checks of arguments: shapes, types and finiteness, with errors that name the problem, its place and a remedy.

Nothing is checked again further down.
"""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.models.kernel_matrix import dense_kernel

__all__ = [
    "as_real_tensor",
    "check_finite",
    "check_inputs",
    "check_kernel",
    "check_per_row",
    "check_sample_weight",
    "check_test_inputs",
    "check_training_data",
    "check_variance",
]


def check_training_data(train_X: Any, train_y: Any) -> tuple[Tensor, Tensor]:
    """Training data as detached copies of one floating type, or a ValueError that names the argument and the row.

    Integers and other arrays become float64, half precision becomes float32; both get the wider of their types.

    Args:
        train_X: ``n x d`` inputs, n and d at least 1: a tensor or anything that numpy reads as an array.
        train_y: ``n`` observations, likewise.
    """
    X, y = as_real_tensor(train_X, "train_X"), as_real_tensor(train_y, "train_y")
    if X.ndim != 2:
        hint = "; for a single feature use train_X.unsqueeze(-1)" if X.ndim == 1 else ""
        raise ValueError(f"train_X must have shape n x d, got {tuple(X.shape)}{hint}")
    if y.ndim != 1:
        hint = "; use train_y.squeeze(-1)" if y.ndim == 2 and y.shape[-1] == 1 else ""
        raise ValueError(f"train_y must have shape n, got {tuple(y.shape)}{hint}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(
            f"train_X is empty: it has {X.shape[0]} rows and {X.shape[1]} columns, at least one of each is needed"
        )
    if X.shape[0] != y.shape[0]:
        raise ValueError(f"train_X and train_y must have the same number of rows, got {X.shape[0]} and {y.shape[0]}")
    if X.device != y.device:
        raise ValueError(f"train_X and train_y must be on the same device, got {X.device} and {y.device}")
    check_finite(X, "train_X")
    check_finite(y, "train_y")
    dtype = torch.promote_types(X.dtype, y.dtype)
    # Copies, so that a change of the caller's tensors does not change the model.
    X, y = (values.detach().to(dtype).clone(memory_format=torch.contiguous_format) for values in (X, y))
    return X, y


def check_inputs(train_X: Any) -> Tensor:
    """Training inputs ``n x d``, n and d at least 1, as a tensor; or a ValueError."""
    X = as_real_tensor(train_X, "train_X")
    if X.ndim != 2 or not X.numel():
        hint = "; for a single feature use train_X.unsqueeze(-1)" if X.ndim == 1 else ""
        raise ValueError(f"train_X must have shape n x d, at least 1 x 1, got {tuple(X.shape)}{hint}")
    check_finite(X, "train_X")
    return X


def check_test_inputs(test_X: Any, train_X: Tensor) -> Tensor:
    """Test inputs ``... x q x d`` in the type of the training inputs, or a ValueError; gradients pass through."""
    X = as_real_tensor(test_X, "test_X")
    d = train_X.shape[-1]
    if X.ndim < 2 or X.shape[-1] != d:
        hint = "; for points of one input use test_X.unsqueeze(-1)" if X.ndim == d == 1 else ""
        raise ValueError(f"test_X must have shape ... x q x {d} like the training inputs, got {tuple(X.shape)}{hint}")
    if X.numel() == 0:
        raise ValueError(f"test_X is empty: its shape is {tuple(X.shape)}")
    if X.device != train_X.device:
        raise ValueError(f"test_X is on {X.device} but the model on {train_X.device}; move one of them with .to(...)")
    check_finite(X, "test_X")
    return X.to(train_X.dtype)


def check_finite(values: Tensor, name: str, columns: Any = None, missing: bool = False) -> None:
    """Raise a ValueError that names the argument and the first row, and column, that is NaN or infinite.

    Args:
        values: ``n`` or ``... x n x d`` numbers.
        name: the argument's name.
        columns: ``d`` names of the columns, or ``None``.
        missing: allow NaN, a missing value.
    """
    bad = values.isinf() if missing else ~values.isfinite()
    if not bool(bad.any()):
        return
    *_, row, column = (0, 0, *bad.nonzero()[0].tolist()) if values.ndim == 1 else bad.nonzero()[0].tolist()
    label = column if columns is None else repr(str(columns[column]))
    where = f"row {column}" if values.ndim == 1 else f"row {row}, column {label}"
    value = str(float(values[bad][0])).replace("nan", "NaN")
    bad_rows = int((bad if values.ndim == 1 else bad.any(dim=-1)).sum())
    many = "s" if bad_rows != 1 else ""
    raise ValueError(f"{name} contains {value} in {where} ({bad_rows} bad row{many} in all); drop or impute such rows")


def check_variance(noise: Any, like: Tensor) -> Tensor:
    """Noise variances in the shape of another tensor, in float64: one positive number, or one for each output."""
    outputs = like.numel()
    try:
        values = torch.as_tensor(noise, dtype=torch.float64).detach().to(like.device)
    except (TypeError, ValueError, RuntimeError):
        values = torch.empty(0)
    if isinstance(noise, bool) or values.numel() not in (1, outputs):
        wanted = "one number" if outputs == 1 else f"one number, or {outputs}: one for each output"
        raise TypeError(f"noise must be {wanted}, got {noise!r}")
    if bad := [value for value in values.reshape(-1).tolist() if not (math.isfinite(value) and value > 0)]:
        raise ValueError(f"noise must be a positive variance, got {bad[0]}")
    return values.reshape(like.shape) if values.numel() == outputs else values.reshape(()).expand_as(like)


def check_sample_weight(sample_weight: Any, X: Tensor) -> Tensor:
    """Factors on the precision of each row of ``n x d`` inputs as a copy in their type, or a ValueError."""
    weights = as_real_tensor(sample_weight, "sample_weight").detach().to(X, copy=True)
    if weights.shape != X.shape[:1]:
        raise ValueError(
            f"sample_weight must have one number for each of the {X.shape[0]} rows, got {tuple(weights.shape)}"
        )
    check_finite(weights, "sample_weight")
    if not bool((weights > 0).all()):
        row = int((weights <= 0).nonzero()[0])
        raise ValueError(
            f"sample_weight must be positive, got {float(weights[row])} in row {row}; leave out rows of no weight"
        )
    return weights


def check_per_row(values: Any, X: Tensor, name: str, least: float = -math.inf) -> None:
    """Raise a ValueError unless ``mean`` or ``weight`` returned a finite number, not below ``least``, for each row."""
    if not isinstance(values, Tensor) or values.shape != X.shape[:1]:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name} must give one number for each of the {X.shape[0]} rows of train_X, got {got}")
    bad = ~(values.isfinite() & (values >= least))
    if bool(bad.any()):
        limit = "" if least == -math.inf else f" and at least {least:g}"
        row = int(bad.nonzero()[0])
        raise ValueError(f"{name} must be finite{limit}: it gives {float(values[row])} in row {row} of train_X")


def check_kernel(kernel: gpytorch.kernels.Kernel, X: Tensor) -> None:
    """Raise a ValueError unless the kernel can be evaluated on the first rows and has one output."""
    few = X[:2]
    try:
        with torch.no_grad():
            shape = dense_kernel(kernel, few, few).shape
    except Exception as error:
        raise ValueError(
            f"the kernel cannot be evaluated on train_X, which has {X.shape[1]} columns: {error}"
        ) from error
    if shape != (len(few), len(few)):
        raise ValueError(f"the kernel must have one output: for {len(few)} rows of train_X it gives {tuple(shape)}")


def as_real_tensor(values: Any, name: str) -> Tensor:
    """An array of numbers as a real floating tensor, or a ValueError that names the argument."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(_array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be read as a tensor of numbers: {error}") from error
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} must be dense, got layout {tensor.layout}; use .to_dense()")
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _array(values: Any) -> NDArray[Any]:
    """Through numpy, which reads lists and data frames as float64; a copy, since arrays may be read-only."""
    array = np.array(values, order="C")
    if array.dtype.kind in "mM" or any(isinstance(first, date) for first in array.flat[:1].tolist()):
        raise ValueError("it holds dates; give numbers, such as days since the first one")
    return array
