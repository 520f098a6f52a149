"""Baselines with Gaussian noise: the ordinary GP, the GP on clipped observations, and BoTorch's relevance pursuit.

Importing BoTorch changes linear algebra settings of the whole process, so only ``RelevancePursuitGP.fit`` imports it.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.means import MeanLike, PolynomialMean
from rcgp.models.validation import check_training_data
from rcgp.training import FitError, FitReport, fit
from rcgp.training.objectives import marginal
from rcgp.training.search import Progress
from rcgp.weights import Constant, WeightFunction

__all__ = ["GaussianGP", "RelevancePursuitGP", "WinsorizedGP"]


class GaussianGP(RCGP):
    """Gaussian process regression with Gaussian noise.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel, mean, noise: as in ``RCGP``.
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
        """Choose the hyperparameters by the marginal likelihood; arguments as in :func:`rcgp.fit`."""
        return fit(self, "marginal", restarts, max_iterations, seed, progress)


class WinsorizedGP(GaussianGP):
    """An ordinary GP on observations clipped at Tukey's fences, as Ax clips them by default.

    The fences are Q₁ − 1.5 (Q₃ − Q₁) and Q₃ + 1.5 (Q₃ − Q₁), with the quartiles Q₁ rounded down and Q₃ up to an
    observation. Ax clips the worse side for an optimiser; a regression clips both. ``train_y`` holds the clipped
    observations.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel, mean, noise: as in ``RCGP``.
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
        # Zero times an infinite reach is not a number.
        margin = reach * (third - first) if math.isfinite(reach) else math.inf
        low, high = first - margin, third + margin
        super().__init__(X, y.clamp(low, high), kernel=kernel, mean=mean, noise=noise)
        self.fences = (low, high)
        self.register_buffer("clipped", (y < low) | (y > high), persistent=False)


class RelevancePursuitGP(RCGP):
    """BoTorch's robust GP by relevance pursuit (Ament et al., 2024): extra noise variances ρ_i at outliers.

    It is BoTorch's model with its defaults: squared exponential kernel, constant prior mean, priors, inputs scaled to
    [0, 1] and observations standardised. ``fit`` runs BoTorch's greedy search and Bayesian model comparison. The result
    is a GP with one noise variance for each observation, that is, with weights. Before the fit it is an ordinary GP. It
    needs the extra ``rcgp[botorch]``.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
    """

    mean: PolynomialMean
    weight: _OutlierVariances

    def __init__(self, train_X: Tensor, train_y: Tensor) -> None:
        super().__init__(train_X, train_y, weight=_OutlierVariances())

    @property
    def outlier_variances(self) -> Tensor:
        """Extra noise variance ρ of each observation, ``n``, zero for inliers."""
        return self.weight.variances

    def fit(self) -> FitReport:
        """Choose outliers, their variances and the hyperparameters with BoTorch's relevance pursuit.

        Returns:
            The report: the marginal likelihood, the number of its evaluations, and as iterations the numbers of
            outliers that were compared. Cost O(n³) for each of many evaluations.

        Raises:
            ImportError: if BoTorch is not installed.
            FitError: if the fit by BoTorch fails; the model is unchanged.
        """
        began = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            evaluations, compared = self._pursue()
        value = float(marginal(self.in_float64()).detach())
        return FitReport(
            objective="marginal",
            value=value,
            evaluations=evaluations,
            rejected=0,
            iterations=compared,
            seconds=time.perf_counter() - began,
            converged=True,
            message=f"{compared} numbers of outliers compared by BoTorch",
            starts=(value,),
            hyperparameters=self.listed_hyperparameters(),
        )

    def _pursue(self) -> tuple[int, int]:
        """Run relevance pursuit; returns the numbers of evaluations and of models compared."""
        try:
            import botorch
            from botorch.exceptions.errors import ModelFittingError
            from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
            from botorch.models.transforms import Normalize
        except ImportError as error:
            raise ImportError("RelevancePursuitGP needs BoTorch: pip install 'rcgp[botorch]'") from error
        X, y = self.train_X.double(), self.train_y.double()
        model = RobustRelevancePursuitSingleTaskGP(X, y.unsqueeze(-1), input_transform=Normalize(X.shape[-1]))
        objective = _CountedMarginalLikelihood(model.likelihood, model)
        try:
            botorch.fit_gpytorch_mll(objective)
        except ModelFittingError as error:
            farthest = int(self.residual().detach().abs().argmax())
            raise FitError(f"BoTorch's relevance pursuit failed ({error})", farthest) from error
        self._take_over(model)
        return objective.evaluations, len(model.bmc_support_sizes)

    def _take_over(self, model: Any) -> None:
        """Copy the hyperparameters of BoTorch's model, in the units of the data."""
        with torch.no_grad():
            centre, scale = model.outcome_transform.means.reshape(()), model.outcome_transform.stdvs.reshape(())
            noises = model.likelihood.noise_covar
            noise = noises.base_noise.noise.reshape(())
            self.kernel.base_kernel.lengthscale = model.covar_module.lengthscale * model.input_transform.coefficient
            self.kernel.outputscale = scale.square()
            self.mean.coefficients.fill_(float(centre + scale * model.mean_module.constant))
            self.noise = noise * scale.square()
            # ρ is relative to the variance of an ordinary observation, whose f has variance 1.
            self.weight.variances = (noises.rho * (1.0 + noise) * scale.square()).to(self.train_y)


class _CountedMarginalLikelihood(gpytorch.mlls.ExactMarginalLogLikelihood):  # type: ignore[misc]
    """The marginal likelihood, with a count of its evaluations."""

    evaluations = 0

    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        self.evaluations += 1
        value: Tensor = super().forward(*arguments, **keywords)
        return value


class _OutlierVariances(WeightFunction):
    """w̃ = (1 + ρ/σ²)^(-½): observation i has the noise variance σ² + ρ_i."""

    constant_in_y = True
    variances: Tensor

    def initialise(self, residual: Tensor) -> None:
        self.register_buffer("variances", torch.zeros_like(residual), persistent=False)

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return (1.0 + self.variances / noise.unsqueeze(-1)).rsqrt()

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)
