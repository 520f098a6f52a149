from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rcgp.report.effects import fitted_curve, partial_dependences
from rcgp.report.summary import Column, columns_of


def test_the_curve_is_the_models_prediction_with_both_bands(one_feature):
    X, _, robust, plain = one_feature
    curve = fitted_curve(robust, plain, X, Column("size", ("size",)))
    at = pd.DataFrame({"size": curve.grid})
    mean, std = robust.predict(at, return_std=True)
    np.testing.assert_allclose(curve.mean, mean)
    np.testing.assert_allclose(curve.std, std)
    for end, expected in zip(curve.interval, robust.predict_interval(at), strict=True):
        np.testing.assert_allclose(end, expected)
    np.testing.assert_allclose(curve.plain, plain.predict(at))
    assert curve.grid[0] < X["size"].min()
    assert curve.grid[-1] > X["size"].max()


@pytest.mark.parametrize("value", [0.0, -3.0, 1e12])
def test_a_single_value_of_the_feature_still_has_a_curve(table, invented, value):
    X, y = table(10)
    X["size"] = value
    grid = fitted_curve(invented(X, y), None, X, Column("size", ("size",))).grid
    assert (np.diff(grid) > 0).all()
    assert grid[0] < value < grid[-1]


def test_partial_dependence_is_the_average_over_rows_with_the_feature_set(three_features):
    X, _, robust, plain = three_features  # fifty rows: all of them are the background
    for effect in partial_dependences(robust, plain, X, columns_of(X, None)):
        for i in (0, 17, 29):
            at = X.copy()
            at[effect.column.name] = effect.grid[i]
            mean, covariance = robust.predict(at, return_cov=True)
            assert effect.mean[i] == pytest.approx(mean.mean())
            ones = np.full(len(X), 1 / len(X))
            assert effect.std[i] == pytest.approx(np.sqrt(ones @ covariance @ ones), rel=1e-6)
            assert effect.plain[i] == pytest.approx(plain.predict(at).mean())


def test_the_band_is_of_the_average_and_so_narrower_than_that_of_a_row(three_features):
    X, _, robust, _ = three_features
    effect = partial_dependences(robust, None, X, columns_of(X, None))[0]
    at = X.assign(**{effect.column.name: effect.grid[0]})
    assert effect.std[0] < robust.predict(at, return_std=True)[1].mean()
    assert effect.plain is None


class Linear:
    """f = Σ slope_j x_j, known exactly; counts the covariances asked for."""

    def __init__(self, slopes, names=True):
        self.slopes, self.sizes = np.asarray(slopes), []
        if names:
            self.feature_names_in_ = np.array([])

    def predict(self, X, return_std=False, return_cov=False, include_noise=False):
        self.kind = type(X)
        if return_cov:
            self.sizes.append(len(X))
            return np.asarray(X) @ self.slopes, np.zeros((len(X), len(X)))
        return np.asarray(X) @ self.slopes


def effects_of(model, X):
    """The effects of a table of numbers by name, strongest first."""
    return {effect.column.name: effect for effect in partial_dependences(model, None, X, columns_of(X, None))}


def test_strongest_features_come_first_and_constant_ones_not_at_all():
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.uniform(0, 1, (80, 5)), columns=list("abcde"))
    X["d"] = 7.0
    assert list(effects_of(Linear([0.1, -3.0, 1.0, 9.0, 0.0]), X)) == ["b", "c", "a", "e"]


def test_covariances_are_small_and_few():
    X = pd.DataFrame(np.random.default_rng(0).uniform(0, 1, (300, 20)), columns=[f"x{i}" for i in range(20)])
    model = Linear(np.arange(20.0))
    assert len(effects_of(model, X)) == 12
    assert len(model.sizes) == 12 * 30
    assert set(model.sizes) == {50}


def test_placeholders_of_missing_values_do_not_stretch_the_grid():
    X = pd.DataFrame({"a": np.linspace(40, 80, 100), "b": np.linspace(0, 1, 100)})
    X.loc[:2, "a"] = -999.0
    grid = effects_of(Linear([1.0, 1.0]), X)["a"].grid
    assert 40 < grid[0] < 42
    assert 79 < grid[-1] <= 80


