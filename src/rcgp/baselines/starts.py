"""Where a search for hyperparameters starts matters: a bound on a robust likelihood has several maxima.

At one of them everything is noise or an outlier. The hyperparameters of an ordinary GP are the other natural start:
the right one for data without outliers, and a poor one with many of them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from rcgp.baselines.gaussian import GaussianGP
from rcgp.baselines.variational import VariationalGP
from rcgp.training import FitError

__all__ = ["Snapshot", "move_to_ordinary_gp"]


@dataclass(frozen=True)
class Snapshot:
    """The hyperparameters of a model and the moments of its posterior, to come back to.

    Attributes:
        parameters: a copy of each parameter.
        moments: ``2 x n`` means and variances, if there were any.
    """

    parameters: list[Tensor]
    moments: Tensor | None

    @classmethod
    def of(cls, model: VariationalGP) -> Snapshot:
        return cls([parameter.detach().clone() for parameter in model.parameters()], model.latent_moments)

    def restore(self, model: VariationalGP) -> None:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.parameters, strict=True):
                parameter.copy_(value)
        model.latent_moments = self.moments


def move_to_ordinary_gp(model: VariationalGP, max_iterations: int) -> int:
    """Give a model the kernel, mean and noise of an ordinary GP fitted from its own, and forget its posterior.

    Where that GP cannot be fitted (squares of residuals overflow) the hyperparameters stay.

    Returns:
        The number of evaluations that it took.
    """
    noise, evaluations = float(model.noise.detach()), 0
    # It shares the kernel and the mean.
    ordinary = GaussianGP(model.train_X, model.train_y, kernel=model.kernel, mean=model.mean, noise=noise)
    ordinary.raw_noise.requires_grad_(model.raw_noise.requires_grad)
    with suppress(FitError):
        evaluations = ordinary.fit(max_iterations=max_iterations).evaluations
        with torch.no_grad():
            model.raw_noise.copy_(model.raw_noise_constraint.inverse_transform(ordinary.noise))
    model.latent_moments = None
    return evaluations
