"""Shared by the regressors: checks of parameters and data, predictions."""

from __future__ import annotations

import copy
import datetime
import functools
import os
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, TypeVar

import gpytorch
import numpy as np
import sklearn.gaussian_process.kernels as sk
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from rcgp.models.validation import check_finite
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential, WeightFunction

__all__ = [
    "BaseRegressor",
    "as_tensor",
    "check_bool",
    "check_choice",
    "check_coverage",
    "check_integer",
    "check_levels",
    "names_of_outputs",
    "only",
    "stacked",
    "training_data",
    "undone_on_failure",
    "validated",
    "with_nan",
]

Array = NDArray[np.float64]
Fit = TypeVar("Fit", bound=Callable[..., Any])

_WEIGHTS: dict[str, type[WeightFunction]] = {
    "learned": Constant,  # until the law is learned
    "imq": InverseMultiquadric,
    "se": SquaredExponential,
    "constant": Constant,
}

# Kinds of NumPy and pandas types that are numbers.
_NUMERIC = "biufc"
_DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


def check_choice(value: Any, names: tuple[str | None, ...], argument: str, alternative: str = "") -> None:
    """Raise a ValueError unless the value is one of the names; the message also offers the alternative."""
    if not any(value is name if name is None else isinstance(value, str) and value == name for name in names):
        listed = (", " if alternative else " or ").join([", ".join(map(repr, names[:-1])), repr(names[-1])])
        raise ValueError(f"{argument} must be {listed} {alternative}".rstrip() + f", got {value!r}")


def check_integer(value: Any, argument: str, least: int) -> None:
    """Raise a ValueError unless the value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{argument} must be a whole number, at least {least}, got {value!r}")


def check_bool(value: Any, argument: str) -> None:
    """Raise a TypeError unless the value is true or false."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{argument} must be True or False, got {value!r}")


def check_levels(q: ArrayLike) -> Array:
    """One or several probabilities as an array, or a ValueError."""
    levels = np.asarray(q, dtype=np.float64)
    if levels.ndim > 1 or not levels.size or not bool(((levels > 0.0) & (levels < 1.0)).all()):
        raise ValueError(f"q must be one or several probabilities in (0, 1), got {q!r}")
    return levels


def check_coverage(coverage: Any) -> Array:
    """The levels of the quantiles that bound a central interval, or a ValueError."""
    if not (isinstance(coverage, int | float | np.floating) and 0.0 < float(coverage) < 1.0):
        raise ValueError(f"coverage must be a probability in (0, 1), got {coverage!r}")
    tail = 0.5 * (1.0 - float(coverage))
    return np.array([tail, 1.0 - tail])


