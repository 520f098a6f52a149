from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rcgp.estimator import NoiseLawWarning, RCGPRegressor
from rcgp.table import encode, learn_encoding
from rcgp.weights import NoiseLaw


class Invented:
    """A regressor that has seen no data: its numbers are drawn, so that a large table costs nothing."""

    def __init__(self, X, y, flagged=0, seed=0):
        random = np.random.default_rng(seed)
        n, spread = len(y), float(np.std(y)) or 1.0
        self.n_features_in_ = X.shape[1]
        self.feature_names_in_ = np.array(X.columns, dtype=object)
        self.loo_mean_ = y.to_numpy() + 0.3 * spread * random.standard_normal(n)
        self.loo_std_ = np.full(n, 0.3 * spread)
        self.outlier_scores_ = (y.to_numpy() - self.loo_mean_) / self.loo_std_
        self.weight = "learned"
        self.noise_law_ = NoiseLaw((0.8, 0.1, 0.0, 0.0), 0.1, 3.0 * spread)
        self.doubts_ = ()
        self.outliers_ = np.arange(n) < flagged
        self.outlier_probability_ = np.where(self.outliers_, 0.99, 0.01 * random.random(n))
        self.weights_ = np.where(self.outliers_, 0.05, 0.9) + 0.05 * random.random(n)
        self.noise_variance_ = (0.3 * spread) ** 2
        self.lengthscales_ = np.ones(X.shape[1])
        self.fit_report_ = SimpleNamespace(objective="loo", value=-1.0, converged=True, message="done", seconds=1.0)
        self.centre, self.spread = X.mean().to_numpy(), spread
        self.scale = np.where(X.std() > 0, X.std(), 1.0)

    def predict(self, X, return_std=False, return_cov=False, include_noise=False):
        mean = self.spread * np.sin((X.to_numpy() - self.centre) / self.scale).sum(axis=1)
        if return_cov:
            return mean, np.full((len(X), len(X)), (0.1 * self.spread) ** 2)
        return (mean, np.full(len(X), 0.1 * self.spread)) if return_std else mean

    def predict_interval(self, X, coverage=0.95):
        mean = self.predict(X)
        return mean - self.spread, mean + self.spread

    def noise_std(self, X):
        return np.full(len(X), 0.2 * self.spread)


def make_table(n=60, features=("size",), target_scale=1.0, seed=0):
    """Rows numbered as in a file whose first line is a heading; every twentieth target is wrong."""
    random = np.random.default_rng(seed)
    X = pd.DataFrame({name: random.uniform(0, 6, n) for name in features}, index=np.arange(2, n + 2))
    y = np.sin(X.to_numpy() @ np.linspace(1.0, 0.2, len(features))) + 0.1 * random.standard_normal(n)
    y[::20] += 5.0
    return X, pd.Series(target_scale * y, index=X.index, name="price")


def fitted(X, y):
    """The robust and the ordinary model of a table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)  # about the ordinary one
        return RCGPRegressor().fit(X, y), RCGPRegressor(weight="constant").fit(X, y)


@pytest.fixture(scope="session")
def invented():
    """The class of regressors with invented numbers."""
    return Invented


@pytest.fixture(scope="session")
def table():
    """The maker of small tables."""
    return make_table


@pytest.fixture(scope="session")
def one_feature():
    """X, y, robust and ordinary model of a table with one feature."""
    X, y = make_table()
    return X, y, *fitted(X, y)


@pytest.fixture(scope="session")
def mixed():
    """Columns, X, y and both models of a table with a date, a number, two categories and a feature without effect."""
    random = np.random.default_rng(3)
    days, size, noise = np.sort(random.choice(700, 50, replace=False)), random.uniform(30, 90, 50), np.arange(50) % 7
    kind, garden = random.choice(["detached", "flat", "terraced"], 50), random.choice(["no", "yes"], 50)
    price = 3000 * size + 20_000 * np.sin(days / 150) + 500 * random.standard_normal(50)
    price += 40_000 * (kind == "detached") - 40_000 * (kind == "flat")
    price[::15] += 500_000
    sold = (np.datetime64("2021-03-01") + days).astype(str)
    data = {"sold": sold, "type": kind, "garden": garden, "size": size, "noise": noise, "price": price}
    frame = pd.DataFrame(data, index=np.arange(2, 52))
    encoding, _ = learn_encoding(frame, "price")
    encoded = encode(frame, encoding)
    return encoding.columns, encoded.X, encoded.y, *fitted(encoded.X, encoded.y)


@pytest.fixture(scope="session")
def three_features():
    X, y = make_table(50, ("size", "age", "distance"))
    return X, y, *fitted(X, y)
