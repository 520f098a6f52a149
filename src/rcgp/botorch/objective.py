"""The leave-one-out score as an objective for BoTorch's and GPyTorch's optimisers."""

from __future__ import annotations

from typing import Any

from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.weighing import weigh

__all__ = ["LeaveOneOutObjective"]


class LeaveOneOutObjective(ExactMarginalLogLikelihood):  # type: ignore[misc]
    """(Σ_i log p(y_i | all other observations) + log priors) / n for each model of a batch: in the place of an ``mll``.

    With a weight function it is the paper's objective. With a learned noise law the density is that of the law, so that
    no observation has unbounded influence on the hyperparameters; the shares of the law are held fixed.

    Args:
        likelihood: the model, or its likelihood where the model is given next, as GPyTorch has it.
        model: the model.

    Example:
        >>> import torch
        >>> from botorch import fit_gpytorch_mll
        >>> X = torch.rand(12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> model = SingleTaskRCGP(X, X.sin(), weight="imq")
        >>> objective = fit_gpytorch_mll(LeaveOneOutObjective(model))
        >>> objective.training
        False
    """

    model: SingleTaskRCGP

    def __init__(self, likelihood: GaussianLikelihood | SingleTaskRCGP, model: SingleTaskRCGP | None = None) -> None:
        if isinstance(likelihood, SingleTaskRCGP):
            model, likelihood = likelihood, likelihood.likelihood
        if not isinstance(model, SingleTaskRCGP):
            raise TypeError(f"LeaveOneOutObjective needs a SingleTaskRCGP, got {type(model).__name__}")
        super().__init__(likelihood, model)

    def forward(self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **_: Any) -> Tensor:
        """The objective, one number for each model of the batch. Cost O(n³).

        Args:
            function_dist: the prior at the training inputs: what the model returns in training mode.
            target: ``... x n`` observations, transformed.
        """
        model = self.model
        K, residual = function_dist.lazy_covariance_matrix.to_dense(), target - function_dist.mean
        weighed = weigh(model.training_inputs(), K, residual, model.row_noise(), model.weighing())
        value: Tensor = self._add_other_terms(weighed.leave_one_out_score(), params) / target.shape[-1]
        return value
