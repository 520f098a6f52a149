from __future__ import annotations

import copy

import gpytorch
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import reference
from problems import LENGTHSCALE, VARIANCE, make_data, set_hyperparameters
from problems_of_baselines import assert_gradient_by_differences, settle
from rcgp.training.objectives import marginal
from rcgp_paper.baselines import GaussianGP, StudentTGP, variational
from rcgp_paper.baselines.student_t import _log_blurred_student_t

NOISE, NU = 0.3, 4.0


def make_model(n=14, noise=NOISE, nu=NU, lengthscale=0.5, **arguments):
    """A model whose kernel matrix is well conditioned, for dense comparisons."""
    X, y = make_data(n)
    model = StudentTGP(X, y, noise=noise, degrees_of_freedom=nu, **arguments)
    set_hyperparameters(model)
    model.kernel.base_kernel.lengthscale = torch.tensor(lengthscale * LENGTHSCALE)
    return model, X, y


def dense_bound(model, X, y, mean, V, lengthscale=0.5):
    """The bound from its definition: numerical integrals and the divergence of dense Gaussians."""
    nu, scale = model.degrees_of_freedom.item(), model.noise.item() ** 0.5
    K = reference.se_kernel(X, X, lengthscale * LENGTHSCALE, VARIANCE)

    def expected(target, centre, variance):
        f = np.linspace(-14, 14, 40001)
        weight = scipy.stats.norm.pdf(f)
        density = scipy.stats.t.logpdf(target, nu, loc=centre + variance**0.5 * f, scale=scale)
        return (weight * density).sum() / weight.sum()

    likelihood = sum(expected(*triple) for triple in zip(y, mean, np.diag(V), strict=True))
    return likelihood - reference.gaussian_kl(mean, V, np.full(len(y), y.mean()), K)


def posterior_moments(model, X):
    posterior = model.posterior(torch.tensor(X))
    return posterior.mean.numpy(), posterior.covariance_matrix.numpy()


def test_bound_is_the_dense_one():
    model, X, y = make_model()
    assert (model._bound()[1].posterior.s == 0).any()  # some sites are negative
    assert model.elbo().item() == pytest.approx(dense_bound(model, X, y, *posterior_moments(model, X)), abs=5e-5)


def test_no_gaussian_nearby_has_a_higher_bound():
    model, X, y = make_model(n=9)
    mean, V = posterior_moments(model, X)
    best, random = model.elbo().item(), np.random.default_rng(0)
    losses = []
    for size in (0.01, 0.1):
        for _ in range(10):
            root = np.linalg.cholesky(V) @ (np.eye(9) + size * np.tril(random.standard_normal((9, 9))))
            shifted = mean + size * np.sqrt(np.diag(V)) * random.standard_normal(9)
            losses.append(best - dense_bound(model, X, y, shifted, root @ root.T))
    assert min(losses) > 0


def test_gpytorch_finds_the_same_bound_and_none_higher():
    model, X, y = make_model(n=10)
    inputs, targets = torch.tensor(X), torch.tensor(y)

    class Approximate(gpytorch.models.ApproximateGP):
        def __init__(self):
            distribution = gpytorch.variational.CholeskyVariationalDistribution(10)
            super().__init__(gpytorch.variational.UnwhitenedVariationalStrategy(self, inputs, distribution, False))
            self.covariance = copy.deepcopy(model.kernel).requires_grad_(False)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(torch.full_like(x[:, 0], y.mean()), self.covariance(x))

    with gpytorch.settings.num_gauss_hermite_locs(60):
        likelihood = gpytorch.likelihoods.StudentTLikelihood().double()
    likelihood.initialize(noise=NOISE, deg_free=NU)
    likelihood.requires_grad_(False)
    other = Approximate().double()
    objective = gpytorch.mlls.VariationalELBO(likelihood, other, num_data=10)
    optimiser = torch.optim.Adam(other.parameters(), lr=0.1)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 600)
    for _ in range(600):
        optimiser.zero_grad()
        loss = -10 * objective(other(inputs), targets)
        loss.backward()
        optimiser.step()
        decay.step()
    found = other.variational_strategy.variational_distribution
    # At what it found, because its own value contains jitter.
    value = dense_bound(model, X, y, found.mean.detach().numpy(), found.covariance_matrix.detach().numpy())
    best = dense_bound(model, X, y, *posterior_moments(model, X))
    assert best > value
    assert best == pytest.approx(value, abs=0.01)


def test_many_degrees_of_freedom_are_the_ordinary_gp():
    X, y = make_data(20, outliers=0)
    model, ordinary = StudentTGP(X, y, degrees_of_freedom=1e6), GaussianGP(X, y)
    assert model.elbo().item() == pytest.approx(marginal(ordinary).item(), abs=1e-3)
    assert model.fit().value == pytest.approx(ordinary.fit().value, abs=1e-3)
    test_X = torch.tensor(X + 0.4)
    first, second = model.posterior(test_X, True), ordinary.posterior(test_X, True)
    torch.testing.assert_close(first.mean, second.mean, rtol=0, atol=2e-3)
    torch.testing.assert_close(first.variance, second.variance, rtol=0, atol=2e-3)


@pytest.mark.parametrize("nu", [2.5, 6.0])
def test_gradient_is_the_one_of_central_differences(nu, monkeypatch):
    monkeypatch.setattr(variational, "_TOLERANCE", 1e-15)
    model, _, _ = make_model(nu=nu, mean=gpytorch.means.ConstantMean())
    model.raw_degrees_of_freedom.requires_grad_(True)
    assert_gradient_by_differences(model)


