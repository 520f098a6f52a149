"""What every weight function is."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

__all__ = ["WeightFunction", "smallest_weight"]


def smallest_weight(dtype: torch.dtype) -> float:
    """The weight below which a point counts as deleted: 5e-124 in float64, 6e-16 in float32.

    A point of weight w̃ moves the posterior by O(w̃), so nothing visible is lost. The power 0.4 of the
    smallest normal number keeps w̃⁻² finite, so that the pseudo-noise σ²/w̃² is an ordinary number.
    """
    return float(torch.finfo(dtype).tiny ** 0.4)


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

        A weight must depend on its own residual only. One that also uses all residuals together, for a threshold say,
        computes that from ``residual.detach()``: the paper holds it fixed in this derivative.
        """
        if torch.is_inference_mode_enabled():  # which knows no gradients; clones made outside it do
            with torch.inference_mode(False):
                return self.slope(residual.clone(), inputs.clone(), noise.clone())
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
        """Take what the data decide, such as the start of a trainable threshold. Called once, by the model."""

    def frozen(self, residual: Tensor) -> WeightFunction:
        """A copy whose data-dependent thresholds are fixed at their values for these residuals."""
        return copy.deepcopy(self)

    def of_row(self, row: int) -> WeightFunction:
        """The function by which one row of the training data is weighed, for any number of values that it might have.

        This one itself, but for weights that differ from row to row.
        """
        return self
