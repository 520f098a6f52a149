"""One step of a stream, compiled: predict, judge by the noise law, take in; the scalar twin of the law's formulas.

:func:`judge` is :func:`rcgp.weights.noise_law.responsibilities` for one value, and :func:`quantile` the law's, in
numbers instead of tensors: a step takes some microseconds. :func:`law_numbers` says what the numbers of a law are.

Where the noise varies in time, its variance is σ² h, with h from the sums of :mod:`rcgp.series.local_noise` over the
values seen so far; they decay with time, and each value adds to them. A fit learns h and the law in turn, so that loud
stretches are no longer taken for a tail of the law. A stream sees each value once: its t_j is the expected squared
noise over the variance of the law, which has the same mean, and counts values of the tail in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numba import float64, int64, njit, void
from numpy.typing import NDArray

from rcgp.series import transitions
from rcgp.series.filtering import LAYOUT, assign, observe, predict
from rcgp.series.local_noise import PRIOR_ROWS
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import FLAGGED, GAP, SCALES

__all__ = ["compiled_step", "judge", "law_numbers", "quantile"]

_SCALES, _SQUARES = np.array(SCALES), np.array(SCALES) ** 2

# Steps for a quantile, by Newton's method within a bracket: it takes about five.
_NEWTON = 60

# What is left of the density of outliers at least, and the squared weight below which a value is left out.
_SMALLEST, _DELETED = 1e-12, 1e-200

# From here on erfcx is its asymptotic series; five terms of it are exact to 1e-12.
_SERIES = 25.0

_VECTOR, _MATRIX, _TWO = float64[::1], float64[:, ::1], float64[:, :, ::1]
_KERNEL = int64[::1], int64[::1], _VECTOR, _VECTOR
_STEP = void(
    float64, float64, LAYOUT, LAYOUT, LAYOUT, *_KERNEL, _VECTOR, _VECTOR, _TWO, _MATRIX, _MATRIX, _MATRIX, _VECTOR,
    _VECTOR, _VECTOR, _MATRIX, _TWO, _VECTOR, _VECTOR, _MATRIX, _VECTOR,
)  # fmt: skip

# Size of a jump whose square is an ordinary number.
_FARTHEST = 1e100


def law_numbers(law: NoiseLaw, noise: float, coverage: float) -> NDArray[np.float64]:
    """A law as a compiled step reads it: σ², b, log Z, the upper quantile's probability, log shares, shares, variance.

    The variance of inliers is in units of σ².
    """
    log_shares = law.log_shares(torch.zeros((), dtype=torch.float64)).numpy()
    head = noise, law.width, log_mass.py_func(law.width, noise), 0.5 + 0.5 * coverage
    return np.concatenate([head, log_shares, law.good_shares, [law.variance]])


@njit(error_model="numpy")
def log_mass(width, noise):
    """log Z, the share of the Cauchy density that the gap leaves: Z = 1 − erfcx(b / (√2 s σ))."""
    x = width / math.sqrt(2.0 * noise * _SQUARES[GAP])
    if x < _SERIES:
        scaled = math.exp(x * x) * math.erfc(x)
    else:  # where erfc underflows
        u = 0.5 / (x * x)
        scaled = (1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u)))) / (x * math.sqrt(math.pi))
    return math.log(max(1.0 - scaled, _SMALLEST))


@njit(error_model="numpy")
def judge(e, f, v, law):
    """Judge a residual e by the law, given its prediction N(f, v).

    Returns:
        Log density, probability of being bad, squared weight and slope; expected squared noise of an inlier in units
        of the variance of the law, times the probability of being one; and that probability.
    """
    noise, width = law[0], law[1]
    K = _SCALES.size
    deviation = e - f
    terms, pull = np.empty(K + 1), np.empty(K + 1)
    for k in range(K):
        total = v + noise * _SQUARES[k]
        score = deviation / math.sqrt(total)
        terms[k] = law[4 + k] - 0.9189385332046727 - 0.5 * math.log(total) - 0.5 * min(score * score, 1e300)
        pull[k] = -deviation / total
    total = v + noise * _SQUARES[GAP]
    score = deviation / math.sqrt(total)
    left = max(1.0 - math.sqrt(noise * _SQUARES[GAP] / total) * math.exp(-0.5 * min(score * score, 1e4)), _SMALLEST)
    far = e / width
    reach = math.hypot(1.0, far)
    terms[K] = law[4 + K] - math.log(math.pi * width) - 2.0 * math.log(reach) + math.log(left) - law[2]
    pull[K] = -2.0 * (far / reach) / reach / width + deviation / total * (1.0 / left - 1.0)
    largest = terms[0]
    for k in range(1, K + 1):
        largest = max(largest, terms[k])
    density, mean = 0.0, 0.0
    for k in range(K + 1):
        terms[k] = math.exp(terms[k] - largest)
        density += terms[k]
    precision = 0.0
    for k in range(K + 1):
        terms[k] /= density
        if terms[k] > 0.0:
            mean += terms[k] * pull[k]
    for k in range(K):
        precision += terms[k] / _SQUARES[k]
    slope = 0.0
    if precision > _DELETED:
        for k in range(K):
            if terms[k] > 0.0:
                slope += terms[k] * (pull[k] - mean) / _SQUARES[k] / precision
    squares = 0.0
    for k in range(K):
        if terms[k] > 0.0:
            total = v + noise * _SQUARES[k]
            ratio = noise * _SQUARES[k] / total
            squares += terms[k] * _SQUARES[k] * (1.0 + ratio * (deviation * deviation / total - 1.0))
    return largest + math.log(density), terms[K - 1] + terms[K], precision, slope, squares / law[-1], 1.0 - terms[K]


@njit(error_model="numpy")
def quantile(v, law):
    """Upper quantile of the noise law around a prediction of variance v, by Newton's method from the outside."""
    K = _SCALES.size
    q, noise = law[3], law[0]
    x = 0.0
    for k in range(K):  # beyond it: that of the widest scale that has a share
        if law[5 + K + k] > 0.0:
            x = max(x, math.sqrt(v + noise * _SQUARES[k]))
    low, high = 0.0, x * 40.0
    x = math.sqrt(v + noise) * 2.0
    for _ in range(_NEWTON):
        below, density = 0.0, 0.0
        for k in range(K):
            std = math.sqrt(v + noise * _SQUARES[k])
            below += law[5 + K + k] * 0.5 * math.erfc(-x / (std * 1.4142135623730951))
            density += law[5 + K + k] * math.exp(-0.5 * (x / std) ** 2) / (std * 2.5066282746310002)
        if below < q:
            low = x
        else:
            high = x
        step = (q - below) / density if density > 0.0 else math.inf
        new = x + step
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - x) <= 1e-12 * new:
            return new
        x = new
    return x


