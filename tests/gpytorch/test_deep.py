"""Deep GPs: moments beside GPyTorch's own, the start, and training with the robust likelihoods."""

from __future__ import annotations

import copy
import math

import gpytorch
import pytest
import torch

from marks import slow
from rcgp.gpytorch import NoiseLawLikelihood, RCGPLikelihood
from rcgp.gpytorch.deep import DeepModel, base_samples, random_samples
from rcgp.gpytorch.deep_fit import fit_deep, held_out_score

DOUBLE = torch.float64


def steps(n=120, wrong=0.0, d=1):
    random = torch.Generator().manual_seed(0)
    X = 2.0 * torch.rand(n, d, generator=random, dtype=DOUBLE) - 1.0
    truth = torch.sign(X[:, 0])
    y = truth + 0.1 * torch.randn(n, generator=random, dtype=DOUBLE)
    bad = torch.rand(n, generator=random) < wrong
    return X, y + bad * 5.0, truth, bad


def moved(model, seed=0):
    """The model with other parameters than those of the start."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=random, dtype=DOUBLE)
    return model.eval()


@pytest.mark.parametrize("d", [1, 3, 10])
def test_moments_of_each_layer_are_gpytorchs(d):
    X = steps(30, d=d)[0]
    model = moved(DeepModel(X[:8].clone()))
    with torch.no_grad():
        mean, variance = model.hidden[0].moments(X)
        theirs = model.hidden[0](X)
        assert mean.shape == (min(d, 8), 30)
        torch.testing.assert_close(mean, theirs.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(variance, theirs.variance, rtol=1e-4, atol=1e-5)
        value = mean.mT
        mean, variance = model.last.moments(value)
        theirs = model.last(value)
        torch.testing.assert_close(mean, theirs.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(variance, theirs.variance, rtol=1e-4, atol=1e-5)


def test_samples_go_through_the_layers_one_by_one():
    X = steps(20, d=2)[0]
    model = moved(DeepModel(X[:6].clone(), layers=3))
    base = random_samples(3, 4, 20, X)
    with torch.no_grad():
        q = model(X, base)
        for s in range(4):
            value = X
            for i, layer in enumerate(model.hidden):
                mean, variance = layer.moments(value)
                value = mean.mT + variance.mT.sqrt() * base[i, s, :, :2]
            mean, variance = model.last.moments(value)
            torch.testing.assert_close(q.mean[s], mean)
            torch.testing.assert_close(q.variance[s], variance)


def test_a_prediction_does_not_depend_on_other_rows():
    X = steps(20, d=2)[0]
    model = moved(DeepModel(X[:6].clone()))
    base = base_samples(2, 16, X)
    with torch.no_grad():
        torch.testing.assert_close(model(X, base).mean[:, 3:5], model(X[3:5], base).mean)


def test_base_samples_are_standard_normal():
    base = base_samples(3, 256, torch.zeros(1, dtype=DOUBLE))
    assert base.shape == (2, 256, 1, 8)
    torch.testing.assert_close(base.mean(dim=1), torch.zeros(2, 1, 8, dtype=DOUBLE), atol=0.05, rtol=0.0)
    torch.testing.assert_close(base.std(dim=1), torch.ones(2, 1, 8, dtype=DOUBLE), atol=0.05, rtol=0.0)


def test_it_starts_as_a_sparse_gp_of_one_layer():
    X = steps(50)[0]
    deep, shallow = DeepModel(X[::2].clone()).eval(), DeepModel(X[::2].clone(), layers=1).eval()
    with torch.no_grad():
        hidden, variance = deep.hidden[0].moments(X)
        torch.testing.assert_close(hidden.squeeze(0), X[:, 0])
        assert float(variance.sqrt().max()) < 0.05
        base = base_samples(2, 8, X)
        torch.testing.assert_close(deep(X, base).variance, shallow(X, base).variance, atol=0.05, rtol=0.0)


@pytest.mark.parametrize("layers", [slow(1), 2, slow(3)])
def test_the_law_makes_a_deep_gp_robust(layers):
    X, y, truth, bad = steps(wrong=0.15)
    model, likelihood = DeepModel(X[::6].clone(), layers), NoiseLawLikelihood(y)
    report = fit_deep(model, likelihood, X, y, steps=150, rate=0.05, held_out=0.0)
    model.eval(), likelihood.eval()
    assert report.iterations == 150
    assert math.isfinite(report.bound)
    with torch.no_grad():
        q = model(X, base_samples(layers, 8, X))
        assert float((q.mean.mean(dim=0) - truth)[~bad].abs().mean()) < 0.25
        flags = likelihood.outlier_probability(y, q).mean(dim=0) > 0.5
    assert float((flags == bad).double().mean()) > 0.95


@pytest.mark.parametrize("objective", [gpytorch.mlls.VariationalELBO, gpytorch.mlls.PredictiveLogLikelihood])
def test_gpytorchs_own_deep_gps_take_both_likelihoods(objective):
    class Layer(gpytorch.models.deep_gps.DeepGPLayer):
        def __init__(self, inputs, outputs):
            batch = torch.Size([]) if outputs is None else torch.Size([outputs])
            points = torch.randn(*batch, 7, inputs)
            values = gpytorch.variational.CholeskyVariationalDistribution(7, batch_shape=batch)
            strategy = gpytorch.variational.VariationalStrategy(self, points, values)
            super().__init__(strategy, inputs, outputs)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
            self.covar_module = gpytorch.kernels.RBFKernel(batch_shape=batch)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Deep(gpytorch.models.deep_gps.DeepGP):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layer(1, 2), Layer(2, None)

        def forward(self, x):
            return self.second(self.first(x))

    X, y, *_ = (part.float() for part in steps(40, wrong=0.1))
    for likelihood in (NoiseLawLikelihood(y), RCGPLikelihood(y, 0.1)):
        model = Deep()
        mll = gpytorch.mlls.DeepApproximateMLL(objective(likelihood, model, num_data=40))
        optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
        values = []
        with gpytorch.settings.num_likelihood_samples(4):
            for _ in range(5):
                optimiser.zero_grad()
                loss = -mll(model(X), y)
                loss.backward()
                optimiser.step()
                values.append(float(loss.detach()))
            likelihood.eval()
            assert likelihood(model.eval()(X)).mean.shape == (4, 40)
        assert all(map(math.isfinite, values))


def test_training_stops_early_and_keeps_the_best_state():
    X, y, *_ = steps(wrong=0.1)
    model, likelihood = DeepModel(X[::10].clone()), NoiseLawLikelihood(y)
    seen = []
    report = fit_deep(
        model, likelihood, X, y, steps=400, rate=0.05, patience=50, progress=lambda step, bound: seen.append(step)
    )
    assert report.best == 50 * (1 + report.scores.index(max(report.scores)))
    assert report.iterations == 50 * len(report.scores) + round(report.best / 4) == len(seen)
    assert report.best < 400


def test_a_seed_repeats_a_training_and_leaves_the_global_generator_alone():
    X, y, *_ = steps(60)
    states = []
    for _ in range(2):
        before = torch.get_rng_state()
        model, likelihood = DeepModel(X[::10].clone()), NoiseLawLikelihood(y)
        fit_deep(model, likelihood, X, y, steps=10, seed=3)
        assert bool((torch.get_rng_state() == before).all())
        states.append(model.state_dict())
        torch.rand(5)
    assert all(bool((a == b).all()) for a, b in zip(*(state.values() for state in states), strict=True))


def test_an_outlier_costs_the_held_out_score_little():
    X, y, *_ = steps(60)
    model, likelihood = DeepModel(X[::10].clone()), NoiseLawLikelihood(y)
    moved_y = y.clone()
    moved_y[0] = 1e6
    clean, hurt = (held_out_score(model, likelihood, X, values) for values in (y, moved_y))
    assert clean - hurt < 0.6


def test_a_diverged_training_is_an_error_that_says_so():
    X, y, *_ = steps(60)
    model, likelihood = DeepModel(X[::10].clone()), NoiseLawLikelihood(y)
    with torch.no_grad():
        model.last.mean_module.raw_constant.fill_(math.nan)
    with pytest.raises(RuntimeError, match="training diverged: the bound is nan in step 1; lower the learning rate"):
        fit_deep(model, likelihood, X, y, steps=5)


def test_a_copy_predicts_the_same():
    X = steps(20)[0]
    model = moved(DeepModel(X[:6].clone()))
    base = base_samples(2, 4, X)
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(model)(X, base).mean, model(X, base).mean, rtol=0.0, atol=0.0)
