"""The noise law and its weight against plain numpy and scipy, and what no observation can do to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import make_data
from rcgp import RCGP, posterior_influence
from rcgp.core.pseudo import pseudo_data
from rcgp.weights import LawWeight, NoiseLaw, WeightFunction, smallest_weight
from rcgp.weights.noise_law import SCALES, TAIL, by_component, responsibilities, spread_tail

LAW = NoiseLaw((0.7, 0.12, 0.06, 0.02), 0.1, 6.0)
LAWS = {
    "all components": LAW,
    "outliers only": NoiseLaw((0.9, 0.0, 0.0, 0.0), 0.1, 6.0),
    "heavy tail": NoiseLaw((0.5, 0.3, 0.15, 0.05), 0.0, 2.0),
    "half wrong": NoiseLaw((0.4, 0.05, 0.03, 0.02), 0.5, 6.0),
    "normal": NoiseLaw.normal(),
}


def make_rows(n=9, seed=0):
    """Residuals with two outliers, leave-one-out moments and noise variances of rows."""
    random = np.random.default_rng(seed)
    e = random.standard_normal(n)
    e[1], e[n // 2] = 30.0, -4.0
    return e, 0.5 * random.standard_normal(n), random.uniform(0.01, 2.0, n), random.uniform(0.1, 0.8, n)


def densities(law, e, mean, variance, noise):
    """π times density of each component for one row."""
    good = [
        share * scipy.stats.norm.pdf(e, mean, math.sqrt(variance + noise * scale**2))
        for share, scale in zip(law.shares, SCALES, strict=True)
    ]
    if not law.outlier_share:
        return [*good, 0.0]

    def unexplained(f):
        """Prediction times what good noise of 4σ around f leaves of the density of outliers."""
        return scipy.stats.norm.pdf(f, mean, math.sqrt(variance)) * -np.expm1(-0.5 * (e - f) ** 2 / (16.0 * noise))

    def left(e):
        """Density of outliers at f = 0 before it is scaled to integrate to one."""
        return scipy.stats.cauchy.pdf(e, scale=law.width) * -np.expm1(-0.5 * e**2 / (16.0 * noise))

    mass = 2.0 * scipy.integrate.quad(left, 0.0, np.inf, epsabs=0.0, epsrel=1e-12, limit=500)[0]
    reach = 12.0 * math.sqrt(variance)
    gap, _ = scipy.integrate.quad(unexplained, mean - reach, mean + reach, epsabs=0.0, epsrel=1e-12, limit=500)
    return [*good, law.outlier_share * scipy.stats.cauchy.pdf(e, scale=law.width) * gap / mass]


def tensors(*arrays):
    return [torch.tensor(array, dtype=torch.float64) for array in arrays]


def evaluated(law, e, mean, variance, noise):
    """The package's responsibilities for numpy arrays."""
    parts = tensors(e, mean, variance, noise)
    return responsibilities(
        *parts, law.log_shares(parts[0]).unsqueeze(0), torch.tensor([law.width], dtype=torch.float64)
    )


@pytest.mark.parametrize("name", LAWS)
def test_responsibilities_are_bayes_rule_row_by_row(name):
    law, rows = LAWS[name], make_rows()
    ours = evaluated(law, *rows)
    for i, row in enumerate(zip(*rows, strict=True)):
        parts = np.array(densities(law, *row))
        expected = parts / parts.sum()
        np.testing.assert_allclose(ours.share[i], expected, rtol=1e-9, atol=1e-300)
        assert ours.log_density[i].item() == pytest.approx(math.log(parts.sum()), rel=1e-12)
        assert ours.outlier[i].item() == pytest.approx(expected[-1], rel=1e-9)
        precision = sum(share / scale**2 for share, scale in zip(expected, SCALES, strict=False))
        assert ours.precision[i].item() == pytest.approx(precision, rel=1e-9)


def test_responsibilities_of_a_batch_are_those_of_each():
    batch = [np.stack(part) for part in zip(make_rows(seed=1), make_rows(seed=2), strict=True)]
    both = evaluated(LAW, *batch)
    for i in range(2):
        alone = evaluated(LAW, *(part[i] for part in batch))
        for name in ("share", "log_density", "precision", "slope"):
            torch.testing.assert_close(getattr(both, name)[i], getattr(alone, name), rtol=1e-13, atol=0.0)


def law_weight(law=LAW, seed=0, local=True):
    e, mean, variance, _ = make_rows(seed=seed)
    h = torch.linspace(0.5, 2.0, len(e), dtype=torch.float64) if local else None
    relative = torch.linspace(2.0, 0.1, len(e), dtype=torch.float64).square() if local else None
    weight = LawWeight(law, *tensors(mean, variance), h, relative)
    return weight, torch.tensor(e), torch.zeros(len(e), 1, dtype=torch.float64)