@njit(error_model="numpy")
def _expected(h, m, P):
    """Mean and variance of h·x."""
    f, v = 0.0, 0.0
    for i in range(h.shape[1]):
        f += h[0, i] * m[i]
        for j in range(h.shape[1]):
            v += h[0, i] * P[i, j] * h[0, j]
    return f, max(v, 0.0)


@njit(error_model="numpy")
def _take_in(e, h, law, m, P, room):
    """Judge a residual by one filter, and take it in: log density, probability of being bad, squares and count."""
    f, v = _expected(h, m, P)
    density, probability, precision, slope, squares, count = judge(e, f, v, law)
    if precision > _DELETED:
        observe(h.shape[1], False, h, 0, e - law[0] * slope, precision / law[0], m, P, m, P, room)
    return density, probability, squares, count


@njit(error_model="numpy")
def _follow_jumps(e, first, law, h, m, P, total, room):
    """Take a residual in by the filters after jumps, and add to their sums L.

    Args:
        first: log density of the residual by the filter without a jump.

    Returns:
        The filters with the largest and the smallest L, and whether one of them explains the residual.
    """
    explained, best, worst = False, 0, 0
    for i in range(total.size):
        if total[i] > 0.0:
            other, bad, _, _ = _take_in(e, h, law, m[i + 1], P[i + 1], room)
            # Every other error is as the one before: log(p₀ + π_o p₁ / 2).
            again = other + law[4 + _SCALES.size] - math.log(2.0)
            larger = max(first, again)
            null = larger + math.log(math.exp(first - larger) + math.exp(again - larger))
            total[i] = max(0.0, total[i] + other - null)
            explained = explained or bad <= FLAGGED
        best, worst = i if total[i] > total[best] else best, i if total[i] < total[worst] else worst
    return best, worst, explained


