"""What the estimator computes: the model's numbers, in the user's units, for one output and for several."""

from __future__ import annotations

import gpytorch
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, RationalQuadratic, WhiteKernel

import rcgp
from marks import slow
from rcgp import RCGP, RCGPRegressor, fit, fit_robust
from rcgp.estimator import NoiseLawWarning
from rcgp.estimator.output import build_model, lengthscales
from rcgp.models.defaults import add_weak_priors
from rcgp.weights import Constant, InverseMultiquadric, LawWeight

# Any fit will do: one iteration of the cheapest.
QUICK = {"weight": "constant", "max_iter": 1}
quick = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# A law learned afterwards, from the predictions of a model that outliers did spoil, need not fit.
spoilt = pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
few_rows = pytest.mark.filterwarnings("ignore:.*too few to tell:rcgp.estimator.NoiseLawWarning")


def make_series(n=80, seed=0, outliers=(5, 30, 60), size=12.0):
    random = np.random.default_rng(seed)
    X = np.sort(random.uniform(0, 10, (n, 1)), axis=0)
    f = np.sin(X[:, 0])
    y = f + 0.1 * random.standard_normal(n)
    y[list(outliers)] += size
    return X, y, f


@spoilt
def test_the_estimator_is_the_model():
    """The paper's bare setting, against RCGP and fit directly."""
    X, y, _ = make_series()
    model = RCGP(X, y, mean="median")
    report = fit(model)
    estimator = RCGPRegressor(weight="imq", priors=None).fit(X, y)
    assert estimator.fit_report_.value == report.value
    np.testing.assert_array_equal(estimator.weights_, model.weights().numpy())
    loo = model.leave_one_out()
    np.testing.assert_array_equal(estimator.loo_mean_, loo.mean.numpy())
    np.testing.assert_array_equal(estimator.loo_std_, loo.variance.sqrt().numpy())
    mean, std = estimator.predict(X, return_std=True, include_noise=True)
    posterior = model.posterior(torch.tensor(X), observation_noise=True)
    np.testing.assert_array_equal(mean, posterior.mean.numpy())
    np.testing.assert_array_equal(std, posterior.stddev.detach().numpy())
    np.testing.assert_array_equal(estimator.lengthscales_, model.kernel.base_kernel.lengthscale.detach()[0].numpy())
    assert estimator.noise_variance_ == model.noise.item()


def test_the_constant_weight_is_the_plain_gp():
    X, y, _ = make_series(outliers=())
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    ours = RCGPRegressor(kernel, mean="zero", weight="constant", normalize=False).fit(X, y)
    theirs = GaussianProcessRegressor(kernel).fit(X, y)
    new = np.linspace(-1, 11, 50)[:, None]
    mean, cov = theirs.predict(new, return_cov=True)  # which, in scikit-learn, includes the white noise
    our_mean, our_cov = ours.predict(new, return_cov=True, include_noise=True)
    np.testing.assert_allclose(our_mean, mean, atol=1e-3)
    np.testing.assert_allclose(our_cov, cov, atol=1e-3)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-4)


def test_outliers_are_found_and_do_not_move_the_fit():
    X, y, f = make_series()
    robust = RCGPRegressor().fit(X, y)
    plain = RCGPRegressor(weight="constant").fit(X, y)
    assert np.flatnonzero(robust.outliers_).tolist() == [5, 30, 60]
    assert (robust.weights_ > 0).all()
    assert (RCGPRegressor(local_noise=False).fit(X, y).weights_ <= 1).all()
    assert set(np.argsort(robust.weights_)[:3]) == {5, 30, 60}
    assert np.abs(robust.predict(X) - f).mean() < 0.5 * np.abs(plain.predict(X) - f).mean()


def test_the_learned_weight_is_the_robust_fit_of_the_model():
    X, y, _ = make_series()
    model = RCGP(X, y, mean="median")
    add_weak_priors(model)
    report = fit_robust(model)
    for estimator in (RCGPRegressor().fit(X, y), RCGPRegressor(weight="learned").fit(X, y)):
        assert estimator.fit_report_.value == report.value
        assert estimator.fit_report_.rounds == report.rounds
        assert estimator.noise_law_ == report.law == model.noise_law
        np.testing.assert_array_equal(estimator.weights_, model.weights().numpy())
        np.testing.assert_array_equal(estimator.outlier_probability_, model.outlier_probability().numpy())
        np.testing.assert_array_equal(estimator.predict(X), model.posterior(torch.tensor(X)).mean.numpy())


