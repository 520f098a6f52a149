"""scikit-learn's contract: its own checks, and what its users do with an estimator."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from rcgp import RCGPRegressor
from rcgp.estimator import NoiseLawWarning
from rcgp.weights import InverseMultiquadric, SquaredExponential

# A sample weight scales the precision of a row. In the posterior that equals repeated rows (tested beside this file);
# in the choice of hyperparameters it does not.
REPEATED_ROWS = {
    "imq": "left out, a repeated row is predicted by its twin, a weighted one is not",
    "constant": "repeated rows agree exactly, which speaks for little noise; one weighted row says nothing of it",
    "learned": "repeated rows agree exactly, which speaks for little noise; one weighted row says nothing of it",
}
# Any fit will do: one iteration of the cheapest.
QUICK = {"weight": "constant", "max_iter": 1}
quick = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def repeated_rows(estimator):
    return {"check_sample_weight_equivalence_on_dense_data": REPEATED_ROWS[estimator.weight]}


def quietly(check, estimator):
    with warnings.catch_warnings():
        # Checks fit tiny or random data, on which an optimiser may stop early, and no noise law can be learned.
        warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
        warnings.simplefilter("ignore", NoiseLawWarning)
        check(estimator)


@parametrize_with_checks([RCGPRegressor(weight="imq")], expected_failed_checks=repeated_rows)
def test_scikit_learns_own_checks_pass(estimator, check):
    quietly(check, estimator)


@pytest.mark.slow
@parametrize_with_checks([RCGPRegressor(), RCGPRegressor(weight="constant")], expected_failed_checks=repeated_rows)
def test_scikit_learns_own_checks_pass_for_other_weights(estimator, check):
    quietly(check, estimator)


def make_table(n=60, outlier=5.0):
    random = np.random.default_rng(0)
    X = random.uniform(-2, 2, (n, 2))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.05 * random.standard_normal(n)
    y[7] = outlier
    return X, y


def test_parameters_are_stored_untouched_and_cloned():
    weight, kernel = SquaredExponential(c=2.0), RBF() + WhiteKernel()
    model = RCGPRegressor(kernel=kernel, weight=weight, n_restarts=2, random_state=3)
    assert model.get_params()["weight"] is weight
    copied = clone(model)
    assert copied.get_params()["kernel"] == kernel
    assert copied.weight is not weight
    assert copied.set_params(kernel__k1__length_scale=3.0).kernel.k1.length_scale == 3.0


def test_fitting_changes_neither_parameters_nor_data():
    import gpytorch

    X, y = make_table()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    weight = SquaredExponential(trainable=True)
    X_before, y_before = X.copy(), y.copy()
    RCGPRegressor(kernel=kernel, weight=weight).fit(X, y)
    assert all((kernel.state_dict()[name] == value).all() for name, value in before.items())
    assert weight.log_c.isnan()  # as it was before it met any data
    assert (X_before == X).all()
    assert (y == y_before).all()


@quick
@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_grid_search_pipeline_and_parallel_cross_validation_work():
    X, y = make_table()
    any_fit = RCGPRegressor(**QUICK)
    pipeline = make_pipeline(StandardScaler(), any_fit)
    weights = ["imq", InverseMultiquadric(epsilon=0.2), "constant"]
    search = GridSearchCV(pipeline, {"rcgpregressor__weight": weights}, cv=2)
    assert search.fit(X, y).best_params_["rcgpregressor__weight"] in weights
    scores = cross_val_score(RCGPRegressor(), X, y, cv=3, n_jobs=2, scoring="neg_median_absolute_error")
    assert (scores > -0.5).all()
    assert cross_val_predict(any_fit, X, y, cv=3).shape == y.shape
    assert TransformedTargetRegressor(any_fit, transformer=StandardScaler()).fit(X, y).predict(X).shape == y.shape


def test_pickling_after_predicting_gives_the_same_predictions():
    X, y = make_table()
    model = RCGPRegressor().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    again = pickle.loads(pickle.dumps(model))
    assert all((a == b).all() for a, b in zip(again.predict(X, return_std=True), (mean, std), strict=True))
    assert again.fit_report_ == model.fit_report_


@quick
@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_sample_weights_are_routed():
    X, y = make_table()
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False), RCGPRegressor().set_fit_request(sample_weight=True)
        )
        weighted = pipeline.fit(X, y, sample_weight=np.where(np.arange(60) == 7, 0.0, 1.0))
        several = MultiOutputRegressor(RCGPRegressor(**QUICK).set_fit_request(sample_weight=True))
        several.fit(X, np.stack([y, -y], axis=1), sample_weight=np.full(60, 2.0))
    plain = make_pipeline(StandardScaler(), RCGPRegressor()).fit(X, y)
    assert not np.allclose(weighted.predict(X), plain.predict(X), rtol=1e-6)


def test_the_html_representation_names_the_estimator():
    assert "RCGPRegressor" in RCGPRegressor()._repr_html_()
    X, y = make_table()
    assert "fitted" in RCGPRegressor().fit(X, y)._repr_html_()
    assert repr(RCGPRegressor(weight="learned")) == "RCGPRegressor()"
    assert repr(RCGPRegressor(weight="se", local_noise=False)) == "RCGPRegressor(local_noise=False, weight='se')"


def test_data_frames_keep_their_names():
    X, y = make_table()
    frame = pd.DataFrame(X, columns=["length", "width"])
    model = RCGPRegressor().fit(frame, pd.Series(y, index=np.arange(60) + 100))
    assert list(model.feature_names_in_) == ["length", "width"]
    np.testing.assert_array_equal(model.predict(frame), RCGPRegressor().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["width", "length"]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_are_named_by_row_and_column(bad):
    X, y = make_table()
    frame = pd.DataFrame(X, columns=["length", "width"])
    frame.loc[5, "width"] = bad
    value = "NaN" if np.isnan(bad) else "inf"
    with pytest.raises(ValueError, match=rf"X contains {value} in row 5, column 'width' \(1 bad row"):
        RCGPRegressor().fit(frame, y)
    y[9] = bad
    with pytest.raises(ValueError, match=f"y contains {value} in row 9"):
        RCGPRegressor().fit(X, y)


def test_words_among_numbers_are_named_by_column_and_row():
    X, y = make_table()
    frame = pd.DataFrame({"length": X[:, 0], "colour": pd.Categorical(np.where(np.arange(60) < 4, "1", "red"))})
    named = r"X must be numbers, but column 'colour' in row 4 is 'red'; encode the column, as OneHotEncoder"
    with pytest.raises(ValueError, match=named):
        RCGPRegressor().fit(frame, y)
    with pytest.raises(ValueError, match="X must be numbers, but column 1 in row 4 is 'red'"):
        RCGPRegressor().fit(frame.to_numpy(dtype=object), y)
    frame["colour"] = pd.Series([pd.NA, "red"] * 30, dtype="string")  # of these NumPy makes another error
    with pytest.raises(ValueError, match="X must be numbers, but column 'colour' in row 1 is 'red'"):
        RCGPRegressor().fit(frame, y)
    days = pd.date_range("2026-01-01", periods=60)
    for when in (days, days.tz_localize("UTC"), days - days[0]):  # beside numbers, and alone
        for dated in (pd.DataFrame({"length": X[:, 0], "when": when}), pd.DataFrame({"when": when})):
            with pytest.raises(ValueError, match=r"X must be numbers, but column 'when' in row 0 is .* turn dates"):
                RCGPRegressor().fit(dated, y)
    with pytest.raises(ValueError, match="X must be numbers, but column 0 in row 0 is '2026-01-01"):
        RCGPRegressor().fit(days.to_numpy()[:, None], y)
    with pytest.raises(ValueError, match="y must be numbers, but row 0 is '2026-01-01"):
        RCGPRegressor().fit(X, days.to_numpy())
    model = RCGPRegressor().fit(X, y)
    with pytest.raises(ValueError, match="X must be numbers, but column 0 in row 1 is 'long'"):
        model.predict(np.array([["1", "2"], ["long", "2"]]))
    words = ["low" if i == 7 else "3" for i in range(60)]
    for given in (words, pd.Series(words)):
        with pytest.raises(ValueError, match=r"y must be numbers, but row 7 is 'low'$"):
            RCGPRegressor().fit(X, given)
    with pytest.raises(ValueError, match=r"y must be numbers, but column 'price' in row 7 is 'low'$"):
        RCGPRegressor().fit(X, pd.DataFrame({"size": y, "price": words}))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"weight": "huber"},
            "weight must be 'learned', 'imq', 'se', 'constant' or a weight function of .*, got 'huber'",
        ),
        ({"weight": None}, "weight must be 'learned'.*got None"),
        ({"priors": "strong"}, "priors must be 'weak' or None, got 'strong'"),
        ({"priors": False}, "priors must be 'weak' or None, got False"),
        ({"n_restarts": -1}, "n_restarts must be a whole number, at least 0, got -1"),
        ({"max_iter": 2.5}, "max_iter must be a whole number, at least 1, got 2.5"),
        ({"fit_rows": 1}, "fit_rows must be a whole number, at least 2, got 1"),
        ({"mean": "modal"}, "mean must be"),
        ({"kernel": RBF() ** 2}, "no GPyTorch counterpart"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        RCGPRegressor(**parameters).fit(*make_table())


@pytest.mark.parametrize("name", ["centre", "epsilon", "objective"])
def test_parameters_of_earlier_versions_are_unknown(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        RCGPRegressor(**{name: None})


@pytest.mark.parametrize("parameters", [{"kernel": "rbf"}, {"normalize": "yes"}, {"local_noise": 1}])
def test_parameters_of_a_wrong_type_are_named(parameters):
    with pytest.raises(TypeError, match=f"{next(iter(parameters))} must be"):
        RCGPRegressor(**parameters).fit(*make_table())


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    X, y = make_table()
    fresh = RCGPRegressor()
    with pytest.raises(ValueError, match="NaN"):
        fresh.fit(X, np.where(np.arange(60) == 3, np.nan, y))
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    model = RCGPRegressor().fit(X, y)
    expected = model.predict(X)
    model.set_params(progress=_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :1], y)
    np.testing.assert_array_equal(model.predict(X), expected)


def _interrupt(evaluations, best):
    if evaluations == 3:
        raise KeyboardInterrupt


def test_a_fit_cut_short_warns():
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match=r"did not converge in \d+ iterations: .*LIMIT"):
        RCGPRegressor(max_iter=1).fit(*make_table())
