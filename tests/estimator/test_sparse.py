from __future__ import annotations

import copy
import pickle
import warnings
from types import SimpleNamespace

import gpytorch
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import rcgp
from rcgp import RCGPRegressor, SparseRCGPRegressor
from rcgp.chunked import resources
from rcgp.chunked.fit import fit_chunks
from rcgp.chunks import Serial, chunks_of
from rcgp.chunks import chunk as chunk_room
from rcgp.estimator import NoiseLawWarning, sources
from rcgp.estimator.sparse import IntervalWarning, doubt_of
from rcgp.weights import InverseMultiquadric

random = np.random.default_rng(0)
N = 400
X = random.uniform(-2, 2, (N, 2))
TRUTH = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
Y = TRUTH + 0.1 * random.standard_normal(N)
OUTLIERS = np.arange(3, N, 13)
Y[OUTLIERS] += random.uniform(2, 6, len(OUTLIERS)) * random.choice([-1, 1], len(OUTLIERS))
NEW = random.uniform(-2.5, 2.5, (50, 2))
PER_ROW = ("weights_", "outlier_scores_", "outlier_probability_", "outliers_", "loo_mean_", "loo_std_")
FEW = {"n_inducing": 30, "fit_rows": 100, "random_state": 0}


def repeated_rows(estimator):
    return {"check_sample_weight_equivalence_on_dense_data": "left out, a repeated row is predicted by its twin"}


def quietly(check, estimator):
    with warnings.catch_warnings():
        # Checks fit tiny or random data, on which an optimiser may stop early.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", IntervalWarning)  # five points are few
        warnings.simplefilter("ignore", NoiseLawWarning)  # and so are some tables' rows
        check(estimator)


@parametrize_with_checks(
    [SparseRCGPRegressor(weight="imq", n_inducing=5, fit_rows=15)], expected_failed_checks=repeated_rows
)
def test_scikit_learns_own_checks_pass(estimator, check):
    quietly(check, estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [SparseRCGPRegressor(), SparseRCGPRegressor(weight="imq"), SparseRCGPRegressor(n_inducing=5, fit_rows=15)],
    expected_failed_checks=repeated_rows,
)
def test_scikit_learns_own_checks_pass_for_other_weights(estimator, check):
    quietly(check, estimator)


@pytest.fixture(scope="module")
def model():
    return SparseRCGPRegressor(**FEW).fit(X, Y)


# What it does ---------------------------------------------------------------------------------------------------------


def test_outliers_do_not_matter_and_are_found(model):
    assert np.abs(model.predict(X) - TRUTH).mean() < 0.05
    np.testing.assert_array_equal(np.flatnonzero(model.outliers_), OUTLIERS)
    assert (model.weights_[OUTLIERS] < 0.1).all()
    assert model.inducing_points_.shape == (30, 2)
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.5)
    assert model.lengthscales_.shape == (2,)
    assert model.n_iter_ == model.fit_report_.iterations
    assert model.n_features_in_ == 2
    mean, std = model.predict(NEW, return_std=True)
    _, noisy = model.predict(NEW, return_std=True, include_noise=True)
    np.testing.assert_array_equal(mean, model.predict(NEW))
    np.testing.assert_allclose(noisy**2, std**2 + model.noise_std(NEW) ** 2, rtol=1e-12)
    np.testing.assert_array_equal(model.outliers_, model.outlier_probability_ > 0.5)
    assert model.noise_law_.outlier_share == pytest.approx(len(OUTLIERS) / N, abs=0.02)
    assert model.doubts_ == ()
    assert (np.abs(model.predict(X) - TRUTH) < 1.96 * model.predict(X, return_std=True)[1]).mean() > 0.85


