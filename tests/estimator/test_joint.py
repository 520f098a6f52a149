"""Several outputs in the estimator: correlated ones in one model, and missing cells in both kinds."""

from __future__ import annotations

import copy
import pickle
import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import cross_val_score

from rcgp import MultiOutputRCGP, RCGPRegressor, load
from rcgp.estimator import SavedModelError

pytestmark = pytest.mark.filterwarnings("ignore::rcgp.estimator.output.NoiseLawWarning")

NEW = np.linspace(0.5, 9.5, 7)[:, None]


def make_data(n=50, missing=0.0, seed=0):
    """A table of three outputs that go together, with bad and missing cells: X, Y, functions, which are bad."""
    random = np.random.default_rng(seed)
    X = np.sort(random.uniform(0, 10, (n, 1)), axis=0)
    F = np.sin(X) * np.array([1.0, -2.0, 0.5]) + np.array([0.0, 5.0, 100.0])
    Y = F + 0.05 * random.standard_normal(F.shape)
    bad = random.random(F.shape) < 0.08
    Y[bad] += random.choice([-1, 1], bad.sum()) * random.uniform(1, 4, bad.sum())
    gone = random.random(F.shape) < missing
    Y[gone] = np.nan
    return X, Y, F, bad & ~gone


@pytest.fixture(scope="module")
def fitted():
    X, Y, F, bad = make_data(missing=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RCGPRegressor(outputs="correlated").fit(X, Y), X, Y, F, bad


def test_cells_have_weights_probabilities_and_flags(fitted):
    model, X, Y, F, bad = fitted
    missing = np.isnan(Y)
    for name in ("weights_", "outlier_probability_", "outlier_scores_"):
        values = getattr(model, name)
        assert values.shape == Y.shape
        np.testing.assert_array_equal(np.isnan(values), missing)
    assert model.outliers_.shape == model.loo_mean_.shape == model.loo_std_.shape == Y.shape
    assert not model.outliers_[missing].any()
    assert np.isfinite(model.loo_mean_).all()
    assert (model.outliers_ == bad)[~missing].mean() > 0.97
    assert np.abs(model.predict(X) - F).mean() < 0.05


def test_predictions_are_those_of_the_model(fitted):
    model, *_ = fitted
    (joint,) = model.models_
    assert isinstance(joint, MultiOutputRCGP)
    with torch.no_grad():
        posterior = joint.posterior(torch.from_numpy(NEW))
    mean, std = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, posterior.mean)
    np.testing.assert_allclose(std, posterior.variance.sqrt())
    _, cov = model.predict(NEW, return_cov=True)
    assert cov.shape == (7, 7, 3)
    full = posterior.covariance_matrix.numpy().reshape(7, 3, 7, 3)
    np.testing.assert_allclose(cov[..., 1], full[:, 1, :, 1], atol=1e-12)
    lower, upper = model.predict_interval(NEW)
    assert ((lower < mean) & (mean < upper)).all()
    assert model.predict_quantiles(NEW, [0.1, 0.9]).shape == (7, 3, 2)
    assert model.noise_std(NEW).shape == (7, 3)
    assert model.log_predictive_density(NEW, mean).shape == (7, 3)
    samples = model.sample_y(NEW, n_samples=2000)
    assert samples.shape == (7, 3, 2000)
    np.testing.assert_allclose(samples.mean(axis=-1), mean, atol=0.01)
    found = np.corrcoef(samples[3, 0], samples[3, 1])[0, 1]  # outputs are drawn together
    assert found == pytest.approx(full[3, 0, 3, 1] / np.sqrt(full[3, 0, 3, 0] * full[3, 1, 3, 1]), abs=0.08)


def test_what_is_fitted(fitted):
    model, *_ = fitted
    assert model.n_outputs_ == 3
    assert len(model.noise_law_) == len(model.doubts_) == len(model.noise_variance_) == 3
    assert model.lengthscales_.shape == (1,)
    assert model.output_correlation_[0, 1] < -0.9
    assert "noise law" in str(model.fit_report_)
    assert isinstance(model.n_iter_, int)


