from __future__ import annotations

import pytest
import torch

from problems import make_twin
from rcgp.models import posterior as module


@pytest.mark.parametrize("entries", [1, 40, 2**22])
def test_chunks_do_not_change_the_answer(monkeypatch, entries):
    model = make_twin("imq").model
    X = torch.rand(2, 23, 2, dtype=torch.float64)
    whole = model.posterior(X)
    mean, variance = whole.mean, whole.variance
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", entries)
    parts = model.posterior(X)
    torch.testing.assert_close(parts.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.variance, variance, rtol=1e-10, atol=1e-12)


def test_asking_for_variances_builds_no_covariance_matrix(monkeypatch):
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
    kernel = module.PosteriorKernel(process)
    torch.testing.assert_close(kernel(x[:3], x[3:6], diag=True), joint[:3, 3:6].diagonal())
