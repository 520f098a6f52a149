"""The paper's loss as a likelihood of GPyTorch: its posterior is that of RCGP."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal

from rcgp import RCGP, SparseRCGP
from rcgp.gpytorch import RCGPLikelihood
from rcgp.training.objectives import elbo
from rcgp.weights import Constant, Heteroskedastic, InverseMultiquadric, LawWeight, NoiseLaw, SquaredExponential

NOISE = 0.05
WEIGHTS = {"imq": InverseMultiquadric, "se": lambda: SquaredExponential(c=2.0), "constant": Constant}


def data(n=30):
    random = np.random.default_rng(0)
    X = np.sort(random.uniform(0.0, 5.0, n))[:, None]
    y = np.sin(2 * X[:, 0]) + 0.2 * random.standard_normal(n)
    y[[3, 17]] += [6.0, -4.0]
    return torch.from_numpy(X), torch.from_numpy(y)


def kernel():
    scale = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5)).double()
    scale.outputscale, scale.base_kernel.lengthscale = 1.3, 0.9
    return scale


class SVGP(gpytorch.models.ApproximateGP):
    """With the best q by one step of natural gradients, which is exact for a loss that is quadratic in f."""

    def __init__(self, inducing, constant):
        distribution = gpytorch.variational.NaturalVariationalDistribution(len(inducing))
        strategy = gpytorch.variational.VariationalStrategy(
            self, inducing, distribution, learn_inducing_locations=False, jitter_val=1e-10
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.mean_module.constant.data.fill_(constant)
        self.covar_module = kernel()

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def best(X, y, inducing, likelihood, constant, steps=3):
    model = SVGP(inducing, constant).double()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimiser = gpytorch.optim.NGD(model.variational_parameters(), num_data=len(y), lr=1.0)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        (-mll(model(X), y)).backward()
        optimiser.step()
    with torch.no_grad():
        value = mll(model(X), y) * len(y)
    return model.eval(), value


@pytest.mark.parametrize("weight", list(WEIGHTS))
def test_with_inducing_points_at_the_data_the_best_q_is_the_posterior_of_rcgp(weight):
    X, y = data()
    exact = RCGP(X, y, kernel=kernel(), mean="median", weight=WEIGHTS[weight](), noise=NOISE)
    likelihood = RCGPLikelihood(y, NOISE, WEIGHTS[weight]())
    model, _ = best(X, y, X.clone(), likelihood, float(y.quantile(0.5)))
    new = torch.linspace(-1.0, 6.0, 40, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        ours, theirs = model(new), exact.posterior(new)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(likelihood(ours).variance, theirs.variance + NOISE, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(likelihood.weights(y), exact.weights().detach())


@pytest.mark.parametrize("weight", list(WEIGHTS))
def test_its_bound_is_that_of_the_sparse_model(weight):
    X, y = data()
    inducing = X[::3].clone()
    sparse = SparseRCGP(X, y, inducing=inducing, kernel=kernel(), mean="median", weight=WEIGHTS[weight](), noise=NOISE)
    _, value = best(X, y, inducing, RCGPLikelihood(y, NOISE, WEIGHTS[weight]()), float(y.quantile(0.5)))
    with torch.no_grad():
        torch.testing.assert_close(value, elbo(sparse), rtol=1e-5, atol=1e-4)


def test_a_constant_weight_is_gpytorchs_gaussian_likelihood():
    _, y = data()
    q = MultivariateNormal(0.5 * y, 0.2 * torch.eye(len(y), dtype=torch.float64) + 0.1)
    theirs = gpytorch.likelihoods.GaussianLikelihood().double()
    theirs.noise = 0.3
    ours = RCGPLikelihood(y, theirs.noise.detach(), Constant())
    torch.testing.assert_close(ours.expected_log_prob(y, q), theirs.expected_log_prob(y, q), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.log_marginal(y, q), theirs.log_marginal(y, q), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(q).variance, theirs(q).variance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(q.mean).log_prob(y), theirs(q.mean).log_prob(y), rtol=1e-10, atol=1e-10)
    assert ours.raw_noise.requires_grad
    assert not RCGPLikelihood(y, 0.3).raw_noise.requires_grad  # which this loss cannot choose


def test_the_expected_loss_is_that_of_monte_carlo():
    _, y = data()
    mean, std = 0.5 * y, torch.full_like(y, 0.4)
    likelihood = RCGPLikelihood(y, 0.3, InverseMultiquadric(c=1.5))
    e = (y - y.quantile(0.5)).requires_grad_()
    squared = 1.0 / (1.0 + (e / 1.5) ** 2)
    (derivative,) = torch.autograd.grad(squared.sum(), e)  # of w̃² in y
    torch.manual_seed(0)
    f = mean + std * torch.randn(400_000, len(y), dtype=torch.float64)
    loss = (squared.detach() * (y - f) ** 2 / 0.6 + derivative * (f - y) - squared.detach()).mean(dim=0)
    closed = likelihood.expected_log_prob(y, MultivariateNormal(mean, torch.diag(std**2)))
    torch.testing.assert_close(closed, -loss, rtol=5e-3, atol=5e-3)


def test_gradients_are_those_of_finite_differences():
    y = data()[1][:8]
    likelihood = RCGPLikelihood(y, NOISE, InverseMultiquadric(c=1.5))

    def value(y, mean, variance):
        return likelihood.expected_log_prob(y, MultivariateNormal(mean, torch.diag_embed(variance)))

    inputs = [part.clone().requires_grad_() for part in (y, 0.5 * y, 0.1 + y.abs())]
    assert torch.autograd.gradcheck(value, inputs)


def test_the_threshold_is_that_of_all_targets_in_every_batch():
    _, y = data()
    likelihood = RCGPLikelihood(y, NOISE)
    torch.testing.assert_close(likelihood.weights(y)[:5], likelihood.weights(y[:5]))


def test_a_weight_may_depend_on_inputs():
    X, y = data()
    q = MultivariateNormal(0.5 * y, 0.2 * torch.eye(len(y), dtype=torch.float64))
    likelihood = RCGPLikelihood(y, 0.3, Heteroskedastic(lambda x: 1.0 + x[..., 0]))
    noise = (1.0 + X[:, 0]).square()
    wanted = torch.distributions.Normal(0.5 * y, noise.sqrt()).log_prob(y) - 0.1 / noise
    torch.testing.assert_close(likelihood.expected_log_prob(y, q, inputs=X), wanted)


def test_tasks_batches_and_absurd_observations():
    _, y = data()
    both = torch.stack([y, 3.0 * y], dim=-1)
    likelihood = RCGPLikelihood(both, NOISE, num_tasks=2)
    covariance = 0.2 * torch.eye(2 * len(y), dtype=torch.float64)
    q = gpytorch.distributions.MultitaskMultivariateNormal(0.5 * both, covariance)
    parts = [
        RCGPLikelihood(both[:, i], NOISE).expected_log_prob(
            both[:, i], MultivariateNormal(0.5 * both[:, i], covariance[: len(y), : len(y)])
        )
        for i in range(2)
    ]
    torch.testing.assert_close(likelihood.expected_log_prob(both, q), sum(parts))
    assert likelihood(q).mean.shape == likelihood.weights(both).shape == both.shape
    absurd = y.clone()
    absurd[0] = 1e300
    mean = (0.5 * y).requires_grad_()
    value = RCGPLikelihood(absurd, NOISE).expected_log_prob(absurd, MultivariateNormal(mean, covariance[:30, :30]))
    (gradient,) = torch.autograd.grad(value.sum(), mean)
    assert bool(value.isfinite().all() & gradient.isfinite().all())
    assert abs(float(gradient[0])) < 1e-200


def test_states_copies_and_pickles_weigh_the_same():
    _, y = data()
    likelihood = RCGPLikelihood(y, NOISE)
    loaded = RCGPLikelihood(y + 1.0, 2.0)
    loaded.load_state_dict(likelihood.state_dict())
    for other in (loaded, copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        torch.testing.assert_close(other.weights(y), likelihood.weights(y), rtol=0.0, atol=0.0)
        torch.testing.assert_close(other.noise, likelihood.noise, rtol=0.0, atol=0.0)


def test_errors_name_what_does_not_fit():
    _, y = data()
    with pytest.raises(TypeError, match="weight function"):
        RCGPLikelihood(y, NOISE, "imq")
    law = LawWeight(NoiseLaw.normal(), torch.zeros(30), torch.ones(30))
    with pytest.raises(TypeError, match="use NoiseLawLikelihood"):
        RCGPLikelihood(y, NOISE, law)
    with pytest.raises(RuntimeError, match="a number for c"):
        RCGPLikelihood(y, NOISE, InverseMultiquadric(trainable=True)).weights(y)
    with pytest.raises(ValueError, match="positive variance"):
        RCGPLikelihood(y, 0.0)
