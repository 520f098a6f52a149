from __future__ import annotations

import pytest
import torch

from rcgp.core.linalg import NotPositiveDefiniteError, cholesky, scaled_cholesky


def random_spd(n, *batch, generator, dtype=torch.float64):
    B = torch.randn(*batch, n, n, generator=generator, dtype=dtype)
    return B @ B.mT + n * torch.eye(n, dtype=dtype)


def test_factor_reproduces_the_matrix_without_jitter(rng):
    M = random_spd(6, 3, 2, generator=rng)
    L = cholesky(M)
    torch.testing.assert_close(L @ L.mT, M, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(L, L.tril())


def test_singular_matrix_gets_jitter_of_the_size_of_rounding():
    M = torch.ones(50, 50, dtype=torch.float64)
    M[0, 1] = M[1, 0] = 1 + 1e-13  # indefinite by rounding
    L = cholesky(M)
    assert (L @ L.mT - M).abs().max() < 1e3 * 50 * 2.3e-16


def test_only_failing_members_of_a_batch_receive_jitter(rng):
    good = random_spd(5, generator=rng)
    bad = torch.ones(5, 5, dtype=torch.float64)
    L = cholesky(torch.stack([good, bad]))
    torch.testing.assert_close(L[0], torch.linalg.cholesky(good), rtol=0, atol=0)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_indefinite_matrix_raises_with_advice(value):
    M = torch.eye(4, dtype=torch.float64)
    M[2, 2] = value
    with pytest.raises(NotPositiveDefiniteError, match="larger noise"):
        cholesky(M)


def test_scaled_cholesky_is_that_of_identity_plus_sks(rng):
    K, s = random_spd(6, 2, generator=rng), torch.rand(2, 6, generator=rng, dtype=torch.float64)
    L = scaled_cholesky(K, s)
    torch.testing.assert_close(L @ L.mT, torch.eye(6, dtype=K.dtype) + torch.diag_embed(s) @ K @ torch.diag_embed(s))


def test_scaled_cholesky_does_not_change_its_arguments(rng):
    K, s = random_spd(4, generator=rng), torch.rand(4, generator=rng, dtype=torch.float64)
    before = K.clone(), s.clone()
    scaled_cholesky(K, s)
    assert torch.equal(K, before[0])
    assert torch.equal(s, before[1])
