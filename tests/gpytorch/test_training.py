"""Variational GPs of GPyTorch trained with the noise law: objectives, minibatches, batches of models, tasks, files."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal

from marks import slow
from rcgp.gpytorch import NoiseLawLikelihood
from rcgp.weights import NoiseLaw

DOUBLE = torch.float64


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing, batch_shape=torch.Size(), tasks=None):  # noqa: B008
        shape = batch_shape if tasks is None else torch.Size([tasks])
        distribution = gpytorch.variational.CholeskyVariationalDistribution(inducing.shape[-2], batch_shape=shape)
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution)
        if tasks is not None:
            strategy = gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=tasks)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        base = gpytorch.kernels.RBFKernel(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=shape)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def sine(n=300, dtype=DOUBLE, wrong_share=0.15):
    random = torch.Generator().manual_seed(1)
    X = torch.rand(n, 1, generator=random, dtype=DOUBLE) * 6
    truth = torch.sin(2 * X[:, 0])
    y = truth + 0.1 * torch.randn(n, generator=random, dtype=DOUBLE)
    wrong = torch.rand(n, generator=random) < wrong_share
    y = y + wrong * (2.0 + 4.0 * torch.rand(n, generator=random, dtype=DOUBLE))
    return X.to(dtype), y.to(dtype), truth.to(dtype), wrong


def train(model, likelihood, X, y, objective=gpytorch.mlls.VariationalELBO, steps=200, batch=None, rate=0.05):
    mll = objective(likelihood, model, num_data=y.shape[-1] if y.ndim == 1 else y.shape[-2])
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=rate)
    model.train(), likelihood.train()
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randperm(len(X), generator=random)[: batch or len(X)]
        optimiser.zero_grad()
        loss = -mll(model(X[rows]), y[rows]).sum()
        loss.backward()
        optimiser.step()
    model.eval(), likelihood.eval()
    return float(loss.detach())


def test_a_normal_law_trains_like_the_gaussian_likelihood():
    X, y, *_ = sine(60)
    values = []
    for likelihood in (NoiseLawLikelihood(y, NoiseLaw.normal()), gpytorch.likelihoods.GaussianLikelihood().double()):
        torch.manual_seed(0)
        model = SVGP(X[::5].clone()).double()
        likelihood.noise = torch.tensor(0.2, dtype=DOUBLE)
        mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        value = mll(model(X), y)
        value.backward()
        values.append((value.detach(), model.covar_module.base_kernel.raw_lengthscale.grad))
    for ours, theirs in zip(*values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("objective", "dtype", "batch"),
    [
        (gpytorch.mlls.VariationalELBO, DOUBLE, 100),
        (gpytorch.mlls.PredictiveLogLikelihood, torch.float32, None),
        slow(gpytorch.mlls.VariationalELBO, torch.float32, None),
        slow(gpytorch.mlls.PredictiveLogLikelihood, DOUBLE, 100),
    ],
)
def test_a_sparse_variational_gp_ignores_outliers(objective, dtype, batch):
    X, y, truth, wrong = sine(dtype=dtype)
    model, likelihood = SVGP(X[::15].clone()).to(dtype), NoiseLawLikelihood(y)
    assert likelihood.noise.dtype == dtype
    train(model, likelihood, X, y, objective, batch=batch)
    with torch.no_grad():
        prediction = model(X)
        flags = likelihood.outlier_probability(y, prediction) > 0.5
        low, high = likelihood(prediction).confidence_region()
    assert float((prediction.mean - truth).abs().mean()) < 0.05
    assert bool((flags == wrong).double().mean() > 0.98)
    assert bool((likelihood.weights(y, prediction)[wrong] < 0.2).double().mean() > 0.95)
    assert 0.9 < float(((y > low) & (y < high))[~wrong].double().mean()) <= 1.0
    assert 0.1 < likelihood.noise_law.outlier_share < 0.2


def test_a_batch_of_models_has_a_law_for_each():
    X, y, *_ = sine(120)
    both = torch.stack([y, torch.sin(2 * X[:, 0])])
    shape = torch.Size([2])
    model, likelihood = SVGP(X[::10].clone(), shape).double(), NoiseLawLikelihood(both, batch_shape=shape)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=120)
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        (-mll(model(X), both).sum()).backward()
        optimiser.step()
    contaminated, clean = likelihood.noise_law
    assert contaminated.outlier_share > 0.1 > clean.outlier_share
    assert likelihood(model(X)).mean.shape == (2, 120)
    assert likelihood.outlier_probability(both, model(X)).shape == (2, 120)
    single = copy.deepcopy(likelihood)
    prediction = model(X)
    one = NoiseLawLikelihood(
        y, contaminated, noise=likelihood.noise[0, 0].item(), centre=float(likelihood.centre[0, 0])
    )
    alone = MultivariateNormal(prediction.mean[0], torch.diag(prediction.variance[0]))
    torch.testing.assert_close(single.eval().log_marginal(both, prediction)[0], one.eval().log_marginal(y, alone))


def test_tasks_have_a_law_each_and_add_up():
    X, y, *_ = sine(80)
    both = torch.stack([y, 10.0 * torch.sin(2 * X[:, 0])], dim=-1)
    model, likelihood = SVGP(X[::8].clone(), tasks=2).double(), NoiseLawLikelihood(both, num_tasks=2)
    train(model, likelihood, X, both, steps=30)
    prediction = model(X)
    assert isinstance(prediction, MultitaskMultivariateNormal)
    first, second = likelihood.noise_law
    parts = []
    for i, law in enumerate((first, second)):
        noise, centre = likelihood.noise[i].item(), float(likelihood.centre[i])
        one = NoiseLawLikelihood(both[:, i], law, noise=noise, centre=centre).eval()
        alone = MultivariateNormal(prediction.mean[:, i], torch.diag(prediction.variance[:, i]))
        parts.append(one.expected_log_prob(both[:, i], alone))
        torch.testing.assert_close(likelihood(prediction).quantile(0.9)[:, i], one(alone).quantile(0.9))
    torch.testing.assert_close(likelihood.expected_log_prob(both, prediction), sum(parts))
    assert likelihood(prediction).variance.shape == likelihood.weights(both, prediction).shape == (80, 2)


def test_states_copies_and_pickles_predict_the_same():
    X, y, *_ = sine(80)
    model, likelihood = SVGP(X[::8].clone()).double(), NoiseLawLikelihood(y)
    train(model, likelihood, X, y, steps=10)
    q = model(X)
    wanted = likelihood.log_marginal(y, q).detach()
    loaded = NoiseLawLikelihood(torch.zeros(80, dtype=DOUBLE)).eval()
    loaded.load_state_dict(likelihood.state_dict())
    for other in (loaded, copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        torch.testing.assert_close(other.log_marginal(y, q).detach(), wanted, rtol=0.0, atol=0.0)
        assert other.noise_law == likelihood.noise_law


@pytest.mark.parametrize(("shift", "unit"), [(3.0, 1.0), (40.0, 1.0), (0.0, 0.01)])
def test_a_model_that_starts_far_from_the_data_flags_few_rows(shift, unit):
    X, y, *_ = sine(200)
    y = unit * y + shift
    model, likelihood = SVGP(X[:15].clone()).double(), NoiseLawLikelihood(y)
    train(model, likelihood, X, y, steps=150)
    with torch.no_grad():
        mean = model(X).mean.mean()
    assert likelihood.noise_law.outlier_share < 0.3
    assert -0.2 * unit < mean < 1.1 * float(y.median()) + unit  # between zero and the median, and not beyond
    given = NoiseLawLikelihood(y, noise=0.2)
    train(model, given, X, y, steps=1, rate=0.0)
    assert float(given.noise.detach()) == pytest.approx(0.2)
