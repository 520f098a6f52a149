from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

from rcgp import RCGP
from rcgp.models.kernel_matrix import close_gaps, dense_kernel, ignores_far_inputs, kernel_matrix, kernel_rows
from rcgp.weights import Constant

k = gpytorch.kernels

SHAPES = {
    "squared exponential": lambda r: np.exp(-0.5 * r**2),
    "Matérn 1/2": lambda r: np.exp(-r),
    "Matérn 3/2": lambda r: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r),
    "Matérn 5/2": lambda r: (1 + 5**0.5 * r + 5 / 3 * r**2) * np.exp(-(5**0.5) * r),
}
LENGTHSCALES = np.array([0.5, 2.0, 30.0])


def kernel_of(name, *, scales=1):
    """A kernel with these lengthscales inside ``scales`` output scales of 1.7."""
    nu = {"Matérn 1/2": 0.5, "Matérn 3/2": 1.5, "Matérn 5/2": 2.5}.get(name)
    kernel = k.RBFKernel(ard_num_dims=3) if nu is None else k.MaternKernel(nu=nu, ard_num_dims=3)
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(LENGTHSCALES)
    for _ in range(scales):
        kernel = k.ScaleKernel(kernel).double()
        kernel.outputscale = torch.tensor(1.7, dtype=torch.float64)
    return kernel


