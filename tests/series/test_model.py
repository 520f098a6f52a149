from __future__ import annotations

import copy
import pickle

import gpytorch
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rcgp import RCGP, StateSpaceRCGP, fit, fit_robust, posterior_influence
from rcgp.core.exact import condition
from rcgp.series import harmonic_error, solver
from rcgp.series.defaults import default_series_kernel
from rcgp.training.objectives import marginal, weighed_evidence
from rcgp.training.search import shorter_starts
from rcgp.weights import Constant, InverseMultiquadric, LawWeight
from series_kernels import (
    HARMONICS,
    KERNELS,
    STATIONARY,
    constant,
    covariance,
    linear,
    make_twins,
    matern,
    periodic,
    scaled,
    with_marks,
)

NEW = torch.linspace(-2.0, 8.0, 7, dtype=torch.float64)


def make_series(case="irregular", n=36, seed=0):
    """Times, observations and sample weights."""
    random = np.random.default_rng(seed)
    t = random.uniform(0.3, 6.0, n)
    if case == "repeated":
        t = np.round(t, 0)
    elif case != "unsorted":
        t = np.sort(t)
    y = 2.0 + np.sin(2.0 * t) + 0.2 * random.standard_normal(n)
    y[5] += 6.0
    if case == "missing":
        y[::4] = np.nan
    weights = random.uniform(0.3, 3.0, n) if case == "weighted" else np.ones(n)
    return tuple(map(torch.from_numpy, (t, y, weights)))


CASES = ("irregular", "repeated", "missing", "unsorted", "weighted")

# Every kernel with one kind of times and one weight, and every kind of times with two kernels and both weights.
PAIRS = [(name, CASES[i % 5], (InverseMultiquadric, Constant)[i % 2]) for i, name in enumerate(KERNELS)]
PAIRS += [("matern32", case, InverseMultiquadric) for case in CASES] + [("sum", case, Constant) for case in CASES]


def by_name(model):
    parameters = {name.replace(".own", ""): parameter for name, parameter in model.named_parameters()}
    return [parameters[name] for name in sorted(parameters)]


def check_equal(model, dense):
    """All that a model says and its dense twin."""
    assert torch.equal(model.train_X, dense.train_X)
    at = torch.cat([NEW, model.train_X[:3, 0]])
    ours, theirs = model.posterior(at), dense.posterior(at.unsqueeze(-1))
    torch.testing.assert_close(ours.mean, theirs.mean.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.variance, theirs.variance.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.covariance_matrix, theirs.covariance_matrix.detach(), rtol=1e-8, atol=1e-8)
    noisy = model.posterior(at, observation_noise=True).variance
    torch.testing.assert_close(noisy, dense.posterior(at.unsqueeze(-1), observation_noise=True).variance.detach())
    for left, right in zip(model.leave_one_out(), dense.leave_one_out(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(model.weights(), dense.weights(), rtol=1e-12, atol=0.0)
    terms = dense.training_terms()
    weight, slope = terms.weight.detach(), terms.slope.detach()
    left, right = (weighed_evidence(part, weight, slope, 30.0) for part in (model, dense))
    torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)
    gradients = torch.autograd.grad(left, by_name(model)), torch.autograd.grad(right, by_name(dense))
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)
    if model.weight.constant_in_y:
        torch.testing.assert_close(marginal(model), marginal(dense), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "case", "weight"), with_marks(PAIRS))
def test_the_model_equals_the_dense_one(name, case, weight):
    t, y, p = make_series(case)
    check_equal(*make_twins(KERNELS[name](), t, y, weight=weight(), noise=0.05, sample_weight=p))


def test_the_model_equals_the_dense_one_over_several_stretches(monkeypatch):
    monkeypatch.setattr(solver, "_STRETCH", 1)
    t, y, p = make_series("unsorted", n=70)
    mean = gpytorch.means.ConstantMean().double()
    options = {"noise": 0.05, "sample_weight": p, "mean": mean, "weight": InverseMultiquadric()}
    check_equal(*make_twins(KERNELS["sum of two"](), t, y, **options))


