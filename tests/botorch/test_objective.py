from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan
from gpytorch.mlls import ExactMarginalLogLikelihood

import reference
from problems_of_botorch import OUTLIERS, ROWS, leave_one_out, make_data, make_model, pseudo_data, state_of
from rcgp.botorch import LeaveOneOutObjective
from rcgp.weights import Constant, InverseMultiquadric

C = 2.0


def value_of(model):
    """The objective as optimisers compute it, in training mode."""
    objective = LeaveOneOutObjective(model).train()
    return objective(model(*model.train_inputs), model.train_targets)


def log_prior(model):
    return sum(prior.log_prob(closure(module)).sum().item() for _, module, prior, closure, _ in model.named_priors())


@pytest.mark.parametrize("inputs", ["none", "normalize", "warp"])
def test_is_the_papers_by_refits(inputs):
    model = make_model(*make_data(), inputs=inputs, weight=InverseMultiquadric(c=C))
    value = value_of(model).item()
    model.eval()
    X, y = model.train_inputs[0].numpy(), model.train_targets.numpy()
    noise, m = model.likelihood.noise.item(), np.full(ROWS, model.mean_module.constant.item())
    lengthscale = model.covar_module.base_kernel.lengthscale[0].detach().numpy()
    K = reference.se_kernel(X, X, lengthscale, model.covar_module.outputscale.item())
    w, slope = reference.imq(y - m, C, noise)
    mean, variance = reference.leave_one_out_by_refits(K, y, m, w, slope, noise)
    expected = (reference.log_normal(y, mean, variance).sum() + log_prior(model)) / ROWS
    assert log_prior(model) != 0.0
    assert value == pytest.approx(expected, rel=1e-8)


def test_with_a_noise_law_it_is_the_density_of_the_law_by_refits():
    model = make_model(*make_data())
    K, m, z, r = pseudo_data(model)
    e, noise = model.train_targets - m, model.likelihood.noise.item()
    mean, variance = leave_one_out(K, z - m, r)
    *shares, outlier, spreads = model.law.tolist()
    width = spreads * e.abs().quantile(0.5) / 0.6744897501960817
    reach = variance + 16.0 * noise
    gap = 1.0 - (16.0 * noise / reach).sqrt() * (-0.5 * (e - mean) ** 2 / reach).exp()
    mass = 1.0 - torch.special.erfcx(width / math.sqrt(32.0 * noise))
    density = outlier * torch.distributions.Cauchy(0.0, width).log_prob(e).exp() * gap / mass
    for share, scale in zip(shares, (1.0, 2.0, 4.0, 8.0), strict=True):
        density += share * torch.distributions.Normal(mean, (variance + noise * scale**2).sqrt()).log_prob(e).exp()
    expected = (density.log().sum().item() + log_prior(model)) / ROWS
    assert value_of(model).item() == pytest.approx(expected, rel=1e-8)


def test_outliers_have_bounded_influence_on_the_gradient():
    X, Y = make_data()
    values = []
    for size in (1e4, 1e8, 1e100):
        Y[OUTLIERS] = size
        model = make_model(X, Y, outcomes="none").train()
        value = value_of(model)
        values.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))]))
    torch.testing.assert_close(values[1], values[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(values[2], values[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("weight", [InverseMultiquadric(c=C), Constant()])
@pytest.mark.parametrize("inputs", ["none", "warp"])
def test_gradient_passes_gradcheck(weight, inputs):
    model = make_model(*make_data(n=6), inputs=inputs, weight=weight)
    objective = LeaveOneOutObjective(model).train()
    names, values = zip(*((name, p) for name, p in objective.named_parameters() if p.requires_grad), strict=True)

    def value(*parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(Evaluated(objective), {f"objective.{n}": p for n, p in named.items()}, ())

    assert any("noise" in name for name in names)
    assert any("lengthscale" in name for name in names)
    assert torch.autograd.gradcheck(value, tuple(p.detach().clone().requires_grad_() for p in values))


class Evaluated(torch.nn.Module):
    """The objective at its own model's data."""

    def __init__(self, objective):
        super().__init__()
        self.objective = objective

    def forward(self):
        model = self.objective.model
        return self.objective(model(*model.train_inputs), model.train_targets)


def test_gradient_with_a_noise_law_is_finite_and_no_parameter_is_forgotten():
    model = make_model(*make_data(m=2), inputs="warp")
    value_of(model).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).all(), name


@pytest.mark.parametrize("weight", ["learned", "imq"])
def test_of_a_batch_is_that_of_each_model(weight):
    X, Y = make_data(batch=(2,))
    model = make_model(X, Y, weight=weight)
    values = value_of(model)
    assert values.shape == (2,)
    for number in range(2):
        single = make_model(X[number], Y[number], weight=weight)
        single.load_state_dict(state_of(model, (number,), (2,)))
        assert values[number].item() == pytest.approx(value_of(single).item(), rel=1e-9)


def test_with_known_noises():
    Yvar = 0.01 + 0.02 * torch.rand(ROWS, 1, dtype=torch.float64)
    model = make_model(*make_data(), train_Yvar=Yvar, outcomes="none", weight=Constant())
    value = value_of(model).item()
    K, m = model.covar_module(model.train_inputs[0]).to_dense().detach(), model.mean_module.constant.item()
    A = torch.linalg.inv(K + Yvar.squeeze(-1).diag())
    variance = 1.0 / A.diagonal()
    error = (A @ (model.train_targets - m)) * variance
    expected = reference.log_normal(error.numpy(), 0.0, variance.numpy()).sum()
    assert value == pytest.approx((expected + log_prior(model)) / ROWS, rel=1e-8)


def test_gpytorchs_evidence_in_training_mode_is_that_of_the_ordinary_gp():
    """So a training loop of one's own is robust with this objective, not with GPyTorch's."""
    X, Y = make_data()
    evidence, objective = [], []
    for size in (1e2, 1e4):
        Y[OUTLIERS] = size
        model = make_model(X, Y, outcomes="none").train()
        names = ("covar_module", "mean_module", "likelihood")
        modules = {name: copy.deepcopy(getattr(model, name)) for name in names}
        gp = SingleTaskGP(X, Y, outcome_transform=None, **modules)
        values = [
            ExactMarginalLogLikelihood(some.likelihood, some)(some(*some.train_inputs), some.train_targets).item()
            for some in (model, gp)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-10)
        evidence.append(values[0])
        objective.append(value_of(model).item())
    assert evidence[1] < 1e3 * evidence[0] < 0.0  # follows the outliers
    assert abs(objective[1] - objective[0]) < 2.0 * np.log(1e4) / ROWS * len(
        OUTLIERS
    )  # as the density of outliers falls


def test_can_be_maximised_by_a_custom_loop():
    model = make_model(*make_data(), inputs="normalize")
    # BoTorch's own constraint is for optimisers that know of bounds: a step could leave it.
    model.likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(1e-5))
    model.likelihood.noise = 0.01
    objective = LeaveOneOutObjective(model).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    values = []
    for _ in range(20):
        optimiser.zero_grad()
        value = objective(model(*model.train_inputs), model.train_targets)
        values.append(value.item())
        (-value).backward()
        optimiser.step()
    assert values[-1] > values[0] + 0.1


def test_takes_gpytorchs_arguments():
    model = make_model(*make_data())
    one, two = LeaveOneOutObjective(model), LeaveOneOutObjective(model.likelihood, model)
    assert one.model is two.model is model
    assert one.likelihood is two.likelihood is model.likelihood