@pytest.mark.parametrize("weight", [InverseMultiquadric(epsilon=0.1), "constant", "learned"])
def test_with_all_rows_in_the_sample_and_as_inducing_points_it_is_the_exact_regressor(weight):
    some = slice(0, 80)
    ours = SparseRCGPRegressor(weight=weight).fit(X[some], Y[some])
    exact = RCGPRegressor(weight=weight).fit(X[some], Y[some])
    assert ours.noise_variance_ == exact.noise_variance_
    np.testing.assert_array_equal(ours.lengthscales_, exact.lengthscales_)
    np.testing.assert_array_equal(ours.outliers_, exact.outliers_)
    if weight == "learned":  # another number of expectation steps
        np.testing.assert_allclose(ours.predict(NEW), exact.predict(NEW), atol=0.05)
        np.testing.assert_allclose(ours.noise_law_.shares, exact.noise_law_.shares, atol=0.05)
        return
    np.testing.assert_allclose(ours.predict(NEW), exact.predict(NEW), atol=1e-5)
    np.testing.assert_allclose(ours.weights_, exact.weights_, rtol=1e-10)
    np.testing.assert_allclose(ours.loo_mean_, exact.loo_mean_, atol=1e-5)
    np.testing.assert_allclose(ours.outlier_scores_, exact.outlier_scores_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.outlier_probability_, exact.outlier_probability_, atol=1e-4)
    for ours_end, exact_end in zip(ours.predict_interval(NEW), exact.predict_interval(NEW), strict=True):
        np.testing.assert_allclose(ours_end, exact_end, atol=1e-4)
    density = exact.log_predictive_density(NEW, NEW[:, 0])
    np.testing.assert_allclose(ours.log_predictive_density(NEW, NEW[:, 0]), density, rtol=1e-3, atol=1e-3)


def test_intervals_cover_inliers(model):
    rest = np.setdiff1d(np.arange(N), OUTLIERS)
    lower, upper = model.predict_interval(X, coverage=0.9)
    assert 0.85 < ((lower < Y) & (upper > Y))[rest].mean() < 0.96
    quantiles = model.predict_quantiles(NEW, [0.05, 0.5, 0.95])
    assert quantiles.shape == (50, 3)
    np.testing.assert_allclose(quantiles[:, 1], model.predict(NEW), atol=1e-8)
    np.testing.assert_array_equal(model.predict_quantiles(NEW, 0.05), quantiles[:, 0])
    np.testing.assert_allclose(model.predict_interval(NEW, 0.9)[1], quantiles[:, 2], rtol=1e-12)
    for bad in (0.0, 1.0, [[0.5]]):
        with pytest.raises(ValueError, match="probabilities in"):
            model.predict_quantiles(NEW, bad)
    with pytest.raises(ValueError, match="coverage must be"):
        model.predict_interval(NEW, 95)
    with pytest.raises(ValueError, match="shape"):
        model.log_predictive_density(NEW, Y)
    with pytest.raises(ValueError, match="y contains NaN in row 1"):
        model.log_predictive_density(NEW[:2], [0.0, np.nan])


def test_densities_are_the_derivative_of_the_quantiles(model):
    step = 1e-4
    low, middle, high = model.predict_quantiles(NEW, [0.3 - step, 0.3, 0.3 + step]).T
    density = np.exp(model.log_predictive_density(NEW, middle, outliers=False))
    np.testing.assert_allclose(density, 2 * step / (high - low), rtol=1e-4)


def test_noise_std_follows_growing_noise():
    noise = 0.05 + 0.5 * (X[:, 0] > 0)
    y = TRUTH + noise * np.random.default_rng(1).standard_normal(N)
    options = {**FEW, "fit_rows": 300}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        local = SparseRCGPRegressor(**options).fit(X, y)
        same = SparseRCGPRegressor(local_noise=False, **options).fit(X, y)
    quiet, loud = local.noise_std([[-1.5, 0.0], [1.5, 0.0]])
    assert loud > 1.4 * quiet
    assert np.ptp(same.noise_std(NEW)) == 0.0


