"""Gaussian sites, the form of every variational posterior in this room, and the ascent to the best ones.

Where the likelihood is not Gaussian, the best Gaussian approximation q of the posterior of f at the n training inputs
(relative to the prior mean) multiplies the prior by one Gaussian factor, a *site*, for each observation (Opper and
Archambeau, 2009):

    q(f) ∝ N(f; 0, K) Π_i exp(b_i f_i − ½ λ_i f_i²) = N(f; Kα, V),    V = (K⁻¹ + Λ)⁻¹,    α = b − ΛKα.

A site of a heavy-tailed likelihood may have a *negative* precision λ_i: where the density is convex in f, an
observation adds uncertainty. So the positive sites are conditioned on first, as ordinary pseudo-data, and the few
negative ones change the result by a matrix H of low rank:

    (K + Λ⁻¹)⁻¹ = S P S − H Hᵀ,    S = diag(max(λ, 0)^½),    P = (I + S K S)⁻¹.

Each step of the ascent takes the sites that are best for the current moments. Such steps converge fast if the
likelihood is nearly Gaussian and slowly if a point may be an inlier or an outlier. Anderson extrapolation from the last
few steps speeds this up; it is rejected if the bound falls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.exact import ExactPosterior, posterior_variance
from rcgp.core.linalg import NotPositiveDefiniteError, scaled_cholesky
from rcgp.weights import smallest_weight

__all__ = ["SitePosterior", "Sites", "SolvedSites", "Step", "ascend", "solve_sites"]

# Harmless rounding error of a divergence, for each observation.
_ROUNDING = 1e-6

# Most steps to the best q, the shortest one tried, and the number of steps that an extrapolation uses.
_STEPS, _SHORTEST_STEP, _MEMORY = 100, 2.0**-10, 4


class Sites(NamedTuple):
    """One Gaussian factor exp(b f − ½ λ f²) for each training point.

    Attributes:
        precision: ``n`` precisions λ, of either sign.
        shift: ``n`` linear terms b, in which a site N(z; f, r) has r = 1/λ and z = b/λ.
    """

    precision: Tensor
    shift: Tensor

    def towards(self, other: Sites, step: float) -> Sites:
        """Sites between these and others: a natural-gradient step of that length."""
        return Sites(*(torch.lerp(a, b, step) for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class SitePosterior(ExactPosterior):
    """A posterior that predicts at any input; H Hᵀ, H ``n x p``, is the part of p negative sites in (K + Λ⁻¹)⁻¹."""

    H: Tensor

    def variance(self, K_star: Tensor, prior_variance: Tensor) -> Tensor:
        """Posterior variance at q points, ``... x q``. Cost n²q."""
        return super().variance(K_star, prior_variance) + (K_star @ self.H).square().sum(dim=-1)

    def covariance(self, K_star: Tensor, K_other: Tensor, prior_covariance: Tensor) -> Tensor:
        """Posterior covariance between q and p points, ``... x q x p``. Cost n²(q + p) + nqp."""
        widened = (K_star @ self.H) @ (K_other @ self.H).mT
        return super().covariance(K_star, K_other, prior_covariance) + widened


@dataclass(frozen=True)
class SolvedSites:
    """The Gaussian q that a kernel matrix and sites define, at the training points.

    Attributes:
        posterior: q as a process.
        P: ``n x n`` inverse of I + S K S.
        mean, variance: ``n`` moments of each f_i under q.
        divergence: KL(q ‖ prior), a scalar.
    """

    posterior: SitePosterior
    P: Tensor
    mean: Tensor
    variance: Tensor
    divergence: Tensor

    def divergence_gradient(self) -> Tensor:
        """∂ KL / ∂K with the moments of q held fixed, ``n x n``: ½ ((K + Λ⁻¹)⁻¹ − α αᵀ). Cost O(n²)."""
        q = self.posterior
        gradient = (self.P * (0.5 * q.s.unsqueeze(-1))).mul_(q.s)
        columns = torch.cat([q.H, q.alpha.unsqueeze(-1)], dim=-1)
        return gradient.addmm_(columns, columns.mT, alpha=-0.5)


def solve_sites(K: Tensor, sites: Sites) -> SolvedSites:
    """Condition the prior on sites.

    Args:
        K: ``n x n`` kernel matrix.
        sites: the sites of the n training points.

    Returns:
        The posterior and its moments. Cost n³, and n²p more for p sites of negative precision.

    Raises:
        NotPositiveDefiniteError: where negative precisions outweigh prior and positive sites, so that q does not exist,
            or rounding errors outweigh everything.
    """
    precision, shift = sites.precision, sites.shift
    negative = (precision < 0).nonzero().squeeze(-1)
    # Not zero, for the division, but smaller than any precision that matters.
    smallest = smallest_weight(K.dtype)
    s = precision.clamp_min(smallest).sqrt().index_fill(0, negative, 0.0)
    t = (shift / s).index_fill(0, negative, 0.0)
    L = scaled_cholesky(K, s)
    P = torch.cholesky_inverse(L)  # n x n
    # Solved with L: the errors of the explicit inverse would be magnified by the largest eigenvalues of K.
    alpha, H = s * torch.cholesky_solve(t.unsqueeze(-1), L).squeeze(-1), K.new_zeros(K.shape[0], 0)
    log_det = 2.0 * L.diagonal().log().sum()
    variance = posterior_variance(K, P, s.clamp_min(smallest))
    if len(negative):
        widened = _add_negative_sites(K, L, s, alpha, negative, sites)
        alpha, H, log_det = alpha + widened.alpha, widened.H, log_det + widened.log_det
        variance = variance.index_copy(0, negative, widened.own_variance) + widened.variance
    mean = K @ alpha
    # tr(K⁻¹V) = n − Σ λ_i V_ii, and log det(K V⁻¹) = log det(I + ΛK).
    from_mean, from_variance = 0.5 * (alpha @ mean), 0.5 * (log_det - precision @ variance)
    # Neither part is negative. If rounding makes one negative, the bound is wrong and attracts the search.
    if float(torch.minimum(from_mean, from_variance)) < -_ROUNDING * K.shape[0]:
        raise NotPositiveDefiniteError("rounding errors outweigh the divergence from the prior")
    divergence = from_mean + from_variance
    return SolvedSites(SitePosterior(L, s, alpha, H), P, mean, variance, divergence)


class _Widening(NamedTuple):
    """What negative sites add; ``own_variance`` is the variance at their points given the positive sites."""

    alpha: Tensor
    H: Tensor
    log_det: Tensor
    variance: Tensor
    own_variance: Tensor


def _add_negative_sites(K: Tensor, L: Tensor, s: Tensor, alpha: Tensor, negative: Tensor, sites: Sites) -> _Widening:
    """Condition the posterior of the positive sites, of covariance Σ, on the p negative sites. Cost n²p.

    With D = diag(|λ|^½) and C = I − DΣD at the negative sites, and G = K⁻¹Σ their columns of I − SPSK:
    H = G D C^(-½), and α grows by Gγ, where γ = b − λ·mean solves (I − D²Σ) γ = b + D² mean of the positive sites.
    """
    D, b = (-sites.precision[negative]).sqrt(), sites.shift[negative]
    columns = torch.arange(len(negative), device=K.device)
    G = -s.unsqueeze(-1) * torch.cholesky_solve(s.unsqueeze(-1) * K[:, negative], L)  # n x p
    G[negative, columns] += 1.0
    covariance = K @ G  # columns of Σ, n x p
    own = covariance[negative]  # p x p
    C = -D.unsqueeze(-1) * own * D
    C.diagonal().add_(1.0)
    # Without jitter: if the matrix is not positive definite, the posterior does not exist.
    root, info = torch.linalg.cholesky_ex(C)
    if int(info):
        raise NotPositiveDefiniteError("sites of negative precision outweigh the prior and all other sites")
    c = b + D.square() * (K[negative] @ alpha)
    gamma = c + D * torch.cholesky_solve((D * (own @ c)).unsqueeze(-1), root).squeeze(-1)
    H, spread = (torch.linalg.solve_triangular(root, (part * D).mT, upper=False).mT for part in (G, covariance))
    log_det = 2.0 * root.diagonal().log().sum()
    return _Widening(G @ gamma, H, log_det, spread.square().sum(dim=-1), own.diagonal())


class Step(NamedTuple):
    """The end of a step: sites, their posterior, its bound, and the sites that are best for its moments."""

    sites: Sites
    q: SolvedSites
    value: float
    target: Sites


def ascend(take: Callable[[Sites], Step], here: Step, unit: Tensor, tolerance: float) -> SolvedSites:
    """The best q reached by steps from here; the bound never falls.

    Args:
        take: evaluates sites; may raise NotPositiveDefiniteError where they define no posterior.
        here: the first step.
        unit: a typical precision, a scalar, by which precisions and shifts are made comparable.
        tolerance: gain, in nats, below which a step is not worth taking.
    """
    length, last_gain, memory = 1.0, 0.0, _Memory(unit)
    for _ in range(_STEPS):
        extrapolated = memory.extrapolate(here) if length == 1.0 else None
        try:
            there = take(extrapolated or here.sites.towards(here.target, length))
            gain = there.value - here.value
        except NotPositiveDefiniteError:
            gain = -math.inf
        if not gain >= -tolerance:  # also rejects nan
            memory.clear()
            length = length if extrapolated else 0.5 * length
            if length < _SHORTEST_STEP:
                break
            continue
        # Gains shrink geometrically: gain²/last_gain is the next one.
        converged = gain * gain <= tolerance * length * max(last_gain, abs(gain))
        if gain > 0.0:
            memory.add(here)
            here = there
        if converged:
            break
        length, last_gain = min(1.0, 2.0 * length), gain
    return here.q


class _Memory:
    """The last steps, and Anderson's extrapolation from them.

    With x the sites of a step and r = target − x, the next sites are x + r − Σ_k γ_k (Δx_k + Δr_k), where γ makes
    r − Σ_k γ_k Δr_k smallest: exact where the targets depend on the sites linearly.
    """

    def __init__(self, unit: Tensor) -> None:
        # Precisions are in units of λ; shifts b = λ·f of f in units of λ^(-½).
        self._units = torch.stack([unit, unit.sqrt()]).unsqueeze(-1)
        self._steps: deque[tuple[Tensor, Tensor]] = deque(maxlen=_MEMORY)

    def add(self, step: Step) -> None:
        self._steps.append(self._vectors(step))

    def clear(self) -> None:
        self._steps.clear()

    def extrapolate(self, step: Step) -> Sites | None:
        """The extrapolated sites; None without earlier steps or where a number is not finite."""
        if not self._steps:
            return None
        x, r = self._vectors(step)
        dx, dr = (
            torch.stack([now - then for then in before], dim=-1)
            for now, before in zip((x, r), zip(*self._steps, strict=True), strict=True)
        )
        if not bool(dr.isfinite().all()):  # LAPACK needs finite numbers
            return None
        gamma = torch.linalg.lstsq(dr.cpu(), r.cpu().unsqueeze(-1), driver="gelsd").solution.squeeze(-1).to(x)
        precision, shift = (x + r - (dx + dr) @ gamma).reshape(2, -1) * self._units
        return Sites(precision, shift)

    def _vectors(self, step: Step) -> tuple[Tensor, Tensor]:
        """x and r, each of 2n numbers without units."""
        x, target = (
            (torch.stack([sites.precision, sites.shift]) / self._units).reshape(-1)
            for sites in (step.sites, step.target)
        )
        return x, target - x
