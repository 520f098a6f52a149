"""What a fitted sparse regressor answers: predictions, and what it says of each row. It is fitted next door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpytorch
import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from rcgp.estimator.output import lengthscales
from rcgp.estimator.row_answers import Predict, RowDiagnosis, Tell
from rcgp.estimator.row_sources import input_blocks, lazy_inputs, same_features
from rcgp.training import FitReport
from rcgp.training.chunked import ChunkedFit
from rcgp.training.memory import available_memory, gigabytes

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

    def _keep(self, fitted: ChunkedFit, parts: list[RowDiagnosis] | None) -> None:
        """What was fitted, as attributes, and what it says of each row where that is known."""
        self.model_, self.n_outputs_ = fitted, 1
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
        # Asked only for what there is not.
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
        process, lazy = self.model_.process, hasattr(X, "__dask_graph__")
        names = None if not hasattr(self, "feature_names_in_") else tuple(map(str, self.feature_names_in_))
        tasks = [Predict(process, None, names, unread=lazy)]
        if return_std:
            tasks.append(Predict(process, self.noise_variance_ if include_noise else 0.0, names, unread=lazy))
        if lazy:
            inputs = lazy_inputs(self, X)
            answers = [inputs.map_blocks(task, drop_axis=1, dtype=np.float64, meta=np.empty(0)) for task in tasks]
        else:
            found = [[task(part) for task in tasks] for part in input_blocks(self, X)]
            answers = [np.concatenate(column) for column in zip(*found, strict=True)]
        return tuple(answers) if return_std else answers[0]

    def _with_covariance(self, X: Any, include_noise: bool) -> Any:
        """Means and covariance matrix at inputs in memory."""
        if hasattr(X, "__dask_graph__"):
            raise ValueError("return_cov is for inputs in memory: compute X first")
        inputs = torch.cat(list(input_blocks(self, X)))
        needed, free = 8 * _COVARIANCES * len(inputs) ** 2, available_memory()
        if free is not None and needed > free:
            raise MemoryError(
                f"the covariance matrix of {len(inputs)} rows needs about {gigabytes(needed)} GB of memory, and "
                f"{gigabytes(free)} are free: ask for return_std=True, or for fewer rows"
            )
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
            As they were given to :meth:`fit`, or some of those rows, with the same features in the same order; of a
            Parquet file those columns are taken. A new row would be predicted without itself, as if it had been among
            them. Blocks of a Dask collection come to this process one at a time; the client has no part in it.

        Yields
        ------
        diagnosis : named tuple
            ``first``, the number of the chunk's first row, and ``weights``, ``outlier_scores``, ``outliers``,
            ``loo_mean`` and ``loo_std`` of its rows. Cost O(m²) for each. For one array of all,
            ``np.concatenate([chunk.outliers for chunk in model.diagnose(X, y)])``.
        """
        check_is_fitted(self)
        return map(Tell(self.model_), same_features(self, X, y, sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
