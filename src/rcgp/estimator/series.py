"""A series as an estimator: times and values in, predictions, forecasts, components and flags out."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rcgp.estimator.base import (
    check_bool,
    check_choice,
    check_coverage,
    check_integer,
    check_levels,
    only,
    stacked,
    undone_on_failure,
)
from rcgp.estimator.output import Output, OutputsMixin, score_of_observed, warn
from rcgp.estimator.series_fit import fit_column, values_of
from rcgp.series import StateSpaceRCGP, Stream
from rcgp.series.clock import Clock, times_and_values
from rcgp.series.kernels import groups_of
from rcgp.series.settings import SeriesSettings, in_durations

__all__ = ["MOST_STEPS", "Component", "Forecast", "RCGPSeries"]

Array = NDArray[np.float64]

#: A longer forecast is a mistake, such as a year of steps of a second.
MOST_STEPS = 1_000_000


class Forecast(NamedTuple):
    """Predictions after the last time: of the function, and of new observations.

    Attributes:
        times: ``q`` times, as those of the fit.
        mean, std: expected values, and standard deviations of the function.
        lower, upper: ends of the interval of a new observation.
    """

    times: Any
    mean: Array
    std: Array
    lower: Array
    upper: Array


class Component(NamedTuple):
    """A part of the function: its name, mean and standard deviation."""

    name: str
    mean: Array
    std: Array


class RCGPSeries(OutputsMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression of a series that bad values cannot break, in linear time.

    The model of :class:`rcgp.RCGPRegressor` for one input, time, with kernels that have a state-space form: a fit costs
    O(n), a million values less than a minute. Times may be irregular, repeated and unsorted; values may be missing.

    Parameters
    ----------
    kernel : GPyTorch kernel or None, default=None
        Prior covariance of the function, on times in seconds for dates, else in their own unit, from the first one on.
        A copy is fitted. ``None`` is a linear trend, a Matérn-3/2 process, and for each period a seasonal pattern that
        changes slowly (a periodic kernel times a Matérn-½ kernel), all with weak priors.
    periods : sequence, default=()
        Lengths of seasons for the default kernel: durations such as ``"1D"`` and ``"7D"`` for dates, numbers for
        numbers.
    mean : str, default="median"
        Prior mean, as for :class:`rcgp.RCGPRegressor`.
    weight : {"learned", "constant"}, default="learned"
        ``"learned"`` follows the noise law; ``"constant"`` is the ordinary GP.
    local_noise : bool, default=True
        Whether a learned noise may vary in time, where the data show it: intervals, flags, forecasts and streams then
        follow quiet and loud stretches (:meth:`noise_std`).
    stuck : bool, default=False
        Whether runs of equal values that neither chance nor rounding explains (:mod:`rcgp.series.stuck`) are errors of
        the sensor. ``True`` flags all but the first of a run and leaves them out of the fit. ``False`` reports them as
        a doubt: a closed market repeats its last price, too.
    harmonics : int, default=4
        Number of harmonics of a seasonal pattern: how much detail it has. The cost of a season grows with it.
    n_restarts : int, default=0
        Further starts of the optimiser at random hyperparameters.
    max_iter : int, default=1000
        Limit on the iterations of each start of the optimiser.
    progress : bool or callable, default=False
        As for :class:`rcgp.RCGPRegressor`.
    random_state : int, RandomState instance or None, default=None
        Seed of the restarts.

    Attributes
    ----------
    noise_law_, weights_, outlier_probability_, outliers_, outlier_scores_, loo_mean_, loo_std_, doubts_
        As for :class:`rcgp.RCGPRegressor`, with a value for each row of the fit, in its order. A missing value has the
        weight and the probability NaN, and is not an outlier; ``loo_mean_`` is its prediction.
    noise_variance_, kernel_, fit_report_, n_iter_
        As for :class:`rcgp.RCGPRegressor`. Where times are dates, lengthscales and periods in the report are seconds
        that print as days, hours or minutes.
    models_ : list of StateSpaceRCGP
        The fitted model of each column of y.
    n_outputs_ : int
        Number of columns; with one, results have no axis for columns.
    output_names_ : list of str or None
        Names of the columns, if y was a data frame.
    clock_ : Clock
        How times become numbers.
    last_, gap_ : float
        The last time of the fit and the median gap between times, as numbers of the clock: where a forecast starts.
    component_names_ : list of str
        Names of the parts of the function, see :meth:`components`.

    Examples
    --------
    >>> import numpy as np
    >>> from rcgp import RCGPSeries
    >>> t = np.arange(200.0)
    >>> y = np.sin(t / 10.0)
    >>> y[50], y[120] = 4.0, np.nan
    >>> model = RCGPSeries().fit(t, y)
    >>> np.flatnonzero(model.outliers_)
    array([50])
    >>> model.predict([120.0]).round(1)
    array([-0.5])
    """

    models_: list[StateSpaceRCGP]
    clock_: Clock

    def __init__(
        self,
        kernel: Any = None,
        periods: Sequence[Any] = (),
        mean: Any = "median",
        weight: str = "learned",
        local_noise: bool = True,
        stuck: bool = False,
        harmonics: int = 4,
        n_restarts: int = 0,
        max_iter: int = 1000,
        progress: Any = False,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.periods = periods
        self.mean = mean
        self.weight = weight
        self.local_noise = local_noise
        self.stuck = stuck
        self.harmonics = harmonics
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.progress = progress
        self.random_state = random_state

    @undone_on_failure
    def fit(self, t: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> RCGPSeries:
        """Fit the model.

        Parameters
        ----------
        t : array-like of shape (n,)
            Times: numbers, or dates (``datetime64``, ``datetime``, ISO strings, an index or column of pandas) with one
            time zone or none. Without ``y``, a series or data frame of pandas, whose index has the times.
        y : array-like of shape (n,) or (n, n_outputs), default=None
            Values; NaN is a missing one. Columns are fitted one by one, with separate hyperparameters.
        sample_weight : array-like of shape (n,), default=None
            Factors on the precision of each row, positive.

        Returns
        -------
        self
        """
        t, y = times_and_values(t, y)
        self._check_parameters()
        clock, numbers = Clock.of(t, "t")
        settings = self._settings(clock, check_random_state(self.random_state))
        values = values_of(y, len(numbers))
        precision = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
        outputs = []
        for number, column in enumerate(values.reshape(len(values), -1).T):
            if np.isnan(column).all() and values.ndim == 2:
                raise ValueError(f"column {repr(names[number]) if names else number} of y has no observation")
            output = fit_column(settings, self.periods, numbers, column, precision, self.progress)
            warn(output.report, output.doubts)
            outputs.append(output)
        gaps = np.diff(np.unique(numbers))
        self._set_fitted(outputs, clock, names, float(numbers.max()), float(np.median(gaps)) if len(gaps) else 1.0)
        return self

    def predict(self, t: Any, return_std: bool = False, include_noise: bool = False) -> Any:
        """Predict the function at times, or new observations of it.

        Parameters
        ----------
        t : array-like of shape (q,)
            Times, as in the fit.
        return_std : bool, default=False
            Return standard deviations as well.
        include_noise : bool, default=False
            Add the variance of the noise law. For intervals prefer :meth:`predict_interval`.

        Returns
        -------
        mean, and with ``return_std`` std : ndarrays of shape (q,) or (q, n_outputs)
        """
        return self._predict(t, return_std, False, include_noise)

    def predict_quantiles(self, t: Any, q: ArrayLike) -> Array:
        """Quantiles of new observations that are not outliers, by the noise law: a further, last axis for several q."""
        levels = check_levels(q)
        quantiles = self._quantiles(t, np.atleast_1d(levels))
        return quantiles[0] if levels.ndim == 0 else np.stack(quantiles, axis=-1)

    def predict_interval(self, t: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Central interval that contains a new observation, unless it is an outlier, with a given probability."""
        lower, upper = self._quantiles(t, check_coverage(coverage))
        return lower, upper

    def noise_std(self, t: Any) -> Array:
        """Standard deviation of the noise of inliers at times, by the noise law; constant unless it varies in time."""
        return self._noise_std(t)

    def forecast(self, horizon: Any, coverage: float = 0.95, step: Any = None) -> Forecast:
        """Predict what comes after the last time.

        Parameters
        ----------
        horizon : int, duration or float
            How far: a number of steps, or a duration such as ``"48h"`` for dates and a float for numbers; at most a
            million steps.
        coverage : float, default=0.95
            Of the intervals.
        step : duration or float, default=None
            Length of a step. Default: the median gap between times.

        Returns
        -------
        Forecast
        """
        check_is_fitted(self)
        times = self.clock_.times(self.forecast_numbers(horizon, step))
        mean, std = self.predict(times, return_std=True)
        return Forecast(times, mean, std, *self.predict_interval(times, coverage))

    def forecast_numbers(self, horizon: Any, step: Any = None) -> Array:
        """The times of :meth:`forecast` as numbers of the clock."""
        check_is_fitted(self)
        length = self.gap_ if step is None else self.clock_.length(step, "step")
        if isinstance(horizon, int | np.integer) and not isinstance(horizon, bool):
            check_integer(horizon, "horizon", least=1)
            steps: float = int(horizon)  # which may be too large for a float
        else:
            steps = max(1.0, self.clock_.length(horizon, "horizon") / length - 1e-9)
        if steps > MOST_STEPS:
            gap = f"{self.clock_.duration(length):.4g}"
            raise ValueError(f"horizon must be at most 1 000 000 steps of {gap}, got {horizon!r}")
        return self.last_ + length * np.arange(1.0, math.ceil(steps) + 1.0)

    def components(self, t: Any) -> list[Component]:
        """The parts of the function at times, which add up to it: level, trend, process and seasons.

        With a kernel of your own the level is the prior mean, and the others are the kernel's summands. For one column.
        """
        x = self._inputs(t)
        (model,) = self._single("a list of components")
        with torch.no_grad():
            level = model.mean(x).numpy()
        found = [(mean.numpy(), variance.clamp_min(0.0).sqrt().numpy()) for mean, variance in model.components(x)]
        if self.kernel is None:  # the default kernel has a constant, which moves the level
            found[0] = level + found[0][0], found[0][1]
        else:
            found = [(level, np.zeros_like(level)), *found]
        names = self.component_names_
        return [Component(name, *part) for name, part in zip(names, found, strict=True)]

    def sample_y(self, t: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions from the posterior and evaluate them at times: ``q x n_samples``, or with columns between.

        Cost O(n + q) for each sample.
        """
        x, random = self._inputs(t), check_random_state(random_state)
        seeds = random.randint(2**31 - 1, size=self.n_outputs_)
        drawn = [model.sample(x, n_samples, int(seed)).T for model, seed in zip(self.models_, seeds, strict=True)]
        return stacked(drawn, axis=1)

    def score(self, t: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """R² of the predictions, as :meth:`fit` takes times and values: missing values count nothing.

        Of several columns the mean over those with two values or more.
        """
        t, y = times_and_values(t, y)
        mean = self.predict(t)
        return score_of_observed(values_of(y, len(mean)), mean, sample_weight)

    def stream(self, coverage: float = 0.95) -> Stream:
        """The filter after the last training row, to be fed with new values: :class:`rcgp.series.Stream`.

        For one column; :meth:`streams` has one for each of several. Its ``refit`` fits recent values with the
        parameters of this estimator.
        """
        check_is_fitted(self)
        self._single("a stream")
        return self.streams(coverage)[0]

    def streams(self, coverage: float = 0.95) -> list[Stream]:
        """A stream for each column."""
        check_is_fitted(self)
        fixed = isinstance(self.random_state, int | np.integer)  # a generator is not to be moved on
        settings = self._settings(self.clock_, check_random_state(self.random_state) if fixed else None)
        return [Stream(model, coverage, self.clock_, settings) for model in self.models_]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; :func:`rcgp.load` reads it."""
        from rcgp.estimator.saved import save

        save(self, path)

    def _check_parameters(self) -> None:
        check_choice(self.weight, ("learned", "constant"), "weight")
        for name in ("local_noise", "stuck"):
            check_bool(getattr(self, name), name)
        check_integer(self.harmonics, "harmonics", least=1)
        check_integer(self.n_restarts, "n_restarts", least=0)
        check_integer(self.max_iter, "max_iter", least=1)
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a GPyTorch kernel or None, got {self.kernel!r}")
        if isinstance(self.periods, str) or not isinstance(self.periods, Sequence | np.ndarray):
            raise TypeError(f"periods must be a list such as ['1D', '7D'], got {self.periods!r}")
        if self.kernel is not None and len(self.periods):
            raise ValueError("periods are for the default kernel: put a PeriodicKernel into the one you give")

    def _settings(self, clock: Clock, random: np.random.RandomState | None) -> SeriesSettings:
        """How to fit: the parameters, with periods as numbers and a seed drawn, if there is a generator."""
        periods = tuple(clock.length(period, f"periods[{i}]") for i, period in enumerate(self.periods))
        if len(set(periods)) < len(periods):
            raise ValueError(f"periods must differ, got {self.periods!r}")
        return SeriesSettings(
            kernel=copy.deepcopy(self.kernel),
            mean=copy.deepcopy(self.mean),
            periods=periods,
            harmonics=int(self.harmonics),
            learned=self.weight == "learned",
            local_noise=bool(self.local_noise),
            stuck=bool(self.stuck),
            restarts=int(self.n_restarts),
            max_iterations=int(self.max_iter),
            seed=None if random is None else int(random.randint(2**31 - 1)),
        )

    def _set_fitted(
        self, outputs: Sequence[Output], clock: Clock, names: list[str] | None, last: float, gap: float
    ) -> None:
        self._set_outputs(outputs)
        self.clock_, self.output_names_, self.last_, self.gap_ = clock, names, last, gap
        self.models_ = [output.model for output in outputs]
        seasons = [f"season {period}" for period in self.periods]
        summands = [f"part {i + 1}" for i, _ in enumerate(groups_of(self.models_[0].kernel))]
        self.component_names_ = ["level", *(["trend", "process", *seasons] if self.kernel is None else summands)]
        self.kernel_ = only([model.kernel for model in self.models_])
        self.fit_report_ = only([in_durations(o.report, o.model.kernel, clock) for o in outputs])
        self.n_iter_ = only([output.report.iterations for output in outputs])

    def _inputs(self, t: Any) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(np.ascontiguousarray(self.clock_.numbers(t, "t"))).unsqueeze(-1)

    def _single(self, what: str) -> list[StateSpaceRCGP]:
        if self.n_outputs_ != 1:
            raise ValueError(f"{what} is for one column, the model has {self.n_outputs_}")
        return self.models_
