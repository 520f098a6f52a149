"""One output of an estimator: a column of y becomes a fitted model, with a diagnosis of each row and its doubts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils import check_consistent_length
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.estimator.base import BaseRegressor, only, stacked
from rcgp.estimator.kernels import Noise, translate
from rcgp.models import RCGP
from rcgp.models.defaults import Between, above, add_weak_priors, in_units, kernel_of_all_columns, robust_spread
from rcgp.models.kernel_matrix import ignores_far_inputs
from rcgp.models.means import build_mean
from rcgp.training import FitError, FitReport, RobustReport, fit, fit_robust, weigh_by_law
from rcgp.training.fit import fit_ordinary
from rcgp.training.judgement import Judgement, NoiseLawWarning, judge_rows
from rcgp.weights import LawWeight, NoiseLaw
from rcgp.weights.noise_law import FLAGGED

__all__ = [
    "FLAG_RULE",
    "ROW_ATTRIBUTES",
    "NoiseLawWarning",
    "Output",
    "OutputsMixin",
    "RowDiagnosis",
    "build_model",
    "diagnosed",
    "fit_model",
    "fit_output",
    "given_prior",
    "lengthscales",
    "score_of_observed",
    "set_noise",
    "warn",
    "warn_of_absurd_input",
    "weigh_all",
]

Array = NDArray[np.float64]

# A deviation below this share of the size of an observation is rounding.
_ROUNDING = 1e-9
# Limit on outlier scores, which would be infinite where most rows are predicted exactly.
_LARGEST_SCORE = 1e6
# A value this many times farther from the median than is typical for its column is probably a mistake.
_ABSURD = 1e6

#: The rule in words, for wherever flags are shown.
FLAG_RULE = "flagged: rows that are more likely outliers than not (probability above 0.5) by the learned noise law"


class RowDiagnosis(NamedTuple):
    """Weights, leave-one-out predictions and flags of ``b`` consecutive rows; fields as the estimator's attributes.

    Attributes:
        first: number of the first row.
        weights, outlier_scores, outlier_probability, outliers, loo_mean, loo_std: ``b`` values.
    """

    first: int
    weights: Array
    outlier_scores: Array
    outlier_probability: Array
    outliers: NDArray[np.bool_]
    loo_mean: Array
    loo_std: Array

    @classmethod
    def of(
        cls, y: Tensor, weights: Tensor, mean: Tensor, std: Tensor, probability: Tensor, first: int = 0
    ) -> RowDiagnosis:
        """The diagnosis of observations y, given their leave-one-out predictions."""
        deviation = y - mean
        scores = (deviation / std).clamp(-_LARGEST_SCORE, _LARGEST_SCORE)
        rounding = deviation.abs() <= _ROUNDING * (y.abs() + mean.abs())
        scores = torch.where(rounding, torch.zeros_like(scores), scores)
        parts = (weights, scores, probability, probability > FLAGGED, mean, std)
        return cls(first, *(part.numpy() for part in parts))


#: Fitted attributes with one value for each row, without their underscore.
ROW_ATTRIBUTES = RowDiagnosis._fields[1:]


@dataclass(frozen=True)
class Output:
    """A fitted model of one output, or that output of a joint one, and its diagnosis of the rows."""

    model: Any
    report: FitReport
    law: NoiseLaw
    doubts: tuple[str, ...]
    rows: RowDiagnosis


class OutputsMixin:
    """Fitted attributes and predictions of one output or several, each with its model."""

    n_outputs_: int
    _outputs: Sequence[Output]
    _inputs: Callable[[Any], Tensor]

    def _set_outputs(self, outputs: Sequence[Output]) -> None:
        """Set the attributes that each output has; with one output they have no axis for outputs."""
        self.n_outputs_, self._outputs = len(outputs), tuple(outputs)
        for name in ROW_ATTRIBUTES:
            setattr(self, f"{name}_", stacked([getattr(output.rows, name) for output in outputs]))
        self.noise_law_ = only([output.law for output in outputs])
        self.doubts_ = only([output.doubts for output in outputs])
        self.noise_variance_ = only([model.noise.item() for model in self._models])

    @property
    def _models(self) -> list[Any]:
        return [output.model for output in self._outputs]

    def _predict(self, X: Any, return_std: bool, return_cov: bool, include_noise: bool) -> Any:
        inputs = self._inputs(X)
        with torch.no_grad():
            posteriors = [model.posterior(inputs, observation_noise=include_noise) for model in self._models]
            mean = stacked([posterior.mean for posterior in posteriors])
            if return_std:
                return mean, stacked([posterior.stddev for posterior in posteriors])
            if return_cov:
                return mean, stacked([posterior.covariance_matrix for posterior in posteriors])
        return mean

    def _quantiles(self, X: Any, levels: Array) -> list[Array]:
        inputs, wanted, parts = self._inputs(X), torch.from_numpy(levels), []
        for model, (mean, variance, noise) in zip(self._models, self._moments(inputs), strict=True):
            deviation = model.noise_law.quantile(wanted, variance.unsqueeze(-1), noise.unsqueeze(-1))
            parts.append(mean.unsqueeze(-1) + deviation)
        quantiles = stacked(parts)
        return [quantiles[:, i] for i in range(len(levels))]

    def _noise_std(self, X: Any) -> Array:
        inputs = self._inputs(X)
        return stacked([(model.noise_law.variance * model.noise_scale(inputs)).sqrt() for model in self._models])

    def _moments(self, inputs: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Mean and variance of f, and the squared scale of the noise law, for each output."""
        with torch.no_grad():
            for model in self._models:
                posterior = model.posterior(inputs)
                yield posterior.mean, posterior.variance.clamp_min(0.0), model.noise_scale(inputs)


