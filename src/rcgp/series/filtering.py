"""The Kalman filter and its backward pass on pseudo-data, compiled by numba for each layout of the state.

Row i, in the order of time, observes z_i = h·x + noise of variance 1/s_i²; s_i = 0 is a missing value. Forwards, with
the prediction N(m, P) of the state from the rows before it, p = hPh and D = 1 + s²p,

    m⁺ = m + P h s² e / D,      P⁺ = P − (P h)(P h)ᵀ s² / D,      e = z − h·m,      ℓ = −½ Σ (log D + s² e² / D),

the part of the evidence that involves the kernel (:mod:`rcgp.core.exact`). Backwards, λ and Λ hold what later rows
say of the state (Bryson and Frazier's smoother): given all rows it is N(m − P λ, P − P Λ P), and

    λ⁻ = (I − k hᵀ)ᵀ λ⁺ − h s² e / D,      Λ⁻ = (I − k hᵀ)ᵀ Λ⁺ (I − k hᵀ) + h hᵀ s² / D,      k = P h s² / D,

then λ⁺ = Aᵀλ⁻, Λ⁺ = AᵀΛ⁻A for the row before. No matrix is inverted. They are the derivatives of ℓ as well,
∂ℓ/∂m = −λ and ∂ℓ/∂P = ½ (λ λᵀ − Λ), so that one pass gives the gradient and leave-one-out: with a = (P h)ᵀ Λ⁺ P h and
b = (P h)·λ⁺ the prediction of f_i from all other rows has

    μ_i = h·m + (s² e a − D b) / (D + s² a),        v_i = (D p − a) / (D + s² a).

A state consists of independent blocks, so that A and Q are block diagonal; A and Q are flat, block after block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

__all__ = ["Passes", "by_data", "compiled", "kept_by_layout"]

# States up to this size are left to the compiler as they are written.
_SMALL = 8

# Precision of an observation, in units of that of its prediction, from which on an update loses more than four digits.
_PRECISE = 1e4


class Passes(NamedTuple):
    """The compiled functions of one layout of the state."""

    predict: Callable[..., Any]
    observe: Callable[..., Any]
    assign: Callable[..., Any]
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@njit(cache=True)
def by_data(z, w, mean, variance, by_z, by_s):
    """Derivatives of ℓ by pseudo-targets z and root precisions s = √w, from leave-one-out moments μ and v.

    ∂ℓ/∂z = −w (z − μ) / (1 + w v) and ∂ℓ/∂w = −½ (v / (1 + w v) + (z − μ)² / (1 + w v)²).
    """
    for i in range(z.size):
        shrink = 1.0 / (1.0 + w[i] * variance[i])
        score = (z[i] - mean[i]) * shrink
        by_z[i] = -w[i] * score
        by_s[i] = -math.sqrt(w[i]) * (variance[i] * shrink + score * score)


def kept_by_layout(*layout: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name a function after its layout, so that numba keeps its compiled code in a file of its own.

    All layouts would else share one index, and two processes that compile for two layouts at the same time could each
    load the other's code.
    """
    digest = hashlib.sha256(repr(layout).encode()).hexdigest()[:16]

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__qualname__ = f"{function.__name__}-{digest}"
        return function

    return named


