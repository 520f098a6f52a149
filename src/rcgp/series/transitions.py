"""Transitions of a state-space kernel between two times, and their derivatives, compiled by numba.

A kernel is a sum of terms, a term a coefficient times a product of factors, and each factor a small linear system: over
a gap Δ its state goes from x to a x + ε, ε ~ N(0, q), and its prior covariance at the new time is p. The first entry of
a state is the value of the process. States are scaled to have no units, so that for a Matérn kernel with rate
λ = √(2ν)/ℓ, a and q depend on λΔ alone.

The state of a product is the Kronecker product of the states of its factors. With r = p − q = a p_before aᵀ,

    A = a₁ ⊗ a₂,        Q = q₁ ⊗ p₂ + r₁ ⊗ q₂,        R = r₁ ⊗ r₂,

sums of positive terms: Q keeps its digits for the smallest gaps, where p − a p aᵀ loses all of them.

For a Matérn kernel q = c ∫₀^x e^(−2u) g(u) g(u)ᵀ du, a sum of incomplete gamma functions

    P(k, y) = 1 − e^(−y) Σ_{j<k} y^j / j!,        P(k, y) = P(k + 1, y) + e^(−y) y^k / k!,        y = 2x,

computed downwards from the largest k, where nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["COSINE", "DIMENSIONS", "LINEAR", "MATERN", "fill", "prior", "simulation", "slopes"]

Matrix = NDArray[np.float64]

#: Kinds of factors: Matérn kernels of ν = ½, 3/2 and 5/2 have these numbers, in this order.
MATERN = {0.5: 0, 1.5: 1, 2.5: 2}
COSINE, LINEAR = 3, 4

#: Size of the state of each kind.
DIMENSIONS = np.array([1, 2, 3, 2, 2])

# F of dx = F x dt + noise for each kind, in units of its parameter.
_DRIFTS = [
    np.array([[-1.0]]),
    np.array([[0.0, 1.0], [-1.0, -2.0]]),
    np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]]),
    np.array([[0.0, -1.0], [1.0, 0.0]]),
    np.zeros((2, 2)),  # a trend has no parameter
]

# Prior covariance of each kind's state, by powers of time.
_PRIORS = [
    [np.eye(1)],
    [np.eye(2)],
    [np.array([[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]])],
    [np.eye(2)],
    [np.array([[0.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 0.0]])],
]

# exp(-x) is zero from here on: longer gaps change nothing.
_FAR = 800.0

# Below this y a series of this length has all digits of P(k, y), k ≤ 5; above it the closed form has.
_SMALL, _TERMS = 0.5, 12
_RECIPROCALS = np.concatenate([[0.0], 1.0 / np.arange(1.0, 6.0 + _TERMS)])


@njit(forceinline=True, error_model="numpy")
def _gamma(k: int, y: float, decay: float) -> float:
    """P(k, y), given e^(−y)."""
    if y > _SMALL:
        term, total = 1.0, 1.0
        for j in range(1, k):
            term *= y / j
            total += term
        return 1.0 - decay * total
    term = 1.0
    for j in range(1, k + 1):
        term *= y * _RECIPROCALS[j]
    total = term
    for j in range(k + 1, k + 1 + _TERMS):
        term *= y * _RECIPROCALS[j]
        total += term
    return decay * total


@njit(forceinline=True, error_model="numpy")
def _matern(kind: int, x: float, c: float, g: int, o: int, a: Matrix, q: Matrix) -> None:
    """a, and q times c, of a Matérn factor over a gap of x = λΔ: row g, flat from column o on."""
    e = math.exp(-x)
    decay, y = e * e, 2.0 * x
    if kind == 0:
        a[g, o] = e
        q[g, o] = -c * math.expm1(-y)
    elif kind == 1:
        a[g, o], a[g, o + 1] = e * (1.0 + x), e * x
        a[g, o + 2], a[g, o + 3] = -e * x, e * (1.0 - x)
        first = _gamma(3, y, decay)
        q[g, o] = c * first
        q[g, o + 1] = q[g, o + 2] = c * y * x * decay
        q[g, o + 3] = c * (first + 2.0 * y * decay)
    else:
        s = 0.5 * x * x
        a[g, o], a[g, o + 1], a[g, o + 2] = e * (1.0 + x + s), e * (x + 2.0 * s), e * s
        a[g, o + 3], a[g, o + 4], a[g, o + 5] = -e * s, e * (1.0 + x - 2.0 * s), e * (x - s)
        a[g, o + 6], a[g, o + 7], a[g, o + 8] = e * (s - x), e * (2.0 * s - 3.0 * x), e * (1.0 - 2.0 * x + s)
        p5 = _gamma(5, y, decay)
        p4 = p5 + decay * y**4 / 24.0
        p3 = p4 + decay * y**3 / 6.0
        p2 = p3 + decay * y * y / 2.0
        p1 = p2 + decay * y
        # Moments ∫ u^k e^(−2u) du = k! P(k + 1, y) / 2^(k + 1), times 16/3.
        m0, m1, m2, m3, m4 = c * 8.0 / 3.0 * p1, c * 4.0 / 3.0 * p2, c * 4.0 / 3.0 * p3, c * 2.0 * p4, c * p5
        q[g, o] = m4
        q[g, o + 1] = q[g, o + 3] = 0.5 * m3 - m4
        q[g, o + 2] = q[g, o + 6] = 0.5 * m2 - m3 + m4
        q[g, o + 4] = m2 - m3 + m4
        q[g, o + 5] = q[g, o + 7] = m1 - 2.5 * m2 + 1.5 * m3 - m4
        q[g, o + 8] = m0 - 4.0 * m1 + 5.0 * m2 - 2.0 * m3 + m4


@njit(forceinline=True, error_model="numpy")
def _factor(kind: int, theta: float, gap: float, c: float, g: int, o: int, a: Matrix, q: Matrix) -> None:
    """a, and q times c, of a factor over a gap: row g, flat from column o on."""
    if kind < COSINE:
        _matern(kind, min(theta * gap, _FAR), c, g, o, a, q)
        return
    q[g, o] = q[g, o + 1] = q[g, o + 2] = q[g, o + 3] = 0.0
    if kind == COSINE:
        cosine, sine = math.cos(theta * gap), math.sin(theta * gap)
        a[g, o], a[g, o + 1], a[g, o + 2], a[g, o + 3] = cosine, -sine, sine, cosine
    else:  # f = w t, with the state (w t, w)
        a[g, o], a[g, o + 1], a[g, o + 2], a[g, o + 3] = 1.0, gap, 0.0, 1.0


@njit(forceinline=True, error_model="numpy")
def _prior(kind: int, time: float, f: int, p: Matrix) -> None:
    """Prior covariance p of a factor's state at a time: row f, flat."""
    for i in range(9):
        p[f, i] = 0.0
    p[f, 0] = 1.0
    if kind == 1 or kind == COSINE:
        p[f, 3] = 1.0
    elif kind == 2:
        p[f, 2] = p[f, 6] = -1.0 / 3.0
        p[f, 4], p[f, 8] = 1.0 / 3.0, 1.0
    elif kind == LINEAR:
        p[f, 0], p[f, 1], p[f, 2], p[f, 3] = time * time, time, time, 1.0