NOISE = torch.tensor(0.3, dtype=torch.float64)


@pytest.mark.parametrize("name", LAWS)
def test_the_squared_weight_is_the_expected_precision_over_the_local_factor(name):
    weight, e, x = law_weight(LAWS[name])
    noise = NOISE.item() * weight.local.numpy() * weight.relative.numpy()
    rows = evaluated(LAWS[name], e.numpy(), weight.mean.numpy(), weight.variance.numpy(), noise)
    torch.testing.assert_close(weight(e, x, NOISE).square(), rows.precision / weight.local, rtol=1e-13, atol=1e-200)


def test_noise_and_known_factors_count_by_their_product():
    """Multiplying sample weights and noise variance by a number leaves the weights unchanged."""
    weight, e, x = law_weight()
    other = LawWeight(LAW, weight.mean, weight.variance, weight.local, weight.relative / 1e4)
    torch.testing.assert_close(other(e, x, 1e4 * NOISE), weight(e, x, NOISE), rtol=1e-12, atol=1e-150)
    torch.testing.assert_close(other.slope(e, x, 1e4 * NOISE), weight.slope(e, x, NOISE), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAWS)
def test_the_slope_is_the_derivative_of_the_log_squared_weight(name):
    weight, e, x = law_weight(LAWS[name])
    slope = weight.slope(e, x, NOISE)
    slope = slope / weight.local  # which makes the shift that of a row with the noise variance σ² h
    torch.testing.assert_close(slope, WeightFunction.slope(weight, e, x, NOISE), rtol=1e-10, atol=1e-10)
    step = 1e-5
    numeric = (weight(e + step, x, NOISE).log() - weight(e - step, x, NOISE).log()) / step
    seen = weight(e, x, NOISE) > 1e-30  # beyond that a row counts as deleted
    torch.testing.assert_close(slope[seen], numeric[seen], rtol=1e-6, atol=1e-6)


def test_gradients_of_weight_and_slope_pass_gradcheck():
    weight, e, x = law_weight()
    e, noise = e.clamp(-5, 5).requires_grad_(True), NOISE.clone().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda e, noise: weight(e, x, noise), (e, noise))
    assert torch.autograd.gradcheck(lambda e, noise: weight.slope(e, x, noise), (e, noise))


def test_the_weight_of_one_row_takes_any_number_of_values():
    weight, e, x = law_weight()
    all_rows, slopes = weight(e, x, NOISE), weight.slope(e, x, NOISE)
    for row in range(len(e)):
        alone = weight.of_row(row)
        values = torch.stack([e[row], e[row] + 1.0, e[row] - 40.0])
        moved = e.clone()
        moved[row] = values[2]
        # Equal but for the last bits: a vectorised exponential depends on the place in the vector.
        found, slope = alone(values, x[:3], NOISE), alone.slope(values, x[:3], NOISE)
        assert found[0].item() == pytest.approx(all_rows[row].item(), rel=1e-14)
        assert slope[0].item() == pytest.approx(slopes[row].item(), rel=1e-13)
        assert found[2].item() == pytest.approx(weight(moved, x, NOISE)[row].item(), rel=1e-14)


def test_the_normal_law_gives_every_row_weight_one_and_no_slope():
    weight, e, x = law_weight(NoiseLaw.normal(), local=False)
    e[0], e[2] = 1e300, -1e300
    assert (weight(e, x, NOISE) == 1.0).all()
    assert (weight.slope(e, x, NOISE) == 0.0).all()
    assert (weight.responsibilities(e, NOISE).outlier == 0.0).all()


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
@pytest.mark.parametrize("name", ["all components", "outliers only", "half wrong"])
def test_the_pull_of_an_observation_is_bounded_up_to_1e300(name, unit):
    """Its pseudo-target times its squared weight, which enters the posterior mean, in any unit of y."""
    law = LAWS[name]
    scaled = NoiseLaw(law.shares, law.outlier_share, law.width * unit)
    mean, variance = tensors([0.3 * unit], [0.2 * unit**2])
    weight, noise = LawWeight(scaled, mean, variance), torch.tensor(0.3 * unit**2, dtype=torch.float64)
    size = torch.logspace(-300, 300, 4001, dtype=torch.float64)
    e = torch.cat([size, -size, torch.linspace(-50, 50, 4001, dtype=torch.float64) * unit])
    x = e.unsqueeze(-1)
    w, slope = weight(e, x, noise), weight.slope(e, x, noise)
    assert w.isfinite().all()
    assert slope.isfinite().all()
    assert ((w > 0) & (w <= 1)).all()
    pseudo = pseudo_data(e, w, slope, noise)
    assert (pseudo.target * (pseudo.root_precision * noise.sqrt()).square()).abs().max() < 10.0 * unit
    far = e.abs() > 1e10 * unit
    assert (w[far] <= smallest_weight(torch.float64)).all()


