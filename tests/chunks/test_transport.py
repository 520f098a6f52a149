from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
import torch


@pytest.fixture
def Packed(da):  # noqa: N802, the class; what it needs comes with Dask
    from rcgp.chunks.dask import Packed

    return Packed


def test_a_packed_value_reports_its_size_to_dask(da, Packed):
    from dask.sizeof import sizeof

    @dataclass
    class Sums:
        matrix: torch.Tensor
        others: dict

    nothing = sizeof(Packed(None))
    block = (torch.zeros(1000, 2), torch.zeros(1000), None, 0)
    assert sizeof(Packed(block)) - nothing == 12_000
    assert sizeof(Packed([Sums(torch.zeros(10, 10), {"a": torch.zeros(5)})] * 2)) - nothing == 840
    assert sizeof(Packed(torch.nn.Linear(10, 9))) - nothing == 396


def test_a_slice_of_a_large_tensor_is_pickled_alone(Packed):
    large = torch.arange(1e6, dtype=torch.float64).reshape(1000, 1000)
    values = {"row": large[3], "column": large[:, 3], "turned": large[:2].T, "none": large[:0], "one": large[0, 1]}
    content = pickle.dumps(Packed(values))
    assert len(content) < 50_000
    got = pickle.loads(content).value
    for name, value in values.items():
        assert torch.equal(got[name], value)
        assert got[name].dtype == value.dtype
        got[name] += 1  # of its own, and writable


def test_parameters_and_gradients_are_pickled_as_such(Packed):
    layer = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    again = pickle.loads(pickle.dumps(Packed([layer, layer.weight]))).value
    assert isinstance(again[0].weight, torch.nn.Parameter)
    assert again[0].weight is again[1]
    assert torch.equal(again[0].weight, layer.weight)