ALONE = {
    "kernel": RBF() + WhiteKernel(),
    "mean": "robust_linear",
    "weight": ["imq", "se", "constant", InverseMultiquadric(epsilon=0.1)],
    "outputs": "correlated",
    "local_noise": False,
    "n_restarts": 1,
    "normalize": False,
    "priors": None,
    "max_iter": 500,
    "fit_rows": 30,
    "progress": [lambda evaluations, best: None],
    "random_state": 3,
}
CHANGES = [(name, value) for name, values in ALONE.items() for value in np.atleast_1d(np.array(values, dtype=object))]


@spoilt
@pytest.mark.parametrize(("name", "value"), CHANGES, ids=[f"{name}={value!r:.20}" for name, value in CHANGES])
def test_any_parameter_may_be_changed_alone(name, value):
    X, y, f = make_series()
    model = RCGPRegressor(**{name: value}).fit(X, y)
    assert np.abs(model.predict(X) - f).mean() < 1.0


def test_every_parameter_is_changed_here():
    assert ALONE.keys() == RCGPRegressor().get_params().keys()


@pytest.mark.parametrize("given", [{"n_restarts": np.int64(0)}, {"weight": np.str_("learned")}])
def test_parameters_may_be_numpy_scalars(given):
    X, y, _ = make_series()
    assert isinstance(RCGPRegressor(**given).fit(X, y).models_[0].weight, LawWeight)


@pytest.mark.parametrize("mean", ["median", "robust_linear", "zero"])
def test_one_absurd_value_is_flagged_without_normalisation(mean):
    X, y, f = make_series(outliers=())
    y[33] = 1e6
    model = RCGPRegressor(normalize=False, mean=mean).fit(X, y)
    assert model.outliers_[33]
    assert np.abs(model.predict(X) - f).mean() < 0.1


@spoilt
@pytest.mark.parametrize("weight", ["learned", "imq", "constant"])
def test_flags_follow_the_documented_rule(weight):
    X, y, _ = make_series(size=2.0)
    y[3] += 0.8  # not beyond doubt
    model = RCGPRegressor(weight=weight).fit(X, y)
    probability = model.outlier_probability_
    assert ((probability >= 0) & (probability <= 1)).all()
    np.testing.assert_array_equal(model.outliers_, probability > 0.5)
    np.testing.assert_allclose(model.outlier_scores_, (y - model.loo_mean_) / model.loo_std_)
    assert {5, 30, 60} <= set(np.flatnonzero(model.outliers_)) <= {3, 5, 30, 60}


@spoilt
@pytest.mark.parametrize("weight", ["imq", "constant"])
def test_a_weight_that_is_given_has_a_law_that_only_flags_rows(weight):
    X, y, _ = make_series(size=2.0)
    model = RCGPRegressor(weight=weight).fit(X, y)
    assert not model.noise_law_.is_normal
    assert model.models_[0].noise_law.is_normal
    mean, std = model.predict(X, return_std=True, include_noise=True)
    lower, upper = model.predict_interval(X)
    np.testing.assert_allclose(lower, mean - 1.959963984540054 * std)
    np.testing.assert_allclose(upper, mean + 1.959963984540054 * std)


@pytest.mark.parametrize("size", [1e2, slow(1e8), slow(1e150), 1e300])
def test_an_outlier_of_any_size_has_the_same_influence(size):
    X, y, _ = make_series(outliers=(5, 30))
    y[30] = 10.0
    expected = RCGPRegressor().fit(X, y).predict(X)
    for sign in (1.0, -1.0):
        y[30] = sign * size
        model = RCGPRegressor().fit(X, y)
        np.testing.assert_allclose(model.predict(X), expected, atol=0.02)
        assert model.outliers_[30]


