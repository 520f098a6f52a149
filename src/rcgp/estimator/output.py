"""One output of the estimator: a column of y becomes a fitted model, and the model a diagnosis of each row."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from rcgp.estimator.inputs import FarInput, absurd, far_input
from rcgp.estimator.kernels import Noise, translate
from rcgp.estimator.outliers import NoiseLawWarning, outlier_scores
from rcgp.estimator.parameters import Recipe
from rcgp.models import RCGP
from rcgp.models.defaults import Between, above, add_weak_priors, default_kernel, in_units, robust_spread
from rcgp.models.kernel_matrix import bears_far_inputs
from rcgp.models.means import build_mean
from rcgp.training import FitError, FitReport, RobustReport, fit, fit_robust, weigh_by_law
from rcgp.training.fit import fit_ordinary
from rcgp.training.judgement import judge_rows
from rcgp.weights import Constant, LawWeight, NoiseLaw

__all__ = ["Output", "fit_output", "lengthscales"]


@dataclass(frozen=True)
class Output:
    """A fitted model and what it says of each of the ``n`` rows."""

    model: RCGP
    report: FitReport
    law: NoiseLaw
    doubts: tuple[str, ...]
    weights: Tensor
    loo_mean: Tensor
    loo_std: Tensor
    outlier_scores: Tensor
    outlier_probability: Tensor


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
        report = replace(report, hyperparameters=model.listed_hyperparameters())
    if not bears_far_inputs(model.kernel) and (far := far_input(X_used)) is not None:
        warnings.warn(
            f"look at row {int(used.nonzero()[far.row])}, {_advice(far, names)}: with this kernel it may spoil all "
            "predictions",
            stacklevel=5,
        )
    output = _diagnosed(model, report, X, y, used)
    for doubt in output.doubts:
        warnings.warn(doubt, NoiseLawWarning, stacklevel=5)
    return output


def _advice(far: FarInput, names: Sequence[str] | None) -> str:
    """What is odd about a row, and what to do."""
    label = f"column {far.column} of X" if names is None else f"column {str(names[far.column])!r}"
    return f"whose {label} is {far.told}: correct it or leave the row out"


def _choose(how: Recipe, model: RCGP, random: np.random.RandomState) -> FitReport:
    """Fit the hyperparameters, and the noise law where it is learned."""
    options: dict[str, Any] = {
        "restarts": how.restarts,
        "max_iterations": how.max_iterations,
        "seed": int(random.randint(2**31 - 1)),
        "progress": how.progress,
    }
    if how.make_weight is None:
        return fit_robust(model, local_noise=how.local_noise, **options)
    return fit_ordinary(model, **options) if model.weight.constant_in_y else fit(model, "loo", **options)


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
    weight = Constant() if how.make_weight is None else how.make_weight()
    model = RCGP(X, y, kernel=kernel, mean=mean, weight=weight, sample_weight=precision)
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


def _take_all_rows(model: RCGP, how: Recipe, X: Tensor, y: Tensor, precision: Tensor | None, report: FitReport) -> None:
    """Give a model that was fitted to a sample of the rows all of them.

    What the objective does not choose but the data decide (a named mean, the threshold's quantile, weights by the noise
    law) then follows all rows.
    """
    model.train_X, model.train_y, model.sample_weight = X, y, precision
    if not isinstance(how.mean, gpytorch.means.Mean):
        model.mean = build_mean(how.mean, X, y).to(X)
    if isinstance(report, RobustReport):
        weigh_by_law(model, report.law)


def _diagnosed(model: RCGP, report: FitReport, X: Tensor, y: Tensor, used: Tensor) -> Output:
    """Weights, leave-one-out predictions and flags of the rows in the model, their counterparts for those left out.

    The rows are flagged by the law that was learned; for a weight that was given, by a law that is learned from the
    leave-one-out predictions afterwards, which changes neither weights nor predictions.
    """
    weights, mean, variance, probability = (torch.empty_like(y) for _ in range(4))
    rows = judge_rows(model, learn=not isinstance(report, RobustReport))
    loo = model.leave_one_out()
    weights[used], mean[used], variance[used] = model.weights(), loo.mean, loo.variance
    probability[used] = rows.outlier_probability
    left_out = ~used
    if bool(left_out.any()):
        with torch.no_grad():
            x = X[left_out]
            prior = model.mean(x)
            prediction = model.posterior(x)
            # A normal law knows no outliers, but is no evidence that rows it has not seen are none.
            law = judge_rows(model, learn=True) if rows.law.is_normal else rows
            local = model.noise_scale(x) / model.noise.detach()
            unseen = LawWeight(law.law, prediction.mean - prior, prediction.variance, local)
            residual = y[left_out] - prior
            probability[left_out] = unseen.responsibilities(residual, law.noise).outlier_probability
            weight = unseen if isinstance(model.weight, LawWeight) else model.weight.frozen(model.residual())
            weights[left_out] = weight(residual, x, model.noise).clamp_min(torch.finfo(y.dtype).tiny)
            observed = model.posterior(x, observation_noise=True)
            mean[left_out], variance[left_out] = observed.mean, observed.variance
    std = variance.sqrt()
    scores = outlier_scores(y, mean, std)
    return Output(model, report, rows.law, rows.doubts, weights, mean, std, scores, probability)


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
