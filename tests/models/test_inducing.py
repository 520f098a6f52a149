from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

from rcgp import SparseRCGP
from rcgp.models import inducing
from rcgp.models.defaults import default_kernel
from rcgp.models.inducing import choose_inducing
from rcgp.models.kernel_matrix import dense_kernel


def inputs(n=80, d=2, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0, 3, (n, d)))


def kernel(d=2):
    return default_kernel(torch.full((d,), 0.4, dtype=torch.float64), 1.5)


def unseen(k, X, Z):
    """Prior variance of each row given the values at Z, by dense algebra."""
    with torch.no_grad():
        K_uf = dense_kernel(k, Z, X)
        return k(X, diag=True) - (K_uf * torch.linalg.solve(dense_kernel(k, Z, Z), K_uf)).sum(0)


def test_greedy_takes_the_row_of_largest_variance():
    k, X = kernel(), inputs()
    Z = choose_inducing(k, X, 12)
    for count in range(1, 12):
        left = unseen(k, X, Z[:count])
        assert torch.equal(X[left.argmax()], Z[count])


def test_greedy_explains_more_than_the_first_rows():
    k, X = kernel(), inputs(300)
    assert unseen(k, X, choose_inducing(k, X, 30)).max() < 0.5 * unseen(k, X, X[:30]).max()


def test_greedy_ends_when_no_variance_is_left():
    k, X = kernel(), inputs(20).repeat(3, 1)
    Z = choose_inducing(k, X, 60)
    assert len(Z) <= 20
    assert float(unseen(k, X, Z).max()) < 1e-6


@pytest.mark.parametrize("selection", ["greedy", "kmeans"])
def test_points_are_distinct_rows_and_reproducible(selection):
    k, X = kernel(), inputs(200)
    Z = choose_inducing(k, X, 25, selection)
    assert len(torch.unique(Z, dim=0)) == len(Z) == 25
    assert bool((Z[:, None] == X[None]).all(-1).any(1).all())
    assert torch.equal(choose_inducing(k, X, 25, selection), Z)


def test_kmeans_does_not_depend_on_units():
    X = inputs(200)
    units = torch.tensor([1000.0, 0.01], dtype=torch.float64)
    scaled = choose_inducing(kernel(), X * units, 25, "kmeans") / units
    torch.testing.assert_close(scaled, choose_inducing(kernel(), X, 25, "kmeans"))


def test_no_more_points_than_rows():
    assert len(choose_inducing(kernel(), inputs(7), 500)) == 7


def test_many_rows_are_sampled(monkeypatch):
    monkeypatch.setattr(inducing, "CANDIDATES", 50)
    X = inputs(1000)
    Z = choose_inducing(kernel(), X, 50, seed=1)
    assert bool((Z[:, None] == X[None]).all(-1).any(1).all())
    assert not torch.equal(choose_inducing(kernel(), X, 50, seed=2), Z)


def test_unknown_selection_raises():
    with pytest.raises(ValueError, match="selection must be one of 'greedy', 'kmeans', got 'random'"):
        choose_inducing(kernel(), inputs(), 5, "random")


@pytest.mark.parametrize("trained", [False, True])
def test_new_points_are_chosen_by_the_present_kernel(trained):
    X = inputs(300)
    model = SparseRCGP(X, X.sum(1), inducing=20, train_inducing=trained)
    before = model.inducing_points.detach().clone()
    model.kernel.base_kernel.lengthscale = torch.tensor([0.1, 10.0])
    model.choose_inducing()
    after = model.inducing_points.detach()
    assert after.shape == before.shape
    assert not torch.equal(after, before)
    assert isinstance(model.inducing_points, torch.nn.Parameter) == trained
    assert model.inducing_points.requires_grad == trained
    model.choose_inducing(7, "kmeans")
    assert len(model.inducing_points) == 7


def test_a_boolean_number_of_points_raises():
    with pytest.raises(TypeError, match="inducing must be a number of points or an m x d tensor of them, got True"):
        SparseRCGP(inputs(), inputs().sum(1), inducing=True)


def test_unknown_selection_raises_with_given_points():
    with pytest.raises(ValueError, match="selection must be one of"):
        SparseRCGP(inputs(), inputs().sum(1), inducing=inputs()[:3], selection="zz")


@pytest.mark.parametrize("variance", [0.0, float("nan")])
def test_a_kernel_without_variance_raises(variance):
    linear = gpytorch.kernels.LinearKernel().double()
    linear.raw_variance.data.fill_(variance)
    with pytest.raises(ValueError, match="the variance of the kernel is zero or NaN"):
        choose_inducing(linear, torch.zeros(5, 1, dtype=torch.float64), 2)
