"""Inducing points of sparse models: checks, and their choice among the rows."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rcgp.models.defaults import robust_scales
from rcgp.models.kernel_matrix import kernel_rows
from rcgp.models.validation import as_real_tensor, check_finite

__all__ = ["CANDIDATES", "SELECTIONS", "check_inducing", "check_selection", "choose_inducing"]

#: Rules for the choice of inducing points.
SELECTIONS = ("greedy", "kmeans")

#: Most candidates: from more rows a random sample of this size is drawn.
CANDIDATES = 20_000

# Share of the prior variance left at a row, below which a point there adds nothing. The choice ends there, so that the
# kernel matrix of the points can be inverted.
_NOTHING_NEW = 1e-8

# Inputs are clipped at this many scales of their column: k-means++ computes distances from squares.
_FARTHEST = 1e4


def check_selection(selection: str) -> None:
    """Raise a ValueError for an unknown rule."""
    if selection not in SELECTIONS:
        raise ValueError(f"selection must be one of {', '.join(map(repr, SELECTIONS))}, got {selection!r}")


def check_inducing(inducing: Any, train_X: Tensor) -> int | Tensor:
    """A number of inducing points, at least one, or ``m x d`` points in the type of the inputs; or an error."""
    if not isinstance(inducing, bool) and isinstance(inducing, Integral):
        if int(inducing) < 1:
            raise ValueError(f"inducing must be at least 1, got {inducing}")
        return int(inducing)
    if not isinstance(inducing, Tensor | np.ndarray):
        raise TypeError(f"inducing must be a number of points or an m x d tensor of them, got {inducing!r}")
    points, d = as_real_tensor(inducing, "inducing"), train_X.shape[-1]
    if points.ndim != 2 or points.shape[1] != d or points.shape[0] == 0:
        raise ValueError(f"inducing must have shape m x {d} like the training inputs, got {tuple(points.shape)}")
    check_finite(points, "inducing")
    return points.detach().to(train_X).clone()


def choose_inducing(
    kernel: gpytorch.kernels.Kernel, X: Tensor, count: int, selection: str = "greedy", seed: int = 0
) -> Tensor:
    """Choose inducing points among the rows of X.

    ``"greedy"`` takes, one after the other, the row with the largest prior variance given the points chosen before: a
    pivoted Cholesky factorisation of the kernel matrix that computes the chosen rows only. It ends early if
    the variance left at every row is below 1e-8 of its prior variance. ``"kmeans"`` draws rows by k-means++, far from
    each other in units of the columns' scales, and does not use the kernel.

    Args:
        kernel: the kernel at its present hyperparameters.
        X: ``n x d`` inputs.
        count: number of points, at most n.
        selection: ``"greedy"`` or ``"kmeans"``.
        seed: of the sample of 20 000 candidates, if there are more rows, and of k-means++.

    Returns:
        ``m x d`` points, m ≤ count. Cost O(min(n, 20 000) m²), for ``"greedy"`` in a ``count x min(n, 20 000)`` matrix.
    """
    check_selection(selection)
    random = np.random.default_rng(seed)
    if X.shape[0] > CANDIDATES:
        X = X[torch.from_numpy(np.sort(random.choice(X.shape[0], CANDIDATES, replace=False))).to(X.device)]
    count = min(count, X.shape[0])
    if selection == "greedy":
        return X[_greedy(kernel, X, count)].clone()
    from sklearn.cluster import kmeans_plusplus  # takes a second to import

    scaled = ((X - X.median(dim=0).values) / robust_scales(X)).clamp(-_FARTHEST, _FARTHEST).cpu().numpy()
    _, rows = kmeans_plusplus(scaled, count, random_state=int(random.integers(2**31 - 1)))
    return X[torch.from_numpy(np.unique(rows)).to(X.device)].clone()


def _greedy(kernel: gpytorch.kernels.Kernel, X: Tensor, count: int) -> Tensor:
    """Numbers of the pivot rows of a Cholesky factorisation of the kernel matrix."""
    with torch.no_grad():
        left: Tensor = kernel(X, diag=True).clone()  # n, the variance left
        enough = _NOTHING_NEW * left
        factor = X.new_empty(count, X.shape[0])  # count x n
        chosen: list[int] = []
        row_of = kernel_rows(kernel, X)
        for k in range(count):
            row = int(left.argmax())
            if not bool(left[row] > enough[row]):
                break
            column = row_of(row)
            column -= factor[:k, row] @ factor[:k]
            factor[k] = column / left[row].sqrt()
            left = (left - factor[k].square()).clamp_min_(0.0)
            left[row] = 0.0
            chosen.append(row)
    if not chosen:
        raise ValueError("no inducing point can be chosen: the variance of the kernel is zero or NaN")
    return torch.tensor(chosen, device=X.device)