def test_without_outliers_a_heavy_tail_bounds_weights_from_below():
    weight = LawWeight(LAWS["heavy tail"], *tensors([0.0], [0.0]))
    e = torch.logspace(0, 300, 301, dtype=torch.float64)
    w = weight(e, e.unsqueeze(-1), NOISE)
    assert (w <= 1.0).all()
    ordinary = w[e < 1e100]
    assert ordinary[-1].item() == pytest.approx(1.0 / SCALES[-1])
    assert (ordinary.diff() <= 0).all()


def test_gradients_are_finite_where_a_row_is_deleted():
    weight = LawWeight(LAW, *tensors([0.2], [0.1]))
    e = torch.tensor([0.0, 30.0, 200.0, 1e10, 1e300, -1e300], dtype=torch.float64, requires_grad=True)
    noise = NOISE.clone().requires_grad_(True)
    for value in (weight(e, e.unsqueeze(-1), noise), weight.slope(e, e.unsqueeze(-1), noise)):
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value.sum(), [e, noise]))


@given(seed=st.integers(0, 10**6), n=st.integers(2, 20), log_noise=st.floats(-4, 1))
def test_influence_is_bounded_and_converges(seed, n, log_noise):
    X, y = (torch.tensor(a) for a in make_data(n, seed=seed, outliers=1))
    model = RCGP(X, y, noise=10.0**log_noise)
    model.weight = LawWeight(LAW, *model.latent_leave_one_out(model.training_terms().pseudo))
    values = torch.logspace(0, 300, 80, dtype=torch.float64)
    values = torch.cat([values, -values])
    influence = posterior_influence(model, 0, values)
    assert influence.isfinite().all()
    assert (influence >= -1e-9).all()
    limit = posterior_influence(model, 0, torch.tensor([torch.inf], dtype=torch.float64))
    settled = influence[values.abs() > 1e16]
    torch.testing.assert_close(settled, limit.expand_as(settled), rtol=1e-7, atol=1e-9)


# Predictions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWS)
def test_predictive_density_is_the_mixture_of_inliers(name):
    law = LAWS[name]
    e, _, variance, noise = make_rows()
    ours = law.log_density(*tensors(e, variance, noise))
    shares = np.array(law.shares) / sum(law.shares)
    std = np.sqrt(variance[:, None] + noise[:, None] * np.square(SCALES))
    expected = np.log((shares * scipy.stats.norm.pdf(e[:, None], scale=std)).sum(axis=1))
    finite = np.isfinite(expected)  # scipy's density of a normal variable at 30 standard deviations is zero
    assert finite.sum() >= 7
    np.testing.assert_allclose(ours[finite], expected[finite], rtol=1e-10)
    assert ours.isfinite().all()


def test_the_predictive_density_integrates_to_one():
    deviation = torch.linspace(-120, 120, 200_001, dtype=torch.float64)
    variance, noise = torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    parts = deviation, variance.expand_as(deviation), noise.expand_as(deviation)
    assert torch.trapezoid(LAW.log_density(*parts).exp(), deviation).item() == pytest.approx(1.0, abs=1e-9)
    residual = deviation + 3.0
    far = 2.0 * LAW.outlier_share / math.pi * math.atan(LAW.width / 120.0)  # of the outliers, beyond the grid
    whole = torch.trapezoid(LAW.log_density(*parts, residual).exp(), deviation).item()
    assert whole == pytest.approx(1.0 - far, rel=2e-4)


@pytest.mark.parametrize("name", LAWS)
def test_the_density_of_an_observation_that_may_be_an_outlier_is_the_mixture_with_them(name):
    law = LAWS[name]
    e, mean, variance, noise = make_rows()
    inlier, both = (law.log_density(*tensors(e - mean, variance, noise), part) for part in (None, torch.tensor(e)))
    expected = (1.0 - law.outlier_share) * np.exp(inlier.numpy())
    if law.outlier_share:
        expected += law.outlier_share * scipy.stats.cauchy.pdf(e, scale=law.width)
    seen = expected > 1e-300
    np.testing.assert_allclose(both[seen], np.log(expected[seen]), rtol=1e-10)
    assert both.isfinite().all()