def test_the_order_of_rows_does_not_matter():
    X, y, _ = make_series()
    order = np.random.default_rng(0).permutation(80)
    one, other = RCGPRegressor().fit(X, y), RCGPRegressor().fit(X[order], y[order])
    np.testing.assert_allclose(other.predict(X), one.predict(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.weights_, one.weights_[order], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(other.noise_law_.shares, one.noise_law_.shares, rtol=1e-4)


def test_all_rows_are_weighted_after_a_fit_to_a_sample():
    X, y, f = make_series(n=200, outliers=(5, 30, 60, 100, 101, 160))
    model = RCGPRegressor(fit_rows=80, random_state=0).fit(X, y)
    np.testing.assert_array_equal(np.flatnonzero(model.outliers_), [5, 30, 60, 100, 101, 160])
    assert model.weights_.shape == (200,)
    assert np.abs(model.predict(X) - f).mean() < 0.06


def test_all_rows_are_diagnosed_by_the_samples_hyperparameters_and_law():
    X, y, _ = make_series(n=200, outliers=(5, 30, 60, 100, 101, 160))
    all_rows = RCGPRegressor(fit_rows=80, random_state=0).fit(X, y)
    sample = np.sort(np.random.RandomState(0).choice(200, 80, replace=False))
    alone = RCGPRegressor().fit(X[sample], y[sample])
    assert all_rows.noise_variance_ == alone.noise_variance_
    np.testing.assert_array_equal(all_rows.lengthscales_, alone.lengthscales_)
    assert all_rows.noise_law_ == alone.noise_law_
    (model,) = all_rows.models_
    assert model.weight.mean.shape == (200,)
    centre = (model.weight.mean + model.mean(model.train_X)).detach().numpy()
    np.testing.assert_allclose(centre, all_rows.loo_mean_, atol=1e-3)  # from all other rows, not from the sample


def test_rows_of_sample_weight_zero_are_diagnosed():
    X, y, _ = make_series(outliers=(10, 20))
    counted = np.ones(len(y))
    counted[[20, 21]] = 0.0
    model = RCGPRegressor().fit(X, y, sample_weight=counted)
    assert model.weights_[20] < 1e-3
    assert model.weights_[21] > 0.8
    np.testing.assert_array_equal(np.flatnonzero(model.outliers_), [10, 20])


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_clean_data_have_few_flags(seed):
    X, y, _ = make_series(n=150, seed=seed, outliers=())
    assert RCGPRegressor().fit(X, y).outliers_.sum() <= 1


@quick  # the best fit has no noise
def test_noiseless_data_have_no_flags():
    X = np.linspace(0, 5, 40)[:, None]
    with pytest.warns(NoiseLawWarning, match="all observations have the same value, 3"):
        assert not RCGPRegressor().fit(X, 3.0 + 0.0 * X[:, 0]).outliers_.any()
    with pytest.warns(NoiseLawWarning, match="nearly all rows that are not flagged have the same value, 3"):
        model = RCGPRegressor().fit(X, np.where(np.arange(40) == 11, 4.0, 3.0))
    assert np.flatnonzero(model.outliers_).tolist() == [11]
    assert np.isfinite(model.outlier_scores_).all()


@pytest.mark.parametrize(("unit", "offset"), [(1e-9, 0.0), (1e8, 3e9)])
def test_results_are_in_the_users_units(unit, offset):
    X, y, _ = make_series()
    one = RCGPRegressor().fit(X, y)
    other = RCGPRegressor().fit(1e5 * X + 7.0, unit * y + offset)
    new = np.linspace(0, 10, 7)[:, None]
    mean, std = one.predict(new, return_std=True)
    scaled_mean, scaled_std = other.predict(1e5 * new + 7.0, return_std=True)
    np.testing.assert_allclose((scaled_mean - offset) / unit, mean, atol=1e-3)
    np.testing.assert_allclose(scaled_std / unit, std, rtol=1e-2)
    assert other.noise_variance_ == pytest.approx(unit**2 * one.noise_variance_, rel=1e-2)
    assert other.lengthscales_ == pytest.approx(1e5 * one.lengthscales_, rel=1e-2)
    np.testing.assert_array_equal(other.outliers_, one.outliers_)


def test_outliers_do_not_change_the_units():
    """One absurd value in y, one in X: starting values and priors stay where the other rows put them."""
    X, y, _ = make_series()
    clean = RCGPRegressor().fit(X, y)
    y[3] = 1e12
    dirty = RCGPRegressor().fit(X, y)
    assert dirty.lengthscales_ == pytest.approx(clean.lengthscales_, rel=0.1)
    assert dirty.noise_variance_ == pytest.approx(clean.noise_variance_, rel=0.2)
    assert dirty.outliers_[3]
    fits = []
    for far in (-1e2, -1e6, -1e12):  # a row on its own says something of the output scale, however far it is
        X[4] = far
        fits.append(RCGPRegressor().fit(X, y))
    for other in fits[1:]:
        assert other.lengthscales_ == pytest.approx(fits[0].lengthscales_, rel=1e-3)
        assert other.noise_variance_ == pytest.approx(fits[0].noise_variance_, rel=1e-3)
        assert other.outliers_[3]


@few_rows
def test_weak_priors_keep_a_fit_from_calling_everything_noise():
    """Few points, each far from the next: without priors the optimum is a flat function and all noise."""
    X = np.arange(8.0)[:, None]
    y = np.sin(0.8 * X[:, 0])
    bare, weak = (RCGPRegressor(weight="constant", priors=p).fit(X, y) for p in (None, "weak"))
    assert weak.noise_variance_ < 0.05
    assert len(list(bare.models_[0].named_priors())) == 0
    names = {name for name, *_ in weak.models_[0].named_priors()}
    assert names == {"noise_prior", "kernel.outputscale_prior", "kernel.base_kernel.lengthscale_prior"}


def test_the_lengthscale_prior_is_botorchs_for_inputs_in_the_unit_cube():
    X = np.random.default_rng(0).uniform(size=(300, 3))
    model = build_model(RCGPRegressor(), torch.tensor(X), torch.tensor(X[:, 0]), None)
    location = model.kernel.base_kernel.lengthscale_prior.loc
    np.testing.assert_allclose(location.numpy(), np.full((1, 3), np.sqrt(2) + 0.5 * np.log(3)), atol=0.15)
    np.testing.assert_allclose(model.kernel.base_kernel.lengthscale_prior.scale.numpy(), np.sqrt(3))


def test_several_outputs_equal_separate_estimators():
    X, y, _ = make_series()
    Y = np.stack([y, 100.0 - 3.0 * y], axis=1)
    both, alone = RCGPRegressor().fit(X, Y), RCGPRegressor().fit(X, Y[:, 1])
    assert both.predict(X).shape == both.weights_.shape == both.outliers_.shape == both.loo_std_.shape == (80, 2)
    np.testing.assert_allclose(both.predict(X)[:, 1], alone.predict(X), rtol=1e-6)
    mean, std = both.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == (5, 2)
    assert both.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert both.sample_y(X[:5], 4).shape == (5, 2, 4)
    assert both.log_predictive_density(X, Y).shape == (80, 2)
    assert both.predict_quantiles(X[:5], 0.3).shape == both.noise_std(X[:5]).shape == (5, 2)
    assert both.predict_quantiles(X[:5], [0.1, 0.5, 0.9]).shape == (5, 2, 3)
    for ours, theirs in zip(both.predict_interval(X), alone.predict_interval(X), strict=True):
        np.testing.assert_allclose(ours[:, 1], theirs, rtol=1e-6)
    assert both.noise_variance_.shape == (2,)
    assert len(both.kernel_) == len(both.fit_report_) == len(both.models_) == 2
    assert len(both.noise_law_) == len(both.doubts_) == 2
    assert 0.0 < both.score(X, Y) < 1.0


def test_one_column_of_y_is_one_output():
    X, y, _ = make_series()
    np.testing.assert_array_equal(RCGPRegressor().fit(X, y[:, None]).predict(X), RCGPRegressor().fit(X, y).predict(X))


def test_standard_deviations_are_the_diagonal_of_the_covariance():
    X, y, _ = make_series()
    model = RCGPRegressor().fit(X, y)
    new = np.linspace(-2, 12, 20)[:, None]
    for noise in (False, True):
        _, std = model.predict(new, return_std=True, include_noise=noise)
        _, cov = model.predict(new, return_cov=True, include_noise=noise)
        np.testing.assert_allclose(std**2, np.diag(cov), rtol=1e-6, atol=1e-12)
    difference = model.predict(new, return_std=True, include_noise=True)[1] ** 2
    difference -= model.predict(new, return_std=True)[1] ** 2
    np.testing.assert_allclose(difference, model.noise_std(new) ** 2, rtol=1e-9)
    with pytest.raises(RuntimeError, match="At most one"):
        model.predict(new, return_std=True, return_cov=True)


def test_samples_have_the_moments_of_the_prediction():
    X, y, _ = make_series()
    model = RCGPRegressor().fit(X, y)
    new = np.array([[1.0], [2.0], [20.0]])
    for noise in (False, True):
        mean, cov = model.predict(new, return_cov=True, include_noise=noise)
        samples = model.sample_y(new, 20_000, random_state=1, include_noise=noise)
        scale = np.sqrt(np.diag(cov))
        assert (np.abs(samples.mean(axis=1) - mean) < 5 * scale / np.sqrt(20_000)).all()
        np.testing.assert_allclose(np.cov(samples) / np.outer(scale, scale), cov / np.outer(scale, scale), atol=0.05)
    np.testing.assert_array_equal(model.sample_y(new, 3), model.sample_y(new, 3))
    assert not np.array_equal(model.sample_y(new, 3), model.sample_y(new, 3, random_state=5))


def test_the_predictive_density_of_a_plain_gp_is_the_normal_one():
    X, y, _ = make_series()
    model = RCGPRegressor(weight="constant").fit(X, y)
    mean, std = model.predict(X, return_std=True, include_noise=True)
    np.testing.assert_allclose(model.log_predictive_density(X, y), scipy.stats.norm(mean, std).logpdf(y), rtol=1e-10)
    with pytest.raises(ValueError, match=r"y must have the shape \(80,\)"):
        model.log_predictive_density(X, y[:5])


@spoilt
def test_whole_sample_weights_count_like_repeated_rows():
    """With hyperparameters fixed and trust in every row; fitted ones see a repeated row's twin."""
    X, y, _ = make_series(outliers=())
    counts = np.arange(80) % 4
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed") + WhiteKernel(0.02, "fixed")
    settings = {"kernel": kernel, "mean": "zero", "normalize": False, "weight": "constant"}
    weighted = RCGPRegressor(**settings).fit(X, y, sample_weight=counts)
    repeated = RCGPRegressor(**settings).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    new = np.linspace(0, 10, 20)[:, None]
    for a, b in zip(weighted.predict(new, return_std=True), repeated.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)


@pytest.mark.parametrize("factor", [1e-6, 1e4])
def test_equal_sample_weights_change_nothing(factor):
    X, y, _ = make_series()
    plain, weighted = RCGPRegressor().fit(X, y), RCGPRegressor().fit(X, y, sample_weight=np.full(80, factor))
    np.testing.assert_allclose(weighted.predict(X), plain.predict(X), atol=1e-3)
    np.testing.assert_allclose(weighted.loo_std_, plain.loo_std_, rtol=1e-2)
    assert weighted.noise_variance_ == pytest.approx(factor * plain.noise_variance_, rel=1e-2)


def test_rows_of_no_weight_are_left_out_but_diagnosed():
    X, y, _ = make_series()
    keep = np.arange(80) % 3 > 0
    weighted, fewer = RCGPRegressor().fit(X, y, sample_weight=keep), RCGPRegressor().fit(X[keep], y[keep])
    np.testing.assert_array_equal(weighted.predict(X), fewer.predict(X))
    np.testing.assert_array_equal(weighted.weights_[keep], fewer.weights_)
    mean, std = fewer.predict(X[~keep], return_std=True, include_noise=True)
    np.testing.assert_allclose(weighted.loo_mean_[~keep], mean)
    np.testing.assert_allclose(weighted.loo_std_[~keep], std)
    assert weighted.outliers_[[5, 30, 60]].tolist() == [True, True, True]  # two had no weight


def test_a_column_that_is_constant_in_the_sample_still_counts():
    random = np.random.default_rng(0)
    X = np.column_stack([random.uniform(0, 6, 600), np.arange(600) < 6])
    y = np.sin(X[:, 0]) + 3.0 * X[:, 1] + 0.1 * random.standard_normal(600)
    seeds = (seed for seed in range(50) if np.random.RandomState(seed).choice(600, 60, replace=False).min() > 5)
    model = RCGPRegressor(fit_rows=60, random_state=next(seeds)).fit(X, y)
    assert model.predict([[1.5, 1.0]]) == pytest.approx(np.sin(1.5) + 3.0, abs=0.3)
    assert not model.outliers_[:6].any()


def test_without_outliers_a_missing_observation_has_no_weight():
    X, y, _ = make_series(outliers=())
    y[7] = np.nan
    model = RCGPRegressor().fit(X, y, sample_weight=np.isfinite(y))
    assert np.flatnonzero(np.isnan(model.weights_)).tolist() == [7]


@quick
def test_an_observation_may_be_missing_in_a_row_of_no_weight():
    X, y, _ = make_series()
    y[[7, 30]] = np.nan, np.inf
    keep = np.isfinite(y)
    with pytest.raises(ValueError, match="y contains NaN in row 7"):
        RCGPRegressor().fit(X, y, sample_weight=np.where(np.arange(80) == 30, 0.0, 1.0))
    model, fewer = RCGPRegressor().fit(X, y, sample_weight=keep), RCGPRegressor().fit(X[keep], y[keep])
    np.testing.assert_array_equal(model.predict(X), fewer.predict(X))
    assert np.isfinite(model.loo_mean_).all()
    for values in (model.weights_, model.outlier_scores_, model.outlier_probability_):
        np.testing.assert_array_equal(np.isfinite(values), keep)
    assert not model.outliers_[~keep].any()
    several = RCGPRegressor(**QUICK).fit(X, np.stack([y, X[:, 0]], axis=1), sample_weight=keep)
    np.testing.assert_array_equal(np.isfinite(several.outlier_scores_), np.stack([keep, np.ones(80, bool)], axis=1))


@quick
@spoilt
@pytest.mark.parametrize("arguments", [{}, {"fit_rows": 20, "random_state": 0}, {"normalize": False}])
def test_a_constant_mean_is_the_sample_mean(arguments):
    X, y, _ = make_series()
    model = RCGPRegressor(mean="constant", **QUICK, **arguments).fit(X, y).models_[0]
    assert model.mean(torch.tensor(X))[0].item() == pytest.approx(y.mean())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(80), "at least one non-zero"),
        (-np.ones(80), "[Nn]egative"),
        (np.full(80, np.nan), "NaN"),
        (np.ones(3), "80|3"),
    ],
)
def test_bad_sample_weights_are_refused(weights, message):
    X, y, _ = make_series()
    with pytest.raises(ValueError, match=message):
        RCGPRegressor().fit(X, y, sample_weight=weights)


