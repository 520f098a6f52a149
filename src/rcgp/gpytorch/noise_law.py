"""A GPyTorch likelihood with the learned noise law: any variational or deep GP becomes robust by one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from rcgp.core.expected_law import expected_responsibilities
from rcgp.core.noise_law import FIRST_COUNTS, PRIOR_COUNTS, width_of_outliers
from rcgp.gpytorch.rows import FIRST_NOISE, RowLikelihood
from rcgp.models.defaults import robust_spreads
from rcgp.weights.noise_law import (
    OUTLIER_WIDTH,
    SCALES,
    NoiseLaw,
    Responsibilities,
    by_component,
    mixture_quantile,
    responsibilities,
    spread_tail,
)

__all__ = ["NoiseLawLikelihood", "NoiseMixture"]

_Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Responsibilities]


class NoiseLawLikelihood(RowLikelihood):
    """Noise that may be normal, heavy-tailed or have outliers: the learned noise law as a likelihood of GPyTorch.

    In place of ``GaussianLikelihood()`` in a script for variational or deep GPs::

        likelihood = NoiseLawLikelihood(train_y)

    With q(f_i) = N(m_i, v_i), ``expected_log_prob`` is the closed bound log Σ_k π_k exp(E log p_k(y_i | f_i)) of
    :mod:`rcgp.core.expected_law`, without quadrature; ``log_marginal`` is exact. Noise variance σ² is a parameter for
    the optimiser. The shares of the law and the width of outliers are not: in training mode each batch of b rows
    updates them exactly, as expectation and maximisation do, with the prior of the exact model. With N rows in all,

        n ← n + (b / N) (N · mean of ρ over the batch − n),        π ∝ n + prior counts,

    so that the law remembers about one epoch; with all rows in one batch it is a step of the exact model. The counts n
    begin as the exact model's: normal noise, and one row in eleven an outlier.

    Args:
        targets: all training targets, ``... x n``, or ``... x n x t`` for t tasks. Their number, median and robust
            spread are kept. Unless law or noise are given, the first batch in training mode looks at the model as well:
            the density of outliers is centred where it predicts, and the spread is that of the targets around that, or
            that of f, where these are larger. So no row begins as an outlier because the model begins far away.
        law: a law to hold fixed, such as ``NoiseLaw.normal()``, which is ``GaussianLikelihood``. Default: learned.
        num_tasks: number t of tasks of a multitask model, each with its own noise and law. ``None``: one output.
        batch_shape: shape of a batch of independent models, each with its own noise and law.
        centre: centre of the density of outliers, the prior mean. Default: where the model's first predictions are.
        noise: noise variance to start from. Default: 0.69 squared spreads.
        noise_prior: prior of the noise variance.
        noise_constraint: its constraint. Default: positive, on a logarithmic scale.
    """

    counts: Tensor
    far: Tensor
    width: Tensor
    started: Tensor

    def __init__(
        self,
        targets: Tensor,
        law: NoiseLaw | None = None,
        *,
        num_tasks: int | None = None,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        centre: float | Tensor | None = None,
        noise: float | Tensor | None = None,
        noise_prior: gpytorch.priors.Prior | None = None,
        noise_constraint: gpytorch.constraints.Interval | None = None,
    ) -> None:
        super().__init__(targets, num_tasks, batch_shape, centre, noise, noise_prior, noise_constraint)
        self.law = law
        ones = torch.ones_like(self.spread)
        first = self.spread.new_tensor(FIRST_COUNTS)
        self.register_buffer("counts", ones.unsqueeze(-1) * first * (self.num_rows / first.sum()))  # ... x t x 3
        self.register_buffer("far", 0.5 * self.counts[..., -1])
        self.register_buffer("width", OUTLIER_WIDTH * self.spread if law is None else ones * law.width)
        self.centre_is_given = centre is not None
        self.register_buffer("started", torch.tensor(noise is not None or law is not None))

    @property
    def log_shares(self) -> Tensor:
        """log π of each scale and, last, of outliers: ``... x t x 5``."""
        if self.law is not None:
            return self.law.log_shares(self.counts)
        total = self.counts + self.counts.new_tensor(PRIOR_COUNTS)
        return spread_tail(total / total.sum(dim=-1, keepdim=True)).log()

    @property
    def noise_law(self) -> NoiseLaw | list[NoiseLaw]:
        """The law at present; a list of laws for several tasks or a batch."""
        flat = self.log_shares.expand(*self.width.shape, -1).exp().reshape(-1, len(SCALES) + 1).tolist()
        widths = self.width.reshape(-1).tolist()
        laws = [
            NoiseLaw(tuple(shares), outliers, width) for (*shares, outliers), width in zip(flat, widths, strict=True)
        ]
        return laws[0] if len(laws) == 1 else laws

    def expected_log_prob(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        share: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Bound on E log p(y_i | f_i) of each row, summed over tasks: ``... x n``. Updates the law in training mode.

        Args:
            observations, function_dist: ``... x n`` observations and the distribution of f there.
            share: ``... x n x 5`` responsibilities of the components (``... x t x n x 5`` with tasks), from better
                predictions than those of a model at the start of its training. The bound is that for given ones.
        """
        if share is not None:
            n = function_dist.event_shape[0]
            if share.shape[-2:] != (n, len(SCALES) + 1):
                got = f"{tuple(share.shape)} for {n} rows"
                raise ValueError(f"share must have a row of {len(SCALES) + 1} responsibilities for each row, got {got}")
        return self._log_density(partial(expected_responsibilities, share=share), observations, function_dist)

    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        """log E p(y_i | f_i) of each row, summed over tasks: ``... x n``. Updates the law in training mode."""
        return self._log_density(responsibilities, observations, function_dist)

    def marginal(self, function_dist: MultivariateNormal, *args: Any, **kwargs: Any) -> NoiseMixture:
        """Distribution of new observations that are no outliers, given the one of f."""
        mean, variance = self._moments(function_dist)
        return self._mixture(mean, variance)

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> NoiseMixture:
        """Distribution of observations that are no outliers, given values of f."""
        mean = self._laid_out(function_samples, "the function")
        return self._mixture(mean, torch.zeros_like(mean))

    def responsibilities(self, observations: Tensor, function_dist: MultivariateNormal) -> Responsibilities:
        """Which component of the law each observation comes from, given the prediction of f.

        Tensors inside are ``... x t x n`` and ``... x t x n x 5``, with t = 1 for one output.
        """
        return self._rows(responsibilities, observations, function_dist)

    def outlier_probability(self, observations: Tensor, function_dist: MultivariateNormal) -> Tensor:
        """Probability that each observation is an outlier or has noise of the widest scale, in the shape of f.

        The prediction should not follow the observation. A sparse or deep model follows no single row for long, so its
        training rows may be judged by its own predictions.
        """
        return self._restored(self.responsibilities(observations, function_dist).outlier_probability)

    def weights(self, observations: Tensor, function_dist: MultivariateNormal) -> Tensor:
        """Weight w̃ = E[s⁻²]^½ of each observation, in the shape of f: 1 counts in full, 0 is an outlier."""
        return self._restored(self.responsibilities(observations, function_dist).weight)

    def _rows(self, step: _Step, observations: Tensor, function_dist: MultivariateNormal) -> Responsibilities:
        mean, variance = self._moments(function_dist)
        y = self._observed(observations, function_dist)
        centre = self.centre.unsqueeze(-1)
        law = self.log_shares.unsqueeze(-2), self.width.unsqueeze(-1)
        return step(y - centre, mean - centre, variance, self.noise.unsqueeze(-1), *law)

    def _log_density(self, step: _Step, observations: Tensor, function_dist: MultivariateNormal) -> Tensor:
        learns = self.training and self.law is None and torch.is_grad_enabled()
        if learns and not bool(self.started):
            self._start(observations, function_dist)
        rows = self._rows(step, observations, function_dist)
        if learns:
            self._update(rows)
        return rows.log_density.sum(dim=-2)

    @torch.no_grad()
    def _start(self, observations: Tensor, function_dist: MultivariateNormal) -> None:
        """Centre, spread and noise as the first predictions have them, before any training."""
        mean, variance = self._moments(function_dist)
        deviation = self._observed(observations, function_dist) - mean
        squares = torch.maximum(robust_spreads(deviation).square(), variance.quantile(0.5, dim=-1))  # ... x t
        centre = mean.quantile(0.5, dim=-1)
        while squares.ndim > self.noise.ndim:
            squares, centre = squares.mean(dim=0), centre.mean(dim=0)
        self.spread = torch.maximum(self.spread, squares.sqrt().expand_as(self.spread))
        self.width, self.noise = OUTLIER_WIDTH * self.spread, FIRST_NOISE * self.spread.square()
        if not self.centre_is_given:
            self.centre = centre.expand_as(self.centre).clone()
        self.started = torch.ones_like(self.started)

    @torch.no_grad()
    def _update(self, rows: Responsibilities) -> None:
        """The law after one more batch. Samples of a deep GP, leading axes, count as one."""
        found = torch.cat(
            [by_component(rows.share), (rows.outlier * (rows.far / rows.reach).square()).unsqueeze(-1)], dim=-1
        ).mean(dim=-2)  # ... x t x 4
        while found.ndim > self.counts.ndim:
            found = found.mean(dim=0)
        step = min(1.0, rows.residual.shape[-1] / self.num_rows)
        # New tensors: the backward pass still needs the old ones.
        self.counts = torch.lerp(self.counts, self.num_rows * found[..., :-1].expand_as(self.counts), step)
        self.far = torch.lerp(self.far, self.num_rows * found[..., -1].expand_as(self.far), step)
        first = OUTLIER_WIDTH * self.spread
        self.width = width_of_outliers(self.far, self.counts[..., -1], self.width, first)

    def _mixture(self, mean: Tensor, variance: Tensor) -> NoiseMixture:
        noise = self.noise.unsqueeze(-1).unsqueeze(-1) * self.noise.new_tensor(SCALES).square()  # ... x t x 1 x 4
        total = variance.unsqueeze(-1) + noise  # ... x t x n x 4
        shares = self.log_shares[..., :-1].softmax(dim=-1).unsqueeze(-2).expand_as(total)
        mean = mean.expand(total.shape[:-1])
        if self.num_tasks is None:
            return NoiseMixture(shares.squeeze(-3), mean.squeeze(-2), total.squeeze(-3))
        return NoiseMixture(shares.transpose(-2, -3), mean.mT, total.transpose(-2, -3))


