from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from rcgp.core.annealing import annealed


def make_problem(seed=0, n=30, outliers=9, size=1.5, noise=1e-3):
    """Kernel matrix, residuals of a smooth function whose first rows are shifted upwards, and unequal noises."""
    random = np.random.default_rng(seed)
    X = random.uniform(0, 1, (n, 2))
    e = np.sin(4 * X.sum(-1)) + noise**0.5 * random.standard_normal(n)
    e[:outliers] += size
    return reference.se_kernel(X, X, np.array([0.4, 0.6]), 1.3), e, noise * random.uniform(0.5, 2.0, n)


def annealed_of(K, e, r, scatter):
    return annealed(*(torch.tensor(values) for values in (K, e, r)), torch.tensor([scatter]))


@pytest.mark.parametrize("noise", [1e-4, 1e-3, 0.05])
@pytest.mark.parametrize("outliers", [0, 3, 9])
def test_equals_solving_for_each_row(outliers, noise):
    K, e, r = make_problem(outliers=outliers, noise=noise)
    np.testing.assert_allclose(annealed_of(K, e, r, 0.8), reference.annealed(K, e, r, 0.8), rtol=1e-6, atol=1e-6)


def test_scatter_below_the_noise_is_no_annealing():
    K, e, r = make_problem(noise=0.5)
    np.testing.assert_allclose(annealed_of(K, e, r, 0.1), reference.annealed(K, e, r, 0.1), rtol=1e-8)
    np.testing.assert_allclose(annealed_of(K, e, r, 0.1), annealed_of(K, e, r, 1e-9), rtol=1e-12)


def test_outliers_stand_out():
    """Three rows in ten, all to one side; clean rows do not."""
    K, e, r = make_problem()
    size = annealed_of(K, e, r, 0.8).numpy()
    assert size[:9].min() > 6.0
    assert size[9:].max() < 6.0


def test_batch_is_row_of_singles():
    problems = [make_problem(seed) for seed in range(4)]
    K, e, r = (torch.tensor(np.stack(values)).unflatten(0, (2, 2)) for values in zip(*problems, strict=True))
    scatter = torch.linspace(0.5, 1.0, 4, dtype=torch.float64).reshape(2, 2, 1)
    batch = annealed(K, e, r, scatter).flatten(0, 1)
    for number, problem in enumerate(problems):
        single = annealed_of(*problem, float(scatter.flatten()[number]))
        torch.testing.assert_close(batch[number], single, rtol=1e-6, atol=1e-8)  # rounding grows with the steps


def test_units_do_not_matter():
    K, e, r = make_problem()
    torch.testing.assert_close(
        annealed_of(1e6 * K, -1e3 * e, 1e6 * r, 800.0), annealed_of(K, e, r, 0.8), rtol=1e-6, atol=1e-6
    )
