"""A series as it arrives: what to expect, and whether a value is bad, before it is taken in; constant time and memory.

The filter of a fitted model goes on. A new value at time t is predicted by N(μ, v) for f and the noise law; the law's
responsibilities (:mod:`rcgp.weights.noise_law`) give the probability that it is bad and its weight, and the weighted
value becomes pseudo-data as in the fit. An outlier moves nothing.

**Level shifts.** Values that are wrong in the same way look like a new level. Beside the filter a second one is kept in
which the level has just jumped by δ ~ N(0, b²), b the half-width of the density of outliers. With p₀ and p₁ the law's
densities of a value under the two,

    L ← max(0, L + log p₁ − log p₀),

Page's cumulative sum (1954); where L is zero the second filter starts anew from the first. Where L exceeds log(20 n), n
the number of values seen so far, the second filter takes over. By Lorden's bound (1971) the mean time to a false alarm
is then at least 20 n values: 5 % in a series as long as the one seen.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import ArrayLike, NDArray

from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.models.defaults import robust_spread
from rcgp.saving import SavedModelError, read_archive, write_archive
from rcgp.series import transitions
from rcgp.series.clock import Clock
from rcgp.series.filtering import compiled
from rcgp.series.kernels import terms_of
from rcgp.series.solver import StateSpace
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import FLAGGED, GAP, OUTLIER_WIDTH, SCALES

if TYPE_CHECKING:
    from rcgp.series.model import StateSpaceRCGP

__all__ = ["Stream", "StreamResult", "StreamResults"]

Array = NDArray[np.float64]

_SCALES, _SQUARES = np.array(SCALES), np.array(SCALES) ** 2

# Newton steps for a quantile: from the largest scale's side they converge without overshooting.
_NEWTON = 30

# Reciprocal of the probability of a false level shift in a series as long as the one seen.
_FALSE_ALARM = 20.0


class StreamResult(NamedTuple):
    """What was expected of one value, before it was taken in.

    Attributes:
        expected: expected value, NaN-free even for a missing one.
        lower, upper: ends of its interval, noise included.
        probability: probability that the value is bad; NaN for a missing one.
        outlier: whether that is above one half.
        shift: whether a level shift was recognised with this value, which is then no outlier.
    """

    expected: float
    lower: float
    upper: float
    probability: float
    outlier: bool
    shift: bool


class StreamResults(NamedTuple):
    """The fields of :class:`StreamResult` for many values, as arrays."""

    expected: Array
    lower: Array
    upper: Array
    probability: Array
    outlier: NDArray[np.bool_]
    shift: NDArray[np.bool_]


class Stream:
    """The filter of a fitted series model, to be fed value by value. Made by ``model.stream()``.

    Hyperparameters and noise law are those of the model: fit a new one to recent values when they no longer hold. A law
    that found all n values normal is taken as what that says, with its prior: one outlier in n + 13.

    Args:
        model: the fitted model.
        coverage: of the intervals.
        clock: how times become the model's numbers. Default: they are numbers.
    """

    def __init__(self, model: StateSpaceRCGP, coverage: float = 0.95, clock: Clock | None = None) -> None:
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
        with torch.no_grad():
            model = model.in_float64()  # type: ignore[assignment]
            process = model.process()
            terms = terms_of(model.kernel, model.harmonics)
            inner = StateSpace(terms)
            residual = model.residual()
            n = len(residual)
            law = model.noise_law
            if law.is_normal:
                counts = residual.new_tensor(PRIOR_COUNTS) + residual.new_tensor([n, 0.0, 0.0])
                law = NoiseLaw.of_counts(counts, OUTLIER_WIDTH * robust_spread(residual))
            noise = float(model.noise)
            level = model.mean(model.train_X)
            if not torch.equal(level, level[:1].expand_as(level)):
                raise ValueError(
                    "a stream needs a constant prior mean, such as 'median': a trend belongs in the kernel"
                )
        m, P = inner.filtered(process.times, process.z, process.w)
        D = inner.size + 1  # the last entry is the level
        self.law, self.coverage, self.clock = law, coverage, clock
        self._mean, self._last, self._count = float(level[0]), float(process.times[-1]), n
        self._ends, self._kinds = inner.ends, inner.kinds
        self._coefficients, self._thetas = inner.coefficients, inner.thetas
        self._blocks, self._h = (*inner.blocks, 1), np.append(inner.layout.values, 1.0)
        self._law = _law_numbers(law, noise, coverage)
        self._m, self._P = np.zeros((2, D)), np.zeros((2, D, D))  # of the filter, and of the one after a shift
        self._m[:, :-1], self._P[:, :-1, :-1] = m, P
        self._sum = np.zeros(1)  # L
        self._prepare()

    def _prepare(self) -> None:
        """What can be made from the rest."""
        D, flat = len(self._h), sum(block**2 for block in self._blocks)
        self._step = _compiled_step(self._blocks)
        A, Q = np.zeros((1, flat)), np.zeros((1, flat))
        A[0, -1] = 1.0  # the level stays
        self._gap, self._now, self._answer = np.zeros(1), np.zeros(1), np.zeros(5)
        room = np.empty((2, D)), np.empty((2, D, D))
        self._arguments = (
            self._ends, self._kinds, self._coefficients, self._thetas, self._gap, self._now, A, Q,
            self._h, self._law, self._m, self._P, self._sum, *room, self._answer,
        )  # fmt: skip

    def update(self, t: Any, y: float) -> StreamResult:
        """Predict the value at a time, judge it, and take it in. Constant time.

        Args:
            t: its time, not before that of the value before.
            y: the value; NaN is a missing one, of which the prediction alone is returned.

        Raises:
            ValueError: for a time that is not finite or before the last one, and an infinite value. The stream is as
                it was.
        """
        given, y = t, float(y)
        t = float(t) if self.clock is None else self.clock.number(t)
        if not math.isfinite(t):
            raise ValueError(f"t must be a finite time, got {t}")
        if t < self._last:
            raise ValueError(f"times must not decrease: {given} comes after {self.last_time}")
        if math.isinf(y):
            raise ValueError(f"y must be a number, or NaN for a missing value, got {y}")
        return self._update(t, y)

    def _update(self, t: float, y: float) -> StreamResult:
        self._gap[0], self._now[0], self._last = t - self._last, t, t
        self._count += not math.isnan(y)
        self._step(y - self._mean, math.log(_FALSE_ALARM * (self._count + 1.0)), *self._arguments)
        expected, lower, upper, probability, shift = self._answer.tolist()
        mean = self._mean
        bad = probability > FLAGGED
        return StreamResult(mean + expected, mean + lower, mean + upper, probability, bad, shift > 0.0)

    @property
    def last_time(self) -> Any:
        """The time of the last value."""
        return self._last if self.clock is None else self.clock.times(np.array([self._last]))[0]

    def update_many(self, times: Any, values: ArrayLike) -> StreamResults:
        """:meth:`update` for several values in their order; all are checked before the first one is taken in."""
        t = np.asarray(times, dtype=np.float64) if self.clock is None else self.clock.numbers(times)
        y = np.asarray(values, dtype=np.float64)
        if t.ndim != 1 or t.shape != y.shape:
            raise ValueError(f"times and values must be of one length, got shapes {t.shape} and {y.shape}")
        if not np.isfinite(t).all() or (len(t) and (np.diff(t, prepend=self._last) < 0).any()):
            raise ValueError(f"times must be finite and must not decrease, from {self.last_time} on")
        if np.isinf(y).any():
            raise ValueError("values must be numbers, or NaN where they are missing")
        results = [self._update(*pair) for pair in zip(t.tolist(), y.tolist(), strict=True)]
        columns = zip(*results, strict=True) if results else ([] for _ in StreamResult._fields)
        kinds = (float, float, float, float, bool, bool)
        return StreamResults(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))

    def copy(self) -> Stream:
        """An independent stream in the same state, to look ahead with."""
        other = copy.copy(self)
        for name in _STATE:
            setattr(other, name, getattr(self, name).copy())
        other._prepare()
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stream to one file, atomically. :meth:`load` restores it to the bit."""
        numbers = {name: getattr(self, name) for name in (*_STATE, *_FIXED)}
        numbers["_scalars"] = np.array([self._mean, self._last, float(self._count), self.coverage])
        description = {
            "kind": "Stream",
            "blocks": list(self._blocks),
            "clock": None if self.clock is None else dataclasses.asdict(self.clock),
            "law": {"shares": list(self.law.shares), "outlier_share": self.law.outlier_share, "width": self.law.width},
        }
        write_archive(path, description, {key: torch.from_numpy(np.array(value)) for key, value in numbers.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stream:
        """Read a stream that :meth:`save` wrote.

        Raises:
            SavedModelError: for a file that is missing, damaged or holds something else.
        """
        description, tensors = read_archive(path)
        if description.get("kind") != "Stream":
            raise SavedModelError(f"{os.fspath(path)!r} holds a {description.get('kind')!r}, not a Stream")
        try:
            stream = cls.__new__(cls)
            for name in (*_STATE, *_FIXED):
                setattr(stream, name, tensors[name].numpy().copy())
            stream._mean, stream._last, count, stream.coverage = tensors["_scalars"].tolist()
            stream._count, stream._blocks = int(count), tuple(int(block) for block in description["blocks"])
            law, clock = description["law"], description["clock"]
            stream.clock = None if clock is None else Clock(**clock)
            stream.law = NoiseLaw(tuple(law["shares"]), float(law["outlier_share"]), float(law["width"]))
            D = sum(stream._blocks)
            if stream._m.shape != (2, D) or stream._P.shape != (2, D, D) or stream._h.shape != (D,):
                raise SavedModelError("its parts do not fit together")
            stream._prepare()
        except SavedModelError as error:
            raise SavedModelError(f"{os.fspath(path)!r}: {error}") from error
        except Exception as error:
            raise SavedModelError(f"{os.fspath(path)!r} makes no sense: {error or type(error).__name__}") from error
        return stream

    def __getstate__(self) -> dict[str, Any]:
        made = ("_step", "_gap", "_now", "_answer", "_arguments")
        return {key: value for key, value in self.__dict__.items() if key not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


# What a stream changes, and the arrays that it does not.
_STATE = ("_m", "_P", "_sum")
_FIXED = ("_ends", "_kinds", "_coefficients", "_thetas", "_h", "_law")


def _law_numbers(law: NoiseLaw, noise: float, coverage: float) -> Array:
    """The law as the compiled step reads it: σ², b, log Z, upper quantile, log shares of scales and outliers, shares."""
    reach = SCALES[GAP] * math.sqrt(noise)
    left = 1.0 - float(torch.special.erfcx(torch.tensor(law.width / (math.sqrt(2.0) * reach), dtype=torch.float64)))
    log_shares = law.log_shares(torch.zeros((), dtype=torch.float64)).numpy()
    head = noise, law.width, math.log(max(left, 1e-12)), 0.5 + 0.5 * coverage
    return np.concatenate([head, log_shares, law.good_shares])


@njit(cache=True)
def _judge(e, f, v, law):
    """Log density, probability of being bad, squared weight and slope of a residual e predicted by N(f, v)."""
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
    left = max(1.0 - math.sqrt(noise * _SQUARES[GAP] / total) * math.exp(-0.5 * min(score * score, 1e4)), 1e-12)
    far = e / width
    reach = math.hypot(1.0, far)
    terms[K] = law[4 + K] - math.log(math.pi * width) - 2.0 * math.log(reach) + math.log(left) - law[2]
    pull[K] = -2.0 * (far / reach) / reach / width + deviation / total * (1.0 / left - 1.0)
    largest = terms.max()
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
    if precision > 1e-200:
        for k in range(K):
            if terms[k] > 0.0:
                slope += terms[k] * (pull[k] - mean) / _SQUARES[k] / precision
    return largest + math.log(density), terms[K - 1] + terms[K], precision, slope


@njit(cache=True)
def _quantile(v, law):
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


@lru_cache(maxsize=16)
def _compiled_step(blocks: tuple[int, ...]) -> Callable[..., None]:
    """One step of a stream, for a state of these blocks, the last of which is the level."""
    passes = compiled(blocks, False)
    predict, observe = passes.predict, passes.observe
    D = sum(blocks)

    @njit(cache=True)
    def take(e, h, law, m, P, room):
        """Judge a residual by one filter, and take it in: its log density and probability of being bad."""
        f, v = 0.0, 0.0
        for i in range(D):
            f += h[i] * m[i]
            for j in range(D):
                v += h[i] * P[i, j] * h[j]
        density, probability, precision, slope = _judge(e, f, max(v, 0.0), law)
        if precision > 1e-200:
            observe(h, e - law[0] * slope, precision / law[0], m, P, room)
        return density, probability

    @njit(cache=True)
    def step(
        e, threshold, ends, kinds, coefficients, thetas, gap, now, A, Q, h, law, m, P, total, new_m, new_P, answer
    ):
        """Predict, answer, judge, take in; the second filter where there is one, or reason for one."""
        room = np.empty((D, D))
        if gap[0] > 0.0:
            transitions.fill(ends, kinds, coefficients, thetas, gap, now, A[:, :-1], Q[:, :-1])
            for i in range(2 if total[0] > 0.0 else 1):
                predict(A[0], Q[0], m[i], P[i], new_m[i], new_P[i], room)
                m[i], P[i] = new_m[i], new_P[i]
        f, v = 0.0, 0.0
        for i in range(D):
            f += h[i] * m[0, i]
            for j in range(D):
                v += h[i] * P[0, i, j] * h[j]
        v = max(v, 0.0)
        half = _quantile(v, law)
        answer[0], answer[1], answer[2] = f, f - half, f + half
        answer[3], answer[4] = math.nan, 0.0
        if math.isnan(e):
            return
        if total[0] <= 0.0:  # the level may have jumped just now
            m[1], P[1] = m[0], P[0]
            P[1, D - 1, D - 1] += law[1] * law[1]
        first, probability = take(e, h, law, m[0], P[0], room[0])
        answer[3] = probability
        if total[0] <= 0.0 and probability <= 0.5:
            return  # as expected: nothing to be explained by a jump
        second, _ = take(e, h, law, m[1], P[1], room[0])
        total[0] = max(0.0, total[0] + second - first)
        if total[0] > threshold:
            m[0], P[0] = m[1], P[1]
            total[0] = 0.0
            answer[3], answer[4] = 0.0, 1.0

    return step  # type: ignore[no-any-return]