def test_doubts_are_warnings():
    with pytest.warns(NoiseLawWarning, match="8 rows are too few"):
        few = SparseRCGPRegressor(n_inducing=8).fit(X[:8], Y[:8])
    assert len(few.doubts_) >= 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_rows_of_weight_zero_may_lack_their_observation_wherever_rows_are(wrong, tmp_path):
    y, weight = Y.copy(), np.ones(len(Y))
    y[[3, 50]], weight[[3, 50]] = wrong, 0.0
    in_memory = SparseRCGPRegressor(**FEW).fit(X, y, weight)
    assert np.flatnonzero(np.isnan(in_memory.outlier_probability_)).tolist() == [3, 50]
    assert np.flatnonzero(np.isnan(in_memory.weights_)).tolist() == [3, 50]
    assert np.isfinite(in_memory.loo_mean_).all()
    assert not in_memory.outliers_[[3, 50]].any()
    pairs = [(X[part], y[part], weight[part]) for part in (slice(0, 40), slice(40, None))]
    chunked = SparseRCGPRegressor(**FEW).fit(pairs)
    np.testing.assert_allclose(chunked.predict(NEW), in_memory.predict(NEW), rtol=1e-10, atol=1e-10)
    found = np.concatenate([rows.outlier_probability for rows in chunked.diagnose(pairs)])
    np.testing.assert_allclose(found, in_memory.outlier_probability_, rtol=1e-6)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "w": weight})
    frame.to_parquet(tmp_path / "rows.parquet")
    filed = SparseRCGPRegressor(**FEW).fit(str(tmp_path / "rows.parquet"), "y", "w", features=["a", "b"])
    np.testing.assert_allclose(
        filed.predict(pd.DataFrame(NEW, columns=["a", "b"])), in_memory.predict(NEW), rtol=1e-10, atol=1e-10
    )


def test_a_value_that_most_rows_share_is_a_doubt():
    counts = np.where(np.arange(len(Y)) % 5 < 3, 0.0, Y)
    with pytest.warns(NoiseLawWarning) as told:
        model = SparseRCGPRegressor(n_inducing=10, fit_rows=100).fit(X, counts)
    assert any("have the same value, 0:" in doubt for doubt in model.doubts_)
    assert len(told) >= len(model.doubts_)


def test_attributes_are_those_of_the_chunked_fit(model):
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    fit = fit_chunks(chunks_of(X, Y, rows=33), Serial(), inducing=30, fit_rows=100, seed=seed)
    np.testing.assert_allclose(model.predict(NEW), fit.process.mean(torch.tensor(NEW)), rtol=1e-9, atol=1e-9)
    diagnosis = fit.diagnose(next(iter(chunks_of(X, Y))))
    np.testing.assert_allclose(model.loo_mean_, diagnosis.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.loo_std_, diagnosis.std, rtol=1e-9)
    np.testing.assert_allclose(model.outlier_scores_, (Y - diagnosis.mean.numpy()) / diagnosis.std.numpy(), rtol=1e-6)


def test_for_a_given_weight_flags_come_from_a_law_that_is_learned_afterwards():
    model = SparseRCGPRegressor(weight="imq", **FEW).fit(X, Y)
    np.testing.assert_allclose(model.outlier_scores_, (Y - model.loo_mean_) / model.loo_std_, rtol=1e-10)
    assert set(np.flatnonzero(model.outliers_)) <= set(OUTLIERS)
    assert model.outliers_[OUTLIERS].mean() > 0.9
    assert not model.noise_law_.is_normal
    np.testing.assert_allclose(model.noise_std(NEW), model.noise_variance_**0.5)


