"""Weight functions of the residual: constant, heteroskedastic, inverse multiquadric and squared exponential."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import SupportsFloat

import torch
from torch import Tensor, nn

__all__ = [
    "Constant",
    "Heteroskedastic",
    "InverseMultiquadric",
    "SquaredExponential",
    "ThresholdWeight",
    "WeightFunction",
    "quantile_threshold",
    "smallest_weight",
]


def smallest_weight(dtype: torch.dtype) -> float:
    """The weight up to which a point counts as deleted: 5e-124 in float64, 6e-16 in float32.

    A point of weight w̃ moves the posterior by O(w̃), so the change is invisible. The power 0.4 of the
    smallest normal number keeps w̃⁻² finite, so that the pseudo-noise σ²/w̃² is an ordinary number.
    """
    return float(torch.finfo(dtype).tiny ** 0.4)


class WeightFunction(nn.Module):
    """Base class of all weight functions; see :mod:`rcgp.weights` for how to write one."""

    #: True where the weight does not depend on y, so that the model is an ordinary (heteroskedastic) GP.
    constant_in_y = False

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        """The weight w̃, at most 1 for a robust weight.

        Args:
            residual: ``... x n`` residuals e = y − m(x).
            inputs: ``... x n x d`` inputs x.
            noise: ``...`` noise variance σ².

        Returns:
            ``... x n`` weights.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(residual, inputs, noise)")

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        """∂_y log w̃², ``... x n``: by autograd here, by formula in the classes below.

        A weight may depend on its own residual only. A threshold computed from all residuals must use
        ``residual.detach()``: the paper holds it fixed in this derivative.
        """
        if torch.is_inference_mode_enabled():  # no gradients there; clones made outside it have them
            with torch.inference_mode(False):
                return self.slope(residual.clone(), inputs.clone(), noise.clone())
        sources = (residual, inputs, noise, *self.parameters())
        keep_graph = torch.is_grad_enabled() and any(source.requires_grad for source in sources)
        with torch.enable_grad():
            e = residual if residual.requires_grad else residual.detach().requires_grad_(True)
            w = self(e, inputs, noise)
            if not w.requires_grad:
                return torch.zeros_like(residual)
            # The clamp gives points without weight the slope 0 instead of 0/0.
            log_w2 = 2.0 * w.clamp_min(smallest_weight(w.dtype)).log()
            (slope,) = torch.autograd.grad(
                log_w2.sum(), e, create_graph=keep_graph, retain_graph=True, materialize_grads=True
            )
        return slope if keep_graph else slope.detach()

    def initialise(self, residual: Tensor) -> None:
        """Set what depends on the data, such as the start of a trainable threshold. Called once, by the model."""

    def frozen(self, residual: Tensor) -> WeightFunction:
        """A copy whose data-dependent thresholds are fixed at their values for these residuals."""
        return copy.deepcopy(self)

    def of_row(self, row: int) -> WeightFunction:
        """The weight function of one training row, for any number of values of its observation.

        This function itself, unless weights differ from row to row.
        """
        return self


class Constant(WeightFunction):
    """w̃ = 1: every observation counts in full. The ordinary GP."""

    constant_in_y = True

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.ones_like(residual)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


