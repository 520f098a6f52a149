from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from rcgp.core.exact import condition
from rcgp.core.pseudo import PseudoData


def problem(n=9, q=4, seed=1):
    random = np.random.default_rng(seed)
    X, X_star = random.uniform(-1, 1, (n, 2)), random.uniform(-1, 1, (q, 2))
    ell = np.array([0.6, 0.8])
    K = [reference.se_kernel(a, b, ell, 1.3) for a, b in ((X, X), (X, X_star), (X_star, X_star))]
    y = random.standard_normal(n)
    return K, y, *reference.imq(y, 1.0, 0.1)


def test_prediction_equals_the_dense_transcription():
    (K, Ks, Kss), y, w, slope = problem()
    mean, cov = reference.predict(K, Ks, Kss, 0.0, y, 0.0, w, slope, 0.1)
    R, m_w = reference.noise_and_shrinkage(w, slope, 0.0, 0.1)
    K, Ks, Kss = (torch.tensor(a) for a in (K, Ks.T, Kss))
    post = condition(K, PseudoData(torch.tensor(y - m_w), torch.tensor(np.diag(R) ** -0.5)))
    np.testing.assert_allclose(post.mean(Ks), mean, atol=1e-9)
    np.testing.assert_allclose(post.covariance(Ks, Ks, Kss), cov, atol=1e-9)
    np.testing.assert_allclose(post.variance(Ks, Kss.diagonal()), np.diag(cov), atol=1e-9)
    np.testing.assert_allclose(post.covariance(Ks[:1], Ks[1:], Kss[:1, 1:]), cov[:1, 1:], atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_batches_equal_their_members(dtype, batch):
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(*batch, 5, 5, generator=generator, dtype=dtype)
    K, Ks = B @ B.mT, torch.randn(*batch, 4, 5, generator=generator, dtype=dtype)
    z, s = torch.randn(2, *batch, 5, generator=generator, dtype=dtype).abs()
    whole = condition(K, PseudoData(z, s))
    prior = torch.full((*batch, 4), 50.0, dtype=dtype)
    mean, variance = whole.mean(Ks), whole.variance(Ks, prior)
    assert mean.dtype == variance.dtype == dtype
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for index in np.ndindex(*batch):
        one = condition(K[index], PseudoData(z[index], s[index]))
        torch.testing.assert_close(mean[index], one.mean(Ks[index]), **tolerance)
        torch.testing.assert_close(variance[index], one.variance(Ks[index], prior[index]), **tolerance)


def test_point_of_infinite_noise_equals_a_missing_point():
    (K, Ks, _), y, *_ = problem()
    K, Ks, y = torch.tensor(K), torch.tensor(Ks.T), torch.tensor(y)
    s = torch.full_like(y, 3.0)
    s[4] = 1e-124
    keep = torch.arange(len(y)) != 4
    y[4] = 1e100
    full = condition(K, PseudoData(y, s))
    part = condition(K[keep][:, keep], PseudoData(y[keep], s[keep]))
    torch.testing.assert_close(full.mean(Ks), part.mean(Ks[:, keep]), rtol=1e-12, atol=1e-12)


def test_variance_is_never_negative():
    K = torch.ones(3, 3, dtype=torch.float64)
    post = condition(K, PseudoData(torch.zeros(3, dtype=torch.float64), torch.full((3,), 1e7, dtype=torch.float64)))
    assert (post.variance(K, K.diagonal()) >= 0).all()
