"""The paper's loss as a GPyTorch likelihood."""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Normal

from rcgp.gpytorch.rows import RowLikelihood
from rcgp.weights import InverseMultiquadric, LawWeight, WeightFunction

__all__ = ["RCGPLikelihood"]


class RCGPLikelihood(RowLikelihood):
    """The paper's robust and conjugate loss in place of a log likelihood, for variational and deep GPs.

    With residual e = y − m, weight w̃(e) and slope ∂_y log w̃², a row loses

        L(y, f) = w̃² ((y − f)² / (2σ²) − (y − f) ∂_y log w̃² − 1),

    which is quadratic in f, so that with q(f) = N(m, v) its expectation is closed: (y − f)² becomes (y − m)² + v. With
    inducing points at all inputs the best q is the posterior of :class:`rcgp.RCGP`.

    The loss is no density in y, and decreases without end as σ² grows. So σ² and the threshold of the weight are held
    fixed, as in the paper's sparse model: choose them, or take :class:`NoiseLawLikelihood`, which learns its noise. A
    weight that does not depend on y has a likelihood: ``Constant()`` is ``GaussianLikelihood``, with a noise that is
    learned.

    Args:
        targets: all training targets, ``... x n``, or ``... x n x t`` for t tasks: their median is the centre of the
            weight, and the paper's rule for the threshold c is applied to all of them at once, not to each batch.
        noise: noise variance σ², in squared units of the targets.
        weight: weight function. Default: ``InverseMultiquadric()``.
        num_tasks: number t of tasks of a multitask model. ``None``: one output.
        batch_shape: shape of a batch of independent models.
        centre: centre of the weight; give the model's prior mean where it is not the median.
        noise_prior, noise_constraint: of the noise variance where it is learned.
    """

    def __init__(
        self,
        targets: Tensor,
        noise: float | Tensor,
        weight: WeightFunction | None = None,
        *,
        num_tasks: int | None = None,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        centre: float | Tensor | None = None,
        noise_prior: gpytorch.priors.Prior | None = None,
        noise_constraint: gpytorch.constraints.Interval | None = None,
    ) -> None:
        weight = InverseMultiquadric() if weight is None else weight
        if not isinstance(weight, WeightFunction):
            raise TypeError(f"weight must be a weight function of rcgp.weights, got {weight!r}")
        if isinstance(weight, LawWeight):
            raise TypeError(
                "a LawWeight belongs to the rows of one model: use NoiseLawLikelihood, which learns the law"
            )
        super().__init__(targets, num_tasks, batch_shape, centre, noise, noise_prior, noise_constraint)
        residual = self._training_rows(targets) - self.centre.unsqueeze(-1)
        self.weight = weight.frozen(residual).requires_grad_(False)
        self.raw_noise.requires_grad_(weight.constant_in_y)

    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, inputs: Any = None, **kwargs: Any
    ) -> Tensor:
        """−E L(y_i, f_i) of each row, summed over tasks: ``... x n``.

        Args:
            observations: ``... x n`` values y, or ``... x n x t``.
            function_dist: distribution q of f.
            inputs: ``... x n x d`` inputs, for a weight that depends on them: ``mll(output, y, inputs=x)``.
        """
        mean, variance = self._moments(function_dist)
        y = self._observed(observations, function_dist)
        noise, (weight, slope) = self.noise.unsqueeze(-1), self._weigh(y, inputs)
        precision = weight / noise.sqrt()  # squared after it is multiplied: 1e300 has no square
        loss = 0.5 * ((precision * (y - mean)).square() + precision.square() * variance)
        if self.weight.constant_in_y:
            constant = 0.5 * math.log(2.0 * math.pi) - precision.log()
        else:
            constant = -weight * (weight * slope * (y - mean) + weight)
        return -(loss + constant).sum(dim=-2)

    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        """log N(y_i; m_i, v_i + σ²) of each row, summed over tasks: ``... x n``. Outliers count as other rows do."""
        mean, variance = self._moments(function_dist)
        y = self._observed(observations, function_dist)
        density: Tensor = Normal(mean, (variance + self.noise.unsqueeze(-1)).sqrt()).log_prob(y)  # type: ignore[no-untyped-call]
        return density.sum(dim=-2)

    def marginal(self, function_dist: MultivariateNormal, *args: Any, **kwargs: Any) -> Normal:
        """Distribution of new observations, N(m, v + σ²) at each row."""
        mean, variance = self._moments(function_dist)
        std = (variance + self.noise.unsqueeze(-1)).sqrt()
        return Normal(self._restored(mean.expand_as(std)), self._restored(std))

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> Normal:
        """Distribution of observations given values of f."""
        mean = self._laid_out(function_samples, "the function")
        return Normal(function_samples, self._restored(self.noise.sqrt().unsqueeze(-1).expand_as(mean)))

    def weights(self, observations: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Weight w̃ of each observation, in its shape."""
        y = self._laid_out(observations, "observations")
        return self._restored(self._weigh(y, inputs)[0])

    def _weigh(self, y: Tensor, inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights and slopes of laid out observations, each ``... x t x n``."""
        residual = y - self.centre.unsqueeze(-1)
        x = residual.new_empty(*residual.shape, 0) if inputs is None else inputs.unsqueeze(-3)
        return self.weight(residual, x, self.noise), self.weight.slope(residual, x, self.noise)
