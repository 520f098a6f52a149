"""Default outcome transforms and kernel of a BoTorch model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gpytorch
import torch
from botorch.models.transforms.outcome import Standardize, StratifiedStandardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from torch import Tensor

from rcgp.models.defaults import NORMAL_MAD, above

__all__ = ["RobustStandardize", "RobustStratifiedStandardize", "default_kernel", "standardize_of_tasks"]

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
            median, scale = _median_and_scale(Y, self._min_stdv)
            scale = torch.where(scale > 0.0, scale, torch.ones_like(scale))
            if self._outputs is not None:
                unused = [output for output in range(self._m) if output not in self._outputs]
                median[..., unused], scale[..., unused] = 0.0, 1.0
            self.means, self.stdvs, self._stdvs_sq = median, scale, scale.square()
            self._is_trained = torch.tensor(True)


class RobustStratifiedStandardize(StratifiedStandardize):  # type: ignore[misc]
    """BoTorch's ``StratifiedStandardize``, each task by its own median and median absolute deviation.

    A task without observations gets the median and the scale of all, one whose outcomes are all equal the scale.

    Args:
        stratification_idx: column of the inputs with the task.
        all_task_values: ``T`` values of the tasks.
        batch_shape: batch shape of the training targets.
        min_stdv: outcomes with a smaller scale are only centred.
        dtype: type of the numbers of tasks.
    """

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Standardised outcomes ``... x n x 1`` and variances; in training mode, learns the statistics first.

        Args:
            Y, Yvar: outcomes and variances.
            X: ``... x n x d`` inputs, with the task.
        """
        if X is None:
            raise ValueError("X is required: one of its columns says to which task an outcome belongs")
        if self.training:
            self._validate_training_inputs(Y=Y, Yvar=Yvar)
            self._learn(Y, X)
        mean, scale, squared = self._get_per_input_means_stdvs(X, include_stdvs_sq=True)
        return (Y - mean) / scale, None if Yvar is None else Yvar / squared

    def _learn(self, Y: Tensor, X: Tensor) -> None:
        with torch.no_grad():
            shape = (*self._batch_shape, len(self.strata_mapping), 1)
            median, scale = (part.expand(shape).clone() for part in _median_and_scale(Y, self._min_stdv))
            scale = torch.where(scale > 0.0, scale, torch.ones_like(scale))
            task = X[..., [self._stratification_idx]].long()
            for value in torch.unique(task):
                own, own_scale = _median_and_scale(torch.where(task == value, Y, torch.nan), self._min_stdv)
                row = int(self.strata_mapping[value])
                median[..., row, :] = own[..., 0, :]
                scale[..., row, :] = torch.where(own_scale > 0.0, own_scale, scale[..., [row], :])[..., 0, :]
            self.means, self.stdvs, self._stdvs_sq = median, scale, scale.square()
            self._is_trained = torch.tensor(True)


def _median_and_scale(Y: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Median and robust scale of ``... x n x m`` outcomes, NaN left out, each ``... x 1 x m``.

    The scale is zero where it is below the least.
    """
    median = Y.nanquantile(0.5, dim=-2, keepdim=True)
    deviation = (Y - median).abs()
    scale = deviation.nanquantile(0.5, dim=-2, keepdim=True) / NORMAL_MAD
    scale = torch.where(scale >= least, scale, deviation.nanmean(dim=-2, keepdim=True))
    return median, torch.where(scale >= least, scale, torch.zeros_like(scale))


def standardize_of_tasks(transform: StratifiedStandardize, tasks: Sequence[int]) -> Standardize:
    """The transform of a posterior with one output for each of some tasks, by their values."""
    number = torch.stack([transform.strata_mapping[task] for task in tasks]).long()
    outputs = Standardize(m=len(tasks), batch_shape=transform.means.shape[:-2])
    for name in ("means", "stdvs", "_stdvs_sq"):
        setattr(outputs, name, getattr(transform, name)[..., number, :].mT)
    outputs._is_trained = torch.tensor(True)
    return outputs.eval()


def default_kernel(
    dimension: int, batch_shape: torch.Size, columns: Sequence[int] | None = None
) -> gpytorch.kernels.ScaleKernel:
    """BoTorch's default kernel with its priors, times an output scale with a weak prior.

    Args:
        dimension: number of columns of the inputs that it looks at.
        batch_shape: one kernel for each model of a batch.
        columns: which ones. Default: all.

    BoTorch standardises outcomes to unit variance and needs no output scale. :class:`RobustStandardize` does not: in an
    optimisation, where most points are near the best, the variance is far above one. Without the output scale a clean
    Branin function, half of whose 40 points are near its best, has up to five rows flagged and ten times the error.
    """
    base = get_covar_module_with_dim_scaled_prior(ard_num_dims=dimension, batch_shape=batch_shape, active_dims=columns)
    # The density of the scale, which a fit maximises, has its mode at one.
    prior = gpytorch.priors.LogNormalPrior(_PRIOR_WIDTH**2, _PRIOR_WIDTH)
    # Logarithmic: the scale may go far, but not to zero, where the prior has no density.
    constraint = above(math.exp(-10 * _PRIOR_WIDTH))
    kernel = gpytorch.kernels.ScaleKernel(
        base, batch_shape=batch_shape, outputscale_prior=prior, outputscale_constraint=constraint
    )
    kernel.outputscale = torch.ones(batch_shape)
    return kernel
