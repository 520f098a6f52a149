from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from rcgp import RCGP, FitError
from rcgp.models.defaults import add_weak_priors
from rcgp.training import fit
from rcgp.training.quick_evidence import QuickEvidence
from rcgp.training.rows import evidence_of
from rcgp.weights import Constant

KERNELS = {
    "default": lambda: None,
    "squared exponential": lambda: RBFKernel(ard_num_dims=2),
    "Matérn 3/2": lambda: MaternKernel(nu=1.5, ard_num_dims=2),
    "Matérn 5/2": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)),
}
MEANS = {"constant": gpytorch.means.ConstantMean, "fixed": lambda: "median"}


def make_model(kernel="default", mean="constant", n=25, **arguments):
    random = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=random, dtype=torch.float64)
    y = 5.0 + 3.0 * torch.sin(4.0 * X.sum(dim=-1)) + 0.1 * torch.randn(n, generator=random, dtype=torch.float64)
    model = RCGP(X, y, kernel=KERNELS[kernel](), mean=MEANS[mean](), weight=Constant(), **arguments)
    if kernel == "default":
        add_weak_priors(model)
    return model


def some_rows(n=25):
    return torch.rand(n, generator=torch.Generator().manual_seed(1)) < 0.8


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("precisions", [False, True])
def test_value_is_the_evidence_of_the_rows(kernel, mean, precisions):
    weights = torch.linspace(0.5, 4.0, 25, dtype=torch.float64) if precisions else None
    model = make_model(kernel, mean, sample_weight=weights)
    rows = some_rows()
    assert QuickEvidence.of(model).value(rows) == pytest.approx(evidence_of(rows)(model).item(), rel=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_is_that_of_the_value(kernel):
    quick = QuickEvidence.of(make_model(kernel))
    x, rows = quick._read(), quick._rows(some_rows())
    gradient = quick._evaluate(x, rows)[1]
    step = 1e-5
    for i, direction in enumerate(np.eye(x.size)):
        up, down = (quick._evaluate(x + sign * step * direction, rows)[0] for sign in (1, -1))
        assert gradient[i] == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_search_ends_where_the_general_one_does(kernel, mean):
    quickly, slowly = make_model(kernel, mean), make_model(kernel, mean)
    report = QuickEvidence.of(quickly).search(some_rows(), 1e-10, 1000)
    expected = fit(slowly, evidence_of(some_rows()))
    assert report.converged
    assert report.value == pytest.approx(expected.value, abs=1e-3)
    assert report.value == pytest.approx(evidence_of(some_rows())(quickly).item(), rel=1e-9)


def test_what_is_fixed_stays():
    model = make_model()
    model.raw_noise.requires_grad_(False)
    model.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    before = [model.noise.item(), *model.kernel.base_kernel.lengthscale.flatten().tolist()]
    scale = model.kernel.outputscale.item()
    QuickEvidence.of(model).search(some_rows(), 1e-9, 100)
    assert [model.noise.item(), *model.kernel.base_kernel.lengthscale.flatten().tolist()] == before
    assert model.kernel.outputscale.item() != scale


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "kernel", gpytorch.kernels.PeriodicKernel()),
        lambda model: setattr(model, "kernel", RBFKernel(ard_num_dims=1, active_dims=[0])),
        lambda model: setattr(model, "mean", gpytorch.means.LinearMean(2)),
        lambda model: model.register_prior("own", gpytorch.priors.GammaPrior(2.0, 1.0), lambda m: m.noise, None),
    ],
    ids=["kernel", "some columns", "mean", "prior"],
)
def test_other_priors_are_left_to_the_general_way(change):
    model = make_model("squared exponential")
    assert QuickEvidence.of(model) is not None
    change(model.double())
    assert QuickEvidence.of(model.double()) is None


def test_many_rows_are_left_to_the_general_way():
    assert QuickEvidence.of(make_model(n=1001)) is None


def test_evidence_that_cannot_be_computed_is_told():
    model = make_model(mean="fixed")
    with torch.no_grad():
        model.train_y[3] = 1e300
    quick = QuickEvidence.of(model)
    everyone = torch.ones(25, dtype=torch.bool)
    assert quick.value(everyone) == -float("inf")
    with pytest.raises(FitError) as caught:
        quick.search(everyone, 1e-6, 10)
    assert caught.value.row == 3


@pytest.mark.parametrize(
    ("kernel", "mean"), [("default", "constant"), ("default", "fixed"), ("Matérn 5/2", "constant")]
)
def test_both_units_of_a_search_lead_to_the_maximum(kernel, mean):
    values = []
    for logarithms in (True, False):
        model = make_model(kernel, mean)
        report = QuickEvidence.of(model).search(some_rows(), 1e-12, 1000, logarithms=logarithms)
        assert report.value == pytest.approx(evidence_of(some_rows())(model).item(), rel=1e-9)
        values.append(report.value)
    assert values[1] == pytest.approx(values[0], abs=1e-5)


@pytest.mark.parametrize("logarithms", [True, False])
def test_fixed_hyperparameters_stay_in_both_units(logarithms):
    model = make_model()
    model.raw_noise.requires_grad_(False)
    before, lengthscale = model.noise.clone(), model.kernel.base_kernel.lengthscale.clone()
    QuickEvidence.of(model).search(some_rows(), 1e-9, 1000, logarithms=logarithms)
    assert torch.equal(model.noise, before)
    assert not torch.equal(model.kernel.base_kernel.lengthscale, lengthscale)


def test_inputs_too_far_apart_for_squares_have_no_formulas():
    X = torch.tensor([[1e308], [-1e308], [3.0], [4.0]], dtype=torch.float64)
    model = RCGP(X, torch.tensor([1.0, 3.0, 2.0, 5.0], dtype=torch.float64), weight=Constant())
    assert QuickEvidence.of(model) is None


def test_observations_of_any_size_have_bounds_around_them():
    X = torch.linspace(0.0, 3.0, 12, dtype=torch.float64)[:, None]
    for unit in (1e-100, 1.0, 1e100):
        quick = QuickEvidence.of(RCGP(X, unit * X[:, 0].sin(), mean="median"))
        for (lower, upper), value in zip(quick._bounds(), quick._read(), strict=True):
            assert lower < value < upper
