"""The ordinary GP, which every robust one is compared with: constant weights, marginal likelihood."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.means import MeanLike
from rcgp.training import FitReport, fit
from rcgp.training.search import Progress
from rcgp.weights import Constant

__all__ = ["GaussianGP"]


class GaussianGP(RCGP):
    """Gaussian process regression with Gaussian noise.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel: any GPyTorch kernel with one output; default as in ``RCGP``.
        mean: prior mean, as in ``RCGP``.
        noise: starting value of the noise variance σ², as in ``RCGP``.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        noise: float | None = None,
    ) -> None:
        super().__init__(train_X, train_y, kernel=kernel, mean=mean, weight=Constant(), noise=noise)

    def fit(
        self,
        restarts: int = 0,
        max_iterations: int = 1000,
        seed: int | None = None,
        progress: bool | Progress = False,
    ) -> FitReport:
        """Choose the hyperparameters by the marginal likelihood. The arguments are those of :func:`rcgp.fit`."""
        return fit(self, "marginal", restarts, max_iterations, seed, progress)
