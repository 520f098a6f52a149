"""The GP on clipped observations: what is done in practice where outliers are feared and nothing better is at hand."""

from __future__ import annotations

import math

import gpytorch
from torch import Tensor

from rcgp.models.means import MeanLike
from rcgp.models.validation import check_training_data
from rcgp_paper.baselines.gaussian import GaussianGP

__all__ = ["WinsorizedGP"]


class WinsorizedGP(GaussianGP):
    """An ordinary GP on observations clipped at Tukey's fences, as Ax clips them by default.

    The fences are Q₁ − 1.5 (Q₃ − Q₁) and Q₃ + 1.5 (Q₃ − Q₁), with the quartiles Q₁ rounded down and Q₃ up to an
    observation; Ax clips on the side that an optimiser fears, a regression has no such side and clips on both.
    ``train_y`` holds the clipped observations.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel: any GPyTorch kernel with one output; default as in ``RCGP``.
        mean: prior mean, as in ``RCGP``, of the clipped observations.
        noise: starting value of the noise variance σ², as in ``RCGP``.
        reach: distance of the fences from the quartiles in multiples of Q₃ − Q₁; infinite for no clipping.

    Attributes:
        fences: the lowest and the highest value that remain.
        clipped: ``n`` truth values, whether an observation was clipped.
    """

    clipped: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        noise: float | None = None,
        reach: float = 1.5,
    ) -> None:
        if not reach >= 0:
            raise ValueError(f"reach must be a number, at least 0, got {reach!r}")
        X, y = check_training_data(train_X, train_y)
        first = float(y.quantile(0.25, interpolation="lower"))
        third = float(y.quantile(0.75, interpolation="higher"))
        width = third - first
        # No width times an infinite reach is no number; everything remains then.
        low, high = (first - reach * width, third + reach * width) if math.isfinite(reach) else (-math.inf, math.inf)
        super().__init__(X, y.clamp(low, high), kernel=kernel, mean=mean, noise=noise)
        self.fences = (low, high)
        self.register_buffer("clipped", (y < low) | (y > high), persistent=False)