@spoilt
def test_hyperparameters_of_a_sample_give_a_posterior_of_all_rows():
    X, y, f = make_series(n=300, size=2.0)
    weight = InverseMultiquadric(trainable=True)
    settings = {"fit_rows": 100, "random_state": 0, "weight": weight}
    model = RCGPRegressor(**settings).fit(X, y)
    (inner,) = model.models_
    assert len(inner.train_y) == len(model.weights_) == 300
    assert np.abs(model.predict(X) - f).mean() < 0.1
    assert model.fit_report_.hyperparameters["noise"][0] == pytest.approx(model.noise_variance_)
    # A threshold that was fitted is kept, too.
    assert inner.hyperparameters()["weight.c"].item() == pytest.approx(model.fit_report_.hyperparameters["weight.c"][0])
    assert {name for name, *_ in inner.named_priors()} >= {"noise_prior"}
    again = RCGPRegressor(**settings).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))


@spoilt
@pytest.mark.parametrize("weight", ["learned", "imq"])
def test_restarts_are_seeded_and_no_worse(weight):
    X, y, _ = make_series()
    one, two = (RCGPRegressor(weight=weight, n_restarts=2, random_state=4).fit(X, y) for _ in range(2))
    assert one.fit_report_.starts == two.fit_report_.starts
    assert len(one.fit_report_.starts) == (5 if weight == "learned" else 3)  # quiet and smooth ones, too
    assert one.fit_report_.value >= RCGPRegressor(weight=weight).fit(X, y).fit_report_.value


