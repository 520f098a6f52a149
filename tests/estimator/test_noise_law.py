"""The learned noise law in the estimator: clean data cost nothing, predictions follow the law, doubts are warnings."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from rcgp import NoiseLaw, RCGPRegressor
from rcgp.estimator import NoiseLawWarning
from rcgp.training.judgement import doubts_of
from rcgp.weights.noise_law import SCALES, responsibilities


def sine(n=80, seed=0, noise=0.1):
    random = np.random.default_rng(seed)
    X = np.sort(random.uniform(0, 10, (n, 1)), axis=0)
    f = np.sin(X[:, 0])
    return X, f + noise * random.standard_normal(n), f


def table(n, d, noise, seed=0):
    """A smooth function of d inputs with normal noise."""
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (n, d))
    return X, 5.0 + 3.0 * (np.sin(X.sum(axis=1)) + 0.3 * X[:, 0] + noise * random.standard_normal(n))


def contaminated(n=300, seed=1, share=0.15):
    X, y, f = sine(n, seed)
    random = np.random.default_rng(seed + 100)
    bad = random.random(n) < share
    y[bad] += random.uniform(0.5, 3.0, n)[bad] * random.choice([-1.0, 1.0], n)[bad]
    return X, y, f, bad


def growing(n=300, seed=0):
    """Noise whose standard deviation grows from 0.05 to 0.55."""
    random = np.random.default_rng(seed)
    X = np.sort(random.uniform(0, 10, (n, 1)), axis=0)
    std = 0.05 + 0.05 * X[:, 0]
    return X, np.sin(X[:, 0]) + std * random.standard_normal(n)


# Clean data -----------------------------------------------------------------------------------------------------------

CLEAN = {
    "sine": lambda: sine()[:2],
    "one input, little noise": lambda: table(50, 1, 0.01),
    "two inputs": lambda: table(60, 2, 0.3),
    "three inputs": lambda: table(100, 3, 0.1),
    "more noise than signal": lambda: table(120, 2, 1.0),
    "five inputs": lambda: table(60, 5, 0.2),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_data_cost_nothing(name):
    X, y = CLEAN[name]()
    learned, plain = RCGPRegressor().fit(X, y), RCGPRegressor(weight="constant").fit(X, y)
    assert learned.noise_law_ == NoiseLaw.normal()
    assert (learned.weights_ == 1.0).all()
    assert (learned.outlier_probability_ == 0.0).all()
    assert learned.doubts_ == ()
    assert learned.noise_variance_ == pytest.approx(plain.noise_variance_, rel=1e-10)
    np.testing.assert_allclose(learned.lengthscales_, plain.lengthscales_, rtol=1e-10)
    np.testing.assert_allclose(learned.kernel_.outputscale.item(), plain.kernel_.outputscale.item(), rtol=1e-10)
    new = X + 0.05
    for ours, theirs in zip(learned.predict(new, return_cov=True), plain.predict(new, return_cov=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(learned.predict_interval(new), plain.predict_interval(new), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(learned.loo_mean_, plain.loo_mean_, rtol=1e-10, atol=1e-10)
    assert learned.fit_report_.normal_evidence == pytest.approx(plain.fit_report_.value, rel=1e-10)


def test_clean_data_with_a_custom_kernel_cost_nothing():
    X, y, _ = sine()
    kernel = 2.0 * RBF(1.5) + WhiteKernel(0.1)
    learned, plain = RCGPRegressor(kernel).fit(X, y), RCGPRegressor(kernel, weight="constant").fit(X, y)
    assert learned.noise_law_.is_normal
    np.testing.assert_allclose(learned.predict(X), plain.predict(X), rtol=1e-10, atol=1e-10)


def test_the_report_names_the_winning_hypothesis():
    X, y, _ = sine()
    report = RCGPRegressor().fit(X, y).fit_report_
    assert report.evidence < report.normal_evidence == report.value
    assert "not kept" in str(report)
    X, y, _, _ = contaminated(100)
    model = RCGPRegressor().fit(X, y)
    report = model.fit_report_
    assert report.value == report.evidence > report.normal_evidence
    assert ": kept" in str(report)
    assert str(model.noise_law_) in str(report)


# Predictions ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def robust():
    X, y, _, _ = contaminated()
    return RCGPRegressor(local_noise=False).fit(X, y)


@pytest.fixture(scope="module")
def heteroskedastic():
    model = RCGPRegressor().fit(*growing())
    assert model.fit_report_.local_noise
    return model


@pytest.mark.parametrize("which", ["robust", "heteroskedastic"])
def test_quantiles_grow_with_their_level_and_intervals_are_quantiles(which, request):
    model, new = request.getfixturevalue(which), np.linspace(-3, 13, 40)[:, None]
    levels = np.array([0.001, 0.025, 0.1, 0.4, 0.5, 0.6, 0.9, 0.975, 0.999])
    quantiles = model.predict_quantiles(new, levels)
    assert quantiles.shape == (40, 9)
    assert (np.diff(quantiles, axis=1) > 0).all()
    np.testing.assert_allclose(quantiles[:, 4], model.predict(new), atol=1e-9)
    for coverage, ends in ((0.95, (1, 7)), (0.8, (2, 6)), (0.998, (0, 8))):
        for end, column in zip(model.predict_interval(new, coverage), ends, strict=True):
            np.testing.assert_allclose(end, quantiles[:, column], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(model.predict_quantiles(new, 0.9), quantiles[:, 6])


@pytest.mark.parametrize("which", ["robust", "heteroskedastic"])
def test_quantiles_hold_their_share_of_the_predictive_density(which, request):
    """Both follow the same law: the density of an inlier integrates to one, and to q below the quantile."""
    model, point = request.getfixturevalue(which), np.array([[3.7]])
    mean, std = model.predict(point, return_std=True, include_noise=True)
    values = np.linspace(mean[0] - 60 * std[0], mean[0] + 60 * std[0], 40_001)
    density = np.exp(model.log_predictive_density(np.repeat(point, len(values), axis=0), values, outliers=False))
    assert np.trapezoid(density, values) == pytest.approx(1.0, abs=1e-6)
    assert np.trapezoid(density * values, values) == pytest.approx(mean[0], abs=1e-6)
    assert np.trapezoid(density * (values - mean[0]) ** 2, values) == pytest.approx(std[0] ** 2, rel=1e-4)
    for q in (0.025, 0.3, 0.9):
        below = values <= model.predict_quantiles(point, q)[0]
        assert np.trapezoid(density[below], values[below]) == pytest.approx(q, abs=2e-3)


def test_intervals_cover_new_observations(robust):
    """95 % of new observations that are no outliers, within what chance explains."""
    random = np.random.default_rng(5)
    new = random.uniform(0.0, 10.0, (4000, 1))
    fresh = np.sin(new[:, 0]) + 0.1 * random.standard_normal(4000)
    for coverage in (0.95, 0.5):
        lower, upper = robust.predict_interval(new, coverage)
        covered = ((lower <= fresh) & (fresh <= upper)).mean()
        # 300 rows, 255 of them good, decide the noise: the error of their coverage, and of this sample.
        error = np.sqrt(coverage * (1 - coverage) * (1 / 255 + 1 / 4000))
        assert abs(covered - coverage) < 3 * error


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_the_density_of_a_plain_gp_is_normal():
    X, y, _, _ = contaminated(100)
    model = RCGPRegressor(weight="constant").fit(X, y)
    mean, std = model.predict(X, return_std=True, include_noise=True)
    normal = scipy.stats.norm(mean, std)
    np.testing.assert_allclose(model.log_predictive_density(X, y), normal.logpdf(y), rtol=1e-10)
    np.testing.assert_allclose(model.predict_quantiles(X, 0.9), normal.ppf(0.9), rtol=1e-10)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, np.nan, [0.5, 1.5], [[0.1, 0.2]]])
def test_levels_that_are_not_probabilities_are_refused(robust, q):
    with pytest.raises(ValueError, match=r"q must be one or several probabilities in \(0, 1\)"):
        robust.predict_quantiles([[1.0]], q)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 95, np.nan, "wide", None, [0.9]])
def test_coverages_that_are_not_probabilities_are_refused(robust, coverage):
    with pytest.raises(ValueError, match=r"coverage must be a probability in \(0, 1\)"):
        robust.predict_interval([[1.0]], coverage)


# Noise that differs from place to place -------------------------------------------------------------------------------


def test_growing_noise_is_learned(heteroskedastic):
    new = np.linspace(0.5, 9.5, 10)[:, None]
    std, truth = heteroskedastic.noise_std(new), 0.05 + 0.05 * new[:, 0]
    assert std[-1] > 1.5 * std[0]
    assert scipy.stats.spearmanr(std, truth).statistic > 0.9
    lower, upper = heteroskedastic.predict_interval(new)
    assert (upper - lower)[-1] > 1.5 * (upper - lower)[0]
    total = heteroskedastic.predict(new, return_std=True, include_noise=True)[1] ** 2
    latent = heteroskedastic.predict(new, return_std=True)[1] ** 2
    np.testing.assert_allclose(total - latent, std**2, rtol=1e-9)


def test_local_noise_predicts_better_than_one_noise(heteroskedastic):
    """Fresh observations are covered where noise is large, and more likely everywhere."""
    random = np.random.default_rng(9)
    new = random.uniform(0.0, 10.0, (2000, 1))
    fresh = np.sin(new[:, 0]) + (0.05 + 0.05 * new[:, 0]) * random.standard_normal(2000)
    lower, upper = heteroskedastic.predict_interval(new)
    noisy = new[:, 0] > 7.0
    assert ((lower <= fresh) & (fresh <= upper))[noisy].mean() > 0.8
    same = RCGPRegressor(local_noise=False).fit(*growing())
    gain = heteroskedastic.log_predictive_density(new, fresh) - same.log_predictive_density(new, fresh)
    assert gain.mean() > 0.05


def test_without_local_noise_the_noise_is_constant():
    model = RCGPRegressor(local_noise=False).fit(*growing())
    std = model.noise_std(np.linspace(-5, 15, 30)[:, None])
    assert (std == std[0]).all()
    assert not model.fit_report_.local_noise
    law = model.models_[0].noise_law
    assert std[0] == pytest.approx(np.sqrt(law.variance * model.noise_variance_))


def test_a_plain_gp_has_constant_noise():
    X, y, _ = sine()
    model = RCGPRegressor(weight="constant").fit(X, y)
    np.testing.assert_allclose(model.noise_std([[0.0], [100.0]]), np.sqrt(model.noise_variance_))


# Doubts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "count"), [(1, "1 row is"), (2, "2 rows are"), (11, "11 rows are")])
def test_too_few_rows_raise_a_warning(rows, count):
    X, y, _ = sine(rows)
    with pytest.warns(NoiseLawWarning, match=f"{count} too few to tell errors from good observations"):
        model = RCGPRegressor().fit(X, y)
    assert len(model.doubts_) == 1


def test_thirteen_rows_are_not_too_few():
    X, y, _ = sine(13)
    assert RCGPRegressor().fit(X, y).doubts_ == ()


@pytest.mark.filterwarnings("ignore:.*cannot be told apart", "ignore:the noise law does not fit")
def test_more_than_a_third_of_outliers_raises_a_warning():
    X, y, _, _ = contaminated(200, share=0.38)
    with pytest.warns(NoiseLawWarning, match=r"\d\d% of the rows count less than half: where more than a third does"):
        model = RCGPRegressor().fit(X, y)
    assert (model.weights_**2 < 0.5).mean() > 1 / 3


@pytest.mark.filterwarnings("ignore:.*count less than half")
def test_a_heavy_tail_raises_a_warning():
    X, _, f = sine(400)
    y = f + 0.1 * np.random.default_rng(3).standard_cauchy(400)
    with pytest.warns(NoiseLawWarning, match="errors and heavy-tailed noise cannot be told apart: .* without being"):
        model = RCGPRegressor().fit(X, y)
    assert sum(model.noise_law_.shares[1:]) > 0.2
    assert any("cannot be told apart" in doubt for doubt in model.doubts_)


@pytest.mark.parametrize(("factor", "part"), [(0.5, "67"), (0.75, "86"), (1.0, None)])
def test_a_law_that_does_not_cover_is_doubted(factor, part):
    """Quantiles of a normal variable as deviations, beside a noise variance that is too small."""
    deviation = torch.special.ndtri((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    zeros, ones = torch.zeros_like(deviation), torch.ones_like(deviation)
    doubts = doubts_of(NoiseLaw.normal(), deviation, zeros, factor**2 * ones, zeros, ones)
    expected = () if part is None else (f"the noise law does not fit: {part}% of the good rows lie within their 95 %",)
    assert tuple(doubt.removesuffix(" leave-one-out interval") for doubt in doubts) == expected


def test_rows_drawn_from_a_heavy_tailed_law_raise_no_doubt_about_it():
    """Rows of the widest scale are flagged, and no part of the intervals that are checked."""
    random, law = np.random.default_rng(0), NoiseLaw.of_counts(torch.tensor([60.0, 38.0, 2.0]).double(), 5.0)
    scale = torch.from_numpy(random.choice(SCALES, 20_000, p=law.good_shares))
    deviation = scale * torch.from_numpy(random.standard_normal(20_000))
    zeros, ones = torch.zeros_like(deviation), torch.ones_like(deviation)
    rows = responsibilities(
        deviation, zeros, zeros, ones, law.log_shares(ones).unsqueeze(0), torch.tensor([law.width]).double()
    )
    good = 1.0 - rows.outlier_probability
    inside = deviation.abs() <= law.unflagged.quantile(torch.tensor(0.975).double(), zeros, ones)
    assert float((good * inside).sum() / good.sum()) == pytest.approx(0.95, abs=0.01)
    assert law.unflagged.shares[-1] == 0.0
    assert sum(law.unflagged.shares) + law.unflagged.outlier_share == pytest.approx(1.0)
    doubts = doubts_of(law, deviation, zeros, ones, rows.outlier_probability, rows.precision)
    assert not any("does not fit" in doubt for doubt in doubts)


def test_each_doubt_is_one_warning_and_kept():
    X, y, _, _ = contaminated(200, share=0.38)
    with pytest.warns(NoiseLawWarning) as caught:
        model = RCGPRegressor().fit(X, y)
    assert [str(warning.message) for warning in caught] == list(model.doubts_)