def test_rows_of_no_weight_are_left_out_but_diagnosed():
    weight = np.where(np.arange(N) % 5 == 0, 0.0, 1.0)
    weighted = SparseRCGPRegressor(**FEW).fit(X, Y, weight)
    rest = weight > 0
    without = SparseRCGPRegressor(**FEW).fit(X[rest], Y[rest])
    np.testing.assert_allclose(weighted.predict(NEW), without.predict(NEW), rtol=1e-9, atol=1e-9)
    mean, std = without.predict(X[~rest], return_std=True, include_noise=True)
    np.testing.assert_allclose(weighted.loo_mean_[~rest], mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(weighted.loo_std_[~rest], std, rtol=1e-8)
    np.testing.assert_array_equal(np.flatnonzero(weighted.outliers_), OUTLIERS)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.IntervalWarning")  # without priors, lengthscales are short
def test_kernels_and_means_are_those_of_the_exact_regressor():
    options = {"weight": "imq", "kernel": RBF(1.0) + WhiteKernel(0.02, "fixed"), "mean": "linear"}
    ours = SparseRCGPRegressor(**{**FEW, "fit_rows": N}, **options).fit(X, Y)
    exact = RCGPRegressor(**options).fit(X, Y)
    # The same fit; where an array lies in memory changes its last bits.
    assert ours.noise_variance_ == pytest.approx(exact.noise_variance_, rel=1e-10)
    np.testing.assert_allclose(ours.lengthscales_, exact.lengthscales_, rtol=1e-10)
    modules = {"kernel": gpytorch.kernels.MaternKernel(nu=1.5), "mean": gpytorch.means.LinearMean(2)}
    gp = SparseRCGPRegressor(**modules, **FEW).fit(X, Y)
    assert isinstance(gp.model_.diagnose.prior.prior_mean, gpytorch.means.LinearMean)
    assert np.abs(gp.predict(X) - TRUTH).mean() < 0.1


@pytest.mark.parametrize("noise", [False, True])
def test_covariances_agree_with_standard_deviations(model, noise):
    mean, std = model.predict(NEW, return_std=True, include_noise=noise)
    same, cov = model.predict(NEW, return_cov=True, include_noise=noise)
    np.testing.assert_array_equal(same, mean)
    np.testing.assert_allclose(np.sqrt(cov.diagonal()), std, rtol=1e-8)
    assert np.abs(cov - np.diag(cov.diagonal())).max() > 1e-4
    with pytest.raises(RuntimeError, match="At most one of"):
        model.predict(NEW, return_std=True, return_cov=True)


def test_selection_and_polish_change_the_fit(model):
    spread = SparseRCGPRegressor(selection="kmeans", **FEW).fit(X, Y)
    assert spread.noise_variance_ == model.noise_variance_
    assert not np.array_equal(spread.inducing_points_, model.inducing_points_)
    polished = SparseRCGPRegressor(polish=5, **FEW).fit(X, Y)
    assert 0 < polished.model_.polished.iterations <= 5
    assert polished.noise_variance_ != model.noise_variance_


def test_seeds_decide_the_sample():
    one, again, other = (
        SparseRCGPRegressor(**{**FEW, "random_state": seed}).fit(X, Y).predict(NEW) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_threads_give_the_same_answer(model, monkeypatch):
    monkeypatch.setattr(chunk_room, "_ROWS", 33)
    assert len(chunks_of(X, Y)) == 13
    threaded = SparseRCGPRegressor(threads=2, **FEW).fit(X, Y)
    np.testing.assert_allclose(threaded.predict(NEW), model.predict(NEW), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(threaded.loo_mean_, model.loo_mean_, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(threaded.outliers_, model.outliers_)


def test_inducing_points_may_be_given(tmp_path):
    for points in (X[:20], torch.tensor(X[:20])):
        given = SparseRCGPRegressor(**{**FEW, "n_inducing": points}).fit(X, Y)
        np.testing.assert_array_equal(given.inducing_points_, X[:20])
        np.testing.assert_array_equal(clone(given).n_inducing, points)
    given.save(tmp_path / "given.rcgp")
    assert given.n_inducing is points
    loaded = rcgp.load(tmp_path / "given.rcgp")
    assert loaded.n_inducing == 20
    np.testing.assert_array_equal(loaded.inducing_points_, X[:20])
    np.testing.assert_array_equal(loaded.predict(NEW), given.predict(NEW))
    with pytest.raises(ValueError, match=r"inducing must have shape m x 2 like the training inputs, got \(5, 1\)"):
        SparseRCGPRegressor(**{**FEW, "n_inducing": X[:5, :1]}).fit(X, Y)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_too_few_inducing_points_raise_a_warning():
    x = np.linspace(0, 10, 1000)[:, None]
    noise = 0.1 * np.random.default_rng(0).standard_normal(1000)
    y = np.sin(2 * x[:, 0]) + noise
    options = {"fit_rows": 200, "random_state": 0}
    with pytest.warns(IntervalWarning, match=r"8 inducing points are few: they leave \d+% of the variance"):
        few = SparseRCGPRegressor(8, **options).fit(x, y)
    worse = SimpleNamespace(rows=1000, diagnose=few.model_.diagnose, trusted_spread=1.5, unseen=0.7)
    assert "inliers are typically 1.5 times" in doubt_of(worse)
    assert "intervals are too narrow" in doubt_of(worse)
    right = SparseRCGPRegressor(20, **options).fit(x, y)  # and no warning, which would be an error
    assert 0.92 < (np.abs(y - right.loo_mean_) < 1.96 * right.loo_std_).mean() < 0.98
    assert right.model_.trusted_spread == pytest.approx(1.0, abs=0.15)
    wide = np.random.default_rng(0).uniform(-2, 2, (600, 6))
    few = r"10 inducing points are few: they leave \d+% .* intervals are wide \(.* typically \d\S* times what"
    with pytest.warns(IntervalWarning, match=few):
        SparseRCGPRegressor(10, **options).fit(wide, np.sin(2 * wide).sum(1))


def test_progress_reports_every_pass():
    steps = []

    def progress(evaluations, best):
        pass

    progress.stage = lambda name, done, total: steps.append((name, done, total))
    SparseRCGPRegressor(progress=progress, **FEW).fit(X, Y)
    assert steps[-1] == ("weights of all rows", N, N)
    assert ("all rows", N, N) in steps


# Where rows come from -------------------------------------------------------------------------------------------------


def written(tmp_path, values, name, dtype=np.float64):
    np.save(tmp_path / f"{name}.npy", values.astype(dtype))
    return np.load(tmp_path / f"{name}.npy", mmap_mode="r")


class Again:
    """Rows in chunks that can be gone through again."""

    def __iter__(self):
        return ((X[i : i + 90], Y[i : i + 90]) for i in range(0, N, 90))


def parquet(tmp_path):
    frame = pd.DataFrame({"length": X[:, 0], "target": Y, "width": X[:, 1]})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=150)
    return str(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    "source",
    [
        lambda path: (written(path, X, "X"), written(path, Y, "y")),
        lambda path: ([(X[:150], Y[:150]), (X[150:], Y[150:])],),
        lambda path: (Again(),),
        lambda path: (parquet(path), "target"),
    ],
    ids=["memmap", "list of chunks", "iterable of chunks", "parquet"],
)
def test_rows_that_are_not_in_memory_give_the_same_model(source, model, tmp_path):
    data = source(tmp_path)
    other = SparseRCGPRegressor(**FEW).fit(*data)
    names = getattr(other, "feature_names_in_", None)
    new = NEW if names is None else pd.DataFrame(NEW, columns=names)
    np.testing.assert_allclose(other.predict(new), model.predict(NEW), rtol=1e-10, atol=1e-10)
    assert not any(hasattr(other, name) for name in PER_ROW)
    parts = list(other.diagnose(*data))
    np.testing.assert_array_equal([part.first for part in parts], np.cumsum([0, *(len(p.weights) for p in parts)])[:-1])
    for name in PER_ROW:
        column = np.concatenate([getattr(part, name[:-1]) for part in parts])
        np.testing.assert_allclose(column, getattr(model, name), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["tensors", "lists", "frames", "single precision"])
def test_rows_in_memory_of_any_kind(kind, model):
    data = {
        "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
        "lists": lambda: (X.tolist(), Y.tolist()),
        "frames": lambda: (pd.DataFrame(X, columns=["a", "b"]), pd.Series(Y, index=range(N, 2 * N))),
        "single precision": lambda: (X.astype(np.float32).astype(np.float64), Y),
    }[kind]()
    other = SparseRCGPRegressor(**FEW).fit(*data)
    tolerance = 1e-3 if kind == "single precision" else 1e-12
    new = pd.DataFrame(NEW, columns=["a", "b"]) if kind == "frames" else torch.tensor(NEW) if kind == "tensors" else NEW
    np.testing.assert_allclose(other.predict(new), model.predict(NEW), rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(other.outliers_, model.outliers_)
    if kind == "frames":
        assert list(other.feature_names_in_) == ["a", "b"]


def test_a_fit_to_chunks_removes_row_attributes_of_an_earlier_fit():
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = SparseRCGPRegressor(**FEW).fit(frame, Y)
    assert hasattr(model, "weights_")
    model.fit(Again())
    assert not hasattr(model, "weights_")
    assert not hasattr(model, "feature_names_in_")


def test_parquet_files_keep_the_names_of_their_columns(tmp_path):
    model = SparseRCGPRegressor(**FEW).fit(parquet(tmp_path), "target")
    assert list(model.feature_names_in_) == ["length", "width"]
    named = model.predict(pd.DataFrame(NEW, columns=["length", "width"]))
    assert named.shape == (50,)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame(NEW, columns=["width", "length"]))


def test_the_features_of_a_parquet_file_may_be_chosen(tmp_path):
    frame = pd.DataFrame({"width": X[:, 1], "id": "P", "target": Y, "length": X[:, 0], "heavy": np.arange(N) % 3.0})
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path)
    with pytest.raises(ValueError, match=r"not numbers: 'id' \(.*\); name those to take by features="):
        SparseRCGPRegressor(**FEW).fit(path, "target")
    model = SparseRCGPRegressor(**FEW).fit(path, "target", "heavy", features=["length", "width"])
    assert list(model.feature_names_in_) == ["length", "width"]
    same = SparseRCGPRegressor(**FEW).fit(X, Y, frame["heavy"])
    np.testing.assert_allclose(
        model.predict(pd.DataFrame(NEW, columns=["length", "width"])), same.predict(NEW), rtol=1e-9, atol=1e-9
    )
    (chunk,) = model.diagnose(path, "target", "heavy")  # takes the columns of the fit by itself
    np.testing.assert_allclose(chunk.loo_mean, same.loo_mean_, rtol=1e-8, atol=1e-9)
    with pytest.raises(TypeError, match="features= is for Parquet files"):
        SparseRCGPRegressor(**FEW).fit(X, Y, features=["a"])


def test_diagnose_replaces_row_attributes_for_rows_not_in_memory(tmp_path):
    mapped = written(tmp_path, X, "X"), written(tmp_path, Y, "y")
    model = SparseRCGPRegressor(**FEW).fit(*mapped)
    for name in PER_ROW:
        with pytest.raises(AttributeError, match=rf"np.concatenate\(\[chunk.{name[:-1]} for chunk in model.diagnose"):
            getattr(model, name)
    with pytest.raises(AttributeError, match="'SparseRCGPRegressor' object has no attribute 'weights_'"):
        SparseRCGPRegressor().weights_  # noqa: B018
    outliers = np.concatenate([chunk.outliers for chunk in model.diagnose(*mapped)])
    np.testing.assert_array_equal(np.flatnonzero(outliers), OUTLIERS)


@pytest.mark.parametrize("kind", ["frame", "chunks"])
@pytest.mark.parametrize("columns", [["b", "a"], ["a", "c"], ["a", "b", "y"]])
def test_a_diagnosis_needs_the_features_of_the_fit(kind, columns):
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 1], "y": Y})
    model = SparseRCGPRegressor(**FEW).fit(frame[["a", "b"]], Y)
    given = (frame[columns], Y) if kind == "frame" else ([(frame[columns], Y)],)
    with pytest.raises(ValueError, match=r"feature names of X must be those of the fit, \['a', 'b'\], got"):
        model.diagnose(*given)
    assert len(list(model.diagnose(frame[["a", "b"]], Y))) == 1