@pytest.mark.parametrize("units", [(1e-3, 1.0), (1.0, 1e3)])
def test_without_normalisation_the_default_kernel_still_learns_in_any_units(units):
    X, y, f = make_series()
    model = RCGPRegressor(normalize=False).fit(units[0] * X, units[1] * y)
    assert np.abs(model.predict(units[0] * X) - units[1] * f).mean() < 0.1 * units[1]


def test_without_normalisation_a_given_kernel_is_not_scaled():
    X, y, _ = make_series()
    model = build_model(RCGPRegressor(RBF(), normalize=False), torch.tensor(X), torch.tensor(1e3 * y), None)
    assert model.kernel(torch.tensor(X[:1])).to_dense().item() == pytest.approx(1.0)


def test_lengthscales_of_composed_kernels():
    first = gpytorch.kernels.RBFKernel(ard_num_dims=2, active_dims=[0, 2])
    second = gpytorch.kernels.PeriodicKernel(active_dims=[1])
    kernel = gpytorch.kernels.ScaleKernel(first) + second
    first.lengthscale, second.lengthscale = torch.tensor([[2.0, 3.0]]), torch.tensor(4.0)
    np.testing.assert_allclose(lengthscales(kernel, 3), [[2.0, np.inf, 3.0], [np.inf, 2.0, np.inf]], rtol=1e-6)
    outer = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2), active_dims=[1, 2])
    outer.base_kernel.lengthscale = torch.tensor([[2.0, 3.0]])
    np.testing.assert_allclose(lengthscales(outer, 3), [np.inf, 2.0, 3.0], rtol=1e-6)
    assert lengthscales(gpytorch.kernels.LinearKernel(), 3).shape == (0, 3)