def by_differences(name, x1, x2, scales=1):
    """The kernel from differences of inputs, without loss of digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        r = np.sqrt(np.square((x1[:, None] - x2[None]) / LENGTHSCALES).sum(-1))
        values = np.where(r < 1e4, SHAPES[name](np.minimum(r, 1e4)), 0.0)
    return 1.7**scales * values


def inputs(n=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 3)) * LENGTHSCALES


def with_far(far, n=12, seed=0):
    """Inputs with a few far ones: one alone, two together, one in two coordinates."""
    x = inputs(n, seed)
    x[3, 0] = far
    x[5:7, 2] = -3.0 * far
    x[6, 2] = np.nextafter(x[6, 2], 0.0)
    x[8, :2] = far
    return x


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scales", [0, 1, 2])
@pytest.mark.parametrize("far", [1e3, 1e8, 1e20, 1e200, -1e300])
def test_far_inputs_do_not_cost_the_others_precision(name, scales, far):
    x1, x2 = with_far(far), with_far(far, 9, seed=1)
    kernel, between = kernel_of(name, scales=scales), by_differences(name, x1, x2, scales)
    t1, t2 = torch.tensor(x1), torch.tensor(x2)
    with torch.no_grad():
        np.testing.assert_allclose(dense_kernel(kernel, t1, t2), between, rtol=1e-9, atol=1e-12)
        batch = dense_kernel(kernel, t1.expand(2, 12, 3), t2)
        np.testing.assert_allclose(batch, np.stack([between, between]), rtol=1e-9, atol=1e-12)
        own = by_differences(name, x1, x1, scales)
        # The distance of Matérn kernels from themselves is GPyTorch's 1e-15.
        np.testing.assert_allclose(dense_kernel(kernel, t1, t1), own, rtol=1e-9, atol=1e-7)
        row_of = kernel_rows(kernel, t1)
        np.testing.assert_allclose(np.stack([row_of(i) for i in range(12)]), own, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("n", [12, 600])
def test_gradients_are_those_without_the_far_rows(name, n):
    """Gradients of a sum over pairs of near rows: pairs with far rows are uncorrelated for any lengthscales."""
    x, kernel = torch.tensor(with_far(1e12, n)), kernel_of(name)
    near = torch.ones(n, dtype=torch.bool)
    near[[3, 5, 6, 8]] = False
    pairs = torch.tensor(np.random.default_rng(2).standard_normal((n, n)))
    everyone = kernel_matrix(kernel, x)
    ours = torch.autograd.grad((pairs * everyone)[near][:, near].sum(), list(kernel.parameters()))
    alone = kernel_matrix(kernel, x[near])
    expected = torch.autograd.grad((pairs[near][:, near] * alone).sum(), list(kernel.parameters()))
    # With a gradient GPyTorch's distance of a row from itself is the root of a rounding error.
    tolerance = 1e-5 if name == "Matérn 1/2" else 1e-8
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    across = torch.autograd.grad(
        (pairs * kernel_matrix(kernel, x))[near][:, ~near].sum(), list(kernel.parameters()), allow_unused=True
    )
    assert all(gradient is None or bool((gradient.abs() < 1e-10).all()) for gradient in across)


def test_inputs_without_gaps_are_unchanged():
    kernel, x = kernel_of("squared exponential"), torch.tensor(inputs())
    other = torch.tensor(inputs(seed=1)) + 100.0
    assert all(new is old for new, old in zip(close_gaps(kernel, x, other), (x, other), strict=True))
    first, second = close_gaps(kernel, x, x)
    assert first is second is x
    far = torch.tensor(with_far(1e12))
    first, second = close_gaps(kernel, far, far)
    assert first is second is not far
    assert float((first / torch.tensor(LENGTHSCALES)).max()) < 4001.0
    empty = far[:0]
    assert close_gaps(kernel, empty, far)[1] is far
    wanted = far.clone().requires_grad_()
    assert close_gaps(kernel, wanted, far)[0] is wanted


def test_kernels_that_do_not_vanish_are_unchanged():
    far = torch.tensor(with_far(1e12))
    for kernel in (k.RQKernel().double(), k.LinearKernel().double()):
        assert close_gaps(kernel, far, far)[0] is far
        assert not ignores_far_inputs(kernel)
    plain = kernel_of("squared exponential")
    assert ignores_far_inputs(plain)
    assert ignores_far_inputs(k.ScaleKernel(plain + kernel_of("Matérn 5/2") * plain))
    assert not ignores_far_inputs(plain + k.RQKernel().double())


def test_a_kernel_of_some_columns_ignores_far_inputs_in_each():
    far, columns = torch.tensor(with_far(1e12)), [0, 2]
    kernel = k.ScaleKernel(k.RBFKernel(ard_num_dims=2, active_dims=columns)).double()
    on_its_own = k.ScaleKernel(k.RBFKernel(ard_num_dims=2)).double()
    assert ignores_far_inputs(kernel)
    moved = close_gaps(kernel, far, far)[0]
    torch.testing.assert_close(moved[:, columns], close_gaps(on_its_own, far[:, columns], far[:, columns])[0])
    assert moved.isfinite().all()
    torch.testing.assert_close(
        dense_kernel(kernel, far, far), dense_kernel(on_its_own, far[:, columns], far[:, columns])
    )


@pytest.mark.parametrize("scaled", [False, True])
def test_sums_and_products_bear_far_inputs(scaled):
    x1, x2 = with_far(1e15), with_far(1e15, 9, seed=1)
    kernel = kernel_of("squared exponential") + kernel_of("Matérn 5/2") * kernel_of("Matérn 3/2")
    if scaled:
        kernel = k.ScaleKernel(k.ScaleKernel(kernel)).double()
        kernel.outputscale = torch.tensor(2.0, dtype=torch.float64)
        kernel.base_kernel.outputscale = torch.tensor(0.5, dtype=torch.float64)
    assert ignores_far_inputs(kernel)
    one, two, three = (by_differences(name, x1, x2) for name in ("squared exponential", "Matérn 5/2", "Matérn 3/2"))
    with torch.no_grad():
        found = dense_kernel(kernel, torch.tensor(x1), torch.tensor(x2))
    np.testing.assert_allclose(found, one + two * three, rtol=1e-9, atol=1e-12)


def test_a_far_row_changes_no_prediction():
    random = np.random.default_rng(0)
    X = torch.tensor(random.uniform(0, 10, (80, 1)))
    y = X[:, 0].sin() + 0.1 * torch.tensor(random.standard_normal(80))
    model = RCGP(X, y, mean="zero", weight=Constant())
    test = torch.tensor([[2.0], [5.0]], dtype=torch.float64)
    expected = model.posterior(test)
    beside = model.posterior(torch.cat([test, test.new_tensor([[1e20]])]))
    torch.testing.assert_close(beside.mean[:2], expected.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(beside.variance[:2], expected.variance, rtol=1e-7, atol=1e-9)
    more_X, more_y = torch.cat([X, X.new_tensor([[1e20]])]), torch.cat([y, y.new_tensor([0.3])])
    moved = RCGP(more_X, more_y, kernel=model.kernel, mean="zero", weight=model.weight)
    moved.noise = model.noise.detach()
    torch.testing.assert_close(moved.posterior(test).mean, expected.mean, rtol=1e-9, atol=1e-9)
