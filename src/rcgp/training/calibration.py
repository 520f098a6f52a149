"""Honest standard deviations: what the trusted rows say of the model's own.

Hyperparameters that are chosen by leave-one-out predictions make these look better than predictions of new rows will
be. So the model is fitted to each half of the trusted rows, too, and predicts the other half. Where the 95 % quantile
of the standardised residuals is q times 1.96, the standard deviations are too small by q. Leave-one-out gives a q that
is too good, halves one that is too bad, since each has half the data: the geometric mean of both is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.constraints import above
from rcgp.models.defaults import is_unit_scale
from rcgp.training.fit import FitError
from rcgp.training.rows import predict_from
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters

__all__ = ["excess_variance", "scale_variance"]

# With fewer trusted rows a 95 % quantile means nothing.
_FEWEST = 20

#: Chooses hyperparameters by some of the rows, from the present ones.
Choose = Callable[[Tensor], object]


def excess_variance(model: RCGP, trusted: Tensor, leave_one_out: Tensor, choose: Choose) -> float:
    """The factor, at least one, by which the model's variances are too small. Its hyperparameters are as before.

    Args:
        model: fitted.
        trusted: ``n`` flags of the rows that are no outliers.
        leave_one_out: ``n`` standardised leave-one-out residuals.
        choose: a fit to rows, ``n`` flags.
    """
    if int(trusted.sum()) < _FEWEST:
        return 1.0
    before = hyperparameters_of(model)
    apart = []
    try:
        for seen in _halves(model, trusted):
            choose(seen)
            unseen = trusted & ~seen
            apart.append(predict_from(model, seen).score(model.train_y)[unseen])
            restore_hyperparameters(model, before)
    except FitError:  # a half may be too little to fit: leave-one-out must do
        apart = [leave_one_out[trusted]]
    finally:
        restore_hyperparameters(model, before)
    return max(1.0, _excess(torch.cat(apart)) * _excess(leave_one_out[trusted]))


def scale_variance(model: RCGP, factor: float) -> float:
    """Multiply prior and noise variance, and with them every posterior variance; posterior means stay.

    Of output scales within each other the outermost that is fitted is changed; a kernel without any gets one, and so
    does one whose only scale is that of the units of y. Bounds are kept, and an output scale that is fixed: both
    variances have the same factor, so either can make it smaller.

    Args:
        model: the model, changed in place.
        factor: at least one.

    Returns:
        The factor that was used.
    """
    if factor == 1.0:
        return 1.0
    scales = _output_scales(model.kernel)
    fitted = [kernel for kernel in scales if kernel.raw_outputscale.requires_grad]
    if not fitted and all(is_unit_scale(kernel) for kernel in scales):
        scaled = gpytorch.kernels.ScaleKernel(model.kernel, outputscale_constraint=above(0.0)).to(model.train_X)
        scaled.outputscale = torch.ones_like(scaled.outputscale)
        model.kernel = scaled
        fitted = [scaled]
    if not fitted:
        return 1.0
    kernel = fitted[0]
    scale, noise = kernel.outputscale.detach(), model.noise.detach()
    room = min(
        _room(scale, kernel.raw_outputscale_constraint.upper_bound),
        _room(noise, model.raw_noise_constraint.upper_bound),
    )
    factor = max(1.0, min(factor, room))
    if factor > 1.0:
        with torch.no_grad():
            kernel.outputscale = scale * factor
            model.noise = noise * factor
    return factor


def _output_scales(kernel: gpytorch.kernels.Kernel) -> list[gpytorch.kernels.ScaleKernel]:
    """The output scales around a kernel, the outermost first."""
    scales = []
    while isinstance(kernel, gpytorch.kernels.ScaleKernel):
        scales.append(kernel)
        kernel = kernel.base_kernel
    return scales


def _room(value: Tensor, upper: Tensor) -> float:
    """The factor by which a value can grow and still be a little below its bound."""
    return (1.0 - 1e-6) * float((upper.to(value) / value).min())


def _excess(residual: Tensor) -> float:
    return float(residual.abs().quantile(0.95)) / 1.96


def _halves(model: RCGP, trusted: Tensor) -> list[Tensor]:
    """Two halves of the trusted rows, as flags: random, but the same whatever the order of the rows.

    Rows are ordered by a hash of the ranks of their inputs, which have no units. Rows with the same inputs stay
    together: apart, each would be predicted by its twin.
    """
    columns = model.train_X.cpu().numpy().T
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=-1)  # n x d
    places: dict[bytes, list[int]] = {}
    for row in trusted.nonzero().squeeze(-1).tolist():
        places.setdefault(hashlib.blake2b(ranks[row].tobytes(), digest_size=8).digest(), []).append(row)
    first, count = torch.zeros_like(trusted), int(trusted.sum())
    for place in sorted(places)[::2]:
        first[places[place]] = True
    if int(first.sum()) == count:  # all rows at one place
        first[trusted.nonzero().squeeze(-1)[1::2]] = False
    return [first, trusted & ~first]