def test_a_bad_value_in_a_memory_mapped_file_is_named_by_its_row(model, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 17)
    bad = NEW.copy()
    bad[38, 1] = np.nan
    with pytest.raises(ValueError, match="X has NaN in row 38, column 1"):
        model.predict(written(tmp_path, bad, "bad"))


def test_a_memory_mapped_file_is_predicted_block_by_block(model, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 17)
    mapped = written(tmp_path, NEW, "new", np.float32)
    mean, std = model.predict(mapped, return_std=True)
    expected = model.predict(NEW.astype(np.float32).astype(np.float64), return_std=True)
    np.testing.assert_allclose(mean, expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(std, expected[1], rtol=0, atol=1e-12)  # small ones are what is left of the prior's


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_inducing": 0}, "n_inducing must be a whole number, at least 1, got 0"),
        ({"fit_rows": None}, "fit_rows must be a whole number, at least 2, got None"),
        ({"polish": -1}, "polish must be a whole number, at least 0, got -1"),
        ({"threads": 0}, "threads must be a whole number, at least 1, got 0"),
        ({"selection": "random"}, "selection must be 'greedy'.*'kmeans', got 'random'"),
        ({"weight": "posterior"}, "weight must be 'learned'"),
        ({"priors": "strong"}, "priors must be 'weak'"),
        ({"max_iter": 2.5}, "max_iter must be a whole number"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        SparseRCGPRegressor(**parameters).fit(X, Y)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_are_named_by_row_and_column(bad, tmp_path):
    value = "NaN" if np.isnan(bad) else "inf"
    frame, y = pd.DataFrame(X, columns=["a", "b"]), Y.copy()
    frame.loc[5, "b"] = bad
    y[9] = bad
    model = SparseRCGPRegressor(**FEW)
    with pytest.raises(ValueError, match=rf"X contains {value} in row 5, column 'b' \(1 bad row"):
        model.fit(frame, Y)
    with pytest.raises(ValueError, match=f"y contains {value} in row 9"):
        model.fit(X, y)
    with pytest.raises(ValueError, match=f"y has {value} in row 9"):
        model.fit(written(tmp_path, X, "X"), written(tmp_path, y, "y"))
    with pytest.raises(ValueError, match=f"X contains {value} in row 5"):
        SparseRCGPRegressor(**FEW).fit(X, Y).predict(frame.to_numpy())


def test_a_column_of_text_is_named():
    frame = pd.DataFrame({"a": X[:, 0], "name": "P000000"})
    with pytest.raises(ValueError, match="X must be numbers, but column 'name' in row 0 is 'P000000'; encode"):
        SparseRCGPRegressor(**FEW).fit(frame, Y)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((pd.DataFrame(X, columns=["a", "y"]), "y"), r"give y as X\['y'\], and X without it"),
        (([(X, Y)], Y), "chunks are pairs .* leave y out"),
        (([X[:200], X[200:]], [Y[:200], Y[200:]]), "chunks are pairs .* leave y out"),
        ((lambda: iter([(X, Y)]),), "an object whose __iter__ calls the function"),
    ],
)
def test_errors_of_fit_explain_what_to_do(data, message):
    with pytest.raises(TypeError, match=message):
        SparseRCGPRegressor(**FEW).fit(*data)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("new.parquet", r"predict reads no files: pass dask.dataframe.read_parquet\('new.parquet'\)"),
        ([(NEW, NEW[:, 0])], r"\[model.predict\(X\) for X, y in chunks\]"),
        ([NEW, NEW], "predict takes one table"),
        (iter([NEW]), "predict takes one table"),
    ],
)
def test_errors_of_predict_explain_what_to_do(model, inputs, message):
    for options in ({}, {"return_cov": True}):
        with pytest.raises(TypeError, match=message):
            model.predict(inputs, **options)


