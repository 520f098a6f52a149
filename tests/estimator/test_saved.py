"""Saved estimators: the same predictions to the bit, the same diagnosis, the same parameters; and never any code."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest
import sklearn.gaussian_process.kernels as sk
import torch
from sklearn.base import clone

import rcgp
from marks import slow
from rcgp import RCGPRegressor, SparseRCGPRegressor
from rcgp.estimator import NoiseLawWarning
from rcgp.saving import SavedModelError, archive, read_archive, write_archive
from rcgp.weights import Heteroskedastic, InverseMultiquadric, OneSided, SquaredExponential

random = np.random.default_rng(0)
X = pd.DataFrame(random.uniform(-2, 2, (40, 2)), columns=["length", "<width>"])
y = np.sin(X["length"].to_numpy()) + 0.05 * random.standard_normal(40)
y[3] += 4.0
NEW = pd.DataFrame(random.uniform(-2, 2, (25, 2)), columns=X.columns)


def with_priors():
    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2, lengthscale_prior=gpytorch.priors.GammaPrior(3.0, 2.0))
    )
    return kernel + gpytorch.kernels.LinearKernel(active_dims=[1])


ESTIMATORS = {
    "default": RCGPRegressor(),
    "one noise": RCGPRegressor(local_noise=False),
    "bare": RCGPRegressor(priors=None, mean="robust_linear", weight=SquaredExponential(epsilon=0.1)),
    "plain": RCGPRegressor(weight="constant", mean="quadratic"),
    "cut short": RCGPRegressor(weight="imq", max_iter=1, normalize=False, mean="zero"),
    "gpytorch kernel": RCGPRegressor(kernel=with_priors(), mean=gpytorch.means.LinearMean(2)),
    "scikit-learn kernel": RCGPRegressor(
        kernel=sk.ConstantKernel(1.0, (0.1, 1e3)) * sk.Matern([1.0, 2.0], nu=1.5) + sk.WhiteKernel(0.1, "fixed")
    ),
    "rbf as matern": RCGPRegressor(kernel=sk.Matern(nu=np.inf) * sk.DotProduct() + sk.WhiteKernel(0.1)),
    "trained threshold": RCGPRegressor(weight=InverseMultiquadric(trainable=True), n_restarts=1, random_state=2),
    "one-sided": RCGPRegressor(weight=OneSided(SquaredExponential(c=1.0), "above")),
    "some rows": RCGPRegressor(fit_rows=20, random_state=1),
    "random generator": RCGPRegressor(n_restarts=1, random_state=np.random.RandomState(3)),
}


EXACT = ("weights_", "outliers_", "outlier_probability_", "outlier_scores_", "loo_mean_", "loo_std_")


def answers(model):
    """All predictions of a fitted estimator at new inputs."""
    new_y = np.zeros(len(NEW)) if model.n_outputs_ == 1 else np.zeros((len(NEW), model.n_outputs_))
    return [
        *model.predict(NEW, return_std=True, include_noise=True),
        model.predict(NEW, return_cov=True)[1],
        *model.predict_interval(NEW, 0.9),
        model.predict_quantiles(NEW, [0.1, 0.3]),
        model.noise_std(NEW),
        model.log_predictive_density(NEW, new_y),
        model.sample_y(NEW, 2),
    ]


def assert_same(loaded, model):
    for part, other in zip(answers(model), answers(loaded), strict=True):
        np.testing.assert_array_equal(part, other)
    for name in (*EXACT, "noise_variance_", "n_iter_", "feature_names_in_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(loaded, name))
    assert loaded.noise_law_ == model.noise_law_
    assert loaded.doubts_ == model.doubts_
    assert loaded.fit_report_ == model.fit_report_
    for inner, other in zip(model.models_, loaded.models_, strict=True):
        assert {name for name, *_ in inner.named_priors()} == {name for name, *_ in other.named_priors()}
        assert inner.state_dict().keys() == other.state_dict().keys()
        assert all(torch.equal(inner.state_dict()[key], other.state_dict()[key]) for key in inner.state_dict())
        assert inner.noise_law == other.noise_law
        assert (inner.local_noise is None) == (other.local_noise is None)
        gradients = [{n: p.requires_grad for n, p in m.named_parameters()} for m in (inner, other)]
        assert gradients[0] == gradients[1]


# A search may be cut short, and a fixed noise or a weight of one's own need not fit: what is saved is the same.
anything = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::rcgp.estimator.NoiseLawWarning"
)


# In make test each kind of part occurs once.
SLOW = ("one noise", "plain", "rbf as matern", "some rows")


@anything
@pytest.mark.parametrize("name", [slow(name) if name in SLOW else name for name in ESTIMATORS])
def test_a_round_trip_changes_nothing(name, tmp_path):
    model = clone(ESTIMATORS[name]).fit(X, y)
    model.save(tmp_path / "model.rcgp")
    loaded = rcgp.load(tmp_path / "model.rcgp")
    assert_same(loaded, model)
    if not isinstance(model.random_state, np.random.RandomState):
        np.testing.assert_allclose(clone(loaded).fit(X, y).predict(NEW), model.predict(NEW), rtol=1e-9)
    loaded.save(tmp_path / "again.rcgp")
    assert_same(rcgp.load(tmp_path / "again.rcgp"), model)


@pytest.fixture(scope="module")
def with_local_noise():
    """A model of noise that grows with an input."""
    inputs = pd.DataFrame(np.random.default_rng(4).uniform(-2, 2, (150, 2)), columns=X.columns)
    std = 0.1 * np.exp(0.7 * inputs["length"].to_numpy())
    observed = np.sin(inputs["length"].to_numpy()) + std * np.random.default_rng(5).standard_normal(150)
    with warnings.catch_warnings():  # marks do not reach a fixture of a module
        warnings.simplefilter("ignore", NoiseLawWarning)
        model = RCGPRegressor().fit(inputs, observed)
    assert model.fit_report_.local_noise
    return model


def test_local_noise_is_kept(with_local_noise, tmp_path):
    assert np.ptp(with_local_noise.noise_std(NEW)) > 0.05
    with_local_noise.save(tmp_path / "model.rcgp")
    assert_same(rcgp.load(tmp_path / "model.rcgp"), with_local_noise)


def test_doubts_are_kept(tmp_path):
    with pytest.warns(NoiseLawWarning, match="7 rows are too few"):
        model = RCGPRegressor().fit(X[:7], y[:7])
    model.save(tmp_path / "model.rcgp")
    assert rcgp.load(tmp_path / "model.rcgp").doubts_ == model.doubts_ != ()


@anything
def test_several_outputs_and_sample_weights_are_kept(tmp_path):
    model = RCGPRegressor().fit(X, np.stack([y, -3.0 * y], axis=1), sample_weight=np.arange(40) % 3)
    model.save(tmp_path / "model.rcgp")
    assert_same(rcgp.load(tmp_path / "model.rcgp"), model)


@pytest.mark.slow
def test_another_process_predicts_the_same_to_the_bit(fitted, tmp_path):
    fitted.save(tmp_path / "model.rcgp")
    NEW.to_csv(tmp_path / "new.csv", index=False, float_format="%.17g")
    code = (
        "import sys, torch, rcgp, pandas as pd\n"
        "torch.set_num_threads(1)\n"
        "new = pd.read_csv(sys.argv[2], float_precision='round_trip')\n"
        "mean, std = rcgp.load(sys.argv[1]).predict(new, return_std=True)\n"
        "print(mean.tobytes().hex(), std.tobytes().hex())"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "model.rcgp"), str(tmp_path / "new.csv")]
    mean, std = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    assert (mean, std) == tuple(part.tobytes().hex() for part in fitted.predict(NEW, return_std=True))


@anything
@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (RCGPRegressor(mean=lambda x: x[..., 0]), "mean=.*a function is code, and code is not saved"),
        (RCGPRegressor(weight=Heteroskedastic(lambda x: 0.1 + 0 * x[..., 0])), "Heteroskedastic"),
    ],
)
def test_code_is_refused_and_nothing_is_written(estimator, message, tmp_path):
    model = estimator.fit(X, y)
    path = tmp_path / "model.rcgp"
    path.write_text("an older file")
    with pytest.raises(SavedModelError, match=message):
        model.save(path)
    assert path.read_text() == "an older file"
    assert list(tmp_path.iterdir()) == [path]


def test_a_progress_function_is_not_part_of_the_model(tmp_path):
    model = RCGPRegressor(progress=lambda evaluations, best: None).fit(X, y)
    model.save(tmp_path / "model.rcgp")
    assert rcgp.load(tmp_path / "model.rcgp").progress is False


def test_an_estimator_that_is_not_fitted_is_refused(tmp_path):
    with pytest.raises(SavedModelError, match="not fitted yet"):
        RCGPRegressor().save(tmp_path / "model.rcgp")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def fitted():
    return RCGPRegressor().fit(X, y)


@pytest.fixture
def saved(fitted, tmp_path):
    path = tmp_path / "model.rcgp"
    fitted.save(path)
    return path


def test_a_pickle_is_not_read(saved):
    saved.write_bytes(pickle.dumps(RCGPRegressor()))
    with pytest.raises(SavedModelError):
        rcgp.load(saved)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d, t: d.update(kind="SparseRCGP"),
        lambda d, t: d.pop("outputs"),
        lambda d, t: d["parameters"].update(unknown=1),
        lambda d, t: d["parameters"].update(kernel={"sklearn": {"class": "os.system"}}),
        lambda d, t: d["parameters"].update(kernel={"module": {"class": "eval"}}),
        lambda d, t: d["outputs"][0].update(mean=d["outputs"][0]["kernel"]),
        lambda d, t: d["outputs"][0].update(noise_constraint=None),
        lambda d, t: d["outputs"][0]["report"].pop("value"),
        lambda d, t: d["outputs"][0].pop("law"),
        lambda d, t: d["outputs"][0]["law"].update(shares=[0.5, 0.5, 0.5]),
        lambda d, t: d["outputs"][0]["law"].update(shares=[1.0, 0.0]),
        lambda d, t: d["outputs"][0]["law"].update(shares=["nan", 0.0, 0.0]),
        lambda d, t: d["outputs"][0]["law"].update(outlier_share=-0.1),
        lambda d, t: d["outputs"][0]["law"].update(width=0.0),
        lambda d, t: d["outputs"][0].update(doubts=3),
        lambda d, t: d["outputs"][0]["weight"]["arguments"].update(rows=39),
        lambda d, t: t["outputs.0.weight.variance"].fill_(torch.nan),
        lambda d, t: t["outputs.0.weight.local"].fill_(-1.0),
        lambda d, t: d.update(n_features_in="two"),
        lambda d, t: d.update(feature_names_in=["length"]),
        lambda d, t: d.update(feature_names_in=[1, None]),
        lambda d, t: d["parameters"].update(n_restarts="many"),
        lambda d, t: t.update({"outputs.0.weights": torch.ones(3, dtype=torch.float64)}),
        lambda d, t: t.update({"outputs.0.outlier_probability": torch.full((40,), 7)}),
        lambda d, t: t["outputs.0.raw_noise"].fill_(torch.nan),
        lambda d, t: t.update({"more": torch.ones(3)}),
        lambda d, t: t.pop("outputs.0.raw_noise"),
        lambda d, t: t.update({"outputs.0.train_y": torch.zeros(3)}),
        lambda d, t: t.update({"outputs.0.raw_noise": torch.zeros(7)}),
    ],
)
def test_nonsense_with_a_good_checksum_is_a_clear_error(saved, spoil):
    description, tensors = read_archive(saved)
    spoil(description, tensors)
    write_archive(saved, description, tensors)
    with pytest.raises(SavedModelError, match=r"model\.rcgp"):
        rcgp.load(saved)


LOCAL = [
    lambda d, t: d["outputs"][0].update(local_kernel=d["outputs"][0]["mean"]),
    lambda d, t: d["outputs"][0].pop("local_kernel"),
    lambda d, t: t.pop("outputs.0.local.counts"),
    lambda d, t: t.update({"outputs.0.local.counts": torch.ones(3, dtype=torch.float64)}),
    lambda d, t: t.update({"outputs.0.local.X": torch.ones(150, 3, dtype=torch.float64)}),
    lambda d, t: d["outputs"][0].pop("local_power"),
    lambda d, t: d["outputs"][0].update(local_power=3.0),
    lambda d, t: d["outputs"][0].update(local_power="nan"),
    lambda d, t: t["outputs.0.local.squares"].fill_(torch.nan),
    lambda d, t: t["outputs.0.local.squares"].fill_(-1.0),
    lambda d, t: t["outputs.0.local.counts"].fill_(-1.0),
]


@pytest.mark.parametrize("spoil", LOCAL)
def test_nonsense_about_local_noise_is_a_clear_error(with_local_noise, tmp_path, spoil):
    path = tmp_path / "model.rcgp"
    with_local_noise.save(path)
    description, tensors = read_archive(path)
    spoil(description, tensors)
    write_archive(path, description, tensors)
    with pytest.raises(SavedModelError, match=r"model\.rcgp"):
        rcgp.load(path)


def test_a_file_of_an_earlier_version_names_the_version_that_reads_it(saved, monkeypatch):
    description, tensors = read_archive(saved)
    monkeypatch.setattr(archive, "FORMAT_VERSION", 1)
    write_archive(saved, description, tensors)
    monkeypatch.undo()
    with pytest.raises(SavedModelError, match=r"in format 1, .* read it with rcgp 0\.1\.0, or fit the model again"):
        rcgp.load(saved)


# Sparse models --------------------------------------------------------------------------------------------------------

SPARSE = {
    "default": SparseRCGPRegressor(n_inducing=12, fit_rows=30, random_state=0),
    "one noise": SparseRCGPRegressor(n_inducing=12, fit_rows=30, local_noise=False, random_state=0),
    "paper": SparseRCGPRegressor(n_inducing=12, fit_rows=30, weight="se", random_state=0),
    "plain": SparseRCGPRegressor(n_inducing=12, fit_rows=30, weight="constant", random_state=0),
    "own parts": SparseRCGPRegressor(
        kernel=with_priors(),
        mean=gpytorch.means.LinearMean(2),
        weight=OneSided(InverseMultiquadric(trainable=True), "above"),
        random_state=1,
        polish=2,
        threads=1,
    ),
}
PER_ROW = ("weights_", "outlier_scores_", "outlier_probability_", "outliers_", "loo_mean_", "loo_std_")


def sparse_answers(model):
    return [
        *model.predict(NEW, return_std=True),
        model.predict(NEW, return_std=True, include_noise=True)[1],
        *model.predict_interval(NEW, 0.9),
        model.noise_std(NEW),
    ]


def assert_same_sparse(loaded, model):
    for part, other in zip(sparse_answers(model), sparse_answers(loaded), strict=True):
        np.testing.assert_array_equal(part, other)
    assert loaded.noise_law_ == model.noise_law_
    assert loaded.doubts_ == model.doubts_
    for name in (*PER_ROW, "noise_variance_", "n_iter_", "feature_names_in_", "inducing_points_", "lengthscales_"):
        assert hasattr(model, name) == hasattr(loaded, name)
        np.testing.assert_array_equal(getattr(model, name, None), getattr(loaded, name, None))
    for one, other in zip(model.diagnose(X, y), loaded.diagnose(X, y), strict=True):
        for part, again in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, again)
    for name in ("report", "polished", "rows", "fitted_rows", "trusted_spread", "unseen", "seconds"):
        assert getattr(loaded.model_, name) == getattr(model.model_, name)


@anything
@pytest.mark.filterwarnings("ignore::rcgp.estimator.IntervalWarning")  # few points are quickly saved
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_model_is_the_same_after_a_round_trip(name, tmp_path):
    model = clone(SPARSE[name]).fit(X, y, np.where(np.arange(40) < 3, 0.0, 1.0 + np.arange(40) % 2))
    model.save(tmp_path / "model.rcgp")
    loaded = rcgp.load(tmp_path / "model.rcgp")
    assert type(loaded) is SparseRCGPRegressor
    assert_same_sparse(loaded, model)
    again = clone(loaded).fit(X, y).predict(NEW)
    np.testing.assert_allclose(again, clone(model).fit(X, y).predict(NEW), rtol=1e-9, atol=1e-9)
    loaded.save(tmp_path / "again.rcgp")
    assert_same_sparse(rcgp.load(tmp_path / "again.rcgp"), model)


@anything
@pytest.mark.filterwarnings("ignore::rcgp.estimator.IntervalWarning")
def test_a_sparse_model_of_rows_that_were_not_in_memory_is_kept_without_them(tmp_path):
    model = clone(SPARSE["default"]).fit([(X[:25], y[:25]), (X[25:], y[25:])])
    model.save(tmp_path / "model.rcgp")
    assert_same_sparse(rcgp.load(tmp_path / "model.rcgp"), model)


@pytest.fixture(scope="module")
def sparse():
    return clone(SPARSE["default"]).fit(X, y)


def test_a_sparse_model_that_is_not_fitted_is_refused(tmp_path):
    with pytest.raises(SavedModelError, match="not fitted yet"):
        SparseRCGPRegressor().save(tmp_path / "model.rcgp")


@anything
@pytest.mark.filterwarnings("ignore::rcgp.estimator.IntervalWarning")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda d, t: d.update(kind="RCGPRegressor"),
        lambda d, t: d.pop("model"),
        lambda d, t: d["model"].pop("links"),
        lambda d, t: d["model"].update(links=[]),
        lambda d, t: d["model"].update(links=1),
        lambda d, t: d["model"]["links"].append(d["model"]["links"][0]),
        lambda d, t: d["model"]["links"][0].update(shares=[0.5, 0.5, 0.5]),
        lambda d, t: d["model"]["noise"].update(outlier_share=-1.0),
        lambda d, t: d["model"]["flags"].update(width=0.0),
        lambda d, t: d["model"].update(kernel=d["model"]["mean"]),
        lambda d, t: d["model"].update(rows="many"),
        lambda d, t: d["model"].update(report=None),
        lambda d, t: d.update(n_features_in=3),
        lambda d, t: d["parameters"].update(n_inducing=0),
        lambda d, t: d["parameters"].update(client="tcp://127.0.0.1:1"),
        lambda d, t: t["model.noise.variance"].fill_(-1.0),
        lambda d, t: t["model.L"].fill_(torch.nan),
        lambda d, t: t["model.posterior.L_B"].fill_(0.0),
        lambda d, t: t.update({"model.posterior.alpha": torch.zeros(3, dtype=torch.float64)}),
        lambda d, t: t.update({"model.Z": t["model.Z"].float()}),
        lambda d, t: t.update({"model.weights": torch.ones(3, dtype=torch.float64)}),
        lambda d, t: t.pop("model.loo_std"),
        lambda d, t: t.update({"model.more": torch.ones(3)}),
    ],
)
def test_nonsense_about_a_sparse_model_is_a_clear_error(sparse, tmp_path, spoil):
    path = tmp_path / "model.rcgp"
    sparse.save(path)
    description, tensors = read_archive(path)
    spoil(description, tensors)
    write_archive(path, description, tensors)
    with pytest.raises(SavedModelError, match=r"model\.rcgp"):
        rcgp.load(path)
