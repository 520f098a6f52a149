from __future__ import annotations

import copy

import gpytorch
import numpy as np
import pytest
import torch

import reference
from problems import WEIGHTS, gpytorch_gp, make_data, make_twin, set_hyperparameters
from rcgp import RCGP, SparseRCGP, fit
from rcgp.core.exact import log_density
from rcgp.training import objectives
from rcgp.weights import (
    Constant,
    Heteroskedastic,
    InverseMultiquadric,
    OneSided,
    Product,
    SquaredExponential,
    WeightFunction,
)


class Own(WeightFunction):
    def __init__(self):
        super().__init__()
        self.width = torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

    def forward(self, residual, inputs, noise):
        return (1.0 + (residual / self.width) ** 2) ** -0.5


#: Weights that between them have every kind of hyperparameter.
TRAINABLE = {
    "constant": Constant,
    "imq": InverseMultiquadric,
    "imq trainable c": lambda: InverseMultiquadric(trainable=True),
    "se trainable c": lambda: SquaredExponential(c=4.0, trainable=True),
    "heteroskedastic": lambda: Heteroskedastic(lambda x: 0.5 + x[..., 0] ** 2),
    "product": lambda: Product(
        InverseMultiquadric(trainable=True), OneSided(SquaredExponential(trainable=True), "above")
    ),
    "own": Own,
}