def test_a_wild_value_does_not_stretch_the_only_curve(table, invented):
    X, y = table(60)
    inside = X["size"].iloc[1:]
    X.loc[X.index[0], "size"] = 1e10
    grid = fitted_curve(invented(X, y), None, X, Column("size", ("size",))).grid
    assert grid[0] < inside.min() < inside.max() < grid[-1] < 10 * inside.max()


def test_one_extreme_value_does_not_stretch_the_grid():
    X = pd.DataFrame(np.random.default_rng(0).uniform(0, 1, (300, 2)), columns=["a", "b"])
    X.loc[0, "a"] = 1e9
    assert effects_of(Linear([1.0, 1.0]), X)["a"].grid[-1] < 2.0


def test_a_nearly_constant_feature_keeps_its_range():
    X = pd.DataFrame({"a": [0.0] * 298 + [0.5, 1.0], "b": np.linspace(0, 1, 300)})
    grid = effects_of(Linear([1.0, 1.0]), X)["a"].grid
    assert (len(grid), grid[0], grid[-1]) == (30, 0.0, 1.0)


def test_a_feature_with_two_values_has_nothing_in_between():
    X = pd.DataFrame({"a": [0.0] * 299 + [1.0], "b": np.linspace(0, 1, 300)})
    np.testing.assert_array_equal(effects_of(Linear([1.0, 1.0]), X)["a"].grid, [0.0, 1.0])


def test_a_model_fitted_without_names_gets_arrays():
    X = pd.DataFrame(np.random.default_rng(0).uniform(0, 1, (30, 2)), columns=["a", "b"])
    model = Linear([1.0, 1.0], names=False)
    effects_of(model, X)
    assert model.kind is np.ndarray


def test_whole_numbers_and_truth_values_are_features_too():
    X = pd.DataFrame({"a": np.arange(40), "b": np.arange(40) % 2 == 0})
    effects = effects_of(Linear([0.5, 1.0]), X)
    assert np.ptp(effects["a"].mean) == pytest.approx(0.5 * np.ptp(np.quantile(X["a"], [0.01, 0.99])))
    assert np.ptp(effects["b"].mean) == pytest.approx(1.0)


def test_a_category_has_a_value_for_each_level_lowest_first(mixed):
    columns, X, _, robust, plain = mixed  # fifty rows: all of them are the background
    columns = columns_of(X, columns)
    effects = {effect.column.name: effect for effect in partial_dependences(robust, plain, X, columns)}
    for name in ("type", "garden"):
        effect = effects[name]
        levels = [effect.column.text(value) for value in effect.grid]
        assert sorted(levels) == list(effect.column.levels)
        assert (np.diff(effect.mean) >= 0).all()
        for i, level in enumerate(levels):
            at = X.copy()
            for feature in effect.column.features:
                at[feature] = float(feature == f"{name}={level}")
            mean, covariance = robust.predict(at, return_cov=True)
            assert effect.mean[i] == pytest.approx(mean.mean())
            assert effect.std[i] == pytest.approx(np.sqrt(covariance.mean()), rel=1e-6)
            assert effect.plain[i] == pytest.approx(plain.predict(at).mean())
    assert [effects["type"].column.text(value) for value in effects["type"].grid] == ["flat", "terraced", "detached"]


def test_dates_are_whole_days_unless_these_are_few():
    column = Column("when", ("when",), "date")
    X = pd.DataFrame({"when": np.arange(19000.0, 19400.0), "b": np.linspace(0, 1, 400)})
    columns = (column, Column("b", ("b",)))
    grid = next(e.grid for e in partial_dependences(Linear([1.0, 1.0]), None, X, columns) if e.column is column)
    assert len(grid) == 30
    np.testing.assert_array_equal(grid, np.round(grid))
    X["when"] /= 100.0  # four days
    grid = next(e.grid for e in partial_dependences(Linear([1.0, 1.0]), None, X, columns) if e.column is column)
    assert len(grid) == 30
    np.testing.assert_allclose(np.diff(grid), np.diff(grid)[0])
