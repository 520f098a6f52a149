"""What both regressors do alike to keep scikit-learn's contract, and the project's: a failed fit changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["all_or_nothing", "as_tensor"]


@contextmanager
def all_or_nothing(estimator: Any) -> Iterator[None]:
    """Whatever ends a fit early, an interrupt too, leaves the estimator as it was."""
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


def as_tensor(values: Any) -> Tensor:
    """An array as a tensor of float64; a copy where it is read-only, which torch does not know."""
    return torch.from_numpy(np.require(values, dtype=np.float64, requirements=["C", "W"]))
