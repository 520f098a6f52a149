"""The noise of a model: variance, law and weight function of each output, and their values for each row."""

from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.models.defaults import NOISE_FLOOR, robust_spread
from rcgp.models.local_noise import LocalFactor
from rcgp.models.validation import check_variance
from rcgp.weights import LawWeight, NoiseLaw, WeightFunction

__all__ = ["NoisyModel"]


class NoisyModel(gpytorch.Module):  # type: ignore[misc]
    """Noise variance, noise law and weights of a model with one output; subclasses have them for each of several."""

    train_X: Tensor
    train_y: Tensor
    sample_weight: Tensor | None
    mean: gpytorch.means.Mean
    weight: WeightFunction
    local_noise: LocalFactor | None

    def residual(self) -> Tensor:
        """Residuals e = y − m(x) of the training data, ``n``."""
        residual: Tensor = self.train_y - self.mean(self.train_X)
        return residual

    def noise_unit(self) -> Tensor:
        """Squared robust spread of the residuals of each output, in the units and the shape of σ², in float64.

        With sample weights σ² is the noise of a row of weight one.
        """
        unit = self.spreads().square()
        if self.sample_weight is None:
            return unit
        typical = [float(self.sample_weight[rows].quantile(0.5)) for rows in self.output_rows()]
        return unit * unit.new_tensor(typical).reshape(unit.shape)

    def spreads(self) -> Tensor:
        """Robust standard deviation of the residuals of each output, in the shape of σ², in float64."""
        residual = self.residual().detach()
        found = [robust_spread(residual[rows]) for rows in self.output_rows()]
        return torch.tensor(found, dtype=torch.float64, device=residual.device).reshape(self._noise_shape())

    def row_spread(self) -> Tensor:
        """:meth:`spreads` for the output of each row, ``n``, or a scalar for one output."""
        return self.for_inputs(self.spreads(), self.train_X)

    def for_inputs(self, values: Tensor, x: Tensor) -> Tensor:
        """Values of the outputs, in the shape of σ², for the outputs of ``... x q x d`` inputs."""
        return values

    def _noise_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def noise(self) -> Tensor:
        """The noise variance σ², a scalar; for several outputs one for each. Assign a number to change it."""
        value: Tensor = self.raw_noise_constraint.transform(self.raw_noise)
        return value

    @noise.setter
    def noise(self, value: float | Tensor) -> None:
        number = check_variance(value, self.raw_noise)
        lower = self.raw_noise_constraint.lower_bound
        if not bool((above := number > lower).all()):
            worst = int((~above).reshape(-1).nonzero()[0])
            where = f" of output {worst}" if number.numel() > 1 else ""
            limit = float(lower.expand_as(number).reshape(-1)[worst])
            raise ValueError(
                f"noise{where} must be above {limit:.3g}, a share of {NOISE_FLOOR:g} of the data's squared "
                f"spread, got {float(number.reshape(-1)[worst]):.3g}; for less, build the model with noise=..."
            )
        self.initialize(raw_noise=self.raw_noise_constraint.inverse_transform(number).to(self.raw_noise))

    def noise_bounds(self) -> list[tuple[float, float] | None]:
        """Bounds of the noise variance of each output in a fit, slightly inside its constraint; ``None`` if fixed."""
        constraint, outputs = self.raw_noise_constraint, len(self.output_rows())
        if not self.raw_noise.requires_grad:
            return [None] * outputs
        smallest = torch.finfo(torch.float64).tiny
        lower = (constraint.lower_bound.double() * (1.0 + 1e-6)).clamp_min(smallest).expand(outputs).tolist()
        upper = constraint.upper_bound.double().expand(outputs).tolist()
        return [(low, max(low, high)) for low, high in zip(lower, upper, strict=True)]

    def output_rows(self) -> tuple[Tensor | slice, ...]:
        """Rows of each output, which has its own noise variance and noise law. Here all rows, of one output."""
        return (slice(None),)

    def output_weights(self) -> tuple[WeightFunction, ...]:
        """The weight function of each output."""
        return (self.weight,)

    def row_noise(self) -> Tensor:
        """Noise variance σ²/p of each training row, ``n``, or a scalar without sample weights p; differentiable."""
        noise = self.for_inputs(self.noise, self.train_X)
        return noise if self.sample_weight is None else noise / self.sample_weight

    def weights(self) -> Tensor:
        """Weight w̃ of each training row, ``n``: 1 counts in full, near 0 is an outlier.

        In (0, 1] for every weight of :mod:`rcgp.weights` but two: ``Heteroskedastic`` exceeds 1 where r(x) < σ, and
        ``LawWeight`` where the noise is locally small.
        """
        with torch.no_grad():
            w: Tensor = self.weight(self.residual(), self.train_X, self.noise)
            return w.clamp_min(torch.finfo(w.dtype).tiny)

    @property
    def noise_laws(self) -> tuple[NoiseLaw, ...]:
        """The noise law of each output: learned by a robust fit, else normal."""
        weights = self.output_weights()
        return tuple(weight.law if isinstance(weight, LawWeight) else NoiseLaw.normal() for weight in weights)

    @property
    def noise_law(self) -> NoiseLaw:
        """The noise law: learned by a robust fit, else normal."""
        laws = self.noise_laws
        if len(laws) > 1:
            raise TypeError(f"the model has {len(laws)} outputs with a noise law each: use noise_laws")
        return laws[0]

    def relative_noise(self) -> Tensor:
        """1/p, the noise variance of each training row in units of σ², given sample weights p: ``n``."""
        return torch.ones_like(self.train_y) if self.sample_weight is None else self.sample_weight.reciprocal()

    def local_factor(self, x: Tensor) -> Tensor:
        """h(x), the local factor on the noise variance, at ``... x q x d`` inputs: ``... x q``."""
        return torch.ones_like(x[..., 0]) if self.local_noise is None else self.local_noise(x)

    def noise_scale(self, x: Tensor) -> Tensor:
        """σ² h(x), the squared scale of the noise law at ``... x q x d`` inputs: ``... x q``."""
        return self.for_inputs(self.noise.detach(), x) * self.local_factor(x)

    def weight_by_law(self, laws: Sequence[NoiseLaw], cavity: LeaveOneOut, h: Tensor) -> WeightFunction:
        """The weight function of learned noise laws, one for each output.

        Args:
            laws: the laws.
            cavity: leave-one-out moments of f(x_i), relative to the prior mean, each ``n``.
            h: ``n`` local factors on the noise variance.
        """
        (law,) = laws
        return LawWeight(law, *cavity, h, self.relative_noise())

    def frozen_weight(self) -> WeightFunction:
        """A copy of the weight function whose thresholds are held at their values for the training data."""
        return self.weight.frozen(self.residual())

    def weight_of_row(self, row: int) -> WeightFunction:
        """The weight function of one training row, for any number of values of its observation."""
        return self.frozen_weight().of_row(row)

    def local_noise_of(self, outputs: Sequence[LocalFactor]) -> LocalFactor:
        """The local factor of this model, given that of each output."""
        (local,) = outputs
        return local

    def inlier_noise(self, x: Tensor) -> Tensor:
        """Noise variance of an inlier at ``... x q x d`` inputs, by the noise law: ``... x q``."""
        variances = self.noise.new_tensor([law.variance for law in self.noise_laws]).reshape(self._noise_shape())
        return self.for_inputs(variances, x) * self.noise_scale(x)

    def outlier_probability(self) -> Tensor:
        """Probability that each training row is an outlier, or has noise of the law's widest scale, ``n``.

        Zero without a learned noise law.
        """
        probability = torch.zeros_like(self.train_y)
        with torch.no_grad():
            residual, noise = self.residual(), self.noise.reshape(-1)
            for output, (rows, weight) in enumerate(zip(self.output_rows(), self.output_weights(), strict=True)):
                if isinstance(weight, LawWeight):
                    found = weight.responsibilities(residual[rows], noise[output])
                    probability[rows] = found.outlier_probability
        return probability
