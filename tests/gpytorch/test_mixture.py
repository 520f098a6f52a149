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
