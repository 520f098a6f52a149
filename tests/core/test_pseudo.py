from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from problems import WEIGHTS
from rcgp.core.pseudo import pseudo_data
from rcgp.weights import smallest_weight


@pytest.mark.parametrize("name", WEIGHTS)
def test_pseudo_data_equal_the_papers_noise_and_shrinkage_terms(name):
    e, noise, c = np.linspace(-4, 4, 9), 0.3, 1.2
    cls, transcription = WEIGHTS[name]
    w, slope = transcription(e, c, noise)
    R, m_w = reference.noise_and_shrinkage(w, slope, 0.0, noise)
    weight = cls() if name == "constant" else cls(c=c)
    et, sigma2 = torch.tensor(e), torch.tensor(noise, dtype=torch.float64)
    x = torch.zeros(9, 1, dtype=torch.float64)
    pseudo = pseudo_data(et, weight(et, x, sigma2), weight.slope(et, x, sigma2), sigma2)
    np.testing.assert_allclose(pseudo.noise, np.diag(R), rtol=1e-12)
    np.testing.assert_allclose(pseudo.target, e - m_w, rtol=1e-12)


def test_imq_pushes_the_target_away_from_the_mean():
    """Erratum 1: score matching undoes the bias of down-weighting; the paper's prose has the opposite sign."""
    e, noise = torch.tensor([1.5], dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    weight = WEIGHTS["imq"][0](c=1.0)
    pseudo = pseudo_data(e, weight(e, e, noise), weight.slope(e, e, noise), noise)
    assert pseudo.target > e


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_point_of_zero_weight_is_deleted_and_keeps_finite_numbers(dtype):
    e = torch.tensor([0.5, torch.finfo(dtype).max], dtype=dtype)
    w = torch.tensor([1.0, 0.0], dtype=dtype)
    pseudo = pseudo_data(e, w, torch.zeros_like(e), torch.tensor(0.1, dtype=dtype))
    assert pseudo.noise.isfinite().all()
    assert pseudo.target.tolist() == [0.5, 0.0]
    assert pseudo.root_precision[1] <= 1.01 * smallest_weight(dtype) / 0.1**0.5


def test_pseudo_data_support_batches():
    e = torch.randn(3, 2, 5, dtype=torch.float64)
    noise = torch.rand(3, 2, dtype=torch.float64) + 0.1
    w = torch.rand(3, 2, 5, dtype=torch.float64)
    slope = torch.randn(3, 2, 5, dtype=torch.float64)
    whole = pseudo_data(e, w, slope, noise.unsqueeze(-1))
    for i in range(3):
        for j in range(2):
            one = pseudo_data(e[i, j], w[i, j], slope[i, j], noise[i, j])
            assert torch.equal(whole.target[i, j], one.target)
            assert torch.equal(whole.root_precision[i, j], one.root_precision)
