"""ST-RCGP's rule (Laplante et al., 2025, arXiv 2502.02450): weights centred on the predictions of a Kalman filter.

Rows are processed in the order of time. With the prediction N(f, v) of the function from the rows before, the weight
of a residual e is an inverse multiquadric around f, with the predicted standard deviation of the observation as
threshold:

    w̃² = 1 / (1 + (e − f)²/c²),        c² = v + σ²,        ∂_y log w̃² = −2 (e − f) / (c² + (e − f)²),

with f and c constant in y. The filter observes the pseudo-data of Prop. 3.1, z = e − σ² ∂_y log w̃² with noise
variance σ²/w̃², and so does the smoother. A weight does not depend on later rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gpytorch
import numpy as np
import torch
from numba import boolean, float64, int64, njit, void
from torch import Tensor

from rcgp.core.pseudo import pseudo_data
from rcgp.models.exact import TrainingTerms
from rcgp.models.means import MeanLike
from rcgp.series import StateSpaceRCGP
from rcgp.series.filtering import LAYOUT, assign, layout_arrays, observe, predict
from rcgp.series.solver import StateSpace
from rcgp.training import FitReport, fit
from rcgp.training.search import Progress

__all__ = ["FilterCentredGP"]


class FilterCentredGP(StateSpaceRCGP):
    """A series with ST-RCGP's weights, in O(n), for the kernels and times of :class:`rcgp.StateSpaceRCGP`.

    :meth:`fit` gives it the hyperparameters of the ordinary GP of the same data, by marginal likelihood. The authors
    set those of their run on the Dow Jones index by hand.

    Args:
        times, y, kernel, mean, noise: as for :class:`rcgp.StateSpaceRCGP`.
    """

    def __init__(
        self,
        times: Tensor,
        y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        noise: float | None = None,
    ) -> None:
        super().__init__(times, y, kernel=kernel, mean=mean, noise=noise)

    def fit(
        self,
        restarts: int = 0,
        max_iterations: int = 1000,
        seed: int | None = None,
        progress: bool | Progress = False,
    ) -> FitReport:
        """Choose the hyperparameters by the marginal likelihood of the ordinary GP; arguments as in :func:`rcgp.fit`.

        Cost O(n) for each evaluation.
        """
        # It shares kernel and mean with this model.
        ordinary = StateSpaceRCGP(
            self.train_X, self.train_y, kernel=self.kernel, mean=self.mean, noise=self.noise.item()
        )
        report = fit(ordinary, "marginal", restarts, max_iterations, seed, progress)
        self.noise = ordinary.noise
        return report

    def training_terms(self) -> TrainingTerms:
        """Residuals, weights and pseudo-data at the current hyperparameters, without gradient. Cost O(n)."""
        with torch.no_grad():
            e, noise = self.residual(), self.noise
            centre, scale = self._predictions(e, noise)
            u = (e - centre) / scale
            w = 1.0 / torch.hypot(torch.ones_like(u), u)
            slope = -2.0 / scale * (u * w) * w
            return TrainingTerms(e, w, slope, noise, noise, pseudo_data(e, w, slope, noise))

    def weights(self) -> Tensor:
        """Weight w̃ of each training row, ``n``: 1 for an observation that equals its prediction."""
        return self.training_terms().weight

    def _predictions(self, residual: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's prediction f by the filter, relative to the prior mean, and c: each ``n``."""
        order, axis = self._axis()
        space = StateSpace(self._terms())
        run, layout = _compiled_filter(), (*layout_arrays(space.blocks), len(space.blocks) == 1)
        e = residual[order].double().numpy()
        centre, scale = np.empty_like(e), np.empty_like(e)
        m, P = np.zeros(space.size), space.prior(float(axis.times[0]))
        for stretch in axis.stretches(space.layout):
            A, Q = space.fill(stretch.gaps, stretch.times)
            rows = stretch.rows
            run(*layout, A, Q, stretch.which, space.H, e[rows], noise.item(), m, P, centre[rows], scale[rows])
        results = torch.empty(2, len(e), dtype=torch.float64)
        results[:, order] = torch.from_numpy(np.stack([centre, scale]))
        first, second = results.to(residual)
        return first, second


@lru_cache(maxsize=1)
def _compiled_filter() -> Callable[..., Any]:
    """The filter, for any layout of the state (:mod:`rcgp.series.filtering`)."""

    vector, matrix = float64[::1], float64[:, ::1]
    layout, rows = (LAYOUT, LAYOUT, LAYOUT, boolean), (matrix, matrix, int64[::1], matrix, vector)

    @njit(void(*layout, *rows, float64, vector, matrix, vector, vector), cache=True)
    def run(sizes, starts, flats, single, A, Q, which, H, residual, noise, m, P, centre, scale):
        """Rows of one stretch of time, from the state (m, P) after the row before it, which is changed in place."""
        D = m.size
        new_m, new_P, AP, Ph = np.empty(D), np.empty((D, D)), np.empty((D, D)), np.empty(D)
        for i in range(residual.size):
            if which[i] >= 0:
                predict(D, sizes.size, sizes, starts, flats, A, Q, which[i], m, P, new_m, new_P, AP)
                assign(D, new_m, new_P, m, P)
            f, v = 0.0, 0.0
            for r in range(D):
                f += H[0, r] * m[r]
                for c in range(D):
                    v += H[0, r] * P[r, c] * H[0, c]
            centre[i], scale[i] = f, math.sqrt(max(v, 0.0) + noise)
            u = (residual[i] - f) / scale[i]
            w = 1.0 / math.hypot(1.0, u)
            if w * w > 0.0:  # else the row is deleted
                slope = -2.0 / scale[i] * (u * w) * w
                observe(D, single, H, 0, residual[i] - noise * slope, w * w / noise, m, P, m, P, Ph)

    return run  # type: ignore[no-any-return]
