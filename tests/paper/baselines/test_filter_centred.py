"""ST-RCGP's rule against a twin that knows no filter: each row predicted by a dense GP of the rows before."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import rcgp
from marks import slow
from rcgp import StateSpaceRCGP
from rcgp_paper.baselines.filter_centred import FilterCentredGP

NOISE = 0.05


def matern(nu):
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=nu)).double()


# numba compiles for seconds for each kernel.
SLOW = ("Matérn-½", "Matérn-5/2")
KERNELS = {
    "Matérn-½": lambda: matern(0.5),
    "Matérn-3/2": lambda: matern(1.5),
    "Matérn-5/2": lambda: matern(2.5),
    "trend and Matérn-3/2": lambda: gpytorch.kernels.LinearKernel().double() + matern(1.5),
}


def series(n=40, seed=0):
    """Irregular and unsorted times, some of them repeated, and values with two outliers."""
    random = np.random.default_rng(seed)
    t = random.permutation(np.round(random.uniform(0.0, 8.0, n), 1))
    y = np.sin(t) + 0.2 * random.standard_normal(n)
    y[[n // 3, n // 2]] += [4.0, -6.0]
    assert len(np.unique(t)) < n
    return torch.tensor(t), torch.tensor(y)


def naive(model):
    """Weights, pseudo-targets and pseudo-noises row by row, in O(n⁴)."""
    t, e = model.train_X.squeeze(-1).numpy(), model.residual().detach().numpy()
    with torch.no_grad():
        K, noise = model.kernel(model.train_X).to_dense().numpy(), model.noise.item()
    w, z, r = (np.full(len(t), np.nan) for _ in range(3))
    before = []
    for i in np.lexsort((e, t)):
        gain = np.linalg.solve(K[np.ix_(before, before)] + np.diag(r[before]), K[before, i]) if before else np.empty(0)
        d = e[i] - gain @ z[before]
        c2 = K[i, i] - gain @ K[before, i] + noise
        w[i] = (1.0 + d**2 / c2) ** -0.5
        z[i] = e[i] + noise * 2.0 * d / (c2 + d**2)
        r[i] = noise / w[i] ** 2
        before.append(i)
    return w, z, r


@pytest.mark.parametrize("name", [slow(name) if name in SLOW else name for name in KERNELS])
def test_weights_and_pseudo_data_are_those_of_a_naive_loop(name):
    model = FilterCentredGP(*series(), kernel=KERNELS[name](), noise=NOISE)
    w, z, r = naive(model)
    np.testing.assert_allclose(model.weights().numpy(), w, rtol=1e-9)
    pseudo = model.training_terms().pseudo
    np.testing.assert_allclose(pseudo.target.numpy(), z, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(pseudo.noise.numpy(), r, rtol=1e-9)


def test_the_posterior_is_that_of_a_dense_gp_of_the_pseudo_data():
    model = FilterCentredGP(*series(), noise=NOISE)
    _, z, r = naive(model)
    x = torch.linspace(-1.0, 9.0, 23, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        K = model.kernel(model.train_X).to_dense().numpy()
        k = model.kernel(x, model.train_X).to_dense().numpy()
        prior, level = model.kernel(x).to_dense().diagonal().numpy(), model.mean(x).numpy()
    solved = np.linalg.solve(K + np.diag(r), np.column_stack([z, k.T]))
    posterior = model.posterior(x)
    np.testing.assert_allclose(posterior.mean.numpy(), level + k @ solved[:, 0], rtol=1e-9)
    np.testing.assert_allclose(posterior.variance.numpy(), prior - (k * solved[:, 1:].T).sum(axis=1), rtol=1e-8)


def test_long_series_are_processed_in_stretches(monkeypatch):
    t, y = series(60)
    whole = FilterCentredGP(t, y, noise=NOISE).weights()
    monkeypatch.setattr(rcgp.series.solver, "_STRETCH", 1)  # of 16 rows, the fewest
    torch.testing.assert_close(FilterCentredGP(t, y, noise=NOISE).weights(), whole, rtol=0.0, atol=0.0)


def test_weights_look_backwards_only():
    t = torch.linspace(0.0, 8.0, 40, dtype=torch.float64)
    y = torch.sin(t)
    y[20:24] -= 3.0
    model = FilterCentredGP(t, y, mean="zero", noise=NOISE)
    model.kernel.base_kernel.lengthscale = 1.0
    before = model.weights()
    moved = y.clone()
    moved[22] += 5.0
    other = FilterCentredGP(t, moved, mean="zero", kernel=model.kernel, noise=NOISE).weights()
    torch.testing.assert_close(other[:22], before[:22], rtol=0.0, atol=0.0)
    assert ((other - before)[22:26].abs() > 0.01).any()
    # What follows a burst pays for it: the filter has gone some of the way.
    assert before[20] < 0.3
    assert before[24] < 0.8 * before[:20].median()


@pytest.mark.parametrize("size", [1e3, 1e160, 1e300])
def test_an_observation_of_any_size_moves_the_posterior_by_a_bounded_amount(size):
    t, y = series()
    kernel = matern(1.5)
    without = FilterCentredGP(t, y.index_fill(0, torch.tensor([7]), torch.nan), mean="zero", kernel=kernel, noise=NOISE)
    y[7] = size
    model = FilterCentredGP(t, y, mean="zero", kernel=kernel, noise=NOISE)
    assert model.weights()[7] < 1e-2
    posterior, other = model.posterior(t), without.posterior(t)
    assert posterior.mean.isfinite().all()
    torch.testing.assert_close(posterior.mean, other.mean, rtol=0.0, atol=0.05)


def test_hyperparameters_are_those_of_the_ordinary_gp():
    t, y = series()
    model, ordinary = FilterCentredGP(t, y), StateSpaceRCGP(t, y, mean="constant")
    report, other = model.fit(), rcgp.fit(ordinary, "marginal")
    assert report.value == other.value
    for name, value in ordinary.hyperparameters().items():
        torch.testing.assert_close(model.hyperparameters()[name], value)


def test_missing_values_are_ignored():
    t, y = series()
    y[5] = torch.nan
    kept = ~y.isnan()
    kernel = matern(1.5)
    model = FilterCentredGP(t, y, kernel=kernel, noise=NOISE)
    other = FilterCentredGP(t[kept], y[kept], kernel=kernel, noise=NOISE)
    torch.testing.assert_close(model.weights(), other.weights())
    torch.testing.assert_close(model.posterior(t).mean, other.posterior(t).mean)
