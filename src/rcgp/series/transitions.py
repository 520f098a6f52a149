"""Transitions of a state-space kernel between two times, and their derivatives, compiled by numba.

A kernel is a sum of terms, a term a coefficient times a product of factors, and each factor a small linear system: over
a gap Δ its state goes from x to a x + ε, ε ~ N(0, q), and its prior covariance at the new time is p. The first entry of
a state is the value of the process. States are scaled to have no units, so that for a Matérn kernel with rate
λ = √(2ν)/ℓ, a and q depend on λΔ alone.

The state of a product is the Kronecker product of the states of its factors. With r = p − q = a p_before aᵀ,

    A = a₁ ⊗ a₂,        Q = q₁ ⊗ p₂ + r₁ ⊗ q₂,        R = r₁ ⊗ r₂,

sums of positive terms: Q keeps its digits for the smallest gaps, where p − a p aᵀ loses all of them. A and Q are linear
in each factor's (a, q, p), so that the derivative by a factor's parameter is the same product with that factor replaced
by its derivative.

For a Matérn kernel q = c ∫₀^x e^(−2u) g(u) g(u)ᵀ du, a sum of incomplete gamma functions

    P(k, y) = 1 − e^(−y) Σ_{j<k} y^j / j!,        P(k, y) = P(k + 1, y) + e^(−y) y^k / k!,        y = 2x,

computed downwards from the largest k, where nothing cancels.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["COSINE", "DIMENSIONS", "LINEAR", "MATERN", "contract", "fill", "prior", "root", "simulate"]

Matrix = NDArray[np.float64]

#: Kinds of factors: Matérn kernels of ν = ½, 3/2 and 5/2 have these numbers, in this order.
MATERN = {0.5: 0, 1.5: 1, 2.5: 2}
COSINE, LINEAR = 3, 4

#: Size of the state of each kind.
DIMENSIONS = np.array([1, 2, 3, 2, 2])

# exp(-x) is zero from here on: longer gaps change nothing.
_FAR = 800.0

# Below this y a series of this length has all digits of P(k, y), k ≤ 5; above it the closed form has.
_SMALL, _TERMS = 0.5, 12
_RECIPROCALS = np.concatenate([[0.0], 1.0 / np.arange(1.0, 6.0 + _TERMS)])


@njit(cache=True, inline="always")
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


@njit(cache=True, inline="always")
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


@njit(cache=True, inline="always")
def _matern_slope(kind: int, i: int, j: int, g: int, o: int, a: Matrix) -> tuple[float, float]:
    """Derivatives of a_ij and q_ij by x, from a of :func:`_matern`: da/dx = F a and dq/dx = κ v vᵀ, the integrand of q.

    F = [−1], [[0, 1], [−1, −2]] or [[0, 1, 0], [0, 0, 1], [−1, −3, −3]]; v is the last column of a, κ = 2, 4 or 16/3.
    """
    d = kind + 1
    by_q = a[g, o + i * d + kind] * a[g, o + j * d + kind]
    if i < kind:
        by_a = a[g, o + (i + 1) * d + j]
    elif kind == 0:
        by_a = -a[g, o]
    elif kind == 1:
        by_a = -a[g, o + j] - 2.0 * a[g, o + 2 + j]
    else:
        by_a = -a[g, o + j] - 3.0 * (a[g, o + 3 + j] + a[g, o + 6 + j])
    return by_a, (2.0, 4.0, 16.0 / 3.0)[kind] * by_q


@njit(cache=True, inline="always")
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


@njit(cache=True)
def _one_factor(kind: int, theta: float, gap: float, f: int, a: Matrix, q: Matrix) -> None:
    """:func:`_factor` of a product, compiled once: rows f."""
    _factor(kind, theta, gap, 1.0, f, 0, a, q)


@njit(cache=True)
def _factor_slope(kind: int, theta: float, gap: float, f: int, a: Matrix, by_a: Matrix, by_q: Matrix) -> None:
    """Derivatives of a and q of a factor by its parameter: the rate of a Matérn kernel, or a frequency; rows f."""
    for i in range(DIMENSIONS[kind] ** 2):
        by_a[f, i], by_q[f, i] = 0.0, 0.0
    if kind == COSINE:
        by_a[f, 0], by_a[f, 1], by_a[f, 2], by_a[f, 3] = -gap * a[f, 2], -gap * a[f, 0], gap * a[f, 0], -gap * a[f, 2]
    elif kind < COSINE and theta * gap < _FAR:
        d = kind + 1
        for i in range(d):
            for j in range(d):
                slope_a, slope_q = _matern_slope(kind, i, j, f, 0, a)
                by_a[f, i * d + j], by_q[f, i * d + j] = gap * slope_a, gap * slope_q


@njit(cache=True)
def _prior(kind: int, time: float, g: int, p: Matrix) -> None:
    """Prior covariance p of a factor's state at a time: row g, flat."""
    p[g] = 0.0
    p[g, 0] = 1.0
    if kind == 1 or kind == COSINE:
        p[g, 3] = 1.0
    elif kind == 2:
        p[g, 2] = p[g, 6] = -1.0 / 3.0
        p[g, 4], p[g, 8] = 1.0 / 3.0, 1.0
    elif kind == LINEAR:
        p[g, 0], p[g, 1], p[g, 2], p[g, 3] = time * time, time, time, 1.0


