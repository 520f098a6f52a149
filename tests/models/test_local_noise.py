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

LIMITS = (1e-12, 1e12)


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


@pytest.fixture(scope="module")
def two_levels():
    """Residuals ten times as large in one half, the average by the kernel, and steps of their law."""
    random = np.random.default_rng(0)
    X = torch.linspace(0.0, 1.0, 200, dtype=torch.float64).unsqueeze(-1)
    residual = torch.tensor(random.standard_normal(200) * np.where(X[:, 0] < 0.5, 0.1, 1.0))
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.1
    cavity = LeaveOneOut(torch.zeros_like(residual), torch.zeros_like(residual))

    def learn(h, before):
        counts, width = (None, None) if before is None else (before.counts, before.law.width)
        noise = residual.var() if before is None else before.noise
        return learn_law(residual, cavity, noise, h, 5.0, bounds=LIMITS, counts=counts, width=width)

    with torch.no_grad():
        K = kernel_matrix(kernel, X)
        return kernel, X, K, averages_by_kernel(kernel, X, K)[0], learn, learn(torch.ones_like(residual), None)


def test_learning_finds_the_loud_half(two_levels):
    _, X, K, average, learn, learned = two_levels
    with torch.no_grad():
        local, h, law = learn_local_noise(average, learn, learned, torch.ones(200).double(), LIMITS)
        torch.testing.assert_close(h, local.at_rows(K))
    std = (law.noise * local(torch.tensor([[0.2], [0.8]], dtype=torch.float64))).sqrt()
    assert std[1] > 3.0 * std[0]  # ten, but for what the prior rows draw to the middle
    assert law.rows.log_density.sum() > learned.rows.log_density.sum() + 50.0
    assert not local(X).requires_grad


def test_local_noise_settles_where_its_harmonic_mean_is_one(two_levels):
    """Otherwise the noise variance would fall without end, and the local factors grow."""
    *_, average, learn, learned = two_levels
    ones = torch.ones(200, dtype=torch.float64)
    with torch.no_grad():
        laws = [learned]
        for _ in range(110):
            _, h, law = learn_local_noise(average, learn, laws[-1], ones, LIMITS)
            laws.append(law)
    assert law.noise.item() == pytest.approx(laws[10].noise.item(), rel=0.02)
    counts = 1.0 - law.rows.outlier
    assert (counts / h).sum().item() == pytest.approx(counts.sum().item(), rel=1e-3)


def test_local_noise_does_not_depend_on_the_unit_of_the_noise_variance(two_levels):
    *_, average, _, learned = two_levels
    ones, found = torch.ones(200, dtype=torch.float64), []
    for unit in (1.0, 1e6):

        def kept(h, before):
            return before

        start = replace(learned, noise=learned.noise / unit)
        _, h, law = learn_local_noise(average, kept, start, ones, LIMITS)
        found.append(law.noise * h)
    torch.testing.assert_close(*found, rtol=1e-5, atol=0.0)


def test_a_fixed_noise_variance_stays():
    local = make_local()
    learned = learn_law(
        local.squares, LeaveOneOut(0.0 * local.squares, 0.0 * local.squares), torch.tensor(2.0).double(),
        torch.ones_like(local.squares), 5.0, bounds=None,
    )  # fmt: skip

    def average(squares, counts):
        factor = replace(local, squares=squares, counts=counts)
        return factor, factor(local.X)

    _, h, law = learn_local_noise(average, lambda h, before: before, learned, torch.ones_like(local.squares), None)
    assert law.noise == 2.0
    assert (h != 1.0).any()
