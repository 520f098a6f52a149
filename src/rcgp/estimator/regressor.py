"""The robust conjugate GP as a scikit-learn regressor."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rcgp.estimator.base import (
    BaseRegressor,
    check_choice,
    check_integer,
    names_of_outputs,
    only,
    stacked,
    training_data,
    undone_on_failure,
    with_nan,
)
from rcgp.estimator.joint import OutputOf, fit_joint
from rcgp.estimator.output import (
    ROW_ATTRIBUTES,
    Output,
    OutputsMixin,
    fit_output,
    lengthscales,
    score_of_observed,
    warn,
)
from rcgp.models import RCGP, MultiOutputRCGP

__all__ = ["RCGPRegressor"]

Array = NDArray[np.float64]


class RCGPRegressor(OutputsMixin, MultiOutputMixin, BaseRegressor):  # type: ignore[misc]
    """Gaussian process regression that outliers cannot break.

    The noise may be normal, heavy-tailed or have outliers: the model learns the noise law, and weights each observation
    by it. With the weights the posterior has the closed form of the robust and conjugate GP of Altamirano,
    Briol and Knoblauch (2024); for normal noise it is the ordinary GP. A drop-in replacement for scikit-learn's
    ``GaussianProcessRegressor``.

    Parameters
    ----------
    kernel : kernel of GPyTorch or scikit-learn, default=None
        Prior covariance of the function; a copy is fitted. ``None`` is a squared exponential with one lengthscale for
        each feature and an output scale. scikit-learn's kernels are translated if GPyTorch has the same (RBF, Matern,
        RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel, WhiteKernel, sums and products), with their
        bounds. A WhiteKernel sets the initial noise variance and whether it is fixed; noise is fitted without one, too.
    mean : str, callable or GPyTorch mean, default="median"
        Prior mean: ``"median"`` of y, ``"zero"``, ``"constant"`` (the sample mean, which outliers move), ``"linear"``,
        ``"quadratic"`` (least squares), ``"robust_linear"`` (Huber), a function from an ``n x d`` tensor to ``n``
        values, or a GPyTorch ``Mean``, which is then trained.
    weight : {"learned", "imq", "se", "constant"} or weight function of rcgp.weights, default="learned"
        Weights of the observations. ``"learned"`` follows the noise law, which is learned along with the
        hyperparameters by the evidence. ``"imq"`` is the paper's method: the inverse multiquadric of the distance from
        the prior mean with the threshold's quantile at 95 %, hyperparameters by leave-one-out;
        ``InverseMultiquadric(epsilon=0.1)`` has another quantile. ``"se"`` is the squared exponential. ``"constant"``
        is the ordinary GP, by the evidence.
    local_noise : bool, default=True
        Let the noise vary with the inputs if the evidence grows by a nat or more. For ``weight="learned"``.
    n_restarts : int, default=0
        Further starts of the optimiser at random hyperparameters; the best result is kept.
    normalize : bool, default=True
        Multiply the variance of a given kernel, and of its WhiteKernel, by the squared unit of y: its median absolute
        deviation. ``False`` takes a given kernel as it is; variances of correlated outputs are learned either way,
        unless the kernel has several outputs itself. The default kernel, its priors and the noise always start
        in units of the data that outliers do not move: for X the width of the middle 90 % of each column. Results are
        in the units of X and y either way.
    priors : {"weak"} or None, default="weak"
        Weak priors for the default kernel, against local optima in which all is noise: dimension-scaled log-normal
        lengthscales, log-normal output scale and noise variance. ``None`` is the paper's setting. A given kernel has
        the priors that are registered on it.
    max_iter : int, default=1000
        Limit on the iterations of each start of the optimiser.
    fit_rows : int or None, default=None
        Choose hyperparameters and noise law on a random sample of this many rows; the posterior uses all rows, each
        weighted by the law. For thousands of rows: an evaluation of the objective costs O(rows³).
    progress : bool or callable, default=False
        ``True`` shows the progress of the optimiser on standard error; or a function called with the number of
        evaluations and the best value so far.
    random_state : int, RandomState instance or None, default=None
        Seed of restarts and of the sample of ``fit_rows``.
    outputs : {"independent", "correlated"}, default="independent"
        For y of several columns: a model for each, or one model of all observed cells
        (:class:`rcgp.MultiOutputRCGP`), in which correlated outputs help each other. It costs O(N³) for N
        observed cells. NaN marks a cell that was not observed, which is predicted, in both.

    Attributes
    ----------
    noise_law_ : NoiseLaw, or list of them
        Distribution of the noise: shares of normal noise, tail and outliers; ``print`` shows it. For a given weight
        the law is learned from the leave-one-out predictions afterwards, and only flags rows.
    weights_ : ndarray of shape (n,) or (n, n_outputs)
        Weight of each row: 1 counts in full, near 0 is an outlier. Above 1 where noise is locally small.
    outlier_probability_ : ndarray, same shape
        Probability that each row is an outlier, or has noise of the widest scale, by the noise law.
    outliers_ : ndarray of bool, same shape
        Flagged rows: more likely outliers than not, with a probability above one half.
    outlier_scores_ : ndarray, same shape
        Standardised leave-one-out residual of each row: ``(y − loo_mean_) / loo_std_``.
    loo_mean_, loo_std_ : ndarray, same shape
        Leave-one-out prediction of each row, noise included.
    doubts_ : tuple of str, or list of them
        Reasons why the noise law may be wrong, a sentence each; each is also a ``NoiseLawWarning``.
    noise_variance_ : float, or ndarray of shape (n_outputs,)
        Fitted noise variance σ², the squared unit of the noise law; :meth:`noise_std` is the standard deviation.
    kernel_ : GPyTorch kernel, or list of them
        Fitted kernel, in the units of X and y.
    lengthscales_ : ndarray of shape (d,), or list of them
        Fitted lengthscale of each feature, in its units; infinite for one that the kernel ignores. For a sum or product
        of several kernels with lengthscales one row for each, in their order.
    fit_report_ : RobustReport or FitReport, or list of them
        Report of the fit; ``print`` shows it.
    n_iter_ : int, or list of them
        Iterations of the optimiser; with a learned weight those of all searches.
    output_correlation_ : ndarray of shape (n_outputs, n_outputs)
        Correlation of the functions of the outputs, for ``outputs="correlated"``.
    output_names_ : list of str or None
        Names of the outputs, if y was a data frame of several with text as names.
    models_ : list of RCGP, or of MultiOutputRCGP
        The fitted model of each output; for ``outputs="correlated"`` the one of all.
    n_features_in_, feature_names_in_
        Number of features, and their names if X was a data frame.

    Notes
    -----
    Fitting costs O(n³) for each evaluation of the objective and a few n x n matrices of memory; predicting O(n) for
    each mean and O(n²) for each standard deviation. Outputs are fitted one by one, with separate hyperparameters,
    unless ``outputs="correlated"``. Attributes of rows then are those of cells; of a missing cell the weight, the
    probability and the score are NaN, and ``loo_mean_`` and ``loo_std_`` its prediction.

    Unlike scikit-learn's, this regressor always has a noise variance, predicts without it unless ``include_noise``
    (scikit-learn includes a WhiteKernel), and does not predict before it is fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from rcgp import RCGPRegressor
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> y[20] += 3.0
    >>> model = RCGPRegressor().fit(X, y)
    >>> np.flatnonzero(model.outliers_)
    array([20])
    >>> model.predict([[1.5]], return_std=True)[0].round(1)
    array([1.])
    """

    models_: list[RCGP]

    def __init__(
        self,
        kernel: Any = None,
        mean: Any = "median",
        weight: Any = "learned",
        local_noise: bool = True,
        n_restarts: int = 0,
        normalize: bool = True,
        priors: str | None = "weak",
        max_iter: int = 1000,
        fit_rows: int | None = None,
        progress: Any = False,
        random_state: Any = None,
        outputs: str = "independent",
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.weight = weight
        self.outputs = outputs
        self.local_noise = local_noise
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.priors = priors
        self.max_iter = max_iter
        self.fit_rows = fit_rows
        self.progress = progress
        self.random_state = random_state

    @undone_on_failure
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> RCGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, n_outputs)
            Observations. NaN in one of several outputs is a cell that was not observed.
        sample_weight : array-like of shape (n,), default=None
            Factors on the precision of each row: row i has the noise variance σ²/sample_weight[i], like the mean of
            that many measurements. The noise σ² is that of a row of weight 1; the function depends on ratios of
            weights only. A row of weight 0 does not count, and its y may be missing (NaN).

        Returns
        -------
        self
        """
        self._check_parameters()
        inputs, targets, precision = training_data(self, X, y, sample_weight, multi_output=True)
        random = check_random_state(self.random_state)
        table = targets.reshape(len(targets), -1)
        if bool((missing := table.isnan().all(dim=0)).any()):
            raise ValueError(f"column {int(missing.nonzero()[0])} of y has no observation: leave it out")
        if self.outputs == "correlated" and table.shape[1] > 1:
            outputs = fit_joint(self, inputs, table, precision, random)
        else:
            outputs = [fit_output(self, inputs, column.contiguous(), precision, random) for column in table.T]
        self._set_fitted(outputs, names_of_outputs(y))
        for number, output in enumerate(outputs):
            report = output.report if number < len(self.models_) else None  # one for all where they are correlated
            name = number if self.output_names_ is None else repr(self.output_names_[number])
            where = f"output {name}: " if len(outputs) > 1 else ""
            warn(report, tuple(where + doubt for doubt in output.doubts))
        return self

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0, include_noise: bool = False) -> Array:
        """Draw functions from the posterior and evaluate them.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs.
        n_samples : int, default=1
            Number of samples.
        random_state : int, RandomState instance or None, default=0
            Seed.
        include_noise : bool, default=False
            Draw observations instead: with noise.

        Returns
        -------
        samples : ndarray of shape (q, n_samples) or (q, n_outputs, n_samples)
            Joint samples. Cost O(n²q + q³).
        """
        check_is_fitted(self)
        inputs, random = self._inputs(X), check_random_state(random_state)
        samples = []
        with torch.no_grad():
            if self._joint is not None and self.n_outputs_ > 1:
                normal = torch.from_numpy(random.standard_normal((n_samples, len(inputs), self.n_outputs_)))
                joint = self._joint.posterior(inputs, observation_noise=include_noise)
                return joint.rsample(torch.Size([n_samples]), base_samples=normal).movedim(0, -1).numpy()
            for model in self._models:
                normal = torch.from_numpy(random.standard_normal((n_samples, len(inputs))))
                posterior = model.posterior(inputs, observation_noise=include_noise)
                samples.append(posterior.rsample(torch.Size([n_samples]), base_samples=normal).T)
        return stacked(samples, axis=1)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the predictions; of several outputs the mean over those with two observed cells or more.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs.
        y : array-like of shape (q,) or (q, n_outputs)
            Observations; of several outputs NaN where a cell is missing.
        sample_weight : array-like of shape (q,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            1 for perfect predictions.
        """
        check_is_fitted(self)
        table = with_nan(np.array(y))
        if self.n_outputs_ == 1 or table.dtype.kind != "f" or table.ndim != 2 or not np.isnan(table).any():
            return float(super().score(X, y, sample_weight))
        return score_of_observed(table, self.predict(X), sample_weight)

    def output(self, number: int | str) -> RCGPRegressor:
        """One of several outputs as a fitted regressor of a single one.

        Parameters
        ----------
        number : int or str
            Which column of y, from 0, or its name if y was a data frame.

        Returns
        -------
        regressor : RCGPRegressor
            With the same predictions of that output; attributes of rows hold only rows in which it was observed. It
            shares the models of this one: an output of ``outputs="correlated"`` cannot be saved by itself.
        """
        check_is_fitted(self)
        if isinstance(number, str):
            names = self.output_names_ or []
            if number not in names:
                known = f"they are {', '.join(map(repr, names))}" if names else "they have no names: give its number"
                raise ValueError(f"there is no output {number!r}: {known}")
            number = names.index(number)
        check_integer(number, "number", least=0)
        if number >= self.n_outputs_:
            raise ValueError(f"number must be below the number of outputs, {self.n_outputs_}, got {number}")
        if self.n_outputs_ == 1:
            return copy.copy(self)
        own = self._outputs[number]
        observed = ~np.isnan(own.rows.weights)
        rows = own.rows._replace(**{name: getattr(own.rows, name)[observed] for name in ROW_ATTRIBUTES})
        regressor = copy.copy(self)
        regressor._set_fitted([replace(own, rows=rows)])
        return regressor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice(self.outputs, ("independent", "correlated"), "outputs")

    def _set_fitted(self, outputs: Sequence[Output], names: list[str] | None = None) -> None:
        """Set the fitted attributes; with one output they have no axis for outputs."""
        self._set_outputs(outputs)
        self.output_names_ = names
        self.__dict__.pop("output_correlation_", None)  # of an earlier fit
        reports = [output.report for output in outputs]
        self.models_ = [model for model in self._models if isinstance(model, RCGP)]
        if self._joint is not None:
            self.models_, reports = [self._joint], reports[:1]
            self.output_correlation_ = self._joint.output_correlation.numpy()
        self.kernel_ = only([model.kernel for model in self.models_])
        self.lengthscales_ = only([lengthscales(model.kernel, self.n_features_in_) for model in self.models_])
        self.fit_report_ = only(reports)
        self.n_iter_ = only([report.iterations for report in reports])

    @property
    def _joint(self) -> MultiOutputRCGP | None:
        """The model of all outputs, if there is one."""
        first = self._outputs[0].model
        return first.joint if isinstance(first, OutputOf) else None

    def _log_density(self, inputs: Tensor, targets: Tensor, outliers: bool) -> Array:
        each = zip(self._models, targets.reshape(len(targets), -1).T, self._moments(inputs), strict=True)
        return stacked(
            [
                m.noise_law.log_density(y - mean, variance, noise, y - m.mean(inputs) if outliers else None)
                for m, y, (mean, variance, noise) in each
            ]
        )
