"""Constraints on hyperparameters: all on a logarithmic scale, on which a fit does not depend on units.

GPyTorch's own constructors round bounds to single precision; these keep them.
"""

from __future__ import annotations

import gpytorch
import torch
from torch import Tensor

__all__ = ["Between", "above"]


def above(lower: float) -> gpytorch.constraints.GreaterThan:
    """A constraint to values above a bound, by the exponential map."""
    constraint = gpytorch.constraints.GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    constraint.lower_bound = torch.tensor(lower, dtype=torch.float64)
    return constraint


class Between(gpytorch.constraints.Interval):  # type: ignore[misc]
    """A constraint to positive values between two bounds: the raw parameter is the logarithm.

    The bounds are the optimiser's to keep, as a box around the raw parameter: a value can lie on them, as in
    scikit-learn, where a sigmoid would only come near.

    Args:
        lower, upper: bounds, numbers or tensors of the parameter's shape; 0 < lower < upper.
    """

    def __init__(self, lower: float | Tensor, upper: float | Tensor) -> None:
        super().__init__(0.0, 1.0, transform=torch.exp, inv_transform=torch.log)
        self.lower_bound = torch.as_tensor(lower, dtype=torch.float64)
        self.upper_bound = torch.as_tensor(upper, dtype=torch.float64)

    def transform(self, tensor: Tensor) -> Tensor:
        return tensor.exp()

    def inverse_transform(self, transformed_tensor: Tensor) -> Tensor:
        return transformed_tensor.log()

    def __repr__(self) -> str:
        # GPyTorch's own fails for bounds of shape 1 x 1.
        low, high = (bound.reshape(-1).tolist() for bound in (self.lower_bound, self.upper_bound))
        return f"Between({', '.join(f'{value:.3g}' for value in (*low[:1], *high[:1]))})"

    def raw_bound(self, side: str) -> Tensor:
        """The ``"lower"`` or ``"upper"`` bound of the raw parameter."""
        bound: Tensor = getattr(self, f"{side}_bound")
        return bound.log()