def full_model(weight, seed=0, objective="loo"):
    """A model in which kernel, mean, noise and, where it can, the weight all have something to fit."""
    X, y = (torch.tensor(a) for a in make_data(13, seed=seed))
    options = {"weight": TRAINABLE[weight](), "mean": gpytorch.means.LinearMean(2), "noise": 0.1}
    model = SparseRCGP(X, y, inducing=X[:6], **options) if objective == "elbo" else RCGP(X, y, **options)
    set_hyperparameters(model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.mean.weights.data.normal_()
        model.mean.bias.data.normal_()
    return model


def by_autograd(model):
    """The leave-one-out objective through dense inversion, all of it differentiated by autograd."""
    e, noise = model.residual(), model.noise
    w, slope = model.weight(e, model.train_X, noise), model.weight.slope(e, model.train_X, noise)
    z, r = e - noise * slope, noise / w**2
    A = torch.linalg.inv(model.kernel(model.train_X).to_dense() + torch.diag(r))
    return log_density(e - (z - A @ z / A.diagonal()), 1 / A.diagonal() - r + noise).sum()


@pytest.mark.parametrize("weight", TRAINABLE)
def test_gradient_of_the_loo_objective_equals_autograd_in_every_hyperparameter(weight):
    model = full_model(weight)
    names, parameters = zip(*model.named_parameters(), strict=True)
    assert {"raw_noise", "mean.bias", "kernel.base_kernel.raw_lengthscale"} <= set(names)
    value, expected = objectives.leave_one_out(model), by_autograd(model)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(
        torch.autograd.grad(value, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        (name, weight)
        for name in objectives.OBJECTIVES
        for weight in TRAINABLE
        if name != "marginal" or weight in ("constant", "heteroskedastic")
    ],
)
def test_gradient_of_every_objective_equals_central_differences(name, weight):
    model = full_model(weight, objective=name)
    function = objectives.OBJECTIVES[name]
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(function(model), parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for i in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                moved = copy.deepcopy(model)
                target = dict(moved.named_parameters())[next(n for n, p in model.named_parameters() if p is parameter)]
                target.data.view(-1)[i] += sign * step
                values.append(function(moved).item())
            numeric = (values[0] - values[1]) / (2 * step)
            assert gradient.reshape(-1)[i].item() == pytest.approx(numeric, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_loo_objective_equals_the_sum_over_refits(weight):
    twin = make_twin(weight)
    mean, variance = reference.leave_one_out_by_refits(twin.K, twin.y, twin.m, twin.w, twin.slope, twin.noise)
    expected = reference.log_normal(twin.y, mean, variance).sum()
    np.testing.assert_allclose(objectives.leave_one_out(twin.model).item(), expected, rtol=1e-8)


def gpytorch_objective(twin, objective):
    gp, likelihood = gpytorch_gp(twin)
    gp.train()
    return objective(likelihood, gp)(gp(torch.tensor(twin.X)), torch.tensor(twin.y)).item() * len(twin.y)


def test_constant_weights_have_gpytorchs_objectives():
    twin = make_twin("constant")
    mll, loo = gpytorch.mlls.ExactMarginalLogLikelihood, gpytorch.mlls.LeaveOneOutPseudoLikelihood
    assert objectives.marginal(twin.model).item() == pytest.approx(gpytorch_objective(twin, mll), rel=1e-8)
    assert objectives.leave_one_out(twin.model).item() == pytest.approx(gpytorch_objective(twin, loo), rel=1e-8)


def test_constant_weights_have_scikit_learns_marginal_likelihood():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    twin = make_twin("constant")
    lengthscale = twin.model.kernel.base_kernel.lengthscale.detach().numpy()[0]
    kernel = ConstantKernel(twin.model.kernel.outputscale.item()) * RBF(lengthscale) + WhiteKernel(twin.noise)
    gp = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(twin.X, twin.y - twin.m)
    assert objectives.marginal(twin.model).item() == pytest.approx(gp.log_marginal_likelihood_value_, rel=1e-8)


def test_heteroskedastic_marginal_likelihood_is_that_of_the_noises():
    X, y = make_data()
    model = RCGP(X, y, weight=Heteroskedastic(lambda x: 0.3 + x[..., 0] ** 2), mean="zero")
    H = model.kernel_matrix().detach() + torch.diag((0.3 + torch.tensor(X)[:, 0] ** 2) ** 2)
    expected = torch.distributions.MultivariateNormal(torch.zeros(17, dtype=torch.float64), H).log_prob(torch.tensor(y))
    assert objectives.marginal(model).item() == pytest.approx(expected.item(), rel=1e-8)


def test_marginal_likelihood_is_refused_for_weights_that_depend_on_y():
    with pytest.raises(ValueError, match="not InverseMultiquadric; use the objective 'loo'"):
        objectives.marginal(make_twin("imq").model)


@pytest.mark.parametrize("name", objectives.OBJECTIVES)
def test_priors_enter_every_objective(name):
    X, y = (torch.tensor(a) for a in make_data())
    prior = gpytorch.priors.LogNormalPrior(0.3, 0.8)
    values = []
    for with_priors in (False, True):
        kernel = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=2, lengthscale_prior=prior if with_priors else None)
        )
        options = {"kernel": kernel, "weight": Constant(), "noise": 0.2}
        model = SparseRCGP(X, y, inducing=5, **options) if name == "elbo" else RCGP(X, y, **options)
        if with_priors:
            model.register_prior("noise_prior", gpytorch.priors.GammaPrior(2.0, 3.0), "noise")
        values.append(objectives.OBJECTIVES[name](model).item())
    lengthscale = model.kernel.base_kernel.lengthscale.detach()
    gamma = torch.distributions.Gamma(2.0, 3.0).log_prob(torch.tensor(0.2))
    expected = torch.distributions.LogNormal(0.3, 0.8).log_prob(lengthscale).sum() + gamma
    assert values[1] - values[0] == pytest.approx(expected.item(), rel=1e-5)


def test_the_default_model_has_no_priors():
    model = make_twin("imq").model
    assert list(model.named_priors()) == []
    assert objectives.log_prior(model).item() == 0.0


def wave(n=300):
    x = torch.linspace(0, 10, n, dtype=torch.float64)
    noise = 0.1 * torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.unsqueeze(-1), torch.sin(x) + noise


@pytest.mark.parametrize("objective", ["elbo", objectives.elbo])
def test_the_bound_chooses_neither_noise_nor_threshold_of_a_weight_that_depends_on_y(objective):
    model = SparseRCGP(*wave(), inducing=30, weight=InverseMultiquadric(trainable=True))
    before = model.hyperparameters()
    report = fit(model, objective)
    after = model.hyperparameters()
    assert (after["noise"], after["weight.c"]) == (before["noise"], before["weight.c"])
    assert after["kernel.base_kernel.lengthscale"] != before["kernel.base_kernel.lengthscale"]
    assert report.held == "raw_noise, weight.log_c"
    assert "held fixed, which this objective cannot choose: raw_noise, weight.log_c" in str(report)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert float((model.posterior(model.train_X).mean - torch.sin(model.train_X[:, 0])).detach().abs().mean()) < 0.05


def test_what_was_held_before_a_fit_by_the_bound_stays_held_after_it():
    model = SparseRCGP(*wave(100), inducing=10)
    model.raw_noise.requires_grad_(False)
    assert fit(model, "elbo", max_iterations=3).held == ""
    assert not model.raw_noise.requires_grad


@pytest.mark.parametrize(("objective", "weight"), [("elbo", Constant()), ("loo", InverseMultiquadric())])
def test_noise_is_chosen_where_it_can_be(objective, weight):
    model = SparseRCGP(*wave(), inducing=30, weight=weight)
    report = fit(model, objective)
    assert report.held == ""
    assert float(model.noise.detach()) == pytest.approx(0.01, rel=0.3)
