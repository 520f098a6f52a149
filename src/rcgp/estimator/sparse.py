"""The sparse robust GP as a scikit-learn regressor: for as many rows as there are, in memory or not.

It holds no mathematics: :func:`rcgp.training.chunked.fit_chunks` fits, and this file only translates.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from rcgp.chunks import Chunks, chunks_of, engine_for
from rcgp.estimator.contract import all_or_nothing, as_tensor
from rcgp.estimator.output import build_model, lengthscales
from rcgp.estimator.parameters import Recipe, one_of, recipe, whole
from rcgp.estimator.row_answers import Predict, RowDiagnosis, Tell
from rcgp.models.inducing import SELECTIONS
from rcgp.models.validation import check_finite
from rcgp.training.chunked import ChunkedFit, fit_chunks

__all__ = ["SparseRCGPRegressor"]

# Rows of a memory-mapped file that are predicted at a time.
_BLOCK = 2**16


class SparseRCGPRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression that outliers cannot break, for many rows.

    As :class:`RCGPRegressor`, through ``n_inducing`` points instead of all rows: O(n m²) instead of O(n³), in a few
    passes over rows that need not fit in memory. Hyperparameters are chosen on a sample of ``fit_rows`` rows by an
    exact model; all rows then have their say in the posterior, each with its weight.

    Parameters
    ----------
    n_inducing : int, default=500
        Number m of inducing points, at most. More of them see more of the function, and cost m².

    kernel : kernel of GPyTorch or scikit-learn, default=None
        As for :class:`RCGPRegressor`.

    mean : str, callable or GPyTorch mean, default="constant"
        As for :class:`RCGPRegressor`, from the sample of ``fit_rows`` rows. ``"constant"`` is the median of y.

    centre : {"adaptive", "prior"}, default="adaptive"
        What the weights are centred on. ``"adaptive"`` is what the other rows predict: first those of the sample, then
        all. ``"prior"`` is the prior mean, the paper's method.

    weight : {"imq", "se", "constant"} or weight function of rcgp.weights, default=None
        How trust falls with the distance from the prior mean. For ``centre="prior"``.

    epsilon : float or None, default=None
        Share of observations expected to be outlying: the weights' threshold is the (1 − epsilon)-quantile of the
        distances of all rows from the prior mean, exactly. ``None`` is 0.05. For ``centre="prior"`` with
        ``weight="imq"`` or ``"se"``.

    priors : {"weak"} or None, default="weak"
        As for :class:`RCGPRegressor`.

    selection : {"greedy", "kmeans"}, default="greedy"
        How the inducing points are chosen among up to 20 000 rows: each the one that is least known from those before,
        by the fitted kernel, or spread out by k-means++.

    fit_rows : int, default=1000
        Size of the random sample on which the hyperparameters are chosen. An evaluation costs O(fit_rows³).

    polish : int, default=0
        Iterations in which the hyperparameters are then improved by the leave-one-out score of all rows, O(n m²) each.
        For data in memory.

    max_iter : int, default=1000
        Limit on the iterations of each search on the sample.

    threads : int or None, default=None
        Chunks of rows that are worked on at a time. ``None`` is one, by all threads of torch.

    client : dask.distributed.Client or None, default=None
        The cluster that does the passes over Dask collections. Never part of a copy, a pickle or a saved model.

    progress : bool or callable, default=False
        As for :class:`RCGPRegressor`, for the search on the sample.

    random_state : int, RandomState instance or None, default=None
        Seed of the sample and of the inducing points.

    Attributes
    ----------
    weights_, outlier_scores_, outliers_, loo_mean_, loo_std_ : ndarray of shape (n,)
        As for :class:`RCGPRegressor`, where the rows were in memory; else ask :meth:`diagnose`. With
        ``centre="prior"`` the τ of the scores is that of 20 000 rows where there are more.
    noise_variance_ : float
        Fitted noise variance σ².
    kernel_ : GPyTorch kernel
        Fitted kernel, in the units of X and y.
    lengthscales_ : ndarray of shape (d,)
        As for :class:`RCGPRegressor`.
    inducing_points_ : ndarray of shape (m, d)
        The inducing points.
    fit_report_ : AdaptiveReport or FitReport
        How the fit on the sample went; ``print`` shows it.
    n_iter_ : int
        Iterations of the optimiser.
    model_ : rcgp.training.chunked.ChunkedFit
        The fitted model, with the seconds that each step took.
    n_features_in_, feature_names_in_
        Number of features, and their names where they have any.

    Notes
    -----
    The answer depends neither on how the rows are cut into chunks nor on who works on them, but for rounding errors.
    One output only: fit one model for each.

    Examples
    --------
    >>> import numpy as np
    >>> from rcgp import SparseRCGPRegressor
    >>> X = np.linspace(0, 6, 2000)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> y[::100] += 3.0
    >>> model = SparseRCGPRegressor(n_inducing=30, fit_rows=200, random_state=0).fit(X, y)
    >>> bool(model.outliers_[::100].all()), int(model.outliers_.sum())
    (True, 20)
    """

    def __init__(
        self,
        n_inducing: int = 500,
        kernel: Any = None,
        mean: Any = "constant",
        centre: str = "adaptive",
        weight: Any = None,
        epsilon: float | None = None,
        priors: str | None = "weak",
        selection: str = "greedy",
        fit_rows: int = 1000,
        polish: int = 0,
        max_iter: int = 1000,
        threads: int | None = None,
        client: Any = None,
        progress: Any = False,
        random_state: Any = None,
    ) -> None:
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.mean = mean
        self.centre = centre
        self.weight = weight
        self.epsilon = epsilon
        self.priors = priors
        self.selection = selection
        self.fit_rows = fit_rows
        self.polish = polish
        self.max_iter = max_iter
        self.threads = threads
        self.client = client
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> SparseRCGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d), or rows that need not fit in memory
            Inputs: an array, tensor or data frame; a ``numpy.memmap``, of which only chunks are read; a Dask array or
            data frame; the name of one or more Parquet files; or a list, or another iterable that can be gone through
            again, of chunks ``(X, y)``.
        y : array-like of shape (n,), or str
            Observations, of the same kind; the name of their column for Parquet files; left out for chunks.
        sample_weight : array-like of shape (n,), default=None
            Factors on the precision of each row, as for :class:`RCGPRegressor`.

        Returns
        -------
        self
        """
        with all_or_nothing(self):
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> SparseRCGPRegressor:
        how = self._recipe()
        in_memory = _is_table(X, y)
        if self.polish and not in_memory:
            raise ValueError("polish takes all rows into memory: give X and y as arrays, or leave polish at 0")
        chunks = self._table(X, y, sample_weight) if in_memory else self._pieces(X, y, sample_weight)
        engine = engine_for(chunks, client=self.client, threads=self.threads)
        fitted = fit_chunks(
            chunks,
            engine,
            build=partial(build_model, how),
            adaptive=how.adaptive,
            inducing=int(self.n_inducing),
            selection=self.selection,
            fit_rows=int(self.fit_rows),
            polish=int(self.polish),
            max_iterations=how.max_iterations,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            progress=how.progress,
        )
        report = fitted.report
        if not report.converged:
            message = f"the fit did not converge in {report.iterations} iterations: {report.message}"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        self._keep(fitted, engine.collect(Tell(fitted), chunks) if in_memory else None)
        return self

    def _keep(self, fitted: ChunkedFit, parts: list[RowDiagnosis] | None) -> None:
        """What was fitted, as attributes, and what it says of each row where that is known."""
        self.model_, self.n_outputs_ = fitted, 1
        self.noise_variance_ = fitted.noise.item()
        self.kernel_ = fitted.diagnose.view.kernel
        self.lengthscales_ = lengthscales(self.kernel_, self.n_features_in_)
        self.inducing_points_ = fitted.diagnose.view.Z.numpy()
        self.fit_report_ = fitted.report
        self.n_iter_ = fitted.report.iterations
        for name in RowDiagnosis._fields[1:]:
            self.__dict__.pop(f"{name}_", None)  # of an earlier fit
            if parts is not None:
                setattr(self, f"{name}_", np.concatenate([getattr(part, name) for part in parts]))

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = False) -> Any:
        """Predict the function, or new observations of it.

        Parameters
        ----------
        X : array-like of shape (q, d), or Dask array or data frame
            Inputs.
        return_std : bool, default=False
            Return standard deviations as well.
        return_cov : bool, default=False
            Return the covariance matrix as well. For inputs in memory.
        include_noise : bool, default=False
            Of new observations: the noise variance is added to each variance. Otherwise they are those of the function.

        Returns
        -------
        mean : ndarray of shape (q,)
            For a Dask collection a Dask array, not yet computed.
        std : ndarray of the same shape, with ``return_std``
            Likewise. Cost O(m) for each mean and O(m²) for each standard deviation.
        cov : ndarray of shape (q, q), with ``return_cov``
            Cost O(m²q + mq²).
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be asked for")
        if return_cov:
            return self._with_covariance(X, include_noise)
        process, names = self.model_.process, getattr(self, "feature_names_in_", None)
        tasks = [Predict(process, None, names)]
        if return_std:
            tasks.append(Predict(process, self.noise_variance_ if include_noise else 0.0, names))
        if hasattr(X, "__dask_graph__"):
            inputs = self._lazy(X)
            answers = [inputs.map_blocks(task, drop_axis=1, dtype=np.float64, meta=np.empty(0)) for task in tasks]
        else:
            mapped = isinstance(X, np.memmap) and X.ndim == 2
            parts = [X[i : i + _BLOCK] for i in range(0, len(X), _BLOCK)] if mapped else [X]
            checked = (
                validate_data(self, part, reset=False, dtype=np.float64, ensure_all_finite=False) for part in parts
            )
            found = [[task(part) for task in tasks] for part in checked]
            answers = [np.concatenate(column) for column in zip(*found, strict=True)]
        return tuple(answers) if return_std else answers[0]

    def _with_covariance(self, X: Any, include_noise: bool) -> Any:
        """Means and covariance matrix at inputs in memory."""
        if hasattr(X, "__dask_graph__"):
            raise ValueError("return_cov is for inputs in memory: compute X first")
        inputs = as_tensor(validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False))
        check_finite(inputs, "X", getattr(self, "feature_names_in_", None))
        process = self.model_.process
        with torch.no_grad():
            mean, covariance = process.mean(inputs), process.covariance(inputs, inputs)
        if include_noise:
            covariance.diagonal().add_(self.noise_variance_)
        return mean.numpy(), covariance.numpy()

    def diagnose(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[RowDiagnosis]:
        """What the model says of the rows that it was fitted to, chunk by chunk: for rows that are not in memory.

        Parameters
        ----------
        X, y, sample_weight
            As they were given to :meth:`fit`, or some of those rows. A new row would be predicted without itself, as
            if it had been among them.

        Yields
        ------
        diagnosis : named tuple
            ``first``, the number of the chunk's first row, and ``weights``, ``outlier_scores``, ``outliers``,
            ``loo_mean`` and ``loo_std`` of its rows. Cost O(m²) for each.
        """
        check_is_fitted(self)
        chunks = chunks_of(X, y, sample_weight)
        if chunks.columns != self.n_features_in_:
            raise ValueError(f"X has {chunks.columns} features, but the model was fitted to {self.n_features_in_}")
        return map(Tell(self.model_), chunks)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which :func:`rcgp.load` reads; see there for what is kept.

        The file is written whole or not at all: an earlier one stays until the new one is complete.
        """
        from rcgp.estimator.saved import save

        save(self, path)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_clone__(self) -> SparseRCGPRegressor:
        cloned: SparseRCGPRegressor = super(SparseRCGPRegressor, copy.copy(self)).__sklearn_clone__()
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        # A client belongs to a process: neither copies nor pickles have it.
        return {**super().__getstate__(), "client": None}

    def _recipe(self) -> Recipe:
        """The parameters, checked."""
        whole(self.n_inducing, "n_inducing", least=1)
        whole(self.fit_rows, "fit_rows", least=2)
        whole(self.polish, "polish", least=0)
        one_of(self.selection, SELECTIONS, "selection")
        if self.threads is not None:
            whole(self.threads, "threads", least=1)
        named = {"objective": "loo", "n_restarts": 0, "normalize": True, **self.get_params(deep=False)}
        return recipe(SimpleNamespace(**named))

    def _table(self, X: Any, y: Any, sample_weight: Any) -> Chunks:
        """Rows in memory, by the checks of scikit-learn."""
        X, y, sample_weight = (_as_numpy(values) for values in (X, y, sample_weight))
        observed = np.asarray(y)
        if observed.ndim == 2 and observed.shape[1] > 1:
            raise ValueError(
                f"SparseRCGPRegressor has one output, got y with {observed.shape[1]} columns: fit a model for each, as "
                "sklearn.multioutput.MultiOutputRegressor does, or use RCGPRegressor"
            )
        if observed.dtype.kind == "f" and observed.ndim:  # before scikit-learn's check, which does not name the row
            check_finite(as_tensor(observed.reshape(len(observed), -1)[:, 0]), "y")
        X_, y_ = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_all_finite=False)
        check_finite(as_tensor(X_), "X", getattr(self, "feature_names_in_", None))
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X_, dtype=np.float64, ensure_non_negative=True)
        return chunks_of(X_, np.asarray(y_, dtype=np.float64), sample_weight)

    def _pieces(self, X: Any, y: Any, sample_weight: Any) -> Chunks:
        """Rows that are read piece by piece, which checks them."""
        chunks = chunks_of(X, y, sample_weight)
        self.n_features_in_ = chunks.columns
        self.__dict__.pop("feature_names_in_", None)
        if chunks.names is not None:
            self.feature_names_in_ = np.array(chunks.names, dtype=object)
        return chunks

    def _lazy(self, X: Any) -> Any:
        """A Dask collection as an array in blocks of rows, if it has the features of the fit."""
        names = getattr(self, "feature_names_in_", None)
        if X.ndim != 2 or X.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have {self.n_features_in_} features, as in the fit, got shape {X.shape}")
        if not hasattr(X, "columns"):
            return X.rechunk({1: -1})
        if names is not None and list(X.columns) != list(names):
            raise ValueError(f"the feature names of X must be those of the fit, {list(names)}, got {list(X.columns)}")
        return X.to_dask_array()


def _is_table(X: Any, y: Any) -> bool:
    """Whether X is one table in memory, and not a file, a cluster's or in pieces."""
    if isinstance(X, str | os.PathLike | np.memmap) or isinstance(y, str) or hasattr(X, "__dask_graph__"):
        return False
    return y is not None or hasattr(X, "__array__") or hasattr(X, "shape")


def _as_numpy(values: Any) -> Any:
    """A tensor as an array, all else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
