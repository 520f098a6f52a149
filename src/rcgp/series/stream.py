"""A series as it arrives: what to expect, and whether a value is bad, before it is taken in; constant time and memory.

The filter of a fitted model goes on. A new value at time t is predicted by N(μ, v) for f and the noise law; the law's
responsibilities (:mod:`rcgp.weights.noise_law`) give the probability that it is bad and its weight, and the weighted
value becomes pseudo-data as in the fit. An outlier moves nothing. Noise that varies in time goes on from the level at
the last value of the fit: its average (:mod:`rcgp.series.local_noise`) over the values seen so far.

**Level shifts.** Values that are wrong in the same way look like a new level. Beside the filter another one is kept in
which the level has jumped by δ, of a Cauchy density of half-width b, that of outliers. With p₀ and p₁ the law's
densities of a value under the two,

    L ← max(0, L + log p₁ − log(p₀ + π_o p₁ / 2)),

Page's cumulative sum (1954), in which every other error, of share π_o, is as the one before: errors of one and the same
size are common. The other filter starts, with L from zero, at a value that is bad for all, and takes over if L
exceeds log(20 n), n the number of values seen so far. For two fixed densities Lorden's bound (1971) on the mean time to
a false alarm is then 20 n values, 5 % in a series as long as the one seen; the other filter adapts to its first value,
so that this is a guide.

A value that is bad for all filters has p₀ ≈ p₁: it is no evidence of a shift, and hardly changes L. But it may be the
first value of a new level itself. So two jumps are followed at a time, and such a value replaces the one with the
smaller L: an error after a shift does not undo the evidence for it, and errors before a shift do not hide it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.models.defaults import robust_spread
from rcgp.saving import SavedModelError, read_archive, write_archive
from rcgp.series.clock import Clock, times_and_values
from rcgp.series.filtering import layout_arrays
from rcgp.series.kernels import terms_of
from rcgp.series.local_noise import NoiseInTime
from rcgp.series.model import StateSpaceRCGP
from rcgp.series.settings import SeriesSettings, in_durations
from rcgp.series.solver import StateSpace
from rcgp.series.step import compiled_step, law_numbers
from rcgp.series.stuck import FALSE_ALARM, Repetition
from rcgp.series.transitions import DIMENSIONS
from rcgp.training import FitReport
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import FLAGGED, OUTLIER_WIDTH

__all__ = ["Stream", "StreamResult", "StreamResults"]

Array = NDArray[np.float64]

# Jumps that are followed beside the filter.
_JUMPS = 2


class StreamResult(NamedTuple):
    """What was expected of one value, before it was taken in.

    Attributes:
        expected: expected value, also where the value itself is missing.
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

    Hyperparameters and noise law are those of the model until :meth:`refit` learns them again. A law that found all n
    values normal is taken as what that says, with its prior: one outlier in n + 13.

    Args:
        model: the fitted model.
        coverage: of the intervals.
        clock: how times become the model's numbers. Default: they are numbers.
        settings: how the model was fitted, for :meth:`refit`. With ``settings.stuck`` stuck values are recognised
            (:mod:`rcgp.series.stuck`). Default: robustly, with the model's own kernel.
    """

    def __init__(
        self,
        model: StateSpaceRCGP,
        coverage: float = 0.95,
        clock: Clock | None = None,
        settings: SeriesSettings | None = None,
    ) -> None:
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
        with torch.no_grad():
            model = model.in_float64()
            process = model.process()
            terms = terms_of(model.kernel, model.harmonics)
            inner = StateSpace(terms)
            residual = model.residual()
            n = len(residual)
            law = model.noise_law
            if law.is_normal:
                counts = residual.new_tensor(PRIOR_COUNTS) + residual.new_tensor([n, 0.0, 0.0])
                law = NoiseLaw.of_counts(counts, OUTLIER_WIDTH * robust_spread(residual))
            noise, local = float(model.noise), model.local_noise
            level = model.mean(model.train_X)
            if not torch.equal(level, level[:1].expand_as(level)):
                raise ValueError(
                    "a stream needs a constant prior mean, such as 'median': a trend belongs in the kernel"
                )
            self._mean = float(level[0])
            self.settings = SeriesSettings.of(model) if settings is None else settings
            order = torch.argsort(model.train_X[:, 0], stable=True)
            self.repetition = Repetition.of(model.train_y[order].numpy()) if self.settings.stuck else None
        m, P = inner.filtered(process.times, process.z, process.w)
        D = inner.size + 1  # the last entry is the level
        self.law, self.coverage, self.clock = law, coverage, clock
        self._last, self._count = float(process.times[-1]), n
        self._ends, self._kinds = inner.ends, inner.kinds
        self._coefficients, self._thetas = inner.coefficients, inner.thetas
        self._blocks, self._h = (*inner.blocks, 1), np.append(inner.layout.values, 1.0)
        self._law = law_numbers(law, noise, coverage)
        # Sums of squared noise and of counts, and their timescale: zero where the noise is the same everywhere.
        self._window = np.zeros(3)
        if isinstance(local, NoiseInTime):
            self._window[:] = *local.after_last(), local.timescale
        self._m, self._P = np.zeros((1 + _JUMPS, D)), np.zeros((1 + _JUMPS, D, D))  # of the filter, and after jumps
        self._m[:, :-1], self._P[:, :-1, :-1] = m, P
        self._sum = np.zeros(_JUMPS)  # L
        # The last value, how surprising it is that it repeats the one before, and the half-width of its interval.
        self._run = np.array([np.nan, 0.0, np.inf])
        self._prepare()

    def _prepare(self) -> None:
        """What can be made from the rest."""
        self._normal = float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * self.coverage, dtype=torch.float64)))
        D, flat = len(self._h), sum(block**2 for block in self._blocks)
        self._step = compiled_step()
        inner, A, Q = np.zeros((2, 1, flat - 1)), np.zeros((1, flat)), np.zeros((1, flat))
        A[0, -1] = 1.0  # the level stays
        self._gap, self._now, self._answer = np.zeros(1), np.zeros(1), np.zeros(5)
        room = np.empty(D), np.empty((D, D))
        self._arguments = (
            *layout_arrays(self._blocks), self._ends, self._kinds, self._coefficients, self._thetas, self._gap,
            self._now, inner, A, Q, self._h[np.newaxis], self._law, self._law.copy(), self._window, self._m, self._P,
            self._sum, *room, self._answer,
        )  # fmt: skip

    def update(self, t: Any, y: Any) -> StreamResult:
        """Predict the value at a time, judge it, and take it in. Constant time.

        Args:
            t: its time, not before that of the value before.
            y: the value; NaN, ``None`` or pandas' NA is a missing one, of which the prediction alone is returned.

        Raises:
            ValueError: for a time that is not finite or before the last one, and a value that is infinite or no number.
                The stream is as it was.
        """
        given, y = t, y if type(y) is float else _number(y)
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
        threshold = math.log(FALSE_ALARM * (self._count + 1.0))
        stuck = self.repetition is not None and self._is_stuck(y, threshold)
        mean = self._mean
        self._step(math.nan if stuck else y - mean, threshold, *self._arguments)
        expected, lower, upper, probability, shift = self._answer.tolist()
        self._run[2] = upper - expected
        if shift > 0.0:  # from now on outliers, and jumps, are seen from the new level
            self._mean += float(self._m[0, -1])
            self._m[:, -1] = 0.0
        probability = 1.0 if stuck else probability
        bad = probability > FLAGGED
        return StreamResult(mean + expected, mean + lower, mean + upper, probability, bad, shift > 0.0)

    @property
    def last_time(self) -> Any:
        """The time of the last value."""
        return self._last if self.clock is None else self.clock.times(np.array([self._last]))[0]

    def update_many(self, times: Any, values: ArrayLike) -> StreamResults:
        """:meth:`update` for several values in their order; all are checked before the first one is taken in."""
        t, y = self._read(times, values)
        if (np.diff(t, prepend=self._last) < 0).any():
            raise ValueError(f"times must not decrease, from {self.last_time} on")
        results = [self._update(*pair) for pair in zip(t.tolist(), y.tolist(), strict=True)]
        columns = zip(*results, strict=True) if results else ([] for _ in StreamResult._fields)
        kinds = (float, float, float, float, bool, bool)
        return StreamResults(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))

    def refit(self, times: Any, values: ArrayLike | None = None, *, progress: Any = False) -> FitReport:
        """Learn hyperparameters and noise law from recent values, and go on after the last of them.

        Afterwards the stream is that of a new model, fitted to these values alone with the settings of the first one;
        for a ``StateSpaceRCGP`` the search starts from the current hyperparameters. Level, number of values and a
        suspected shift are reset. The stream stores no values, so that its memory is constant, and only the caller
        knows how far back they resemble those to come. Cost O(n). To keep judging values meanwhile, refit a
        :meth:`copy`, then feed it the values that have arrived since.

        Args:
            times: ``n`` times, in any order, of the same kind as those of the stream. The last one must not be before
                the stream's last, or values in between would be lost.
            values: ``n`` values; NaN is a missing one. Outliers may be among them. Without them ``times`` is a series
                of pandas, whose index has the times.
            progress: as for :func:`rcgp.fit_robust`.

        Returns:
            The report of the fit. Where times are dates, its lengthscales and periods are durations: seconds that print
            as days, hours or minutes.

        Raises:
            ValueError: for times and values that :meth:`update_many` refuses, too, or that are too old.
            FitError: where no model can be computed. In either case the stream is as it was.
        """
        times, values = times_and_values(times, values)
        t, y = self._read(times, values)
        if not len(t) or t.max() < self._last:
            raise ValueError(f"times must reach the last one of the stream, {self.last_time}, so that no value is lost")
        clock = self.clock
        if clock is not None:
            clock, t = Clock.of(times)
        fitted = self.settings.fit(t, y, progress=progress)
        self.__dict__.update(Stream(fitted.model, self.coverage, clock, self.settings).__dict__)
        return in_durations(fitted.report, fitted.model.kernel, clock)

    def _read(self, times: Any, values: ArrayLike) -> tuple[Array, Array]:
        """Times as numbers and values, of one length; or a ValueError."""
        t = np.array(times, dtype=np.float64) if self.clock is None else self.clock.numbers(times)
        y = np.array(values)
        y = (np.vectorize(_number, otypes=[np.float64])(y) if y.dtype.kind == "O" else y).astype(np.float64)
        if t.ndim != 1 or t.shape != y.shape:
            raise ValueError(f"times and values must be of one length, got shapes {t.shape} and {y.shape}")
        if not np.isfinite(t).all():
            raise ValueError("times must be finite")
        if np.isinf(y).any():
            raise ValueError("values must be numbers, or NaN where they are missing")
        return t, y

    def _is_stuck(self, y: float, threshold: float) -> bool:
        """Whether the value repeats the ones before it more often than chance explains."""
        last, surprise, half = self._run.tolist()
        if y != last:
            if not math.isnan(y):
                self._run[0], self._run[1] = y, 0.0
            return False
        assert self.repetition is not None
        self._run[1] = surprise + self.repetition.surprise(y, half / self._normal)
        return bool(self._run[1] > threshold)

    def copy(self) -> Stream:
        """An independent stream in the same state, to look ahead with."""
        other = copy.copy(self)
        for name in _STATE:
            setattr(other, name, getattr(self, name).copy())
        other._prepare()
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stream to one file, atomically. :meth:`load` restores it to the bit.

        Raises:
            SavedModelError: for a prior mean that is code, such as a function, or a file that cannot be written.
        """
        numbers = {name: getattr(self, name) for name in (*_STATE, *_FIXED)}
        numbers["_scalars"] = np.array([self._mean, self._last, float(self._count), self.coverage])
        settings, tensors = self.settings.describe()
        description = {
            "kind": "Stream",
            "settings": settings,
            "blocks": list(self._blocks),
            "clock": None if self.clock is None else dataclasses.asdict(self.clock),
            "repetition": None if self.repetition is None else _as_lists(self.repetition),
            "law": {"shares": list(self.law.shares), "outlier_share": self.law.outlier_share, "width": self.law.width},
        }
        tensors.update({key: torch.from_numpy(np.array(value)) for key, value in numbers.items()})
        write_archive(path, description, tensors)

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
            stream.settings = SeriesSettings.rebuild(description["settings"], tensors)
            stream.repetition = None
            if description["repetition"] is not None:
                share, coarse, common = description["repetition"]
                stream.repetition = Repetition(share, coarse, dict(common))
            stream.law = NoiseLaw(tuple(law["shares"]), float(law["outlier_share"]), float(law["width"]))
            stream._check_parts()
            stream._prepare()
        except SavedModelError as error:
            raise SavedModelError(f"{os.fspath(path)!r}: {error}") from error
        except Exception as error:
            raise SavedModelError(f"{os.fspath(path)!r} makes no sense: {error or type(error).__name__}") from error
        return stream

    def _check_parts(self) -> None:
        """Raise a SavedModelError unless all arrays fit together: the compiled step would read beyond their ends."""
        D, terms, factors = sum(self._blocks), self._ends.shape, self._kinds.shape
        law = law_numbers(self.law, 1.0, self.coverage).shape
        shapes = [(1 + _JUMPS, D), (1 + _JUMPS, D, D), (_JUMPS,), (3,), (3,), terms, factors, terms, factors, (D,), law]
        parts = [getattr(self, name) for name in (*_STATE, *_FIXED)]
        fits = [part.shape for part in parts] == shapes and all(
            part.dtype == (np.int64 if part is self._ends or part is self._kinds else np.float64) for part in parts
        )
        ends, kinds = self._ends.tolist(), self._kinds.tolist()
        if not (fits and [0, *ends, len(kinds)] == sorted([0, *ends, len(kinds)]) and min(kinds, default=0) >= 0):
            raise SavedModelError("its parts do not fit together")
        sizes = [math.prod(DIMENSIONS[kinds[f]] for f in range(*pair)) for pair in pairwise([0, *ends])]
        if [*sizes, 1] != list(self._blocks):
            raise SavedModelError("its blocks are not those of its kernel")

    def __getstate__(self) -> dict[str, Any]:
        made = ("_step", "_normal", "_gap", "_now", "_answer", "_arguments")
        return {key: value for key, value in self.__dict__.items() if key not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


def _number(value: Any) -> float:
    """A value of any kind of number, NaN for one that is missing; or a ValueError."""
    if value is None or type(value).__name__ == "NAType":
        return math.nan
    try:
        if np.ndim(value) == 0 and not isinstance(value, str | bytes | bool | np.bool_ | np.timedelta64):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"y must be a number, or NaN for a missing value, got {value!r}")


def _as_lists(repetition: Repetition) -> list[Any]:
    return [repetition.share, repetition.coarse, [list(pair) for pair in repetition.common.items()]]


# What a stream changes, and the arrays that it does not.
_STATE = ("_m", "_P", "_sum", "_run", "_window")
_FIXED = ("_ends", "_kinds", "_coefficients", "_thetas", "_h", "_law")