@pytest.mark.parametrize("name", ["matern32", "sum", "quasi-periodic"])
def test_the_model_equals_the_dense_one_with_gpytorchs_own_kernel(name):
    """As far as GPyTorch's distances go: they are squares of 1e-16."""
    t, y, _ = make_series()
    kernel = KERNELS[name]()
    model = StateSpaceRCGP(t, y, kernel=kernel, noise=0.05, harmonics=HARMONICS)
    dense = RCGP(t.unsqueeze(-1), y, kernel=copy.deepcopy(kernel), noise=0.05, mean="median", weight=Constant())
    ours, theirs = model.posterior(NEW), dense.posterior(NEW.unsqueeze(-1))
    torch.testing.assert_close(ours.mean, theirs.mean.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.covariance_matrix, theirs.covariance_matrix.detach(), rtol=1e-6, atol=1e-6)


def test_posteriors_have_the_shape_of_the_times():
    t, y, _ = make_series()
    model = StateSpaceRCGP(t, y, kernel=KERNELS["matern32"](), noise=0.05)
    plain = model.posterior(NEW)
    for times in (NEW.unsqueeze(-1), NEW.tolist(), NEW.numpy()):
        assert torch.equal(model.posterior(times).mean, plain.mean)
    batch = model.posterior(NEW.flip(0).expand(2, 3, 7).unsqueeze(-1))
    assert batch.mean.shape == batch.variance.shape == (2, 3, 7)
    assert batch.covariance_matrix.shape == (2, 3, 7, 7)
    torch.testing.assert_close(batch.mean[1, 2], plain.mean.flip(0))
    torch.testing.assert_close(batch.covariance_matrix[0, 1], plain.covariance_matrix.flip(0, 1))
    torch.testing.assert_close(model(NEW).mean, plain.mean)


def test_missing_values_are_predicted():
    t, y, _ = make_series("missing")
    model = StateSpaceRCGP(t, y, kernel=KERNELS["matern32"](), noise=0.05)
    assert model.observed.tolist() == [i % 4 != 0 for i in range(len(t))]
    assert len(model.train_y) == len(model.weights()) == 27
    assert model.posterior(t[~model.observed]).mean.isfinite().all()


# The robust fit ------------------------------------------------------------------------------------------------------


class DenseSolver(StateSpaceRCGP):
    """The model with the solver of the dense one: nothing else differs."""

    latent_leave_one_out = RCGP.latent_leave_one_out
    signal_evidence = RCGP.signal_evidence


def make_outliers(n, seed=0, share=0.1):
    random = np.random.default_rng(seed)
    t = random.uniform(0.0, 20.0, n)
    y = np.sin(t) + 0.1 * random.standard_normal(n)
    wrong = random.permutation(n)[: round(share * n)]
    y[wrong] += 5.0 * random.choice([-1.0, 1.0], len(wrong))
    return torch.from_numpy(t), torch.from_numpy(y), wrong


def check_same_fit(n):
    t, y, wrong = make_outliers(n)
    model, dense = StateSpaceRCGP(t, y), DenseSolver(t, y)
    ours, theirs = fit_robust(model), fit_robust(dense)
    assert ours.value == pytest.approx(theirs.value, rel=1e-6)
    for name, value in model.hyperparameters().items():
        torch.testing.assert_close(value, dense.hyperparameters()[name], rtol=1e-4, atol=0.0)
    torch.testing.assert_close(model.weights(), dense.weights(), rtol=1e-3, atol=1e-4)
    assert set((model.outlier_probability() > 0.5).nonzero().squeeze(-1).tolist()) == set(wrong.tolist())


def test_the_robust_fit_equals_the_dense_one():
    check_same_fit(120)


@pytest.mark.slow
def test_the_robust_fit_of_500_rows_equals_the_dense_one():
    check_same_fit(500)


