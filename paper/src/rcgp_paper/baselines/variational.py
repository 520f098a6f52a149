"""Gaussian processes with a likelihood that is not Gaussian, by variational inference: what two baselines share.

The posterior of f is approximated by the Gaussian q that maximises the bound

    log p(y) ≥ ℓ(μ, v) − KL(q ‖ prior),

where ℓ is the expected log likelihood, a function of the mean μ_i and the variance v_i of q at each training point and
all that a subclass has to know. The best q has sites (:mod:`rcgp_paper.baselines.sites`) with

    λ_i = −2 ∂ℓ/∂v_i,        b_i = ∂ℓ/∂μ_i + λ_i μ_i,

which depend on q again. Taking them as the next sites is a natural-gradient step of length one: Newton's method in μ.
:mod:`rcgp_paper.baselines.ascent` sees to it that the bound never falls.

Hyperparameters are chosen by the bound at the best q. There its derivatives in μ and v vanish, so that the gradient in
a hyperparameter is the one with μ and v held fixed (envelope theorem), with no trace of how q was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gpytorch
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.models import RCGP, TrainingTerms
from rcgp.models.defaults import robust_spread
from rcgp.models.means import MeanLike
from rcgp.training import FitReport, fit
from rcgp.training.objectives import log_prior
from rcgp.training.search import Progress
from rcgp.weights import Constant
from rcgp_paper.baselines.ascent import Step, ascend
from rcgp_paper.baselines.sites import SitePosterior, Sites, SolvedSites, solve_sites

__all__ = ["VariationalGP"]

# The search for q ends where the next step is expected to gain less than this, in nats for each observation.
_TOLERANCE = 1e-9

# Where the search begins, observations count for no more than this many robust standard deviations.
_CLIP = 3.0


class VariationalGP(RCGP):
    """A Gaussian process whose posterior is a variational approximation. A base class: a subclass defines the bound.

    It predicts as an :class:`rcgp.RCGP` does; the posterior is found when it is asked for and kept until a
    hyperparameter changes. There are no pseudo-data and so no leave-one-out formulas.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel: any GPyTorch kernel with one output; default as in ``RCGP``.
        mean: prior mean, as in ``RCGP``.
        noise: starting value of σ², as in ``RCGP``.
    """

    latent_moments: Tensor | None

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        noise: float | None = None,
    ) -> None:
        super().__init__(train_X, train_y, kernel=kernel, mean=mean, weight=Constant(), noise=noise)
        # Means and variances of the q that a fit ended with, 2 x n: where the search for q begins from then on.
        self.register_buffer("latent_moments", None, persistent=False)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor) -> Tensor:
        """ℓ(μ, v), a scalar, differentiable in both and in the hyperparameters of the likelihood.

        Args:
            mean, variance: ``n`` moments of f − m at the training points.
        """
        raise NotImplementedError(f"{type(self).__name__} must define expected_log_likelihood(mean, variance)")

    def largest_precision(self) -> Tensor:
        """The precision λ of the site of an observation beyond doubt, a scalar."""
        raise NotImplementedError(f"{type(self).__name__} must define largest_precision()")

    def elbo(self) -> Tensor:
        """The bound on log p(y) at the best q, differentiable once in the hyperparameters. Cost n³ a step to q."""
        return self._bound()[0]

    def fit(
        self,
        restarts: int = 0,
        max_iterations: int = 1000,
        seed: int | None = None,
        progress: bool | Progress = False,
    ) -> FitReport:
        """Choose the hyperparameters by the bound, plus the log density of priors; arguments as in :func:`rcgp.fit`.

        One search, from the present hyperparameters; subclasses have good starts for it.

        Returns:
            The report, with the objective ``"elbo"``.
        """
        best, moments = -math.inf, self.latent_moments

        def elbo(model: RCGP) -> Tensor:
            nonlocal best, moments
            if best > -math.inf:
                # Not from the last q: a line search may have been where all observations are outliers.
                self.latent_moments = moments
            bound, q = self._bound()
            value = bound + log_prior(model)
            if float(value.detach()) > best:
                best, moments = float(value.detach()), torch.stack([q.mean, q.variance])
            return value

        try:
            return fit(self, elbo, restarts, max_iterations, seed, progress)
        finally:
            self.latent_moments = None if moments is None else moments.to(self.train_y)

    def weights(self) -> Tensor:
        """How far each training point is trusted, ``n``: 1 is fully, near 0 is an outlier. Cost as :meth:`elbo`.

        The root of the precision of its site over that of an observation beyond doubt, to compare with ``RCGP``.
        """
        with torch.no_grad():
            model = self.in_float64()
            q = model._solve(model.kernel_matrix())
            trust = model._best_sites(q.mean, q.variance)[1].precision / model.largest_precision()
            return trust.clamp(torch.finfo(self.train_y.dtype).tiny, 1.0).sqrt().to(self.train_y)

    def training_terms(self) -> TrainingTerms:
        """There are none.

        Raises:
            TypeError: always; what needs pseudo-data (leave-one-out, its objective, influence) is of ``RCGP`` alone.
        """
        name = type(self).__name__
        raise TypeError(
            f"{name} has no pseudo-data, so no leave-one-out or influence; choose its hyperparameters with {name}.fit()"
        )

    def in_float64(self) -> VariationalGP:
        """This model, or a copy of it in double precision if it is in single."""
        model: VariationalGP = super().in_float64()
        return model

    def _conditioned_on(self) -> list[Tensor]:
        own = [parameter for name, parameter in self.named_parameters() if "." not in name]
        return [self.residual(), *own, *([] if self.latent_moments is None else [self.latent_moments])]

    def _condition(self) -> SitePosterior:
        return self._solve(self.kernel_matrix()).posterior

    def _bound(self) -> tuple[Tensor, SolvedSites]:
        """The bound and the q that attains it."""
        K = self.kernel_matrix()
        with torch.no_grad():
            q = self._solve(K)
        divergence: Tensor = _Divergence.apply(K, q)  # type: ignore[no-untyped-call]
        return self.expected_log_likelihood(q.mean, q.variance) - divergence, q

    def _solve(self, K: Tensor) -> SolvedSites:
        """The best q for a kernel matrix. Cost n³ for each step to it."""

        def take(sites: Sites) -> Step:
            q = solve_sites(K, sites)
            value, target = self._best_sites(q.mean, q.variance)
            return Step(sites, q, float(value - q.divergence), target)

        trust = self.largest_precision().detach()
        return ascend(take, self._first_step(take, trust), trust, _TOLERANCE * K.shape[0])

    def _first_step(self, take: Callable[[Sites], Step], trust: Tensor) -> Step:
        """Where the last fit ended, or else an ordinary GP, which trusts all observations, if not their size."""
        if self.latent_moments is not None:
            # It fails where negative precisions belong to other hyperparameters.
            with suppress(NotPositiveDefiniteError):
                return take(self._best_sites(*self.latent_moments)[1])
        residual = self.residual()
        limit = _CLIP * robust_spread(residual)
        return take(Sites(trust.expand_as(residual), trust * residual.clamp(-limit, limit)))

    def _best_sites(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Sites]:
        """ℓ and the sites λ = −2 ∂ℓ/∂v, b = ∂ℓ/∂μ + λμ."""
        with torch.enable_grad():
            mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
            value = self.expected_log_likelihood(mean, variance)
            slope, curvature = torch.autograd.grad(value, (mean, variance))
        precision = -2.0 * curvature
        return value.detach(), Sites(precision, slope + precision * mean.detach())


class _Divergence(torch.autograd.Function):
    """K ↦ KL(q ‖ prior) for the moments of q held fixed."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, q: SolvedSites) -> Tensor:
        ctx.q = q
        return q.divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.q.divergence_gradient().mul_(grad), None