def test_a_model_is_the_same_after_a_round_trip(fitted, tmp_path):
    model, _X, *_ = fitted
    model.save(tmp_path / "model.rcgp")
    for other in (load(tmp_path / "model.rcgp"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(NEW), model.predict(NEW))
        np.testing.assert_array_equal(other.predict_interval(NEW), model.predict_interval(NEW))
        for name in ("weights_", "outliers_", "outlier_probability_", "loo_mean_", "loo_std_", "output_correlation_"):
            np.testing.assert_array_equal(getattr(other, name), getattr(model, name))
        assert other.noise_law_ == model.noise_law_
        assert other.doubts_ == model.doubts_
        assert other.fit_report_ == model.fit_report_
        np.testing.assert_array_equal(other.models_[0].observed, model.models_[0].observed)


def test_local_noise_of_outputs_is_kept(tmp_path):
    random = np.random.default_rng(0)
    X = np.sort(random.uniform(0, 10, (120, 1)), axis=0)
    Y = np.sin(X) * np.array([1.0, 2.0]) + 0.02 * np.exp(0.4 * X) * random.standard_normal((120, 2))
    model = RCGPRegressor(outputs="correlated").fit(X, Y)
    assert model.fit_report_.local_noise
    std = model.noise_std(NEW)
    assert (std[-1] > 2.0 * std[0]).all()
    model.save(tmp_path / "model.rcgp")
    np.testing.assert_array_equal(load(tmp_path / "model.rcgp").noise_std(NEW), std)


def test_a_file_with_other_outputs_is_refused(fitted, tmp_path):
    from rcgp.saving.archive import read_archive, write_archive

    model, *_ = fitted
    model.save(tmp_path / "model.rcgp")
    description, tensors = read_archive(tmp_path / "model.rcgp")
    description["outputs"] = description["outputs"][:2]
    kept = {key: value for key, value in tensors.items() if not key.startswith("outputs.2")}
    write_archive(tmp_path / "other.rcgp", description, kept)
    with pytest.raises(SavedModelError, match="its outputs do not fit together"):
        load(tmp_path / "other.rcgp")


@pytest.mark.parametrize("weight", ["constant", "imq"])
def test_other_weights(weight):
    X, Y, _F, _bad = make_data(30, missing=0.2)
    model = RCGPRegressor(outputs="correlated", weight=weight).fit(X, Y)
    assert (model.weights_[~np.isnan(Y)] == 1.0).all() == (weight == "constant")
    assert model.outliers_.shape == Y.shape
    assert len(model.noise_law_) == 3


def test_independent_outputs_may_miss_cells():
    X, Y, _F, _bad = make_data(60, missing=0.3)
    model = RCGPRegressor().fit(X, Y)
    for output in range(3):
        observed = ~np.isnan(Y[:, output])
        single = RCGPRegressor().fit(X[observed], Y[observed, output])
        np.testing.assert_allclose(model.predict(NEW)[:, output], single.predict(NEW), rtol=1e-10)
        np.testing.assert_allclose(model.weights_[observed, output], single.weights_, rtol=1e-10)
        assert np.isnan(model.weights_[~observed, output]).all()
    assert not hasattr(model, "output_correlation_")


def test_correlated_outputs_of_one_column_are_one_output():
    X, Y, *_ = make_data(30)
    one, plain = RCGPRegressor(outputs="correlated").fit(X, Y[:, 0]), RCGPRegressor().fit(X, Y[:, 0])
    np.testing.assert_array_equal(one.predict(NEW), plain.predict(NEW))


def test_rows_of_weight_zero_do_not_count():
    X, Y, *_ = make_data(40, missing=0.1)
    weights = np.ones(40)
    weights[5] = 0.0
    Y[5, 0] = 1e6
    others = np.arange(40) != 5
    model = RCGPRegressor(outputs="correlated").fit(X, Y, sample_weight=weights)
    without = RCGPRegressor(outputs="correlated").fit(X[others], Y[others])
    np.testing.assert_allclose(model.predict(NEW), without.predict(NEW), rtol=1e-6)
    assert model.outliers_[5, 0]
    doubled = RCGPRegressor(outputs="correlated").fit(X[others], Y[others], sample_weight=np.full(39, 2.0))
    np.testing.assert_allclose(doubled.predict(NEW), without.predict(NEW), atol=2e-3)


def test_hyperparameters_on_some_rows():
    X, Y, F, bad = make_data(60, missing=0.2)
    model = RCGPRegressor(outputs="correlated", fit_rows=40, random_state=0).fit(X, Y)
    assert model.weights_.shape == Y.shape
    assert np.abs(model.predict(X) - F).mean() < 0.1
    assert (model.outliers_ == bad)[~np.isnan(Y)].mean() > 0.95


def test_an_output_that_is_rarely_observed_is_in_the_sample():
    X, Y, *_ = make_data(60)
    Y[:, 2] = np.where(np.arange(60) % 20 == 3, Y[:, 2], np.nan)  # three cells
    for seed in range(3):
        model = RCGPRegressor(outputs="correlated", fit_rows=15, max_iter=20, random_state=seed, weight="constant")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, Y)
        assert np.isfinite(model.predict(NEW)).all()