@njit(cache=True)
def _chain(first: int, last: int, kinds: Matrix, c: float, a: Matrix, q: Matrix, p: Matrix, work: Matrix) -> None:
    """A, Q and R of a term into the first three rows of ``work``, flat, from the rows of its factors."""
    size = 1
    work[0, 0], work[1, 0], work[2, 0] = 1.0, 0.0, c
    for f in range(first, last):
        d = DIMENSIONS[kinds[f]]
        for i in range(size * size):
            work[3, i], work[4, i], work[5, i] = work[0, i], work[1, i], work[2, i]
        for i in range(size):
            for j in range(size):
                at = i * size + j
                for k in range(d):
                    for n in range(d):
                        own, to = k * d + n, (i * d + k) * size * d + j * d + n
                        work[0, to] = work[3, at] * a[f, own]
                        work[1, to] = work[4, at] * p[f, own] + work[5, at] * q[f, own]
                        work[2, to] = work[5, at] * (p[f, own] - q[f, own])
        size *= d


@njit(cache=True)
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
    a, q, p = np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9))
    work = np.empty((6, A.shape[1]))
    first, offset = 0, 0
    for t in range(ends.size):
        last, square = ends[t], 1
        for f in range(first, last):
            square *= DIMENSIONS[kinds[f]] ** 2
        if last - first == 1:
            kind, theta, c = kinds[first], thetas[first], coefficients[t]
            for g in range(gaps.size):
                _factor(kind, theta, gaps[g], c, g, offset, A, Q)
        else:
            for g in range(gaps.size):
                for f in range(first, last):
                    _one_factor(kinds[f], thetas[f], gaps[g], f, a, q)
                    _prior(kinds[f], times[g], f, p)
                _chain(first, last, kinds, coefficients[t], a, q, p, work)
                for i in range(square):
                    A[g, offset + i], Q[g, offset + i] = work[0, i], work[1, i]
        offset += square
        first = last


@njit(cache=True)
def prior(ends: Matrix, kinds: Matrix, coefficients: Matrix, thetas: Matrix, time: float, size: int) -> Matrix:
    """Blocks of the prior covariance of the state at a time, flat."""
    P, work = np.zeros(size), np.empty((6, size))
    a, q, p = np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9))
    first, offset = 0, 0
    for t in range(ends.size):
        last, square = ends[t], 1
        for f in range(first, last):
            _prior(kinds[f], time, f, p)
            square *= DIMENSIONS[kinds[f]] ** 2
        _chain(first, last, kinds, coefficients[t], a, q, p, work)
        for i in range(square):
            P[offset + i] = work[1, i] + work[2, i]
        offset += square
        first = last
    return P


@njit(cache=True, inline="always")
def _by_rate(
    kind: int, theta: float, c: float, gaps: Matrix, o: int, A: Matrix, grad_A: Matrix, grad_Q: Matrix
) -> float:
    """The derivative by the rate of a term that is one Matérn factor; a constant ``kind`` unrolls the loops."""
    d, total = kind + 1, 0.0
    for g in range(gaps.size):
        own = 0.0
        for i in range(d):
            for j in range(d):
                by_a, by_q = _matern_slope(kind, i, j, g, o, A)
                own += grad_A[g, o + i * d + j] * by_a + c * grad_Q[g, o + i * d + j] * by_q
        if theta * gaps[g] < _FAR:
            total += gaps[g] * own
    return total


