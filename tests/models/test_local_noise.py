"""Noise that differs from place to place, against its formula in plain loops."""

from __future__ import annotations

from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch

from rcgp.core.exact import LeaveOneOut
from rcgp.core.noise_law import learn_law
from rcgp.models.kernel_matrix import kernel_matrix
from rcgp.models.local_noise import POWERS, PRIOR_ROWS, LocalNoise, averages_by_kernel, learn_local_noise


def make_local(power=1.0, n=11):
    random = np.random.default_rng(0)
    X = torch.tensor(random.uniform(-2, 2, (n, 2)))
    squares, counts = torch.tensor(random.exponential(1.0, n)), torch.tensor(random.uniform(0, 1, n))
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 3.0, torch.tensor([[0.7, 1.4]])
    return LocalNoise(kernel, X, squares, counts, power)


def by_hand(local, point, without=None):
    """h at one point, summed row by row; the kernel is squared exponential with lengthscales 0.7 and 1.4."""
    above = below = PRIOR_ROWS
    for j, row in enumerate(local.X.numpy()):
        if j == without:
            continue
        correlation = np.exp(-0.5 * (((point - row) / [0.7, 1.4]) ** 2).sum()) ** local.power
        above += correlation * local.squares[j].item()
        below += correlation * local.counts[j].item()
    return above / below


@pytest.mark.parametrize("power", POWERS)
def test_the_factor_is_the_kernel_average(power):
    local = make_local(power)
    points = torch.tensor(np.random.default_rng(1).uniform(-3, 3, (2, 3, 2)))
    ours = local(points)
    assert ours.shape == (2, 3)
    expected = [by_hand(local, point) for point in points.reshape(-1, 2).numpy()]
    np.testing.assert_allclose(ours.reshape(-1), expected, rtol=1e-6)


@pytest.mark.parametrize("power", POWERS)
def test_a_training_row_is_left_out_of_its_own_average(power):
    local = make_local(power)
    with torch.no_grad():
        ours = local.at_rows(kernel_matrix(local.kernel, local.X))
    expected = [by_hand(local, row, without=i) for i, row in enumerate(local.X.numpy())]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_far_from_all_rows_the_factor_is_one():
    local = make_local()
    assert local(torch.tensor([[1e3, 1e3], [1e300, 0.0]], dtype=torch.float64)).tolist() == [1.0, 1.0]


def test_equal_noise_gives_the_factor_one():
    local = make_local()
    same = replace(local, squares=local.counts)
    torch.testing.assert_close(same(local.X), torch.ones(11, dtype=torch.float64))


def test_learning_finds_the_loud_half_and_keeps_a_copy_of_the_kernel():
    random = np.random.default_rng(0)
    X = torch.linspace(0.0, 1.0, 200, dtype=torch.float64).unsqueeze(-1)
    residual = torch.tensor(random.standard_normal(200) * np.where(X[:, 0] < 0.5, 0.1, 1.0))
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.1
    cavity, ones = LeaveOneOut(torch.zeros_like(residual), torch.zeros_like(residual)), torch.ones_like(residual)
    options = {"first_width": 5.0, "bounds": (1e-12, 1e12)}
    learned = learn_law(residual, cavity, residual.var(), ones, **options)
    with torch.no_grad():
        K = kernel_matrix(kernel, X)
        averages = averages_by_kernel(kernel, X, K)
        local, h, law = learn_local_noise(averages, residual, cavity, ones, learned, **options)
        torch.testing.assert_close(h, local.at_rows(K))
    std = (law.noise * local(torch.tensor([[0.2], [0.8]], dtype=torch.float64))).sqrt()
    assert std[1] > 3.0 * std[0]  # ten, but for what the prior rows draw to the middle
    assert law.rows.log_density.sum() > learned.rows.log_density.sum() + 50.0
    before = local(X)
    kernel.lengthscale = 30.0
    torch.testing.assert_close(local(X), before, rtol=0.0, atol=0.0)
    assert not any(parameter.requires_grad for parameter in local.kernel.parameters())
    assert not before.requires_grad
