"""Which rows to trust at given hyperparameters, decided by evidence.

A row is an observation of the GP or, with probability ε, one of a Cauchy distribution q around the prior mean, three
times as wide as the rows scatter. It is rejected where the prediction of it from the trusted rows, N(μ_i, S_i²), makes
it less likely than that, (1 − ε) N(y_i; μ_i, S_i²) < ε q(y_i): beyond t_i S_i from μ_i, with::

    t_i² = −2 log [ ε/(1 − ε) · q · √(2π) S_i ],        q at μ_i ± t_i S_i.

Where the other rows say little of f(x_i), more than a quarter of the prior variance being left, they cannot contradict
it, and it is rejected only beyond ten standard deviations. Rows are rejected one at a time, because an outlier makes
its neighbours look bad, too: first those that the prior rules out, then the worst; at last those that the trusted rows
predict after all are taken back. Rejecting row i from A = (K + R)⁻¹ and taking it back, with α = A e, are updates of
rank one::

    A − a aᵀ/A_ii,        a = A_·i,
    A + g gᵀ/S_i²,    α − g (e_i − μ_i)/S_i²,    g = A K_·i with g_i = −1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.linalg import broadcast, scaled_cholesky
from rcgp.core.loo import leave_one_out
from rcgp.core.pseudo import PseudoData
from rcgp.weights import smallest_weight

__all__ = ["UNKNOWN", "Trimmed", "outlier_log_odds", "trim"]

# Share of outliers that is expected, and the width of their distribution in units of the rows' scatter.
_SHARE, _WIDTH = 0.1, 3.0

# Standard deviations within which no row is rejected, and the share of rows that may be.
_LEAST, _MOST = 3.0, 0.4

#: Share of the prior variance left at a place beyond which rows there are not contradicted by others.
UNKNOWN = 0.25

# Standard deviations within which no such row is rejected.
_RULED_OUT = 10.0

# Rows that are never enough to say of another that it is wrong.
_TOO_FEW = 2

_LOG_ODDS = math.log(_SHARE / (1.0 - _SHARE))
_NORMAL_MEDIAN = 0.6744897501960817  # median size of a standard normal variable


class Trimmed(NamedTuple):
    """Who is trusted, and what the trusted rows say of every row; each ``... x n``.

    Attributes:
        trusted: flags.
        mean, variance: of each observation, noise included, given the trusted rows other than itself.
        threshold: t_i S_i, beyond which an observation is not trusted. It does not depend on the row's own y, but for
            the width of q, a median.
        unknown: share of the prior variance of f that is left at the row's place.
    """

    trusted: Tensor
    mean: Tensor
    variance: Tensor
    threshold: Tensor
    unknown: Tensor


def trim(K: Tensor, residual: Tensor, row_noise: Tensor) -> Trimmed:
    """Reject the rows that the others make unlikely, at most two in five of them.

    Args:
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e from the prior mean.
        row_noise: ``... x n`` noise variances r.

    Returns:
        Who is trusted, and moments that are differentiable given that. Cost n³, n² for each row that is rejected, and
        n³ for each that is taken back.
    """
    K, e, r = broadcast(K, residual, row_noise)
    s, width = r.rsqrt(), _width(e, r)
    far = torch.finfo(e.dtype).max ** 0.25 * width  # where everything is rejected, and products are still numbers
    e = torch.maximum(torch.minimum(e, far), -far)
    trusted = _trusted(K.detach(), e.detach(), r.detach(), width.detach())
    # From the beginning: updates add up rounding errors. A row without weight is predicted by the others.
    smallest = smallest_weight(e.dtype)
    pseudo = PseudoData(torch.where(trusted, e, torch.zeros_like(e)), torch.where(trusted, s, smallest * s))
    mean, latent = leave_one_out(K, pseudo)
    variance = latent + r
    unknown = latent / K.diagonal(dim1=-2, dim2=-1)
    return Trimmed(trusted, mean, variance, _limit(mean, variance, unknown, width) * variance.sqrt(), unknown)


def _trusted(K: Tensor, e: Tensor, r: Tensor, width: Tensor) -> Tensor:
    with torch.no_grad():
        s = r.rsqrt()
        A = torch.cholesky_inverse(scaled_cholesky(K, s)) * s.unsqueeze(-1) * s.unsqueeze(-2)
        alpha = (A @ e.unsqueeze(-1)).squeeze(-1)
        trusted, A, alpha = _reject(K, A, alpha, e, r, width)
        return _take_back(K, A, alpha, e, r, trusted, width)


def outlier_log_odds(residual: Tensor, row_noise: Tensor) -> Tensor:
    """log ε/(1 − ε) + log q(e_i): what rejecting a row is worth, ``... x n``."""
    return _LOG_ODDS + _log_cauchy(residual, _width(residual, row_noise))


def _most(e: Tensor) -> int:
    return max(0, int(_MOST * (e.shape[-1] - _TOO_FEW)))


def _width(e: Tensor, r: Tensor) -> Tensor:
    scatter = e.abs().quantile(0.5, dim=-1, keepdim=True) / _NORMAL_MEDIAN
    return _WIDTH * torch.maximum(scatter, r.sqrt().amin(dim=-1, keepdim=True))


def _log_cauchy(e: Tensor, width: Tensor) -> Tensor:
    # By way of hypot, whose square cannot overflow.
    ones = torch.ones_like(e)
    return -math.log(math.pi) - width.log() - 2.0 * torch.hypot(ones, e / width).log()


def _limit(mean: Tensor, variance: Tensor, unknown: Tensor, width: Tensor) -> Tensor:
    """t, by two steps of its equation; where little is known, at least what the prior itself rules out.

    Args:
        mean, variance: of the observation.
        unknown: share of the prior variance that is left at its place.
        width: of the outliers' distribution.
    """
    deviation, limit = variance.sqrt(), torch.zeros_like(mean)
    for _ in range(2):
        odds = _LOG_ODDS + _log_cauchy(mean.abs() + limit * deviation, width)
        limit = (-2.0 * (odds + deviation.log()) - math.log(2.0 * math.pi)).clamp_min(_LEAST**2).sqrt()
    return torch.where(unknown < UNKNOWN, limit, limit.clamp_min(_RULED_OUT))


def _reject(K: Tensor, A: Tensor, alpha: Tensor, e: Tensor, r: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reject one row after the other, in each member of a batch."""
    trusted, prior = torch.ones_like(e, dtype=torch.bool), K.diagonal(dim1=-2, dim2=-1)
    from_prior = e.abs() / (prior + r).sqrt()
    ruled_out = from_prior > _RULED_OUT
    rows = torch.arange(e.shape[-1], device=e.device)
    for _ in range(_most(e)):
        variance = 1.0 / torch.where(trusted, A.diagonal(dim1=-2, dim2=-1), torch.ones_like(e))
        size = (alpha * variance.sqrt()).abs()  # |e − μ| / S
        limit = _limit(e - alpha * variance, variance, (variance - r) / prior, width)
        # First those that the prior itself rules out: they make all others look bad.
        excess = torch.where(ruled_out, torch.finfo(e.dtype).max ** 0.5 + from_prior, size - limit)
        excess = torch.where(trusted, excess, -torch.inf)
        worst = excess.argmax(dim=-1, keepdim=True)
        found = excess.gather(-1, worst) > 0
        if not bool(found.any()):
            break
        one = (rows == worst) & found
        column = (A * one.unsqueeze(-2)).sum(dim=-1)  # zero where nothing is rejected
        pivot = torch.where(found, column.gather(-1, worst), torch.ones_like(width))
        A = A - column.unsqueeze(-1) * (column / pivot).unsqueeze(-2)
        A = A.masked_fill(one.unsqueeze(-1) | one.unsqueeze(-2), 0.0)
        trusted = trusted & ~one
        # Anew, not by an update: of an outlier far enough that would leave only rounding errors.
        alpha = (A @ torch.where(trusted, e, torch.zeros_like(e)).unsqueeze(-1)).squeeze(-1)
    return trusted, A, alpha


