from __future__ import annotations

import gpytorch
import pytest
import torch

from rcgp.models import kernel_matrix as module
from rcgp.models.kernel_matrix import dense_kernel, kernel_matrix, whitened_kernel

k = gpytorch.kernels


class White(k.Kernel):
    """A user's kernel that treats x1 == x2 as a special case, although it calls itself stationary."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        same = torch.equal(x1, x2)
        if diag:
            return self.lengthscale.reshape(()) * torch.full(x1.shape[:-1], float(same), dtype=x1.dtype)
        return self.lengthscale * float(same) * torch.eye(len(x1), len(x2), dtype=x1.dtype)


KERNELS = {
    "ard": lambda: k.ScaleKernel(k.RBFKernel(ard_num_dims=3)),
    "one lengthscale": lambda: k.ScaleKernel(k.RBFKernel()),
    "not scaled": lambda: k.RBFKernel(),
    "sum": lambda: k.ScaleKernel(k.MaternKernel(nu=2.5)) + k.RQKernel(),
    "product of some columns": lambda: k.RBFKernel(active_dims=[0, 2]) * k.PeriodicKernel(active_dims=[1]),
    "not stationary": lambda: k.LinearKernel() + k.RBFKernel(),
    "a user's": lambda: k.ScaleKernel(White()) + k.RBFKernel(),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("block", [3, 5, 256])
def test_blockwise_gradient_equals_autograd(monkeypatch, name, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(17, 3, generator=generator, dtype=torch.float64)
    G = torch.randn(17, 17, generator=generator, dtype=torch.float64)  # not symmetric, to be sure of both triangles
    kernel = KERNELS[name]().double()
    parameters = list(kernel.parameters())
    ours, theirs = kernel_matrix(kernel, X), kernel(X).to_dense()
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)
    for a, b in zip(torch.autograd.grad(ours, parameters, G), torch.autograd.grad(theirs, parameters, G), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_blocks_are_used_for_known_kernels_only(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 3)
    X = torch.randn(17, 3, dtype=torch.float64)
    name = "_BlockwiseKernelMatrixBackward"
    assert kernel_matrix(KERNELS["ard"]().double(), X).grad_fn.name() == "_SquaredExponentialMatrixBackward"
    assert kernel_matrix(KERNELS["sum"]().double(), X).grad_fn.name() == name
    assert kernel_matrix(KERNELS["a user's"]().double(), X).grad_fn.name() != name


@pytest.mark.parametrize("name", ["ard", "one lengthscale"])
def test_the_gradient_of_a_squared_exponential_by_brute_force(name):
    """Entry by entry, with inputs far from the origin and lengthscales much shorter than their range."""
    kernel = KERNELS[name]().double()
    X = 100.0 + torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel.base_kernel.lengthscale = 0.3 * torch.ones_like(kernel.base_kernel.lengthscale)
    kernel.outputscale = torch.tensor(2.5, dtype=torch.float64)
    G = torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.autograd.grad(kernel_matrix(kernel, X), list(kernel.parameters()), G)
    lengthscale, scale = kernel.base_kernel.lengthscale, kernel.outputscale
    total = sum(
        G[i, j] * scale * torch.exp(-0.5 * ((X[i] - X[j]) / lengthscale.squeeze(0)).square().sum())
        for i in range(9)
        for j in range(9)
    )
    for ours, expected in zip(found, torch.autograd.grad(total, list(kernel.parameters())), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_gradient_in_single_precision_is_accurate():
    """Lengthscales much shorter than the range of the inputs: differences of large squares."""
    generator = torch.Generator().manual_seed(0)
    X, G = 100.0 * torch.rand(300, 3, generator=generator), torch.randn(300, 300, generator=generator)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        kernel = KERNELS["ard"]().to(dtype)
        kernel.base_kernel.lengthscale = torch.tensor([[3.0, 5.0, 20.0]], dtype=dtype)
        K = kernel_matrix(kernel, X.to(dtype))
        gradients.append(torch.autograd.grad(K, kernel.base_kernel.raw_lengthscale, G.to(dtype))[0].double())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_inputs_that_need_a_gradient_get_theirs():
    X = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    kernel = KERNELS["ard"]().double()
    G = torch.randn(5, 5, dtype=torch.float64)
    ours, theirs = kernel_matrix(kernel, X), kernel(X).to_dense()
    torch.testing.assert_close(torch.autograd.grad(ours, X, G)[0], torch.autograd.grad(theirs, X, G)[0])


def test_fixed_parameters_get_no_gradient(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 3)
    kernel = KERNELS["ard"]().double()
    kernel.raw_outputscale.requires_grad_(False)
    K = kernel_matrix(kernel, torch.randn(17, 3, dtype=torch.float64))
    K.sum().backward()
    assert kernel.raw_outputscale.grad is None
    assert kernel.base_kernel.raw_lengthscale.grad is not None


@pytest.mark.parametrize("scale", [1.0, 1e10])
def test_sums_with_a_linear_kernel_are_dense_sums(scale):
    """GPyTorch's own sum would factorise the other summand, with an absolute jitter that fails in large units."""
    kernel = (k.ScaleKernel(k.RBFKernel() + k.LinearKernel()) + k.LinearKernel() * k.RBFKernel()).double()
    kernel.kernels[0].outputscale = torch.tensor(scale, dtype=torch.float64)
    X = torch.rand(50, 1, dtype=torch.float64)
    scaled, product = kernel.kernels
    parts = [part(X).to_dense() for part in scaled.base_kernel.kernels]
    factors = [part(X).to_dense() for part in product.kernels]
    expected = scale * (parts[0] + parts[1]) + factors[0] * factors[1]
    torch.testing.assert_close(kernel_matrix(kernel, X), expected, rtol=1e-12, atol=0)


