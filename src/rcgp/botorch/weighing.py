"""Weights and pseudo-data of a batch of models at given hyperparameters.

With a noise law the weights are computed as in a robust fit (:mod:`rcgp.training.robust`), in a fixed number of
expectation steps from data, hyperparameters and law alone. So a model that is loaded, or conditioned on further
observations, has the weights of a model of all the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut, leave_one_out, log_density
from rcgp.core.noise_law import weigh_rows
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models.defaults import robust_spreads
from rcgp.weights import WeightFunction
from rcgp.weights.noise_law import responsibilities

__all__ = ["Tasks", "Weighed", "law_parts", "weigh"]


@dataclass(frozen=True)
class Tasks:
    """Which task each row belongs to, where each task has a noise law and a weight function of its own.

    Attributes:
        inputs: ``... x n x (d + 1)`` inputs (x, t), the number of the task last.
        count: number T of tasks.
    """

    inputs: Tensor
    count: int

    @property
    def number(self) -> Tensor:
        """The number of each row's task, ``... x n``."""
        return self.inputs[..., -1].long()

    def spreads(self, residual: Tensor) -> Tensor:
        """Robust standard deviation of ``... x n`` residuals in each task, ``... x T``; differentiable."""
        return robust_spreads(residual.unsqueeze(-2), self._rows())

    def means(self, values: Tensor) -> Tensor:
        """Mean of ``... x n`` values in each task, ``... x T``."""
        rows = self._rows()
        return (values.unsqueeze(-2) * rows).sum(dim=-1) / rows.sum(dim=-1)

    def of_rows(self, values: Tensor) -> Tensor:
        """Values of tasks, ``... x T``, for each of their rows: ``... x n``."""
        number = self.number
        batch = torch.broadcast_shapes(number.shape[:-1], values.shape[:-1])  # type: ignore[no-untyped-call]
        return values.expand(*batch, -1).gather(-1, number.expand(*batch, -1))

    def _rows(self) -> Tensor:
        """Mask of the rows of each task, ``... x T x n``; of all rows where a task has none."""
        tasks = torch.arange(self.count, device=self.inputs.device)
        rows = self.number.unsqueeze(-2) == tasks.unsqueeze(-1)
        return rows | ~rows.any(dim=-1, keepdim=True)


def law_parts(law: Tensor, residual: Tensor, tasks: Tasks | None = None) -> tuple[Tensor, Tensor]:
    """Log shares with outliers last, and half-width of the outliers' density.

    Args:
        law: ``... x 6``: the shares, and the width in robust spreads of the residuals. ``T x 6`` of several tasks.
        residual: ``... x n`` residuals.
        tasks: the tasks of the rows, if there are several.

    Returns:
        ``... x 1 x 5`` and ``... x 1``; of several tasks ``... x n x 5`` and ``... x n``.
    """
    spread = _row_spreads(residual, tasks)
    of_rows = law.unsqueeze(-2) if tasks is None else law[tasks.number]
    return of_rows[..., :-1].log(), of_rows[..., -1] * spread


def _row_spreads(residual: Tensor, tasks: Tasks | None) -> Tensor:
    """Robust standard deviation of ``... x n`` residuals, ``... x 1``; of each row's task, ``... x n``."""
    return robust_spreads(residual).unsqueeze(-1) if tasks is None else tasks.of_rows(tasks.spreads(residual))


@dataclass(frozen=True)
class Weighed:
    """Training data and their weights.

    Attributes:
        inputs: ``... x n x d`` inputs.
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e = y − m(x).
        row_noise: ``... x n`` noise variances.
        law: ``... x 6`` noise laws; ``None`` with a weight function.
        weight: ``... x n`` weights w̃.
        outlier_probability: ``... x n``, zero without a noise law.
        pseudo: the pseudo-data.
        tasks: the tasks of the rows, if there are several.
        cavity: the leave-one-out moments that gave the weights; ``None`` if they took none.
    """

    inputs: Tensor
    K: Tensor
    residual: Tensor
    row_noise: Tensor
    law: Tensor | None
    weight: Tensor
    outlier_probability: Tensor
    pseudo: PseudoData
    tasks: Tasks | None = None
    cavity: LeaveOneOut | None = None

    def leave_one_out_score(self) -> Tensor:
        """Σ_i log p(y_i | all other rows), ``...``, under the noise law if there is one. Cost O(n³)."""
        cavity = leave_one_out(self.K, self.pseudo)
        if self.law is None:
            return log_density(self.residual - cavity.mean, cavity.variance + self.row_noise).sum(dim=-1)
        parts = law_parts(self.law, self.residual, self.tasks)
        return responsibilities(self.residual, *cavity, self.row_noise, *parts).log_density.sum(dim=-1)


def weigh(
    inputs: Tensor,
    K: Tensor,
    residual: Tensor,
    row_noise: Tensor,
    weight: WeightFunction | Tensor,
    tasks: Tasks | None = None,
) -> Weighed:
    """Weights and pseudo-data of rows, differentiable.

    Args:
        inputs, K, residual, row_noise: see :class:`Weighed`.
        weight: a weight function, or noise laws, ``... x 6``. Of several tasks a :class:`rcgp.weights.ByOutput` or
            ``T x 6`` laws.
        tasks: the tasks of the rows, if there are several.

    Returns:
        The weighed data. Cost O(n) for a weight function or normal noise, else a few times O(n³).
    """
    law = weight if isinstance(weight, Tensor) else None
    w, slope = torch.ones_like(residual), torch.zeros_like(residual)
    probability, cavity = slope, None
    if not isinstance(weight, Tensor):
        # σ², if it is not known for each row
        noise = row_noise.mean(dim=-1) if tasks is None else tasks.means(row_noise)
        seen = inputs if tasks is None else tasks.inputs
        w, slope = weight(residual, seen, noise), weight.slope(residual, seen, noise)
    else:
        log_shares, width = law_parts(weight, residual, tasks)
        if bool((log_shares[..., 0] < 0.0).any()):  # else all laws are normal, and all weights one
            spread = _row_spreads(residual, tasks)
            cavity_of = partial(leave_one_out, K)
            cavity, rows = weigh_rows(cavity_of, residual, row_noise, spread, log_shares, width)
            w, slope, probability = rows.weight, rows.slope, rows.outlier_probability
    pseudo = pseudo_data(residual, w, slope, row_noise)
    return Weighed(inputs, K, residual, row_noise, law, w, probability, pseudo, tasks, cavity)
