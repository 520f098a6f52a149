"""Linear-time inference for a state-space kernel: the evidence with its gradient, and leave-one-out, in O(n).

Rows are worked through in stretches of time whose transitions fit into the processor's cache. The forward pass keeps
the predictions of all rows for the backward pass where they fit into 64 MB. Otherwise it keeps the state before each
stretch, and the backward pass computes the predictions again. So memory is O(n) for inputs and results, whatever the
size of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.series import transitions
from rcgp.series.kernels import Layout, Term, layout_of
from rcgp.series.passes import by_data, compiled
from rcgp.series.transitions import COSINE, LINEAR

__all__ = ["Axis", "Moments", "StateSpace", "evidence"]

Array = NDArray[np.float64]

# Numbers that a stretch holds: 2 MB, which a core's cache does. Numbers of predictions that are kept: 64 MB.
_STRETCH, _KEPT = 2**18, 2**23

# A Matérn kernel after this many lengthscales over √(2ν): e^(−50) 50⁴ is below rounding errors. Its parameters change
# nothing of the state any more, and rounding errors times a long gap would.
_FORGOTTEN = 50.0


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows: their gaps, the times at the ends of these, and the gap before each row, −1 for none."""

    rows: slice
    gaps: Array
    times: Array
    which: NDArray[np.int64]