def test_the_ordinary_fit_equals_the_dense_one():
    t, y, _ = make_outliers(80, share=0.0)
    model, dense = StateSpaceRCGP(t, y), DenseSolver(t, y)
    ours, theirs = fit(model, "marginal"), fit(dense, "marginal")
    assert ours.value == pytest.approx(theirs.value, rel=1e-8)
    for name, value in model.hyperparameters().items():
        torch.testing.assert_close(value, dense.hyperparameters()[name], rtol=1e-4, atol=0.0)


VALUES = [10.0, 1e3, 1e10, 1e100, 1e300, -1e300, np.inf]


def test_influence_is_bounded_after_a_robust_fit():
    t, y, wrong = make_outliers(80)
    model = StateSpaceRCGP(t, y)
    fit_robust(model)
    assert isinstance(model.weight, LawWeight)
    row = next(i for i in range(80) if i not in wrong)
    influence = posterior_influence(model, row, VALUES)
    assert influence.isfinite().all()
    # As large as that of a lost row, and no larger.
    torch.testing.assert_close(influence[2:], influence[1].expand(5), rtol=0.1, atol=0.01)
    plain = StateSpaceRCGP(t, y)
    assert posterior_influence(plain, row, [1e10]).item() > 1e15


def test_influence_equals_the_dense_one():
    t, y, _ = make_series()
    model, dense = make_twins(KERNELS["matern32"](), t, y, weight=InverseMultiquadric(), noise=0.05)
    values = [-9.0, 0.1, 1e3, 1e300]
    torch.testing.assert_close(posterior_influence(model, 3, values), posterior_influence(dense, 3, values))


@pytest.mark.parametrize("value", [1e6, 1e100, 1e300])
def test_an_observation_however_wrong_is_lost(value):
    t, y, _ = make_outliers(80, share=0.0)
    y[7], y[40] = value, -value
    model = StateSpaceRCGP(t, y)
    fit_robust(model)
    weights, posterior = model.weights(), model.posterior(t)
    assert weights.isfinite().all()
    assert weights[[7, 40]].max() < 1e-3
    assert (posterior.mean - torch.sin(t)).abs().max() < 0.3
    assert posterior.variance.isfinite().all()
    assert model.leave_one_out().mean.isfinite().all()


# Properties ----------------------------------------------------------------------------------------------------------


@st.composite
def series(draw, most=12):
    n = draw(st.integers(2, most))
    numbers = st.integers(-40, 40).map(lambda value: value / 8.0)  # some times repeat
    t = draw(st.lists(numbers, min_size=n, max_size=n))
    y = draw(st.lists(st.floats(-3.0, 3.0), min_size=n, max_size=n))
    return torch.tensor(t, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)


def answers(t, y, name="matern32", at=NEW, **arguments):
    options = {"mean": "zero", "noise": 0.05, "weight": InverseMultiquadric(c=1.0), "harmonics": HARMONICS}
    kernel = arguments.pop("kernel", None) or KERNELS[name]()
    model = StateSpaceRCGP(t, y, kernel=kernel, **{**options, **arguments})
    posterior = model.posterior(at)
    return posterior.mean, posterior.variance, model