def test_a_covariance_matrix_larger_than_memory_is_refused(model, monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: 3 * 8 * 50**2)
    assert model.predict(NEW, return_cov=True)[1].shape == (50, 50)
    with pytest.raises(MemoryError, match=r"covariance matrix of 51 rows needs about 0.0 GB .* ask for return_std"):
        model.predict(np.vstack([NEW, NEW[:1]]), return_cov=True)


def test_several_outputs_are_refused():
    with pytest.raises(ValueError, match="one output, got y with 2 columns"):
        SparseRCGPRegressor().fit(X, np.stack([Y, Y], axis=1))


def test_rows_that_can_be_read_only_once_are_refused():
    with pytest.raises(TypeError, match=r"whose iter\(\) starts again"):
        SparseRCGPRegressor(**FEW).fit((X[i : i + 90], Y[i : i + 90]) for i in range(0, N, 90))


def test_polishing_needs_rows_in_memory():
    with pytest.raises(ValueError, match="polish takes all rows into memory"):
        SparseRCGPRegressor(polish=3, **FEW).fit(Again())


def test_a_failed_fit_leaves_the_estimator_unchanged(model):
    fresh = SparseRCGPRegressor(**FEW)
    with pytest.raises(ValueError, match="NaN"):
        fresh.fit([(X, Y), (X[:2], np.array([0.0, np.nan]))])
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    with pytest.raises(NotFittedError):
        fresh.diagnose(X, Y)
    fitted = copy.deepcopy(model).set_params(progress=_interrupt)
    before = dict(fitted.__dict__)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(pd.DataFrame(X[:, :1], columns=["a"]), Y)
    assert fitted.__dict__ == before
    np.testing.assert_array_equal(fitted.predict(NEW), model.predict(NEW))


