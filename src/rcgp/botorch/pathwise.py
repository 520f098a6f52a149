"""Draws of whole functions from the posterior, for BoTorch's path-wise sampling and what is built on it.

By Matheron's rule a draw from the posterior is one from the prior, f, and an update that is a sum of kernels,

    f(x) + k(x, X) (K + R)⁻¹ (m(X) + z − f(X) − ε),    ε ~ N(0, R),

with pseudo-targets z, relative to the prior mean m, and pseudo-noises R. BoTorch draws f, from random features of the
kernel, and evaluates the sum. It finds what to do by the class of a model: here is what it finds for the robust one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from botorch.sampling.pathwise import GeneralizedLinearPath, KernelEvaluationMap, MatheronPath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.update_strategies import GaussianUpdate
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from gpytorch.likelihoods import Likelihood
from gpytorch.models import ExactGP
from torch import Tensor

if TYPE_CHECKING:
    from rcgp.botorch.model import SingleTaskRCGP

__all__ = ["register_paths"]


def register_paths(kind: type[SingleTaskRCGP]) -> None:
    """Tell BoTorch's dispatchers how to draw from models of this class; priors are drawn as its own models' are."""
    DrawKernelFeaturePaths.add((kind,), DrawKernelFeaturePaths.dispatch(ExactGP))
    DrawMatheronPaths.add((kind,), _draw)
    GaussianUpdate.add((kind, Likelihood), _update)


def _draw(model: SingleTaskRCGP, *, sample_shape: torch.Size, prior_sampler: Any, update_strategy: Any) -> MatheronPath:
    """Draws of shape ``sample_shape x ...``: see ``botorch.sampling.pathwise.draw_matheron_paths``.

    Puts the model in evaluation mode, as ``model.posterior`` does: inputs are transformed once, and transforms learn
    nothing.
    """
    model.eval()
    with delattr_ctx(model, "outcome_transform"):  # which is for the sum, not for each of its parts
        prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    update_paths = update_strategy(model=model, sample_values=prior_paths.forward(model.train_inputs[0]))
    return MatheronPath(prior_paths, update_paths, output_transform=get_output_transform(model))


def _update(model: SingleTaskRCGP, _: Likelihood, *, sample_values: Tensor) -> GeneralizedLinearPath:
    """The update of draws from the prior whose values at the training inputs are ``sample_shape x ... x n``.

    With S = R^(-1/2) and standard normal u its coefficients are α − S (I + SKS)⁻¹ (S (f(X) − m(X)) + u), in which rows
    of boundless pseudo-noise do no harm. Cost n² a draw.
    """
    prior_mean, given = model.given_data()
    s = given.s
    f = sample_values.double() - prior_mean
    u = torch.randn_like(sample_values).double()
    columns = (s * f + u).reshape(-1, *s.shape).movedim(0, -1)  # ... x n x draws: one L for all of them
    solved = torch.cholesky_solve(columns, given.L).movedim(-1, 0).reshape(f.shape)
    kernels = KernelEvaluationMap(model.covar_module, model.train_inputs[0], get_input_transform(model))
    return GeneralizedLinearPath(kernels, (given.alpha - s * solved).to(sample_values))
