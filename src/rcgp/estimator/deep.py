"""A deep Gaussian process with the learned noise law as a scikit-learn regressor."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from linear_operator.operators import DiagLinearOperator
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from rcgp.estimator.base import BaseRegressor, check_integer, training_data, undone_on_failure
from rcgp.estimator.output import NoiseLawWarning
from rcgp.gpytorch import NoiseLawLikelihood
from rcgp.gpytorch.deep import DeepModel, base_samples
from rcgp.gpytorch.deep_fit import DeepReport, fit_deep
from rcgp.gpytorch.rows import target_spread
from rcgp.models.defaults import robust_scales
from rcgp.models.inducing import choose_inducing
from rcgp.training.judgement import doubts_of
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import FLAGGED, SCALES, mixture_quantile

__all__ = ["DeepRCGPRegressor", "FittedDeep"]

Array = NDArray[np.float64]

# Samples of the hidden layers in a prediction, and rows that are predicted at a time.
_SAMPLES, _BLOCK = 32, 1000

# Standardised inputs farther out than this count as that far: a kernel sees no difference there.
_FARTHEST = 1e4


@dataclass(frozen=True)
class FittedDeep:
    """A trained deep GP in standardised units, and these units.

    Attributes:
        model, likelihood: the deep GP and its noise law.
        X_centre, X_scale: ``d`` centre and scale of each input.
        y_centre, y_scale: centre and scale of the targets.
    """

    model: DeepModel
    likelihood: NoiseLawLikelihood
    X_centre: Tensor
    X_scale: Tensor
    y_centre: float
    y_scale: float

    def standardised(self, X: Tensor) -> Tensor:
        """Inputs as the model sees them."""
        return ((X - self.X_centre) / self.X_scale).clamp(-_FARTHEST, _FARTHEST)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at ``q x d`` inputs for each sample of the hidden layers, ``s x q``, standardised."""
        base = base_samples(len(self.model.hidden) + 1, _SAMPLES, self.X_scale)
        parts = []
        with torch.no_grad():
            for block in self.standardised(X).split(_BLOCK):  # type: ignore[no-untyped-call]
                q = self.model(block, base)
                parts.append(torch.stack([q.mean, q.variance.clamp_min(0.0)]))
        mean, variance = torch.cat(parts, dim=-1)
        return mean, variance

    @property
    def law(self) -> NoiseLaw:
        """The noise law, in the units of y."""
        law = self.likelihood.noise_law
        assert isinstance(law, NoiseLaw)
        return NoiseLaw(law.shares, law.outlier_share, law.width * self.y_scale)

    @property
    def noise(self) -> Tensor:
        """Noise variance σ² in standardised units, a scalar."""
        return self.likelihood.noise.detach().squeeze()


