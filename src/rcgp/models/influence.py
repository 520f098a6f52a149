"""The posterior influence function of a model: what one observation, moved anywhere, does to the posterior."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from rcgp.core.exact import influence
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models.exact import RCGP
from rcgp.models.validation import as_real_tensor

__all__ = ["posterior_influence"]


def posterior_influence(model: RCGP, index: SupportsIndex, values: Any) -> Tensor:
    """The paper's PIF: KL divergence between the posteriors of f with y_index as it is and replaced by each value.

    Hyperparameters, prior mean and threshold c stay as they are. Bounded for a robust weight, quadratic in the value
    for ``Constant`` and ``Heteroskedastic``. An infinite value gives the limit: a robust weight then drops the point.

    Args:
        model: the model with the observation as it is.
        index: row of the observation in the training data.
        values: replacements for y_index, any shape.

    Returns:
        One divergence for each value. Cost O(n³) once, O(1) for each value.
    """
    n = model.train_y.shape[0]
    if isinstance(index, bool) or not isinstance(index, SupportsIndex) or not -n <= operator.index(index) < n:
        raise IndexError(f"index must name one of the {n} training rows, got {index!r}")
    index = operator.index(index)
    y_new = as_real_tensor(values, "values").detach().to(model.train_y.device)
    if bool(y_new.isnan().any()):
        raise ValueError(f"values contains nan at position {tuple(y_new.isnan().nonzero()[0].tolist())}")
    dtype, model = model.train_y.dtype, model.in_float64()
    y_new = y_new.to(model.train_y)
    with torch.no_grad():
        terms = model.training_terms()
        cavity = model.latent_leave_one_out(terms.pseudo)
        before = PseudoData(terms.pseudo.target[index], terms.pseudo.root_precision[index])
        # The threshold rule looks at all residuals: hold it at its value for the data as they are.
        weight = model.weight_of_row(index)
        x = model.train_X[index]
        e = (y_new - (model.train_y - terms.residual)[index]).reshape(-1)
        inputs = x.expand(e.shape[0], -1)
        w, slope = weight(e, inputs, terms.noise), weight.slope(e, inputs, terms.noise)
        after = pseudo_data(e, w, slope, terms.row_noise.expand_as(terms.residual)[index])
        divergence = influence(cavity.mean[index], cavity.variance[index], before, after)
        return divergence.reshape(y_new.shape).to(dtype)
