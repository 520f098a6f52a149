from __future__ import annotations

import numpy as np
import pytest

from clusters import shared_client
from optional_parts import optional


@pytest.fixture(scope="session")
def da():
    return optional("dask.array")


@pytest.fixture(scope="session")
def dd():
    return optional("dask.dataframe")


@pytest.fixture(scope="session")
def pd():
    return optional("pandas")


@pytest.fixture(scope="session")
def pq():
    optional("pyarrow")
    return optional("pyarrow.parquet")


@pytest.fixture(scope="session")
def client(pytestconfig):
    return shared_client(pytestconfig)


@pytest.fixture
def table():
    """1000 rows: inputs, observations, weights."""
    random = np.random.default_rng(0)
    X = random.normal(size=(1000, 3))
    return X, X @ [1.0, -2.0, 0.5] + random.normal(size=1000), random.uniform(0, 2, 1000)


@pytest.fixture
def sums():
    """A task, defined in a function so that it travels by value: weighted sums of squares, targets and row numbers."""

    def task(chunk):
        import torch

        weights = torch.ones_like(chunk.y) if chunk.sample_weight is None else chunk.sample_weight
        numbers = torch.arange(chunk.first, chunk.first + len(chunk.y), dtype=torch.float64)
        V = torch.cat([chunk.X, chunk.y[:, None], numbers[:, None], weights[:, None]], dim=1)
        return V.T @ V

    return task


@pytest.fixture
def expected(table):
    """What the task gives for the whole table, by numpy; without and with weights."""

    def of(weighted=False):
        X, y, w = table
        V = np.column_stack([X, y, np.arange(1000.0), w if weighted else np.ones(1000)])
        return V.T @ V

    return of
