"""Weight functions: how much an observation is trusted, given how far it lies from the prior mean.

This is the public vocabulary of the method, and the lowest layer: torch only.
A weight function gives two things for each observation,

    w̃(x, y)              the weight, normalised so that w̃ = 1 is full trust  (w̃ = w √2 / σ),
    ∂_y log w̃(x, y)²     its slope, which corrects the bias that down-weighting brings,

both as functions of the residual e = y − m(x), the input x and the noise variance σ².
Everything downstream sees only the pseudo-data made from them (:mod:`rcgp.core.pseudo`).

A class of your own needs ``forward`` alone; its slope then comes from autograd::

    class Triweight(WeightFunction):
        def forward(self, residual, inputs, noise):
            return (1 - (residual / 3).clamp(-1, 1) ** 2) ** 1.5
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "Constant",
    "Heteroskedastic",
    "InverseMultiquadric",
    "NoNoiseTerm",
    "NoShrinkage",
    "OneSided",
    "Product",
    "SquaredExponential",
    "WeightFunction",
    "quantile_threshold",
    "smallest_weight",
]


def smallest_weight(dtype: torch.dtype) -> float:
    """The weight below which a point counts as deleted: 5e-124 in float64, 6e-16 in float32.

    A point of weight w̃ moves the posterior by O(w̃), so nothing visible is lost. The power 0.4 of the
    smallest normal number keeps w̃⁻² finite, so that the pseudo-noise σ²/w̃² is an ordinary number.
    """
    return float(torch.finfo(dtype).tiny ** 0.4)


def quantile_threshold(residual: Tensor, epsilon: float) -> Tensor:
    """The paper's rule for the soft threshold: c = Q_n(1 − ε), the quantile of |y_i − m(x_i)|.

    Differentiable in the residuals, so that c follows a mean that is being fitted. Where the quantile is
    zero (most points lie exactly on the mean), c is the largest residual times the machine epsilon, the limit
    of ever smaller quantiles; where every residual is zero, any c gives the same weights and c = 1.

    Args:
        residual: ``... x n`` residuals e.
        epsilon: the share ε of observations expected to be outlying, in [0, 1].

    Returns:
        ``... x 1`` thresholds. Cost O(n log n).
    """
    size = residual.abs()
    c = torch.quantile(size, 1.0 - epsilon, dim=-1, keepdim=True)
    largest = size.detach().amax(dim=-1, keepdim=True)
    floor = largest * torch.finfo(residual.dtype).eps
    return torch.where(largest == 0, torch.ones_like(c), torch.maximum(c, floor))


class WeightFunction(nn.Module):
    """Base class of all weight functions; see the module's docstring for how to write one."""

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

        As in the paper, quantities computed from all residuals together (a threshold c) are held fixed.
        """
        sources = (residual, inputs, noise, *self.parameters())
        keep_graph = torch.is_grad_enabled() and any(source.requires_grad for source in sources)
        with torch.enable_grad():
            e = residual if residual.requires_grad else residual.detach().requires_grad_(True)
            w = self(e, inputs, noise)
            if not w.requires_grad:
                return torch.zeros_like(residual)
            # The clamp gives points of no weight the slope 0 instead of 0/0.
            log_w2 = 2.0 * w.clamp_min(smallest_weight(w.dtype)).log()
            (slope,) = torch.autograd.grad(
                log_w2.sum(), e, create_graph=keep_graph, retain_graph=True, materialize_grads=True
            )
        return slope if keep_graph else slope.detach()

    def initialise(self, residual: Tensor) -> None:
        """Give what the data decide its starting value (a trainable threshold). Called once, by the model."""

    def frozen(self, residual: Tensor) -> WeightFunction:
        """A copy whose data-dependent thresholds are fixed at their values for these residuals."""
        return copy.deepcopy(self)


class Constant(WeightFunction):
    """w̃ = 1: every observation is trusted. The standard GP."""

    constant_in_y = True

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.ones_like(residual)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


class Heteroskedastic(WeightFunction):
    """w̃ = σ / r(x): a GP whose noise at x has standard deviation r(x). Not robust.

    The pseudo-noise σ²/w̃² is r(x)², whatever σ is. The weight may exceed 1, where r(x) < σ.

    Args:
        noise_rate: the callable r, from ``... x n x d`` inputs to ``... x n`` positive numbers.
    """

    constant_in_y = True

    def __init__(self, noise_rate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if not callable(noise_rate):
            raise TypeError(f"noise_rate must be a callable r(x), got {type(noise_rate).__name__}")
        self.noise_rate = noise_rate

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        rate = self.noise_rate(inputs)
        if rate.shape[-1:] != residual.shape[-1:]:
            raise ValueError(
                "noise_rate must give one number per row: "
                f"expected shape {tuple(inputs.shape[:-1])}, got {tuple(rate.shape)}"
            )
        if not bool((rate > 0).all()):
            row = int((~(rate > 0)).nonzero()[0, -1])
            raise ValueError(f"noise_rate must be positive: it is not in row {row}")
        return (noise.sqrt().unsqueeze(-1) / rate).expand_as(residual)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


class _Thresholded(WeightFunction):
    """A radial weight w̃ = h(e / c) with soft threshold c: fixed, learnt, or the quantile of the residuals.

    Args:
        c: the threshold, in the units of y. ``None`` is the paper's rule c = Q_n(1 − epsilon).
        epsilon: the share of observations expected to be outlying; used where ``c`` is ``None``.
        trainable: fit c along with the other hyperparameters (the paper's c-LOO), starting from ``c`` or the rule.
    """

    log_c: Tensor | None

    def __init__(self, c: float | None = None, epsilon: float = 0.05, trainable: bool = False) -> None:
        super().__init__()
        if c is not None and not (math.isfinite(c) and c > 0):
            raise ValueError(f"c must be a positive number or None, got {c}")
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
        self.epsilon = epsilon
        # NaN marks a trainable threshold that has not met its data yet.
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
        return self.log_c.exp().to(residual).unsqueeze(-1)

    def initialise(self, residual: Tensor) -> None:
        if self.log_c is not None and bool(self.log_c.isnan()):
            with torch.no_grad():
                self.log_c.copy_(quantile_threshold(residual.detach(), self.epsilon).log().squeeze(-1))

    def frozen(self, residual: Tensor) -> WeightFunction:
        clone = copy.deepcopy(self)
        if clone.log_c is None:
            clone.log_c = self.threshold(residual.detach()).log().squeeze(-1)
        return clone

    def _scaled(self, residual: Tensor, c: Tensor) -> Tensor:
        """u = e / c, bounded so that it cannot overflow: beyond the bound the weight is negligible by far."""
        bound = c.detach() / torch.finfo(residual.dtype).tiny ** 0.9
        return torch.maximum(torch.minimum(residual, bound), -bound) / c


class InverseMultiquadric(_Thresholded):
    __doc__ = """w̃ = (1 + e²/c²)^(−1/2), the weight that the paper advocates: robust, with heavy tails.

    Its slope is −2e / (c² + e²). Since y·w̃² stays bounded, so does the influence of any observation (Prop. 3.2).
    """ + (_Thresholded.__doc__ or "").partition("\n")[2]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual, self.threshold(residual))
        return 1.0 / torch.hypot(torch.ones_like(u), u)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        c = self.threshold(residual)
        u = self._scaled(residual, c)
        w = 1.0 / torch.hypot(torch.ones_like(u), u)
        return -2.0 / c * (u * w) * w


class SquaredExponential(_Thresholded):
    __doc__ = """w̃ = exp(−e²/2c²): robust, and quicker than the inverse multiquadric to drop what lies beyond c.

    Its slope is −2e / c².
    """ + (_Thresholded.__doc__ or "").partition("\n")[2]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        u = self._scaled(residual, self.threshold(residual))
        return torch.exp(-0.5 * u.square())

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        c = self.threshold(residual)
        return -2.0 / c * self._scaled(residual, c)


class _Wrapper(WeightFunction):
    """A weight function made from another one."""

    def __init__(self, weight: WeightFunction) -> None:
        super().__init__()
        if not isinstance(weight, WeightFunction):
            raise TypeError(f"weight must be a WeightFunction, got {type(weight).__name__}")
        self.weight = weight

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        w: Tensor = self.weight(residual, inputs, noise)
        return w

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return self.weight.slope(residual, inputs, noise)

    def initialise(self, residual: Tensor) -> None:
        self.weight.initialise(residual)

    def frozen(self, residual: Tensor) -> WeightFunction:
        clone = copy.deepcopy(self)
        clone.weight = self.weight.frozen(residual)
        return clone


class OneSided(_Wrapper):
    """Distrust deviations in one direction only; on the other side w̃ = 1.

    Robust against outliers on that side, an ordinary GP towards the other.

    Args:
        weight: the weight function to apply on the distrusted side.
        side: ``"above"`` distrusts observations above the prior mean, ``"below"`` those below it.
    """

    def __init__(self, weight: WeightFunction, side: str) -> None:
        super().__init__(weight)
        if side not in ("above", "below"):
            raise ValueError(f'side must be "above" or "below", got {side!r}')
        self.side = side

    def extra_repr(self) -> str:
        return f"side={self.side!r}"

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        w = super().forward(residual, inputs, noise)
        return torch.where(self._distrusted(residual), w, torch.ones_like(w))

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        slope = super().slope(residual, inputs, noise)
        return torch.where(self._distrusted(residual), slope, torch.zeros_like(slope))

    def _distrusted(self, residual: Tensor) -> Tensor:
        return residual > 0 if self.side == "above" else residual < 0


class NoShrinkage(_Wrapper):
    """The paper's ablation without the shrinkage term: pseudo-targets stay at y, noise is weighted."""

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.zeros_like(residual)


class NoNoiseTerm(_Wrapper):
    """The paper's ablation without the noise term: every point keeps noise σ², pseudo-targets are shifted."""

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.ones_like(residual)


class Product(WeightFunction):
    """w̃ = Π_k w̃_k; the slopes add. Robust as soon as one factor is."""

    def __init__(self, *weights: WeightFunction) -> None:
        super().__init__()
        if not weights or not all(isinstance(weight, WeightFunction) for weight in weights):
            raise TypeError("Product takes one or more WeightFunctions")
        self.weights = nn.ModuleList(weights)

    @property
    def constant_in_y(self) -> bool:  # type: ignore[override]
        return all(bool(weight.constant_in_y) for weight in self._parts())

    def _parts(self) -> list[WeightFunction]:
        return [weight for weight in self.weights if isinstance(weight, WeightFunction)]

    def forward(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.stack([weight(residual, inputs, noise) for weight in self.weights]).prod(dim=0)

    def slope(self, residual: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        return torch.stack([weight.slope(residual, inputs, noise) for weight in self._parts()]).sum(dim=0)

    def initialise(self, residual: Tensor) -> None:
        for weight in self._parts():
            weight.initialise(residual)

    def frozen(self, residual: Tensor) -> WeightFunction:
        return Product(*(weight.frozen(residual) for weight in self._parts()))
