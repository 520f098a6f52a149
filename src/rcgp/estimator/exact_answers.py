"""What a fitted regressor answers: arrays and data frames in, arrays out. It is fitted next door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from rcgp.estimator.contract import as_tensor, validated
from rcgp.estimator.output import Output, lengthscales
from rcgp.models import RCGP
from rcgp.models.validation import check_finite
from rcgp.weights.noise_law import FLAGGED

__all__ = ["PER_ROW", "ExactAnswers"]

#: What is known of each row, beside whether it is flagged.
PER_ROW = ("weights", "outlier_scores", "outlier_probability", "loo_mean", "loo_std")

Array = NDArray[np.float64]


class ExactAnswers:
    """The part of :class:`rcgp.RCGPRegressor` that works once it is fitted."""

    models_: list[RCGP]
    n_outputs_: int
    n_features_in_: int
    outlier_probability_: Array

    def _keep(self, outputs: Sequence[Output]) -> None:
        """What was fitted, as attributes; one output without the last dimension."""
        self.n_outputs_ = len(outputs)
        self.models_ = [output.model for output in outputs]
        for name in PER_ROW:
            setattr(self, f"{name}_", self._columns([getattr(output, name) for output in outputs]))
        self.outliers_ = self.outlier_probability_ > FLAGGED
        self.noise_law_ = self._one([output.law for output in outputs])
        self.doubts_ = self._one([output.doubts for output in outputs])
        self.noise_variance_ = self._one([model.noise.item() for model in self.models_])
        self.kernel_ = self._one([model.kernel for model in self.models_])
        self.lengthscales_ = self._one([lengthscales(model.kernel, self.n_features_in_) for model in self.models_])
        reports = [output.report for output in outputs]
        self.fit_report_ = self._one(reports)
        self.n_iter_ = self._one([report.iterations for report in reports])

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Predict the function, or new observations of it.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs.
        return_std : bool, default=False
            Return standard deviations as well.
        return_cov : bool, default=False
            Return the covariance matrix as well.
        include_noise : bool, default=False
            Of new observations that are no outliers: the variance of the noise law there is added to each variance.
            Otherwise they are those of the function. Intervals are better taken from :meth:`predict_interval`. With
            sample weights it is the noise of a row of weight 1: with all weights times 10 it is 10 times as large.

        Returns
        -------
        mean : ndarray of shape (q,) or (q, n_outputs)
        std : ndarray of the same shape, with ``return_std``
        cov : ndarray of shape (q, q) or (q, q, n_outputs), with ``return_cov``
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be asked for")
        inputs = self._inputs(X)
        with torch.no_grad():
            posteriors = [model.posterior(inputs, observation_noise=include_noise) for model in self.models_]
            mean = self._columns([posterior.mean for posterior in posteriors])
            if return_std:
                return mean, self._columns([posterior.stddev for posterior in posteriors])
            if return_cov:
                return mean, self._columns([posterior.covariance_matrix for posterior in posteriors])
        return mean

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
        inputs, random = self._inputs(X), check_random_state(random_state)
        samples = []
        with torch.no_grad():
            for model in self.models_:
                normal = torch.from_numpy(random.standard_normal((n_samples, len(inputs))))
                posterior = model.posterior(inputs, observation_noise=include_noise)
                samples.append(posterior.rsample(torch.Size([n_samples]), base_samples=normal).T)
        return samples[0].numpy() if self.n_outputs_ == 1 else torch.stack(samples, dim=1).numpy()

    def log_predictive_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Log density of observations under their predictive distribution, noise included.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs.
        y : array-like of shape (q,) or (q, n_outputs)
            Observations.

        Returns
        -------
        density : ndarray of the shape of the predictions
            Log density of each under the noise law, as an observation that is no outlier; their negative mean is the
            NLPD.
        """
        predictions = self._predictions(X)
        mean = self._columns([part[0] for part in predictions])
        observed = np.asarray(y, dtype=np.float64)
        observed = column_or_1d(observed) if mean.ndim == 1 else observed
        if observed.shape != mean.shape:
            raise ValueError(f"y must have the shape {mean.shape} of the predictions, got {observed.shape}")
        self._finite(observed, "y")
        deviations = torch.from_numpy(observed - mean).reshape(len(observed), -1).T
        parts = [
            model.noise_law.log_density(deviation, variance, noise)
            for model, deviation, (_, variance, noise) in zip(self.models_, deviations, predictions, strict=True)
        ]
        return self._columns(parts)

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike) -> Array:
        """Quantiles of new observations that are no outliers, by the noise law.

        Parameters
        ----------
        X : array-like of shape (r, d)
            Inputs.
        q : float or array-like of shape (k,)
            Probabilities in (0, 1).

        Returns
        -------
        quantiles : ndarray of shape (r,) or (r, n_outputs), with a further axis of length k if ``q`` is an array
        """
        levels = np.asarray(q, dtype=np.float64)
        if levels.ndim > 1 or not bool(((levels > 0.0) & (levels < 1.0)).all()):
            raise ValueError(f"q must be one or several probabilities in (0, 1), got {q!r}")
        wanted, parts = torch.from_numpy(np.atleast_1d(levels)), []
        for model, (mean, variance, noise) in zip(self.models_, self._predictions(X), strict=True):
            deviation = model.noise_law.quantile(wanted, variance.unsqueeze(-1), noise.unsqueeze(-1))
            parts.append(mean.unsqueeze(-1) + deviation)
        quantiles = (parts[0] if self.n_outputs_ == 1 else torch.stack(parts, dim=1)).numpy()
        return quantiles[..., 0] if levels.ndim == 0 else quantiles

    def predict_interval(self, X: ArrayLike, coverage: float = 0.95) -> tuple[Array, Array]:
        """The central interval that holds a new observation, if it is no outlier, with a probability.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs.
        coverage : float, default=0.95
            The probability, in (0, 1).

        Returns
        -------
        lower, upper : ndarrays of shape (q,) or (q, n_outputs)
        """
        if not (isinstance(coverage, int | float | np.floating) and 0.0 < float(coverage) < 1.0):
            raise ValueError(f"coverage must be a probability in (0, 1), got {coverage!r}")
        tail = 0.5 * (1.0 - float(coverage))
        quantiles = self.predict_quantiles(X, [tail, 1.0 - tail])
        return quantiles[..., 0], quantiles[..., 1]

    def noise_std(self, X: ArrayLike) -> Array:
        """Standard deviation of the noise of good observations at inputs, by the noise law.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Inputs.

        Returns
        -------
        std : ndarray of shape (q,) or (q, n_outputs)
            The same everywhere unless the fit found that noise differs from place to place.
        """
        inputs = self._inputs(X)
        return self._columns([(model.noise_law.variance * model.noise_scale(inputs)).sqrt() for model in self.models_])

    def _predictions(self, X: ArrayLike) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Mean and variance of f, and the squared scale of the noise law, of each output."""
        inputs, parts = self._inputs(X), []
        with torch.no_grad():
            for model in self.models_:
                posterior = model.posterior(inputs)
                parts.append((posterior.mean, posterior.variance.clamp_min(0.0), model.noise_scale(inputs)))
        return parts

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def _inputs(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        return self._finite(validated(self, X, reset=False), "X")

    def _finite(self, values: Array, name: str) -> Tensor:
        """The values as a tensor, or a ValueError that names the first bad row and column."""
        tensor = as_tensor(values)
        check_finite(tensor, name, getattr(self, "feature_names_in_", None) if name == "X" else None)
        return tensor

    def _columns(self, outputs: Sequence[Tensor]) -> NDArray[Any]:
        """Results of all outputs side by side; of one output, its own."""
        return outputs[0].numpy() if self.n_outputs_ == 1 else torch.stack(list(outputs), dim=-1).numpy()

    def _one(self, values: list[Any]) -> Any:
        """The value itself for one output; for several an array of numbers, or a list."""
        if self.n_outputs_ == 1:
            return values[0]
        return np.array(values) if isinstance(values[0], float) else values