class Heteroskedastic(WeightFunction):
    """w̃ = σ / r(x): a GP whose noise at x has standard deviation r(x). Not robust.

    The pseudo-noise σ²/w̃² is r(x)², whatever σ is; so the weight exceeds 1 where r(x) < σ. σ² then has no effect on the
    posterior of f, only on ``posterior(..., observation_noise=True)`` and on leave-one-out.

    Args:
        noise_rate: the callable r, from ``... x n x d`` inputs to ``... x n`` positive numbers. The parameters
            of a torch module are not trained.
    """

    constant_in_y = True

    def __init__(self, noise_rate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if not callable(noise_rate):
            raise TypeError(f"noise_rate must be a callable r(x), got {type(noise_rate).__name__}")
        # In a tuple, so that a torch module is not registered and trained.
        self._noise_rate = (noise_rate,)
        self._dtype: torch.dtype | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Heteroskedastic:
        clone = type(self)(self._noise_rate[0])  # not every function can be copied
        clone._dtype = self._dtype
        return clone

    def initialise(self, residual: Tensor) -> None:
        self._dtype = residual.dtype  # a fit in higher precision still calls r with the type of the data

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            rate = self._noise_rate[0](inputs.to(self._dtype or inputs.dtype))
        if not isinstance(rate, Tensor) or rate.shape[-1:] != residual.shape[-1:]:
            got = tuple(rate.shape) if isinstance(rate, Tensor) else type(rate).__name__
            raise ValueError(f"noise_rate must return a tensor of shape {tuple(inputs.shape[:-1])}, got {got}")
        rate = rate.to(residual)
        if not bool((rate > 0).all()):
            row = int((~(rate > 0)).nonzero()[0, -1])
            raise ValueError(f"noise_rate must be positive: it is not in row {row}")
        return (noise.sqrt().unsqueeze(-1) / rate).expand_as(residual)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


def quantile_threshold(residual: Tensor, epsilon: float) -> Tensor:
    """The paper's rule for the soft threshold: c = Q_n(1 − ε), the quantile of |y_i − m(x_i)|.

    Differentiable in the residuals, so that c follows a trained mean. If the quantile is zero (most points lie exactly
    on the mean), c is the largest residual times the machine epsilon, the limit of ever smaller quantiles; if every
    residual is zero, any c gives the same weights and c = 1.

    Args:
        residual: ``... x n`` residuals e.
        epsilon: the expected share ε of outliers, in [0, 1].

    Returns:
        ``... x 1`` thresholds. Cost O(n log n).
    """
    size = residual.abs()
    c = torch.quantile(size, 1.0 - epsilon, dim=-1, keepdim=True)
    largest = size.detach().amax(dim=-1, keepdim=True)
    # Only if the quantile is zero: otherwise c must not depend on the largest residual.
    fallback = torch.where(largest > 0, largest * torch.finfo(residual.dtype).eps, torch.ones_like(largest))
    return torch.where(c > 0, c, fallback)


class ThresholdWeight(WeightFunction):
    """A radial weight w̃ = h(e / c) with soft threshold c: fixed, trained, or a quantile of the residuals.

    Args:
        c: the threshold, in the units of y. ``None`` is the paper's rule c = Q_n(1 − epsilon).
        epsilon: the expected share of outliers; used if ``c`` is ``None``.
        trainable: fit c along with the other hyperparameters (the paper's c-LOO), starting from ``c`` or the rule.
    """

    log_c: Tensor | None

    def __init__(self, c: float | None = None, epsilon: float = 0.05, trainable: bool = False) -> None:
        super().__init__()
        if c is not None and not (isinstance(c, SupportsFloat) and math.isfinite(c) and c > 0):
            raise ValueError(f"c must be a positive number or None, got {c!r}")
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
        self.epsilon = epsilon
        self._starts_from_rule = trainable and c is None
        # NaN marks a trainable threshold that is not initialised yet.
        log_c = torch.tensor(math.nan if c is None else math.log(c), dtype=torch.float64)
        if trainable:
            self.log_c = nn.Parameter(log_c)
        else:
            self.register_buffer("log_c", None if c is None else log_c)

    def extra_repr(self) -> str:
        return f"c=Q_n({1.0 - self.epsilon:g})" if self.log_c is None else f"c={float(self.log_c.detach().exp()):.6g}"

    def threshold(self, residual: Tensor) -> Tensor:
        """The threshold c for these residuals, ``... x 1``."""
        if self.log_c is None:
            return quantile_threshold(residual, self.epsilon)
        if self._starts_from_rule and bool(self.log_c.isnan()):
            raise RuntimeError("a trainable c=None starts from the data: give the weight to a model, or a number for c")
        return self.log_c.exp().to(residual).unsqueeze(-1)

    def initialise(self, residual: Tensor) -> None:
        if self.log_c is not None and self._starts_from_rule:
            with torch.no_grad():
                self.log_c.copy_(quantile_threshold(residual.detach(), self.epsilon).log().squeeze(-1))

    def frozen(self, residual: Tensor) -> WeightFunction:
        clone = copy.deepcopy(self)
        if clone.log_c is None:
            clone.log_c = self.threshold(residual.detach()).log().squeeze(-1)
        return clone

    def _scaled(self, residual: Tensor, c: Tensor) -> Tensor:
        """u = e / c, bounded so that it cannot overflow: beyond the bound the weight is negligible."""
        bound = c.detach() / torch.finfo(residual.dtype).tiny ** 0.9
        return torch.maximum(torch.minimum(residual, bound), -bound) / c


class InverseMultiquadric(ThresholdWeight):
    __doc__ = """w̃ = (1 + e²/c²)^(−1/2), the weight that the paper advocates: robust, with heavy tails.

    Its slope is −2e / (c² + e²). Since y·w̃² stays bounded, so does the influence of any observation (Prop. 3.2).
    """ + (ThresholdWeight.__doc__ or "").partition("\n")[2]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual, self.threshold(residual))
        return 1.0 / torch.hypot(torch.ones_like(u), u)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        c = self.threshold(residual)
        u = self._scaled(residual, c)
        w = 1.0 / torch.hypot(torch.ones_like(u), u)
        return -2.0 / c * (u * w) * w


class SquaredExponential(ThresholdWeight):
    __doc__ = """w̃ = exp(−e²/2c²): robust, and falls faster beyond c than the inverse multiquadric.

    Its slope is −2e / c².
    """ + (ThresholdWeight.__doc__ or "").partition("\n")[2]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual, self.threshold(residual))
        return torch.exp(-0.5 * u.square())

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        c = self.threshold(residual)
        return -2.0 / c * self._scaled(residual, c)
