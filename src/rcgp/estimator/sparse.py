"""The sparse robust GP as a scikit-learn regressor, for rows in memory, in files or on a cluster."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rcgp.chunked.fit import ChunkedFit, fit_chunks
from rcgp.chunked.passes import Diagnose
from rcgp.chunked.resources import Stages, check_memory
from rcgp.chunks import Chunk, engine_for
from rcgp.estimator import sources
from rcgp.estimator.base import BaseRegressor, as_tensor, check_choice, check_integer, undone_on_failure
from rcgp.estimator.output import ROW_ATTRIBUTES, RowDiagnosis, build_model, lengthscales, warn
from rcgp.models.inducing import CANDIDATES, SELECTIONS

__all__ = ["IntervalWarning", "SparseRCGPRegressor", "doubt_of"]

Array = NDArray[np.float64]

# Matrices of the size of a covariance matrix that are held while one is computed.
_COVARIANCES = 3

# The spread of standardised errors is 1 for correct intervals. A spread above 1.25 is doubtful, by four standard
# errors: 1.17 over the root of the number of rows, for normal errors.
_LARGE, _SURE, _ERROR = 1.25, 4.0, 1.17

# Share of an observation's variance that the inducing points may leave unexplained.
_UNSEEN = 0.5


class IntervalWarning(UserWarning):
    """The intervals of a sparse model are too narrow or too wide: it has too few inducing points."""


class SparseRCGPRegressor(BaseRegressor):
    """Gaussian process regression that outliers cannot break, for many rows.

    As :class:`RCGPRegressor`, through ``n_inducing`` points instead of all rows: O(n m²) instead of O(n³), in a few
    passes over rows that need not fit in memory. Hyperparameters and local noise are chosen on a sample of
    ``fit_rows`` rows by an exact model. The noise law, the weights and the posterior are those of all rows.

    Parameters
    ----------
    n_inducing : int or array of shape (m, d), default=500
        Largest number m of inducing points, or the points. More points resolve more of the function, and cost m².
    kernel, local_noise, priors, random_state
        As for :class:`RCGPRegressor`. Local noise is found on the sample.
    mean : str, callable or GPyTorch mean, default="median"
        As for :class:`RCGPRegressor`, from the sample of ``fit_rows`` rows.
    weight : {"learned", "imq", "se", "constant"} or weight function of rcgp.weights, default="learned"
        ``"learned"`` takes the weights from the noise law. The others are functions of the distance from the prior
        mean, the paper's method: ``"imq"`` and ``"se"`` have the threshold at the 95 % quantile of the distances of all
        rows (``InverseMultiquadric(epsilon=...)`` for another one); ``"constant"`` is an ordinary sparse GP.
    selection : {"greedy", "kmeans"}, default="greedy"
        How the inducing points are chosen among up to 20 000 rows: each where the fitted kernel leaves the largest
        variance given those before, or by k-means++.
    fit_rows : int, default=1000
        Size of the random sample on which the hyperparameters are chosen. An evaluation costs O(fit_rows³).
    polish : int, default=0
        Iterations that then improve the hyperparameters on all rows, O(n m²) each. For data in memory.
    max_iter : int, default=1000
        Limit on the iterations of each search on the sample.
    threads : int or None, default=None
        Chunks of rows that are processed at a time. ``None`` is one, with all threads of torch.
    client : dask.distributed.Client or None, default=None
        The cluster for passes over Dask collections. Never part of a copy, a pickle or a saved model.
    progress : bool or callable, default=False
        ``True`` shows each step, with the evaluations of a search or the rows of a pass; or a function, called after
        each evaluation as for :class:`RCGPRegressor`. Its method ``stage(name, done, total)``, if any, is called for
        steps and rows.

    Attributes
    ----------
    weights_, outlier_scores_, outlier_probability_, outliers_, loo_mean_, loo_std_ : ndarray of shape (n,)
        As for :class:`RCGPRegressor`, for rows in memory, which excludes a ``numpy.memmap``; otherwise use
        :meth:`diagnose`.
    noise_law_, doubts_, noise_variance_, kernel_, lengthscales_, n_features_in_, feature_names_in_
        As for :class:`RCGPRegressor`, of all rows. For a given weight the noise law is learned from the leave-one-out
        predictions of the sample.
    inducing_points_ : ndarray of shape (m, d)
        The inducing points.
    fit_report_, n_iter_ : RobustReport or FitReport, int
        Report of the fit on the sample, and iterations of the optimiser.
    model_ : rcgp.chunked.fit.ChunkedFit
        The fitted model, with the seconds of each step. Intervals are too narrow if ``trusted_spread`` is above one,
        too wide below. ``unseen`` is the share of the variance that more inducing points would explain.

    Notes
    -----
    The result depends neither on the chunks nor on the engine, except for rounding errors.

    Unlike :class:`RCGPRegressor` it has one output (fit one model for each), one start (no ``n_restarts``), units from
    the data (no ``normalize``) and no ``sample_y``. It warns with :class:`rcgp.estimator.IntervalWarning` if the
    inducing points are too few.

    Examples
    --------
    >>> import numpy as np
    >>> from rcgp import SparseRCGPRegressor
    >>> X = np.linspace(0, 6, 2000)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(2000)
    >>> y[::100] += 3.0
    >>> model = SparseRCGPRegressor(n_inducing=30, fit_rows=200, random_state=0).fit(X, y)
    >>> bool(model.outliers_[::100].all()), int(model.outliers_.sum())
    (True, 20)
    """

    model_: ChunkedFit

    def __init__(
        self,
        n_inducing: Any = 500,
        kernel: Any = None,
        mean: Any = "median",
        weight: Any = "learned",
        local_noise: bool = True,
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
        self.weight = weight
        self.local_noise = local_noise
        self.priors = priors
        self.selection = selection
        self.fit_rows = fit_rows
        self.polish = polish
        self.max_iter = max_iter
        self.threads = threads
        self.client = client
        self.progress = progress
        self.random_state = random_state

    @undone_on_failure
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, features: Sequence[str] | None = None
    ) -> SparseRCGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d), or rows that need not fit in memory
            Inputs: an array, tensor or data frame; a ``numpy.memmap``, which is read in chunks; a Dask array or
            data frame; the name of a Parquet file, several, or a pattern such as ``"data/*.parquet"``; or a list, or
            another iterable that can be read again, of chunks ``(X, y)`` or ``(X, y, sample_weight)``.
        y : array-like of shape (n,), or str
            Observations, of the same kind; the name of their column for Parquet files; left out for chunks.
        sample_weight : array-like of shape (n,), or str, default=None
            Factors on the precision of each row, as for :class:`RCGPRegressor`; for Parquet files a column's name.
        features : list of str, default=None
            For Parquet files: the columns to predict from; by default all others, which then must be numbers.

        Returns
        -------
        self
        """
        self._check_parameters()
        in_memory = sources.is_table(X, y) and features is None
        if self.polish and not in_memory:
            raise ValueError("polish takes all rows into memory: give X and y as arrays, or leave polish at 0")
        if in_memory:
            chunks = sources.chunks_in_memory(self, X, y, sample_weight)
        else:
            chunks = sources.stored_chunks(self, X, y, sample_weight, features)
        engine = engine_for(chunks, client=self.client, threads=self.threads)
        fitted = fit_chunks(
            chunks,
            engine,
            build=partial(build_model, self, sampled=True),
            learned=self.weight == "learned",
            local_noise=bool(self.local_noise),
            inducing=as_tensor(self.n_inducing) if _are_points(self.n_inducing) else int(self.n_inducing),
            selection=self.selection,
            fit_rows=int(self.fit_rows),
            polish=int(self.polish),
            max_iterations=int(self.max_iter),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            progress=self.progress,
        )
        warn(fitted.report, fitted.doubts)
        if doubt := doubt_of(fitted):
            warnings.warn(f"{doubt}; raise n_inducing, or fit_rows", IntervalWarning, stacklevel=3)
        rows = None
        if in_memory:
            stages = Stages(self.progress, fitted.rows if sample_weight is None else 0)
            with stages.step("weights of all rows"):
                parts = stages.watched(engine).collect(partial(_diagnose_rows, fitted.diagnose), chunks)
            rows = _joined(parts)
        self._set_fitted(fitted, rows)
        return self

    def diagnose(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[RowDiagnosis]:
        """Diagnose the rows of the fit chunk by chunk, for rows that are not in memory.

        Parameters
        ----------
        X, y, sample_weight
            As given to :meth:`fit`, or some of those rows, with the same features in the same order; of a Parquet file
            those columns are read. A new row is treated as if it had been part of the fit. Blocks of a Dask collection
            come to this process one at a time; the client is not used.

        Yields
        ------
        diagnosis : named tuple
            ``first``, the number of the chunk's first row, and ``weights``, ``outlier_scores``,
            ``outlier_probability``, ``outliers``, ``loo_mean`` and ``loo_std`` of its rows. Cost O(m²) for each. For
            one array of all: ``np.concatenate([chunk.outliers for chunk in model.diagnose(X, y)])``.
        """
        check_is_fitted(self)
        chunks = sources.chunks_with_features(self, X, y, sample_weight)
        return map(partial(_diagnose_rows, self.model_.diagnose), chunks)

    def __sklearn_clone__(self) -> SparseRCGPRegressor:
        cloned: SparseRCGPRegressor = super(SparseRCGPRegressor, copy.copy(self)).__sklearn_clone__()
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        # A client belongs to a process: neither copies nor pickles have it.
        return {**super().__getstate__(), "client": None}

    def __getattr__(self, name: str) -> Any:
        # Called only when normal lookup fails.
        if name[:-1] in ROW_ATTRIBUTES and name.endswith("_") and "model_" in self.__dict__:
            raise AttributeError(
                f"there is no {name} of rows that were not in memory, such as those of a memory-mapped file: use "
                f"np.concatenate([chunk.{name[:-1]} for chunk in model.diagnose(X, y)])"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check_parameters(self) -> None:
        if not _are_points(self.n_inducing):
            check_integer(self.n_inducing, "n_inducing", least=1)
        check_integer(self.fit_rows, "fit_rows", least=2)
        check_integer(self.polish, "polish", least=0)
        check_choice(self.selection, SELECTIONS, "selection")
        if self.threads is not None:
            check_integer(self.threads, "threads", least=1)
        super()._check_parameters()

    def _set_fitted(self, fitted: ChunkedFit, rows: RowDiagnosis | None) -> None:
        """Set the fitted attributes, with those of each row if they are known."""
        self.model_, self.n_outputs_ = fitted, 1
        self.noise_law_, self.doubts_ = fitted.noise_law, fitted.doubts
        self.noise_variance_ = fitted.noise.item()
        self.kernel_ = fitted.diagnose.prior.kernel
        self.lengthscales_ = lengthscales(self.kernel_, self.n_features_in_)
        self.inducing_points_ = fitted.diagnose.prior.Z.numpy()
        self.fit_report_ = fitted.report
        self.n_iter_ = fitted.report.iterations
        for name in ROW_ATTRIBUTES:
            self.__dict__.pop(f"{name}_", None)  # of an earlier fit
            if rows is not None:
                setattr(self, f"{name}_", getattr(rows, name))

    def _predict(self, X: Any, return_std: bool, return_cov: bool, include_noise: bool) -> Any:
        if return_cov:
            return self._mean_and_covariance(self._inputs(X), include_noise)
        predictor = self.model_.predictor
        if return_std:
            std = predictor.noisy_std if include_noise else predictor.std
            return tuple(self._evaluate(X, [predictor.mean, std]))
        return self._evaluate(X, [predictor.mean])[0]

    def _mean_and_covariance(self, inputs: Tensor, include_noise: bool) -> tuple[Array, Array]:
        what = f"the covariance matrix of {len(inputs)} rows needs"
        check_memory(8 * _COVARIANCES * len(inputs) ** 2, what, "ask for return_std=True, or for fewer rows")
        predictor = self.model_.predictor
        with torch.no_grad():
            mean, covariance = predictor.mean(inputs), predictor.process.covariance(inputs, inputs)
            if include_noise:
                covariance.diagonal().add_(predictor.noise_variance(inputs))
        return mean.numpy(), covariance.numpy()

    def _quantiles(self, X: Any, levels: Array) -> list[Any]:
        quantile = self.model_.predictor.quantile
        return self._evaluate(X, [partial(quantile, float(level)) for level in levels])

    def _noise_std(self, X: Any) -> Any:
        return self._evaluate(X, [self.model_.predictor.noise_std])[0]

    def _log_density(self, inputs: Tensor, targets: Tensor, outliers: bool) -> Array:
        return self.model_.predictor.log_density(inputs, targets, outliers).numpy()

    def _inputs(self, X: Any) -> Tensor:
        if hasattr(X, "__dask_graph__"):
            raise ValueError("log_predictive_density and return_cov take inputs in memory: compute X first")
        sources.refuse_stored(self, X)
        return super()._inputs(X)

    def _evaluate(self, X: Any, functions: Sequence[Callable[[Tensor], Tensor]]) -> list[Any]:
        """Functions of the inputs, block by block; lazily for a Dask collection."""
        if hasattr(X, "__dask_graph__"):
            return sources.evaluate_lazily(self, X, functions)
        with torch.no_grad():
            blocks = [[function(block).numpy() for function in functions] for block in sources.input_blocks(self, X)]
        return [np.concatenate(values) for values in zip(*blocks, strict=True)]


def _diagnose_rows(diagnose: Diagnose, chunk: Chunk) -> RowDiagnosis:
    """The diagnosis of a chunk of rows of the fit; NaN where no observation can be judged. Cost O(m²) for each row."""
    found, missing = diagnose(chunk), chunk.y.isnan()
    weights, probability = (values.masked_fill(missing, torch.nan) for values in (found.weights, found.probability))
    return RowDiagnosis.of(chunk.y, weights, found.mean, found.std, probability, chunk.first)


def _joined(parts: Sequence[RowDiagnosis]) -> RowDiagnosis:
    """The diagnosis of all rows from those of consecutive chunks."""
    return RowDiagnosis(0, *(np.concatenate([getattr(part, name) for part in parts]) for name in ROW_ATTRIBUTES))


def _are_points(n_inducing: Any) -> bool:
    """Whether inducing points are given, instead of their number."""
    return isinstance(n_inducing, np.ndarray | Tensor) and n_inducing.ndim == 2


def doubt_of(fitted: ChunkedFit) -> str | None:
    """Why the intervals of a sparse fit are doubtful, as a sentence; ``None`` if they are not.

    Every predictive variance includes the prior variance that the inducing points do not explain. The fit goes through
    all rows and errs by about half of that variance, so too few points make wide intervals. With far too few points
    the weights flag rows that the model cannot follow, and errors exceed any variance.
    """
    allowed = _LARGE + _SURE * _ERROR / math.sqrt(min(fitted.rows, CANDIDATES))
    points = len(fitted.diagnose.prior.Z)
    if fitted.trusted_spread > allowed:
        return (
            f"{points} inducing points are too few, or the rows of the sample: leave-one-out errors of inliers are "
            f"typically {fitted.trusted_spread:.2g} times what the model expects, so intervals are too narrow and "
            "inliers may be flagged"
        )
    if fitted.unseen > _UNSEEN:
        return (
            f"{points} inducing points are few: they leave {fitted.unseen:.0%} of the variance of a typical prediction "
            "unexplained, so intervals are wide (leave-one-out errors of inliers are typically "
            f"{fitted.trusted_spread:.2g} times what the model expects) and predictions less accurate"
        )
    return None
