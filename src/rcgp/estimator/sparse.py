"""The sparse robust GP as a scikit-learn regressor: its parameters, and how it is fitted to rows from anywhere.

It holds no mathematics: :func:`rcgp.chunked.fit.fit_chunks` fits, and this file only translates. What it answers
once it is fitted is next door.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from rcgp.chunked.fit import fit_chunks
from rcgp.chunked.stages import Stages
from rcgp.chunks import engine_for
from rcgp.estimator.contract import all_or_nothing, as_tensor
from rcgp.estimator.intervals import IntervalWarning, doubt_of
from rcgp.estimator.outliers import NoiseLawWarning
from rcgp.estimator.output import build_model
from rcgp.estimator.parameters import Recipe, one_of, recipe, whole
from rcgp.estimator.row_answers import DiagnoseRows
from rcgp.estimator.row_sources import is_table, pieces_of, table_of
from rcgp.estimator.sparse_answers import SparseAnswers
from rcgp.models.inducing import SELECTIONS

__all__ = ["SparseRCGPRegressor"]


class SparseRCGPRegressor(SparseAnswers, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression that outliers cannot break, for many rows.

    As :class:`RCGPRegressor`, through ``n_inducing`` points instead of all rows: O(n m²) instead of O(n³), in a few
    passes over rows that need not fit in memory. Hyperparameters and local noise are chosen on a sample of
    ``fit_rows`` rows by an exact model. The noise law, the weights and the posterior are those of all rows.

    Parameters
    ----------
    n_inducing : int or array of shape (m, d), default=500
        Number m of inducing points, at most, or the points. More of them see more of the function, and cost m².

    kernel : kernel of GPyTorch or scikit-learn, default=None
        As for :class:`RCGPRegressor`.

    mean : str, callable or GPyTorch mean, default="median"
        As for :class:`RCGPRegressor`, from the sample of ``fit_rows`` rows.

    weight : {"learned", "imq", "se", "constant"} or weight function of rcgp.weights, default="learned"
        ``"learned"`` learns the noise law and takes the weights from it: see :class:`RCGPRegressor`. The others are
        functions of the distance from the prior mean, the paper's method: ``"imq"`` and ``"se"`` have a threshold at
        the 95 % quantile of the distances of all rows (``InverseMultiquadric(epsilon=...)`` for another one), exactly;
        ``"constant"`` is an ordinary sparse GP.

    local_noise : bool, default=True
        Let the noise differ from place to place, where the sample shows that it does. For ``weight="learned"``.

    priors : {"weak"} or None, default="weak"
        As for :class:`RCGPRegressor`.

    selection : {"greedy", "kmeans"}, default="greedy"
        How the inducing points are chosen among up to 20 000 rows: each the one that is least known from those before,
        by the fitted kernel, or spread out by k-means++.

    fit_rows : int, default=1000
        Size of the random sample on which the hyperparameters are chosen. An evaluation costs O(fit_rows³).

    polish : int, default=0
        Iterations in which the hyperparameters are then improved on all rows, O(n m²) each, before these are weighed
        once more. For data in memory.

    max_iter : int, default=1000
        Limit on the iterations of each search on the sample.

    threads : int or None, default=None
        Chunks of rows that are worked on at a time. ``None`` is one, by all threads of torch.

    client : dask.distributed.Client or None, default=None
        The cluster that does the passes over Dask collections. Never part of a copy, a pickle or a saved model.

    progress : bool or callable, default=False
        ``True`` shows each step, with the evaluations of a search or the rows of a pass; or a function, called after
        each evaluation as for :class:`RCGPRegressor`. If it has a method ``stage(name, done, total)``, that is called
        for steps and rows.

    random_state : int, RandomState instance or None, default=None
        Seed of the sample and of the inducing points.

    Attributes
    ----------
    weights_, outlier_scores_, outlier_probability_, outliers_, loo_mean_, loo_std_ : ndarray of shape (n,)
        As for :class:`RCGPRegressor`, where the rows were in memory, which a ``numpy.memmap`` is not; else use
        :meth:`diagnose`.
    noise_law_ : NoiseLaw
        The noise law of all rows, by which they are flagged; ``print`` shows it. For a given weight it is learned
        afterwards, from the leave-one-out predictions of the sample.
    doubts_ : tuple of str
        Why the noise law may be wrong, a sentence each. Each is a :class:`NoiseLawWarning` as well.
    noise_variance_ : float
        Fitted noise variance σ², the squared scale of the noise law.
    kernel_ : GPyTorch kernel
        Fitted kernel, in the units of X and y.
    lengthscales_ : ndarray of shape (d,)
        As for :class:`RCGPRegressor`.
    inducing_points_ : ndarray of shape (m, d)
        The inducing points.
    fit_report_ : RobustReport or FitReport
        How the fit on the sample went; ``print`` shows it.
    n_iter_ : int
        Iterations of the optimiser.
    model_ : rcgp.chunked.fit.ChunkedFit
        The fitted model, with the seconds that each step took. Its ``trusted_spread`` tells how right the intervals
        are: one is right, more is too narrow, less is too wide. ``unseen`` is the share of the variance that more
        points would see.
    n_features_in_, feature_names_in_
        Number of features, and their names where they have any.

    Notes
    -----
    The answer depends neither on the chunks nor on who works on them, but for rounding errors.

    Unlike :class:`RCGPRegressor` it has one output (fit one model for each), one start (no ``n_restarts``), units from
    the data (no ``normalize``) and no ``sample_y``. It warns with
    :class:`rcgp.estimator.intervals.IntervalWarning` if the inducing points are too few.

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

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, features: Sequence[str] | None = None
    ) -> SparseRCGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d), or rows that need not fit in memory
            Inputs: an array, tensor or data frame; a ``numpy.memmap``, of which only chunks are read; a Dask array or
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
        with all_or_nothing(self):
            return self._fit(X, y, sample_weight, features)

    def _fit(self, X: Any, y: Any, sample_weight: Any, features: Sequence[str] | None) -> SparseRCGPRegressor:
        how = self._recipe()
        in_memory = is_table(X, y) and features is None
        if self.polish and not in_memory:
            raise ValueError("polish takes all rows into memory: give X and y as arrays, or leave polish at 0")
        chunks = table_of(self, X, y, sample_weight) if in_memory else pieces_of(self, X, y, sample_weight, features)
        engine = engine_for(chunks, client=self.client, threads=self.threads)
        fitted = fit_chunks(
            chunks,
            engine,
            build=partial(build_model, how),
            learned=how.make_weight is None,
            local_noise=how.local_noise,
            inducing=as_tensor(self.n_inducing) if _given(self.n_inducing) else int(self.n_inducing),
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
        for law_doubt in fitted.doubts:
            warnings.warn(law_doubt, NoiseLawWarning, stacklevel=3)
        if doubt := doubt_of(fitted):
            warnings.warn(f"{doubt}; raise n_inducing, or fit_rows", IntervalWarning, stacklevel=3)
        parts = None
        if in_memory:
            stages = Stages(how.progress, fitted.rows if sample_weight is None else 0)
            with stages.step("weights of all rows"):
                parts = stages.watched(engine).collect(DiagnoseRows(fitted.diagnose), chunks)
        self._keep(fitted, parts)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which :func:`rcgp.load` reads; see there for what is kept.

        The file is written whole or not at all: an earlier one stays until the new one is complete. Of inducing points
        that were given ``n_inducing`` is then the number; they are in ``inducing_points_``.
        """
        from rcgp.estimator.saved import save

        save(copy.copy(self).set_params(n_inducing=len(self.n_inducing)) if _given(self.n_inducing) else self, path)

    def __sklearn_clone__(self) -> SparseRCGPRegressor:
        cloned: SparseRCGPRegressor = super(SparseRCGPRegressor, copy.copy(self)).__sklearn_clone__()
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        # A client belongs to a process: neither copies nor pickles have it.
        return {**super().__getstate__(), "client": None}

    def _recipe(self) -> Recipe:
        """The parameters, checked."""
        if not _given(self.n_inducing):
            whole(self.n_inducing, "n_inducing", least=1)
        whole(self.fit_rows, "fit_rows", least=2)
        whole(self.polish, "polish", least=0)
        one_of(self.selection, SELECTIONS, "selection")
        if self.threads is not None:
            whole(self.threads, "threads", least=1)
        named = {"n_restarts": 0, "normalize": True, **self.get_params(deep=False)}
        return recipe(SimpleNamespace(**named))


def _given(n_inducing: Any) -> bool:
    """Whether inducing points are given, and not their number."""
    return isinstance(n_inducing, np.ndarray | Tensor) and n_inducing.ndim == 2
