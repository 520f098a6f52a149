"""The Kalman filter and its backward pass on pseudo-data: what happens in a row, for the compiler to inline.

Row i, in the order of time, observes z_i = h·x + noise of variance 1/s_i²; s_i = 0 is a missing value. Forwards, with
the prediction N(m, P) of the state from the rows before it, p = hPh and D = 1 + s²p,

    m⁺ = m + P h s² e / D,      P⁺ = P − (P h)(P h)ᵀ s² / D,      e = z − h·m,      ℓ = −½ Σ (log D + s² e² / D),

the part of the evidence that involves the kernel (:mod:`rcgp.core.exact`). Backwards, λ and Λ hold what later rows
say of the state (Bryson and Frazier's smoother): given all rows it is N(m − P λ, P − P Λ P), and

    λ⁻ = (I − k hᵀ)ᵀ λ⁺ − h s² e / D,      Λ⁻ = (I − k hᵀ)ᵀ Λ⁺ (I − k hᵀ) + h hᵀ s² / D,      k = P h s² / D,

then λ⁺ = Aᵀλ⁻, Λ⁺ = AᵀΛ⁻A for the row before. No matrix is inverted. They are the derivatives of ℓ as well,
∂ℓ/∂m = −λ and ∂ℓ/∂P = ½ W, W = λ λᵀ − Λ, so that one pass gives the gradient and leave-one-out: with a = (P h)ᵀ Λ⁺ P h
and b = (P h)·λ⁺ the prediction of f_i from all other rows has

    μ_i = h·m + (s² e a − D b) / (D + s² a),        v_i = (D p − a) / (D + s² a).

A parameter θ of a factor moves the prediction after a gap Δ along the factor's own differential equation
(:func:`rcgp.series.transitions.slopes`): dm = Δ F m dθ and dP = Δ (F P + P Fᵀ + c N) dθ, so that

    ∂ℓ/∂θ = Σ_rows Δ [tr(F (P W − m λᵀ)) + ½ c tr(N W)],        ∂ℓ/∂c = Σ_rows ½ tr(W Q) / c,

and the pass has to add up Δ (P W − m λᵀ), ½ Δ W and ½ tr(W Q) alone. A product with a trend has N polynomial in the
time t: ½ Δ tᵏ W is added up for each power k.

A state consists of independent blocks, so that A and Q are block diagonal; A and Q are flat, block after block. The
parts of the two passes are written for any layout, ``D, N, sizes, starts, flats``: sizes of the state and number of
blocks, size of each block, its first entry in the state, and in a row of A and Q. They are inlined: where the layout is
constant, the compiler unrolls the loops.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit
from numba.types import Array
from numpy.typing import NDArray

__all__ = [
    "LAYOUT",
    "PART",
    "add_slopes",
    "assign",
    "layout_arrays",
    "observe",
    "predict",
    "read",
    "unobserve",
    "unpredict",
]

# Precision of an observation, in units of that of its prediction, from which on an update loses more than four digits.
_PRECISE = 1e4

#: Type of :func:`layout_arrays`, which are constants.
LAYOUT = Array(int64, 1, "C", readonly=True)

#: Parts of functions are inlined by the compiler. Sums may be added up in any order: of large states several at a time,
#: up to three times as fast.
PART = {"forceinline": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}


def layout_arrays(blocks: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Size of each block, its first entry in the state, and in a row of A and Q."""
    sizes = np.array(blocks, dtype=np.int64)
    arrays = sizes, np.cumsum(sizes) - sizes, np.cumsum(sizes**2) - sizes**2
    for array in arrays:
        array.flags.writeable = False
    return arrays


@njit(**PART)
def predict(D, N, sizes, starts, flats, A, Q, g, m, P, new_m, new_P, AP):
    """m, P ↦ A m, A P Aᵀ + Q, row g of the transitions."""
    for b in range(N):
        d, s, o = (D, 0, 0) if N == 1 else (sizes[b], starts[b], flats[b])
        for i in range(d):
            total = 0.0
            for j in range(d):
                total += A[g, o + i * d + j] * m[s + j]
            new_m[s + i] = total
            for c in range(D):
                total = 0.0
                for j in range(d):
                    total += A[g, o + i * d + j] * P[s + j, c]
                AP[s + i, c] = total
    for b in range(N):
        d, s, o = (D, 0, 0) if N == 1 else (sizes[b], starts[b], flats[b])
        for i in range(D):
            for k in range(d):
                if s + k <= i:
                    total = 0.0
                    for j in range(d):
                        total += AP[i, s + j] * A[g, o + k * d + j]
                    new_P[i, s + k] = total
                    new_P[s + k, i] = total
        for i in range(d):
            for j in range(d):
                new_P[s + i, s + j] += Q[g, o + i * d + j]