@njit(forceinline=True, error_model="numpy")
def _chain(
    g: int, first: int, last: int, kinds: Matrix, c: float, a: Matrix, q: Matrix, p: Matrix, work: Matrix
) -> None:
    """A, Q and R of a term over gap g into the first three rows of ``work``, flat, from those of its factors."""
    size = 1
    work[0, 0], work[1, 0], work[2, 0] = 1.0, 0.0, c
    for f in range(first, last):
        d, o = DIMENSIONS[kinds[f]], 9 * (f - first)
        for i in range(size * size):
            work[3, i], work[4, i], work[5, i] = work[0, i], work[1, i], work[2, i]
        for i in range(size):
            for j in range(size):
                at = i * size + j
                for k in range(d):
                    for n in range(d):
                        own, to = k * d + n, (i * d + k) * size * d + j * d + n
                        noise, whole = q[g, o + own], p[f - first, own]
                        work[0, to] = work[3, at] * a[g, o + own]
                        work[1, to] = work[4, at] * whole + work[5, at] * noise
                        work[2, to] = work[5, at] * (whole - noise)
        size *= d


@njit(
    "void(int64[::1], int64[::1], float64[::1], float64[::1], float64[::1], float64[::1], float64[:, ::1], "
    "float64[:, ::1])",
    cache=True,
    error_model="numpy",
)
def fill(
    ends: Matrix, kinds: Matrix, coefficients: Matrix, thetas: Matrix, gaps: Matrix, times: Matrix, A: Matrix, Q: Matrix
) -> None:
    """Blocks of A and Q, one after the other and each of them flat, in a row for each gap. Cost O(g) for g gaps.

    Args:
        ends: number of factors up to and with each term.
        kinds, thetas: kind and parameter of each factor.
        coefficients: of the terms.
        gaps, times: lengths of the gaps, and the times at their ends.
        A, Q: written here.
    """
    p, work = np.empty((kinds.size, 9)), np.empty((6, A.shape[1]))
    first, offset = 0, 0
    for t in range(ends.size):
        last, square = ends[t], 1
        for f in range(first, last):
            square *= DIMENSIONS[kinds[f]] ** 2
        alone = last - first == 1
        # The rows of each factor, side by side: those of A and Q themselves where there is one.
        a, q = A, Q
        if not alone:
            a, q = np.empty((gaps.size, 9 * (last - first))), np.empty((gaps.size, 9 * (last - first)))
        for f in range(first, last):
            kind, theta, o = kinds[f], thetas[f], offset if alone else 9 * (f - first)
            c = coefficients[t] if alone else 1.0
            for g in range(gaps.size):
                _factor(kind, theta, gaps[g], c, g, o, a, q)
        for g in range(0 if alone else gaps.size):
            for f in range(first, last):
                _prior(kinds[f], times[g], f - first, p)
            _chain(g, first, last, kinds, coefficients[t], a, q, p, work)
            for i in range(square):
                A[g, offset + i], Q[g, offset + i] = work[0, i], work[1, i]
        offset += square
        first = last