def fit_output(
    estimator: BaseRegressor, X: Tensor, y: Tensor, precision: Tensor | None, random: np.random.RandomState
) -> Output:
    """Build and fit the model of one column of y, which is NaN where an observation is missing.

    Rows of sample weight (``precision``) zero are left out of the model, but diagnosed.
    """
    used = ~y.isnan() if precision is None else ~y.isnan() & (precision > 0)
    if precision is not None:  # weights of 1 are the default
        precision = None if bool((precision[used] == 1).all()) else precision[used]
    X_used, y_used, names = X[used], y[used], getattr(estimator, "feature_names_in_", None)
    sample = torch.arange(len(y_used))
    sampled = estimator.fit_rows is not None and estimator.fit_rows < len(y_used)
    if sampled:
        sample = torch.from_numpy(np.sort(random.choice(len(y_used), estimator.fit_rows, replace=False)))
    sample_precision = None if precision is None else precision[sample]
    model = build_model(estimator, X_used[sample], y_used[sample], sample_precision, sampled=sampled)
    report = fit_model(estimator, model, model.train_X, random, lambda row: int(used.nonzero()[sample[row]]))
    if sampled:  # the mean, unless it is trained, and the weights follow all rows
        model.train_X, model.train_y, model.sample_weight = X_used, y_used, precision
        if not isinstance(estimator.mean, gpytorch.means.Mean):
            model.mean = build_mean(estimator.mean, X_used, y_used).to(X)
        report = weigh_all(model, report)
    warn_of_absurd_input(model.kernel, X_used, names, used.nonzero().squeeze(-1))
    # Rows are flagged by the learned law. For a given weight a law is learned from the leave-one-out predictions
    # afterwards, which changes neither weights nor predictions.
    judged = judge_rows(model, learn=not isinstance(report, RobustReport))
    learn = partial(judge_rows, model, learn=True)
    rows = diagnosed(model, judged, learn, model.weights(), model.leave_one_out(), X, y, used)
    return Output(model, report, judged.law, judged.doubts, rows)


def warn(report: FitReport | None, doubts: tuple[str, ...]) -> None:
    """Warn the caller of ``fit`` if the fit did not converge, and of each doubt about the noise law."""
    if report is not None and not report.converged:
        message = f"the fit did not converge in {report.iterations} iterations: {report.message}"
        warnings.warn(message, ConvergenceWarning, stacklevel=4)
    for doubt in doubts:
        warnings.warn(doubt, NoiseLawWarning, stacklevel=4)