@lru_cache(maxsize=64)
def compiled(blocks: tuple[int, ...], single: bool) -> Passes:
    """Filter and backward pass for a state of blocks of these sizes.

    Sizes are constants of the compiled code, which unrolls the loops of small states.

    Args:
        blocks: size of each block.
        single: whether h is the first unit vector, as for a kernel of one term: some differences are then exact.
    """
    D = sum(blocks)
    N = len(blocks)
    # Sums of large states are added up several at a time, in any order: up to three times as fast.
    fast = {"reassoc", "contract"} if D > _SMALL else False
    sizes = np.array(blocks)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    flats = np.concatenate([[0], np.cumsum(sizes**2)[:-1]]).astype(np.int64)

    @register_jitable(inline="always")
    def predict(A, Q, m, P, new_m, new_P, AP):
        """m, P ↦ A m, A P Aᵀ + Q."""
        for b in range(N):
            d, s, o = (D, 0, 0) if N == 1 else (sizes[b], starts[b], flats[b])
            for i in range(d):
                total = 0.0
                for j in range(d):
                    total += A[o + i * d + j] * m[s + j]
                new_m[s + i] = total
                for c in range(D):
                    total = 0.0
                    for j in range(d):
                        total += A[o + i * d + j] * P[s + j, c]
                    AP[s + i, c] = total
        for b in range(N):
            d, s, o = (D, 0, 0) if N == 1 else (sizes[b], starts[b], flats[b])
            for i in range(D):
                for k in range(d):
                    if s + k <= i:
                        total = 0.0
                        for j in range(d):
                            total += AP[i, s + j] * A[o + k * d + j]
                        new_P[i, s + k] = total
                        new_P[s + k, i] = total
            for i in range(d):
                for j in range(d):
                    new_P[s + i, s + j] += Q[o + i * d + j]

    @register_jitable
    def read(h, m, P, Ph):
        """P h; and return h·m and p = hPh."""
        f, p = 0.0, 0.0
        if single:
            for i in range(D):
                Ph[i] = P[i, 0]
            f, p = m[0], P[0, 0]
        else:
            for i in range(D):
                total = 0.0
                for j in range(D):
                    total += P[i, j] * h[j]
                Ph[i] = total
                p += h[i] * total
                f += h[i] * m[i]
        return f, max(p, 0.0)

    @register_jitable(inline="always")
    def observe(h, z, w, m, P, Ph):
        """Update m and P by an observation of squared precision w; return e and D."""
        f, p = read(h, m, P, Ph)
        e = z - f
        scale = 1.0 + w * p
        gain = w / scale
        for i in range(D):
            m[i] += Ph[i] * (gain * e)
            for j in range(D):
                P[i, j] -= Ph[i] * Ph[j] * gain
        if single:
            for i in range(D):
                P[0, i] = P[i, 0] = Ph[i] / scale
        elif scale > _PRECISE:
            # P⁺h is Ph / D, of which little is left after the subtraction: Joseph's form, written as a correction.
            for i in range(D):
                error = Ph[i] / scale
                for j in range(D):
                    error -= P[i, j] * h[j]
                for j in range(D):
                    P[i, j] += error * Ph[j] * gain
        return e, scale

    @register_jitable(inline="always")
    def unobserve(h, e, scale, gain, a, b, Ph, u, lam, Lam, k, t):
        """λ⁺ and Λ⁺ ↦ λ⁻ and Λ⁻, given Ph and u = Λ⁺Ph."""
        if single:
            # The first column of I − k hᵀ is (1/D, −k₂, …).
            for r in range(D):
                k[r] = -gain * Ph[r]
            k[0] = 1.0 / scale
            total = 0.0
            for r in range(D):
                total += k[r] * lam[r]
            lam[0] = total - gain * e
            total = 0.0
            for r in range(D):
                t[r] = 0.0
                for c in range(D):
                    t[r] += Lam[r, c] * k[c]
                total += k[r] * t[r]
            for r in range(D):
                Lam[0, r] = Lam[r, 0] = t[r]
            Lam[0, 0] = total + gain
        else:
            c0 = gain * (1.0 + gain * a)
            for r in range(D):
                lam[r] -= h[r] * gain * (b + e)
                for c in range(D):
                    Lam[r, c] += h[r] * h[c] * c0 - gain * (h[r] * u[c] + u[r] * h[c])

    @register_jitable
    def unpredict(A, lam, Lam, t, AL):
        """λ⁻ and Λ⁻ ↦ Aᵀλ⁻ and AᵀΛ⁻A."""
        for q in range(N):
            d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
            for r in range(d):
                total = 0.0
                for j in range(d):
                    total += A[o + j * d + r] * lam[s + j]
                t[s + r] = total
                for c in range(D):
                    total = 0.0
                    for j in range(d):
                        total += A[o + j * d + r] * Lam[s + j, c]
                    AL[s + r, c] = total
        for q in range(N):
            d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
            for r in range(D):
                lam[r] = t[r]
                for c in range(d):
                    if s + c <= r:
                        total = 0.0
                        for j in range(d):
                            total += AL[r, s + j] * A[o + j * d + c]
                        Lam[r, s + c] = total
                        Lam[s + c, r] = total

    @register_jitable(inline="always")
    def add_by_transition(A, m, P, lam, Lam, W, AP, grad_A, grad_Q):
        """Add ∂ℓ/∂A = W A P − λ mᵀ and ∂ℓ/∂Q = ½ W, W = λλᵀ − Λ, for a transition from the state (m, P)."""
        for r in range(D):
            for c in range(D):
                W[r, c] = lam[r] * lam[c] - Lam[r, c]
        for q in range(N):
            d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
            for r in range(d):
                for c in range(D):
                    total = 0.0
                    for j in range(d):
                        total += A[o + r * d + j] * P[s + j, c]
                    AP[s + r, c] = total
        for q in range(N):
            d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
            for r in range(d):
                for c in range(d):
                    total = -lam[s + r] * m[s + c]
                    for j in range(D):
                        total += W[s + r, j] * AP[j, s + c]
                    grad_A[o + r * d + c] += total
                    grad_Q[o + r * d + c] += 0.5 * W[s + r, s + c]

    @register_jitable
    def assign(m, P, to_m, to_P):
        """Copy a state, entry by entry: an assignment of arrays takes numba seconds to compile."""
        for r in range(D):
            to_m[r] = m[r]
            for c in range(D):
                to_P[r, c] = P[r, c]

    @njit(cache=True, fastmath=fast)
    @kept_by_layout(blocks, single)
    def forward(A, Q, which, H, place, z, w, m, P, store_m, store_P, score):
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
        value = 0.0
        for i in range(z.size):
            if which[i] >= 0:
                predict(A[which[i]], Q[which[i]], m, P, new_m, new_P, AP)
                assign(new_m, new_P, m, P)
            if keep:
                assign(m, P, store_m[i], store_P[i])
            e, scale = observe(H[place[i]], z[i], w[i], m, P, Ph)
            if score:
                value -= 0.5 * (math.log(scale) + w[i] * e * e / scale)
        return value

    @njit(cache=True, fastmath=fast)
    @kept_by_layout(blocks, single)
    def backward(
        A,
        Q,
        which,
        H,
        place,
        z,
        w,
        m0,
        P0,
        store_m,
        store_P,
        lam,
        Lam,
        mean,
        variance,
        grad_A,
        grad_Q,
        grad_H,
        gradient,
    ):
        """The stretch of :func:`forward`, from its last row to its first.

        Args:
            m0, P0: the state before the stretch.
            lam, Lam: λ⁺ and Λ⁺ after its last row, changed in place to those after the row before the stretch; where
                its first row has no transition, to those before that row.
            mean, variance: leave-one-out moments of each row, written here.
            grad_A, grad_Q, grad_H: derivatives of ℓ by A, Q and H, added to.
            gradient: whether they are.
        """
        Ph, k, u, t = np.empty(D), np.empty(D), np.empty(D), np.empty(D)
        m, P, AP, W = np.empty(D), np.empty((D, D)), np.empty((D, D)), np.empty((D, D))
        for i in range(z.size - 1, -1, -1):
            h = H[place[i]]
            assign(store_m[i], store_P[i], m, P)
            f, p = read(h, m, P, Ph)
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
            mean[i] = f + (w[i] * e * a - scale * b) / (scale + w[i] * a)
            variance[i] = max((scale * p - a) / (scale + w[i] * a), 0.0)
            unobserve(h, e, scale, gain, a, b, Ph, u, lam, Lam, k, t)
            if gradient and not single:
                # By h: α E[x] − s² Cov[x] h, of the state given all rows, m − P λ⁻ and P⁺ − P⁺ Λ⁺ P⁺ with P⁺h = Ph / D.
                alpha = w[i] * (z[i] - mean[i]) / (1.0 + w[i] * variance[i])
                for r in range(D):
                    state, covariance = m[r], Ph[r] * (1.0 + gain * a)
                    for c in range(D):
                        state -= P[r, c] * lam[c]
                        covariance -= P[r, c] * u[c]
                    grad_H[place[i], r] += alpha * state - gain * covariance
            g = which[i]
            if g < 0:
                continue
            if gradient:
                if i > 0:  # the state after the row before
                    assign(store_m[i - 1], store_P[i - 1], m, P)
                    observe(H[place[i - 1]], z[i - 1], w[i - 1], m, P, Ph)
                else:
                    assign(m0, P0, m, P)
                add_by_transition(A[g], m, P, lam, Lam, W, AP, grad_A[g], grad_Q[g])
            unpredict(A[g], lam, Lam, t, AP)

    return Passes(predict, observe, assign, forward, backward)