def test_scikit_learns_kernels_and_data_frames():
    X, Y, *_ = make_data(30)
    frame = pd.DataFrame(Y, columns=["a", "b", "c"])
    model = RCGPRegressor(kernel=RBF(1.0) + WhiteKernel(0.1), outputs="correlated", weight="constant").fit(X, frame)
    assert model.noise_variance_.shape == (3,)
    fixed = WhiteKernel(0.1, noise_level_bounds="fixed")
    model = RCGPRegressor(kernel=RBF(1.0) + fixed, outputs="correlated", normalize=False).fit(X, frame)
    np.testing.assert_allclose(model.noise_variance_, 0.1)
    assert clone(model).outputs == "correlated"
    assert np.isfinite(cross_val_score(clone(model), X, Y, cv=2)).all()


@pytest.mark.parametrize("outputs", ["independent", "correlated"])
def test_outputs_keep_the_names_of_a_data_frame(outputs, tmp_path):
    X, Y, _, _ = make_data(30)
    table = pd.DataFrame(Y[:, :2], columns=["heat", "flow"])
    model = RCGPRegressor(outputs=outputs).fit(X, table)
    assert model.output_names_ == ["heat", "flow"]
    np.testing.assert_array_equal(model.output("flow").predict(NEW), model.predict(NEW)[:, 1])
    with pytest.raises(ValueError, match="there is no output 'flux': they are 'heat', 'flow'"):
        model.output("flux")
    model.save(tmp_path / "model.rcgp")
    assert load(tmp_path / "model.rcgp").output_names_ == ["heat", "flow"]
    model.fit(X, Y[:, :2])
    assert model.output_names_ is None
    with pytest.raises(ValueError, match="no output 'heat': they have no names: give its number"):
        model.output("heat")


def test_doubts_name_their_output():
    X, Y, *_ = make_data(12)
    with pytest.warns(UserWarning, match="output 2: 12 rows are too few"):
        RCGPRegressor(outputs="correlated").fit(X, Y)


@pytest.mark.parametrize("outputs", ["independent", "correlated"])
def test_missing_cells_may_be_none_or_pandas_na(outputs):
    X, Y, *_ = make_data(30, missing=0.3)
    model = RCGPRegressor(outputs=outputs, weight="constant").fit(X, Y)
    none = [[None if np.isnan(cell) else cell for cell in row] for row in Y]
    for other in (none, pd.DataFrame(Y).convert_dtypes()):
        np.testing.assert_array_equal(clone(model).fit(X, other).predict(NEW), model.predict(NEW))
        assert model.score(X, other) == model.score(X, Y)
        np.testing.assert_array_equal(model.log_predictive_density(X, other), model.log_predictive_density(X, Y))
    text = [["a", *row[1:]] for row in none]
    with pytest.raises(ValueError, match="y must be numbers, but column 0 in row 0 is 'a'"):
        model.fit(X, text)