def given_prior(estimator: BaseRegressor, d: int) -> tuple[gpytorch.kernels.Kernel | None, Any, Noise | None]:
    """Copies of an estimator's kernel of ``d`` features and of its mean, and the noise of a WhiteKernel."""
    kernel, noise = estimator.kernel, None
    if isinstance(kernel, sk.Kernel):
        kernel, noise = translate(kernel, d)
    elif kernel is not None:
        kernel = copy.deepcopy(kernel).double()
    mean = copy.deepcopy(estimator.mean) if isinstance(estimator.mean, gpytorch.means.Mean) else estimator.mean
    return kernel, mean, noise


def build_model(
    estimator: BaseRegressor, X: Tensor, y: Tensor, precision: Tensor | None, *, sampled: bool = False
) -> RCGP:
    """The model of one output before it is fitted; ``sampled`` if there are further rows."""
    kernel, mean, noise = given_prior(estimator, X.shape[1])
    model = RCGP(X, y, kernel=kernel, mean=mean, weight=estimator._new_weight(), sample_weight=precision)
    if kernel is None and sampled:
        model.kernel = kernel_of_all_columns(model)
    unit = 1.0
    if estimator.normalize and kernel is not None:
        with torch.no_grad():
            unit = robust_spread(model.residual()) ** 2
        model.kernel = in_units(model.kernel, unit)
    if noise is not None:
        set_noise(model, noise, torch.tensor(unit, dtype=torch.float64))
    if kernel is None and estimator.priors == "weak":
        add_weak_priors(model)
    return model


def set_noise(model: RCGP, noise: Noise, unit: Tensor) -> None:
    """Start and bounds of the noise variance as a WhiteKernel has them, in units of the outputs' squared spreads."""
    variance, low, high = noise.tolist()
    model.register_constraint("raw_noise", above(0.0) if low == high else Between(low * unit, high * unit))
    model.raw_noise.requires_grad_(low != high)
    with torch.no_grad():
        model.raw_noise.copy_((variance * unit).log())


def fit_model(
    estimator: BaseRegressor, model: RCGP, X: Tensor, random: np.random.RandomState, row_of: Callable[[int], int]
) -> FitReport:
    """Fit the hyperparameters, and the noise law if it is learned.

    An error names the row of the table, ``row_of`` that of the model; where one of the inputs X is absurd and no
    observation is, it names the input.
    """
    options: dict[str, Any] = {
        "restarts": int(estimator.n_restarts),
        "max_iterations": int(estimator.max_iter),
        "seed": int(random.randint(2**31 - 1)),
        "progress": estimator.progress,
    }
    try:
        if estimator.weight == "learned":
            return fit_robust(model, local_noise=bool(estimator.local_noise), **options)
        return fit_ordinary(model, **options) if model.weight.constant_in_y else fit(model, "loo", **options)
    except FitError as error:
        absurd_y = bool(_distances(model.train_y.unsqueeze(-1))[0].amax() > _ABSURD)
        far = None if absurd_y else _absurd_input(X, getattr(estimator, "feature_names_in_", None))
        cause = error if far is None else FitError("the inputs do not allow a fit", *far)
        raise FitError(cause.reason, row_of(cause.row), cause.clue) from error


def weigh_all(model: RCGP, report: FitReport) -> FitReport:
    """The report of a model that was fitted to a sample of its rows, after all are weighted by the law."""
    if isinstance(report, RobustReport):
        weigh_by_law(model, report.laws)
    return replace(report, hyperparameters=model.listed_hyperparameters())


def diagnosed(
    model: Any,
    judged: Judgement,
    learn: Callable[[], Judgement],
    weights: Tensor,
    loo: LeaveOneOut,
    X: Tensor,
    y: Tensor,
    used: Tensor,
) -> RowDiagnosis:
    """Weights, leave-one-out predictions and flags of all rows; predictions of those that are left out of the model.

    Args:
        model: the model of one output.
        judged: its noise law, and the outlier probability of each of its rows.
        learn: gives the law that is learned from leave-one-out predictions.
        weights, loo: of its rows.
        X, y: all rows; y is NaN where an observation is missing.
        used: which of them are rows of the model.
    """
    weight_of, mean, variance, probability = (torch.empty_like(y) for _ in range(4))
    weight_of[used], mean[used], variance[used] = weights, loo.mean, loo.variance
    probability[used] = judged.outlier_probability
    left_out = ~used
    if bool(left_out.any()):
        with torch.no_grad():
            x = X[left_out]
            prior, prediction = model.mean(x), model.posterior(x)
            # A normal law has no outliers, but is no evidence that rows outside the model are inliers.
            law = learn() if judged.law.is_normal else judged
            local = model.noise_scale(x) / model.noise.detach()
            unseen = LawWeight(law.law, prediction.mean - prior, prediction.variance, local)
            residual = y[left_out] - prior
            probability[left_out] = unseen.responsibilities(residual, law.noise).outlier_probability
            weight = unseen if isinstance(model.weight, LawWeight) else model.frozen_weight()
            weight_of_each = weight(residual, x, model.noise).clamp_min(torch.finfo(y.dtype).tiny)
            weight_of[left_out] = torch.where(residual.isnan(), torch.nan, weight_of_each)
            observed = model.posterior(x, observation_noise=True)
            mean[left_out], variance[left_out] = observed.mean, observed.variance
    return RowDiagnosis.of(y, weight_of, mean, variance.sqrt(), probability)


