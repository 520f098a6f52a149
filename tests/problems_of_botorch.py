"""Small BoTorch models that many tests share, and the plain numbers behind them."""

from __future__ import annotations

import contextlib
import copy

import gpytorch
import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize, Warp

from rcgp.botorch import RobustStandardize, SingleTaskRCGP
from rcgp.core.trimming import trim

D, ROWS = 3, 10
OUTLIERS = [2, 7]

#: Transforms by name, made for a batch shape and a number of outputs.
INPUTS = {
    "none": lambda batch, m: None,
    "normalize": lambda batch, m: Normalize(d=D),
    "warp": lambda batch, m: Warp(d=D, indices=[0, 1, 2], bounds=torch.tensor([[0.0] * D, [1.0] * D])),
}
OUTCOMES = {
    "default": lambda batch, m: RobustStandardize(m=m, batch_shape=batch),
    "none": lambda batch, m: None,
    "standardize": lambda batch, m: Standardize(m=m, batch_shape=batch),
    "log": lambda batch, m: Log(),
}


def make_data(n=ROWS, batch=(), m=1, outliers=True, dtype=torch.float64, seed=0):
    """Inputs in the unit cube and positive, smooth observations, all different; two rows are far off."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(*batch, n, D, generator=generator, dtype=torch.float64)
    shift = torch.arange(m) + torch.rand(*batch, 1, 1, generator=generator, dtype=torch.float64)
    Y = 3.0 + torch.sin(3.0 * X.sum(dim=-1, keepdim=True) + shift)
    if outliers:
        Y[..., [row for row in OUTLIERS if row < n], :] += 8.0
    return X.to(dtype), Y.to(dtype)


def make_model(X, Y, *, inputs="none", outcomes="default", **arguments):
    """A model with hyperparameters that differ from model to model of the batch."""
    batch, m = X.shape[:-2], Y.shape[-1]
    if outcomes != "default":
        arguments["outcome_transform"] = OUTCOMES[outcomes](batch, m)
    with single_precision(X):
        model = SingleTaskRCGP(X, Y, input_transform=INPUTS[inputs](batch, m), **arguments)
    set_hyperparameters(model)
    return model


def single_precision(X):
    """BoTorch warns of all data that are not in double precision."""
    return contextlib.nullcontext() if X.dtype == torch.float64 else pytest.warns(InputDataWarning, match="double")


def set_hyperparameters(model):
    """Hyperparameters that differ from one model of the batch to the next."""
    shape = model._aug_batch_shape
    steps = torch.arange(shape.numel(), dtype=torch.float64).reshape(shape) / 10.0
    kernel = model.covar_module
    base = kernel.base_kernel if isinstance(kernel, gpytorch.kernels.ScaleKernel) else kernel
    base.lengthscale = (1.0 + torch.arange(D) / 5.0 + steps[..., None, None]).to(base.lengthscale)
    if base is not kernel:
        kernel.outputscale = (1.3 + steps).to(kernel.outputscale)
    model.mean_module.constant.data.copy_(0.1 + steps)
    if not isinstance(model.likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood):
        model.likelihood.noise = (0.01 + steps.unsqueeze(-1) / 10.0).to(model.likelihood.noise)
    transform = getattr(model, "input_transform", None)
    if isinstance(transform, Warp):
        transform._set_concentration(0, torch.tensor([0.8, 1.4, 1.1], dtype=torch.float64))


def state_of(model, index, batch):
    """The state of one model of a batch: what has an entry for each model is indexed."""
    state = model.state_dict()
    return {name: value[index] if value.shape[: len(batch)] == batch else value for name, value in state.items()}


def pseudo_data(model):
    """Kernel matrix, prior mean, pseudo-observations and pseudo-noises, ``... x n``: adaptive weights by hand.

    The weight is w² = 1/(1 + (S²/r) u³²), u = (e − g)/c, with centres g, deviations S and thresholds c by the trusted
    rows.
    """
    model.eval()
    with torch.no_grad():
        X, y, noise = model.train_inputs[0], model.train_targets, model.row_noise()
        K, m = model.covar_module(X).to_dense(), model.mean_module(X)
        e = y - m
        trimmed = trim(K, e, noise)
        u = (e - trimmed.mean) / trimmed.threshold
        gain = trimmed.variance / noise
        z = y + noise * 32.0 * gain * u**31 / (trimmed.threshold * (1.0 + gain * u**32))
        return K, m, z, noise * (1.0 + gain * u**32)


def ordinary_gp(model, z, r):
    """BoTorch's GP of pseudo-observations ``... x n`` with pseudo-noises, and the prior of a model of one output."""
    return SingleTaskGP(
        model.train_inputs[0],
        z.unsqueeze(-1),
        train_Yvar=r.unsqueeze(-1),
        covar_module=copy.deepcopy(model.covar_module),
        mean_module=copy.deepcopy(model.mean_module),
        outcome_transform=None,
    ).eval()
