from __future__ import annotations

import pytest
import torch

from problems import make_data, make_twin
from rcgp import RCGP
from rcgp.models import posterior as module


@pytest.mark.parametrize("entries", [1, 40, 2**22])
def test_chunks_do_not_change_the_result(monkeypatch, entries):
    model = make_twin("imq").model
    X = torch.rand(2, 23, 2, dtype=torch.float64)
    whole = model.posterior(X)
    mean, variance = whole.mean, whole.variance
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", entries)
    parts = model.posterior(X)
    torch.testing.assert_close(parts.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.variance, variance, rtol=1e-10, atol=1e-12)


def test_variances_need_no_covariance_matrix(monkeypatch):
    model = make_twin("imq").model

    def refuse(*arguments):
        raise AssertionError("a q x q matrix was built")

    monkeypatch.setattr(module.PosteriorProcess, "covariance", refuse)
    for observation_noise in (False, True):
        posterior = model.posterior(torch.rand(9, 2, dtype=torch.float64), observation_noise=observation_noise)
        lower, upper = posterior.confidence_region()
        assert (upper - lower > 0).all()
    with pytest.raises(AssertionError, match="q x q"):
        model.posterior(torch.rand(9, 2, dtype=torch.float64)).covariance_matrix  # noqa: B018


def test_indexing_a_posterior_keeps_its_kind_and_values():
    model = make_twin("imq").model
    posterior = model.posterior(torch.rand(3, 5, 2, dtype=torch.float64))
    one = posterior[1]
    assert type(one) is type(posterior)
    torch.testing.assert_close(one.mean, posterior.mean[1])
    torch.testing.assert_close(one.variance, posterior.variance[1])


def test_cross_covariances_are_blocks_of_the_joint_covariance():
    model = make_twin("imq").model
    x = torch.rand(7, 2, dtype=torch.float64)
    process = model._posterior_process()
    joint = process.covariance(x, x)
    torch.testing.assert_close(process.covariance(x[:3], x[3:]), joint[:3, 3:])
    kernel = module.PosteriorKernel(process, torch.float64)
    torch.testing.assert_close(kernel(x[:3], x[3:6], diag=True), joint[:3, 3:6].diagonal())


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_samples_and_densities_do_not_depend_on_units(unit):
    X, y = (torch.tensor(a) for a in make_data(30))
    x = torch.rand(8, 2, dtype=torch.float64)
    one, other = RCGP(X, y).posterior(x), RCGP(X, unit * y).posterior(x)
    base = torch.randn(500, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = one.rsample(torch.Size([500]), base_samples=base)
    torch.testing.assert_close(
        other.rsample(torch.Size([500]), base_samples=base) / unit, expected, rtol=1e-6, atol=1e-6
    )
    log_units = 8 * torch.tensor(unit, dtype=torch.float64).log()
    torch.testing.assert_close(
        other.log_prob(unit * expected[0]) + log_units, one.log_prob(expected[0]), rtol=1e-4, atol=1e-5
    )


def test_samples_and_densities_share_one_factorisation(monkeypatch):
    calls = []
    original = module.cholesky
    monkeypatch.setattr(module, "cholesky", lambda M: calls.append(1) or original(M))
    posterior = make_twin("imq").model.posterior(torch.rand(4, 2, dtype=torch.float64))
    posterior.log_prob(posterior.rsample())
    assert len(calls) == 1


def test_densities_equal_torchs_own():
    posterior = make_twin("imq").model.posterior(torch.rand(3, 4, 2, dtype=torch.float64), observation_noise=True)
    values = torch.randn(3, 4, dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(posterior.mean, posterior.covariance_matrix).log_prob(values)
    torch.testing.assert_close(posterior.log_prob(values), expected)


def test_batches_of_single_points_are_solved_together(monkeypatch):
    """BoTorch's shape b x 1 x d must not copy the n x n factor b times."""
    model = make_twin("imq").model
    X = torch.rand(40, 1, 2, dtype=torch.float64)
    shapes = []
    original = torch.linalg.solve_triangular

    def watched(L, B, **arguments):
        shapes.append((L.ndim, B.ndim))
        return original(L, B, **arguments)

    monkeypatch.setattr(torch.linalg, "solve_triangular", watched)
    posterior = model.posterior(X)
    torch.testing.assert_close(posterior.variance, model.posterior(X.reshape(40, 2)).variance.reshape(40, 1))
    assert posterior.covariance_matrix.shape == (40, 1, 1)
    assert set(shapes) == {(2, 2)}
