from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rcgp.chunked.weighing import order_statistics, quantiles
from rcgp.chunks import Serial, Threads, chunks_of


@dataclass(frozen=True)
class Sizes:
    def __call__(self, chunk):
        return chunk.y.abs()


def chunked(y, rows=7):
    return chunks_of(np.zeros((len(y), 1)), np.asarray(y), rows=rows)


@pytest.mark.parametrize("engine", [Serial(), Threads(2)], ids=["serial", "threads"])
def test_quantiles_equal_torchs_for_any_chunks(engine):
    y = np.random.default_rng(0).standard_t(1.5, 400)
    shares = [0.0, 0.05, 0.5, 0.9, 0.95, 1.0]
    expected = torch.tensor(y).abs().quantile(torch.tensor(shares, dtype=torch.float64)).tolist()
    for rows in (11, 97, 1000):
        assert quantiles(Sizes(), chunked(y, rows), engine, shares, 400) == pytest.approx(expected, rel=1e-14)


@given(st.lists(st.floats(-1e307, 1e307), min_size=1, max_size=10))
def test_every_order_statistic_is_exact(y):
    ranks = range(len(y))
    assert order_statistics(Sizes(), chunked(y), Serial(), list(ranks)) == sorted(abs(value) for value in y)


def test_numbers_that_differ_in_the_last_bit_are_distinguished():
    y = [1.0, np.nextafter(1.0, 2.0), np.nextafter(1.0, 0.0), 5e-324, 0.0, 1e300]
    assert order_statistics(Sizes(), chunked(y, 2), Serial(), [3, 0, 5, 1]) == [1.0, 0.0, 1e300, 5e-324]
