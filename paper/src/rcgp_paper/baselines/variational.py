"""Gaussian processes with a likelihood that is not Gaussian, by variational inference: base of two baselines.

The posterior of f is approximated by the Gaussian q that maximises the bound

    log p(y) ≥ ℓ(μ, v) − KL(q ‖ prior),

where ℓ is the expected log likelihood, a function of the mean μ_i and the variance v_i of q at each training point,
which a subclass defines. The best q has sites (:mod:`rcgp_paper.baselines.sites`) with

    λ_i = −2 ∂ℓ/∂v_i,        b_i = ∂ℓ/∂μ_i + λ_i μ_i,

which depend on q again. Taking them as the next sites is a natural-gradient step of length one: Newton's method in μ.

Hyperparameters are chosen by the bound at the best q. There its derivatives in μ and v vanish, so that the gradient in
a hyperparameter is the one with μ and v held fixed (envelope theorem).

The bound has many local maxima: at some everything is noise, at others half of the data are outliers and the rest is
interpolated. No single start suits all data, so a fit makes a short search from each of several and continues from the
best: the current hyperparameters; those of an ordinary GP, right for data without outliers; and the current ones with
another noise variance, chosen by the subclass.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import gpytorch
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.models import RCGP, TrainingTerms
from rcgp.models.defaults import robust_spread
from rcgp.models.means import MeanLike
from rcgp.training import FitError, FitReport, fit
from rcgp.training.objectives import log_prior
from rcgp.training.search import NUMERICAL_ERRORS, Progress
from rcgp.weights import Constant
from rcgp_paper.baselines.gaussian import GaussianGP
from rcgp_paper.baselines.sites import SitePosterior, Sites, SolvedSites, Step, ascend, solve_sites

__all__ = ["VariationalGP"]

# The search for q ends where the next step is expected to gain less than this, in nats for each observation.
_TOLERANCE = 1e-9

# In the first q, observations count for no more than this many robust standard deviations.
_CLIP = 3.0

# Iterations of a short search; twice as many mostly choose the same start.
_SHORT = 5


class VariationalGP(RCGP):
    """A Gaussian process whose posterior is a variational approximation. A base class: a subclass defines the bound.

    It predicts as an :class:`rcgp.RCGP` does; the posterior is computed on demand and kept until a hyperparameter
    changes. There are no pseudo-data and so no leave-one-out formulas.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel, mean, noise: as in ``RCGP``.
    """

    #: Noise variance of the last start of a fit, as a share of the squared robust spread of the residuals.
    start_noise: ClassVar[float]

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
        # Means and variances of the q that a fit ended with, 2 x n: the start of later searches for q.
        self.register_buffer("latent_moments", None, persistent=False)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor) -> Tensor:
        """ℓ(μ, v), a scalar, differentiable in both and in the hyperparameters of the likelihood.

        Args:
            mean, variance: ``n`` moments of f − m at the training points.
        """
        raise NotImplementedError(f"{type(self).__name__} must define expected_log_likelihood(mean, variance)")

    def largest_precision(self) -> Tensor:
        """The precision λ of the site of a certain inlier, a scalar."""
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

        Short searches from several starts, then one to the end from the best, with the restarts. An interrupt leaves
        the best hyperparameters so far.

        Returns:
            The report, with the objective ``"elbo"``; evaluations and seconds count all searches.
        """
        began = time.perf_counter()
        before = self._move_to_best_start(max_iterations, progress)
        shown = (lambda count, value: progress(before + count, value)) if callable(progress) else progress
        report = self._search(restarts, max_iterations, seed, shown)
        evaluations = before + report.evaluations
        return dataclasses.replace(report, evaluations=evaluations, seconds=time.perf_counter() - began)

    def weights(self) -> Tensor:
        """The weight of each training point, ``n``: 1 for a certain inlier, near 0 for an outlier. Cost as elbo.

        The root of the precision of its site over that of a certain inlier, to compare with ``RCGP``.
        """
        with torch.no_grad():
            model = self.in_float64()
            q = model._solve(model.kernel_matrix())
            share = model._best_sites(q.mean, q.variance)[1].precision / model.largest_precision()
            return share.clamp(torch.finfo(self.train_y.dtype).tiny, 1.0).sqrt().to(self.train_y)

    def training_terms(self) -> TrainingTerms:
        """Always raises TypeError: only ``RCGP`` has pseudo-data, which leave-one-out and influence need."""
        name = type(self).__name__
        raise TypeError(
            f"{name} has no pseudo-data, so no leave-one-out or influence; choose its hyperparameters with {name}.fit()"
        )

    def in_float64(self) -> VariationalGP:
        """This model, or a copy of it in double precision if it is in single."""
        model: VariationalGP = super().in_float64()
        return model

    def _search(self, restarts: int, max_iterations: int, seed: int | None, progress: bool | Progress) -> FitReport:
        """One search for hyperparameters from the present ones."""
        best, moments = -math.inf, self.latent_moments

        def elbo(model: RCGP) -> Tensor:
            nonlocal best, moments
            if best > -math.inf:
                # Not from the last q: a line search may have visited a q in which all observations are outliers.
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

    def _move_to_best_start(self, max_iterations: int, progress: bool | Progress) -> int:
        """Move to the best end of short searches, nowhere if all fail; returns the number of evaluations."""
        here = best = self._state()
        best_value = reached = -math.inf
        evaluations = 0

        def report_progress(count: int, value: float) -> None:
            nonlocal reached
            reached = value
            if callable(progress):
                progress(evaluations + count, max(value, best_value))

        try:
            for move in self._moves():
                self._restore(here)
                reached = -math.inf
                evaluations += move(max_iterations)
                with suppress(FitError, *NUMERICAL_ERRORS):
                    report = self._search(0, min(_SHORT, max_iterations), None, report_progress)
                    evaluations += report.evaluations
                    if report.value > best_value:
                        best, best_value = self._state(), report.value
        except KeyboardInterrupt:
            if reached > best_value:  # the search itself left the model there
                best = self._state()
            raise
        except BaseException:
            best = here
            raise
        finally:
            self._restore(best)
        return evaluations

    def _moves(self) -> list[Callable[[int], int]]:
        """Moves to each start, each given a limit of iterations and returning its number of evaluations."""
        free_noise = [self._move_to_start_noise] if self.raw_noise.requires_grad else []
        return [lambda max_iterations: 0, self._move_to_ordinary_gp, *free_noise]

    def _move_to_start_noise(self, max_iterations: int) -> int:
        self.noise = self.start_noise * robust_spread(self.residual().detach()) ** 2
        self.latent_moments = None
        return 0

    def _move_to_ordinary_gp(self, max_iterations: int) -> int:
        """Take the hyperparameters of an ordinary GP fitted from the present ones; keep these if that fit fails."""
        evaluations = 0
        # It shares the kernel and the mean.
        noise = float(self.noise.detach())
        ordinary = GaussianGP(self.train_X, self.train_y, kernel=self.kernel, mean=self.mean, noise=noise)
        ordinary.raw_noise.requires_grad_(self.raw_noise.requires_grad)
        with suppress(FitError, *NUMERICAL_ERRORS):  # squares of residuals may overflow
            evaluations = ordinary.fit(max_iterations=max_iterations).evaluations
            with torch.no_grad():
                self.raw_noise.copy_(self.raw_noise_constraint.inverse_transform(ordinary.noise))
        self.latent_moments = None
        return evaluations

    def _state(self) -> tuple[list[Tensor], Tensor | None]:
        """A copy of the parameters, and the moments of q."""
        return [parameter.detach().clone() for parameter in self.parameters()], self.latent_moments

    def _restore(self, state: tuple[list[Tensor], Tensor | None]) -> None:
        values, self.latent_moments = state
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), values, strict=True):
                parameter.copy_(value)

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

        precision = self.largest_precision().detach()
        return ascend(take, self._first_step(take, precision), precision, _TOLERANCE * K.shape[0])

    def _first_step(self, take: Callable[[Sites], Step], precision: Tensor) -> Step:
        """The end of the last fit, or else an ordinary GP on clipped observations."""
        if self.latent_moments is not None:
            # It fails if negative precisions belong to other hyperparameters.
            with suppress(NotPositiveDefiniteError):
                return take(self._best_sites(*self.latent_moments)[1])
        residual = self.residual()
        limit = _CLIP * robust_spread(residual)
        return take(Sites(precision.expand_as(residual), precision * residual.clamp(-limit, limit)))

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