@quick
def test_the_fitted_lengthscales_are_those_of_the_fitted_kernel():
    X = np.random.default_rng(0).normal(size=(30, 3))
    kernel = gpytorch.kernels.RBFKernel(active_dims=[1]) + gpytorch.kernels.LinearKernel()
    fitted = RCGPRegressor(kernel=kernel, **QUICK).fit(X, X[:, 0])
    np.testing.assert_array_equal(fitted.lengthscales_, lengthscales(fitted.kernel_, 3))
    assert np.isinf(fitted.lengthscales_).tolist() == [True, False, True]


def test_a_mean_may_be_trained_or_a_function():
    X, y, _ = make_series(outliers=())
    trained = RCGPRegressor(mean=gpytorch.means.LinearMean(1)).fit(X, y + 5.0 * X[:, 0])
    assert trained.predict([[30.0]]) == pytest.approx(150.0, rel=0.2)
    known = RCGPRegressor(mean=lambda x: 5.0 * x[..., 0], weight=Constant()).fit(X, y + 5.0 * X[:, 0])
    assert known.predict([[30.0]]) == pytest.approx(150.0, abs=2.0)


@few_rows
@pytest.mark.parametrize("weight", ["learned", "imq", "constant"])
def test_tiny_tables_work(weight):
    model = RCGPRegressor(weight=weight)
    assert model.fit([[1.0]], [2.0]).predict([[1.0]]) == pytest.approx(2.0)
    assert model.fit([[1.0], [1.0]], [2.0, 3.0]).predict([[1.0]]).shape == (1,)


