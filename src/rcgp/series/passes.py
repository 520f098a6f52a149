"""The passes of :mod:`rcgp.series.filtering` over the rows of a stretch, compiled for each small layout of the state.

Small states have code of their own, with unrolled loops; all others share theirs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numba import boolean, float64, int64, njit, void

from rcgp.series.filtering import (
    LAYOUT,
    PART,
    add_slopes,
    assign,
    layout_arrays,
    observe,
    predict,
    read,
    unobserve,
    unpredict,
)

__all__ = ["Passes", "by_data", "compiled"]

# States up to this size have code of their own, with unrolled loops.
_SMALL = 8

# Determinants are multiplied up to this size before a logarithm is taken.
_LARGE = 1e100

# Every function that is kept has one signature. Several would share an index of files, and two processes that compile
# different ones at the same time could each load the other's code.
_VECTOR, _MATRIX, _INDICES = float64[::1], float64[:, ::1], int64[::1]
_ROWS = _MATRIX, _MATRIX, _INDICES, _MATRIX, _INDICES, _VECTOR, _VECTOR
_STORES = _MATRIX, float64[:, :, ::1]
_SUMS = _VECTOR, _MATRIX, _VECTOR, _MATRIX
_FORWARD = *_ROWS, _VECTOR, _MATRIX, *_STORES, boolean
_BACKWARD = *_ROWS, *_STORES, _VECTOR, _MATRIX, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, *_SUMS, boolean


class Passes(NamedTuple):
    """The compiled functions of one layout of the state."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


@njit("void(float64[::1], float64[::1], float64[::1], float64[::1])", cache=True, error_model="numpy")
def by_data(z, w, mean, variance):
    """Leave-one-out moments μ and v become derivatives of ℓ by pseudo-targets z and root precisions s = √w, in place.

    ∂ℓ/∂z = −w (z − μ) / (1 + w v) and ∂ℓ/∂s = −s (v / (1 + w v) + (z − μ)² / (1 + w v)²).
    """
    for i in range(z.size):
        shrink = 1.0 / (1.0 + w[i] * variance[i])
        score = (z[i] - mean[i]) * shrink
        mean[i] = -w[i] * score
        variance[i] = -math.sqrt(w[i]) * (variance[i] * shrink + score * score)


@njit(**PART)
def _forward(
    D, N, sizes, starts, flats, single, A, Q, which, H, place, z, w, m, P, store_m, store_P, score
):  # fmt: skip
    """Rows of one stretch of time, from the state (m, P) after the row before it; that after its last row is left.

    Args:
        A, Q: transitions, one in each row.
        which: transition into each row; −1 for none, a row at the time of the one before.
        H, place: vectors h, and which of them a row observes.
        z, w: targets and squared precisions.
        m, P: the state, changed in place.
        store_m, store_P: where the predictions of each row are kept, or arrays of length 0.
        score: whether to compute the stretch's part of ℓ, which is returned.
    """
    new_m, new_P, AP, Ph = np.empty(D), np.empty((D, D)), np.empty((D, D)), np.empty(D)
    keep = store_m.shape[0] > 0
    value, scales = 0.0, 1.0
    for i in range(z.size):
        if which[i] >= 0:
            predict(D, N, sizes, starts, flats, A, Q, which[i], m, P, new_m, new_P, AP)
        else:
            assign(D, m, P, new_m, new_P)
        if keep:
            for r in range(D):
                store_m[i, r] = new_m[r]
                for c in range(D):
                    store_P[i, r, c] = new_P[r, c]
        scale, square = observe(D, single, H, place[i], z[i], w[i], new_m, new_P, m, P, Ph)
        if score:
            value -= 0.5 * square
            if scales > _LARGE or scale > _LARGE:
                value -= 0.5 * math.log(scales)
                scales = 1.0
            scales *= scale
    return value - 0.5 * math.log(scales)