@njit(error_model="numpy")
def _jump(e, size, first, law, h, m, P, room):
    """Let the level of a filter jump just now, and take the residual in: L. The jump has a Cauchy density.

    Args:
        size: of the jump.
        first: log density of the residual by the filter without it.
    """
    D = h.shape[1]
    P[D - 1, D - 1] += law[1] * law[1] + size * size  # what the scales of the density are, given the jump
    _take_in(e, h, law, m, P, room)
    density = -math.log(math.pi * law[1]) - 2.0 * math.log(math.hypot(1.0, size / law[1]))
    return max(0.0, density + math.log1p(-math.exp(law[4 + _SCALES.size])) - first)


@lru_cache(maxsize=1)
def compiled_step() -> Callable[..., None]:
    """One step of a stream, for any layout of the state, whose last block is the level."""

    @njit(_STEP, cache=True, error_model="numpy")
    def step(
        e,
        threshold,
        sizes,
        starts,
        flats,
        ends,
        kinds,
        coefficients,
        thetas,
        gap,
        now,
        inner,
        A,
        Q,
        h,
        constant,
        law,
        window,
        m,
        P,
        total,
        new_m,
        new_P,
        answer,
    ):
        """Predict a value, judge it and take it in, by the filter and by those after a jump."""
        D = h.shape[1]
        room = np.empty((D, D))
        if gap[0] > 0.0:
            transitions.fill(ends, kinds, coefficients, thetas, gap, now, inner[0], inner[1])
            for i in range(A.size - 1):  # the last entry is the level's, which stays
                A[0, i], Q[0, i] = inner[0, 0, i], inner[1, 0, i]
            for i in range(1 + total.size):
                if i == 0 or total[i - 1] > 0.0:
                    predict(D, sizes.size, sizes, starts, flats, A, Q, 0, m[i], P[i], new_m, new_P, room)
                    assign(D, new_m, new_P, m[i], P[i])
        local = 1.0
        if window[2] > 0.0:  # the noise varies in time
            decay = math.exp(-gap[0] / window[2])
            window[0], window[1] = decay * window[0], decay * window[1]
            local = (PRIOR_ROWS + window[0]) / (PRIOR_ROWS + window[1])
            law[0] = local * constant[0]
            law[2] = log_mass(law[1], law[0])
        f, v = _expected(h, m[0], P[0])
        half = quantile(v, law)
        answer[0], answer[1], answer[2], answer[3], answer[4] = f, f - half, f + half, math.nan, 0.0
        if math.isnan(e):
            return
        assign(D, m[0], P[0], new_m, new_P)
        first, probability, squares, count = _take_in(e, h, law, m[0], P[0], room[0])
        answer[3] = probability
        if window[2] > 0.0:
            window[0], window[1] = window[0] + local * squares, window[1] + count
        best, worst, explained = _follow_jumps(e, first, law, h, m, P, total, room[0])
        if total[best] > threshold:
            assign(D, m[best + 1], P[best + 1], m[0], P[0])
            total[:] = 0.0
            answer[3], answer[4] = 0.0, 1.0
        elif probability > FLAGGED and not explained:  # by no filter: the level may have jumped just now
            total[worst] = 0.0
            if abs(e - f) < _FARTHEST:
                assign(D, new_m, new_P, m[worst + 1], P[worst + 1])
                total[worst] = _jump(e, e - f, first, law, h, m[worst + 1], P[worst + 1], room[0])

    return step  # type: ignore[no-any-return]