class Axis:
    """Times in order, cut into stretches.

    Args:
        times: ``n`` times, sorted.
        place: ``n`` which of the rows of H each row observes. Default: the first.
    """

    def __init__(self, times: Array, place: NDArray[np.int64] | None = None) -> None:
        self.times = np.ascontiguousarray(times, dtype=np.float64)
        self.place = np.zeros(len(times), dtype=np.int64) if place is None else np.ascontiguousarray(place)
        #: Whether rows are given in this order already.
        self.as_given = False
        self._stretches: dict[tuple[int, bool], list[Stretch]] = {}

    def stretches(self, layout: Layout, copies: int = 1) -> list[Stretch]:
        """Stretches for a layout. Equal gaps in one of them are kept once where they are many, unless transitions
        depend on time.
        """
        size, squares = copies * sum(layout.blocks), copies * sum(block**2 for block in layout.blocks)
        rows = max(16, _STRETCH // (size + size**2 + 4 * squares))
        key = rows, layout.depends_on_time
        if key not in self._stretches:
            gaps = np.diff(self.times, prepend=self.times[:1])
            self._stretches[key] = [
                self._cut(slice(start, min(start + rows, len(gaps))), gaps, layout.depends_on_time)
                for start in range(0, len(gaps), rows)
            ]
        return self._stretches[key]

    def _cut(self, rows: slice, gaps: Array, depends_on_time: bool) -> Stretch:
        own, times = gaps[rows], self.times[rows]
        moved = own > 0.0
        which = np.full(len(own), -1, dtype=np.int64)
        unique, first, inverse = np.unique(own[moved], return_index=True, return_inverse=True)
        if depends_on_time or 2 * len(unique) > len(inverse):  # memory is read fastest in the order of rows
            which[moved] = np.arange(int(moved.sum()))
            return Stretch(rows, own[moved], times[moved], which)
        which[moved] = inverse
        return Stretch(rows, unique, times[moved][first], which)


@dataclass(frozen=True)
class Moments:
    """What the passes found: ℓ, leave-one-out mean and variance of f in each row, and derivatives of ℓ if asked for."""

    value: float
    mean: Array
    variance: Array
    coefficients: Array
    thetas: Array
    H: Array


class Slopes(NamedTuple):
    """Of which gradients are made: sums over the rows, for each block (:mod:`rcgp.series.filtering`)."""

    reach: Array
    by_drift: Array
    by_diffusion: Array
    by_scale: Array

    @classmethod
    def of(cls, space: StateSpace) -> Slopes:
        """Sums of zero."""
        layout, flat = space.layout, space.flat * space.copies
        powers = 1 + 2 * max((kinds.count(LINEAR) for kinds in layout.factors), default=0)
        rates, f = [], 0
        for kinds in layout.factors:
            own = space.thetas[f : f + len(kinds)]
            rates.append(sum(theta for kind, theta in zip(kinds, own, strict=True) if kind < COSINE))
            f += len(kinds)
        reach = np.tile([_FORGOTTEN / rate if rate > 0.0 else np.inf for rate in rates], space.copies)
        return cls(
            reach, np.zeros(flat), np.zeros((powers if layout.depends_on_time else 1, flat)), np.zeros_like(reach)
        )


class StateSpace:
    """A kernel at given hyperparameters, and the vectors h by which rows observe its state.

    Args:
        terms: the kernel's terms.
        H: ``k x D`` vectors h, for ``copies`` independent copies of the state. Default: one, the value of the process.
        copies: independent copies of the process, which share its parameters.
    """

    def __init__(self, terms: Sequence[Term], H: Array | None = None, copies: int = 1) -> None:
        layout = layout_of(list(terms))
        with torch.no_grad():
            coefficients = np.array([float(term.coefficient) for term in terms])
            thetas = np.array([float(theta) for term in terms for _, theta in term.factors])
        self.layout, self.copies = layout, copies
        self.kinds, self.ends = np.array(layout.kinds, dtype=np.int64), np.array(layout.ends, dtype=np.int64)
        self.coefficients, self.thetas = coefficients, thetas
        self.H = layout.values[np.newaxis] if H is None else np.ascontiguousarray(H)
        single = H is None and len(layout.blocks) == 1
        self.blocks = layout.blocks * copies
        self.flat = sum(block**2 for block in layout.blocks)
        self.passes = compiled(self.blocks, single)

    @property
    def size(self) -> int:
        """D, the size of the state."""
        return sum(self.blocks)

    def prior(self, time: float) -> Array:
        """Prior covariance of the state at a time, ``D x D``."""
        P, start = np.zeros((self.size, self.size)), 0
        own = [
            c * transitions.prior(kinds, time) for c, kinds in zip(self.coefficients, self.layout.factors, strict=True)
        ]
        for block in own * self.copies:
            P[start : start + len(block), start : start + len(block)] = block
            start += len(block)
        return P

    def fill(self, gaps: Array, times: Array, room: Array | None = None) -> tuple[Array, Array]:
        """A and Q of each gap, flat; written into ``room``, ``2 x g x flat`` or longer, where given."""
        A, Q = np.empty((2, len(gaps), self.flat)) if room is None else room[:, : len(gaps)]
        transitions.fill(self.ends, self.kinds, self.coefficients, self.thetas, gaps, times, A, Q)
        if self.copies > 1:
            A, Q = np.tile(A, (1, self.copies)), np.tile(Q, (1, self.copies))
        return A, Q

    def filtered(self, times: Array, z: Array, w: Array) -> tuple[Array, Array]:
        """Mean and covariance of the state at the last time, given all rows. Cost O(n)."""
        axis = Axis(times)
        return self._forward(axis, axis.stretches(self.layout), z, w, score=False)[1][-1]

    def evidence(self, axis: Axis, z: Array, w: Array) -> float:
        """ℓ, without gradient and leave-one-out. Cost O(n)."""
        return self._forward(axis, axis.stretches(self.layout, self.copies), z, w, score=True)[0]

    def moments(self, axis: Axis, z: Array, w: Array, *, gradient: bool = False) -> Moments:
        """ℓ, leave-one-out and, if asked for, derivatives of ℓ. Cost O(n).

        Args:
            axis: the times.
            z, w: ``n`` pseudo-targets and squared precisions in the order of time; w = 0 is a missing value, whose
                leave-one-out moments are those of the posterior.
            gradient: whether derivatives are wanted.
        """
        n, D = len(z), self.size
        stretches = axis.stretches(self.layout, self.copies)
        largest = max(stretch.rows.stop - stretch.rows.start for stretch in stretches)
        keep = n * (D + D * D) <= _KEPT
        kept = np.empty((n if keep else largest, D)), np.empty((n if keep else largest, D, D))
        if keep:
            value, states = self._forward(axis, stretches, z, w, score=True, kept=kept)
            states.pop()
        else:
            value, states = self._forward(axis, stretches[:-1], z, w, score=False)
        mean, variance = np.empty(n), np.empty(n)
        lam, Lam = np.zeros(D), np.zeros((D, D))
        room = np.empty((2, largest, self.flat))
        sums, d_H = Slopes.of(self), np.zeros_like(self.H)
        for stretch, (m0, P0) in zip(reversed(stretches), reversed(states), strict=True):
            rows = stretch.rows
            A, Q = self.fill(stretch.gaps, stretch.times, room)
            own = A, Q, stretch.which, self.H, axis.place[rows], z[rows], w[rows]
            store = [part[rows if keep else slice(rows.stop - rows.start)] for part in kept]
            if not keep:
                value += self.passes.forward(*own, m0.copy(), P0.copy(), *store, True)
            results = mean[rows], variance[rows], stretch.gaps, stretch.times, *sums, d_H, gradient
            self.passes.backward(*own, *store, lam, Lam, *results)
        # Observations of 1e300: the search sees that the gradient is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            start = 0.5 * (np.outer(lam, lam) - Lam)
            by_coefficients, by_thetas = self._by_parameters(sums, start, float(axis.times[0]))
        return Moments(value, mean, variance, by_coefficients, by_thetas, d_H)

    def draw(self, axis: Axis, random: np.random.Generator) -> Array:
        """A sample of the prior: of h·x in each row, ``n``. Cost O(n)."""
        values = np.empty(len(axis.times))
        root, simulate = transitions.simulation()
        x = root(self.prior(float(axis.times[0]))) @ random.standard_normal(self.size)
        blocks = np.array(self.blocks, dtype=np.int64)
        for stretch in axis.stretches(self.layout, self.copies):
            rows = stretch.rows
            A, Q = self.fill(stretch.gaps, stretch.times)
            normal = random.standard_normal((rows.stop - rows.start, self.size))
            simulate(A, Q, stretch.which, blocks, self.H, axis.place[rows], normal, x, values[rows])
        return values

    def _by_parameters(self, sums: Slopes, start: Array, time: float) -> tuple[Array, Array]:
        """Derivatives of ℓ by coefficients and parameters, given the sums of a pass and ∂ℓ/∂P at the first time."""
        by_coefficients, by_thetas = np.zeros_like(self.coefficients), np.zeros_like(self.thetas)
        D, o, f = 0, 0, 0
        for b, d in enumerate(self.blocks):
            t = b % len(self.layout.blocks)
            f = f if t else 0
            kinds, c, flat = self.layout.factors[t], self.coefficients[t], slice(o, o + d * d)
            if c > 0.0:
                by_coefficients[t] += sums.by_scale[b] / c
            by_coefficients[t] += (start[D : D + d, D : D + d] * transitions.prior(kinds, time)).sum()
            drift, diffusion = sums.by_drift[flat].reshape(d, d), sums.by_diffusion[:, flat].reshape(-1, d, d)
            for F, N in transitions.slopes(kinds):
                by_thetas[f] += (F * drift.T).sum() + c * sum((n * V).sum() for n, V in zip(N, diffusion, strict=False))
                f += 1
            D, o = D + d, o + d * d
        return by_coefficients, by_thetas

    def _forward(
        self,
        axis: Axis,
        stretches: Sequence[Stretch],
        z: Array,
        w: Array,
        *,
        score: bool,
        kept: tuple[Array, Array] | None = None,
    ) -> tuple[float, list[tuple[Array, Array]]]:
        """ℓ of these stretches, if asked for, and the state before each of them and after the last.

        Predictions of all rows are written into ``kept``, where given.
        """
        m, P = np.zeros(self.size), self.prior(float(axis.times[0]))
        states, value = [(m.copy(), P.copy())], 0.0
        kept = kept or (np.empty((0, self.size)), np.empty((0, self.size, self.size)))
        room = np.empty((2, max((len(stretch.gaps) for stretch in stretches), default=0), self.flat))
        for stretch in stretches:
            rows = stretch.rows
            A, Q = self.fill(stretch.gaps, stretch.times, room)
            store = kept[0][rows], kept[1][rows]
            value += self.passes.forward(
                A, Q, stretch.which, self.H, axis.place[rows], z[rows], w[rows], m, P, *store, score
            )
            states.append((m.copy(), P.copy()))
        return value, states


def evidence(
    terms: Sequence[Term], axis: Axis, z: Tensor, s: Tensor, H: Tensor | None = None, copies: int = 1
) -> Tensor:
    """ℓ of pseudo-data in the order of time, differentiable once in terms, targets, precisions and H. Cost O(n).

    Args:
        terms: the kernel's terms.
        axis: the times.
        z, s: ``n`` pseudo-targets and root precisions, float64.
        H, copies: as for :class:`StateSpace`.
    """
    coefficients = torch.stack([term.coefficient for term in terms])
    factors = [theta for term in terms for _, theta in term.factors]
    thetas = torch.stack(factors) if factors else coefficients.new_zeros(0)
    value: Tensor = _Evidence.apply(coefficients, thetas, z, s, H, terms, axis, copies)  # type: ignore[no-untyped-call]
    return value


class _Evidence(torch.autograd.Function):
    """(coefficients, thetas, z, s, H) ↦ ℓ."""

    @staticmethod
    def forward(
        ctx: Any,
        coefficients: Tensor,
        thetas: Tensor,
        z: Tensor,
        s: Tensor,
        H: Tensor | None,
        terms: Sequence[Term],
        axis: Axis,
        copies: int,
    ) -> Tensor:
        space = StateSpace(terms, None if H is None else H.detach().numpy(), copies)
        targets, w = z.detach().numpy(), s.detach().square().numpy()
        if not any(ctx.needs_input_grad):
            return z.new_tensor(space.evidence(axis, targets, w))
        found = space.moments(axis, targets, w, gradient=True)
        by_data(targets, w, found.mean, found.variance)
        parts = found.coefficients, found.thetas, found.mean, found.variance, found.H
        ctx.save_for_backward(*(torch.from_numpy(part) for part in parts))
        return z.new_tensor(found.value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_coefficients, by_thetas, by_z, by_s, by_H = ctx.saved_tensors
        by_H = grad * by_H if ctx.needs_input_grad[4] else None
        return grad * by_coefficients, grad * by_thetas, grad * by_z, grad * by_s, by_H, None, None, None