def test_an_error_in_the_last_pass_leaves_nothing_half_fitted():
    passes, last = [], None

    class Rows(Again):
        def __iter__(self):
            passes.append(len(passes) + 1)
            if passes[-1] == last:
                raise OSError("the disk is gone")
            return super().__iter__()

    SparseRCGPRegressor(**FEW).fit(Rows())
    last = len(passes)
    passes.clear()
    model = SparseRCGPRegressor(**FEW)
    with pytest.raises(OSError, match="the disk is gone"):
        model.fit(Rows())
    assert len(passes) == last
    assert set(vars(model)) == set(SparseRCGPRegressor().get_params())


def _interrupt(evaluations, best):
    if evaluations == 3:
        raise KeyboardInterrupt


def test_a_diagnosis_of_other_columns_is_refused(model):
    with pytest.raises(ValueError, match="X has 1 features, but the model was fitted to 2"):
        model.diagnose(X[:, :1], Y)


def test_a_fit_cut_short_warns():
    with pytest.warns(ConvergenceWarning, match=r"did not converge in \d+ iterations: .*LIMIT"):
        SparseRCGPRegressor(max_iter=1, **FEW).fit(X, Y)


# Copies ---------------------------------------------------------------------------------------------------------------


class Client:
    """Stands for what cannot be copied."""

    def __reduce__(self):
        raise TypeError("a client belongs to a process")

    __deepcopy__ = None


