"""The posterior influence function: how far one observation can move the posterior (Prop. 3.2).

    PIF(y_m) = KL( p(f | D) ‖ p(f | D with y_m replaced) ).

The two posteriors differ by one factor that involves f(x_m) alone, so their conditionals given f(x_m) agree and
the n-dimensional divergence equals the one-dimensional one between the marginals of f(x_m). Each marginal follows from
the cavity, the leave-one-out posterior N(μ, v) of f(x_m), by one Gaussian update: O(1) for each value of y_m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcgp.core.pseudo import PseudoData

__all__ = ["influence"]


def influence(mean: Tensor, variance: Tensor, before: PseudoData, after: PseudoData) -> Tensor:
    """KL divergence between the posteriors before and after one observation is replaced.

    Args:
        mean: ``...`` leave-one-out mean μ of f(x_m), relative to the prior mean.
        variance: ``...`` leave-one-out variance v of f(x_m).
        before: pseudo-data of the observation as it is, each entry ``...``.
        after: pseudo-data of its replacements, each entry broadcasting with ``...``.

    Returns:
        One divergence for each replacement; infinite where it exceeds the largest number.
    """
    # Natural parameters of the observation of f(x_m): precision a = s² and precision-weighted target b = s² z.
    s, s_new = before.root_precision, after.root_precision
    a, a_new = s.square(), s_new.square()
    b, b_new = s * (s * before.target), s_new * (s_new * after.target)
    # The update divides the cavity's variance v by a gain g = 1 + v a and moves its mean to (μ + v b) / g.
    gain, gain_new = 1.0 + variance * a, 1.0 + variance * a_new
    excess = variance * (a_new - a) / gain  # v_before / v_after − 1
    shift = ((a - a_new) * mean + b_new * gain - b * gain_new) / (gain * gain_new)  # change of the mean, over v
    # log1p is accurate near zero, the difference of logarithms near −1, where v_after is far larger than v_before.
    log_ratio = torch.where(excess > -0.5, excess.log1p(), gain_new.log() - gain.log())
    return 0.5 * (excess - log_ratio + shift.square() * variance * gain_new)
