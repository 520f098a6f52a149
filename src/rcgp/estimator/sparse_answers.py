"""What a fitted sparse regressor answers: predictions, and what it says of each row. It is fitted next door."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from rcgp.chunked.fit import ChunkedFit
from rcgp.chunked.memory import available_memory, gigabytes
from rcgp.estimator.contract import as_tensor
from rcgp.estimator.output import lengthscales
from rcgp.estimator.row_answers import DiagnoseRows, Predict, RowDiagnosis
from rcgp.estimator.row_sources import input_blocks, lazy_inputs, same_features
from rcgp.models.validation import check_finite
from rcgp.training import FitReport
from rcgp.weights import NoiseLaw

__all__ = ["SparseAnswers"]

# Matrices of the size of a covariance matrix that are held while one is computed.
_COVARIANCES = 3

_PER_ROW = tuple(f"{name}_" for name in RowDiagnosis._fields[1:])


class SparseAnswers:
    """The part of :class:`rcgp.SparseRCGPRegressor` that works once it is fitted."""

    model_: ChunkedFit
    n_features_in_: int
    noise_variance_: float
    kernel_: gpytorch.kernels.Kernel
    fit_report_: FitReport
    noise_law_: NoiseLaw
    doubts_: tuple[str, ...]

    def _keep(self, fitted: ChunkedFit, parts: list[RowDiagnosis] | None) -> None:
        """What was fitted, as attributes, and what it says of each row where that is known."""
        self.model_, self.n_outputs_ = fitted, 1
        self.noise_law_, self.doubts_ = fitted.noise_law, fitted.doubts
        self.noise_variance_ = fitted.noise.item()
        self.kernel_ = fitted.diagnose.view.kernel
        self.lengthscales_ = lengthscales(self.kernel_, self.n_features_in_)
        self.inducing_points_ = fitted.diagnose.view.Z.numpy()
        self.fit_report_ = fitted.report
        self.n_iter_ = fitted.report.iterations
        for name in _PER_ROW:
            self.__dict__.pop(name, None)  # of an earlier fit
            if parts is not None:
                setattr(self, name, np.concatenate([getattr(part, name[:-1]) for part in parts]))

    def __getattr__(self, name: str) -> Any:
        # Called only when normal lookup fails.
        if name in _PER_ROW and "model_" in self.__dict__:
            raise AttributeError(
                f"there is no {name} of rows that were not in memory, such as those of a memory-mapped file: use "
                f"np.concatenate([chunk.{name[:-1]} for chunk in model.diagnose(X, y)])"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = False) -> Any:
        """Predict the function, or new observations of it.

        Parameters
        ----------
        X : array-like of shape (q, d), or Dask array or data frame
            Inputs; a ``numpy.memmap`` is read block by block. Files and chunks are predicted piece by piece:
            ``[model.predict(X) for X, y in chunks]``.
        return_std : bool, default=False
            Return standard deviations as well.
        return_cov : bool, default=False
            Return the covariance matrix as well, if there is memory for it. For inputs in memory.
        include_noise : bool, default=False
            Of new observations that are no outliers: the variance of the noise law there is added to each variance.
            Otherwise they are those of the function. Intervals are better taken from :meth:`predict_interval`.

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
        predictor = self.model_.predictor
        answers: list[Callable[[Tensor], Tensor]] = [predictor.mean]
        if return_std:
            answers.append(predictor.noisy_std if include_noise else predictor.std)
        found = self._answers(X, answers)
        return tuple(found) if return_std else found[0]

    def predict_quantiles(self, X: Any, q: ArrayLike) -> Any:
        """Quantiles of new observations that are no outliers, by the noise law.

        Parameters
        ----------
        X : array-like of shape (r, d), or Dask array or data frame
            Inputs, as for :meth:`predict`.
        q : float or array-like of shape (k,)
            Probabilities in (0, 1).

        Returns
        -------
        quantiles : ndarray of shape (r,), or (r, k) if ``q`` is an array
            For a Dask collection a Dask array, not yet computed.
        """
        check_is_fitted(self)
        levels = np.asarray(q, dtype=np.float64)
        if levels.ndim > 1 or not bool(((levels > 0.0) & (levels < 1.0)).all()):
            raise ValueError(f"q must be one or several probabilities in (0, 1), got {q!r}")
        predictor = self.model_.predictor
        found = self._answers(X, [partial(predictor.quantile, float(level)) for level in np.atleast_1d(levels)])
        return found[0] if levels.ndim == 0 else np.stack(found, axis=-1)

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Any, Any]:
        """The central interval that holds a new observation, if it is no outlier, with a probability.

        Parameters
        ----------
        X : array-like of shape (q, d), or Dask array or data frame
            Inputs, as for :meth:`predict`.
        coverage : float, default=0.95
            The probability, in (0, 1).

        Returns
        -------
        lower, upper : ndarrays of shape (q,)
            For a Dask collection Dask arrays, not yet computed.
        """
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must be a probability in (0, 1), got {coverage!r}")
        tail = 0.5 * (1.0 - float(coverage))
        return self.predict_quantiles(X, tail), self.predict_quantiles(X, 1.0 - tail)

    def noise_std(self, X: Any) -> Any:
        """Standard deviation of the noise of good observations at inputs, by the noise law.

        Parameters
        ----------
        X : array-like of shape (q, d), or Dask array or data frame
            Inputs, as for :meth:`predict`.

        Returns
        -------
        std : ndarray of shape (q,)
            The same everywhere unless the fit found that noise differs from place to place.
        """
        check_is_fitted(self)
        return self._answers(X, [self.model_.predictor.noise_std])[0]

    def log_predictive_density(self, X: Any, y: ArrayLike) -> np.ndarray:
        """Log density of observations under their predictive distribution, noise included.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs in memory.
        y : array-like of shape (q,)
            Observations.

        Returns
        -------
        density : ndarray of shape (q,)
            Log density of each under the noise law, as an observation that is no outlier; their negative mean is the
            NLPD.
        """
        check_is_fitted(self)
        inputs = self._in_memory(X, "log_predictive_density")
        observed = column_or_1d(np.asarray(y, dtype=np.float64))
        if len(observed) != len(inputs):
            raise ValueError(f"y must have the shape {(len(inputs),)} of the predictions, got {observed.shape}")
        targets = as_tensor(observed)
        check_finite(targets, "y")
        with torch.no_grad():
            return self.model_.predictor.log_density(inputs, targets).numpy()

    def _answers(self, X: Any, answers: Sequence[Callable[[Tensor], Tensor]]) -> list[Any]:
        """Several answers at inputs of any kind, block by block; for a Dask collection lazily."""
        names = None if not hasattr(self, "feature_names_in_") else tuple(map(str, self.feature_names_in_))
        lazy = hasattr(X, "__dask_graph__")
        tasks = [Predict(answer, names, unread=lazy) for answer in answers]
        if lazy:
            inputs = lazy_inputs(self, X)
            return [inputs.map_blocks(task, drop_axis=1, dtype=np.float64, meta=np.empty(0)) for task in tasks]
        found = [[task(part) for task in tasks] for part in input_blocks(self, X)]
        return [np.concatenate(column) for column in zip(*found, strict=True)]

    def _in_memory(self, X: Any, name: str) -> Tensor:
        """Inputs as one tensor; a Dask collection is refused."""
        if hasattr(X, "__dask_graph__"):
            raise ValueError(f"{name} is for inputs in memory: compute X first")
        return torch.cat(list(input_blocks(self, X)))

    def _with_covariance(self, X: Any, include_noise: bool) -> Any:
        """Means and covariance matrix at inputs in memory."""
        inputs = self._in_memory(X, "return_cov")
        needed, free = 8 * _COVARIANCES * len(inputs) ** 2, available_memory()
        if free is not None and needed > free:
            raise MemoryError(
                f"the covariance matrix of {len(inputs)} rows needs about {gigabytes(needed)} GB of memory, and "
                f"{gigabytes(free)} are free: ask for return_std=True, or for fewer rows"
            )
        predictor = self.model_.predictor
        with torch.no_grad():
            mean, covariance = predictor.mean(inputs), predictor.process.covariance(inputs, inputs)
            if include_noise:
                covariance.diagonal().add_(predictor.noise_variance(inputs))
        return mean.numpy(), covariance.numpy()

    def diagnose(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[RowDiagnosis]:
        """What the model says of the rows that it was fitted to, chunk by chunk: for rows that are not in memory.

        Parameters
        ----------
        X, y, sample_weight
            As they were given to :meth:`fit`, or some of those rows, with the same features in the same order; of a
            Parquet file those columns are taken. A new row would be predicted without itself, as if it had been among
            them. Blocks of a Dask collection come to this process one at a time; the client has no part in it.

        Yields
        ------
        diagnosis : named tuple
            ``first``, the number of the chunk's first row, and ``weights``, ``outlier_scores``,
            ``outlier_probability``, ``outliers``, ``loo_mean`` and ``loo_std`` of its rows. Cost O(m²) for each. For
            one array of all: ``np.concatenate([chunk.outliers for chunk in model.diagnose(X, y)])``.
        """
        check_is_fitted(self)
        return map(DiagnoseRows(self.model_.diagnose), same_features(self, X, y, sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
