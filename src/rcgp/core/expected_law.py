"""The expected log density of the noise law under q(f) = N(m, v): the terms of a variational bound.

For any responsibilities ρ, Jensen's inequality gives

    E log Σ_k π_k p_k(y | f) ≥ Σ_k ρ_k (E log p_k(y | f) + log π_k/ρ_k).

The expectation of a normal log density is closed, and so is the largest of these bounds,

    log Σ_k π_k exp(E log N(y; f, σ²s_k²)) + …,      E log N(y; f, σ²s_k²) = log N(y; m, σ²s_k²) − v / (2σ²s_k²),

whose ρ_k are the shares of the terms. It is exact for one component, and as v → 0. Its slope in m is that of weighted
least squares with w̃² = Σ_k ρ_k / s_k².

An outlier adds π_o o, where o = C(e) H / Z is the *mean* of its density under q(f), as in the exact model's bound F
(:mod:`rcgp.core.noise_law`). So the sum is a lower bound given the densities o of outliers, and log o is no bound by
itself: log E[o] ≥ E[log o]. The two differ only for rows inside the gap, about 4σ around f, where outliers hardly
count: beside quadrature the sum stays below E log p(y | f) for laws with a tail, and exceeds it by at most 0.02 where
there is none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rcgp.weights.noise_law import SCALES, Responsibilities

__all__ = ["expected_responsibilities"]


def expected_responsibilities(
    residual: Tensor,
    mean: Tensor,
    variance: Tensor,
    noise: Tensor,
    log_shares: Tensor,
    width: Tensor,
    share: Tensor | None = None,
) -> Responsibilities:
    """As :func:`rcgp.weights.noise_law.responsibilities`, for the expected log density. Cost O(n).

    Args:
        residual: ``... x n`` residuals e = y − m(x).
        mean, variance: ``... x n`` mean m and variance v of f(x_i) under q, relative to the prior mean.
        noise: ``... x n`` noise variance σ² of each row, or broadcasting with it.
        log_shares: ``... x 1 x 5`` log π of the scales and, last, of outliers.
        width: ``... x 1`` half-width b of the density of outliers.
        share: ``... x n x 5`` responsibilities ρ that are given. Default: the best ones. With given ones the bound is
            Σ_k ρ_k (E log p_k + log π_k/ρ_k), and o is held fixed, as in the exact model's evidence.

    Returns:
        Responsibilities whose ``log_density`` is the bound on E log p(y_i | f_i).
    """
    residual, mean, variance, noise = torch.broadcast_tensors(residual, mean, variance, noise)  # type: ignore[no-untyped-call]
    blank = torch.empty_like(residual)
    rows = Responsibilities(blank, blank, residual, residual - mean, variance, noise, width)
    limit = torch.finfo(residual.dtype).max ** 0.4  # divided before it is squared: 1e300 has no square
    std = noise.sqrt()
    squares = (rows.deviation / std).clamp(-limit, limit).square() + variance / noise
    scales = residual.new_tensor(SCALES).unsqueeze(-1)  # 4 x 1
    good = -0.5 * math.log(2.0 * math.pi) - (std.unsqueeze(-2) * scales).log()
    good = good - 0.5 * squares.unsqueeze(-2) / scales.square()  # ... x 4 x n
    if share is not None:
        terms = torch.cat([good, rows.log_outlier.detach().unsqueeze(-2)], dim=-2) + log_shares.mT
        share = share.expand(*residual.shape, terms.shape[-2])
        bound = (share.mT * torch.where(share.mT > 0.0, terms, 0.0)).sum(dim=-2) + torch.special.entr(share).sum(dim=-1)
        return rows._replace(share=share, log_density=bound)
    terms = torch.cat([good, rows.log_outlier.unsqueeze(-2)], dim=-2) + log_shares.mT
    return rows._replace(share=terms.softmax(dim=-2).mT, log_density=terms.logsumexp(dim=-2))