class Remembers(k.Kernel):
    """A user's kernel that keeps the matrix that it returned."""

    def forward(self, x1, x2, diag=False, **params):
        self.kept = torch.exp(-torch.cdist(x1, x2))
        return self.kept.diagonal() if diag else self.kept


SQUARED_EXPONENTIALS = {
    "ard": lambda: k.ScaleKernel(k.RBFKernel(ard_num_dims=3)),
    "isotropic": lambda: k.ScaleKernel(k.RBFKernel()),
    "some columns": lambda: k.ScaleKernel(k.RBFKernel(active_dims=[0, 2])),
    "columns of the scale": lambda: k.ScaleKernel(k.RBFKernel(ard_num_dims=2), active_dims=[1, 2]),
    "batch of scales": lambda: k.ScaleKernel(k.RBFKernel(), batch_shape=torch.Size([2])),
    "batch": lambda: k.ScaleKernel(k.RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2])),
}


@pytest.mark.parametrize("name", SQUARED_EXPONENTIALS)
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("batch", [(), (4, 1)])
def test_squared_exponentials_without_gradient_are_gpytorchs_bit_for_bit(name, same, batch):
    kernel = SQUARED_EXPONENTIALS[name]().double()
    for parameter in kernel.parameters():
        parameter.data.uniform_(-2.0, 2.0, generator=torch.Generator().manual_seed(0))
    x1, x2 = torch.randn(*batch, 7, 3, dtype=torch.float64), torch.randn(*batch, 11, 3, dtype=torch.float64)
    x2 = x1 if same else x2
    with torch.no_grad():
        assert torch.equal(dense_kernel(kernel, x1, x2), kernel(x1, None if same else x2).to_dense())


def test_whitened_kernels_do_not_overwrite_a_users_matrix():
    Z, X = torch.randn(4, 3, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    for kernel in (Remembers(), k.ScaleKernel(k.RBFKernel()).double()):
        with torch.no_grad():
            L = torch.linalg.cholesky(dense_kernel(kernel, Z, Z))
            expected = dense_kernel(kernel, Z, X).clone()
        torch.testing.assert_close(L @ whitened_kernel(kernel, L, Z, X), expected, rtol=1e-12, atol=1e-12)
        if isinstance(kernel, Remembers):
            assert torch.equal(kernel.kept, expected)
