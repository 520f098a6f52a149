"""The posterior process of a series: training and test rows in one pass, in O(n + q)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.core.pseudo import PseudoData
from rcgp.series.kernels import groups_of, prior_covariance, terms_of
from rcgp.series.solver import Axis, StateSpace

__all__ = ["Merged", "SeriesProcess", "sorted_pseudo"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeriesProcess:
    """The posterior process of a series: an answer at any times costs O(n + q).

    Attributes:
        prior_mean, kernel: copies of the prior's that nobody else changes.
        harmonics: of periodic kernels.
        times, z, w: ``n`` times in order, pseudo-targets and squared precisions.
    """

    prior_mean: gpytorch.means.Mean
    kernel: gpytorch.kernels.Kernel
    harmonics: int
    times: Array
    z: Array
    w: Array

    def mean(self, x: Tensor) -> Tensor:
        """Posterior mean of f at ``... x q x 1`` times: ``... x q``."""
        prior: Tensor = self.prior_mean(x.double()).to(x)
        return self._answer(x, 0) + prior

    def variance(self, x: Tensor) -> Tensor:
        """Posterior variance of f at ``... x q x 1`` times: ``... x q``."""
        return self._answer(x, 1)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Posterior covariance of f between ``... x q x 1`` and ``... x p x 1`` times: ``... x q x p``.

        k(x₁, x₂) minus the posterior mean at x₁ of the series k(·, x₂), for each x₂. Cost O((n + q) p).
        """
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])  # type: ignore[no-untyped-call]
        first = x1.double().expand(*batch, *x1.shape[-2:]).reshape(-1, x1.shape[-2])
        second = x2.double().expand(*batch, *x2.shape[-2:]).reshape(-1, x2.shape[-2])
        terms, results = terms_of(self.kernel, self.harmonics), []
        for left, right in zip(first.numpy(), second.numpy(), strict=True):
            columns, passes = prior_covariance(terms, self.times, right), self._passes(left)
            explained = [passes.run(np.ascontiguousarray(column))[0] for column in columns.T]
            K = prior_covariance(terms, left, right)
            results.append(torch.from_numpy(K - np.stack(explained, axis=-1)))
        return torch.stack(results).reshape(*batch, x1.shape[-2], x2.shape[-2]).to(x1)

    def components(self, times: Array) -> list[tuple[Array, Array]]:
        """Posterior mean and variance of each summand of the kernel at ``q`` times."""
        terms = terms_of(self.kernel, self.harmonics)
        counts = [count for _, count in groups_of(self.kernel, self.harmonics)]
        space = StateSpace(terms)
        H, at, block = [space.layout.values], 0, 0
        for count in counts:
            h, size = np.zeros(space.size), sum(space.layout.blocks[block : block + count])
            h[at : at + size] = space.layout.values[at : at + size]
            H.append(h)
            at, block = at + size, block + count
        passes = self._passes(
            np.tile(times, len(counts)), np.stack(H), np.repeat(np.arange(len(counts)) + 1, len(times))
        )
        mean, variance = passes.run(self.z)
        return list(zip(mean.reshape(len(counts), -1), variance.reshape(len(counts), -1), strict=True))

    def sample(self, times: Array, samples: int, random: np.random.Generator) -> Array:
        """Joint samples of f at ``q`` times, ``samples x q``."""
        passes, prior = self._passes(times), self.prior_mean(torch.from_numpy(times).unsqueeze(-1)).numpy()
        drawn = np.empty((samples, len(times)))
        for path in drawn:
            path[:] = prior + passes.sample(self.z, random)
        return drawn

    def _answer(self, x: Tensor, which: int) -> Tensor:
        """Mean and variance come from one pass: those of the last times are kept."""
        times = x.double().reshape(-1).numpy()
        if "last" not in self._kept or not np.array_equal(self._kept["last"][0], times):
            self._kept["last"] = times, self._passes(times).run(self.z)
        return torch.from_numpy(self._kept["last"][1][which]).reshape(x.shape[:-1]).to(x)

    @cached_property
    def _kept(self) -> dict[str, tuple[Array, tuple[Array, Array]]]:
        return {}

    def _passes(self, times: Array, H: Array | None = None, place: NDArray[np.int64] | None = None) -> Merged:
        space = StateSpace(terms_of(self.kernel, self.harmonics), H)
        return Merged(space, Axis(self.times), self.w, times, place)


class Merged:
    """Training rows and test rows in the order of time; the latter are missing values, whose posterior is wanted."""

    def __init__(
        self, space: StateSpace, own: Axis, w: Array, times: Array, place: NDArray[np.int64] | None = None
    ) -> None:
        every = np.concatenate([own.times, times])
        places = np.concatenate([own.place, np.zeros(len(times), dtype=np.int64) if place is None else place])
        self.order = np.argsort(every, kind="stable")
        self.space, self.axis = space, Axis(every[self.order], places[self.order])
        self.own = len(own.times)
        self.w = np.concatenate([w, np.zeros(len(times))])[self.order]
        self.std = np.where(w > 0.0, 1.0 / np.sqrt(np.maximum(w, 1e-300)), 0.0)  # of the noise of training rows

    def run(self, z: Array) -> tuple[Array, Array]:
        """Posterior mean and variance of the test rows, given targets of the training rows. Cost O(n + q).

        A trend far from time zero has a variance so large that the filter loses digits of the variance of rows before
        the first observation. They are taken from the series in reverse, where they come last: k(−t, −t') = k(t, t').
        """
        targets = np.zeros(len(self.order))
        targets[: self.own] = z
        found = self.space.moments(self.axis, targets[self.order], self.w)
        first = int(np.argmax(self.w > 0.0))
        if first and self.space.layout.has_trend:
            axis = Axis(-self.axis.times[::-1], self.axis.place[::-1])
            reverse = self.space.moments(axis, targets[self.order][::-1].copy(), self.w[::-1].copy())
            found.mean[:first], found.variance[:first] = reverse.mean[::-1][:first], reverse.variance[::-1][:first]
        mean, variance = np.empty_like(targets), np.empty_like(targets)
        mean[self.order], variance[self.order] = found.mean, found.variance
        return mean[self.own :], variance[self.own :]

    def sample(self, z: Array, random: np.random.Generator) -> Array:
        """A sample of the test rows, given targets of the training rows. Cost O(n + q).

        A sample of the prior plus the posterior mean of its error (Matheron's rule).
        """
        path = np.empty(len(self.order))
        path[self.order] = self.space.draw(self.axis, random)
        error = z - path[: self.own] - self.std * random.standard_normal(self.own)
        return path[self.own :] + self.run(error)[0]


def sorted_pseudo(pseudo: PseudoData, order: Tensor) -> tuple[Array, Array]:
    """Targets and squared precisions in the order of time, float64."""
    z, s = pseudo.target[order].detach().double(), pseudo.root_precision[order].detach().double()
    return z.numpy(), s.square().numpy()
