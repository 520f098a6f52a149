"""Samples of functions, for BoTorch's path-wise sampling.

By Matheron's rule a draw from the posterior is a draw f from the prior and an update,

    f(x) + k(x, X) (K + R)⁻¹ (m(X) + z − f(X) − ε),    ε ~ N(0, R),

with pseudo-targets z, relative to the prior mean m, and pseudo-noises R. BoTorch draws f from random features of the
kernel, evaluates the sum, and finds both functions by the class of a model.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise import GeneralizedLinearPath, KernelEvaluationMap, MatheronPath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.update_strategies import GaussianUpdate
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from gpytorch.likelihoods import GaussianLikelihood, Likelihood, _GaussianLikelihoodBase
from gpytorch.models import ExactGP
from torch import Tensor

from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.multi_task import MultiTaskRCGP

__all__: list[str] = []


def _draw(model: SingleTaskRCGP, *, sample_shape: torch.Size, prior_sampler: Any, update_strategy: Any) -> MatheronPath:
    """Draws of shape ``sample_shape x ...``: see ``botorch.sampling.pathwise.draw_matheron_paths``."""
    model.eval()  # as posterior does; otherwise transforms would learn from the draws
    with delattr_ctx(model, "outcome_transform"):  # it applies to the sum only
        prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    update_paths = update_strategy(model=model, sample_values=prior_paths.forward(model.train_inputs[0]))
    return MatheronPath(prior_paths, update_paths, output_transform=get_output_transform(model))


def _update(
    model: SingleTaskRCGP,
    likelihood: Likelihood,
    *,
    sample_values: Tensor,
    target_values: Tensor | None = None,
    points: Tensor | None = None,
    noise_covariance: Any = None,
    scale_tril: Any = None,
) -> GeneralizedLinearPath:
    """The update of draws from the prior, whose values at the training inputs are ``sample_shape x ... x n``.

    With S = R^(-1/2) and standard normal u its coefficients are α − S (I + SKS)⁻¹ (S (f(X) − m(X)) + u), which rows
    of infinite pseudo-noise leave finite. Cost n² per draw. ``target_values`` replace the pseudo-targets. Other points
    or another noise covariance make it BoTorch's update of an ordinary GP, of the observations by default.
    """
    if not (points is None and noise_covariance is None and scale_tril is None):
        return GaussianUpdate.dispatch(ExactGP, GaussianLikelihood)(
            model,
            likelihood,
            sample_values=sample_values,
            target_values=target_values,
            points=points,
            noise_covariance=noise_covariance,
            scale_tril=scale_tril,
        )
    prior_mean, given = model.given_data()
    s, alpha = given.s, given.alpha
    f = sample_values.double() - prior_mean
    if target_values is not None:
        f, alpha = f - (target_values.double() - prior_mean), torch.zeros_like(alpha)
    u = torch.randn_like(sample_values).double()
    columns = (s * f + u).reshape(-1, *s.shape).movedim(0, -1)  # ... x n x draws: one L for all of them
    solved = torch.cholesky_solve(columns, given.L).movedim(-1, 0).reshape(f.shape)
    kernels = KernelEvaluationMap(model.covar_module, model.train_inputs[0], get_input_transform(model))
    return GeneralizedLinearPath(kernels, (alpha - s * solved).to(sample_values))


def _refuse(model: MultiTaskRCGP, *_: Any, **__: Any) -> NoReturn:
    """BoTorch's own draws for several tasks would be those of the ordinary GP, where it has any."""
    raise UnsupportedError("path-wise sampling is not available for several tasks: use model.posterior(X).rsample()")


DrawKernelFeaturePaths.add((SingleTaskRCGP,), DrawKernelFeaturePaths.dispatch(ExactGP))
DrawMatheronPaths.add((SingleTaskRCGP,), _draw)
GaussianUpdate.add((SingleTaskRCGP, Likelihood), _update)
DrawMatheronPaths.add((MultiTaskRCGP,), _refuse)
GaussianUpdate.add((MultiTaskRCGP, _GaussianLikelihoodBase), _refuse)
