from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel

from rcgp import RCGP, FitError
from rcgp.models.constraints import Between
from rcgp.models.defaults import in_units
from rcgp.training import fit_adaptive
from rcgp.training.calibration import _halves, excess_variance, scale_variance
from rcgp.weights import Constant, InverseMultiquadric


def draw(n=120, seed=0, factor=1.0):
    """A model, and data from its own prior whose variances are larger by a factor."""
    random = np.random.default_rng(seed)
    X = random.uniform(0, 20, (n, 1))
    K = np.exp(-0.5 * (X - X.T) ** 2) + 0.04 * np.eye(n)
    y = np.sqrt(factor) * np.linalg.cholesky(K) @ random.standard_normal(n)
    model = RCGP(X, y, mean="zero", weight=Constant(), noise=0.04)
    model.kernel.base_kernel.lengthscale, model.kernel.outputscale = 1.0, 1.0
    return model


def leave_one_out_score(model):
    mean, variance = model.leave_one_out()
    return (model.train_y - mean) / variance.sqrt()


def everyone(model):
    return torch.ones_like(model.train_y, dtype=torch.bool)


def excess(model, choose=lambda rows: None, trusted=None):
    trusted = everyone(model) if trusted is None else trusted
    return excess_variance(model, trusted, leave_one_out_score(model), choose)