@njit(**PART)
def _backward(
    D, N, sizes, starts, flats, single, A, Q, which, H, place, z, w, store_m, store_P, lam, Lam, mean, variance,
    gaps, times, reach, by_drift, by_diffusion, by_scale, grad_H, gradient,
):  # fmt: skip
    """The stretch of :func:`_forward`, from its last row to its first.

    Args:
        lam, Lam: λ⁺ and Λ⁺ after its last row, changed in place to those after the row before the stretch; where its
            first row has no transition, to those before that row.
        mean, variance: leave-one-out moments of each row, written here.
        gaps, times: Δ and t of each transition.
        reach: gap from which on the parameters of a block change nothing.
        by_drift, by_diffusion, by_scale: sums of Δ (P W − m λᵀ), ½ Δ tᵏ W and ½ tr(W Q), flat as A is, and for each
            block; added to.
        grad_H: derivative of ℓ by H, added to.
        gradient: whether they are.
    """
    Ph, k, u, t = np.empty(D), np.empty(D), np.empty(D), np.empty(D)
    m, P, room = np.empty(D), np.empty((D, D)), np.empty((D, D))
    for i in range(z.size - 1, -1, -1):
        for r in range(D):
            m[r] = store_m[i, r]
            for c in range(D):
                P[r, c] = store_P[i, r, c]
        n, g = place[i], which[i]
        f, p = read(D, single, H, n, m, P, Ph)
        e = z[i] - f
        scale = 1.0 + w[i] * p
        gain = w[i] / scale
        a, b = 0.0, 0.0
        for r in range(D):
            total = 0.0
            for c in range(D):
                total += Lam[r, c] * Ph[c]
            u[r] = total  # Λ⁺ P h
            a += Ph[r] * total
            b += Ph[r] * lam[r]
        share = 1.0 / (scale + w[i] * a)
        mean[i] = f + (w[i] * e * a - scale * b) * share
        variance[i] = max((scale * p - a) * share, 0.0)
        unobserve(D, single, H, n, e, scale, gain, a, b, Ph, u, lam, Lam, k, t)
        if gradient and not single:
            # By h: α E[x] − s² Cov[x] h, of the state given all rows, m − P λ⁻ and P⁺ − P⁺ Λ⁺ P⁺ with P⁺h = Ph / D.
            alpha = w[i] * (z[i] - mean[i]) / (1.0 + w[i] * variance[i])
            for r in range(D):
                state, covariance = m[r], Ph[r] * (1.0 + gain * a)
                for c in range(D):
                    state -= P[r, c] * lam[c]
                    covariance -= P[r, c] * u[c]
                grad_H[n, r] += alpha * state - gain * covariance
        if g < 0:
            continue
        if gradient:
            add_slopes(
                D, N, sizes, starts, flats, Q, g, gaps[g], times[g], reach, m, P, lam, Lam, room,
                by_drift, by_diffusion, by_scale,
            )  # fmt: skip
        unpredict(D, N, sizes, starts, flats, A, g, lam, Lam, t, room)


def _named(*layout: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name a function after its layout: numba then keeps its code in a file of its own."""
    digest = hashlib.sha256(repr(layout).encode()).hexdigest()[:16]

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__qualname__ = f"{function.__name__}-{digest}"
        return function

    return named


@lru_cache(maxsize=64)
def compiled(blocks: tuple[int, ...], single: bool) -> Passes:
    """Filter and backward pass, :func:`_forward` and :func:`_backward`, for a state of blocks of these sizes.

    Small states have code of their own, all others share theirs.

    Args:
        blocks: size of each block.
        single: whether h is the first unit vector, as for a kernel of one term: some differences are then exact.
    """
    D: Any = sum(blocks)
    N: Any = len(blocks)
    alone: Any = single
    if not single:
        # No literals to numba: the parts of the passes are then compiled once for all such layouts, and later inlined.
        D, N, alone = np.int64(D), np.int64(N), np.bool_(single)
    sizes, starts, flats = layout_arrays(blocks)
    if D > _SMALL:
        return Passes(*(partial(function, sizes, starts, flats, single) for function in _for_any_layout()))

    @njit(float64(*_FORWARD), cache=True, error_model="numpy")
    @_named(blocks, single)
    def forward(A, Q, which, H, place, z, w, m, P, store_m, store_P, score):
        return _forward(
            D, N, sizes, starts, flats, alone, A, Q, which, H, place, z, w, m, P, store_m, store_P, score
        )  # fmt: skip

    @njit(void(*_BACKWARD), cache=True, error_model="numpy")
    @_named(blocks, single)
    def backward(
        A, Q, which, H, place, z, w, store_m, store_P, lam, Lam, mean, variance,
        gaps, times, reach, by_drift, by_diffusion, by_scale, grad_H, gradient,
    ):  # fmt: skip
        _backward(
            D, N, sizes, starts, flats, alone, A, Q, which, H, place, z, w, store_m, store_P, lam, Lam, mean, variance,
            gaps, times, reach, by_drift, by_diffusion, by_scale, grad_H, gradient,
        )  # fmt: skip

    return Passes(forward, backward)


@lru_cache(maxsize=1)
def _for_any_layout() -> Passes:
    """The passes with the layout as an argument."""
    layout = LAYOUT, LAYOUT, LAYOUT, boolean

    @njit(float64(*layout, *_FORWARD), cache=True, error_model="numpy")
    def forward(sizes, starts, flats, single, A, Q, which, H, place, z, w, m, P, store_m, store_P, score):
        return _forward(
            m.size, sizes.size, sizes, starts, flats, single, A, Q, which, H, place, z, w, m, P,
            store_m, store_P, score,
        )  # fmt: skip

    @njit(void(*layout, *_BACKWARD), cache=True, error_model="numpy")
    def backward(
        sizes, starts, flats, single, A, Q, which, H, place, z, w, store_m, store_P, lam, Lam, mean, variance,
        gaps, times, reach, by_drift, by_diffusion, by_scale, grad_H, gradient,
    ):  # fmt: skip
        _backward(
            lam.size, sizes.size, sizes, starts, flats, single, A, Q, which, H, place, z, w, store_m, store_P, lam, Lam,
            mean, variance, gaps, times, reach, by_drift, by_diffusion, by_scale, grad_H, gradient,
        )  # fmt: skip

    return Passes(forward, backward)