@pytest.mark.parametrize("outputs", ["independent", "correlated"])
def test_scores_are_those_of_observed_cells(outputs):
    X, Y, *_ = make_data(30, missing=0.3)
    model = RCGPRegressor(outputs=outputs, weight="constant").fit(X, Y)
    seen, mean = ~np.isnan(Y), model.predict(X)
    each = [1 - np.var(Y[s, t] - mean[s, t]) / np.var(Y[s, t]) for t, s in enumerate(seen.T)]
    bias = [np.mean(Y[s, t] - mean[s, t]) ** 2 / np.var(Y[s, t]) for t, s in enumerate(seen.T)]
    assert model.score(X, Y) == pytest.approx(np.mean(each) - np.mean(bias))
    assert model.score(X, Y, np.full(30, 2.0)) == pytest.approx(model.score(X, Y))
    density = model.log_predictive_density(X, Y)
    np.testing.assert_array_equal(np.isnan(density), ~seen)
    full = model.log_predictive_density(X, np.where(seen, Y, 0.0))
    np.testing.assert_allclose(density[seen], full[seen])
    assert np.isfinite(cross_val_score(model, X, Y, cv=3)).all()
    with pytest.raises(ValueError, match=r"y must have the shape \(30, 3\) of the predictions, got \(30, 2\)"):
        model.score(X, Y[:, :2])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.score(X, Y, sample_weight=np.ones(3))
    with pytest.raises(NotFittedError):
        clone(model).score(X, Y)


@pytest.mark.parametrize("outputs", ["independent", "correlated"])
def test_bad_input_is_refused(outputs):
    X, Y, *_ = make_data(20)
    model = RCGPRegressor(outputs=outputs)
    empty = Y.copy()
    empty[:, 1] = np.nan
    with pytest.raises(ValueError, match="column 1 of y has no observation"):
        model.fit(X, empty)
    infinite = Y.copy()
    infinite[3, 2] = np.inf
    with pytest.raises(ValueError, match="y contains inf in row 3, column 2"):
        model.fit(X, infinite)
    with pytest.raises(ValueError, match="y contains NaN in row 0"):
        model.fit(X, np.full(20, np.nan))
    with pytest.raises(ValueError, match="outputs must be 'independent' or 'correlated', got 'both'"):
        RCGPRegressor(outputs="both").fit(X, Y)