def prior(kinds: tuple[int, ...], time: float) -> Matrix:
    """Prior covariance of the state of a term of these factors and coefficient one, ``d x d``, at a time."""
    parts = [np.ones((1, 1))]
    for kind in kinds:
        parts = _times(parts, _PRIORS[kind])
    return sum(part * time**power for power, part in enumerate(parts))  # type: ignore[return-value]


@lru_cache(maxsize=256)
def slopes(kinds: tuple[int, ...]) -> list[tuple[Matrix, list[Matrix]]]:
    """F and N of each factor of a term: how its parameter moves the state.

    A factor obeys dx = θ F x dt + noise of covariance θ N dt, N = −(F p + p Fᵀ) for a stationary one. In the product
    of all, and for a coefficient c, ∂A/∂θ = Δ F A and ∂Q/∂θ = Δ (F Q + Q Fᵀ + c N).

    Args:
        kinds: of the factors.

    Returns:
        For each factor F, ``d x d``, and the matrices N_k of N = Σ_k N_k tᵏ: one, unless there are trends.
    """
    found = []
    for own, kind in enumerate(kinds):
        drift, parts = np.ones((1, 1)), [np.ones((1, 1))]
        for f, other in enumerate(kinds):
            F, p = _DRIFTS[kind], _PRIORS[kind][0]
            drift = np.kron(drift, F if f == own else np.eye(DIMENSIONS[other]))
            parts = _times(parts, [-(F @ p + p @ F.T)] if f == own else _PRIORS[other])
        found.append((drift, parts))
    return found


def _times(left: list[Matrix], right: list[Matrix]) -> list[Matrix]:
    """Kronecker product of two polynomials in time whose coefficients are matrices."""
    size = len(left[0]) * len(right[0])
    product = [np.zeros((size, size)) for _ in range(len(left) + len(right) - 1)]
    for i, first in enumerate(left):
        for j, second in enumerate(right):
            product[i + j] += np.kron(first, second)
    return product


@njit(forceinline=True, error_model="numpy")
def _root(d: int, o: int, Q: Matrix, L: Matrix) -> None:
    """The first d rows and columns of :func:`root`, of Q flat from entry o on."""
    for j in range(d):
        left = Q[o + j * d + j]
        for k in range(j):
            left -= L[j, k] * L[j, k]
        exists = left > 1e-14 * Q[o + j * d + j]
        L[j, j] = math.sqrt(left) if exists else 0.0
        for i in range(j + 1, d):
            total = Q[o + i * d + j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            L[i, j] = total / L[j, j] if exists else 0.0


@lru_cache(maxsize=1)
def simulation() -> tuple[Callable[[Matrix], Matrix], Callable[..., None]]:
    """The compiled functions by which samples are drawn."""

    @njit("float64[:, ::1](float64[:, ::1])", cache=True, error_model="numpy")
    def root(Q: Matrix) -> Matrix:
        """Lower triangular L with L Lᵀ = Q, positive semidefinite: columns without variance of their own are zero."""
        L = np.zeros(Q.shape)
        _root(Q.shape[0], 0, Q.ravel(), L)
        return L

    @njit(
        "void(float64[:, ::1], float64[:, ::1], int64[::1], int64[::1], float64[:, ::1], int64[::1], float64[:, ::1], "
        "float64[::1], float64[::1])",
        cache=True,
        error_model="numpy",
    )
    def simulate(
        A: Matrix,
        Q: Matrix,
        which: Matrix,
        blocks: Matrix,
        H: Matrix,
        place: Matrix,
        normal: Matrix,
        x: Matrix,
        f: Matrix,
    ) -> None:
        """Draw the state from row to row, from standard normal numbers: h·x of each row into f; x changes in place."""
        L, new = np.zeros((x.size, x.size)), np.empty(x.size)
        for i in range(f.size):
            g = which[i]
            start, o = 0, 0
            for b in range(blocks.size if g >= 0 else 0):
                d = blocks[b]
                _root(d, o, Q[g], L)
                for r in range(d):
                    total = 0.0
                    for c in range(d):
                        total += A[g, o + r * d + c] * x[start + c]
                    for c in range(r + 1):
                        total += L[r, c] * normal[i, start + c]
                    new[start + r] = total
                for r in range(d):
                    x[start + r] = new[start + r]
                start, o = start + d, o + d * d
            f[i] = 0.0
            for j in range(x.size):
                f[i] += H[place[i], j] * x[j]

    return root, simulate
