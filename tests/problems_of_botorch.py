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
    """Kernel matrix, prior mean, pseudo-observations and pseudo-noises, ``... x n``: the noise law's, by hand."""
    model.eval()
    with torch.no_grad():
        X, y, noise = model.train_inputs[0], model.train_targets, model.row_noise()
        K, m = model.covar_module(X).to_dense(), model.mean_module(X)
    n, shape = y.shape[-1], y.shape
    rows = [
        law_weights(*parts)
        for parts in zip(
            K.reshape(-1, n, n),
            (y - m).reshape(-1, n),
            noise.reshape(-1, n),
            model.law.reshape(-1, 6),
            strict=True,
        )
    ]
    w, slope, _ = (torch.stack(values).reshape(shape) for values in zip(*rows, strict=True))
    return K, m, y - noise * slope, noise / w.square()


SCALES = (1.0, 2.0, 4.0, 8.0)


def law_weights(K, e, noise, law):
    """Weights, slopes and outlier probabilities of one model: densities as written, leave-one-out by refits."""
    spread = e.abs().quantile(0.5) / 0.6744897501960817
    w, slope = (1.0 + (e / (5.0 * spread)) ** 2).rsqrt(), torch.zeros_like(e)
    own, warmth = noise, (0.1 * spread**2 / noise).clamp_min(1.0)
    for exponent in (1.0, 2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0):  # from the noise at which models start to their own
        noise = own * warmth**exponent
        mean, variance = leave_one_out(K, e - noise * slope, noise / w.square())
        point = e.clone().requires_grad_()
        good = [
            share * torch.distributions.Normal(mean, (variance + noise * scale**2).sqrt()).log_prob(point).exp()
            for share, scale in zip(law, SCALES, strict=False)
        ]
        reach = 16.0 * noise
        explained = (reach / (variance + reach)).sqrt() * (-0.5 * (point - mean) ** 2 / (variance + reach)).exp()
        mass = 1.0 - torch.special.erfcx(law[5] * spread / (2.0 * reach).sqrt())
        cauchy = torch.distributions.Cauchy(0.0, law[5] * spread).log_prob(point).exp()
        outlier = law[4] * cauchy * (1.0 - explained) / mass
        square = sum(part / scale**2 for part, scale in zip(good, SCALES, strict=True)) / (sum(good) + outlier)
        (slope,) = torch.autograd.grad(square.log().sum(), point)
        w, probability = square.detach().sqrt(), ((good[-1] + outlier) / (sum(good) + outlier)).detach()
    return w, slope, probability


def leave_one_out(K, z, r):
    """Mean and variance of f at each row given all others, by refits."""
    moments = []
    for row in range(len(z)):
        rest = [other for other in range(len(z)) if other != row]
        A = torch.linalg.inv(K[rest][:, rest] + r[rest].diag())
        moments.append((K[row, rest] @ A @ z[rest], K[row, row] - K[row, rest] @ A @ K[rest, row]))
    return tuple(torch.stack(values) for values in zip(*moments, strict=True))


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
