"""The deep GP as an estimator: scikit-learn's contract, robustness, files."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import rcgp
from rcgp import DeepRCGPRegressor, SavedModelError
from rcgp.estimator import NoiseLawWarning
from rcgp.saving import read_archive, write_archive

QUICK = {"n_inducing": 10, "max_iter": 3, "random_state": 0}
doubtful = pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")


@parametrize_with_checks([DeepRCGPRegressor(n_inducing=20, max_iter=30, learning_rate=0.1)])
def test_scikit_learns_own_checks_pass(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        check(estimator)


def table(n=150, d=1, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(-1, 1, (n, d))
    truth = 100.0 + 20.0 * np.sign(X[:, 0])
    wrong = random.random(n) < 0.1
    return X, truth + random.standard_normal(n) + 80.0 * wrong, truth, wrong


@pytest.fixture(scope="module")
def fitted():
    X, y, *_ = table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        return DeepRCGPRegressor(n_inducing=25, max_iter=300, learning_rate=0.05, random_state=0).fit(X, y)


def test_outliers_are_flagged_and_do_not_move_the_function(fitted):
    X, y, truth, wrong = table()
    assert (fitted.outliers_ == wrong).mean() > 0.97
    assert np.abs(fitted.predict(X) - truth).mean() < 1.0
    assert fitted.weights_[wrong].max() < 0.3
    assert 0.05 < fitted.noise_law_.outlier_share < 0.2
    lower, upper = fitted.predict_interval(X)
    assert ((y > lower) & (y < upper))[~wrong].mean() > 0.85
    assert not ((y > lower) & (y < upper))[wrong].any()


def test_quantiles_and_densities_are_those_of_the_mixture_over_samples(fitted):
    X = np.linspace(-1, 1, 5)[:, None]
    grid = np.linspace(-300.0, 500.0, 8_001)
    for x in X:
        density = np.exp(fitted.log_predictive_density(np.repeat(x[None], len(grid), axis=0), grid, outliers=False))
        step = grid[1] - grid[0]
        assert density.sum() * step == pytest.approx(1.0, abs=1e-3)
        mean, std = fitted.predict(x[None], return_std=True, include_noise=True)
        assert (density * grid).sum() * step == pytest.approx(mean[0], rel=1e-3)
        assert (density * (grid - mean[0]) ** 2).sum() * step == pytest.approx(std[0] ** 2, rel=0.02)
        below = density[grid <= fitted.predict_quantiles(x[None], 0.9)[0]].sum() * step
        assert below == pytest.approx(0.9, abs=5e-3)


def test_units_of_the_data_do_not_matter():
    X, y, *_ = table(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        plain = DeepRCGPRegressor(**QUICK).fit(X, y)
        scaled = DeepRCGPRegressor(**QUICK).fit(1e5 * X + 3.0, 1e-3 * y)
    np.testing.assert_allclose(1e3 * scaled.predict(1e5 * X + 3.0), plain.predict(X), rtol=1e-6)
    assert scaled.noise_variance_ == pytest.approx(1e-6 * plain.noise_variance_, rel=1e-6)


def test_a_file_predicts_the_same_to_the_bit(fitted, tmp_path):
    X = table(20, seed=1)[0]
    fitted.save(tmp_path / "deep.rcgp")
    loaded = rcgp.load(tmp_path / "deep.rcgp")
    for other in (loaded, pickle.loads(pickle.dumps(fitted))):
        assert np.array_equal(other.predict(X), fitted.predict(X))
        assert np.array_equal(other.predict_interval(X)[0], fitted.predict_interval(X)[0])
        assert np.array_equal(other.outliers_, fitted.outliers_)
        assert other.noise_law_ == fitted.noise_law_
        assert other.fit_report_ == fitted.fit_report_
        assert other.get_params() == fitted.get_params()


@doubtful
@pytest.mark.parametrize(("layers", "d"), [(1, 2), (3, 10)])
def test_files_of_other_shapes(layers, d, tmp_path):
    X, y, *_ = table(40, d)
    names = [f"x{i}" for i in range(d)]
    model = DeepRCGPRegressor(n_layers=layers, **QUICK).fit(pd.DataFrame(X, columns=names), y)
    model.save(tmp_path / "deep.rcgp")
    frame = pd.DataFrame(X, columns=names)
    assert np.array_equal(rcgp.load(tmp_path / "deep.rcgp").predict(frame), model.predict(frame))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, t: t.pop("X_scale"), "makes no sense"),
        (lambda d, t: t.__setitem__("X_scale", -t["X_scale"]), "not positive"),
        (lambda d, t: t.__setitem__("likelihood.raw_noise", t["likelihood.raw_noise"] * torch.nan), "not finite"),
        (lambda d, t: t.pop("model.last.mean_module.raw_constant"), "other parts"),
        (lambda d, t: t.__setitem__("likelihood.counts", t["likelihood.counts"] - 1e6), "noise law"),
        (lambda d, t: t.__setitem__("likelihood.width", torch.ones(2, dtype=torch.float64)), "do not fit together"),
        (lambda d, t: d["parameters"].__setitem__("n_layers", 10**9), "layers"),
        (lambda d, t: t.__setitem__("surplus", torch.ones(1)), "nothing in it uses"),
    ],
)
def test_nonsense_in_a_file_is_refused(fitted, tmp_path, change, message):
    fitted.save(tmp_path / "deep.rcgp")
    description, tensors = read_archive(tmp_path / "deep.rcgp")
    change(description, tensors)
    write_archive(tmp_path / "bad.rcgp", description, tensors)
    with pytest.raises(SavedModelError, match=message):
        rcgp.load(tmp_path / "bad.rcgp")


@doubtful
def test_absurd_values_and_copies_do_not_break_a_fit():
    X, y, *_ = table(60)
    X[5], y[6] = 1e200, 1e200
    X[10:20], y[10:20] = X[10], y[10]
    model = DeepRCGPRegressor(**QUICK).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert model.outliers_[6]


@doubtful
def test_parameters_are_checked():
    X, y, *_ = table(30)
    for wrong, message in [
        ({"n_layers": 0}, "n_layers must be a whole number, at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be a number"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a share"),
    ]:
        with pytest.raises(ValueError, match=message):
            DeepRCGPRegressor(**wrong).fit(X, y)
    model = DeepRCGPRegressor(**QUICK).fit(X, y)
    with pytest.raises(ValueError, match="return_cov is not offered"):
        model.predict(X, return_cov=True)
    assert clone(model).get_params() == model.get_params()


@doubtful
def test_progress_is_reported(capsys):
    X, y, *_ = table(30)
    DeepRCGPRegressor(progress=True, **QUICK).fit(X, y)
    assert "step 3 of at most 3" in capsys.readouterr().err