def test_no_step_improves_the_best_posterior():
    model, _, _ = make_model(n=30, noise=0.001, nu=2.1)
    best = model.elbo().item()
    settle(model)
    assert model.elbo().item() == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("nu", [2.1, 4.0, 100.0])
def test_quadrature_error_is_negligible_where_the_posterior_is_half_as_wide_as_the_noise(nu):
    model, _, _ = make_model(n=8, nu=nu)
    width = (nu * NOISE) ** 0.5
    mean = torch.linspace(-2, 2, 8, dtype=torch.float64) * width + model.residual()
    variance = torch.linspace(0.01, 0.5, 8, dtype=torch.float64).square() * width**2
    f = np.linspace(-12, 12, 200001)
    weight = scipy.stats.norm.pdf(f)
    exact = sum(
        (weight * scipy.stats.t.logpdf(float(e - m), nu, loc=float(v) ** 0.5 * f, scale=NOISE**0.5)).sum()
        / weight.sum()
        for e, m, v in zip(model.residual(), mean, variance, strict=True)
    )
    assert model.expected_log_likelihood(mean, variance).item() == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("nu", [2.1, 4.0, 50.0, 1e4])
@pytest.mark.parametrize("variance", [1e-4, 0.05, 25.0])
@pytest.mark.parametrize("residual", [0.0, 0.5, 8.0])
def test_predictive_density_is_the_numerical_integral(nu, variance, residual):
    density = _log_blurred_student_t(
        *(torch.tensor(value, dtype=torch.float64) for value in (residual, variance, NOISE, nu))
    )
    reach = 1.5 * residual + 15 * variance**0.5 + 1e-9
    f, step = np.linspace(-reach, reach, 400001, retstep=True)
    joint = scipy.stats.t.logpdf(residual - f, nu, scale=NOISE**0.5) + reference.log_normal(f, 0.0, variance)
    assert density.item() == pytest.approx(scipy.special.logsumexp(joint) + np.log(step), abs=1e-6)


def test_predictive_densities_integrate_to_one_and_have_the_moments_of_the_posterior():
    model, X, _ = make_model(nu=5.0)
    grid = torch.linspace(-80, 80, 8001, dtype=torch.float64)
    density = model.log_predictive_density(torch.tensor(X[:1]).expand(len(grid), -1), grid).exp() * (grid[1] - grid[0])
    observed = model.posterior(torch.tensor(X[:1]), observation_noise=True)
    mean = (density * grid).sum()
    assert density.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert mean.item() == pytest.approx(observed.mean.item(), abs=1e-5)
    assert (density * (grid - mean) ** 2).sum().item() == pytest.approx(observed.variance.item(), rel=1e-3)


def test_predictive_density_needs_one_observation_for_each_input():
    model, X, y = make_model()
    assert model.log_predictive_density(X, y).shape == (14,)
    with pytest.raises(ValueError, match=r"y must have shape \(14,\)"):
        model.log_predictive_density(X, y[:3])
    with pytest.raises(ValueError, match="y contains NaN in row 2"):
        model.log_predictive_density(X, np.where(np.arange(14) == 2, np.nan, y))


def test_degrees_of_freedom_are_learned_unless_given():
    X, y = make_data(40)
    fixed, learned = StudentTGP(X, y, degrees_of_freedom=7.0), StudentTGP(X, y)
    fixed.fit()
    report = learned.fit()
    assert fixed.degrees_of_freedom.item() == pytest.approx(7.0)
    assert 2.1 <= learned.degrees_of_freedom.item() < 3.5
    assert report.hyperparameters["degrees_of_freedom"][0] == pytest.approx(learned.degrees_of_freedom.item())


@pytest.mark.parametrize("value", [2.0, 0.0, float("nan"), 1e7])
def test_degrees_of_freedom_out_of_range_raise(value):
    with pytest.raises(ValueError, match=r"degrees_of_freedom must be between 2\.1 and 1e\+06"):
        StudentTGP(torch.zeros(3, 1), torch.zeros(3), degrees_of_freedom=value)


def test_an_observation_of_any_size_does_not_affect_the_rest():
    X, y = make_data(20, outliers=0)
    y[3] = 1e300
    model, without = (
        StudentTGP(X[keep], y[keep], mean="zero", noise=0.05, degrees_of_freedom=4.0)
        for keep in (np.arange(20), np.delete(np.arange(20), 3))
    )
    for each in (model, without):
        set_hyperparameters(each)
    test_X = torch.tensor(X)
    torch.testing.assert_close(model.posterior(test_X).mean, without.posterior(test_X).mean, rtol=0, atol=1e-3)
    assert model.weights()[3] < 1e-100


@pytest.mark.parametrize("nu", [2.1, 5.0, 300.0])
def test_predictive_mixture_has_the_density_and_the_moments_of_the_prediction(nu):
    model, X, _ = make_model(nu=nu)
    test_X = torch.tensor(X[:3] + 0.2)
    mean, weights, stds = model.predictive_mixture(test_X)
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)
    for shift in (0.0, 0.7, 3.0):
        normals = torch.distributions.Normal(mean.unsqueeze(-1), stds).log_prob((mean + shift).unsqueeze(-1))
        density = (normals.exp() * weights).sum(dim=-1).log()
        torch.testing.assert_close(density, model.log_predictive_density(test_X, mean + shift), rtol=0, atol=1e-8)
    observed = model.posterior(test_X, observation_noise=True)
    torch.testing.assert_close(mean, observed.mean)
    if nu > 4:
        torch.testing.assert_close((stds.square() @ weights), observed.variance, rtol=1e-6, atol=0)
