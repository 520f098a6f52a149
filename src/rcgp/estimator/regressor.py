"""The robust conjugate GP as a scikit-learn regressor: its parameters, and how it is fitted.

It holds no mathematics and no units: the model works in the units of the data, and this file only translates. What it
answers once it is fitted is next door.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from rcgp.estimator.contract import all_or_nothing, validated
from rcgp.estimator.exact_answers import ExactAnswers
from rcgp.estimator.output import fit_output
from rcgp.estimator.parameters import recipe

__all__ = ["RCGPRegressor"]


class RCGPRegressor(ExactAnswers, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression that outliers cannot break.

    A Gaussian process that learns how the noise of a table is distributed: normal, heavy-tailed, with outliers. From
    that noise law follows the weight of each observation, and with the weights the posterior has the closed form of the
    robust and conjugate GP of Altamirano, Briol and Knoblauch (2024). Where the noise is normal it is the ordinary GP.
    It takes the place of scikit-learn's ``GaussianProcessRegressor``.

    Parameters
    ----------
    kernel : kernel of GPyTorch or scikit-learn, default=None
        Prior covariance of the function. ``None`` is a squared exponential with one lengthscale for each feature and an
        output scale. Kernels of scikit-learn are translated where GPyTorch has the same (RBF, Matern,
        RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel, WhiteKernel, sums and products), with their
        bounds; a WhiteKernel says where the noise variance starts and whether it is fixed. Without one it is fitted all
        the same. The kernel given is copied, not changed.

    mean : str, callable or GPyTorch mean, default="median"
        Prior mean: ``"median"`` of y, ``"zero"``, ``"constant"`` (the sample mean, which outliers move), ``"linear"``,
        ``"quadratic"`` (least squares), ``"robust_linear"`` (Huber), a function from an ``n x d`` tensor to ``n``
        values, or a GPyTorch ``Mean``, which is then trained.

    weight : {"learned", "imq", "se", "constant"} or weight function of rcgp.weights, default="learned"
        How much an observation counts. ``"learned"`` follows the noise law, which is learned along with the
        hyperparameters by the evidence. ``"imq"`` is the paper's method: the inverse multiquadric of the distance from
        the prior mean with the threshold's quantile at 95 %, hyperparameters by leave-one-out;
        ``InverseMultiquadric(epsilon=0.1)`` has another quantile. ``"se"`` is the squared exponential. ``"constant"``
        is the ordinary GP, by the evidence.

    local_noise : bool, default=True
        Let the noise differ from place to place where the evidence grows by it. For ``weight="learned"``.

    n_restarts : int, default=0
        Further starts of the optimiser at random hyperparameters; the best end is kept.

    normalize : bool, default=True
        Take units from the data, by rules that outliers cannot wreck: y has the median absolute deviation from its
        centre as unit, each column of X the width of its middle 90 %. The default kernel, its priors and the noise
        start there; the variance of a kernel of yours, and of its WhiteKernel, is multiplied by the squared unit of y.
        With ``False`` kernels mean what they say. Results are in the units of X and y either way.

    priors : {"weak"} or None, default="weak"
        Weak priors for the default kernel: dimension-scaled log-normal lengthscales, log-normal output scale and noise
        variance, so that a bad start does not end where everything is noise. ``None`` is the paper's bare setting. A
        kernel of yours has the priors that you register on it.

    max_iter : int, default=1000
        Limit on the iterations of each start of the optimiser.

    fit_rows : int or None, default=None
        Choose hyperparameters and noise law on a random sample of this many rows; the posterior uses all rows, each
        weighed by the law. For thousands of rows: an evaluation of the objective costs O(rows³).

    progress : bool or callable, default=False
        ``True`` shows the progress of the optimiser on standard error; or a function called with the number of
        evaluations and the best value so far.

    random_state : int, RandomState instance or None, default=None
        Seed of restarts and of the sample of ``fit_rows``.

    Attributes
    ----------
    noise_law_ : NoiseLaw, or list of them
        How the noise is distributed: shares of normal noise, tail and outliers; ``print`` shows it. For a weight that
        was given the law is learned from the leave-one-out predictions afterwards, and only flags rows.
    weights_ : ndarray of shape (n,) or (n, n_outputs)
        Weight of each row: 1 counts in full, near 0 is an outlier. Above 1 where noise is locally small.
    outlier_probability_ : ndarray, same shape
        Probability that each row is an outlier, or has noise of the widest scale, by the noise law.
    outliers_ : ndarray of bool, same shape
        Rows that are more likely outliers than not: probability above one half.
    outlier_scores_ : ndarray, same shape
        How far each row lies from what all other rows predict there: ``(y − loo_mean_) / loo_std_``.
    loo_mean_, loo_std_ : ndarray, same shape
        Leave-one-out prediction of each row from all others, noise included.
    doubts_ : tuple of str, or list of them
        Why the noise law may be wrong, a sentence each; each is also a ``NoiseLawWarning``.
    noise_variance_ : float, or ndarray of shape (n_outputs,)
        Fitted noise variance σ², the squared unit of the noise law; :meth:`noise_std` is the standard deviation.
    kernel_ : GPyTorch kernel, or list of them
        Fitted kernel, in the units of X and y.
    lengthscales_ : ndarray of shape (d,), or list of them
        Fitted lengthscale of each feature, in its units; infinite for one that the kernel ignores. For a sum or product
        of several kernels with lengthscales one row for each, in their order.
    fit_report_ : RobustReport or FitReport, or list of them
        How the fit went; ``print`` shows it.
    n_iter_ : int, or list of them
        Iterations of the optimiser; with a learned weight those of all searches.
    models_ : list of RCGP
        The fitted model of each output.
    n_features_in_, feature_names_in_
        Number of features, and their names where X was a data frame.

    Notes
    -----
    Fitting costs O(n³) for each evaluation of the objective and a few n x n matrices of memory; predicting O(n) for
    each mean and O(n²) for each standard deviation. Several outputs are fitted one by one, each with hyperparameters of
    its own.

    Unlike scikit-learn's, this regressor always has a noise variance, predicts the function without it unless asked to
    ``include_noise`` (scikit-learn counts a WhiteKernel in), and does not predict before it is fitted.

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
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.weight = weight
        self.local_noise = local_noise
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.priors = priors
        self.max_iter = max_iter
        self.fit_rows = fit_rows
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> RCGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, n_outputs)
            Observations.
        sample_weight : array-like of shape (n,), default=None
            Factors on the precision of each row: row i has the noise variance σ²/sample_weight[i], as the mean of that
            many measurements has. Only their ratios matter to the function; the noise σ² is that of a row of weight 1.
            A row of weight 0 does not count at all.

        Returns
        -------
        self
        """
        with all_or_nothing(self):
            return self._fit(X, y, sample_weight)

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> RCGPRegressor:
        how = recipe(self)
        if np.asarray(y).dtype.kind == "f":  # before scikit-learn's check, which does not name the row
            self._finite(np.asarray(y, dtype=np.float64), "y")
        X_, y_ = validated(self, X, y, multi_output=True, y_numeric=True)
        inputs, targets = self._finite(X_, "X"), self._finite(y_, "y")
        precision = None
        if sample_weight is not None:
            precision = torch.from_numpy(
                _check_sample_weight(sample_weight, X_, dtype=np.float64, ensure_non_negative=True, copy=True)
            )
        random = check_random_state(self.random_state)
        columns = targets.reshape(len(targets), -1).T
        names = getattr(self, "feature_names_in_", None)
        self._keep([fit_output(how, inputs, column.contiguous(), precision, random, names) for column in columns])
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which :func:`rcgp.load` reads; see there for what is kept.

        The file is written whole or not at all: an earlier one stays until the new one is complete.
        """
        from rcgp.estimator.saved import save

        save(self, path)