class DeepRCGPRegressor(BaseRegressor):
    """A deep Gaussian process that outliers cannot break.

    A GP whose inputs are warped by another GP: it follows steps, and functions that are smooth in one place and rough
    in another. The noise law is learned along with it, from the responsibilities of an exact robust fit of the rows, or
    of 500 of them. Training is stochastic and finds a local optimum: for functions of one smoothness, and for fewer
    than some hundred rows, :class:`rcgp.RCGPRegressor` is better and faster.

    Parameters
    ----------
    n_layers : int, default=2
        Number of layers; 1 is a sparse variational GP.
    n_inducing : int, default=64
        Inducing points of each layer, chosen by k-means++ among the rows; at most the number of rows.
    max_iter : int, default=1000
        Limit on the steps of the optimiser (Adam), a fifth of them the finish.
    learning_rate : float, default=0.02
        Its learning rate, which falls to zero over the steps.
    batch_size : int, default=256
        Rows of a minibatch.
    n_samples : int, default=3
        Samples of the hidden layers in each step.
    validation_fraction : float, default=0.1
        Share of rows, at least ten, that are held out to stop early, by their density under the noise law; they train
        in the finish. With 0 all rows train, for ``max_iter`` steps.
    patience : int, default=300
        Steps without a better score on the held-out rows after which training stops.
    progress : bool or callable, default=False
        ``True`` shows the steps on standard error; or a function called with the number of steps and the bound.
    random_state : int, RandomState instance or None, default=None
        Seed of inducing points, minibatches and samples.

    Attributes
    ----------
    noise_law_ : NoiseLaw
        Distribution of the noise; ``print`` shows it.
    weights_ : ndarray of shape (n,)
        Weight of each row: 1 counts in full, near 0 is an outlier.
    outlier_probability_ : ndarray of shape (n,)
        Probability that each row is an outlier, or has noise of the widest scale, by the noise law.
    outliers_ : ndarray of bool of shape (n,)
        Flagged rows, with a probability above one half.
    doubts_ : tuple of str
        Reasons why the noise law may be wrong; each is also a ``NoiseLawWarning``.
    noise_variance_ : float
        Fitted noise variance σ², the squared unit of the noise law.
    fit_report_ : DeepReport
        Steps, held-out scores and bound.
    n_iter_ : int
        Steps of the optimiser.
    model_ : FittedDeep
        The trained GPyTorch model and likelihood.
    n_features_in_, feature_names_in_
        Number of features, and their names if X was a data frame.

    Notes
    -----
    A step costs O(n_samples · batch_size · n_inducing²) for each hidden output (one for each feature),
    at most eight. Predictions average over samples of the hidden layers that are the same for each row.

    Examples
    --------
    >>> import numpy as np
    >>> from rcgp import DeepRCGPRegressor
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> y = np.sign(X[:, 0])
    >>> y[10] += 5.0
    >>> model = DeepRCGPRegressor(n_inducing=20, max_iter=150, random_state=0).fit(X, y)
    >>> np.flatnonzero(model.outliers_)
    array([10])
    """

    def __init__(
        self,
        n_layers: int = 2,
        n_inducing: int = 64,
        max_iter: int = 1000,
        learning_rate: float = 0.02,
        batch_size: int = 256,
        n_samples: int = 3,
        validation_fraction: float = 0.1,
        patience: int = 300,
        progress: Any = False,
        random_state: Any = None,
    ) -> None:
        self.n_layers = n_layers
        self.n_inducing = n_inducing
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_samples = n_samples
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.progress = progress
        self.random_state = random_state

    @undone_on_failure
    def fit(self, X: ArrayLike, y: ArrayLike) -> DeepRCGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,)
            Observations.

        Returns
        -------
        self
        """
        self._check_parameters()
        inputs, targets, _ = training_data(self, X, y, None)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        fitted = self._start(inputs, targets, seed)
        scaled = (targets - fitted.y_centre) / fitted.y_scale
        report = fit_deep(
            fitted.model,
            fitted.likelihood,
            fitted.standardised(inputs),
            scaled,
            steps=int(self.max_iter),
            rate=float(self.learning_rate),
            batch=int(self.batch_size),
            samples=int(self.n_samples),
            held_out=float(self.validation_fraction),
            patience=int(self.patience),
            seed=seed,
            progress=self.progress,
        )
        fitted.model.eval()
        fitted.likelihood.eval()
        rows, doubts = _judged(fitted, inputs, scaled)
        for doubt in doubts:
            warnings.warn(doubt, NoiseLawWarning, stacklevel=3)
        self._set_fitted(fitted, report, doubts, *(part.numpy() for part in rows))
        return self

    def _start(self, X: Tensor, y: Tensor, seed: int) -> FittedDeep:
        """The model before its training."""
        X_centre, y_centre = X.quantile(0.5, dim=0), float(y.quantile(0.5))
        X_scale, y_scale = robust_scales(X), float(target_spread(y - y_centre))
        scaled = ((X - X_centre) / X_scale).clamp(-_FARTHEST, _FARTHEST)
        kernel = gpytorch.kernels.RBFKernel()  # at which k-means does not look
        inducing = choose_inducing(kernel, scaled, int(self.n_inducing), "kmeans", seed=seed)
        model = DeepModel(inducing, int(self.n_layers))
        likelihood = NoiseLawLikelihood((y - y_centre) / y_scale)
        return FittedDeep(model, likelihood, X_centre, X_scale, y_centre, y_scale)

    def _set_fitted(
        self, fitted: FittedDeep, report: DeepReport, doubts: tuple[str, ...], weights: Array, probability: Array
    ) -> None:
        self.n_outputs_ = 1
        self.model_, self.fit_report_, self.doubts_ = fitted, report, doubts
        self.n_iter_ = report.iterations
        self.noise_law_ = fitted.law
        self.noise_variance_ = float(fitted.noise) * fitted.y_scale**2
        self.weights_, self.outlier_probability_ = weights, probability
        self.outliers_ = probability > FLAGGED

    def _predict(self, X: Any, return_std: bool, return_cov: bool, include_noise: bool) -> Any:
        if return_cov:
            raise ValueError("a deep GP predicts rows one by one: return_cov is not offered, return_std is")
        fitted = self.model_
        means, variances = fitted.moments(self._inputs(X))
        mean = (means.mean(dim=0) * fitted.y_scale + fitted.y_centre).numpy()
        if not return_std:
            return mean
        variance = variances.mean(dim=0) + means.var(dim=0, correction=0)
        if include_noise:
            variance = variance + fitted.law.variance * fitted.noise
        return mean, (variance.sqrt() * fitted.y_scale).numpy()

    def _quantiles(self, X: Any, levels: Array) -> list[Array]:
        fitted = self.model_
        means, variances = fitted.moments(self._inputs(X))  # s x q
        scales = means.new_tensor(SCALES).square()
        std = (variances.T.unsqueeze(-1) + fitted.noise * scales).sqrt().flatten(1)  # q x (s 4)
        mean = means.T.unsqueeze(-1).expand(*means.T.shape, len(SCALES)).flatten(1)
        shares = means.new_tensor(fitted.law.good_shares).repeat(len(means)) / len(means)
        quantiles = [mixture_quantile(means.new_full((std.shape[0],), level), shares, mean, std) for level in levels]
        return [(quantile * fitted.y_scale + fitted.y_centre).numpy() for quantile in quantiles]

    def _noise_std(self, X: Any) -> Array:
        return np.full(len(self._inputs(X)), (self.noise_law_.variance * self.noise_variance_) ** 0.5)

    def _log_density(self, inputs: Tensor, targets: Tensor, outliers: bool) -> Array:
        fitted = self.model_
        means, variances = fitted.moments(inputs)
        scaled = (targets - fitted.y_centre) / fitted.y_scale
        density = fitted.law.log_density(
            scaled - means, variances, fitted.noise.expand_as(means), scaled.expand_as(means) if outliers else None
        )
        log_mean: Tensor = density.logsumexp(dim=0) - np.log(len(means)) - np.log(fitted.y_scale)
        return log_mean.numpy()

    def _check_parameters(self) -> None:
        for name in ("n_layers", "n_inducing", "max_iter", "batch_size", "n_samples", "patience"):
            check_integer(getattr(self, name), name, least=1)
        if not (isinstance(self.learning_rate, int | float | np.floating) and 0.0 < float(self.learning_rate) <= 1.0):
            raise ValueError(f"learning_rate must be a number in (0, 1], got {self.learning_rate!r}")
        share = self.validation_fraction
        if not (isinstance(share, int | float | np.floating) and 0.0 <= float(share) < 1.0):
            raise ValueError(f"validation_fraction must be a share in [0, 1), got {share!r}")


def _judged(fitted: FittedDeep, X: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[str, ...]]:
    """Weights and outlier probabilities of rows with standardised targets, and doubts about the law."""
    means, variances = fitted.moments(X)
    with torch.no_grad():
        q = gpytorch.distributions.MultivariateNormal(means, DiagLinearOperator(variances))
        rows = fitted.likelihood.responsibilities(y, q)  # s x 1 x n
        of_sample = rows.log_density.softmax(dim=0)
        share = (of_sample.unsqueeze(-1) * rows.share).sum(dim=0).squeeze(0)  # n x 5
        scales = share.new_tensor(SCALES).square()
        precision = share[:, :-1] @ scales.reciprocal()
        probability = share[:, -2] + share[:, -1]
        mean, variance = means.mean(dim=0), variances.mean(dim=0) + means.var(dim=0, correction=0)
        doubts = doubts_of(fitted.law, y - mean, variance, fitted.noise.expand_as(y), probability, precision)
    return (precision.clamp_min(torch.finfo(y.dtype).tiny).sqrt(), probability), doubts