class BaseRegressor(RegressorMixin, BaseEstimator, metaclass=ABCMeta):  # type: ignore[misc]
    """Parameters, predictions and files of a regressor."""

    # Parameters of RCGPRegressor only.
    n_restarts: int = 0
    normalize: bool = True
    n_outputs_: int
    n_features_in_: int

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = False) -> Any:
        """Predict the function, or new observations of it.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs. :class:`SparseRCGPRegressor` also takes a Dask array or data frame, and reads a ``numpy.memmap``
            in blocks; predict files and chunks piece by piece: ``[model.predict(X) for X, y in chunks]``.
        return_std : bool, default=False
            Return standard deviations as well.
        return_cov : bool, default=False
            Return the covariance matrix as well. For inputs in memory.
        include_noise : bool, default=False
            Add the noise of inliers to each variance, with sample weights that of a row of weight 1. For intervals
            prefer :meth:`predict_interval`.

        Returns
        -------
        mean : ndarray of shape (q,) or (q, n_outputs)
            For a Dask collection a lazy Dask array.
        std : ndarray of the same shape, with ``return_std``
            Likewise.
        cov : ndarray of shape (q, q) or (q, q, n_outputs), with ``return_cov``
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be asked for")
        return self._predict(X, return_std, return_cov, include_noise)

    def predict_quantiles(self, X: Any, q: ArrayLike) -> Any:
        """Quantiles of new observations without outliers, by the noise law.

        Parameters
        ----------
        X : array-like of shape (r, d)
            Inputs, as for :meth:`predict`.
        q : float or array-like of shape (k,)
            Probabilities in (0, 1).

        Returns
        -------
        quantiles : ndarray of shape (r,) or (r, n_outputs), with a further axis of length k if ``q`` is an array
            For a Dask collection a lazy Dask array.
        """
        check_is_fitted(self)
        levels = check_levels(q)
        quantiles = self._quantiles(X, np.atleast_1d(levels))
        return quantiles[0] if levels.ndim == 0 else np.stack(quantiles, axis=-1)

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Any, Any]:
        """Central interval that contains a new observation, unless it is an outlier, with a given probability.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs, as for :meth:`predict`.
        coverage : float, default=0.95
            The probability, in (0, 1).

        Returns
        -------
        lower, upper : ndarrays of shape (q,) or (q, n_outputs)
            For a Dask collection lazy Dask arrays.
        """
        check_is_fitted(self)
        lower, upper = self._quantiles(X, check_coverage(coverage))
        return lower, upper

    def noise_std(self, X: Any) -> Any:
        """Standard deviation of the noise of inliers, by the noise law.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs, as for :meth:`predict`.

        Returns
        -------
        std : ndarray of shape (q,) or (q, n_outputs)
            Constant unless the fit found local noise.
        """
        check_is_fitted(self)
        return self._noise_std(X)

    def log_predictive_density(self, X: ArrayLike, y: ArrayLike, outliers: bool = True) -> Array:
        """Log density of observations under their predictive distribution, by the noise law.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs in memory.
        y : array-like of shape (q,) or (q, n_outputs)
            Observations; of several outputs NaN where a cell is missing.
        outliers : bool, default=True
            Whether an observation may be an outlier, as often as the law says. ``False``: the density of an inlier, as
            that of intervals and quantiles.

        Returns
        -------
        density : ndarray of the shape of the predictions
            Log density of each, NaN for a missing cell; the negative mean is the NLPD.
        """
        check_is_fitted(self)
        inputs, observed = self._inputs(X), np.asarray(with_nan(np.array(y)), dtype=np.float64)
        observed = column_or_1d(observed) if self.n_outputs_ == 1 else observed
        shape = (len(inputs),) if self.n_outputs_ == 1 else (len(inputs), self.n_outputs_)
        if observed.shape != shape:
            raise ValueError(f"y must have the shape {shape} of the predictions, got {observed.shape}")
        targets = as_tensor(observed)
        check_finite(targets, "y", missing=self.n_outputs_ > 1)
        with torch.no_grad():
            return self._log_density(inputs, targets, outliers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which :func:`rcgp.load` reads; see there for what is kept.

        The write is atomic: an earlier file stays until the new one is complete.
        """
        from rcgp.estimator.saved import save

        save(self, path)

    @abstractmethod
    def _predict(self, X: Any, return_std: bool, return_cov: bool, include_noise: bool) -> Any: ...

    @abstractmethod
    def _quantiles(self, X: Any, levels: Array) -> list[Any]:
        """The quantile of each level."""

    @abstractmethod
    def _noise_std(self, X: Any) -> Any: ...

    @abstractmethod
    def _log_density(self, inputs: Tensor, targets: Tensor, outliers: bool) -> Array: ...

    def _inputs(self, X: Any) -> Tensor:
        """Inputs in memory as a tensor: finite, with the features of the fit."""
        inputs = as_tensor(validated(self, X, reset=False))
        check_finite(inputs, "X", getattr(self, "feature_names_in_", None))
        return inputs

    def _check_parameters(self) -> None:
        """Raise an error that names a wrong parameter. Called by ``fit``: scikit-learn's constructors do not check."""
        check_choice(self.priors, ("weak", None), "priors")
        for name in ("normalize", "local_noise"):
            check_bool(getattr(self, name), name)
        if self.kernel is not None and not isinstance(self.kernel, gpytorch.kernels.Kernel | sk.Kernel):
            raise TypeError(f"kernel must be a kernel of GPyTorch or scikit-learn, or None, got {self.kernel!r}")
        if not isinstance(self.weight, WeightFunction):
            check_choice(self.weight, tuple(_WEIGHTS), "weight", "or a weight function of rcgp.weights")
        check_integer(self.n_restarts, "n_restarts", least=0)
        check_integer(self.max_iter, "max_iter", least=1)
        if self.fit_rows is not None:
            check_integer(self.fit_rows, "fit_rows", least=2)

    def _new_weight(self) -> WeightFunction:
        """A new weight function to start a fit with."""
        return copy.deepcopy(self.weight) if isinstance(self.weight, WeightFunction) else _WEIGHTS[self.weight]()


def undone_on_failure(fit: Fit) -> Fit:
    """Decorator: a fit that fails or is interrupted leaves the estimator as it was."""

    @functools.wraps(fit)
    def wrapper(self: Any, *args: Any, **options: Any) -> Any:
        before = dict(self.__dict__)
        try:
            return fit(self, *args, **options)
        except BaseException:
            self.__dict__ = before
            raise

    return wrapper  # type: ignore[return-value]


def as_tensor(values: Any) -> Tensor:
    """An array as a float64 tensor; a copy if it is read-only, which torch does not support."""
    return torch.from_numpy(np.require(values, dtype=np.float64, requirements=["C", "W"]))