def check_close(left, right, tolerance=1e-9):
    for ours, theirs in zip(left, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@settings(max_examples=25)
@given(data=series(), seed=st.integers(0, 1000), name=st.sampled_from(["matern32", "sum of two"]))
def test_the_order_of_rows_does_not_matter(data, seed, name):
    t, y = data
    order = torch.randperm(len(t), generator=torch.Generator().manual_seed(seed))
    *one, first = answers(t, y, name)
    *other, second = answers(t[order], y[order], name)
    check_close(one, other)
    check_close([part[order] for part in first.leave_one_out()], second.leave_one_out())


@settings(max_examples=25)
@given(data=series(), shift=st.integers(-1000, 1000), name=st.sampled_from(["matern32", "damped cosine"]))
def test_times_may_be_shifted_under_a_stationary_kernel(data, shift, name):
    t, y = data
    check_close(answers(t, y, name)[:2], answers(t + shift, y, name, NEW + shift)[:2])


@settings(max_examples=25)
@given(data=series(), power=st.integers(-20, 20))
def test_times_and_lengthscales_have_the_same_units(data, power):
    t, y = data
    kernel = scaled(matern(1.5, 0.7 * 2.0**power))
    check_close(answers(t, y)[:2], answers(2.0**power * t, y, kernel=kernel, at=2.0**power * NEW)[:2])


@settings(max_examples=25)
@given(data=series(), power=st.integers(-20, 20))
def test_the_posterior_has_the_units_of_y(data, power):
    t, y = data
    scale = 2.0**power
    kernel = scaled(matern(1.5), 1.8 * scale**2)
    mean, variance, model = answers(t, scale * y, kernel=kernel, noise=0.05 * scale**2, weight=Constant())
    one, other, plain = answers(t, y, weight=Constant())
    check_close((mean / scale, variance / scale**2), (one, other))
    # A density: n log scale less.
    expected = float(marginal(plain).detach()) - len(t) * np.log(scale)
    assert float(marginal(model).detach()) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=25)
@given(data=series(), seed=st.integers(0, 1000))
def test_a_missing_value_is_a_deleted_row(data, seed):
    t, y = data
    lost = torch.rand(len(t), generator=torch.Generator().manual_seed(seed)) < 0.5
    lost[0] = False
    with_gaps = torch.where(lost, torch.nan, y)
    *one, first = answers(t, with_gaps)
    *other, second = answers(t[~lost], y[~lost])
    check_close(one, other, tolerance=0.0)
    check_close(first.leave_one_out(), second.leave_one_out(), tolerance=0.0)
    assert torch.equal(first.observed, ~lost)


@settings(max_examples=25)
@given(data=series())
def test_a_row_twice_is_a_sample_weight_of_two(data):
    t, y = data
    weights = torch.ones_like(t)
    weights[0] = 2.0
    once = answers(t, y, sample_weight=weights, weight=Constant())
    twice = answers(torch.cat([t, t[:1]]), torch.cat([y, y[:1]]), weight=Constant())
    check_close(once[:2], twice[:2])


@pytest.mark.parametrize("name", with_marks([(name,) for name in STATIONARY]))
def test_far_from_the_data_the_posterior_of_a_fading_kernel_is_the_prior(name):
    t, y, _ = make_series()
    mean, variance, model = answers(t, y, name, torch.tensor([1e9], dtype=torch.float64))
    if "matern" in name or name in ("damped cosine", "product", "quasi-periodic"):
        prior = covariance(model.kernel, torch.zeros(1).double(), torch.zeros(1).double())[0].detach()
        torch.testing.assert_close(variance, prior, rtol=1e-12, atol=0.0)
        assert mean.item() == 0.0
    assert torch.isfinite(mean)
    assert variance.item() >= 0.0


def test_a_trend_far_from_time_zero_costs_no_digits():
    """Years, and a prior variance of 1e6 there: before, among and after the data, by forty digits."""
    random = np.random.default_rng(0)
    t = np.sort(random.uniform(1900.0, 2000.0, 20))
    z, at = 0.1 * (t - 1950.0), np.array([1850.0, 1899.0, 1950.0, 2001.0])
    kernel = constant(1.7) + linear(0.4) + scaled(matern(1.5, 5.0))
    model = StateSpaceRCGP(t, z, kernel=kernel, mean="zero", noise=0.01)
    with mpmath.workdps(40):
        number = mpmath.mpf

        def k(a, b):
            x = mpmath.sqrt(3) * abs(number(a) - number(b)) / 5
            return number(0.4) * number(a) * number(b) + number(1.7) + number(1.8) * (1 + x) * mpmath.exp(-x)

        K = mpmath.matrix([[k(a, b) for a in t] for b in t]) + mpmath.eye(20) * number(model.noise.item())
        inverse, targets = K**-1, mpmath.matrix(z.tolist())
        cross = [mpmath.matrix([k(a, b) for b in t]) for a in at]
        mean = [float((part.T * inverse * targets)[0]) for part in cross]
        variance = [float(k(a, a) - (part.T * inverse * part)[0]) for a, part in zip(at, cross, strict=True)]
    posterior = model.posterior(at)
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(posterior.variance, variance, rtol=1e-8)
    np.testing.assert_allclose(posterior.covariance_matrix.diagonal(), variance, rtol=1e-7)


