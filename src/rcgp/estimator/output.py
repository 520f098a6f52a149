"""One output of the estimator: a column of y becomes a fitted model, and the model a diagnosis of each row."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from rcgp.estimator.inputs import FarInput, absurd, far_input
from rcgp.estimator.kernels import Noise, translate
from rcgp.estimator.outliers import flagged, outlier_scores
from rcgp.estimator.parameters import Recipe
from rcgp.models import RCGP
from rcgp.models.constraints import Between, above
from rcgp.models.defaults import add_weak_priors, default_kernel, in_units, robust_spread
from rcgp.models.far_inputs import bears_far_inputs
from rcgp.models.means import build_mean
from rcgp.training import AdaptiveReport, FitError, FitReport, centre_on, fit, fit_adaptive
from rcgp.weights import Plateau, WeightFunction

__all__ = ["Output", "fit_output", "lengthscales"]


@dataclass(frozen=True)
class Output:
    """A fitted model and what it says of each of the ``n`` rows."""

    model: RCGP
    report: FitReport | None
    weights: Tensor
    loo_mean: Tensor
    loo_std: Tensor
    outlier_scores: Tensor
    outliers: Tensor


def fit_output(
    how: Recipe,
    X: Tensor,
    y: Tensor,
    precision: Tensor | None,
    random: np.random.RandomState,
    names: Sequence[str] | None = None,
) -> Output:
    """Build and fit the model of one column of y.

    Args:
        how: the estimator's parameters.
        X: ``n x d`` inputs.
        y: ``n`` observations.
        precision: ``n`` sample weights; rows of weight zero are left out of the model, but diagnosed.
        random: source of the sample of rows and of the seed of restarts.
        names: of the columns of X, where they have any, for errors.
    """
    used = torch.ones(len(y), dtype=torch.bool) if precision is None else precision > 0
    if precision is not None:
        # Ones are no weights at all.
        precision = None if bool((precision[used] == 1).all()) else precision[used]
    X_used, y_used = X[used], y[used]
    sample = torch.arange(len(y_used))
    if how.fit_rows is not None and how.fit_rows < len(y_used):
        sample = torch.from_numpy(np.sort(random.choice(len(y_used), how.fit_rows, replace=False)))
    model = build_model(how, X_used[sample], y_used[sample], None if precision is None else precision[sample])
    report: FitReport | None = None
    if how.objective is not None:
        try:
            report = _choose(how, model, random)
        except FitError as error:  # which knows the rows of the model only
            far = None if absurd(model.train_y) else far_input(model.train_X)  # then the inputs are not to blame
            told = error if far is None else FitError("the inputs do not allow a fit", far.row, _advice(far, names))
            raise FitError(told.reason, int(used.nonzero()[sample[told.row]]), told.clue) from error
        if not report.converged:
            warnings.warn(
                f"the fit did not converge in {report.iterations} iterations: {report.message}",
                ConvergenceWarning,
                stacklevel=5,
            )
    if len(sample) < len(y_used):
        _take_all_rows(model, how, X_used, y_used, precision, report)
        if report is not None:
            report = replace(report, hyperparameters=model.listed_hyperparameters())
    if not bears_far_inputs(model.kernel) and (far := far_input(X_used)) is not None:
        warnings.warn(
            f"look at row {int(used.nonzero()[far.row])}, {_advice(far, names)}: with this kernel it may spoil all "
            "predictions",
            stacklevel=5,
        )
    return _diagnosed(model, report, X, y, used, len(sample))


def _advice(far: FarInput, names: Sequence[str] | None) -> str:
    """What is odd about a row, and what to do."""
    label = f"column {far.column} of X" if names is None else f"column {str(names[far.column])!r}"
    return f"whose {label} is {far.told}: correct it or leave the row out"


def _choose(how: Recipe, model: RCGP, random: np.random.RandomState) -> FitReport:
    """Fit the hyperparameters, and the weights where they adapt."""
    if how.adaptive:
        return fit_adaptive(model, max_iterations=how.max_iterations, progress=how.progress)
    seed = int(random.randint(2**31 - 1))
    return fit(model, how.objective or "loo", how.restarts, how.max_iterations, seed, how.progress)


def build_model(how: Recipe, X: Tensor, y: Tensor, precision: Tensor | None) -> RCGP:
    """The model of one output before it is fitted."""
    noise: Noise | None = None
    kernel = how.kernel
    if isinstance(kernel, sk.Kernel):
        kernel, noise = translate(kernel, X.shape[1])
    elif kernel is not None:
        kernel = copy.deepcopy(kernel).double()
    elif not how.normalize:
        kernel = default_kernel(X.new_ones(X.shape[1]), 1.0)
    mean = copy.deepcopy(how.mean) if isinstance(how.mean, gpytorch.means.Mean) else how.mean
    model = RCGP(X, y, kernel=kernel, mean=mean, weight=how.make_weight(), sample_weight=precision)
    unit = 1.0
    if how.normalize and how.kernel is not None:
        with torch.no_grad():
            unit = robust_spread(model.residual()) ** 2
        model.kernel = in_units(model.kernel, unit)
    if noise is not None:
        _set_noise(model, noise.scaled(unit))
    if how.kernel is None and how.priors == "weak":
        add_weak_priors(model)
    return model


def _set_noise(model: RCGP, noise: Noise) -> None:
    model.register_constraint("raw_noise", above(0.0) if noise.fixed else Between(*noise.bounds))
    model.raw_noise.requires_grad_(not noise.fixed)
    with torch.no_grad():
        model.raw_noise.fill_(np.log(noise.variance))


def _take_all_rows(
    model: RCGP, how: Recipe, X: Tensor, y: Tensor, precision: Tensor | None, report: FitReport | None
) -> None:
    """Give a model that was fitted to a sample of the rows all of them.

    What the objective does not choose but the data decide (a named mean, the threshold's quantile, adaptive centres)
    then follows all rows.
    """
    with torch.no_grad():
        expected = model.posterior(X, observation_noise=True)
    model.train_X, model.train_y, model.sample_weight = X, y, precision
    if not isinstance(how.mean, gpytorch.means.Mean):
        model.mean = build_mean(how.mean, X, y).to(X)
    if isinstance(report, AdaptiveReport):
        centre_on(model, expected.mean, expected.stddev, report.reach)


def _diagnosed(model: RCGP, report: FitReport | None, X: Tensor, y: Tensor, used: Tensor, fitted: int) -> Output:
    """Weights and leave-one-out predictions of the rows in the model, their counterparts for those left out.

    How far out a row is flagged depends on how many rows the noise was fitted to.
    """
    weights, mean, variance = torch.empty_like(y), torch.empty_like(y), torch.empty_like(y)
    loo = model.leave_one_out()
    weights[used], mean[used], variance[used] = model.weights(), loo.mean, loo.variance
    left_out = ~used
    if bool(left_out.any()):
        with torch.no_grad():
            prediction = model.posterior(X[left_out], observation_noise=True)
            mean[left_out], variance[left_out] = prediction.mean, prediction.variance
            residual = y[left_out] - model.mean(X[left_out])
            if isinstance(report, AdaptiveReport):
                centre = prediction.mean - model.mean(X[left_out])
                weight: WeightFunction = Plateau(centre, report.reach * prediction.stddev)
            else:
                weight = model.weight.frozen(model.residual())
            weights[left_out] = weight(residual, X[left_out], model.noise).clamp_min(torch.finfo(y.dtype).tiny)
    std = variance.sqrt()
    adaptive = isinstance(report, AdaptiveReport)
    scores = outlier_scores(y, mean, std, used, adaptive)
    return Output(model, report, weights, mean, std, scores, flagged(scores, weights, adaptive, fitted))


def lengthscales(kernel: gpytorch.kernels.Kernel, d: int) -> np.ndarray:
    """Lengthscale of each of ``d`` features: ``d``, or a row for each kernel with lengthscales in a sum or product.

    Infinite for a feature that a kernel does not look at. A periodic kernel's is on the scale of scikit-learn's, the
    square root of GPyTorch's.
    """
    rows = list(_lengthscale_rows(kernel, torch.arange(d), d))
    if len(rows) == 1:
        return rows[0]
    return np.stack(rows) if rows else np.zeros((0, d))


def _lengthscale_rows(
    kernel: gpytorch.kernels.Kernel, dims: Tensor, d: int, chosen: bool = False
) -> Iterator[np.ndarray]:
    """A row of ``d`` for each part that has lengthscales.

    Args:
        kernel: the part.
        dims: the features that reach it.
        d: number of all features.
        chosen: whether its ``active_dims`` have been applied already: a ScaleKernel takes over those of its base.
    """
    if kernel.active_dims is not None and not chosen:
        dims = dims[kernel.active_dims]
    if kernel._parameters.get("raw_lengthscale") is not None:
        value = kernel.lengthscale.detach().double().reshape(-1)
        row = torch.full((d,), torch.inf, dtype=torch.float64)
        row[dims] = (value.sqrt() if isinstance(kernel, gpytorch.kernels.PeriodicKernel) else value).expand(len(dims))
        yield row.numpy()
    for child in kernel.children():
        for part in child if isinstance(child, torch.nn.ModuleList) else [child]:
            if isinstance(part, gpytorch.kernels.Kernel):
                yield from _lengthscale_rows(part, dims, d, chosen=isinstance(kernel, gpytorch.kernels.ScaleKernel))
