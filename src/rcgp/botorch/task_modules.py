"""Prior mean, kernel and noise of inputs in which one column is the number of a task.

BoTorch's models have that column anywhere, :class:`rcgp.MultiOutputRCGP` has it last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from botorch.models.kernels.positive_index import PositiveIndexKernel
from gpytorch.likelihoods import HadamardGaussianLikelihood
from torch import Tensor

from rcgp.models.coregion import OutputKernel
from rcgp.models.kernel_matrix import dense_kernel, kernel_matrix

__all__ = ["MappedTaskLikelihood", "MeanOfTask", "TaskKernel", "TaskMean", "insert_task", "name_prior"]


def insert_task(x: Tensor, number: Tensor, column: int) -> Tensor:
    """Inputs ``... x n x (d + 1)`` of ``... x n x d`` inputs, with ``... x n`` numbers of tasks as a column."""
    return torch.cat([x[..., :column], number.to(x).unsqueeze(-1), x[..., column:]], dim=-1)


class TaskMean(gpytorch.means.Mean):  # type: ignore[misc]
    """A prior mean of ``... x n x (d + 1)`` inputs: a ``MultitaskMean`` of d columns, or any mean of all columns."""

    def __init__(self, mean: gpytorch.means.Mean, column: int) -> None:
        super().__init__()
        self.mean, self.column = mean, column

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor
        if not isinstance(self.mean, gpytorch.means.MultitaskMean):
            value = self.mean(x)
            return value
        task = x[..., self.column].long().unsqueeze(-1)
        value = self.mean(torch.cat([x[..., : self.column], x[..., self.column + 1 :]], dim=-1))
        return value.expand(*task.shape[:-1], -1).gather(-1, task).squeeze(-1)


class MeanOfTask(gpytorch.means.Mean):  # type: ignore[misc]
    """The prior mean of one task, of ``... x n x d`` inputs."""

    def __init__(self, mean: TaskMean, task: int) -> None:
        super().__init__()
        self.mean, self.task = mean, task

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.mean(insert_task(x, x.new_full(x.shape[:-1], self.task), self.mean.column))
        return value


class TaskKernel(OutputKernel):
    """A kernel with the number of a task in one column as one of inputs (x, t).

    Args:
        base: the kernel.
        column: the column that the task has for it.
        tasks: the task of each output t.
    """

    number: Tensor

    def __init__(self, base: gpytorch.kernels.Kernel, column: int, tasks: Sequence[int]) -> None:
        super().__init__()
        self.base, self.column = base, column
        self.register_buffer("number", torch.tensor(list(tasks), dtype=torch.float64))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        first = self._placed(x1)
        second = first if x1 is x2 or torch.equal(x1, x2) else self._placed(x2)
        value: Tensor = self.base(first, second, diag=True) if diag else dense_kernel(self.base, first, second)
        return value

    def matrix(self, points: Tensor, row: Tensor, output: Tensor) -> Tensor:
        """The kernel matrix of N cells; of a product, that of each factor with its own gradient."""
        x = insert_task(points[row], self.number[output], self.column)
        if type(self.base) is not gpytorch.kernels.ProductKernel or self.base.active_dims is not None:
            return kernel_matrix(self.base, x)
        return math.prod((kernel_matrix(part, x) for part in self.base.kernels), start=x.new_ones(()))

    def _placed(self, x: Tensor) -> Tensor:
        return insert_task(x[..., :-1], self.number[x[..., -1].long()], self.column)


class MappedTaskLikelihood(HadamardGaussianLikelihood):  # type: ignore[misc]
    """A noise variance for each task, whatever the values of the tasks are.

    GPyTorch's takes tasks to be 0 to T − 1, and gives others no noise at all.

    Args:
        tasks: values of the tasks, sorted.
        task_feature_index: their column in the inputs.
        kwargs: as for ``HadamardGaussianLikelihood``.
    """

    tasks: Tensor

    def __init__(self, tasks: Sequence[int], task_feature_index: int, **kwargs: Any) -> None:
        super().__init__(num_tasks=len(tasks), task_feature_index=task_feature_index, **kwargs)
        self.register_buffer("tasks", torch.tensor(list(tasks)), persistent=False)

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Any:
        if not params:
            return super()._shaped_noise_covar(base_shape, **kwargs)
        X = params[0] if isinstance(params[0], Tensor) else params[0][0]
        column = self.task_feature_index if X.shape[-1] > 1 else 0
        number = torch.searchsorted(self.tasks, X[..., column].long().contiguous())
        return super()._shaped_noise_covar(base_shape, number.unsqueeze(-1), *params[1:], **kwargs)


def name_prior(kernel: PositiveIndexKernel) -> None:
    """Register the prior of the tasks' correlations once more, by functions that can be pickled."""
    if hasattr(kernel, "IndexKernelPrior"):
        kernel.register_prior("IndexKernelPrior", kernel.IndexKernelPrior, _correlations, _set_correlations)


def _correlations(kernel: PositiveIndexKernel) -> Tensor:
    values: Tensor = kernel._lower_triangle_corr
    return values


def _set_correlations(kernel: PositiveIndexKernel, values: Tensor) -> None:
    kernel._set_lower_triangle_corr(values)
