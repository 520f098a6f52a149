"""Starting values: the typical gap between rows."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch

from rcgp import RCGP, AverageRCGP, GradientRCGP, MultiOutputRCGP, fit_robust
from rcgp.models.defaults import add_weak_priors, default_kernel, longest_lengthscale, robust_scales, typical_gap
from rcgp.training.search import shorter_starts


def brute_force(X):
    """Median distance from the nearest other input, in units of the default lengthscales."""
    scaled = X / default_kernel(robust_scales(X), 1.0).base_kernel.lengthscale
    distances = torch.cdist(scaled, scaled).fill_diagonal_(torch.inf)
    return distances.amin(dim=-1).quantile(0.5).item()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_typical_gap_is_the_median_distance_from_the_nearest_input(d):
    X = torch.randn(51, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    assert typical_gap(X) == pytest.approx(brute_force(X), rel=1e-6)
    assert typical_gap(1e9 * X - 1e7) == pytest.approx(typical_gap(X), rel=1e-6)


def test_repeated_inputs_have_no_gap():
    X = torch.arange(20.0, dtype=torch.float64).unsqueeze(-1)
    assert typical_gap(torch.cat([X, X, X + 1e-12])) == pytest.approx(typical_gap(X))
    assert typical_gap(X[:1]) == typical_gap(torch.ones(5, 2, dtype=torch.float64)) == 1.0


def test_a_constant_column_does_not_change_the_typical_gap():
    X = torch.randn(51, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert typical_gap(torch.cat([X, torch.ones_like(X)], dim=-1)) == typical_gap(X)


def test_the_typical_gap_of_float32_inputs_is_that_of_float64():
    X = torch.randn(51, 2, generator=torch.Generator().manual_seed(0))
    X[3, 0] = 1e38
    assert typical_gap(X) == typical_gap(X.double())


@pytest.mark.parametrize("d", [1, 3])
def test_the_typical_gap_of_many_inputs_is_that_of_a_sample(d):
    X = torch.rand(4100, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    assert typical_gap(X) == pytest.approx(brute_force(X), rel=0.1)
    assert typical_gap(X.flip(0)) == typical_gap(X)


def test_the_typical_gap_of_averages_is_in_units_of_their_first_lengthscale():
    """The centres are closer to each other than the points."""
    centre = torch.linspace(-1.0, 1.0, 21, dtype=torch.float64)
    model = AverageRCGP.of_intervals(centre - 20.0, centre + 20.0, centre.sin())
    lengthscale = model.kernel.base.base_kernel.lengthscale.item()
    assert model.typical_gap() * lengthscale == pytest.approx(0.1)
    gap, model.kernel.base.base_kernel.lengthscale = model.typical_gap(), 50.0 * lengthscale
    assert model.typical_gap() == pytest.approx(gap / 50.0)


@pytest.mark.parametrize("make", ["gradients", "averages"])
def test_weak_priors_of_gradients_and_averages_are_those_of_f(make):
    x = torch.linspace(0.0, 5.0, 12, dtype=torch.float64)
    if make == "gradients":
        model = GradientRCGP(x.unsqueeze(-1), x.sin(), x.cos().unsqueeze(-1))
    else:
        model = AverageRCGP.of_intervals(x, x + 0.3, x.sin())
    add_weak_priors(model)
    kernel = model.kernel.base
    found = {id(part): prior.mode for _, part, prior, _, _ in model.named_priors()}
    torch.testing.assert_close(found[id(kernel)], kernel.outputscale.detach())
    torch.testing.assert_close(found[id(model)], model.noise.detach())
    assert id(kernel.base_kernel) in found
    fit_robust(model)
    assert model.posterior(x.unsqueeze(-1)).mean.isfinite().all()


def test_scales_of_more_numbers_than_torchs_quantiles_take():
    X = torch.arange(40960.0).unsqueeze(-1)
    assert robust_scales(X.expand(-1, 410))[-1] == robust_scales(X)[0]


def test_an_absurd_input_does_not_change_the_typical_gap():
    X = torch.arange(100.0, dtype=torch.float64).unsqueeze(-1)
    absurd = X.clone()
    absurd[-1] = 1e300
    assert typical_gap(absurd) == pytest.approx(typical_gap(X), rel=0.1)


def test_outputs_at_the_same_input_have_no_gap():
    X = torch.arange(30.0, dtype=torch.float64).unsqueeze(-1)
    model = MultiOutputRCGP(X, torch.stack([torch.sin(X[:, 0]), torch.cos(X[:, 0])], dim=-1))
    assert model.typical_gap() == pytest.approx(typical_gap(X), rel=0.1)


def test_the_longest_lengthscale_is_in_units_of_the_default_one():
    X = torch.rand(50, 2, dtype=torch.float64) * torch.tensor([1.0, 100.0])
    kernel = default_kernel(robust_scales(X), 1.0)
    assert longest_lengthscale(kernel, X) == pytest.approx(1.0)
    kernel.base_kernel.lengthscale = kernel.base_kernel.lengthscale * torch.tensor([7.0, 0.5])
    assert longest_lengthscale(kernel, X) == pytest.approx(7.0)
    inner = gpytorch.kernels.MaternKernel(active_dims=(1,)).double()
    inner.lengthscale = 20.0 * robust_scales(X)[1]
    assert longest_lengthscale(kernel + inner, X) == pytest.approx(20.0 / math.sqrt(2.0))
    assert longest_lengthscale(gpytorch.kernels.LinearKernel(), X) == 1.0


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_a_kernel_that_starts_long_is_shortened_to_the_same_gap(factor):
    """Starts at shorter lengthscales end where neighbours no longer correlate, whatever kernel the user gives."""
    X = factor * torch.arange(240.0, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(torch.pi * X[:, 0] / (3.15 * factor))
    model = RCGP(X, y, kernel=gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double())
    model.kernel.base_kernel.lengthscale = 1e4 * factor
    shortest = [model.kernel.base_kernel.lengthscale.item() for _ in shorter_starts(model)][-1]
    assert 0.3 * factor < shortest <= factor
