"""How the model of a series is built and fitted: by :class:`rcgp.RCGPSeries`, and again by ``Stream.refit``."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.models.defaults import robust_spread
from rcgp.models.means import MeanLike
from rcgp.saving import SavedModelError, describe, rebuild
from rcgp.series.clock import Clock
from rcgp.series.defaults import seasonal_kernel, weak_noise_prior
from rcgp.series.kernels import HARMONICS
from rcgp.series.model import StateSpaceRCGP
from rcgp.series.stuck import stuck_values
from rcgp.training import FitReport, fit_robust
from rcgp.training.fit import fit_ordinary

__all__ = ["FittedSeries", "SeriesSettings", "in_durations"]

Array = NDArray[np.float64]

# Settings that are plain values, and those that are modules, or plain values too.
_PLAIN = ("periods", "harmonics", "learned", "local_noise", "stuck", "noise", "restarts", "max_iterations", "seed")
_MODULES = {"kernel": gpytorch.kernels.Kernel, "mean": gpytorch.means.Mean}

# Hyperparameters that are lengths of time.
_TIMES = {
    (gpytorch.kernels.MaternKernel,): "lengthscale",
    (gpytorch.kernels.PeriodicKernel, gpytorch.kernels.CosineKernel): "period_length",
}


class FittedSeries(NamedTuple):
    """A fitted model, the report of its fit, and the rows whose values repeat more often than chance explains."""

    model: StateSpaceRCGP
    report: FitReport
    stuck: NDArray[np.int64]


def in_durations(report: FitReport, kernel: gpytorch.kernels.Kernel, clock: Clock | None) -> FitReport:
    """The report with lengthscales and periods of a kernel on dates as durations; others are in the user's unit."""
    values = dict(report.hyperparameters)
    for path, part in kernel.named_modules(prefix="kernel"):
        for kinds, name in _TIMES.items():
            if clock is not None and isinstance(part, kinds) and (key := f"{path}.{name}") in values:
                values[key] = [clock.duration(value) for value in values[key]]
    return replace(report, hyperparameters=values)


@dataclass(frozen=True)
class SeriesSettings:
    """All that a fit needs beside the values.

    Attributes:
        kernel: start of the kernel, of which a copy is fitted. ``None``: level, trend, process and seasons.
        mean: prior mean.
        periods: lengths of the seasons of the default kernel, in the unit of the times.
        harmonics: number of harmonics of a periodic kernel.
        learned: whether the noise law is learned; else the noise is normal.
        local_noise: whether a learned noise may vary in time.
        stuck: whether stuck values are taken for missing ones.
        noise: noise variance, if it is held fixed.
        restarts, max_iterations, seed: as for :func:`rcgp.fit_robust`.
    """

    kernel: gpytorch.kernels.Kernel | None = None
    mean: MeanLike = "median"
    periods: tuple[float, ...] = ()
    harmonics: int = HARMONICS
    learned: bool = True
    local_noise: bool = True
    stuck: bool = False
    noise: float | None = None
    restarts: int = 0
    max_iterations: int = 1000
    seed: int | None = None

    @classmethod
    def of(cls, model: StateSpaceRCGP) -> SeriesSettings:
        """The settings by which a model is fitted again, from its hyperparameters on. A prior on the noise is lost."""
        mean = model.named_mean or copy.deepcopy(model.mean)
        noise = None if model.raw_noise.requires_grad else float(model.noise.detach())
        return cls(copy.deepcopy(model.kernel).double(), mean, harmonics=model.harmonics, noise=noise)

    def build(self, times: Tensor, values: Tensor, precision: Tensor | None = None) -> StateSpaceRCGP:
        """The model of ``n`` times and values before the fit."""
        kernel, mean = (
            copy.deepcopy(part).double() if isinstance(part, torch.nn.Module) else part
            for part in (self.kernel, self.mean)
        )
        model = StateSpaceRCGP(
            times,
            values,
            kernel=kernel,
            mean=mean,
            noise=self.noise,
            sample_weight=precision,
            harmonics=self.harmonics,
        )
        model.raw_noise.requires_grad_(self.noise is None)
        if self.kernel is None:
            with torch.no_grad():
                spread = robust_spread(model.residual())
            model.kernel = seasonal_kernel(model.train_X, spread, self.periods)
            weak_noise_prior(model)
        return model

    def fit(self, times: Array, values: Array, precision: Array | None = None, progress: Any = False) -> FittedSeries:
        """Build and fit the model; with ``stuck`` once more without stuck values, where there are any. Cost O(n).

        Args:
            times: ``n`` times, in any order.
            values: ``n`` values; NaN is a missing one.
            precision: ``n`` sample weights.
            progress: as for :func:`rcgp.fit_robust`.
        """
        t, y = torch.from_numpy(times), torch.from_numpy(values.copy())
        weights = None if precision is None else torch.from_numpy(precision)
        model, report = self._fit(t, y, weights, progress)
        observed = np.flatnonzero(~np.isnan(values))
        place = np.argsort(times[observed], kind="stable")
        spread = model.leave_one_out().variance.sqrt().numpy()[place]
        stuck = observed[place][stuck_values(values[observed][place], spread)]
        if self.stuck and len(stuck):
            y[stuck] = torch.nan
            model, report = self._fit(t, y, weights, progress)
        return FittedSeries(model, report, stuck)

    def _fit(self, t: Tensor, y: Tensor, precision: Tensor | None, progress: Any) -> tuple[StateSpaceRCGP, FitReport]:
        model = self.build(t, y, precision)
        options: dict[str, Any] = {"restarts": self.restarts, "max_iterations": self.max_iterations, "seed": self.seed}
        if not self.learned:
            return model, fit_ordinary(model, progress=progress, **options)
        return model, fit_robust(model, local_noise=self.local_noise, progress=progress, **options)

    def describe(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The settings as JSON and tensors.

        Raises:
            SavedModelError: for a kernel or mean that is code.
        """
        description = {name: getattr(self, name) for name in _PLAIN} | {"periods": list(self.periods)}
        tensors: dict[str, Tensor] = {}
        for name in _MODULES:
            part = getattr(self, name)
            if part is None or isinstance(part, str):
                description[name] = part
                continue
            if not isinstance(part, torch.nn.Module):
                raise SavedModelError(f"the {name} is a function, which is code, and code is not saved")
            description[name], own = describe(part)
            tensors.update({f"{name}.{key}": tensor for key, tensor in own.items()})
        return description, tensors

    @classmethod
    def rebuild(cls, description: dict[str, Any], tensors: dict[str, Tensor]) -> SeriesSettings:
        """What :meth:`describe` described. Raises SavedModelError for anything else."""
        values = {name: description[name] for name in _PLAIN}
        for name, family in _MODULES.items():
            part = description[name]
            if isinstance(part, dict):
                own = {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}
                part = rebuild(part, own)
                if not isinstance(part, family):
                    raise SavedModelError(f"its {name} is a {type(part).__name__}")
            values[name] = part
        return cls(**{**values, "periods": tuple(values["periods"])})
