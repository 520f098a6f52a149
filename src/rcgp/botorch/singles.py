"""One model of a batch as an :class:`rcgp.RCGP`, and its hyperparameters back in the batch."""

from __future__ import annotations

import copy

import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.slices import Index, sliced, write_slice
from rcgp.models import RCGP
from rcgp.models.defaults import Between
from rcgp.weights import Constant

__all__ = ["take_out", "write_back"]

# Values on a bound are moved this part away from it: most constraints only approach theirs.
_MARGIN = 1e-6


def take_out(batch: SingleTaskRCGP, index: Index) -> RCGP:
    """The model at one place of a batch, in double precision, with copies of its hyperparameters as they are.

    Args:
        batch: the models, in evaluation mode.
        index: which of them.
    """
    shape, known = batch._aug_batch_shape, isinstance(batch.likelihood, FixedNoiseGaussianLikelihood)
    noise = batch.row_noise().detach().double()[index]
    single = RCGP(
        batch.train_inputs[0].double()[index],
        batch.train_targets.double()[index],
        kernel=sliced(batch.covar_module, shape, index).double(),
        mean=sliced(batch.mean_module, shape, index).double(),
        weight=Constant() if batch.weight is None else copy.deepcopy(batch.weight),
        noise=1.0 if known else float(noise[0]),
        sample_weight=noise.reciprocal() if known else None,
    )
    if known:
        single.raw_noise.requires_grad_(False)
        return single
    own = batch.likelihood.noise_covar
    lower = float(own.raw_noise_constraint.lower_bound)
    single.register_constraint("raw_noise", Between(lower, torch.inf))
    single.noise = _above(single.raw_noise_constraint, noise[0])
    single.raw_noise.requires_grad_(own.raw_noise.requires_grad)
    for name, _, prior, _, _ in own.named_priors():
        single.register_prior(name, copy.deepcopy(prior).double(), lambda module: module.noise, None)
    return single


def write_back(batch: SingleTaskRCGP, index: Index, single: RCGP) -> None:
    """Write the hyperparameters of a model to one place of a batch."""
    write_slice(batch.covar_module, index, single.kernel)
    write_slice(batch.mean_module, index, single.mean)
    if batch.weight is not None:
        write_slice(batch.weight, (), single.weight)
    if not isinstance(batch.likelihood, FixedNoiseGaussianLikelihood):
        noise = batch.likelihood.noise.detach().clone()
        bound = batch.likelihood.noise_covar.raw_noise_constraint
        noise[index] = _above(bound, single.noise.detach()).to(noise)
        batch.likelihood.noise = noise


def _above(constraint: Interval, value: Tensor) -> Tensor:
    """A value, or the next one above the lower bound."""
    return value.clamp_min(float(constraint.lower_bound) * (1.0 + _MARGIN))
