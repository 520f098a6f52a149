"""The predictive distribution of good observations."""

from __future__ import annotations

import pytest
import torch

from rcgp.gpytorch import NoiseMixture

DOUBLE = torch.float64


def test_the_mixture_has_the_moments_and_quantiles_of_its_samples():
    shares = torch.tensor([0.8, 0.1, 0.05, 0.05], dtype=DOUBLE)
    variance = torch.tensor([1.0, 4.0, 16.0, 64.0], dtype=DOUBLE) * torch.tensor([[0.5], [2.0]], dtype=DOUBLE)
    mixture = NoiseMixture(shares, torch.tensor([1.0, -2.0], dtype=DOUBLE), variance)
    torch.manual_seed(0)
    samples = mixture.sample(torch.Size([200_000]))
    torch.testing.assert_close(mixture.mean, samples.mean(dim=0), rtol=0.05, atol=0.02)
    torch.testing.assert_close(mixture.variance, samples.var(dim=0), rtol=0.05, atol=0.0)
    levels = torch.tensor([[0.025], [0.5], [0.9]], dtype=DOUBLE)
    torch.testing.assert_close(mixture.cdf(mixture.quantile(levels)), levels.expand(3, 2), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mixture.quantile(0.5), mixture.mean)
    torch.testing.assert_close(mixture.expand(torch.Size([3, 2])).variance[1], mixture.variance)
    with pytest.raises(ValueError, match="probabilities"):
        mixture.quantile(1.0)


def test_samples_have_the_gradients_of_the_moments():
    shares = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=DOUBLE).requires_grad_()
    mean, variance = (torch.tensor(v, dtype=DOUBLE).requires_grad_() for v in (1.0, [1.0, 4.0, 9.0, 16.0]))
    torch.manual_seed(0)
    mixture = NoiseMixture(shares, mean, variance)
    x = mixture.rsample(torch.Size([400_000]))
    assert mixture.has_rsample
    torch.manual_seed(0)
    torch.testing.assert_close(x, mixture.sample(x.shape))
    found = torch.autograd.grad(x.square().mean(), (mean, variance, shares))
    torch.testing.assert_close(found[:2], (2.0 * mean.detach(), shares.detach()), rtol=0.03, atol=0.01)
    total = shares / shares.sum()  # Σ π_k v_k with normalised shares
    (expected,) = torch.autograd.grad((total * variance.detach()).sum(), shares)
    torch.testing.assert_close(found[2], expected, rtol=0.05, atol=0.1)