@few_rows
@pytest.mark.filterwarnings("ignore:.*count less than half", "ignore:.*outside the range of floating-point numbers")
@pytest.mark.parametrize("y", [[2.0, 3.0, 1e300], [1e300, -1e300], [1e300], [0.0, 0.0, 1e-300], [5.0, 5.0, 5.0]])
def test_absurd_values_in_tiny_tables_give_finite_answers(y):
    X = np.arange(float(len(y)))[:, None]
    model = RCGPRegressor().fit(X, y)
    for answer in (*model.predict(X, return_std=True), *model.predict_interval(X), model.weights_, model.loo_std_):
        assert np.isfinite(answer).all()


def test_the_package_imports_the_estimator_lazily():
    assert {"RCGPRegressor", "load"} <= set(dir(rcgp))
    assert rcgp.RCGPRegressor is RCGPRegressor
    with pytest.raises(AttributeError, match="no attribute 'Regressor'"):
        rcgp.Regressor  # noqa: B018


@spoilt
def test_a_fixed_noise_stays_fixed_in_a_fit_to_a_sample():
    X, y, _ = make_series()
    model = RCGPRegressor(RBF() + WhiteKernel(0.1, "fixed"), fit_rows=40, normalize=False, random_state=0).fit(X, y)
    assert model.noise_variance_ == pytest.approx(0.1)
    assert not model.models_[0].raw_noise.requires_grad
    bounded = RCGPRegressor(RBF() + WhiteKernel(0.1, (0.05, 0.2)), fit_rows=40, normalize=False, random_state=0).fit(
        X, y
    )
    assert float(bounded.models_[0].raw_noise_constraint.upper_bound) == pytest.approx(0.2)


def test_a_failed_fit_names_the_row_of_the_table():
    """Not that of the sample, nor that among the rows that carry weight."""
    X, y, _ = make_series()
    y[21] = 1e300
    weights = np.where(np.arange(80) < 10, 0.0, 1.0)
    seed = next(s for s in range(20) if 11 in np.random.RandomState(s).choice(70, 60, replace=False))
    for arguments in ({}, {"fit_rows": 60, "random_state": seed}):
        with pytest.raises(rcgp.FitError, match="Look at row 21"):
            RCGPRegressor(weight="imq", **arguments).fit(X, y, sample_weight=weights)
        assert RCGPRegressor(**arguments).fit(X, y, sample_weight=weights).outliers_[21]


def with_absurd_input(size):
    """A series with an absurd input in row 21, beside a rare indicator, whose median distance is zero."""
    X, y, _ = make_series()
    frame = pd.DataFrame({"rare": np.where(np.arange(80) == 50, 1.0, 0.0), "length": X[:, 0]})
    frame.loc[21, "length"] = size
    return frame, y


