"""Outcomes on a common scale, whatever a few of them are."""

from __future__ import annotations

import torch
from botorch.models.transforms.outcome import Standardize
from torch import Tensor

from rcgp.models.defaults import NORMAL_MAD

__all__ = ["RobustStandardize"]


class RobustStandardize(Standardize):  # type: ignore[misc]
    """Outcomes minus their median, over their median absolute deviation in units of a normal distribution's.

    BoTorch's ``Standardize`` with statistics that up to half of the observations cannot move: linear, with the same
    arguments, and in its place wherever that stands. Where more than half of the outcomes are equal the scale is the
    mean absolute deviation instead, and 1 where all are.

    Args:
        m: number of outputs.
        outputs: which of them to standardise. Default: all.
        batch_shape: batch shape of the training targets.
        min_stdv: smallest scale that is divided by; below, outcomes are only centred.
    """

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Standardised outcomes ``... x n x m`` and variances. In training mode the statistics are taken from them."""
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
