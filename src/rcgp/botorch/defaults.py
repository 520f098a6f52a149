"""Default outcome transform and kernel of a BoTorch model."""

from __future__ import annotations

import math

import gpytorch
import torch
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from torch import Tensor

from rcgp.models.defaults import NORMAL_MAD, above

__all__ = ["RobustStandardize", "default_kernel"]

# Standard deviation of the log output scale: a factor of a thousand costs less than three nats.
_PRIOR_WIDTH = 3.0


class RobustStandardize(Standardize):  # type: ignore[misc]
    """BoTorch's ``Standardize`` with the median and the median absolute deviation, normalised for normal outcomes.

    Up to half of the observations cannot move them. If more than half of the outcomes are equal the scale is the mean
    absolute deviation; if all are, 1.

    Args:
        m: number of outputs.
        outputs: the outputs to standardise. Default: all.
        batch_shape: batch shape of the training targets.
        min_stdv: outcomes with a smaller scale are only centred.
    """

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Standardised outcomes ``... x n x m`` and variances; in training mode, learns the statistics first."""
        if self.training:
            self._validate_training_inputs(Y=Y, Yvar=Yvar)
            self._learn(Y)
        return (Y - self.means) / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq

    def _learn(self, Y: Tensor) -> None:
        with torch.no_grad():
            median = Y.nanquantile(0.5, dim=-2, keepdim=True)
            deviation = (Y - median).abs()
            scale = deviation.nanquantile(0.5, dim=-2, keepdim=True) / NORMAL_MAD
            scale = torch.where(scale >= self._min_stdv, scale, deviation.nanmean(dim=-2, keepdim=True))
            scale = torch.where(scale >= self._min_stdv, scale, torch.ones_like(scale))
            if self._outputs is not None:
                unused = [output for output in range(self._m) if output not in self._outputs]
                median[..., unused], scale[..., unused] = 0.0, 1.0
            self.means, self.stdvs, self._stdvs_sq = median, scale, scale.square()
            self._is_trained = torch.tensor(True)


def default_kernel(dimension: int, batch_shape: torch.Size) -> gpytorch.kernels.ScaleKernel:
    """BoTorch's default kernel with its priors, times an output scale with a weak prior.

    BoTorch standardises outcomes to unit variance and needs no output scale. :class:`RobustStandardize` does not: in an
    optimisation, where most points are near the best, the variance is far above one. Without the output scale a clean
    Branin function, half of whose 40 points are near its best, has up to five rows flagged and ten times the error.
    """
    base = get_covar_module_with_dim_scaled_prior(ard_num_dims=dimension, batch_shape=batch_shape)
    # The density of the scale, which a fit maximises, has its mode at one.
    prior = gpytorch.priors.LogNormalPrior(_PRIOR_WIDTH**2, _PRIOR_WIDTH)
    # Logarithmic: the scale may go far, but not to zero, where the prior has no density.
    constraint = above(math.exp(-10 * _PRIOR_WIDTH))
    kernel = gpytorch.kernels.ScaleKernel(
        base, batch_shape=batch_shape, outputscale_prior=prior, outputscale_constraint=constraint
    )
    kernel.outputscale = torch.ones(batch_shape)
    return kernel