@pytest.mark.parametrize("far", [1e160, -1e300])
def test_the_density_of_an_absurd_observation_is_that_of_an_outlier(far):
    e, variance, noise = tensors(far, 0.5, 2.0)
    expected = math.log(LAW.outlier_share * LAW.width / math.pi) - 2.0 * math.log(abs(far))
    assert LAW.log_density(e, variance, noise, e).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("q", [1e-6, 0.025, 0.3, 0.5, 0.9, 0.975, 1 - 1e-6])
def test_quantiles_invert_the_distribution_function(name, q):
    law = LAWS[name]
    shares = np.array(law.shares) / sum(law.shares)
    for variance, noise in ((0.0, 1.0), (0.5, 2.0), (3.0, 1e-6)):
        std = np.sqrt(variance + noise * np.square(SCALES))
        expected = scipy.optimize.brentq(
            lambda x, std=std: float((shares * scipy.stats.norm.cdf(x / std)).sum()) - q,
            -60.0,
            60.0,
            xtol=1e-12,
            rtol=1e-14,
        )
        ours = law.quantile(*tensors(q, variance, noise))
        assert ours.item() == pytest.approx(expected, rel=1e-7, abs=1e-8)
        below = law.probability_below(*tensors(expected, variance, noise))
        assert below.item() == pytest.approx(q, rel=1e-9)


def test_quantiles_broadcast_grow_with_q_and_are_symmetric():
    q = torch.linspace(0.001, 0.999, 101, dtype=torch.float64)
    variance, noise = (torch.rand(7, 1, dtype=torch.float64) for _ in range(2))
    quantiles = LAW.quantile(q, variance, noise)
    assert quantiles.shape == (7, 101)
    assert (quantiles.diff(dim=-1) > 0).all()
    torch.testing.assert_close(quantiles, -quantiles.flip(-1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-150, 1e150])
def test_quantiles_and_densities_do_not_depend_on_units(unit):
    q, e, variance, noise = tensors(0.9, 1.3, 0.5, 2.0)
    torch.testing.assert_close(
        LAW.quantile(q, variance * unit**2, noise * unit**2) / unit, LAW.quantile(q, variance, noise)
    )
    scaled = LAW.log_density(e * unit, variance * unit**2, noise * unit**2) + math.log(unit)
    torch.testing.assert_close(scaled, LAW.log_density(e, variance, noise))


def test_variance_of_a_law_is_that_of_its_inliers():
    random = np.random.default_rng(0)
    scale = random.choice(SCALES, 400_000, p=LAW.good_shares)
    assert (scale * random.standard_normal(400_000)).var() == pytest.approx(LAW.variance, rel=0.02)
    assert NoiseLaw.normal().variance == 1.0


def test_each_scale_of_the_tail_is_half_as_common_as_the_one_before():
    assert len(TAIL) == len(SCALES) - 1
    assert sum(TAIL) == pytest.approx(1.0)
    assert np.array(TAIL)[1:] / np.array(TAIL)[:-1] == pytest.approx(0.5)
    three = torch.tensor([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]], dtype=torch.float64)
    shares = spread_tail(three)
    np.testing.assert_allclose(shares[0], [0.6, *(0.3 * np.array(TAIL)), 0.1])
    torch.testing.assert_close(by_component(shares), three)
    law = NoiseLaw.of_counts(10.0 * three[0], 2.0)
    assert (*law.shares, law.outlier_share) == pytest.approx(shares[0].tolist())
    assert [share for _, share in law.components()] == pytest.approx(three[0].tolist())


# Words ----------------------------------------------------------------------------------------------------------------


def test_laws_print_as_a_sentence_and_a_table():
    assert str(NoiseLaw.normal()) == "The noise is normal, without outliers."
    assert str(LAW).splitlines() == [
        "The noise of good rows has heavy tails (22% beyond normal); 10.0% of all rows are outliers.",
        "  noise             share of rows",
        "  σ                   70.0%",
        "  2σ to 8σ            20.0%",
        "  outlier             10.0%",
    ]
    assert str(LAWS["outliers only"]).startswith(
        "The noise of good rows is nearly normal; 10.0% of all rows are outliers."
    )
    assert LAWS["normal"].is_normal
    assert not any(law.is_normal for name, law in LAWS.items() if name != "normal")


def test_the_weight_names_its_shares():
    assert repr(law_weight()[0]) == "LawWeight(1σ: 0.7, 2σ: 0.12, 4σ: 0.06, 8σ: 0.02)"
