"""RCGPSeries: scikit-learn's conventions, dates, missing and stuck values, seasons, forecasts, components, files."""

import warnings

import numpy as np
import pandas as pd
import pytest
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import rcgp
from marks import slow
from rcgp import RCGPSeries, SavedModelError
from rcgp.estimator import NoiseLawWarning

HOURS = pd.date_range("2025-03-01", periods=24 * 12, freq="1h", tz="Europe/Berlin")


def make_hourly(seed=0):
    """Twelve days with a daily season, bad values, a missing stretch; and the function without noise."""
    random = np.random.default_rng(seed)
    hour = np.arange(len(HOURS))
    f = 10.0 + 3.0 * np.sin(2.0 * np.pi * hour / 24.0) + np.sin(4.0 * np.pi * hour / 24.0 + 1.0)
    y = f + 0.2 * random.standard_normal(len(f))
    bad = np.zeros(len(f), dtype=bool)
    bad[[20, 77, 150, 151, 222]] = True
    y[bad] += [6.0, -7.0, 5.0, 5.5, -9.0]
    y[100:110] = np.nan
    return pd.Series(y, HOURS), f, bad


@pytest.fixture(scope="module")
def seasonal():
    series, _, _ = make_hourly()
    return RCGPSeries(periods=["1D"], max_iter=60).fit(series)


def make_numbers(n=120):
    t = np.linspace(0.0, 12.0, n)
    y = np.sin(t) + 0.05 * np.random.default_rng(0).standard_normal(n)
    y[30] += 3.0
    return t, y


@pytest.fixture(scope="module")
def simple():
    return RCGPSeries().fit(*make_numbers())


def test_bad_values_are_flagged_and_missing_ones_predicted(seasonal):
    series, f, bad = make_hourly()
    np.testing.assert_array_equal(seasonal.outliers_, bad)
    missing = np.isnan(series.to_numpy())
    assert np.isnan(seasonal.weights_[missing]).all()
    assert np.isnan(seasonal.outlier_probability_[missing]).all()
    assert np.abs(seasonal.loo_mean_ - f)[missing].max() < 0.5
    assert np.abs(seasonal.predict(HOURS) - f).mean() < 0.1


def test_a_forecast_has_the_times_and_the_season(seasonal):
    forecast = seasonal.forecast("48h")
    assert list(forecast.times) == list(pd.date_range(HOURS[-1], periods=49, freq="1h")[1:])
    hour = len(HOURS) + np.arange(48)
    f = 10.0 + 3.0 * np.sin(2.0 * np.pi * hour / 24.0) + np.sin(4.0 * np.pi * hour / 24.0 + 1.0)
    assert np.abs(forecast.mean - f).mean() < 0.3
    assert (forecast.lower < forecast.mean).all()
    assert (forecast.mean < forecast.upper).all()
    np.testing.assert_array_equal(seasonal.forecast(48).mean, forecast.mean)
    np.testing.assert_array_equal(seasonal.forecast("6h", step="30min").times[1], HOURS[-1] + pd.Timedelta("1h"))


def test_a_forecast_has_at_most_a_million_steps(seasonal, simple):
    for model, horizon, step, gap in [
        (seasonal, 1_000_001, None, "1 h"),
        (seasonal, "1000001h", None, "1 h"),
        (seasonal, "1D", "0.08s", "80 ms"),
        (simple, 10**400, 0.5, "0.5"),
        (simple, 1e9, 0.5, "0.5"),
        (simple, 1e300, 1e-300, "1e-300"),
    ]:
        with pytest.raises(ValueError, match=f"at most 1 000 000 steps of {gap}, got"):
            model.forecast(horizon, step=step)
    assert len(seasonal.forecast_numbers(1_000_000)) == len(seasonal.forecast_numbers("1000000h")) == 1_000_000


def test_components_add_up_to_the_prediction(seasonal):
    parts = seasonal.components(HOURS[:50])
    assert [part.name for part in parts] == ["level", "trend", "process", "season 1D"]
    np.testing.assert_allclose(sum(part.mean for part in parts), seasonal.predict(HOURS[:50]), rtol=1e-9)
    assert np.ptp(parts[-1].mean) > 4.0


