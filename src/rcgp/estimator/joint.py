"""Correlated outputs of an estimator: the columns of y become one model, with a diagnosis of each cell."""

from __future__ import annotations

import functools

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.estimator.base import BaseRegressor
from rcgp.estimator.output import Output, diagnosed, fit_model, given_prior, set_noise, warn_of_absurd_input, weigh_all
from rcgp.models import MultiOutputRCGP
from rcgp.models.coregion import CellKernel
from rcgp.models.defaults import add_weak_priors, robust_scales, squared_exponential
from rcgp.models.means import OutputMeans, build_mean
from rcgp.models.posterior import PosteriorNormal
from rcgp.training import FitReport, RobustReport
from rcgp.training.judgement import judge_outputs
from rcgp.weights import NoiseLaw, WeightFunction

__all__ = ["OutputOf", "fit_joint"]


class OutputOf:
    """One output of a joint model, with the interface of a model of one output."""

    def __init__(self, joint: MultiOutputRCGP, output: int) -> None:
        self.joint, self.output = joint, output
        self.kernel, self.mean = joint.kernel, joint.mean.means[output]

    @property
    def noise(self) -> Tensor:
        """The noise variance of the output."""
        return self.joint.noise[self.output]

    @property
    def noise_law(self) -> NoiseLaw:
        """The noise law of the output."""
        return self.joint.noise_laws[self.output]

    @property
    def weight(self) -> WeightFunction:
        """The weight function of the output."""
        return self.joint.output_weights()[self.output]

    def frozen_weight(self) -> WeightFunction:
        """See :meth:`rcgp.RCGP.frozen_weight`."""
        return self.joint.frozen_weight().outputs[self.output]

    def noise_scale(self, x: Tensor) -> Tensor:
        """See :meth:`rcgp.RCGP.noise_scale`."""
        return self.joint.noise_scale(self.joint.inputs_of(x, self.output))

    def posterior(self, x: Tensor, observation_noise: bool = False) -> PosteriorNormal:
        """See :meth:`rcgp.RCGP.posterior`."""
        return self.joint.posterior_of_cells(x, self.output, observation_noise)


def fit_joint(
    estimator: BaseRegressor, X: Tensor, Y: Tensor, precision: Tensor | None, random: np.random.RandomState
) -> list[Output]:
    """Build and fit one model of all columns of Y, whose missing cells are NaN. All outputs have the same report.

    Rows of sample weight (``precision``) zero are left out of the model, but diagnosed.
    """
    kept = torch.ones(len(Y), dtype=torch.bool) if precision is None else precision > 0
    used = ~Y.isnan() & kept.unsqueeze(-1)
    if precision is not None:
        precision = None if bool((precision[kept] == 1).all()) else torch.where(kept, precision, 1.0)
    rows = used.any(dim=-1).nonzero().squeeze(-1)
    sample = rows
    sampled = estimator.fit_rows is not None and estimator.fit_rows < len(rows)
    if sampled:
        sample = rows[_sample(used[rows], int(estimator.fit_rows), random)]
    observed = torch.where(used, Y, torch.nan)
    sample_precision = None if precision is None else precision[sample]
    model = _build(estimator, X[sample], observed[sample], sample_precision, sampled=sampled)
    names = getattr(estimator, "feature_names_in_", None)
    cells = model.observed.nonzero()
    report = fit_model(estimator, model, model.train_X[:, :-1], random, lambda cell: int(sample[cells[cell, 0]]))
    if sampled:  # means, unless they are trained, and weights follow all rows
        model.set_cells(X[rows], observed[rows], None if precision is None else precision[rows])
        if not isinstance(estimator.mean, gpytorch.means.Mean):
            tables = [(X[used[:, t]], Y[used[:, t], t]) for t in range(Y.shape[1])]
            model.mean = OutputMeans([build_mean(estimator.mean, *table).to(X) for table in tables])
        report = weigh_all(model, report)
    for kernel in getattr(model.kernel, "kernels", [model.kernel]):
        warn_of_absurd_input(kernel, X[rows], names, rows)
    return _diagnosed(model, report, X, Y, used)


def _diagnosed(model: MultiOutputRCGP, report: FitReport, X: Tensor, Y: Tensor, used: Tensor) -> list[Output]:
    """The diagnosis of each output by a fitted model."""
    judgements = judge_outputs(model, learn=not isinstance(report, RobustReport))
    learned = functools.cache(functools.partial(judge_outputs, model, learn=True))
    loo, weights, outputs = model.leave_one_out(), model.weights(), []
    for t, (judged, cells) in enumerate(zip(judgements, model.output_rows(), strict=True)):
        own, view = LeaveOneOut(loo.mean[cells], loo.variance[cells]), OutputOf(model, t)
        rows = diagnosed(view, judged, lambda t=t: learned()[t], weights[cells], own, X, Y[:, t], used[:, t])  # type: ignore[misc]
        outputs.append(Output(view, report, judged.law, judged.doubts, rows))
    return outputs


def _sample(used: Tensor, size: int, random: np.random.RandomState) -> Tensor:
    """Random rows, in order; an output without a cell in them brings rows of its own, so that it can be fitted.

    ``used`` says which of the ``n x T`` cells are observed.
    """
    chosen = torch.zeros(len(used), dtype=torch.bool)
    chosen[torch.from_numpy(random.choice(len(used), size, replace=False))] = True
    for cells in used.T:
        if not bool((cells & chosen).any()):
            own = cells.nonzero().squeeze(-1).numpy()
            chosen[torch.from_numpy(random.choice(own, min(size, len(own)), replace=False))] = True
    return chosen.nonzero().squeeze(-1)


def _build(
    estimator: BaseRegressor, X: Tensor, Y: Tensor, precision: Tensor | None, *, sampled: bool
) -> MultiOutputRCGP:
    """The model before it is fitted; ``sampled`` if there are further rows."""
    kernel, mean, noise = given_prior(estimator, X.shape[1])
    default = kernel is None
    if default and sampled:  # a column that is constant in the sample may vary elsewhere
        kernel = squared_exponential(robust_scales(X))
    model = MultiOutputRCGP(X, Y, kernel=kernel, mean=mean, weight=estimator._new_weight(), sample_weight=precision)
    units = model.spreads() if estimator.normalize else torch.ones_like(model.noise)
    if isinstance(model.kernel, CellKernel):
        model.kernel.unit = units.to(X)
    if noise is not None:
        set_noise(model, noise, units.square())
    if default and estimator.priors == "weak":
        add_weak_priors(model)
    return model