def training_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs, observations and sample weights by scikit-learn's checks, which set the features of the estimator.

    Observations may be missing (NaN) in rows of weight 0, and cells of several outputs anywhere.
    """
    y, missing = _without_missing(y, sample_weight)
    observed = np.asarray(y)
    if observed.dtype.kind == "f" and observed.ndim:  # before scikit-learn's check, which does not name the row
        check_finite(as_tensor(observed if observed.ndim < 2 or observed.shape[1] > 1 else observed[:, 0]), "y")
    inputs, targets = map(as_tensor, validated(estimator, X, y, y_numeric=True, **options))
    check_finite(inputs, "X", getattr(estimator, "feature_names_in_", None))
    check_finite(targets, "y")
    if sample_weight is not None:
        sample_weight = as_tensor(
            _check_sample_weight(sample_weight, inputs.numpy(), dtype=np.float64, ensure_non_negative=True, copy=True)
        )
    if missing is not None:
        targets = targets.clone()
        targets[missing.reshape(targets.shape)] = torch.nan
    return inputs, targets, sample_weight


def names_of_outputs(y: Any) -> list[str] | None:
    """Names of the columns of a data frame of several outputs, if all are text and differ; else ``None``."""
    names = list(getattr(y, "columns", []))
    several = len(names) > 1 and len(set(names)) == len(names)
    return names if several and all(isinstance(name, str) for name in names) else None


def _without_missing(y: Any, sample_weight: Any) -> tuple[Any, Tensor | None]:
    """Observations with 0 for missing ones, and their mask: NaN in a table, or not finite in rows of weight 0."""
    y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
    values, weights = with_nan(np.array(y)), np.asarray(sample_weight)
    if values.dtype.kind != "f" or not values.ndim:
        return y, None
    missing = np.isnan(values) if values.ndim == 2 and values.shape[1] > 1 else np.zeros(values.shape, dtype=bool)
    if weights.ndim == 1 and weights.shape == values.shape[:1]:
        missing |= ~np.isfinite(values) & (weights == 0).reshape(-1, *[1] * (values.ndim - 1))
    values[missing] = 0.0
    return (values, torch.from_numpy(missing)) if missing.any() else (y, None)


def stacked(outputs: Sequence[Any], axis: int = -1) -> NDArray[Any]:
    """Results of all outputs along an axis; the result itself if there is one output."""
    return np.asarray(outputs[0]) if len(outputs) == 1 else np.stack([np.asarray(part) for part in outputs], axis=axis)


def only(values: list[Any]) -> Any:
    """The value itself if there is one; else an array of floats, or the list."""
    if len(values) == 1:
        return values[0]
    return np.array(values) if isinstance(values[0], float) else values


def with_nan(values: NDArray[Any]) -> NDArray[Any]:
    """Objects as floats, NaN where a cell is None or pandas' NA; as they are if there is none, or text."""
    if values.dtype.kind != "O":
        return values
    missing = np.vectorize(lambda cell: cell is None or type(cell).__name__ == "NAType", otypes=[bool])(values)
    try:
        return np.where(missing, np.nan, values).astype(np.float64) if missing.any() else values
    except (TypeError, ValueError):
        return values


def validated(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """X, or X and y, in float64 by scikit-learn's checks; an error for text or dates names column and row."""
    for name, values in zip("Xy", (X, *y), strict=False):
        if _all_dates(values):  # which scikit-learn would convert to numbers
            _refuse_text(values, name)
    try:
        checked = validate_data(estimator, X, *y, dtype=np.float64, ensure_all_finite=False, **options)
        return (checked[0], np.asarray(checked[1], dtype=np.float64)) if y else checked
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not str(error).startswith("could not convert"):
            raise
        for name, values in zip("Xy", (X, *y), strict=False):
            _refuse_text(values, name)
        raise


def _all_dates(values: Any) -> bool:
    """Whether an array, or every column of a table, holds dates or durations."""
    dtypes = list(getattr(values, "dtypes", [])) if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    return bool(dtypes) and all(getattr(dtype, "kind", None) in ("m", "M") for dtype in dtypes)


def _refuse_text(values: Any, name: str) -> None:
    """Raise a ValueError that names the first column with text or a date, and its first row."""
    columns: Iterable[tuple[object, Any]]
    if hasattr(values, "iloc") and hasattr(values, "columns"):
        objects = ((label, column) for label, column in values.items() if column.dtype.kind not in _NUMERIC)
        columns = ((repr(str(label)), np.asarray(column, dtype=object)) for label, column in objects)
    else:
        cells = np.atleast_1d(values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object))
        columns = [(None, cells)] if cells.ndim == 1 else enumerate(cells.reshape(len(cells), -1).T)
        columns = [] if cells.dtype.kind in _NUMERIC else columns
    for label, column in columns:
        row = next((row for row, cell in enumerate(column) if isinstance(cell, _DATES) or _is_text(cell)), None)
        if row is None:
            continue
        where = f"row {row}" if label is None else f"column {label} in row {row}"
        advice = "encode the column, as OneHotEncoder in a ColumnTransformer of scikit-learn does"
        if isinstance(column[row], _DATES):
            advice = "turn dates into numbers, such as days since the first of them"
        raise ValueError(
            f"{name} must be numbers, but {where} is {str(column[row])[:40]!r}" + (f"; {advice}" if name == "X" else "")
        ) from None


def _is_text(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # a missing value such as None is a TypeError
    return False
