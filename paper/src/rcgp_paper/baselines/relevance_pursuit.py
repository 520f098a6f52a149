"""BoTorch's robust GP by relevance pursuit (Ament et al., 2024), with the interface of the other baselines.

Each suspected outlier receives a noise variance of its own; which ones is decided by greedy search and Bayesian model
comparison. BoTorch does all that, once, in ``fit``; what it finds is a GP with one noise variance for each observation,
that is, with weights, and predictions are made here. Importing BoTorch changes settings of the linear algebra for the
whole process, so it is imported by ``fit`` and not before.
"""

from __future__ import annotations

import time
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.means import PolynomialMean
from rcgp.training import FitError, FitReport
from rcgp.training.objectives import marginal
from rcgp.weights import WeightFunction

__all__ = ["RelevancePursuitGP"]


class RelevancePursuitGP(RCGP):
    """Gaussian process regression with extra noise variances ρ_i at outliers, chosen by BoTorch.

    It is BoTorch's model as its users meet it: squared exponential kernel, constant prior mean, priors, inputs scaled
    to [0, 1] and observations standardised, all by its defaults. Until it is fitted it is an ordinary GP. It needs the
    extra ``rcgp[botorch]``.

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
            outliers that were compared. Cost O(n³) for each evaluation, of which there are many.

        Raises:
            ImportError: where BoTorch is not installed.
            FitError: where BoTorch gives up; the model is as it was before.
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
            hyperparameters={key: entry.reshape(-1).tolist() for key, entry in self.hyperparameters().items()},
        )

    def _pursue(self) -> tuple[int, int]:
        """Relevance pursuit; the number of evaluations of the marginal likelihood and of models compared."""
        try:
            import botorch
            from botorch.exceptions.errors import ModelFittingError
            from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
            from botorch.models.transforms import Normalize
        except ImportError as error:
            raise ImportError("RelevancePursuitGP needs BoTorch: pip install 'rcgp[botorch]'") from error
        X, y = self.train_X.double(), self.train_y.double()
        scaling = Normalize(X.shape[-1])
        model = RobustRelevancePursuitSingleTaskGP(X, y.unsqueeze(-1), input_transform=scaling)
        objective = _CountedMarginalLikelihood(model.likelihood, model)
        try:
            botorch.fit_gpytorch_mll(objective)
        except ModelFittingError as error:
            farthest = int(self.residual().detach().abs().argmax())
            raise FitError(f"BoTorch's relevance pursuit failed ({error})", farthest) from error
        self._take_over(model)
        return objective.evaluations, len(model.bmc_support_sizes)

    def _take_over(self, model: Any) -> None:
        """The hyperparameters of BoTorch's model, in the units of the data."""
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
    """The marginal likelihood, and how often it was asked for."""

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
