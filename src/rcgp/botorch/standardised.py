"""The default model fitted as BoTorch fits its own: targets standardised, here by the rows that are trusted.

BoTorch's priors are made for targets of mean 0 and variance 1, and its kernel has a variance of 1. Which rows these are
to be is not known before, so they are found with an output scale that is free (:func:`rcgp.training.find_trusted`).
Then two models are compared by the densities that they give to all rows: one of the trusted rows, in which the others
are outliers, and one of everyone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.singles import Single, above, take_out
from rcgp.botorch.slices import Index
from rcgp.models import RCGP
from rcgp.training import (
    FitReport,
    find_trusted,
    fit_as_botorch,
    fit_to_rows,
    judge_rows,
)
from rcgp.training.climbing import MARGIN
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters

__all__ = ["fit_standardised", "may_be_standardised"]

# By how much it is better to reject rows, with an output scale that is free, if there is no need to ask once more.
_CLEAR = 30.0

# How often the scale and the rows that it is taken from follow each other at most.
_TURNS = 3


@dataclass(frozen=True)
class _Candidate:
    """A fitted model, how its last search went, and the log density that it gives to all rows, in their own units."""

    single: Single
    report: FitReport
    evaluations: int
    value: float


def may_be_standardised(single: RCGP) -> bool:
    """Whether nothing is held fixed that has the units of the targets."""
    known = single.sample_weight is not None
    free = single.kernel.raw_outputscale.requires_grad and (known or single.raw_noise.requires_grad)
    mean = single.mean
    return free and (type(mean) is ZeroMean or (type(mean) is ConstantMean and mean.raw_constant.requires_grad))


def fit_standardised(model: SingleTaskRCGP, index: Index, found: RCGP, max_iterations: int) -> tuple[Single, FitReport]:
    """Choose who is trusted, and the hyperparameters of one model of a batch.

    Where nobody is rejected they are those of ``SingleTaskGP``. The evidence has other maxima, but where outliers go
    unnoticed a higher one is often that of a function that wiggles through them.

    Args:
        model, index: the batch, and which of its models.
        found: that model as it was taken out. It is changed.
        max_iterations: limit on the iterations of each search.

    Returns:
        The model, and a report. Its value is the evidence of the trusted rows, standardised, priors included.
    """
    began = time.perf_counter()
    trusted, gain, evaluations = find_trusted(found, max_iterations=max_iterations)
    everyone = torch.ones_like(trusted)
    best = None
    if not bool(trusted.all()):
        best = _fitted(model, index, found, trusted, max_iterations)
        evaluations += best.evaluations
    if best is not None and gain < _CLEAR:
        other = _fitted(model, index, found, everyone, max_iterations)
        evaluations += other.evaluations
        if best.value < other.value + MARGIN:
            best = None
    if best is None:
        single = _taken_out(model, index, everyone)
        report = fit_as_botorch(single.model, max_iterations=max_iterations)
        evaluations += report.evaluations
    else:
        single, report = best.single, best.report
    report = replace(
        report,
        objective="trimmed",
        evaluations=evaluations,
        seconds=time.perf_counter() - began,
        hyperparameters=single.model.listed_hyperparameters(),
    )
    return single, report


def _fitted(model: SingleTaskRCGP, index: Index, found: RCGP, trusted: Tensor, max_iterations: int) -> _Candidate:
    """Fit to the trusted rows as if there were no others, and to those that are trusted then.

    Searches begin with the model's hyperparameters, and with those that were found along with the trusted rows.
    """
    y, evaluations = model.train_targets.double()[index], 0
    for _ in range(_TURNS):
        single = _taken_out(model, index, trusted)
        other = _with_shape_of(found, single.model)
        report = fit_to_rows(single.model, trusted, other_start=other, max_iterations=max_iterations)
        evaluations += report.evaluations
        before = trusted
        trusted, worth = judge_rows(single.model, before)
        if bool((trusted == before).all()):
            break
    value = report.value + worth - len(y) * math.log(single.scale)
    return _Candidate(single, report, evaluations, value)


def _taken_out(model: SingleTaskRCGP, index: Index, rows: Tensor) -> Single:
    """One model of a batch, standardised by some rows, with a prior variance of one."""
    y = model.train_targets.double()[index][rows]
    centre = float(y.mean()) if type(model.mean_module) is ConstantMean else 0.0
    single = take_out(model, index, centre, (float(y.std()) if len(y) > 1 else 0.0) or 1.0)
    kernel = single.model.kernel
    kernel.outputscale = torch.ones_like(kernel.outputscale)
    kernel.raw_outputscale.requires_grad_(False)
    return single


def _with_shape_of(found: RCGP, model: RCGP) -> list[Tensor]:
    """The parameters of a model with the lengthscales of another, and its noise relative to its output scale."""
    own, kernel = hyperparameters_of(model), model.kernel.base_kernel
    if kernel.raw_lengthscale.requires_grad:
        kernel.lengthscale = found.kernel.base_kernel.lengthscale.detach()
    if model.raw_noise.requires_grad:
        model.noise = above(model.raw_noise_constraint, found.noise.detach() / found.kernel.outputscale.detach())
    parameters = hyperparameters_of(model)
    restore_hyperparameters(model, own)
    return parameters