class NoiseMixture(MixtureSameFamily):
    """Σ_k π_k N(m, v + σ²s_k²) at each row: mean, variance, log density, samples, and quantiles.

    Args:
        shares: ``... x 4`` shares of the scales among good observations.
        mean: ``...`` means m.
        variance: ``... x 4`` variances v + σ²s_k².
    """

    has_rsample = True

    def __init__(self, shares: Tensor, mean: Tensor, variance: Tensor) -> None:
        self._shares = shares.expand_as(variance)
        parts = Normal(mean.unsqueeze(-1).expand_as(variance), variance.sqrt(), validate_args=False)
        super().__init__(Categorical(probs=self._shares), parts, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NoiseMixture:
        """The same distributions with a larger batch shape."""
        normal = self._components()
        shape = (*batch_shape, normal.loc.shape[-1])
        variance = normal.scale.square().expand(shape)
        return NoiseMixture(self._shares.expand(shape), normal.loc[..., 0].expand(batch_shape), variance)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density; a scale without a share adds nothing."""
        terms = self._components().log_prob(value.unsqueeze(-1))  # type: ignore[no-untyped-call]
        return torch.logsumexp(terms + self._shares.log(), dim=-1)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples with gradients, by implicit reparameterisation: dx = −dF(x) / p(x) (Figurnov et al., 2018)."""
        x: Tensor = self.sample(sample_shape)  # type: ignore[no-untyped-call]
        F: Tensor = self.cdf(x)  # type: ignore[no-untyped-call]
        return x - (F - F.detach()) / self.log_prob(x).exp().detach()

    def quantile(self, q: float | Tensor) -> Tensor:
        """The value below which an observation lies with probability ``q``, which broadcasts with the rows."""
        normal = self._components()
        level = torch.as_tensor(q, dtype=normal.loc.dtype, device=normal.loc.device)
        if not bool(((level > 0.0) & (level < 1.0)).all()):
            raise ValueError(f"q must hold probabilities in (0, 1), got {q!r}")
        level = level.expand(torch.broadcast_shapes(level.shape, normal.loc.shape[:-1]))  # type: ignore[no-untyped-call]
        return mixture_quantile(level, self._shares, normal.loc, normal.scale)

    def confidence_region(self) -> tuple[Tensor, Tensor]:
        """Ends of the central interval that holds 95 % of good observations."""
        return self.quantile(0.025), self.quantile(0.975)

    def _components(self) -> Normal:
        return cast(Normal, self.component_distribution)
