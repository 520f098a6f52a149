"""Which rows to trust at given hyperparameters, decided by evidence.

A row is an observation of the GP or, with probability ε, one of a Cauchy distribution q around the prior mean, three
times as wide as the rows scatter. It is rejected where the prediction of it from the trusted rows, N(μ_i, S_i²), makes
it less likely than that, (1 − ε) N(y_i; μ_i, S_i²) < ε q(y_i): beyond t_i S_i from μ_i, with

    t_i² = −2 log [ ε/(1 − ε) · q · √(2π) S_i ],        q at μ_i ± t_i S_i.

Where the function is hardly known S_i is large and only what is far from everything is rejected; where it is known
well, the more surely so. Rows are rejected one at a time, the worst first, because an outlier makes its neighbours look
bad, too; then those that the trusted rows predict after all are taken back. Rejecting row i from A = (K + R)⁻¹ and
α = A e, and taking it back, are updates of rank one:

    A − a aᵀ/A_ii,    α − a α_i/A_ii,        a = A_·i,
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

__all__ = ["Trimmed", "outlier_log_odds", "trim"]

# Share of outliers that is expected, and the width of their distribution in units of the rows' scatter.
_SHARE, _WIDTH = 0.1, 3.0

# Standard deviations within which no row is rejected, and the share of rows that may be.
_LEAST, _MOST = 2.5, 0.4

_LOG_ODDS = math.log(_SHARE / (1.0 - _SHARE))
_NORMAL_MEDIAN = 0.6744897501960817  # median size of a standard normal variable


class Trimmed(NamedTuple):
    """Who is trusted, and what the trusted rows say of every row; each ``... x n``.

    Attributes:
        trusted: flags.
        mean, variance: of each observation, noise included, given the trusted rows other than itself.
        threshold: t_i S_i, beyond which an observation is not trusted. It does not depend on the row's own y, but for
            the width of q, a median.
    """

    trusted: Tensor
    mean: Tensor
    variance: Tensor
    threshold: Tensor


def trim(K: Tensor, residual: Tensor, row_noise: Tensor) -> Trimmed:
    """Reject the rows that the others make unlikely, at most two in five of them.

    Args:
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e from the prior mean.
        row_noise: ``... x n`` noise variances r.

    Returns:
        Who is trusted. Cost n³, n² for each row that is rejected, and n³ for each that is taken back.
    """
    K, e, r = broadcast(K, residual, row_noise)
    s = r.rsqrt()
    A = torch.cholesky_inverse(scaled_cholesky(K, s)) * s.unsqueeze(-1) * s.unsqueeze(-2)
    alpha = (A @ e.unsqueeze(-1)).squeeze(-1)
    width = _width(e, r)
    trusted, A, alpha = _reject(A, alpha, e, width)
    trusted = _take_back(K, A, alpha, e, r, trusted, width)
    # From the beginning: updates add up rounding errors. A row without weight is predicted by the others.
    smallest = smallest_weight(e.dtype)
    pseudo = PseudoData(torch.where(trusted, e, torch.zeros_like(e)), torch.where(trusted, s, smallest * s))
    mean, latent = leave_one_out(K, pseudo)
    variance = latent + r
    return Trimmed(trusted, mean, variance, _limit(mean, variance.sqrt(), width) * variance.sqrt())


def outlier_log_odds(residual: Tensor, row_noise: Tensor) -> Tensor:
    """log ε/(1 − ε) + log q(e_i): what rejecting a row is worth, ``... x n``."""
    return _LOG_ODDS + _log_cauchy(residual, _width(residual, row_noise))


def _width(e: Tensor, r: Tensor) -> Tensor:
    scatter = e.abs().quantile(0.5, dim=-1, keepdim=True) / _NORMAL_MEDIAN
    return _WIDTH * torch.maximum(scatter, r.sqrt().amin(dim=-1, keepdim=True))


def _log_cauchy(e: Tensor, width: Tensor) -> Tensor:
    # By way of hypot, whose square cannot overflow.
    ones = torch.ones_like(e)
    return -math.log(math.pi) - width.log() - 2.0 * torch.hypot(ones, e / width).log()


def _limit(mean: Tensor, deviation: Tensor, width: Tensor) -> Tensor:
    """t, by two steps of its equation."""
    limit = torch.zeros_like(mean)
    for _ in range(2):
        odds = _LOG_ODDS + _log_cauchy(mean.abs() + limit * deviation, width)
        limit = (-2.0 * (odds + deviation.log()) - math.log(2.0 * math.pi)).clamp_min(_LEAST**2).sqrt()
    return limit


def _reject(A: Tensor, alpha: Tensor, e: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reject one row after the other, in each member of a batch."""
    trusted = torch.ones_like(e, dtype=torch.bool)
    rows = torch.arange(e.shape[-1], device=e.device)
    for _ in range(int(_MOST * e.shape[-1])):
        variance = 1.0 / torch.where(trusted, A.diagonal(dim1=-2, dim2=-1), torch.ones_like(e))
        mean, deviation = e - alpha * variance, variance.sqrt()
        size = (alpha * deviation).abs()  # |e − μ| / S
        excess = torch.where(trusted, size - _limit(mean, deviation, width), -torch.inf)
        worst = excess.argmax(dim=-1, keepdim=True)
        found = excess.gather(-1, worst) > 0
        if not bool(found.any()):
            break
        one = (rows == worst) & found
        column = (A * one.unsqueeze(-2)).sum(dim=-1)  # zero where nothing is rejected
        pivot = torch.where(found, column.gather(-1, worst), torch.ones_like(width))
        alpha = torch.where(one, 0.0, alpha - column * alpha.gather(-1, worst) / pivot)
        A = A - column.unsqueeze(-1) * (column / pivot).unsqueeze(-2)
        A = A.masked_fill(one.unsqueeze(-1) | one.unsqueeze(-2), 0.0)
        trusted = trusted & ~one
    return trusted, A, alpha


def _take_back(K: Tensor, A: Tensor, alpha: Tensor, e: Tensor, r: Tensor, trusted: Tensor, width: Tensor) -> Tensor:
    """Take rows back that the trusted ones predict, one after the other."""
    rows = torch.arange(e.shape[-1], device=e.device)
    for _ in range(int(_MOST * e.shape[-1])):
        if bool(trusted.all()):
            break
        mean, variance = _from_trusted(K, A, alpha, r)
        deviation = variance.sqrt()
        slack = _limit(mean, deviation, width) - (e - mean).abs() / deviation
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
