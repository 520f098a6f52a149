"""What a noise law says of rows, and when it says that it cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rcgp import RCGP, RCGPRegressor, fit, fit_robust
from rcgp.core.noise_law import learn_law
from rcgp.models.defaults import add_weak_priors, robust_spread
from rcgp.training.judgement import _structure, doubts_of, doubts_of_values, judge_rows
from rcgp.weights import Constant, InverseMultiquadric, NoiseLaw
from rcgp.weights.noise_law import OUTLIER_WIDTH

GOOD = NoiseLaw((0.95, 0.02, 0.005, 0.005), 0.02, 3.0)


def normal_rows(n=200, scale=1.0, seed=0):
    """Deviations, variances of f and noise variances of rows that a law with σ = 1 fits."""
    deviation = scale * torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return deviation, torch.zeros_like(deviation), torch.ones_like(deviation)


def doubts(law=GOOD, n=200, scale=1.0, down=0.0, flagged=False):
    deviation, variance, noise = normal_rows(n, scale)
    precision = torch.where(torch.arange(n) < down * n, 0.1, 1.0).double()
    return doubts_of(law, deviation, variance, noise, (precision < 1.0) * float(flagged), precision)


def test_a_law_that_fits_raises_no_doubt():
    assert doubts() == ()


def test_few_rows_are_too_few_to_tell():
    assert doubts(n=12)[0] == "12 rows are too few to tell errors from good observations"
    assert doubts(n=1)[0].startswith("1 row is too few")
    assert not any("too few" in doubt for doubt in doubts(n=13))


def test_many_wide_rows_may_be_errors_or_a_heavy_tail():
    assert not doubts(down=0.04)
    (told,) = doubts(down=0.15)
    assert "errors and heavy-tailed noise cannot be told apart: 15% of the rows" in told
    assert not doubts(down=0.15, flagged=True)


def test_more_than_a_third_of_the_rows_down_weighted_is_doubtful():
    assert not doubts(down=0.3, flagged=True)
    assert "40% of the rows count less than half" in doubts(down=0.4, flagged=True)[0]


def test_coverage_that_is_off_is_doubtful():
    (told,) = doubts(NoiseLaw.normal(), scale=2.0)
    assert "the noise law does not fit" in told
    assert not doubts(NoiseLaw.normal(), scale=0.7)  # nearly all rows are covered: less than five points off


def make_model(weight=None, n=120, wrong=10):
    random = np.random.default_rng(0)
    X = random.uniform(0, 6, (n, 1))
    y = np.sin(X[:, 0]) + 0.1 * random.standard_normal(n)
    y[:wrong] += 4.0
    model = RCGP(torch.from_numpy(X), torch.from_numpy(y), mean="median", weight=weight)
    add_weak_priors(model)
    return model


def test_the_judgement_of_a_robust_fit_is_its_own_law():
    model = make_model()
    report = fit_robust(model)
    judged = judge_rows(model, learn=False)
    assert judged.law == report.law
    assert torch.equal(judged.outlier_probability, model.outlier_probability())
    assert not judged.doubts


@pytest.mark.parametrize("weight", [InverseMultiquadric(), Constant()])
def test_a_weight_that_was_given_is_judged_by_a_law_that_is_learned_afterwards(weight):
    model = make_model(weight)
    fit(model, "loo")
    before = model.posterior(model.train_X).mean.detach()
    judged = judge_rows(model, learn=True)
    assert bool((judged.outlier_probability[:10] > 0.5).all())
    assert int((judged.outlier_probability > 0.5).sum()) <= 13
    assert torch.equal(model.posterior(model.train_X).mean.detach(), before)


def test_the_law_of_a_given_weight_has_settled():
    random = np.random.default_rng(2)
    X = torch.tensor(random.uniform(0, 10, (150, 1)))
    y = X[:, 0].sin() + 0.1 * torch.tensor(random.standard_normal(150))
    y[::8] += torch.tensor(random.uniform(0.4, 1.0, 19) * random.choice([-1, 1], 19))
    model = RCGP(X, y, weight=Constant())
    fit(model, "marginal")
    judged = judge_rows(model, learn=True)
    with torch.no_grad():
        cavity, ones = model.latent_leave_one_out(model.training_terms().pseudo), torch.ones_like(y)
        width = OUTLIER_WIDTH * robust_spread(model.residual())
        last = learn_law(model.residual(), cavity, model.noise, ones, width, bounds=(1e-9, 1e9), steps=1000)
    np.testing.assert_allclose(judged.law.shares, last.law.shares, atol=0.01)
    flags = judged.outlier_probability > 0.5
    assert torch.equal(flags, last.rows.outlier_probability > 0.5)
    assert flags[::8].sum() > 10  # of 19 mild errors; ten steps flag five


def test_many_copies_of_rows_are_doubtful():
    model = make_model(Constant(), wrong=0)
    assert not judge_rows(model, learn=False).doubts
    model.train_X, model.train_y = model.train_X.repeat(2, 1), model.train_y.repeat(2)
    assert "50% of the rows repeat another one exactly" in judge_rows(model, learn=False).doubts[-1]


def test_the_coverage_of_an_ordinary_gp_is_looked_at_too():
    model = make_model(Constant(), wrong=0)
    fit(model, "marginal")
    assert not judge_rows(model, learn=False).doubts
    model.noise = model.noise.detach() / 20.0
    (told,) = judge_rows(model, learn=False).doubts
    assert "the noise law does not fit" in told


def flagged_model(y):
    X = torch.linspace(0.0, 10.0, len(y), dtype=torch.float64).unsqueeze(-1)
    model = RCGP(X, y, mean="median")
    add_weak_priors(model)
    fit_robust(model)
    return model


def test_flagged_rows_that_lie_side_by_side_are_doubtful():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(0.0, 10.0, 200, dtype=torch.float64)
    y = torch.sin(x) + 0.1 * torch.randn(200, dtype=torch.float64, generator=generator)
    scattered, together = y.clone(), y.clone()
    scattered[torch.randperm(200, generator=generator)[:20]] += 3.0
    together[100:107] += 4.0  # an error in one place, or a peak
    doubts = judge_rows(flagged_model(together), learn=False).doubts
    assert any("flagged rows lie next to another one" in doubt for doubt in doubts)
    assert not any("next to" in doubt for doubt in judge_rows(flagged_model(scattered), learn=False).doubts)


def test_flagged_rows_that_the_fit_took_apart_are_doubtful_and_copies_are_not():
    random = np.random.default_rng(103)
    X = np.c_[random.uniform(-3.0, 3.0, 120), random.integers(0, 3, 120)]
    step = (X[:, 1] == 2) & (X[:, 0] > 1.0)  # of a category, whose lengthscale ends so long that it counts no more
    y = X[:, 0] + 5.0 * step + 0.1 * random.standard_normal(120)
    model = RCGP(torch.from_numpy(X), torch.from_numpy(y), mean="median")
    add_weak_priors(model)
    fit_robust(model)
    assert any("next to another one" in doubt for doubt in judge_rows(model, learn=False).doubts)
    x = torch.linspace(0.0, 10.0, 100, dtype=torch.float64)
    y = torch.sin(x) + 0.1 * torch.from_numpy(random.standard_normal(100))
    y[30] = 9.0
    model = RCGP(torch.cat([x, x[30:31]]).unsqueeze(-1), torch.cat([y, y[30:31]]), mean="median")
    add_weak_priors(model)
    fit_robust(model)
    assert not any("next to another one" in doubt for doubt in judge_rows(model, learn=False).doubts)


def test_less_noise_than_that_of_rounding_is_doubtful():
    random = np.random.default_rng(0)
    x = np.arange(300.0)
    f = 20.0 + 3.0 * np.sin(x / 30.0) + 0.05 * random.standard_normal(300)
    for step, doubtful in ((1.0, True), (0.1, False)):
        y = torch.from_numpy(step * np.round(f / step))
        model = RCGP(torch.from_numpy(x).unsqueeze(-1), y, mean="median", noise=1e-4, weight=Constant())
        doubts = judge_rows(model, learn=True).doubts
        assert any("multiples of 1," in doubt for doubt in doubts) == doubtful


def test_equal_observations_that_leave_nothing_else_are_doubtful():
    y = torch.arange(60.0)
    flagged = y >= 30
    y = torch.where(flagged, y, 0.0)
    (doubt,) = doubts_of_values(torch.arange(60.0).unsqueeze(-1), y, flagged)
    assert doubt.startswith("nearly all rows that are not flagged have the same value, 0:")
    (doubt,) = doubts_of_values(torch.arange(60.0).unsqueeze(-1), torch.full((60,), 5.0), torch.zeros(60).bool())
    assert doubt == "all observations have the same value, 5: nothing is known of their noise"


def test_many_equal_observations_are_doubtful():
    y = torch.where(torch.arange(100) % 4 == 0, 5.0 + torch.linspace(0.0, 10.0, 100), torch.zeros(100)).double()
    doubts = judge_rows(flagged_model(y), learn=False).doubts
    assert any("nearly all rows that are not flagged have the same value, 0:" in doubt for doubt in doubts)


def test_a_value_that_is_stuck_is_doubtful_and_rounding_is_not():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(0.0, 10.0, 200, dtype=torch.float64)
    y = torch.sin(x) + 0.1 * torch.randn(200, dtype=torch.float64, generator=generator)
    rounded, stuck = y.round(decimals=1), y.clone()
    stuck[85:115] = stuck[85]
    assert any("have the same value" in doubt for doubt in judge_rows(flagged_model(stuck), learn=False).doubts)
    assert not any("same value" in doubt for doubt in judge_rows(flagged_model(rounded), learn=False).doubts)


@pytest.mark.parametrize("unit", [1e-140, 1e140])
def test_units_whose_squares_are_no_numbers_are_doubtful(unit):
    X, y = torch.linspace(0.0, 6.0, 40).double().unsqueeze(-1), torch.linspace(-1.0, 3.0, 40).double()
    first, *_ = judge_rows(RCGP(X, unit * y, weight=Constant()), learn=True).doubts
    assert not any("power of ten" in doubt for doubt in judge_rows(RCGP(X, y, weight=Constant()), learn=True).doubts)
    assert first.startswith("the observations differ by about ")
    assert "multiply them by a power of ten" in first


def test_rows_that_repeat_one_value_or_each_other_are_doubtful():
    X, y = torch.arange(60.0).unsqueeze(-1), torch.arange(60.0)
    none = torch.zeros(60, dtype=torch.bool)
    assert doubts_of_values(X, y, none) == ()
    (tie,) = doubts_of_values(X, torch.where(y < 40, 7.0, y), none)
    assert tie.startswith("67% of the observations have the same value, 7:")
    (copies,) = doubts_of_values(X // 2, y // 2, none)
    assert copies.startswith("50% of the rows repeat another one exactly")


@pytest.mark.parametrize(("lengthscale", "noise", "doubtful"), [(1.0, 0.5, True), (0.05, 0.01, False)])
def test_a_function_that_is_taken_for_noise_is_doubtful(lengthscale, noise, doubtful):
    random = np.random.default_rng(1)
    x = torch.from_numpy(np.sort(random.uniform(0.0, 1.0, 120)))
    y = torch.sin(12.0 * torch.pi * x) + torch.from_numpy(0.1 * random.standard_normal(120))
    model = RCGP(x.unsqueeze(-1), y, mean="median", weight=Constant(), noise=noise)
    model.kernel.base_kernel.lengthscale = lengthscale
    told = [doubt for doubt in judge_rows(model, learn=False).doubts if "neighbouring rows go together" in doubt]
    assert len(told) == doubtful
    if doubtful:  # a given weight may inflate the noise
        assert "(correlation 0." in told[0]
        assert not any("go together" in doubt for doubt in judge_rows(model, learn=True).doubts)


def test_only_good_rows_tell_whether_a_function_is_taken_for_noise():
    random = np.random.default_rng(0)
    score = torch.from_numpy(random.standard_normal(200))
    good = torch.ones(200, dtype=torch.bool)
    assert _structure(score, score.roll(1), good) == ()
    assert len(_structure(score, score, good)) == 1
    wild = torch.where(torch.arange(200) < 20, 1e6, score)  # clamped
    assert _structure(wild, wild.roll(1), torch.arange(200) >= 21) == ()
    assert _structure(score, score, good & False) == ()
    assert _structure(score[:9], score[:9], good[:9]) == ()  # too few
    assert _structure(0.1 * score, 0.1 * score, good) == ()  # far below the noise


def test_a_function_without_noise_is_not_doubtful():
    X = np.random.default_rng(61).random((60, 1))
    model = RCGPRegressor().fit(X, np.sin(5.0 * X[:, 0]))
    assert model.doubts_ == ()
