from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rcgp.core import sparse
from rcgp.core.exact import condition, leave_one_out
from rcgp.core.pseudo import PseudoData
from rcgp.core.sparse import (
    block_rows,
    condition_sparse,
    leave_one_out_sparse,
    moments,
    signal_bound,
    statistics,
    unseen_variance,
    weighted_gram,
    whiten,
)


def problem(n=30, m=6, seed=0):
    """Kernel values of m inducing points and n rows under a squared exponential, and pseudo-data."""
    random = np.random.default_rng(seed)
    Z, X = torch.tensor(random.uniform(0, 5, (m, 1))), torch.tensor(random.uniform(0, 5, (n, 1)))
    K_uu, K_uf = (1.3 * torch.exp(-0.5 * (Z - points.mT).square()) for points in (Z, X))
    pseudo = PseudoData(torch.tensor(random.standard_normal(n)), torch.tensor(random.uniform(0.1, 3, n)))
    L = torch.linalg.cholesky(K_uu)
    return L, whiten(L, K_uf), pseudo, torch.full((n,), 1.3, dtype=torch.float64)


def statistics_of(V, pseudo, prior):
    return statistics(V, pseudo, unseen_variance(V, prior))


def part(pseudo, rows):
    return PseudoData(pseudo.target[rows], pseudo.root_precision[rows])


def test_statistics_equal_their_definitions():
    _, V, pseudo, prior = problem()
    stats = statistics_of(V, pseudo, prior)
    r, z = pseudo.noise, pseudo.target
    torch.testing.assert_close(stats.gram, sum(torch.outer(v, v) / r[i] for i, v in enumerate(V.T)))
    torch.testing.assert_close(stats.moment, sum(v * z[i] / r[i] for i, v in enumerate(V.T)))
    assert float(stats.energy) == pytest.approx(float((z**2 / r).sum()))
    assert float(stats.unseen) == pytest.approx(float(((prior - (V**2).sum(0)) / r).sum()))
    assert float(stats.log_precision) == pytest.approx(float(-0.5 * r.log().sum()))
    assert stats.rows == 30


@pytest.mark.parametrize("pieces", [1, 3, 30])
def test_statistics_of_parts_add_up(pieces):
    _, V, pseudo, prior = problem()
    whole = statistics_of(V, pseudo, prior)
    parts = [
        statistics_of(V[:, rows], part(pseudo, rows), prior[rows]) for rows in np.array_split(np.arange(30), pieces)
    ]
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    assert total.rows == whole.rows
    for name in ("gram", "moment", "energy", "unseen", "log_precision"):
        torch.testing.assert_close(getattr(total, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [1, 5, 8, 41])
def test_symmetric_products_are_complete(m):
    V, weight = torch.randn(m, 20, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    torch.testing.assert_close(weighted_gram(V, weight), (V * weight) @ V.T)


def test_the_posterior_is_that_of_a_gp_with_the_low_rank_covariance():
    L, V, pseudo, prior = problem()
    Q = V.T @ V
    posterior, exact = condition_sparse(L, statistics_of(V, pseudo, prior)), condition(Q, pseudo)
    K_star = (L @ V).T  # predictions at the rows themselves
    torch.testing.assert_close(posterior.mean(K_star), exact.mean(Q))
    unseen = unseen_variance(V, prior)
    torch.testing.assert_close(posterior.variance(K_star, prior), exact.variance(Q, Q.diagonal()) + unseen)
    prior_covariance = Q + torch.diag(unseen)
    covariance = posterior.covariance(K_star, K_star, prior_covariance)
    torch.testing.assert_close(covariance, exact.covariance(Q, Q, prior_covariance))
    torch.testing.assert_close(
        posterior.covariance(K_star[:4], K_star[4:], prior_covariance[:4, 4:]), covariance[:4, 4:]
    )


def test_leave_one_out_is_that_of_a_gp_with_the_low_rank_covariance():
    L, V, pseudo, prior = problem()
    found = leave_one_out_sparse(
        moments(condition_sparse(L, statistics_of(V, pseudo, prior)), V), pseudo, unseen_variance(V, prior)
    )
    expected = leave_one_out(V.T @ V, pseudo)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance + unseen_variance(V, prior))


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
def test_leave_one_out_of_an_isolated_row_is_that_of_a_refit(noise):
    """An inducing point on a row without neighbours: its leverage is nearly one."""
    random = np.random.default_rng(0)
    X = torch.tensor([*random.uniform(0, 5, 29), 9.0])[:, None].double()
    Z = torch.tensor([0.0, 1.5, 3.0, 5.0, 9.0])[:, None].double()
    K_uu, K_uf = (1.3 * torch.exp(-0.5 * (Z - points.mT).square()) for points in (Z, X))
    L, prior = torch.linalg.cholesky(K_uu), torch.full((30,), 1.3).double()
    V, pseudo = (
        whiten(L, K_uf),
        PseudoData(torch.tensor(random.standard_normal(30)), torch.full((30,), noise**-0.5).double()),
    )
    unseen, others = unseen_variance(V, prior), torch.arange(30) != 29
    found = moments(condition_sparse(L, statistics_of(V, pseudo, prior)), V)
    assert float(found.variance[29] / noise) > 1.0 - 2.0 * noise
    mean, variance = leave_one_out_sparse(found, pseudo, unseen)
    gone = condition_sparse(L, statistics_of(V[:, others], part(pseudo, others), prior[others]))
    expected = moments(gone, V[:, [29]])
    assert float(mean[29]) == pytest.approx(float(expected.mean), abs=1e-8 / noise**0.5)
    assert float(variance[29]) == pytest.approx(float(expected.variance + unseen[29]), rel=1e-7)


@pytest.mark.parametrize("noise", [1e4, 1e12, 1e100, 1e300])
def test_row_of_infinite_noise_has_no_effect(noise):
    L, V, pseudo, prior = problem()
    s, z = pseudo.root_precision.clone(), pseudo.target.clone()
    s[4], z[4] = noise**-0.5, 1e150
    others = torch.arange(30) != 4
    gone = condition_sparse(L, statistics_of(V[:, others], part(pseudo, others), prior[others]))
    pseudo = PseudoData(torch.where(others, z, torch.zeros_like(z)), s)
    posterior = condition_sparse(L, statistics_of(V, pseudo, prior))
    torch.testing.assert_close(posterior.alpha, gone.alpha, rtol=10 / noise + 1e-9, atol=1e-9)
    unseen = unseen_variance(V, prior)
    mean, variance = leave_one_out_sparse(moments(posterior, V), pseudo, unseen)
    expected = moments(gone, V[:, [4]])
    assert float(mean[4]) == pytest.approx(float(expected.mean), rel=1e-9)
    assert float(variance[4]) == pytest.approx(float(expected.variance + unseen[4]), rel=1e-9)


def test_bound_equals_titsias():
    L, V, pseudo, prior = problem()
    stats = statistics_of(V, pseudo, prior)
    bound = signal_bound(condition_sparse(L, stats), stats) - 0.5 * stats.energy
    bound += stats.log_precision - 15 * math.log(2 * math.pi)
    S = V.T @ V + torch.diag(pseudo.noise)
    normal = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=torch.float64), S)
    trace = ((prior - (V**2).sum(0)) / pseudo.noise).sum()
    torch.testing.assert_close(bound, normal.log_prob(pseudo.target) - 0.5 * trace)