@pytest.mark.parametrize("outputs", ["independent", "correlated"])
def test_one_output_is_a_regressor_of_its_own(outputs, tmp_path):
    X, Y, *_ = make_data(25, missing=0.2)
    model = RCGPRegressor(outputs=outputs).fit(X, Y)
    seen = ~np.isnan(Y[:, 1])
    one = model.output(1)
    for name in ("weights_", "outliers_", "outlier_probability_", "loo_mean_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(model, name)[seen, 1])
    assert (one.noise_law_, one.doubts_, one.n_outputs_) == (model.noise_law_[1], model.doubts_[1], 1)
    for whole, part in zip(model.predict(NEW, return_std=True), one.predict(NEW, return_std=True), strict=True):
        np.testing.assert_allclose(part, whole[:, 1], rtol=1e-10)
    np.testing.assert_allclose(one.predict_interval(NEW)[0], model.predict_interval(NEW)[0][:, 1], rtol=1e-10)
    np.testing.assert_allclose(one.noise_std(NEW), model.noise_std(NEW)[:, 1])
    assert one.sample_y(NEW, 3).shape == (7, 3)
    assert model.n_outputs_ == 3
    assert model.weights_.shape == Y.shape
    if outputs == "correlated":
        with pytest.raises(SavedModelError, match="save the model of all"):
            one.save(tmp_path / "one.rcgp")
    else:
        one.save(tmp_path / "one.rcgp")
        np.testing.assert_array_equal(load(tmp_path / "one.rcgp").predict(NEW), one.predict(NEW))
    with pytest.raises(ValueError, match="below the number of outputs, 3, got 3"):
        model.output(3)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        model.output(-1)


def test_an_output_without_variation_does_no_harm():
    X, Y, F, _ = make_data(50)
    Y = np.column_stack([Y[:, 0], np.full(50, 3.0)])
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(50)
        model = RCGPRegressor(outputs="correlated").fit(X[order], Y[order])
        assert np.abs(model.predict(X)[:, 0] - F[:, 0]).mean() < 0.05
        np.testing.assert_allclose(model.predict(NEW)[:, 1], 3.0)
        np.testing.assert_allclose(model.output_correlation_, np.eye(2), atol=1e-6)


def test_a_column_that_is_constant_in_the_sample_may_vary_elsewhere():
    X, Y, *_ = make_data(60)
    X = np.column_stack([X, np.zeros(60)])
    rows = np.sort(np.random.RandomState(0).choice(60, 20, replace=False))
    others = np.setdiff1d(np.arange(60), rows)[::2]
    X[others, 1] = 5.0
    Y[others] += 3.0
    model = RCGPRegressor(outputs="correlated", fit_rows=20, random_state=0, mean="linear").fit(X, Y)
    assert np.isfinite(model.lengthscales_).all()
    coefficients = [mean.coefficients.numpy() for mean in model.models_[0].mean.means]
    expected = [part.mean.coefficients.numpy() for part in RCGPRegressor(mean="linear").fit(X, Y).models_]
    np.testing.assert_allclose(coefficients, expected)  # the mean follows all rows


def test_a_kernel_of_several_outputs_is_put_into_units():
    X, Y, *_ = make_data(30)
    kernel = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=3, rank=1)
    with torch.no_grad():
        kernel.task_covar_module.covar_factor.copy_(torch.tensor([[1.0], [-1.0], [0.5]]))
    one, large = (RCGPRegressor(kernel=kernel, outputs="correlated").fit(X, unit * Y) for unit in (1.0, 1e6))
    np.testing.assert_allclose(large.predict(NEW) / 1e6, one.predict(NEW), rtol=1e-2, atol=1e-2)


def test_only_ratios_of_sample_weights_matter():
    X, Y, *_ = make_data(40)
    one, many = (RCGPRegressor(outputs="correlated").fit(X, Y, sample_weight=np.full(40, p)) for p in (2.0, 1e8))
    np.testing.assert_allclose(many.predict(NEW), one.predict(NEW), atol=2e-3)
    fixed = RBF(1.0) + WhiteKernel(0.01, noise_level_bounds="fixed")
    joint, single = (
        RCGPRegressor(kernel=fixed, outputs=outputs, weight="constant").fit(X, Y, sample_weight=np.full(40, 100.0))
        for outputs in ("correlated", "independent")
    )
    np.testing.assert_allclose(joint.noise_variance_, single.noise_variance_)


def test_an_absurd_input_is_named():
    X, Y, *_ = make_data(30)
    X[7] = 1e12
    kernel = gpytorch.kernels.LinearKernel()
    with pytest.warns(UserWarning, match="look at row 7"):
        RCGPRegressor(kernel=kernel, outputs="correlated", weight="constant").fit(X, Y)


def test_a_noiseless_output_leaves_local_noise_to_the_others():
    random = np.random.default_rng(0)
    X = np.sort(random.uniform(0, 10, (120, 1)), axis=0)
    Y = np.sin(X) * np.array([1.0, 2.0]) + 0.02 * np.exp(0.4 * X) * random.standard_normal((120, 2))
    model = RCGPRegressor(outputs="correlated").fit(X, np.column_stack([Y, np.full(120, 2.0)]))
    std = model.noise_std(NEW)
    assert (std[-1, :2] > 2.0 * std[0, :2]).all()
    assert std[-1, 2] == pytest.approx(std[0, 2])


def test_the_correlation_of_an_earlier_fit_is_forgotten(fitted):
    model, X, Y, *_ = fitted
    other = copy.deepcopy(model).set_params(outputs="independent").fit(X, Y)
    assert not hasattr(other, "output_correlation_")
