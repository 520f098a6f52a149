"""The mixture GP: each observation is an inlier or comes from anywhere in the range of y (Lu et al., 2023).

The paper's m-GP is this model, with the GP exact instead of sparse and hyperparameters at the optimum of the bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from rcgp.models.defaults import robust_spread
from rcgp.models.means import MeanLike
from rcgp_paper.baselines.variational import VariationalGP

__all__ = ["MixtureGP"]

# Most steps to the share of inliers that its own responsibilities imply, and the change, in points, that ends them.
_SHARE_STEPS, _SHARE_TOLERANCE = 1000, 1e-9


class MixtureGP(VariationalGP):
    """Gaussian process regression with noise σ² at inliers and uniform outliers.

    y_i ~ N(f(x_i), σ²) with probability γ, else uniform over a region of length a, with γ ~ Beta. The approximate
    posterior is independent between f, γ and the inlier labels (true with probability p_i)::

        q(f) as an ordinary GP with noise variance σ²/p_i,        q(γ) = Beta(prior + (Σ p_i, Σ (1 − p_i))),
        p_i/(1 − p_i) = exp( E log N(y_i; f_i, σ²) + E log γ − E log(1 − γ) ) · a.

    Predictions with observation noise are of an inlier, with noise variance σ².

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations. The length a is their range.
        kernel, mean: as in ``RCGP``.
        noise: starting value of the noise variance σ² of inliers, as in ``RCGP``.
        prior: the two parameters of the Beta prior of γ. Default: as in the authors' code.

    Example:
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(X.squeeze(-1))
        >>> y[10] = 25.0
        >>> model = MixtureGP(X, y)
        >>> int(model.inlier_probability().argmin())
        10
    """

    # Far too large: all observations start as inliers, and outliers separate as the search lowers it.
    start_noise = 10.0

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        noise: float | None = None,
        prior: tuple[float, float] = (10.0, 10.0),
    ) -> None:
        if len(prior) != 2 or not all(math.isfinite(count) and count > 0 for count in prior):
            raise ValueError(
                f"prior must be two positive numbers, the parameters of a Beta distribution, got {prior!r}"
            )
        super().__init__(train_X, train_y, kernel=kernel, mean=mean, noise=noise)
        self.prior = (float(prior[0]), float(prior[1]))
        low, high = float(self.train_y.min()), float(self.train_y.max())
        # Halved, because the range may overflow; observations without a range still need some region.
        self.log_region = math.log(high / 2 - low / 2 or robust_spread(self.residual().detach())) + math.log(2.0)

    def inlier_probability(self) -> Tensor:
        """Posterior probability that each training point is an inlier, ``n``. Cost as :meth:`elbo`."""
        with torch.no_grad():
            model: MixtureGP = self.in_float64()
            q = model._solve(model.kernel_matrix())
            score = model._log_inlier_density(q.mean, q.variance) + model.log_region
            return _balance(score, model.prior).probability.to(self.train_y)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y, inliers | f, γ) plus the entropies and priors of those, at their best. Cost O(n) a few times.

        With the best inlier probabilities for a given q(γ) it is
        Σ_i log( exp(E log γ + E log N_i) + exp(E log(1 − γ))/a ) − KL(q(γ) ‖ prior).
        """
        log_density = self._log_inlier_density(mean, variance)
        with torch.no_grad():
            # At the best q(γ) the derivative in it vanishes.
            balance = _balance(log_density + self.log_region, self.prior)
        inlier = balance.log_inlier + log_density
        outlier = (balance.log_outlier - self.log_region).expand_as(inlier)
        return torch.logaddexp(inlier, outlier).sum() - balance.divergence

    def largest_precision(self) -> Tensor:
        """1/σ², the precision of the site of a certain inlier."""
        return self.noise.reciprocal()

    def _log_inlier_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log N(y_i; f_i, σ²), ``n``."""
        noise = self.noise
        u = (self.residual() - mean) / noise.sqrt()
        return -0.5 * ((2.0 * math.pi * noise).log() + u.square() + variance / noise)


class _Balance(NamedTuple):
    """q(γ) and the inlier probabilities that are consistent with it.

    Attributes:
        probability: ``n`` inlier probabilities.
        log_inlier, log_outlier: E log γ and E log(1 − γ).
        divergence: KL(q(γ) ‖ prior).
    """

    probability: Tensor
    log_inlier: Tensor
    log_outlier: Tensor
    divergence: Tensor


def _balance(score: Tensor, prior: tuple[float, float]) -> _Balance:
    """The best q(γ) for ``n`` log density ratios of inlier and outlier.

    The expected number of inliers maps to itself by p = logistic(score + E log γ − E log(1 − γ)). The map increases, so
    that from all points being inliers it descends to the largest fixed point.
    """
    first, second = (score.new_tensor(count) for count in prior)
    n = score.new_tensor(float(score.shape[-1]))
    total = torch.digamma(first + second + n)
    inliers = n
    for _ in range(_SHARE_STEPS):
        log_inlier = torch.digamma(first + inliers) - total
        log_outlier = torch.digamma(second + n - inliers) - total
        probability = torch.sigmoid(score + log_inlier - log_outlier)
        before, inliers = inliers, probability.sum()
        if abs(float(inliers - before)) < _SHARE_TOLERANCE:
            break
    a, b = first + before, second + n - before
    divergence = _log_beta(first, second) - _log_beta(a, b) + (a - first) * log_inlier + (b - second) * log_outlier
    return _Balance(probability, log_inlier, log_outlier, divergence)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
