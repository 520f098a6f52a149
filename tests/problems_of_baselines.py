"""What the tests of variational baselines share."""

from __future__ import annotations

import pytest
import torch

from rcgp_paper.baselines.variational import VariationalGP


def settle(model: VariationalGP) -> None:
    """Let later searches for the posterior begin at the present one, since there may be several optima."""
    _, q = model._bound()
    model.latent_moments = torch.stack([q.mean, q.variance])


def assert_gradient_by_differences(model: VariationalGP, step: float = 1e-4) -> None:
    settle(model)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(model.elbo(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for index in range(parameter.numel()):
            values = []
            for change in (step, -step):
                with torch.no_grad():
                    parameter.view(-1)[index] += change
                    values.append(model.elbo().item())
                    parameter.view(-1)[index] -= change
            expected = (values[0] - values[1]) / (2 * step)
            assert gradient.view(-1)[index].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
