"""The sparse regressor on a cluster of two worker processes, after the conventions of LightGBM."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import rcgp
from clusters import shared_client
from optional_parts import local_cluster, optional
from rcgp import SparseRCGPRegressor

random = np.random.default_rng(0)
N = 400
X = random.uniform(-2, 2, (N, 2))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * random.standard_normal(N)
Y[::13] += 4.0
NEW = random.uniform(-2.5, 2.5, (50, 2))
FEW = {"n_inducing": 30, "fit_rows": 100, "random_state": 0}


@pytest.fixture(scope="module")
def da():
    return optional("dask.array")


@pytest.fixture(scope="module")
def client(pytestconfig):
    return shared_client(pytestconfig)


@pytest.fixture(scope="module")
def local():
    return SparseRCGPRegressor(**FEW).fit(X, Y)


@pytest.fixture(scope="module")
def fitted(client, da):
    return SparseRCGPRegressor(client=client, **FEW).fit(da.from_array(X, (90, 1)), da.from_array(Y, 70))


def test_a_cluster_gives_the_same_model(fitted, local):
    np.testing.assert_allclose(fitted.predict(NEW), local.predict(NEW), rtol=1e-10, atol=1e-10)
    assert fitted.fit_report_.hyperparameters == local.fit_report_.hyperparameters
    np.testing.assert_allclose(fitted.noise_law_.shares, local.noise_law_.shares, rtol=1e-9)
    assert not hasattr(fitted, "weights_")


def test_rows_of_weight_zero_may_lack_their_observation(da):
    y, weight = Y.copy(), np.ones(N)
    y[[7, 200]], weight[[7, 200]] = np.nan, 0.0
    expected = SparseRCGPRegressor(**FEW).fit(X, y, weight)
    blocks = (da.from_array(values, 90) for values in (y, weight))
    model = SparseRCGPRegressor(**FEW).fit(da.from_array(X, (90, 2)), *blocks)
    np.testing.assert_allclose(model.predict(NEW), expected.predict(NEW), rtol=1e-10, atol=1e-10)


def test_a_given_weight_and_sample_weights_give_the_same_model_too(client, da):
    weight = np.arange(N) % 3.0
    expected = SparseRCGPRegressor(weight="imq", **FEW).fit(X, Y, weight)
    model = SparseRCGPRegressor(weight="imq", client=client, **FEW)
    model.fit(da.from_array(X, (90, 2)), da.from_array(Y, 90), da.from_array(weight, 50))
    np.testing.assert_allclose(model.predict(NEW), expected.predict(NEW), rtol=1e-10, atol=1e-10)


def test_data_frames_keep_their_names(client, local):
    dd = optional("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}), npartitions=3)
    model = SparseRCGPRegressor(client=client, **FEW).fit(frame[["a", "b"]], frame["y"])
    assert list(model.feature_names_in_) == ["a", "b"]
    new = pd.DataFrame(NEW, columns=["a", "b"])
    np.testing.assert_allclose(model.predict(new), local.predict(NEW), rtol=1e-10, atol=1e-10)
    lazy = model.predict(dd.from_pandas(new, npartitions=2))
    np.testing.assert_allclose(lazy.compute(), local.predict(NEW), rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match=r"feature names of X must be those of the fit.*in another order"):
        model.predict(dd.from_pandas(new[["b", "a"]], npartitions=2))
    with pytest.raises(ValueError, match=r"not in the fit: \['y'\]"):
        model.predict(frame)
    with pytest.raises(ValueError, match=r"missing: \['b'\]"):
        model.predict(frame[["a"]])
    with pytest.raises(ValueError, match="in another order"):
        model.diagnose(frame[["b", "a"]], frame["y"])
    with pytest.raises(TypeError, match=r"give y as X\['y'\]"):
        model.fit(frame, "y")


def test_data_frames_with_numbered_columns_are_predicted(local):
    dd = optional("dask.dataframe")
    frame, y = dd.from_pandas(pd.DataFrame(X), npartitions=3), dd.from_pandas(pd.Series(Y), npartitions=3)
    model = SparseRCGPRegressor(**FEW).fit(frame, y)
    assert not hasattr(model, "feature_names_in_")
    np.testing.assert_allclose(model.predict(frame).compute(), local.predict(X), rtol=1e-10, atol=1e-10)
    assert len(list(model.diagnose(frame, y))) == 3


def test_predictions_of_a_dask_array_are_lazy(fitted, da):
    mean, std = fitted.predict(da.from_array(NEW, (20, 1)), return_std=True, include_noise=True)
    expected = fitted.predict(NEW, return_std=True, include_noise=True)
    assert isinstance(mean, da.Array)
    assert mean.shape == std.shape == (50,)
    assert mean.dtype == np.float64
    assert mean.chunks == ((20, 20, 10),)
    np.testing.assert_allclose(mean.compute(), expected[0], rtol=1e-12, atol=1e-12)  # some are near zero
    np.testing.assert_allclose(std.compute(), expected[1], rtol=1e-12)
    lower, upper = fitted.predict_interval(da.from_array(NEW, (20, 1)))
    assert isinstance(lower, da.Array)
    np.testing.assert_allclose(upper.compute(), fitted.predict_interval(NEW)[1], rtol=1e-12, atol=1e-12)
    assert fitted.predict_quantiles(da.from_array(NEW, (20, 1)), [0.1, 0.9]).compute().shape == (50, 2)
    with pytest.raises(ValueError, match="log_predictive_density and return_cov take inputs in memory"):
        fitted.log_predictive_density(da.from_array(NEW, (20, 1)), NEW[:, 0])
    with pytest.raises(ValueError, match="X has 3 features, but the model was fitted to 2"):
        fitted.predict(da.zeros((5, 3)))
    bad = np.where(np.arange(5)[:, None] == 4, np.nan, np.zeros((5, 2)))
    with pytest.raises(ValueError, match="X has NaN in row 1 of its block, column 0"):
        fitted.predict(da.from_array(bad, 3)).compute()


def test_it_predicts_on_the_cluster_too(fitted, client, da):
    lazy = fitted.predict(da.from_array(NEW, 20))
    np.testing.assert_allclose(client.compute(lazy).result(), fitted.predict(NEW), rtol=1e-12, atol=1e-12)


def test_the_client_is_never_part_of_a_copy(fitted, tmp_path):
    assert fitted.client is not None
    assert pickle.loads(pickle.dumps(fitted)).client is None
    assert clone(fitted).client is None
    fitted.save(tmp_path / "model.rcgp")
    loaded = rcgp.load(tmp_path / "model.rcgp")
    assert loaded.client is None
    np.testing.assert_array_equal(loaded.predict(NEW), fitted.predict(NEW))


def test_a_bad_value_on_a_worker_is_named(client, da):
    y = Y.copy()
    y[321] = np.nan
    model = SparseRCGPRegressor(client=client, **FEW)
    with pytest.raises(ValueError, match="y has NaN in row 321"):
        model.fit(da.from_array(X, 90), da.from_array(y, 90))
    assert not hasattr(model, "model_")


def test_the_first_of_several_bad_values_on_workers_is_named(client, da):
    def late(block, block_info=None):  # its first block, so that the others are found to be bad before it
        import time

        time.sleep(0.5 if block_info[0]["chunk-location"] == (0,) else 0.0)
        return block

    inputs, y = X.copy(), Y.copy()
    y[[55, 58, 321]], inputs[[150, 230], 1] = np.nan, np.inf
    rows = da.from_array(inputs, (60, 2)), da.from_array(y, 60).map_blocks(late, dtype=float, meta=np.empty(0))
    messages = []
    for model in (SparseRCGPRegressor(**FEW), SparseRCGPRegressor(client=client, **FEW)):
        with pytest.raises(ValueError, match=r"^y has NaN in row 55 ") as caught:
            model.fit(*rows)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_client_needs_rows_that_workers_can_read(client):
    with pytest.raises(TypeError, match=r"client= is for rows in Dask arrays.*dask\.array\.from_array"):
        SparseRCGPRegressor(client=client, **FEW).fit(X, Y)


@pytest.mark.slow
def test_killing_a_worker_during_a_fit_changes_nothing(client, da, local):
    victim = next(iter(client.run(os.getpid).values()))
    killed = []

    def kill(evaluations, best):  # with the rows on the workers, and the passes over all of them to come
        if not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(evaluations)

    model = SparseRCGPRegressor(client=client, progress=kill, **FEW)
    model.fit(da.from_array(X, (90, 1)), da.from_array(Y, 70))
    assert killed
    np.testing.assert_allclose(model.predict(NEW), local.predict(NEW), rtol=1e-10, atol=1e-10)
    assert model.fit_report_.hyperparameters == local.fit_report_.hyperparameters
    client.wait_for_workers(2, timeout=60)
    assert victim not in client.run(os.getpid).values()


@pytest.mark.slow
def test_killing_a_worker_during_a_pass_changes_nothing(client, da, local, tmp_path):
    victim = next(iter(client.run(os.getpid).values()))

    def note(block):  # each block, as it is read on a worker
        import time
        import uuid
        from pathlib import Path

        Path(tmp_path, uuid.uuid4().hex).touch()
        time.sleep(0.2)
        return block

    def kill():
        while len(os.listdir(tmp_path)) < 3:
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    killing = threading.Thread(target=kill, daemon=True)
    killing.start()
    rows = da.from_array(X, (40, 2)).map_blocks(note, dtype=float, meta=np.empty((0, 0)))
    model = SparseRCGPRegressor(client=client, **FEW).fit(rows, da.from_array(Y, 40))
    killing.join(timeout=10)
    assert not killing.is_alive()
    np.testing.assert_allclose(model.predict(NEW), local.predict(NEW), rtol=1e-10, atol=1e-10)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.slow
def test_a_lost_scheduler_is_a_clear_error_and_leaves_nothing_half_fitted(da):
    with local_cluster(1) as cluster, optional("distributed").Client(cluster, set_as_default=False) as client:
        model = SparseRCGPRegressor(client=client, **FEW)

        def close(evaluations, best):
            cluster.close()

        with pytest.raises(RuntimeError, match=r"the Dask scheduler at tcp://.* is gone"):
            model.set_params(progress=close).fit(da.from_array(X, 90), da.from_array(Y, 90))
        assert set(vars(model)) == set(SparseRCGPRegressor().get_params())
