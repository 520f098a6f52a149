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

    The robust and conjugate GP of Altamirano, Briol and Knoblauch (2024): the posterior of an ordinary GP in closed
    form, but each observation counts with a weight that vanishes for outlying values. What is outlying is found out
    from the other observations; ``centre="prior"`` is the paper's own method. It takes the place of scikit-learn's
    ``GaussianProcessRegressor``; with ``centre="prior", weight="constant", objective="marginal"`` it is one.

    Parameters
    ----------
    kernel : kernel of GPyTorch or scikit-learn, default=None
        Prior covariance of the function. ``None`` is a squared exponential with one lengthscale for each feature and an
        output scale. Kernels of scikit-learn are translated where GPyTorch has the same (RBF, Matern,
        RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel, WhiteKernel, sums and products), with their
        bounds; a WhiteKernel says where the noise variance starts and whether it is fixed. Without one it is fitted all
        the same. The kernel given is copied, not changed.

    mean : str, callable or GPyTorch mean, default="constant"
        Prior mean, on which ``centre="prior"`` centres the weights. ``"constant"`` is the median of y, or its sample
        mean (the paper's choice, which outliers move) with ``centre="prior", normalize=False``; ``"zero"``,
        ``"median"``, ``"linear"``, ``"quadratic"`` (least squares), ``"robust_linear"`` (Huber), a function from an
        ``n x d`` tensor to ``n`` values, or a GPyTorch ``Mean``, which is then trained.

    weight : {"imq", "se", "constant"} or weight function of rcgp.weights, default=None
        How trust in an observation falls with its distance from the prior mean: inverse multiquadric (what ``None`` is
        with ``centre="prior"``), squared exponential, or not at all (the ordinary GP). For ``centre="prior"``.

    centre : {"adaptive", "prior"}, default="adaptive"
        What the weights are centred on. ``"adaptive"`` is what the other rows predict: who is trusted, by which
        threshold, and the hyperparameters are found together, so that setting ``weight``, ``epsilon``, ``objective``
        or ``n_restarts`` is an error. ``"prior"`` is the prior mean, the paper's method.

    epsilon : float or None, default=None
        Share of observations expected to be outlying: the weights' threshold is the (1 − epsilon)-quantile of the
        distances from the prior mean. ``None`` is 0.05. For ``centre="prior"`` with ``weight="imq"`` or ``"se"``.

    objective : {"loo", "marginal", "pseudo_marginal"}, callable or None, default="loo"
        What the hyperparameters maximise: the leave-one-out predictive density, the marginal likelihood (for
        ``weight="constant"``), or a function from an ``rcgp.RCGP`` to a scalar. ``None`` keeps the starting values.
        All but ``"loo"`` for ``centre="prior"``.

    n_restarts : int, default=0
        Further starts of the optimiser at random hyperparameters; the best end is kept. For ``centre="prior"``.

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
        Choose the hyperparameters on a random sample of this many rows; the posterior uses all rows. For thousands of
        rows: an evaluation of the objective costs O(rows³). Adaptive centring then renews its centres for all rows,
        with the sample's hyperparameters, calibration and threshold.

    progress : bool or callable, default=False
        ``True`` shows the progress of the optimiser on standard error; or a function called with the number of
        evaluations and the best value so far.

    random_state : int, RandomState instance or None, default=None
        Seed of restarts and of the sample of ``fit_rows``.

    Attributes
    ----------
    weights_ : ndarray of shape (n,) or (n, n_outputs)
        Weight of each row, in (0, 1]: small for rows far from the centre.
    outlier_scores_ : ndarray, same shape
        How far each row lies from what all other rows predict there: ``t = (y − loo_mean_) / loo_std_``. With
        ``centre="prior"`` in robust standard deviations, t/τ with ``τ = median|t| / 0.6745``.
    outliers_ : ndarray of bool, same shape
        Rows that adaptive centring does not trust, and whose score is beyond ±5. With ``centre="prior"`` rows whose
        score is beyond ±3.5; of normal observations about one in two thousand is. A few rows do not know their own
        standard deviation, so in small tables both limits are those quantiles of Student's t that have the same tail,
        with n − 2 degrees of freedom, or 2(n − 2): 14 for 10 rows, 7.5 for 20, 5.8 for 50; and 4.4, 3.9, 3.6.
    loo_mean_, loo_std_ : ndarray, same shape
        Leave-one-out prediction of each row from all others, noise included.
    noise_variance_ : float, or ndarray of shape (n_outputs,)
        Fitted noise variance σ².
    kernel_ : GPyTorch kernel, or list of them
        Fitted kernel, in the units of X and y.
    lengthscales_ : ndarray of shape (d,), or list of them
        Fitted lengthscale of each feature, in its units; infinite for one that the kernel ignores. For a sum or product
        of several kernels with lengthscales one row for each, in their order.
    fit_report_ : AdaptiveReport or FitReport, list of them, or None
        How the fit went; ``print`` shows it.
    n_iter_ : int, or list of them
        Iterations of the optimiser in the start that was kept.
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
        mean: Any = "constant",
        weight: Any = None,
        centre: str = "adaptive",
        epsilon: float | None = None,
        objective: Any = "loo",
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
        self.centre = centre
        self.epsilon = epsilon
        self.objective = objective
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