def _take_back(K: Tensor, A: Tensor, alpha: Tensor, e: Tensor, r: Tensor, trusted: Tensor, width: Tensor) -> Tensor:
    """Take rows back that the trusted ones predict, one after the other."""
    rows, prior = torch.arange(e.shape[-1], device=e.device), K.diagonal(dim1=-2, dim2=-1)
    for _ in range(_most(e)):
        if bool(trusted.all()):
            break
        mean, variance = _from_trusted(K, A, alpha, r)
        deviation = variance.sqrt()
        slack = _limit(mean, variance, (variance - r) / prior, width) - (e - mean).abs() / deviation
        slack = torch.where(trusted, -torch.inf, slack)
        best = slack.argmax(dim=-1, keepdim=True)
        found = slack.gather(-1, best) > 0
        if not bool(found.any()):
            break
        one = (rows == best) & found
        column = (K * one.unsqueeze(-2)).sum(dim=-1)
        g = torch.where(one, -1.0, (A @ column.unsqueeze(-1)).squeeze(-1))
        g = g / variance.gather(-1, best).sqrt() * found
        alpha = alpha - g * ((e - mean) / deviation).gather(-1, best)
        A = A + g.unsqueeze(-1) * g.unsqueeze(-2)
        trusted = trusted | one
    return trusted


def _from_trusted(K: Tensor, A: Tensor, alpha: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every observation given the trusted rows, those of rows that are not among them."""
    mean = (K @ alpha.unsqueeze(-1)).squeeze(-1)
    variance = K.diagonal(dim1=-2, dim2=-1) - ((K @ A) * K).sum(dim=-1)
    return mean, variance.clamp_min(0.0) + r