def warn_of_absurd_input(kernel: gpytorch.kernels.Kernel, X: Tensor, names: Sequence[str] | None, rows: Tensor) -> None:
    """Warn the caller of ``fit`` of an input that is absurdly far, if the kernel does not ignore it.

    ``names`` are those of the features, and ``rows`` the numbers of the rows in the table.
    """
    if not ignores_far_inputs(kernel) and (far := _absurd_input(X, names)) is not None:
        row, clue = far
        message = f"look at row {int(rows[row])}, {clue}: with this kernel it may spoil all predictions"
        warnings.warn(message, stacklevel=5)


def _absurd_input(X: Tensor, names: Sequence[str] | None) -> tuple[int, str] | None:
    """Row and description of the input farthest out in its column, if it is absurdly far."""
    ratio, centre, typical = _distances(X)
    row, column = divmod(int(ratio.argmax()), X.shape[1])
    if not bool(ratio[row, column] > _ABSURD):
        return None
    label = f"column {column} of X" if names is None else f"column {str(names[column])!r}"
    others = f"half of that column lies within {float(typical[column]):.3g} of {float(centre[column]):.3g}"
    return row, f"whose {label} is {float(X[row, column]):g}, while {others}: correct it or leave the row out"


def _distances(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances from the median of each column over the typical distance, ``n x d``; medians; typical distances.

    The typical distance is the median over values that differ from the median: 1 for a rare indicator.
    """
    centre = values.median(dim=0).values
    distance = (values - centre).abs()
    typical = torch.where(distance > 0, distance, torch.nan).nanmedian(dim=0).values
    return (distance / typical).nan_to_num(nan=0.0, posinf=torch.inf), centre, typical


def lengthscales(kernel: gpytorch.kernels.Kernel, d: int) -> np.ndarray:
    """Lengthscale of each of ``d`` features: ``d``, or a row for each kernel with lengthscales in a sum or product.

    Infinite for a feature that a kernel ignores. For a periodic kernel scikit-learn's, the square root of GPyTorch's.
    """
    rows = list(_lengthscale_rows(kernel, torch.arange(d), d))
    if len(rows) == 1:
        return rows[0]
    return np.stack(rows) if rows else np.zeros((0, d))


def _lengthscale_rows(
    kernel: gpytorch.kernels.Kernel, dims: Tensor, d: int, chosen: bool = False
) -> Iterator[np.ndarray]:
    """A row of ``d`` lengthscales for each part of a kernel of the features ``dims`` that has any.

    ``chosen`` if ``active_dims`` are already applied: a ScaleKernel takes over those of its base.
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


def score_of_observed(y: Array, mean: Array, sample_weight: ArrayLike | None) -> float:
    """R² of predictions where y is not NaN: the mean over columns with two observed cells or more."""
    check_consistent_length(y, sample_weight)
    if y.shape != mean.shape:
        raise ValueError(f"y must have the shape {mean.shape} of the predictions, got {y.shape}")
    weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
    columns = zip(y.reshape(len(y), -1).T, mean.reshape(len(y), -1).T, strict=True)
    seen = [(~np.isnan(one), one, predicted) for one, predicted in columns]
    each = [r2_score(one[rows], m[rows], sample_weight=weights[rows]) for rows, one, m in seen if rows.sum() > 1]
    return float(np.mean(each)) if each else float("nan")