@njit(cache=True)
def contract(
    ends: Matrix,
    kinds: Matrix,
    coefficients: Matrix,
    thetas: Matrix,
    gaps: Matrix,
    times: Matrix,
    grad_A: Matrix,
    grad_Q: Matrix,
    A: Matrix,
    Q: Matrix,
    grad_coefficients: Matrix,
    grad_thetas: Matrix,
) -> None:
    """Add the gradient by coefficients and parameters, given A and Q of each gap and that by them. Cost O(g)."""
    first, offset = 0, 0
    for t in range(ends.size):
        last, square, c = ends[t], 1, coefficients[t]
        for f in range(first, last):
            square *= DIMENSIONS[kinds[f]] ** 2
        total = 0.0
        for g in range(gaps.size):
            own = 0.0
            for i in range(offset, offset + square):
                own += grad_Q[g, i] * Q[g, i]
            total += own
        if c > 0.0:
            grad_coefficients[t] += total / c
        kind = kinds[first] if last - first == 1 else LINEAR
        if kind == 0:
            grad_thetas[first] += _by_rate(0, thetas[first], c, gaps, offset, A, grad_A, grad_Q)
        elif kind == 1:
            grad_thetas[first] += _by_rate(1, thetas[first], c, gaps, offset, A, grad_A, grad_Q)
        elif kind == 2:
            grad_thetas[first] += _by_rate(2, thetas[first], c, gaps, offset, A, grad_A, grad_Q)
        else:
            _contract_factors(first, last, kinds, c, thetas, gaps, times, offset, square, grad_A, grad_Q, grad_thetas)
        offset += square
        first = last


@njit(cache=True)
def _swap(f: int, a: Matrix, by_a: Matrix, q: Matrix, by_q: Matrix, p: Matrix, by_p: Matrix) -> None:
    """Exchange rows f of a factor's a, q and p with those of their derivatives."""
    for i in range(9):
        a[f, i], by_a[f, i] = by_a[f, i], a[f, i]
        q[f, i], by_q[f, i] = by_q[f, i], q[f, i]
        p[f, i], by_p[f, i] = by_p[f, i], p[f, i]


@njit(cache=True)
def _contract_factors(
    first: int,
    last: int,
    kinds: Matrix,
    c: float,
    thetas: Matrix,
    gaps: Matrix,
    times: Matrix,
    offset: int,
    square: int,
    grad_A: Matrix,
    grad_Q: Matrix,
    grad_thetas: Matrix,
) -> None:
    """:func:`contract` for the parameters of a term of any factors: each replaced by its derivative in turn."""
    a, q, p = np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9))
    by_a, by_q, by_p = np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9)), np.zeros((kinds.size, 9))
    work = np.empty((6, grad_A.shape[1]))
    for g in range(gaps.size):
        for f in range(first, last):
            _one_factor(kinds[f], thetas[f], gaps[g], f, a, q)
            _prior(kinds[f], times[g], f, p)
        for f in range(first, last):
            if kinds[f] == LINEAR:
                continue
            _factor_slope(kinds[f], thetas[f], gaps[g], f, a, by_a, by_q)
            _swap(f, a, by_a, q, by_q, p, by_p)  # p does not depend on the parameter: its derivative is zero
            _chain(first, last, kinds, c, a, q, p, work)
            _swap(f, a, by_a, q, by_q, p, by_p)
            for i in range(square):
                grad_thetas[f] += grad_A[g, offset + i] * work[0, i] + grad_Q[g, offset + i] * work[1, i]


@njit(cache=True)
def root(Q: Matrix) -> Matrix:
    """Lower triangular L with L Lᵀ = Q, positive semidefinite: columns without variance of their own are zero."""
    d = Q.shape[0]
    L = np.zeros((d, d))
    for j in range(d):
        left = Q[j, j]
        for k in range(j):
            left -= L[j, k] * L[j, k]
        if left <= 1e-14 * Q[j, j]:
            continue
        L[j, j] = math.sqrt(left)
        for i in range(j + 1, d):
            total = Q[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            L[i, j] = total / L[j, j]
    return L


@njit(cache=True)
def simulate(
    A: Matrix, Q: Matrix, which: Matrix, blocks: Matrix, H: Matrix, place: Matrix, normal: Matrix, x: Matrix, f: Matrix
) -> None:
    """Draw the state from row to row, from standard normal numbers: h·x of each row into f; x is changed in place."""
    for i in range(f.size):
        g = which[i]
        start, at = 0, 0
        for b in range(blocks.size if g >= 0 else 0):
            d = blocks[b]
            L = root(np.ascontiguousarray(Q[g, at : at + d * d]).reshape(d, d))
            a = np.ascontiguousarray(A[g, at : at + d * d]).reshape(d, d)
            x[start : start + d] = a @ x[start : start + d] + L @ normal[i, start : start + d]
            start, at = start + d, at + d * d
        f[i] = 0.0
        for j in range(x.size):
            f[i] += H[place[i], j] * x[j]