@pytest.mark.parametrize("seed", range(3))
def test_white_noise_is_noise(seed):
    y = 5.0 + 0.5 * np.random.default_rng(seed).standard_normal(400)
    model = RCGPSeries().fit(np.arange(400), y)
    assert np.sqrt(model.noise_variance_) == pytest.approx(0.5, rel=0.15)
    assert np.abs(model.predict(np.arange(400)) - 5.0).max() < 0.4


def test_a_trend_is_forecast_whatever_its_level():
    random = np.random.default_rng(0)
    t = np.arange(200.0)
    y = 300.0 + 2.0 * t + 0.3 * random.standard_normal(200)
    model = RCGPSeries().fit(t, y)
    assert np.abs(model.forecast(50).mean - (300.0 + 2.0 * np.arange(200.0, 250.0))).max() < 2.0
    trend = model.components(t)[1].mean
    assert (trend[-1] - trend[0]) / 199.0 == pytest.approx(2.0, abs=0.05)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
@pytest.mark.parametrize(
    ("period", "harmonics"), [(11.0, 4), (12.0, 4), (150.0, 4), (1000.0, 4), slow(12.0, 2)]
)  # numba compiles for seconds for each number of harmonics
def test_periods_of_the_span_and_longer_are_no_error(period, harmonics):
    t, y = make_numbers(40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(RCGPSeries(periods=[period], harmonics=harmonics, max_iter=3).fit(t, y).predict(t)).all()


def test_a_period_shorter_than_two_gaps_raises_a_doubt():
    t, y = make_numbers(40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RCGPSeries(periods=[0.4], max_iter=3).fit(t, y)
    assert any("shorter than two typical gaps" in doubt for doubt in model.doubts_)


def test_a_forecast_starts_after_the_last_time_also_if_its_value_is_missing():
    t, y = make_numbers(60)
    y[50:], y[10:30:2] = np.nan, np.nan
    np.testing.assert_allclose(RCGPSeries().fit(t, y).forecast(2).times, t[-1] + np.diff(t[:2]) * [1.0, 2.0])


def test_the_score_is_the_coefficient_of_determination(simple):
    t, y = make_numbers()
    good = ~simple.outliers_
    assert simple.score(t[good], y[good]) > 0.99


def test_the_score_is_that_of_the_values_that_are_not_missing(simple, seasonal):
    t, y = make_numbers()
    expected, weights = simple.score(t[:80], y[:80]), np.linspace(1.0, 2.0, 120)
    missing = [*y[:80], *[None] * 40]
    assert simple.score(t, missing) == pytest.approx(expected)
    assert simple.score(pd.Series(missing, t, dtype="Float64")) == pytest.approx(expected)
    weighted = simple.score(t[:80], y[:80], weights[:80])
    assert simple.score(t, missing, weights) == pytest.approx(weighted)
    assert weighted != pytest.approx(expected)
    assert np.isnan(simple.score(t[:2], [y[0], None]))
    series, *_ = make_hourly()
    assert seasonal.score(series) == pytest.approx(seasonal.score(series.dropna()))
    with pytest.raises(ValueError, match="for each of the 3 times"):
        simple.score(t[:3], y[:2])
    with pytest.raises(ValueError, match=r"the shape \(3,\) of the predictions"):
        simple.score(t[:3], np.ones((3, 2)))


def test_intervals_are_those_of_the_noise_law(simple):
    t = [1.0, 5.0, 30.0]
    lower, upper = simple.predict_interval(t, 0.9)
    np.testing.assert_allclose(simple.predict_quantiles(t, [0.05, 0.95]), np.stack([lower, upper], axis=-1))
    mean, std = simple.predict(t, return_std=True)
    np.testing.assert_allclose(mean, 0.5 * (lower + upper), atol=1e-9)
    assert (simple.predict(t, return_std=True, include_noise=True)[1] > std).all()
    assert simple.predict_quantiles(t, 0.5).shape == (3,)


def test_samples_are_those_of_the_posterior(simple):
    t = [1.0, 1.2, 20.0]
    drawn = simple.sample_y(t, 4000, random_state=0)
    mean, std = simple.predict(t, return_std=True)
    assert drawn.shape == (3, 4000)
    assert (np.abs(drawn.mean(axis=1) - mean) < 5.0 * std / 60.0).all()
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.1)


def test_the_order_of_rows_does_not_matter(simple):
    t, y = make_numbers()
    shuffled = np.random.default_rng(1).permutation(len(t))
    other = RCGPSeries().fit(t[shuffled], y[shuffled])
    np.testing.assert_allclose(other.predict(t), simple.predict(t), atol=1e-6)
    np.testing.assert_array_equal(other.outliers_, simple.outliers_[shuffled])


def test_units_of_times_and_values_do_not_matter(simple):
    t, y = make_numbers()
    other = RCGPSeries().fit(1e6 * t - 3e7, 1e-5 * y + 7.0)
    np.testing.assert_allclose(other.predict(1e6 * t - 3e7), 1e-5 * simple.predict(t) + 7.0, atol=2e-9)


def test_columns_are_fitted_one_by_one():
    t, y = make_numbers()
    frame = pd.DataFrame({"a": y, "b": 2.0 * y[::-1]}, index=t)
    model, alone = RCGPSeries().fit(frame), RCGPSeries().fit(t, y)
    assert model.output_names_ == ["a", "b"]
    assert model.outliers_.shape == (120, 2)
    assert model.noise_variance_.shape == (2,)
    np.testing.assert_allclose(model.predict(t)[:, 0], alone.predict(t), atol=1e-12)
    assert model.predict_quantiles(t, [0.1, 0.9]).shape == (120, 2, 2)
    assert len(model.streams()) == 2
    for method in (model.stream, lambda: model.components(t)):
        with pytest.raises(ValueError, match="for one column, the model has 2"):
            method()


@pytest.mark.filterwarnings("ignore:.*lie next to another one:rcgp.estimator.NoiseLawWarning")
def test_missing_values_may_be_none_or_pandas_na():
    t, y = make_numbers()
    y[7] = np.nan
    expected = RCGPSeries(weight="constant").fit(t, y).predict(t)
    none = [None if np.isnan(value) else value for value in y]
    column = pd.array(none, dtype="Float64")
    for other in (none, pd.Series(column), pd.Series(column, dtype=object)):
        np.testing.assert_array_equal(RCGPSeries(weight="constant").fit(t, other).predict(t), expected)
    frame = pd.DataFrame({"a": column, "b": 2.0 * y[::-1]})
    np.testing.assert_array_equal(RCGPSeries(weight="constant").fit(t, frame).predict(t)[:, 0], expected)


def test_stuck_values_raise_a_doubt_and_are_flagged_if_asked_for():
    t, y = make_numbers(300)
    y[200:215] = y[200]
    with pytest.warns(NoiseLawWarning, match="14 values repeat the one before .* they are treated as errors"):
        model = RCGPSeries(stuck=True).fit(t, y)
    np.testing.assert_array_equal(np.flatnonzero(model.outliers_), [30, *range(201, 215)])
    assert (model.weights_[201:215] == 0.0).all()
    with pytest.warns(NoiseLawWarning, match="stuck=True"):
        assert not RCGPSeries().fit(t, y).outliers_[201:215].any()


def test_a_constant_weight_is_the_ordinary_gp():
    t, y = make_numbers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)
        model = RCGPSeries(weight="constant").fit(t, y)
    assert (model.weights_ == 1.0).all()
    assert model.outliers_[30]


