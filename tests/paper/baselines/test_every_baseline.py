"""What holds for every baseline: the surface of RCGP, its checks, and data that are small, flat or repeated."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch

from problems import make_data
from rcgp import FitReport
from rcgp_paper.baselines import GaussianGP, MixtureGP, RelevancePursuitGP, StudentTGP, WinsorizedGP

FITTED = [GaussianGP, StudentTGP, MixtureGP, WinsorizedGP]
EVERY = [*FITTED, RelevancePursuitGP]
VARIATIONAL = [StudentTGP, MixtureGP]

each = pytest.mark.parametrize("cls", EVERY)
each_fitted = pytest.mark.parametrize("cls", FITTED)
each_variational = pytest.mark.parametrize("cls", VARIATIONAL)


def data(n=25, **arguments):
    X, y = make_data(n, **arguments)
    return torch.tensor(X), torch.tensor(y)


@each
def test_posterior_is_a_normal_distribution_over_test_points(cls):
    X, y = data()
    model = cls(X, y)
    test_X = X[:6] + 0.1
    latent, observed = model.posterior(test_X), model.posterior(test_X, observation_noise=True)
    assert latent.mean.shape == (6,)
    assert (latent.variance > 0).all()
    torch.testing.assert_close(latent.stddev.square(), latent.variance)
    torch.testing.assert_close(latent.covariance_matrix.diagonal(), latent.variance)
    noise = model.noise_variance if cls is StudentTGP else model.noise
    torch.testing.assert_close(observed.variance - latent.variance, noise.detach().expand(6))
    torch.testing.assert_close(observed.mean, latent.mean)


@each_fitted
def test_fit_improves_its_objective_and_reports_it(cls):
    X, y = data(n=18)
    model = cls(X, y)
    report = model.fit()
    assert isinstance(report, FitReport)
    assert report.objective == ("elbo" if cls in VARIATIONAL else "marginal")
    assert report.converged
    assert report.evaluations > 0
    again = model.fit()
    assert again.value == pytest.approx(report.value, abs=1e-3)
    assert report.hyperparameters["noise"][0] == pytest.approx(model.noise.item(), rel=0.05)


@each_variational
def test_the_reported_value_is_the_bound_of_the_model_left_behind(cls):
    X, y = data(n=18)
    model = cls(X, y)
    report = model.fit(restarts=2, seed=1)
    assert report.value == max(report.starts)
    assert model.elbo().item() == pytest.approx(report.value, abs=1e-6)


@each
@pytest.mark.parametrize(
    ("bad_X", "bad_y", "message"),
    [
        (torch.zeros(3, 1), torch.tensor([0.0, torch.nan, 1.0]), "train_y contains NaN in row 1"),
        (torch.zeros(3), torch.zeros(3), "train_X must have shape n x d"),
        (torch.zeros(3, 1), torch.zeros(2), "same number of rows"),
    ],
)
def test_bad_data_raise_a_clear_error(cls, bad_X, bad_y, message):
    with pytest.raises(ValueError, match=message):
        cls(bad_X, bad_y)


@each_fitted
@pytest.mark.parametrize("case", ["one", "two", "duplicates", "constant", "all the same"])
def test_small_flat_and_repeated_data_can_be_fitted(cls, case):
    X, y = data(n=12)
    if case == "one":
        X, y = X[:1], y[:1]
    elif case == "two":
        X, y = X[:2], y[:2]
    elif case == "duplicates":
        X, y = X.repeat(2, 1), torch.cat([y, y + 0.01])
    elif case == "constant":
        y = torch.full_like(y, 3.0)
    else:
        X, y = X[:1].expand(12, -1), torch.full_like(y, 3.0)
    model = cls(X, y)
    report = model.fit(max_iterations=100)
    posterior = model.posterior(torch.cat([X, X + 50.0]))
    assert np.isfinite(report.value)
    assert posterior.mean.isfinite().all()
    assert posterior.variance.isfinite().all()
    if case in ("constant", "all the same"):
        torch.testing.assert_close(posterior.mean, torch.full_like(posterior.mean, 3.0), rtol=0, atol=1e-5)


@each
def test_a_float32_model_returns_float32_close_to_float64(cls):
    X, y = data(n=15)
    single, double = cls(X.float(), y.float()), cls(X, y)
    if cls is not RelevancePursuitGP:
        single.fit(max_iterations=5)
        double.fit(max_iterations=5)
    first, second = single.posterior(X.float()), double.posterior(X)
    assert first.mean.dtype == torch.float32
    torch.testing.assert_close(first.mean.double(), second.mean, rtol=0, atol=5e-3)


@each_fitted
def test_copies_and_pickles_predict_the_same(cls):
    X, y = data(n=15)
    model = cls(X, y)
    model.fit(max_iterations=5)
    expected = model.posterior(X).mean
    torch.testing.assert_close(copy.deepcopy(model).posterior(X).mean, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model)).posterior(X).mean, expected, rtol=0, atol=1e-8)


@each
def test_a_changed_hyperparameter_changes_the_posterior_and_changing_it_back_restores_it(cls):
    X, y = data(n=15)
    model = cls(X, y)
    before, noise = model.posterior(X).mean, model.noise.item()
    model.noise = 10 * noise
    changed = model.posterior(X).mean
    model.noise = noise
    assert (changed - before).abs().max() > 0.05
    torch.testing.assert_close(model.posterior(X).mean, before)


@each_fitted
def test_kernel_mean_and_fixed_noise_of_the_caller_are_respected(cls):
    X, y = data(n=20, outliers=0)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))
    mean = gpytorch.means.ConstantMean()
    model = cls(X, y + 3.0, kernel=kernel, mean=mean, noise=0.04)
    model.raw_noise.requires_grad_(False)
    model.fit()
    assert model.kernel is kernel
    assert model.noise.item() == pytest.approx(0.04)
    assert 1 < mean.constant.item() < 5


@each_fitted
def test_the_fit_does_not_depend_on_units(cls):
    X, y = data(n=15)
    model, other = cls(X, y), cls(X, 1e5 * y)
    model.fit(max_iterations=20)
    other.fit(max_iterations=20)
    torch.testing.assert_close(1e5 * model.posterior(X).mean, other.posterior(X).mean, rtol=1e-3, atol=1e2)


@each_variational
def test_functions_of_pseudo_data_raise_a_clear_error(cls):
    model = cls(*data(n=10))
    with pytest.raises(TypeError, match=rf"no pseudo-data.*{cls.__name__}\.fit\(\)"):
        model.leave_one_out()


@each_variational
def test_the_best_hyperparameters_so_far_survive_an_interrupt(cls):
    model = cls(*data(n=15))
    start = model.elbo().item()
    calls = []

    def interrupt(evaluations, best):
        calls.append(best)
        if len(calls) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(progress=interrupt)
    assert model.elbo().item() == pytest.approx(max(calls), abs=1e-6)
    assert model.elbo().item() > start


@each_variational
def test_an_outlier_hardly_moves_a_robust_fit(cls):
    X = torch.linspace(0, 10, 60, dtype=torch.float64).unsqueeze(-1)
    truth = torch.sin(X[:, 0])
    y = truth + 0.1 * torch.randn(60, dtype=torch.float64)
    y[::10] += 7.0
    model, ordinary = cls(X, y), GaussianGP(X, y)
    model.fit()
    ordinary.fit()
    error, ordinary_error = ((m.posterior(X).mean - truth).abs().mean() for m in (model, ordinary))
    assert error < 0.08
    assert error < 0.3 * ordinary_error
    weights = model.weights()
    assert weights[::10].max() < 0.5 * weights.median()
    assert weights.max() <= 1.0
