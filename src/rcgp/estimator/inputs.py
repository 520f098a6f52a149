"""Inputs that are probably mistakes: named in errors, warnings and on the command line."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FarInput", "absurd", "far_input"]

# Times the median distance from the middle of its column beyond which a value is held to be a mistake.
_ABSURD = 1e6


@dataclass(frozen=True)
class FarInput:
    """A value that is absurdly far from all others of its column.

    Attributes:
        row, column: where it is.
        told: the value, and where the others are.
    """

    row: int
    column: int
    told: str


def far_input(X: Tensor) -> FarInput | None:
    """The input that is farthest out in its column, if that is absurdly far.

    Args:
        X: ``n x d`` inputs.
    """
    ratio, centre, typical = _distances(X)
    row, column = divmod(int(ratio.argmax()), X.shape[1])
    if not bool(ratio[row, column] > _ABSURD):
        return None
    others = f"half of that column lies within {float(typical[column]):.3g} of {float(centre[column]):.3g}"
    return FarInput(row, column, f"{float(X[row, column]):g}, while {others}")


def absurd(y: Tensor) -> bool:
    """Whether one of ``n`` observations is absurdly far from all others."""
    return bool(_distances(y.unsqueeze(-1))[0].amax() > _ABSURD)


def _distances(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances from the median of each column over the typical one, ``n x d``; the median, and what is typical.

    Typical is the median distance of the values that are not the median themselves: of a rare indicator that is 1.
    """
    centre = values.median(dim=0).values
    distance = (values - centre).abs()
    typical = torch.where(distance > 0, distance, torch.nan).nanmedian(dim=0).values
    return (distance / typical).nan_to_num(nan=0.0, posinf=torch.inf), centre, typical