@spoilt
@pytest.mark.parametrize(
    ("weight", "size", "few"),
    [
        ("learned", -1e300, False),
        ("learned", 1e12, True),
        ("imq", 1e12, False),
        ("imq", -1e300, True),
        slow("learned", 1e12, False),
        slow("learned", -1e300, True),
        slow("imq", -1e300, False),
        slow("imq", 1e12, True),
    ],
)
def test_an_absurd_input_changes_predictions_at_its_own_row_only(weight, size, few):
    rows = slice(10, 26) if few else slice(None)
    frame, y = with_absurd_input(size)
    frame, y = frame[rows], y[rows]
    good = np.asarray(frame.index != 21)
    model, without = RCGPRegressor(weight=weight).fit(frame, y), RCGPRegressor(weight=weight).fit(frame[good], y[good])
    np.testing.assert_allclose(model.predict(frame[good]), without.predict(frame[good]), atol=0.05)
    # Nor does one that is asked for together with good ones.
    np.testing.assert_allclose(without.predict(frame)[good], without.predict(frame[good]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weight", ["learned", "imq"])
def test_a_fit_that_an_input_prevents_names_its_row_and_column(weight):
    frame, y = with_absurd_input(1e300)
    weights = np.where(np.arange(80) < 10, 0.0, 1.0)
    clue = r"Look at row 21, whose column %s is 1e\+300, while half of that column lies within"
    model = RCGPRegressor(kernel=RationalQuadratic() + WhiteKernel(), weight=weight)  # which forgets no distance
    with pytest.raises(rcgp.FitError, match=clue % "'length'") as caught:
        model.fit(frame, y, sample_weight=weights)
    assert caught.value.row == 21
    with pytest.raises(rcgp.FitError, match=clue % "1 of X"):
        model.fit(frame.to_numpy(), y)


@quick
def test_a_kernel_that_an_absurd_input_spoils_raises_a_warning():
    frame, y = with_absurd_input(1e9)
    weights = np.where(np.arange(80) < 10, 0.0, 1.0)
    message = r"look at row 21, whose column 'length' is 1e\+09, while half of that column .* leave the row out"
    kernel = RationalQuadratic() + WhiteKernel()
    with pytest.warns(UserWarning, match=message):
        RCGPRegressor(kernel=kernel, **QUICK).fit(frame, y, sample_weight=weights)


def test_an_input_with_a_long_tail_is_not_blamed_for_an_absurd_observation():
    X, y, _ = make_series()
    X = np.exp(8.0 * np.random.default_rng(0).standard_normal(X.shape))  # one is 1e6 times as far as most
    y[7] = 1e300
    with pytest.raises(rcgp.FitError, match="Look at row 7, which lies farthest"):
        RCGPRegressor(weight="imq").fit(X, y)


@quick
@pytest.mark.parametrize("dtype", [">f8", np.longdouble, np.float32, np.int64, object])
def test_numbers_of_any_type_are_accepted(dtype):
    X, y, _ = make_series()
    model = RCGPRegressor(**QUICK).fit(X, (10 * y).round().astype(dtype))
    np.testing.assert_allclose(model.predict(X), RCGPRegressor(**QUICK).fit(X, (10 * y).round()).predict(X))
    bad = (10 * y).round().astype(object)
    bad[7] = None
    with pytest.raises(ValueError, match=r"y.*NaN"):
        RCGPRegressor().fit(X, bad)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_rows_of_a_stuck_sensor_are_judged_by_the_others():
    """As in the sharp bits: a stuck sensor is fitted, unless its rows have weight 0."""
    random = np.random.default_rng(2)
    X = np.linspace(0, 4 * np.pi, 200)[:, None]
    f = np.sin(X[:, 0])
    y = f + 0.1 * random.standard_normal(200)
    y[85:115] = y[85]
    same = np.diff(y) == 0
    stuck = np.r_[same, False] | np.r_[False, same]
    assert np.flatnonzero(stuck).tolist() == list(range(85, 115))
    unweighted = RCGPRegressor().fit(X, y)
    weighted = RCGPRegressor().fit(X, y, sample_weight=~stuck)
    off = np.abs(y - f) > 1.0
    assert unweighted.outliers_[off].sum() < 0.2 * off.sum()
    assert weighted.outliers_[off].mean() > 0.9
    assert not weighted.outliers_[~stuck].any()
    assert np.abs(weighted.predict(X) - f)[stuck].mean() < 0.1 < np.abs(unweighted.predict(X) - f)[stuck].mean()


def test_tensors_are_fitted_without_a_warning_and_as_arrays_are():
    X, y = np.linspace(0, 6, 20)[:, None], np.sin(np.linspace(0, 6, 20))
    expected = RCGPRegressor().fit(X, y).predict(X)
    found = RCGPRegressor().fit(torch.tensor(X), torch.tensor(y)).predict(torch.tensor(X))
    np.testing.assert_array_equal(found, expected)
