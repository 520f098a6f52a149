"""Values of the rows of a model whose outputs differ: in noise law, spread and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.noise_law import weigh_rows
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spreads
from rcgp.weights import NoiseLaw

__all__ = ["cavity_by_law", "joined", "spreads_of"]


def cavity_by_law(model: RCGP, laws: Sequence[NoiseLaw], h: Tensor) -> LeaveOneOut:
    """Leave-one-out moments of f(x_i) where hyperparameters and laws are known, by expectation steps from the start.

    Args:
        model: exact or sparse.
        laws: the noise law of each output.
        h: ``n`` local factors on the noise variance.
    """
    residual = model.residual()
    log_shares = _each_row(model, [law.log_shares(residual) for law in laws])
    width = _each_row(model, [residual.new_tensor(law.width) for law in laws])
    spread, row_noise = spreads_of(model, residual), model.row_noise() * h
    return weigh_rows(model.latent_leave_one_out, residual, row_noise, spread, log_shares, width)[0]


def spreads_of(model: RCGP, residual: Tensor) -> Tensor:
    """Robust standard deviation of the residuals of each row's output, ``n``, or ``1`` for one output."""
    return _each_row(model, [robust_spreads(residual[rows]) for rows in model.output_rows()])


def _each_row(model: RCGP, values: Sequence[Tensor]) -> Tensor:
    """A value of each output for its rows, ``n x ...``; ``1 x ...`` where there is one output."""
    outputs = model.output_rows()
    if len(outputs) == 1:
        return values[0].unsqueeze(0)
    counts = [len(model.train_y[rows]) for rows in outputs]
    return joined(outputs, [value.expand(count, *value.shape) for value, count in zip(values, counts, strict=True)])


def joined(outputs: Sequence[Tensor | slice], parts: Sequence[Tensor]) -> Tensor:
    """Values of the rows of each output as values of all rows, ``n x ...``."""
    if len(outputs) == 1:
        return parts[0]
    values = torch.cat(list(parts))
    return torch.empty_like(values).index_copy_(0, torch.cat(cast(list[Tensor], list(outputs))), values)