# Samples, components, rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matern32", "sum", "linear x matern"])
def test_samples_have_the_mean_and_covariance_of_the_posterior(name):
    t, y, _ = make_series("repeated", n=12)
    model = StateSpaceRCGP(t, y, kernel=KERNELS[name](), noise=0.3, weight=InverseMultiquadric())
    at, count = torch.tensor([7.0, 0.1, 3.0, 3.2], dtype=torch.float64), 3000
    drawn, posterior = model.sample(at, count, seed=1), model.posterior(at)
    assert drawn.shape == (count, 4)
    deviation = posterior.variance.sqrt()
    assert ((drawn.mean(dim=0) - posterior.mean) / deviation).abs().max() < 5.0 / count**0.5
    scale = deviation.unsqueeze(-1) * deviation
    assert ((torch.cov(drawn.T) - posterior.covariance_matrix) / scale).abs().max() < 7.0 / count**0.5


def test_a_seed_repeats_samples():
    t, y, _ = make_series()
    model = StateSpaceRCGP(t, y)
    assert torch.equal(model.sample(NEW, 2, seed=3), model.sample(NEW, 2, seed=3))
    assert not torch.equal(model.sample(NEW, seed=3), model.sample(NEW, seed=4))


def test_components_are_those_of_the_dense_posterior_and_add_up():
    t, y, _ = make_series()
    kernel = KERNELS["sum"]()
    model = StateSpaceRCGP(t, y, kernel=kernel, noise=0.05, weight=InverseMultiquadric())
    found, pseudo = model.components(NEW), model.training_terms().pseudo
    assert len(found) == 3
    posterior = condition(covariance(kernel, t, t), pseudo)
    for (mean, variance), part in zip(found, kernel.kernels, strict=True):
        cross, own = covariance(part, NEW, t), covariance(part, NEW, NEW)
        torch.testing.assert_close(mean, posterior.mean(cross).detach(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(variance, posterior.variance(cross, own.diagonal()).detach(), rtol=1e-8, atol=1e-8)
    whole = model.mean(NEW.unsqueeze(-1)).detach() + sum(mean for mean, _ in found)
    torch.testing.assert_close(whole, model.posterior(NEW).mean, rtol=1e-10, atol=1e-10)


def test_components_of_periodic_parts_have_all_their_harmonics():
    t, y, _ = make_series()
    kernel = periodic() + scaled(matern(1.5))
    model = StateSpaceRCGP(t, y, kernel=kernel, noise=0.05, harmonics=1)
    (season, _), (trend, _) = model.components(NEW)
    torch.testing.assert_close(season, model.components(NEW + periodic().period_length.item())[0][0])
    whole = trend + season + model.mean(NEW.unsqueeze(-1))
    torch.testing.assert_close(whole, model.posterior(NEW).mean, rtol=1e-9, atol=1e-9)


def test_nearest_rows_are_nearest_in_time():
    t, y, _ = make_series("unsorted")
    distance = (t.unsqueeze(-1) - t).abs().fill_diagonal_(torch.inf)
    assert torch.equal(StateSpaceRCGP(t, y).nearest_rows(), distance.argmin(dim=-1))
    assert StateSpaceRCGP([0.0], [1.0]).nearest_rows().tolist() == [0]
    repeated, values, _ = make_series("repeated")
    nearest = StateSpaceRCGP(repeated, values).nearest_rows()
    assert (nearest != torch.arange(len(nearest))).all()
    assert torch.equal(repeated[nearest], repeated)


def test_starts_are_tried_on_stretches_of_a_long_series():
    t = torch.randperm(10_000, generator=torch.Generator().manual_seed(0)).double()
    model = StateSpaceRCGP(t, torch.sin(t))
    rows = model.start_rows()
    assert len(rows) == len(set(rows.tolist())) == 4096
    times = t[rows].reshape(8, 512)
    assert (times.diff(dim=-1) == 1.0).all()
    assert times.min() == 0.0
    assert times.max() == 9_999.0
    assert StateSpaceRCGP(t[:4096], t[:4096]).start_rows() is None


def test_the_typical_gap_is_that_between_neighbouring_times():
    t = torch.arange(2_000.0, dtype=torch.float64)
    lengthscale = default_series_kernel(t.unsqueeze(-1), 1.0).base_kernel.lengthscale.item()
    assert StateSpaceRCGP(t, torch.sin(t)).typical_gap() * lengthscale == pytest.approx(1.0)
    assert StateSpaceRCGP(torch.ones(5), torch.arange(5.0)).typical_gap() == 1.0


def test_a_burst_of_times_has_few_starts():
    """As close to each other as numbers can be."""
    burst, rest = torch.arange(20.0, dtype=torch.float64), torch.arange(1.0, 6.0, dtype=torch.float64)
    model = StateSpaceRCGP(torch.cat([1e-300 * burst, 1e10 * rest]), torch.arange(25.0))
    assert model.typical_gap() < 1e-300
    assert 20 < len(list(shorter_starts(model))) < 40


# Bad input -----------------------------------------------------------------------------------------------------------

ONES = torch.ones(4, dtype=torch.float64)

BAD = {
    "infinite times": (lambda: StateSpaceRCGP([0.0, np.inf], [0.0, 1.0]), "times contains inf in row 1"),
    "missing times": (lambda: StateSpaceRCGP([0.0, np.nan], [0.0, 1.0]), "times contains NaN in row 1"),
    "infinite y": (lambda: StateSpaceRCGP([0.0, 1.0], [0.0, -np.inf]), "y contains -inf in row 1"),
    "infinite y after a missing one": (
        lambda: StateSpaceRCGP([0.0, 1.0, 2.0], [np.nan, 0.0, np.inf]),
        "y contains inf in row 2",
    ),
    "empty": (lambda: StateSpaceRCGP(torch.zeros(0), torch.zeros(0)), "times is empty"),
    "all missing": (lambda: StateSpaceRCGP([0.0, 1.0], [np.nan, np.nan]), "all 2 values are missing"),
    "y of two columns": (lambda: StateSpaceRCGP(ONES, torch.ones(4, 2)), "y must have shape n"),
    "times of two columns": (lambda: StateSpaceRCGP(torch.ones(4, 2), ONES), "times must have shape n or n x 1"),
    "lengths": (lambda: StateSpaceRCGP(ONES, ONES[:3]), "same number of rows, got 4 and 3"),
    "weights": (lambda: StateSpaceRCGP(ONES, ONES, sample_weight=ONES[:3]), "one number for each of the 4 rows"),
    "zero weights": (lambda: StateSpaceRCGP(ONES, ONES, sample_weight=0.0 * ONES), "sample_weight must be positive"),
    "no harmonics": (lambda: StateSpaceRCGP(ONES, ONES, harmonics=0), "harmonics must be a whole number"),
    "half a harmonic": (lambda: StateSpaceRCGP(ONES, ONES, harmonics=0.5), "harmonics must be a whole number"),
    "noise": (lambda: StateSpaceRCGP(ONES, ONES, noise=-1.0), "noise must be a positive variance"),
    "text": (lambda: StateSpaceRCGP(["monday"], [1.0]), "times cannot be read"),
    "test times": (lambda: StateSpaceRCGP(ONES, ONES).posterior([0.0, np.nan]), "times contains NaN in row 1"),
    "no test times": (lambda: StateSpaceRCGP(ONES, ONES).posterior([]), "times is empty"),
    "a number": (lambda: StateSpaceRCGP(ONES, ONES).posterior(1.0), "at least one dimension"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


KERNELS_WITHOUT_STATE = {
    "squared exponential": (gpytorch.kernels.RBFKernel, "MaternKernel.nu=2.5."),
    "scaled squared exponential": (
        lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
        "MaternKernel.nu=2.5.",
    ),
    "in a sum": (lambda: matern(1.5) + gpytorch.kernels.RBFKernel(), "MaternKernel.nu=2.5."),
    "rational quadratic": (gpytorch.kernels.RQKernel, "RQKernel has no state-space form"),
    "batch": (
        lambda: gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([2])),
        "must not be a batch of kernels",
    ),
    "active_dims": (lambda: gpytorch.kernels.MaternKernel(nu=1.5, active_dims=[1]), "active_dims"),
    "lengthscales": (lambda: gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2), "one lengthscale, got 2"),
}


@pytest.mark.parametrize("case", KERNELS_WITHOUT_STATE)
def test_kernels_without_a_state_are_refused_with_advice(case):
    build, message = KERNELS_WITHOUT_STATE[case]
    with pytest.raises(ValueError, match=message):
        StateSpaceRCGP(ONES, ONES, kernel=build())


def test_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="kernel must be a GPyTorch kernel"):
        StateSpaceRCGP(ONES, ONES, kernel="matern")


def test_the_first_of_the_active_dimensions_is_the_time():
    kernel = gpytorch.kernels.MaternKernel(nu=1.5, active_dims=[0])
    assert StateSpaceRCGP(ONES, ONES, kernel=kernel).posterior(NEW).mean.isfinite().all()


def test_the_leave_one_out_objective_is_refused_with_advice():
    t, y, _ = make_series()
    model = StateSpaceRCGP(t, y)
    before = model.hyperparameters()
    with pytest.raises(ValueError, match=r"use fit_robust\(model\), or fit\(model, 'marginal'\)"):
        fit(model, "loo")
    for name, value in model.hyperparameters().items():
        assert torch.equal(value, before[name])


def check_sound(model):
    posterior, loo = model.posterior(NEW), model.leave_one_out()
    for part in (posterior.mean, posterior.variance, *loo, model.weights(), model.sample(NEW)):
        assert part.isfinite().all()
    assert (posterior.variance >= 0.0).all()


HARD = {
    "one point": ([3.0], [1.0]),
    "one observed": ([3.0, 4.0], [np.nan, 1.0]),
    "two points": ([0.0, 1.0], [0.0, 1.0]),
    "equal times": ([2.0] * 6, [0.0, 1.0, 5.0, -3.0, 2.0, 2.0]),
    "constant y": (np.arange(12.0), np.full(12, 3.0)),
    "integers": (list(range(12)), [0, 1] * 6),
    "huge times": (1e20 * np.arange(12.0), np.sin(np.arange(12.0))),
    "tiny gaps": (1.0 + 1e-15 * np.arange(12.0), np.sin(np.arange(12.0))),
    "huge y": (np.arange(12.0), 1e30 * np.sin(np.arange(12.0))),
    "tiny y": (np.arange(12.0), 1e-30 * np.sin(np.arange(12.0))),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_cases_work_before_and_after_a_fit(case):
    model = StateSpaceRCGP(*HARD[case])
    check_sound(model)
    fit_robust(model)
    check_sound(model)


# Types and state -----------------------------------------------------------------------------------------------------


def test_single_precision_answers_in_single_precision():
    t, y, _ = make_series()
    exact = StateSpaceRCGP(t.float().double(), y.float().double(), noise=0.05)
    model = StateSpaceRCGP(t.float(), y.float(), noise=0.05)
    posterior, wanted = model.posterior(NEW), exact.posterior(NEW.float().double())
    components = StateSpaceRCGP(t.float(), y.float(), kernel=KERNELS["sum"]()).components(NEW)
    parts = (posterior.mean, posterior.variance, *model.leave_one_out(), model.sample(NEW), *components[0])
    assert {part.dtype for part in (*parts, posterior.covariance_matrix)} == {torch.float32}
    torch.testing.assert_close(posterior.mean.double(), wanted.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(posterior.covariance_matrix.double(), wanted.covariance_matrix, rtol=1e-5, atol=1e-5)
    fit_robust(model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.posterior(NEW).mean.dtype == torch.float32


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_after_prediction_predicts_the_same(copied):
    t, y, _ = make_outliers(60)
    model = StateSpaceRCGP(t, y)
    fit_robust(model)
    before = model.posterior(NEW)
    other = copied(model)
    for left, right in zip(other.leave_one_out(), model.leave_one_out(), strict=True):
        assert torch.equal(left, right)
    after = other.posterior(NEW)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.covariance_matrix, before.covariance_matrix)
    other.noise = 3.0 * model.noise.item()
    assert not torch.equal(other.posterior(NEW).mean, before.mean)
    assert torch.equal(model.posterior(NEW).mean, before.mean)


def test_changing_a_hyperparameter_changes_the_posterior():
    t, y, _ = make_series()
    model = StateSpaceRCGP(t, y, kernel=scaled(matern(1.5, 0.7)), noise=0.05)
    first = model.posterior(NEW)
    model.kernel.base_kernel.lengthscale = torch.tensor(1.4, dtype=torch.float64)
    fresh = StateSpaceRCGP(t, y, kernel=scaled(matern(1.5, 1.4)), noise=0.05)
    assert torch.equal(model.posterior(NEW).mean, fresh.posterior(NEW).mean)
    assert torch.equal(model.posterior(NEW).variance, fresh.posterior(NEW).variance)
    # A posterior keeps the hyperparameters it was made with.
    torch.testing.assert_close(first.variance, answers(t, y, weight=Constant())[1])
    model.noise = 0.2
    assert not torch.equal(model.posterior(NEW).mean, fresh.posterior(NEW).mean)


def test_the_model_keeps_copies_of_the_data():
    t, y, _ = make_series()
    model = StateSpaceRCGP(t, y, noise=0.05)
    before = model.posterior(NEW).mean
    t += 1.0
    y *= 2.0
    assert torch.equal(model.posterior(NEW).mean, before)


def test_more_harmonics_come_closer_to_the_dense_periodic_kernel():
    t, y, _ = make_series()
    kernel = periodic(1.1, 0.5)
    dense = RCGP(t.unsqueeze(-1), y, kernel=copy.deepcopy(kernel), noise=0.05, mean="median", weight=Constant())
    wanted = dense.posterior(NEW.unsqueeze(-1)).mean.detach()
    errors = [
        (StateSpaceRCGP(t, y, kernel=kernel, noise=0.05, harmonics=k).posterior(NEW).mean - wanted).abs().max().item()
        for k in (1, 9)
    ]
    assert errors[0] > 0.1
    assert errors[1] < 1e-4
    assert harmonic_error(kernel, 9) < 1e-6


def test_few_harmonics_are_one_kernel_in_variances_and_covariances():
    t = torch.linspace(0.0, 10.0, 40, dtype=torch.float64)
    kernel = gpytorch.kernels.PeriodicKernel().double()
    kernel.lengthscale, kernel.period_length = 0.03, 3.0
    assert harmonic_error(kernel, HARMONICS) > 0.05
    model = StateSpaceRCGP(t, torch.sin(2.0 * t), kernel=kernel, harmonics=HARMONICS)
    x = torch.linspace(0.3, 11.0, 6, dtype=torch.float64)
    posterior = model.posterior(x)
    covariance = posterior.covariance_matrix
    torch.testing.assert_close(covariance.diagonal(), posterior.variance, rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(covariance, covariance.mT, rtol=0.0, atol=1e-10)