def test_copies_have_no_client(model, tmp_path):
    kernel = RBF() + WhiteKernel()
    fitted = copy.deepcopy(model).set_params(kernel=kernel, client=Client())
    assert fitted.get_params()["client"] is fitted.client is not None
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), copy.copy(fitted)):
        assert other.client is None
        np.testing.assert_array_equal(other.predict(NEW), model.predict(NEW))
    with sklearn.config_context(enable_metadata_routing=True):
        cloned = clone(fitted.set_fit_request(sample_weight=True))
        assert cloned.get_metadata_routing().fit.requests["sample_weight"] is True
    assert cloned.client is None
    assert cloned.kernel == kernel
    assert cloned.n_inducing == 30
    assert not hasattr(cloned, "model_")
    assert fitted.client is not None


def test_cross_validation_in_parallel_works():
    scores = cross_val_score(SparseRCGPRegressor(**FEW), X, Y, cv=2, n_jobs=2, scoring="neg_median_absolute_error")
    assert (scores > -0.3).all()


def test_a_custom_weight_is_copied_and_not_changed():
    weight = InverseMultiquadric(trainable=True)
    SparseRCGPRegressor(weight=weight, **FEW).fit(X, Y)
    assert weight.log_c.isnan()  # as it was before it met any data


def test_an_observation_may_be_missing_in_a_row_of_no_weight(model):
    y, weights = Y.copy(), np.ones(N)
    y[5], weights[5] = np.nan, 0.0
    gap = SparseRCGPRegressor(**FEW).fit(X, y, weights)
    np.testing.assert_allclose(gap.predict(NEW), model.predict(NEW), atol=0.05)
    assert np.isfinite(gap.loo_mean_).all()
    for values in (gap.weights_, gap.outlier_scores_, gap.outlier_probability_):
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(values)), [5])
    assert not gap.outliers_[5]
    with pytest.warns(DataConversionWarning, match="column-vector"):
        column = SparseRCGPRegressor(**FEW).fit(X, pd.DataFrame({"y": y}), weights)
    np.testing.assert_array_equal(column.predict(NEW), gap.predict(NEW))
    with pytest.raises(ValueError, match="y contains NaN in row 5"):
        SparseRCGPRegressor(**FEW).fit(X, y)