def parameters(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


# The factor -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 4.0, 100.0])
def test_variances_too_small_by_a_factor_are_found(factor):
    found = [excess(draw(seed=seed, factor=factor)) for seed in range(12)]
    assert np.median(found) == pytest.approx(factor, rel=0.15)


def test_variances_too_large_are_left_alone():
    assert excess(draw(factor=0.2)) == 1.0


def test_the_factor_is_the_product_of_both_quantiles():
    """Halves and leave-one-out by hand, with an ordinary GP in numpy."""
    model = draw(n=50, factor=3.0)
    X, y = model.train_X.numpy(), model.train_y.numpy()
    K = np.exp(-0.5 * (X - X.T) ** 2)
    residuals = []
    for half in _halves(model, everyone(model)):
        seen, unseen = np.flatnonzero(half.numpy()), np.flatnonzero(~half.numpy())
        A, k = np.linalg.inv(K[np.ix_(seen, seen)] + 0.04 * np.eye(len(seen))), K[np.ix_(unseen, seen)]
        variance = 1.04 - (k @ A * k).sum(-1)
        residuals.append((y[unseen] - k @ A @ y[seen]) / np.sqrt(variance))
    apart = np.quantile(np.abs(np.concatenate(residuals)), 0.95) / 1.96
    together = np.quantile(np.abs(leave_one_out_score(model).numpy()), 0.95) / 1.96
    assert excess(model) == pytest.approx(apart * together, rel=1e-6)


def test_rows_that_are_not_trusted_have_no_say():
    model = draw()
    trusted = torch.arange(120) >= 10
    score = leave_one_out_score(model)
    before = excess_variance(model, trusted, score, lambda rows: None)
    model.train_y[:10] = 1e6
    score[:10] = 1e9
    assert excess_variance(model, trusted, score, lambda rows: None) == before


def test_few_rows_say_nothing():
    model = draw(n=60, factor=100.0)
    assert excess(model, trusted=torch.arange(60) < 19) == 1.0
    assert excess(model, trusted=torch.arange(60) < 20) > 10.0


def test_each_half_is_chosen_from_the_same_start_and_hyperparameters_are_as_before():
    model = draw()
    before, starts, halves = parameters(model), [], []

    def choose(rows):
        halves.append(rows)
        starts.append(parameters(model))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3

    excess(model, choose)
    assert len(starts) == 2
    assert torch.equal(halves[0], ~halves[1])
    for values in (*starts, parameters(model)):
        assert all(torch.equal(value, first) for value, first in zip(values, before, strict=True))


@pytest.mark.parametrize("half", [1, 2])
def test_a_half_that_cannot_be_fitted_leaves_the_word_to_leave_one_out(half):
    model = draw(factor=4.0)
    before, calls = parameters(model), []

    def choose(rows):
        calls.append(1)
        with torch.no_grad():
            model.raw_noise += 1.0
        if len(calls) == half:
            raise FitError("as arranged", row=0)

    score = leave_one_out_score(model)
    factor = excess_variance(model, everyone(model), score, choose)
    assert factor == pytest.approx((float(score.abs().quantile(0.95)) / 1.96) ** 2)
    assert all(torch.equal(value, first) for value, first in zip(parameters(model), before, strict=True))


def test_an_interrupt_in_a_half_leaves_the_hyperparameters_as_before():
    model = draw()
    before = parameters(model)

    def choose(objective):
        with torch.no_grad():
            model.raw_noise += 1.0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        excess(model, choose)
    assert all(torch.equal(value, first) for value, first in zip(parameters(model), before, strict=True))


# The halves -----------------------------------------------------------------------------------------------------------


def test_halves_are_halves_of_the_trusted_rows():
    model = draw(n=61)
    trusted = torch.arange(61) % 5 != 0
    first, second = _halves(model, trusted)
    assert not (first & second).any()
    assert torch.equal(first | second, trusted)
    assert abs(int(first.sum()) - int(second.sum())) <= 1
    # Not one side of the inputs against the other.
    assert abs(model.train_X[first].mean() - model.train_X[second].mean()) < 4.0


def test_rows_at_one_place_stay_together():
    X = torch.arange(20.0, dtype=torch.float64).repeat_interleave(3)[:, None]
    model = RCGP(X, torch.randn(60, dtype=torch.float64))
    trusted = torch.ones(60, dtype=torch.bool)
    trusted[4] = False
    first, second = _halves(model, trusted)
    assert bool(((first | second) == trusted).all())
    assert not bool((first & second).any())
    for place in range(20):
        rows = trusted.clone()
        rows[: 3 * place] = rows[3 * place + 3 :] = False
        assert len(first[rows].unique()) == 1
    assert 20 < int(first.sum()) < 40


def test_rows_that_are_all_at_one_place_are_halved():
    model = RCGP(torch.zeros(30, 1, dtype=torch.float64), torch.randn(30, dtype=torch.float64))
    first, second = _halves(model, torch.ones(30, dtype=torch.bool))
    assert int(first.sum()) == int(second.sum()) == 15


@pytest.mark.parametrize("unit", [1.0, 1000.0, 0.3048])
def test_halves_do_not_depend_on_the_order_of_rows_or_on_units(unit):
    random = np.random.default_rng(0)
    X, y = random.integers(0, 4, (40, 2)) * 0.7, random.standard_normal(40)  # with equal rows
    order = random.permutation(40)
    model, other = RCGP(X, y), RCGP(X[order] * unit, y[order])
    for half, shuffled in zip(_halves(model, everyone(model)), _halves(other, everyone(other)), strict=True):
        assert torch.equal(shuffled, half[order])


# Scaling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        None,
        gpytorch.kernels.MaternKernel(2.5),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()) + gpytorch.kernels.LinearKernel(),
    ],
    ids=["scaled", "bare", "sum"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_variance_is_multiplied_and_means_stay(kernel, dtype):
    data = draw(n=40)
    model = RCGP(data.train_X.to(dtype), data.train_y.to(dtype), kernel=kernel, weight=Constant(), noise=0.04)
    x = torch.linspace(-3, 23, 30, dtype=dtype)[:, None]
    before = [model.posterior(x, observation_noise=noise) for noise in (False, True)]
    moments = [(posterior.mean, posterior.covariance_matrix.detach()) for posterior in before]
    spread = model.leave_one_out().variance
    assert scale_variance(model, 2.5) == 2.5
    tolerance = {"rtol": 1e-6, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    for noise, (mean, covariance) in zip((False, True), moments, strict=True):
        after = model.posterior(x, observation_noise=noise)
        torch.testing.assert_close(after.mean, mean, **tolerance)
        torch.testing.assert_close(after.covariance_matrix.detach(), 2.5 * covariance, **tolerance)
    torch.testing.assert_close(model.leave_one_out().variance, 2.5 * spread, **tolerance)
    assert isinstance(model.kernel, gpytorch.kernels.ScaleKernel)
    assert model.kernel.outputscale.dtype == dtype


def test_a_kernel_gets_an_output_scale_only_where_one_is_missing():
    scaled, bare = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()), gpytorch.kernels.RBFKernel()
    for kernel in (scaled, bare):
        model = RCGP(*data_of(draw(n=20)), kernel=kernel)
        scale_variance(model, 2.0)
        assert (model.kernel is scaled) == (kernel is scaled)
    assert model.kernel.base_kernel is bare
    assert model.kernel.outputscale.item() == pytest.approx(2.0)


def data_of(model):
    return model.train_X, model.train_y


def test_a_factor_of_one_changes_nothing():
    model = RCGP(*data_of(draw(n=20)), kernel=gpytorch.kernels.RBFKernel())
    kernel, before = model.kernel, parameters(model)
    assert scale_variance(model, 1.0) == 1.0
    assert model.kernel is kernel
    assert all(torch.equal(value, first) for value, first in zip(parameters(model), before, strict=True))


@pytest.mark.parametrize("constraint", [Between(0.1, 1.5), gpytorch.constraints.Interval(0.1, 1.5)])
@pytest.mark.parametrize("bounded", ["outputscale", "noise"])
def test_bounds_limit_the_factor_for_both_variances(constraint, bounded):
    model = draw(n=30)
    module = model.kernel if bounded == "outputscale" else model
    module.register_constraint(f"raw_{bounded}", constraint)
    model.kernel.outputscale = 1.0
    model.noise = 0.5
    room = 1.5 if bounded == "outputscale" else 3.0
    assert scale_variance(model, 40.0) == pytest.approx(room, rel=1e-5)
    assert model.kernel.outputscale.item() == pytest.approx(room, rel=1e-5)
    assert model.noise.item() == pytest.approx(0.5 * room, rel=1e-5)
    assert getattr(module, bounded).item() <= 1.5
    assert scale_variance(model, 40.0) == pytest.approx(1.0, abs=1e-5)


def test_an_output_scale_that_is_fixed_stays():
    model = draw(n=30)
    model.kernel.raw_outputscale.requires_grad_(False)
    assert scale_variance(model, 4.0) == 1.0
    assert model.kernel.outputscale.item() == pytest.approx(1.0)
    assert model.noise.item() == pytest.approx(0.04)


@pytest.mark.parametrize("kernel", [RBFKernel(), RBFKernel() + LinearKernel()])
def test_a_scale_of_units_is_no_scale_that_was_fixed(kernel):
    model = draw(n=30)
    model.kernel = in_units(kernel, 3.0)
    x = torch.linspace(0, 12, 7, dtype=torch.float64)[:, None]
    before = model.posterior(x).variance.detach()
    assert scale_variance(model, 4.0) == pytest.approx(4.0)
    assert model.kernel.base_kernel.outputscale.item() == pytest.approx(3.0)
    np.testing.assert_allclose(model.posterior(x).variance.detach().numpy(), 4.0 * before.numpy(), rtol=1e-9)


def test_of_nested_output_scales_the_one_that_is_fitted_grows():
    """As in the estimator, which multiplies a user's kernel by the units of y."""
    model = draw(n=30)
    model.kernel = gpytorch.kernels.ScaleKernel(model.kernel).double()
    model.kernel.raw_outputscale.requires_grad_(False)
    unit, x = model.kernel.outputscale.item(), torch.linspace(0, 12, 7, dtype=torch.float64)[:, None]
    before = model.posterior(x).variance.detach()
    assert scale_variance(model, 4.0) == pytest.approx(4.0)
    assert model.kernel.outputscale.item() == unit
    np.testing.assert_allclose(model.posterior(x).variance.detach().numpy(), 4.0 * before.numpy(), rtol=1e-9)


# Within a fit ---------------------------------------------------------------------------------------------------------


def test_a_fit_that_fails_in_a_half_is_still_a_fit(monkeypatch):
    def fails(rows):
        def objective(model):
            raise torch.linalg.LinAlgError("as arranged")

        return objective

    monkeypatch.setattr("rcgp.training.adaptive.ordinary_score_of", fails)
    model = RCGP(*data_of(draw(n=40)), mean="median", weight=InverseMultiquadric())
    report = fit_adaptive(model)
    assert report.calibration >= 1.0
    assert "finish" in {step.name for step in report.rounds}


def test_nothing_is_calibrated_where_the_noise_is_fixed(monkeypatch):
    monkeypatch.setattr("rcgp.training.adaptive.excess_variance", lambda *arguments: 9.0)
    free, fixed = (RCGP(*data_of(draw(n=40)), mean="median", noise=0.04) for _ in range(2))
    fixed.raw_noise.requires_grad_(False)
    assert fit_adaptive(free).calibration == 9.0
    assert fit_adaptive(fixed).calibration == 1.0
    assert fixed.noise.item() == pytest.approx(0.04)
