"""Which rows to trust at given hyperparameters.

A row is rejected where the trusted rows contradict it: where it lies more than six standard deviations S_i from μ_i,
their prediction of it. No function is quite a sample of its prior, and three or four are common where it is steep.
Where the others say little of f(x_i), more than a quarter of the prior variance being left, they cannot contradict it,
and it is rejected only beyond ten.

Rows are rejected one at a time, because an outlier makes its neighbours look bad, too: first those that the prior rules
out, then the worst; at last those that the trusted rows predict after all are taken back. That begins from everyone,
and there ends where two outliers side by side confirm each other. So where any row is rejected it also begins from the
rows that annealing trusts (:mod:`rcgp.core.annealing`), and the end that makes all rows more likely is taken. Rejecting
row i from A = (K + R)⁻¹ and taking it back are updates of rank one::

    A − a aᵀ/A_ii,    a = A_·i,
    A + g gᵀ/S_i²,    μ + c (e_i − μ_i)/S_i²,    S² − c²/S_i²,    c = K_·i − K g,    g = A K_·i, then with g_i = −1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.annealing import annealed
from rcgp.core.linalg import broadcast, scaled_cholesky
from rcgp.core.loo import leave_one_out
from rcgp.core.pseudo import PseudoData
from rcgp.weights import smallest_weight

__all__ = ["UNKNOWN", "Trimmed", "outlier_log_odds", "trim"]

# Standard deviations within which no row is rejected: in general, and where little is known.
_CONTRADICTED, _RULED_OUT = 6.0, 10.0

#: Share of the prior variance left at a place beyond which rows there are not contradicted by others.
UNKNOWN = 0.25

# Share of rows that may be rejected.
_MOST = 0.4

# Share of outliers that is expected, and the width of their distribution in units of the rows' scatter.
_SHARE, _WIDTH = 0.1, 3.0

# Rows that are never enough to say of another that it is wrong.
_TOO_FEW = 2

_LOG_ODDS = math.log(_SHARE / (1.0 - _SHARE))
_NORMAL_MEDIAN = 0.6744897501960817  # median size of a standard normal variable


class Trimmed(NamedTuple):
    """Who is trusted, and what the trusted rows say of every row; each ``... x n``.

    Attributes:
        trusted: flags.
        mean, variance: of each observation, noise included, given the trusted rows other than itself.
        threshold: distance from its mean beyond which an observation is not trusted. It depends on the row's own y only
            as far as who is trusted does.
        unknown: share of the prior variance of f that is left at the row's place.
        log_odds: what rejecting a row is worth, :func:`outlier_log_odds`.
    """

    trusted: Tensor
    mean: Tensor
    variance: Tensor
    threshold: Tensor
    unknown: Tensor
    log_odds: Tensor


def trim(K: Tensor, residual: Tensor, row_noise: Tensor) -> Trimmed:
    """Reject the rows that the others contradict, at most two in five, and those that the prior rules out.

    Of the latter fewer than half of all rows, the farthest first; where there are more of them nothing can be said.

    Args:
        K: ``... x n x n`` kernel matrix.
        residual: ``... x n`` residuals e from the prior mean.
        row_noise: ``... x n`` noise variances r.

    Returns:
        Who is trusted, and moments that are differentiable given that. Cost n³, and n² for each row that is rejected or
        taken back.
    """
    K, e, r = broadcast(K, residual, row_noise)
    s, width = r.rsqrt(), _width(e, r)
    e = _bounded(e, width)
    log_odds = _log_odds(e, width)
    # In double precision: errors of updates add up.
    trusted = _trusted(*(tensor.detach().double() for tensor in (K, e, r, width, log_odds)))
    # From the beginning, too. A row without weight is predicted by the others.
    smallest = smallest_weight(e.dtype)
    pseudo = PseudoData(torch.where(trusted, e, torch.zeros_like(e)), torch.where(trusted, s, smallest * s))
    mean, latent = leave_one_out(K, pseudo)
    variance = latent + r
    prior = K.diagonal(dim1=-2, dim2=-1)
    unknown = latent / prior.clamp_min(torch.finfo(e.dtype).tiny)  # of nothing nothing is left
    threshold = _limit(latent, prior) * variance.sqrt()
    return Trimmed(trusted, mean, variance, threshold, unknown, log_odds)


def outlier_log_odds(residual: Tensor, row_noise: Tensor) -> Tensor:
    """log ε/(1 − ε) + log q(e_i), what rejecting a row is worth, beside the evidence of those that are trusted.

    That a row is an outlier has probability ε, and its distribution q is a Cauchy one around the prior mean, three
    times as wide as the rows scatter.

    Args:
        residual: ``... x n`` residuals e from the prior mean.
        row_noise: ``... x n`` noise variances r.

    Returns:
        ``... x n`` numbers. Cost O(n log n).
    """
    width = _width(residual, row_noise)
    return _log_odds(_bounded(residual, width), width)


def _log_odds(e: Tensor, width: Tensor) -> Tensor:
    return _LOG_ODDS - math.log(math.pi) - width.log() - (e / width).square().log1p()


def _width(e: Tensor, r: Tensor) -> Tensor:
    # The median by sorting, ten times as fast as torch.quantile.
    size, half = e.abs().sort(dim=-1).values, e.shape[-1] // 2
    median = 0.5 * (size[..., half : half + 1] + size[..., -half - 1 : e.shape[-1] - half])
    scatter = median / _NORMAL_MEDIAN
    return _WIDTH * torch.maximum(scatter, r.sqrt().amin(dim=-1, keepdim=True))


def _bounded(e: Tensor, width: Tensor) -> Tensor:
    """Residuals where everything is rejected, and products are still numbers."""
    far = torch.finfo(e.dtype).max ** 0.25 * width
    return torch.maximum(torch.minimum(e, far), -far)


def _trusted(K: Tensor, e: Tensor, r: Tensor, width: Tensor, log_odds: Tensor) -> Tensor:
    """Who is trusted, ``... x n`` flags: begun from everyone and from annealing, the more likely end."""
    everyone = torch.ones_like(e, dtype=torch.bool)
    first = _Trimming(K, e, r, everyone).run()
    if bool(first.all()):
        return first
    near = annealed(K, e, r, width / _WIDTH) <= _CONTRADICTED
    enough = near.sum(dim=-1, keepdim=True) > e.shape[-1] // 2
    second = _Trimming(K, e, r, torch.where(enough, near, first)).run()
    better = _log_density(K, e, r, second, log_odds) > _log_density(K, e, r, first, log_odds)
    return torch.where(better.unsqueeze(-1), second, first)


def _log_density(K: Tensor, e: Tensor, r: Tensor, trusted: Tensor, log_odds: Tensor) -> Tensor:
    """Log density of all rows, those that are not trusted as outliers; but for a constant, ``...``. Cost n³."""
    s = r.rsqrt() * trusted
    L = scaled_cholesky(K, s)
    solved = torch.linalg.solve_triangular(L, (s * e).unsqueeze(-1), upper=False).squeeze(-1)
    rows = torch.where(trusted, -0.5 * (solved.square() + (2.0 * math.pi * r).log()), log_odds)
    return (rows - L.diagonal(dim1=-2, dim2=-1).log()).sum(dim=-1)


class _Trimming:
    """Rejecting rows and taking them back, one at a time in each member of a batch.

    Args:
        K: ``... x n x n`` kernel matrices.
        e, r: ``... x n`` residuals and noise variances.
        trusted: ``... x n`` flags to begin with.
    """

    def __init__(self, K: Tensor, e: Tensor, r: Tensor, trusted: Tensor) -> None:
        n, self.shape = e.shape[-1], e.shape
        s = r.rsqrt() * trusted
        A = torch.cholesky_inverse(scaled_cholesky(K, s)) * s.unsqueeze(-1) * s.unsqueeze(-2)
        self.K, self.A = K.reshape(-1, n, n), A.reshape(-1, n, n)  # (K + R)⁻¹ of the trusted rows, else zeros
        self.e, self.r, self.trusted = e.reshape(-1, n), r.reshape(-1, n), trusted.reshape(-1, n).clone()
        self.prior = self.K.diagonal(dim1=-2, dim2=-1)
        self.most, self.half = max(0, int(_MOST * (n - _TOO_FEW))), (n - 1) // 2

    def run(self) -> Tensor:
        """Who is trusted in the end, ``... x n``."""
        self.reject()
        if not bool(self.trusted.all()):
            self.take_back()
        return self.trusted.reshape(self.shape)

    def reject(self) -> None:
        """Reject rows while there are any that the trusted ones contradict."""
        A, e, trusted = self.A, self.e, self.trusted
        from_prior = e.abs() / (self.prior + self.r).sqrt()
        alpha = (A @ (e * trusted).unsqueeze(-1)).squeeze(-1)
        for _ in range(self.half):
            rejected = (~trusted).sum(dim=-1, keepdim=True)
            variance = A.diagonal(dim1=-2, dim2=-1).masked_fill(~trusted, 1.0).reciprocal()
            excess = alpha.abs() * variance.sqrt() - self.limit(variance)  # |e − μ|/S − t
            excess = excess.masked_fill(rejected >= self.most, -torch.inf)
            # First those that the prior itself rules out: they make all others look bad.
            ruled_out = trusted & (from_prior > _RULED_OUT) & (rejected < self.half)
            excess = torch.where(ruled_out.any(dim=-1, keepdim=True), from_prior.where(ruled_out, -torch.inf), excess)
            some, row = _largest(excess.masked_fill(~trusted, -torch.inf))
            if len(some) == 0:
                return
            column = A[some, :, row]
            A[some] -= column.unsqueeze(-1) * (column / column.gather(-1, row.unsqueeze(-1))).unsqueeze(-2)
            A[some, row] = A[some, :, row] = torch.zeros_like(column)
            trusted[some, row] = False
            # Anew, not by an update: of an outlier far enough that would leave only rounding errors.
            alpha = (A @ (e * trusted).unsqueeze(-1)).squeeze(-1)

    def take_back(self) -> None:
        """Take rows back while there are any that the trusted ones predict."""
        K, A, e, trusted = self.K, self.A, self.e, self.trusted
        # Of the rows that are not trusted: the others are in A and know themselves.
        mean = (K @ (A @ (e * trusted).unsqueeze(-1))).squeeze(-1)
        variance = self.r + (self.prior - ((K @ A) * K).sum(dim=-1)).clamp_min(0.0)
        for _ in range(self.half):
            error = e - mean
            slack = self.limit(variance) - error.abs() / variance.sqrt()
            some, row = _largest(slack.masked_fill(trusted, -torch.inf))
            if len(some) == 0:
                return
            column = K[some, :, row]
            g = (A[some] @ column.unsqueeze(-1)).squeeze(-1)
            covariance = column - (K[some] @ g.unsqueeze(-1)).squeeze(-1)
            own = variance[some, row].unsqueeze(-1)
            mean[some] += covariance * (error[some, row].unsqueeze(-1) / own)
            variance[some] = torch.maximum(variance[some] - covariance.square() / own, self.r[some])
            g = g.scatter(-1, row.unsqueeze(-1), -1.0)
            A[some] += g.unsqueeze(-1) * (g / own).unsqueeze(-2)
            trusted[some, row] = True

    def limit(self, variance: Tensor) -> Tensor:
        """How many standard deviations off observations with these variances may be, ``b x n``."""
        return _limit(variance - self.r, self.prior)


def _limit(latent: Tensor, prior: Tensor) -> Tensor:
    """How many standard deviations off observations may be where so much is left of the prior variance of f."""
    return torch.where(latent <= UNKNOWN * prior, _CONTRADICTED, _RULED_OUT).to(latent)


def _largest(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Members of a batch in which the largest of ``b x n`` is above zero, and its row in each."""
    value, row = excess.max(dim=-1)
    some = (value > 0).nonzero().squeeze(-1)
    return some, row[some]
