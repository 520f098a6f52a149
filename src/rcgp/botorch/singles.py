"""One model of a batch as an :class:`rcgp.RCGP`, on a scale of its own; and its hyperparameters back in the batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.slices import Index, sliced, write_slice
from rcgp.models import RCGP
from rcgp.models.constraints import Between
from rcgp.weights import Constant

__all__ = ["Single", "above", "take_out", "write_back"]

# Values on a bound are moved this part away from it: most constraints only approach theirs.
_MARGIN = 1e-6


@dataclass(frozen=True)
class Single:
    """One model of a batch, in double precision.

    Attributes:
        model: of (y − centre) / scale.
        centre, scale: in the units of the batch's targets.
    """

    model: RCGP
    centre: float = 0.0
    scale: float = 1.0


def take_out(batch: SingleTaskRCGP, index: Index, centre: float = 0.0, scale: float = 1.0) -> Single:
    """The model at one place of a batch, with copies of its hyperparameters as they are.

    Args:
        batch: the models, in evaluation mode.
        index: which of them.
        centre, scale: what its targets are shifted and divided by.
    """
    shape, known = batch._aug_batch_shape, isinstance(batch.likelihood, FixedNoiseGaussianLikelihood)
    noise = batch.row_noise().detach().double()[index]
    single = RCGP(
        batch.train_inputs[0].double()[index],
        (batch.train_targets.double()[index] - centre) / scale,
        kernel=sliced(batch.covar_module, shape, index).double(),
        mean=sliced(batch.mean_module, shape, index).double(),
        weight=Constant() if batch.weight is None else copy.deepcopy(batch.weight),
        noise=1.0 if known else float(noise[0]),
        sample_weight=scale**2 / noise if known else None,
    )
    if known:
        single.raw_noise.requires_grad_(False)
        return Single(single, centre, scale)
    own = batch.likelihood.noise_covar
    lower = float(own.raw_noise_constraint.lower_bound)
    single.register_constraint("raw_noise", Between(lower, torch.inf))
    single.noise = above(single.raw_noise_constraint, noise[0])
    single.raw_noise.requires_grad_(own.raw_noise.requires_grad)
    for name, _, prior, _, _ in own.named_priors():
        single.register_prior(name, copy.deepcopy(prior).double(), lambda module: module.noise, None)
    return Single(single, centre, scale)


def write_back(batch: SingleTaskRCGP, index: Index, single: Single) -> None:
    """Write hyperparameters, in the units of the batch, to one place of it."""
    model = single.model
    with torch.no_grad():
        if single.scale != 1.0:
            model.kernel.outputscale = model.kernel.outputscale.detach() * single.scale**2
        if isinstance(model.mean, ConstantMean):
            model.mean.raw_constant.mul_(single.scale).add_(single.centre)
    write_slice(batch.covar_module, index, model.kernel)
    write_slice(batch.mean_module, index, model.mean)
    if batch.weight is not None:
        write_slice(batch.weight, (), model.weight)
    if not isinstance(batch.likelihood, FixedNoiseGaussianLikelihood):
        noise = batch.likelihood.noise.detach().clone()
        bound = batch.likelihood.noise_covar.raw_noise_constraint
        noise[index] = above(bound, model.noise.detach() * single.scale**2).to(noise)
        batch.likelihood.noise = noise


def above(constraint: Interval, value: Tensor) -> Tensor:
    """A value, or the next one above the lower bound."""
    return value.clamp_min(float(constraint.lower_bound) * (1.0 + _MARGIN))
