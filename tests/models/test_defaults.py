"""Starting values: the typical gap between rows."""

from __future__ import annotations

import pytest
import torch

from rcgp import MultiOutputRCGP
from rcgp.models.defaults import default_kernel, robust_scales, typical_gap


def brute_force(X):
    """Median distance from the nearest other input, in units of the default lengthscales."""
    scaled = X / default_kernel(robust_scales(X), 1.0).base_kernel.lengthscale
    distances = torch.cdist(scaled, scaled).fill_diagonal_(torch.inf)
    return distances.amin(dim=-1).quantile(0.5).item()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_typical_gap_is_the_median_distance_from_the_nearest_input(d):
    X = torch.randn(51, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    assert typical_gap(X) == pytest.approx(brute_force(X), rel=1e-6)
    assert typical_gap(1e9 * X - 1e7) == pytest.approx(typical_gap(X), rel=1e-6)


def test_repeated_inputs_have_no_gap():
    X = torch.arange(20.0, dtype=torch.float64).unsqueeze(-1)
    assert typical_gap(torch.cat([X, X, X + 1e-12])) == pytest.approx(typical_gap(X))
    assert typical_gap(X[:1]) == typical_gap(torch.ones(5, 2, dtype=torch.float64)) == 1.0


def test_an_absurd_input_does_not_change_the_typical_gap():
    X = torch.arange(100.0, dtype=torch.float64).unsqueeze(-1)
    absurd = X.clone()
    absurd[-1] = 1e300
    assert typical_gap(absurd) == pytest.approx(typical_gap(X), rel=0.1)


def test_outputs_at_the_same_input_have_no_gap():
    X = torch.arange(30.0, dtype=torch.float64).unsqueeze(-1)
    model = MultiOutputRCGP(X, torch.stack([torch.sin(X[:, 0]), torch.cos(X[:, 0])], dim=-1))
    assert model.typical_gap() == pytest.approx(typical_gap(X), rel=0.1)