def test_lengths_of_time_in_a_report_of_dates_are_durations(seasonal, simple, tmp_path):
    seasonal.save(tmp_path / "model.rcgp")
    for model in (seasonal, rcgp.load(tmp_path / "model.rcgp")):
        values = model.fit_report_.hyperparameters
        assert str(values["kernel.kernels.3.base_kernel.kernels.1.period_length"]) == "[1 D]"
        assert "period_length  1 D" in str(model.fit_report_)
        assert str(values["kernel.kernels.2.base_kernel.lengthscale"][0]).endswith((" D", " h"))
        assert type(values["kernel.kernels.3.base_kernel.kernels.1.lengthscale"][0]) is float  # of the pattern: no time
    assert {type(value) for part in simple.fit_report_.hyperparameters.values() for value in part} == {float}


@pytest.mark.parametrize("which", ["simple", "seasonal"])
def test_a_saved_model_is_the_same_to_the_bit(which, request, tmp_path):
    model = request.getfixturevalue(which)
    model.save(tmp_path / "model.rcgp")
    loaded = rcgp.load(tmp_path / "model.rcgp")
    first, second = model.forecast(5), loaded.forecast(5)
    assert list(first.times) == list(second.times)
    np.testing.assert_array_equal(first.upper, second.upper)
    np.testing.assert_array_equal(model.weights_, loaded.weights_)
    assert loaded.get_params()["periods"] == list(model.periods)
    assert str(loaded.noise_law_) == str(model.noise_law_)
    assert loaded.stream().update(second.times[0], 1.0) == model.stream().update(first.times[0], 1.0)


