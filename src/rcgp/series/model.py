"""The robust conjugate GP of a series, in linear time: the same pseudo-data and robust fit, another solver.

Kernels with a state-space form (:mod:`rcgp.series.kernels`) give the posterior, leave-one-out and the evidence with its
gradient by a Kalman filter and one pass back: O(n) in place of O(n³), and exact.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.pseudo import PseudoData
from rcgp.models import RCGP
from rcgp.models.defaults import robust_scales, robust_spread
from rcgp.models.local_noise import NoiseAverage
from rcgp.models.means import MeanLike, build_mean
from rcgp.models.posterior import PosteriorKernel, PosteriorNormal
from rcgp.models.validation import as_real_tensor, check_finite, check_sample_weight
from rcgp.series.defaults import default_series_kernel
from rcgp.series.kernels import HARMONICS, Term, terms_of
from rcgp.series.local_noise import average_in_time, timescales
from rcgp.series.process import SeriesProcess, sorted_pseudo
from rcgp.series.solver import Axis, StateSpace, evidence
from rcgp.weights import Constant, WeightFunction

if TYPE_CHECKING:
    from rcgp.series.stream import Stream

__all__ = [
    "MarkovRCGP",
    "StateSpaceRCGP",
    "nearest_in",
]

Array = NDArray[np.float64]

# Rows on which a robust fit tries its starts, and stretches of consecutive rows that they are taken from: enough to see
# short lengthscales, and to meet what happens in different places.
_START_ROWS, _STRETCHES = 4096, 8


class MarkovRCGP(RCGP):
    """The robust conjugate GP with a state-space kernel in time: what series and fields share.

    Rows observe the state of the process in time, each by one of the vectors h (:mod:`rcgp.series.solver`). The first
    column of the inputs is the time.
    """

    #: An evaluation costs O(n): starts of a fit are tried on all rows up to some thousand.
    linear_cost: ClassVar[bool] = True
    has_local_noise = False

    _ordered: tuple[Tensor, Tensor, Axis] | None = None

    def latent_leave_one_out(self, pseudo: PseudoData) -> LeaveOneOut:
        """Leave-one-out moments of f(x_i), relative to the prior mean, each ``n``. Cost O(n).

        Without gradient: the paper's leave-one-out objective is not for this model.
        """
        if torch.is_grad_enabled() and any(part.requires_grad for part in self.parameters()):
            raise ValueError(
                f"the leave-one-out objective has no gradient for a {type(self).__name__}: use fit_robust(model), or "
                "fit(model, 'marginal') for an ordinary GP"
            )
        order, axis = self._axis()
        H, copies = self._loadings()
        found = StateSpace(self._terms(), _array(H), copies).moments(axis, *sorted_pseudo(pseudo, order))
        mean, variance = torch.empty_like(pseudo.target), torch.empty_like(pseudo.target)
        mean[order], variance[order] = torch.from_numpy(found.mean), torch.from_numpy(found.variance)
        return LeaveOneOut(mean, variance)

    def signal_evidence(self, pseudo: PseudoData) -> Tensor:
        """ℓ, the part of the evidence of pseudo-data that involves the kernel; differentiable. Cost O(n)."""
        order, axis = self._axis()
        z, s = pseudo.target, pseudo.root_precision
        if not axis.as_given:
            z, s = z[order], s[order]
        return evidence(self._terms(), axis, z, s, *self._loadings())

    def nearest_rows(self) -> Tensor:
        """The training row that is nearest in time to each row, ``n``."""
        order, axis = self._axis()
        return nearest_in(order, np.diff(axis.times))

    def start_rows(self) -> Tensor | None:
        """Rows on which starts of a fit are tried where there are many: stretches of time; ``None`` for all."""
        order, axis = self._axis()
        length = max(_START_ROWS // _STRETCHES, self._shortest_stretch())
        if len(order) <= _STRETCHES * length:
            return None
        firsts = np.linspace(0, len(order) - length, _STRETCHES).round().astype(np.int64)
        # All rows of a time, or none.
        begins = np.searchsorted(axis.times, axis.times[firsts])
        ends = np.searchsorted(axis.times, axis.times[firsts + length - 1], side="right")
        rows = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
        return order[torch.from_numpy(np.unique(rows))]

    def typical_gap(self) -> float:
        """Median distance between neighbouring times, in units of their scale."""
        _, axis = self._axis()
        gaps = np.diff(axis.times)
        return float(np.median(gaps[gaps > 0]) / robust_scales(self.train_X[:, :1])) if gaps.any() else 1.0

    def _terms(self) -> list[Term]:
        """The terms of the kernel in time."""
        raise NotImplementedError

    def _loadings(self) -> tuple[Tensor | None, int]:
        """H, the vectors by which rows observe the state, and how many copies of the process it consists of."""
        return None, 1

    def _places(self) -> NDArray[np.int64] | None:
        """Which row of H each training row has, ``n``; ``None`` where there is one."""
        return None

    def _shortest_stretch(self) -> int:
        """Number of consecutive rows that say something of lengthscales in time."""
        return 1

    def _axis(self) -> tuple[Tensor, Axis]:
        """The order of the rows in time, and their times in it; kept until the rows change."""
        if self._ordered is None or self._ordered[0] is not self.train_X:
            t, place = self.train_X[:, 0].double(), self._places()
            # By value at equal times: results do not depend on the order in which rows are given.
            keys = (self.train_y.numpy(),) if place is None else (self.train_y.numpy(), place)
            order = np.lexsort((*keys, t.numpy()))
            axis = Axis(t.numpy()[order], None if place is None else place[order])
            axis.as_given = bool((order == np.arange(len(order))).all())
            self._ordered = self.train_X, torch.from_numpy(order), axis
        return self._ordered[1:]

    def _check_times(self, times: Any) -> Tensor:
        """Times as ``... x q x 1`` in the type of the training data."""
        t = as_real_tensor(times, "times")
        if t.ndim == 0:
            raise ValueError("times must have at least one dimension, got a number")
        t = t if t.ndim > 1 and t.shape[-1] == 1 else t.unsqueeze(-1)
        if t.numel() == 0:
            raise ValueError(f"times is empty: its shape is {tuple(t.shape)}")
        check_finite(t, "times")
        return t.to(self.train_X)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ordered": None}


class StateSpaceRCGP(MarkovRCGP):
    """Robust and conjugate Gaussian process regression of a series, in O(n) time and memory.

    The posterior of :class:`rcgp.RCGP` with the same kernel, exactly. :func:`rcgp.fit_robust` learns noise law, weights
    and hyperparameters as for any model, ``fit(model, "marginal")`` the hyperparameters of an ordinary GP.

    Args:
        times: ``n`` times, or ``n x 1``, in any order; they may be irregular and may repeat.
        y: ``n`` observations. NaN is a missing value: such rows take no part, :attr:`observed` says which do, and
            :meth:`posterior` predicts at any time.
        kernel: a GPyTorch kernel with a state-space form: ``MaternKernel``, ``CosineKernel``, ``PeriodicKernel``,
            ``ConstantKernel``, ``LinearKernel``, and scales, sums and products of these. Default: a scaled Matérn
            kernel of ν = 3/2.
        mean, noise, sample_weight, weight: as for :class:`rcgp.RCGP`. The default of the mean is the median, that of
            the weight ``Constant()``: a plain GP before a robust fit.
        harmonics: number of harmonics that stand for a ``PeriodicKernel``; see
            :func:`rcgp.series.harmonic_error`.

    Raises:
        ValueError: for data that are not finite, empty or of different lengths, and kernels without such a form.
    """

    has_local_noise = True

    def __init__(
        self,
        times: Tensor,
        y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "median",
        noise: float | None = None,
        sample_weight: Tensor | None = None,
        weight: WeightFunction | None = None,
        harmonics: int = HARMONICS,
    ) -> None:
        t, values = _check_series(times, y)
        if not isinstance(harmonics, int) or harmonics < 1:
            raise ValueError(f"harmonics must be a whole number, at least 1, got {harmonics!r}")
        precision = None if sample_weight is None else check_sample_weight(sample_weight, t)
        observed = ~values.isnan()
        check_finite(torch.where(observed, values, torch.zeros_like(values)), "y")
        if not bool(observed.any()):
            raise ValueError(f"y has no observation: all {len(values)} values are missing")
        t, values = t[observed], values[observed]
        if kernel is None:
            with torch.no_grad():
                residual = values - build_mean(mean, t, values).to(t)(t)
            kernel = default_series_kernel(t, robust_spread(residual))
        elif isinstance(kernel, gpytorch.kernels.Kernel):
            terms_of(kernel, harmonics)  # or an error that says what is missing
        super().__init__(
            t,
            values,
            kernel=kernel,
            mean=mean,
            weight=Constant() if weight is None else weight,
            noise=noise,
            sample_weight=None if precision is None else precision[observed],
        )
        self.harmonics = harmonics
        #: The name of the prior mean, if it was given by name.
        self.named_mean = mean if isinstance(mean, str) else None
        #: Which of the given rows are observed, those of ``train_X`` and ``train_y``: ``n``.
        self.observed = observed

    def noise_averages(self) -> list[list[NoiseAverage]]:
        """Averages in time, candidates for local noise, by their timescales (:mod:`rcgp.series.local_noise`)."""
        order, axis = self._axis()
        return [[partial(average_in_time, order, axis.times, tau) for tau in timescales(axis.times)]]

    def posterior(self, test_X: Tensor, observation_noise: bool = False) -> PosteriorNormal:
        """Posterior of f, or of new observations, at times.

        Args:
            test_X: ``... x q`` times, or ``... x q x 1``.
            observation_noise: as for :meth:`rcgp.RCGP.posterior`.

        Returns:
            A GPyTorch ``MultivariateNormal`` over ``q`` points, without gradient. Cost O(n + q) for mean and variances,
            and O((n + q) q) when covariances are asked for.
        """
        x = self._check_times(test_X)
        with torch.no_grad():
            process = self.process()
            covariance = PosteriorKernel(process, x.dtype)(x)  # type: ignore[arg-type]
            if observation_noise:
                covariance = covariance.add_diagonal(self.inlier_noise(x))
            return PosteriorNormal(process.mean(x), covariance)

    def sample(self, times: Tensor, samples: int = 1, seed: int | None = None) -> Tensor:
        """Joint samples of f at ``q`` times from the posterior, ``samples x q``. Cost O(n + q) for each.

        A sample of the prior plus the posterior mean of its error (Matheron's rule).
        """
        x = self._check_times(times)
        random = np.random.default_rng(seed)
        with torch.no_grad():
            drawn = self.process().sample(x.double().squeeze(-1).numpy(), samples, random)
        return torch.from_numpy(drawn).to(x)

    def components(self, times: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Posterior mean and variance of each summand of the kernel at ``q`` times: trend, seasons. Cost O(n + q).

        The prior mean is no part of them.
        """
        x = self._check_times(times)
        with torch.no_grad():
            return [
                (torch.from_numpy(mean).to(x), torch.from_numpy(variance).to(x))
                for mean, variance in self.process().components(x.double().squeeze(-1).numpy())
            ]

    def stream(self, coverage: float = 0.95) -> Stream:
        """The filter after the last training row, to be fed with new values: see :class:`rcgp.series.Stream`."""
        from rcgp.series.stream import Stream  # which builds models

        return Stream(self, coverage)

    def process(self) -> SeriesProcess:
        """The posterior process at the current hyperparameters."""
        model = self.in_float64()
        order, axis = model._axis()
        z, w = sorted_pseudo(model.training_terms().pseudo, order)
        mean, kernel = (copy.deepcopy(module).requires_grad_(False) for module in (model.mean, model.kernel))
        return SeriesProcess(mean, kernel, self.harmonics, axis.times, z, w)

    def _terms(self) -> list[Term]:
        return terms_of(self.kernel, self.harmonics)


def nearest_in(order: Tensor, gaps: Array) -> Tensor:
    """The nearest of the two neighbours of each row in an order of all rows, ``n``.

    Args:
        order: ``n`` rows.
        gaps: ``n − 1`` distances from one to the next.
    """
    if len(order) == 1:
        return torch.zeros_like(order)
    distances, ends = torch.from_numpy(gaps), torch.full((1,), torch.inf, dtype=torch.float64)
    later = torch.cat([distances, ends]) < torch.cat([ends, distances])
    place = torch.arange(len(order))
    nearest = torch.empty_like(order)
    nearest[order] = order[torch.where(later, place + 1, place - 1)]
    return nearest


def _array(H: Tensor | None) -> Array | None:
    return None if H is None else H.detach().numpy()


def _check_series(times: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Times ``n x 1`` and values ``n``, which may be NaN, as copies of one floating type; or a ValueError."""
    t, values = as_real_tensor(times, "times"), as_real_tensor(y, "y")
    if t.ndim == 1:
        t = t.unsqueeze(-1)
    if t.ndim != 2 or t.shape[1] != 1:
        raise ValueError(f"times must have shape n or n x 1, got {tuple(t.shape)}")
    if values.ndim != 1:
        raise ValueError(f"y must have shape n, got {tuple(values.shape)}")
    if len(t) == 0:
        raise ValueError("times is empty: at least one row is needed")
    if len(t) != len(values):
        raise ValueError(f"times and y must have the same number of rows, got {len(t)} and {len(values)}")
    check_finite(t, "times")
    dtype = torch.promote_types(t.dtype, values.dtype)
    if (t.device, values.device) != (torch.device("cpu"), torch.device("cpu")):
        raise ValueError(f"series are fitted on the CPU, got times on {t.device} and y on {values.device}")
    return t.detach().to(dtype).clone(), values.detach().to(dtype).clone()