def test_many_rows_with_little_noise_keep_precision():
    """Sums of k_i k_iᵀ would lose all digits here; the targets are a function of the basis."""
    L, V, _, prior = problem(n=2000, m=12, seed=3)
    random = np.random.default_rng(0)
    weights = torch.tensor(random.standard_normal(12))
    pseudo = PseudoData(weights @ V, torch.full((2000,), 1e5, dtype=torch.float64))  # a function of the basis, no noise
    posterior = condition_sparse(L, statistics_of(V, pseudo, prior))
    found = moments(posterior, V)
    torch.testing.assert_close(found.mean, pseudo.target, rtol=1e-6, atol=1e-6)
    assert float(found.variance.max()) < 1.1e-10


def test_unseen_variance_is_never_negative():
    V = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    assert unseen_variance(V, torch.tensor([1.0 - 1e-16, 1.0], dtype=torch.float64)).tolist() == [0.0, 0.75]


def test_products_in_blocks_do_not_depend_on_their_number(monkeypatch):
    V = torch.randn(10, 30, dtype=torch.float64)
    expected = weighted_gram(V, torch.ones(30, dtype=torch.float64))
    monkeypatch.setattr(sparse, "_BLOCKS", 3)
    torch.testing.assert_close(weighted_gram(V, torch.ones(30, dtype=torch.float64)), expected)


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_whitening_solves_for_both_memory_layouts(by_rows, overwrite):
    L, _, _, _ = problem()
    K_uf = torch.randn(6, 30, dtype=torch.float64)
    given = K_uf.clone() if by_rows else K_uf.mT.contiguous().mT
    V = whiten(L, given, overwrite)
    torch.testing.assert_close(L @ V, K_uf, rtol=1e-12, atol=1e-12)
    assert V.stride() == given.stride()
    if by_rows and overwrite:
        assert V.data_ptr() == given.data_ptr()
    else:
        assert torch.equal(given, K_uf)


def test_whitening_has_a_gradient_for_both_memory_layouts():
    L, _, _, _ = problem(m=3)
    K_uf = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    L.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda L, K: whiten(L.tril(), K), (L, K_uf))
    assert torch.autograd.gradcheck(lambda L, K: whiten(L.tril(), K.mT), (L, K_uf.detach().mT.clone().requires_grad_()))


@pytest.mark.parametrize("m", [1, 63, 64, 65, 200])
def test_squares_are_summed_over_all_rows(m):
    V = torch.randn(m, 5, dtype=torch.float64)
    prior = torch.full((5,), 1e3, dtype=torch.float64)
    torch.testing.assert_close(unseen_variance(V, prior), prior - (V**2).sum(0), rtol=1e-14, atol=1e-14)


def test_blocks_have_bounded_entries_and_a_minimum_of_rows():
    assert block_rows(500) * 500 <= 2**19
    assert block_rows(5000) == 1024
    assert block_rows(1) == 2**19