def test_scikit_learns_conventions(simple):
    copied = clone(simple)
    assert copied.get_params() == simple.get_params()
    for method in (copied.predict, copied.predict_interval, copied.noise_std):
        with pytest.raises(NotFittedError):
            method([0.0])
    kernel = ScaleKernel(MaternKernel(nu=2.5))
    model = RCGPSeries(kernel=kernel, max_iter=30).fit(*make_numbers())
    assert model.kernel is kernel
    assert model.kernel_ is not kernel


def test_a_failed_fit_changes_nothing(simple):
    model = clone(simple).fit(*make_numbers())
    before = model.predict([1.0])
    with pytest.raises(ValueError, match="infinite value in row 1"):
        model.fit([1.0, 2.0], [0.0, np.inf])
    np.testing.assert_array_equal(model.predict([1.0]), before)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"periods": "1D"}, "periods must be a list"),
        ({"periods": [-1.0]}, r"periods\[0\] must be a positive number"),
        ({"periods": ["1D"]}, r"periods\[0\] must be a positive number"),
        ({"periods": [24, 7.0, 24.0]}, r"periods must differ, got \[24, 7.0, 24.0\]"),
        ({"kernel": RBFKernel()}, r"MaternKernel\(nu=2.5\)"),
        ({"kernel": "matern"}, "GPyTorch kernel"),
        ({"weight": "imq"}, "weight must be"),
        ({"harmonics": 0}, "harmonics"),
        ({"stuck": 1}, "stuck"),
        ({"max_iter": 0}, "max_iter"),
        ({"kernel": MaternKernel(), "periods": [3.0]}, "periods are for the default kernel"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RCGPSeries(**parameters).fit(*make_numbers())


def test_equal_periods_in_other_units_are_refused():
    with pytest.raises(ValueError, match=r"periods must differ, got \['1D', '24h'\]"):
        RCGPSeries(periods=["1D", "24h"]).fit(make_hourly()[0])


@pytest.mark.parametrize(
    ("t", "y", "message"),
    [
        ([], [], "t is empty"),
        ([1.0, 2.0], [np.nan, np.nan], "all 2 values are missing"),
        ([1.0, 2.0], [1.0], "for each of the 2 times"),
        ([1.0, np.nan], [1.0, 2.0], "row 1"),
        ([1.0, 2.0], ["a", "b"], "y must be numbers"),
        (["2025-01-01", "2025-13-01"], [1.0, 2.0], "row 1"),
        ([1.0, 2.0], None, "y is missing"),
        ([1.0, 2.0], HOURS[:2].tz_localize(None), "times first"),
    ],
)
def test_bad_data_are_refused(t, y, message):
    with pytest.raises(ValueError, match=message):
        RCGPSeries().fit(t, y)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
@pytest.mark.parametrize("y", [[1.0], [1.0, 1.0], [0.0, 5.0, 5.0], [1e300, 0.0, 1.0, 2.0, 1.0]])
def test_few_and_absurd_values_give_finite_predictions(y):
    model = RCGPSeries().fit(np.zeros(len(y)) if len(y) == 2 else np.arange(len(y)), y)
    assert np.isfinite(model.predict([0.0, 0.5, 100.0])).all()


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_contradicting_values_at_one_time_are_averaged_or_flagged():
    t, y = make_numbers()
    t, y = np.append(t, [t[60], t[60]]), np.append(y, [y[60] + 0.05, 9.0])
    model = RCGPSeries().fit(t, y)
    np.testing.assert_array_equal(np.flatnonzero(model.outliers_), [30, 121])


def test_a_model_that_is_not_fitted_is_not_saved(tmp_path):
    with pytest.raises(SavedModelError, match="not fitted"):
        RCGPSeries().save(tmp_path / "model.rcgp")
