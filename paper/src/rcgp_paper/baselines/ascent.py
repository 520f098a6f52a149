"""The ascent to the best variational posterior: natural-gradient steps, halved where needed and extrapolated.

A step of length one takes the sites that are best for the present moments as the next ones (see
:mod:`rcgp_paper.baselines.variational`). Such steps gain a digit or two each where the likelihood is nearly Gaussian,
but slowly where it is undecided about a point. Anderson extrapolation from the last few steps makes up for that; it is
kept only where the bound does not fall.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp_paper.baselines.sites import Sites, SolvedSites

__all__ = ["Step", "ascend"]

# Number of steps to the best q, the shortest one tried, and the number that an extrapolation looks back.
_STEPS, _SHORTEST_STEP, _MEMORY = 100, 2.0**-10, 4


class Step(NamedTuple):
    """Where a step led.

    Attributes:
        sites: the sites there.
        q: the posterior that they define.
        value: its bound.
        target: the sites that are best for its moments; at the best q they are its own.
    """

    sites: Sites
    q: SolvedSites
    value: float
    target: Sites


def ascend(take: Callable[[Sites], Step], here: Step, unit: Tensor, tolerance: float) -> SolvedSites:
    """The best q that steps from here lead to; the bound never falls on the way.

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
        if not gain >= -tolerance:  # nor where it is no number
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
        """The extrapolated sites, or none where there is nothing to look back to or no number."""
        if not self._steps:
            return None
        x, r = self._vectors(step)
        dx, dr = (
            torch.stack([now - then for then in before], dim=-1)
            for now, before in zip((x, r), zip(*self._steps, strict=True), strict=True)
        )
        if not bool(dr.isfinite().all()):  # which LAPACK does not survive
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
