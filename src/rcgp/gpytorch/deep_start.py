"""The start of a deep GP: lengthscales and responsibilities from the robust fit of an exact GP.

While a deep GP learns from scratch, steep or fast parts of the function are not yet learned and look like outliers;
taken for outliers they are never learned. An exact GP decides from leave-one-out predictions and by its evidence. Its
lengthscales let the last layer follow fast parts from the first step on. The noise still begins high, so that the
hidden layers learn where the function is steep before the last layer has explained all targets.
"""

from __future__ import annotations

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.gpytorch.deep import DeepModel
from rcgp.gpytorch.noise_law import NoiseLawLikelihood
from rcgp.models import RCGP
from rcgp.models.defaults import add_weak_priors, default_kernel, robust_scales, robust_spread
from rcgp.training.fit import fit_ordinary
from rcgp.training.robust import fit_robust
from rcgp.weights import Constant, LawWeight, NoiseLaw
from rcgp.weights.noise_law import OUTLIER_WIDTH, SCALES, by_component, responsibilities

__all__ = ["start_from_exact"]

# Limit on the rows of the exact fit, a sample of all: it costs O(n³). Rows that are predicted at a time.
_ROWS, _BLOCK = 500, 1000


def start_from_exact(model: DeepModel, likelihood: Likelihood, X: Tensor, y: Tensor) -> Tensor | None:
    """Set the kernel of the last layer to that of an exact GP of the same rows, or of 500 of them.

    Args:
        model: a deep GP before its training.
        likelihood: for a ``NoiseLawLikelihood`` that learns its law the exact GP is robust, for any other it is an
            ordinary one.
        X: ``n x d`` standardised inputs.
        y: ``n`` targets, centred and scaled.

    Returns:
        ``n x 5`` responsibilities of each row, by its leave-one-out prediction or, beyond the sample, by the prediction
        from the sample; ``None`` from an ordinary GP. Cost O(500³) for each evaluation and O(500² n).
    """
    learns = isinstance(likelihood, NoiseLawLikelihood) and likelihood.law is None
    rows = torch.randperm(len(y))[:_ROWS].sort().values if len(y) > _ROWS else torch.arange(len(y))
    with torch.no_grad():
        inputs = model.skipped(X)
    sample, targets = inputs[rows], y[rows]
    kernel = default_kernel(robust_scales(sample), robust_spread(targets))
    exact = RCGP(sample, targets, kernel=kernel, mean="zero", weight=None if learns else Constant())
    add_weak_priors(exact)
    if learns:
        fit_robust(exact, local_noise=False)
    else:
        fit_ordinary(exact)
    base = model.last.covar_module.base_kernel
    base.lengthscale, model.last.covar_module.outputscale = kernel.base_kernel.lengthscale, kernel.outputscale
    if not learns:
        return None
    with torch.no_grad():
        share = _predicted(exact, inputs, y) if len(rows) < len(y) else y.new_empty(len(y), len(SCALES) + 1)
        share[rows] = _left_out(exact)
        return share


def _left_out(exact: RCGP) -> Tensor:
    """Responsibilities of the rows of a robust fit, ``n x 5``."""
    if isinstance(exact.weight, LawWeight):
        return exact.weight.responsibilities(exact.residual(), exact.noise).share
    share = exact.train_y.new_zeros(len(exact.train_y), len(SCALES) + 1)
    share[:, 0] = 1.0  # all noise is normal
    return share


def _predicted(exact: RCGP, X: Tensor, y: Tensor) -> Tensor:
    """Responsibilities of further rows by their predictions, ``n x 5``.

    By the law with its prior counts: that no row of the sample is an outlier does not exclude one among all rows.
    """
    law, n = exact.noise_laws[0], len(exact.train_y)
    counts = n * by_component(y.new_tensor([*law.shares, law.outlier_share])) + y.new_tensor(PRIOR_COUNTS)
    width = OUTLIER_WIDTH * robust_spread(exact.train_y) if law.is_normal else law.width
    log_shares = NoiseLaw.of_counts(counts, width).log_shares(y).unsqueeze(0)
    parts = []
    for inputs, targets in zip(X.split(_BLOCK), y.split(_BLOCK), strict=True):  # type: ignore[no-untyped-call]
        q = exact.posterior(inputs)
        found = responsibilities(targets, q.mean, q.variance, exact.noise, log_shares, y.new_tensor([width]))
        parts.append(found.share)
    return torch.cat(parts)