@njit(**PART)
def read(D, single, H, n, m, P, Ph):
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
                total += P[i, j] * H[n, j]
            Ph[i] = total
            p += H[n, i] * total
            f += H[n, i] * m[i]
    return f, max(p, 0.0)


@njit(**PART)
def observe(D, single, H, n, z, w, m, P, to_m, to_P, Ph):
    """State given an observation of squared precision w, which may replace m and P; and return D and s² e² / D."""
    f, p = read(D, single, H, n, m, P, Ph)
    e = z - f
    scale = 1.0 + w * p
    gain = w / scale
    for i in range(D):
        to_m[i] = m[i] + Ph[i] * (gain * e)
        for j in range(D):
            to_P[i, j] = P[i, j] - Ph[i] * Ph[j] * gain
    if single:
        for i in range(D):
            to_P[0, i] = to_P[i, 0] = Ph[i] / scale
    elif scale > _PRECISE:
        # P⁺h is Ph / D, of which little is left after the subtraction: Joseph's form, written as a correction.
        for i in range(D):
            error = Ph[i] / scale
            for j in range(D):
                error -= to_P[i, j] * H[n, j]
            for j in range(D):
                to_P[i, j] += error * Ph[j] * gain
    return scale, gain * e * e


@njit(**PART)
def unobserve(D, single, H, n, e, scale, gain, a, b, Ph, u, lam, Lam, k, t):
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
            lam[r] -= H[n, r] * gain * (b + e)
            for c in range(D):
                Lam[r, c] += H[n, r] * H[n, c] * c0 - gain * (H[n, r] * u[c] + u[r] * H[n, c])


@njit(**PART)
def unpredict(D, N, sizes, starts, flats, A, g, lam, Lam, t, AL):
    """λ⁻ and Λ⁻ ↦ Aᵀλ⁻ and AᵀΛ⁻A."""
    for q in range(N):
        d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
        for r in range(d):
            total = 0.0
            for j in range(d):
                total += A[g, o + j * d + r] * lam[s + j]
            t[s + r] = total
            for c in range(D):
                total = 0.0
                for j in range(d):
                    total += A[g, o + j * d + r] * Lam[s + j, c]
                AL[s + r, c] = total
    for q in range(N):
        d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
        for r in range(D):
            lam[r] = t[r]
            for c in range(d):
                if s + c <= r:
                    total = 0.0
                    for j in range(d):
                        total += AL[r, s + j] * A[g, o + j * d + c]
                    Lam[r, s + c] = total
                    Lam[s + c, r] = total


@njit(**PART)
def add_slopes(D, N, sizes, starts, flats, Q, g, gap, time, reach, m, P, lam, Lam, W, by_drift, by_diffusion, by_scale):
    """Add Δ (P W − m λᵀ) and ½ Δ tᵏ W to the sums of each block, and ½ tr(W Q)."""
    for r in range(D):
        for c in range(D):
            W[r, c] = lam[r] * lam[c] - Lam[r, c]
    for q in range(N):
        d, s, o = (D, 0, 0) if N == 1 else (sizes[q], starts[q], flats[q])
        own = 0.0
        for r in range(d):
            for c in range(d):
                own += W[s + r, s + c] * Q[g, o + r * d + c]
        by_scale[q] += 0.5 * own
        if gap > reach[q]:
            continue
        for c in range(d):
            for r in range(d):
                total = -m[s + c] * lam[s + r]
                for j in range(D):
                    total += P[s + c, j] * W[j, s + r]
                by_drift[o + c * d + r] += gap * total
        factor = 0.5 * gap
        for k in range(by_diffusion.shape[0]):
            for r in range(d):
                for c in range(d):
                    by_diffusion[k, o + r * d + c] += factor * W[s + r, s + c]
            factor *= time


@njit(**PART)
def assign(D, m, P, to_m, to_P):
    """Copy a state, entry by entry: an assignment of arrays takes numba seconds to compile."""
    for r in range(D):
        to_m[r] = m[r]
        for c in range(D):
            to_P[r, c] = P[r, c]
