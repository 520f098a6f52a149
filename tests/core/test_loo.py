from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from problems import ROBUST, WEIGHTS, make_twin
from rcgp.core import exact
from rcgp.core.exact import leave_one_out, log_density
from rcgp.core.pseudo import PseudoData


def direct_form(K, z, s):
    """The paper's formula through a dense inverse, for autograd."""
    r = s**-2
    A = torch.linalg.inv(K + torch.diag_embed(r))
    a = A.diagonal(dim1=-2, dim2=-1)
    return z - (A @ z.unsqueeze(-1)).squeeze(-1) / a, 1 / a - r


def inputs(n, *batch, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    B = torch.randn(*batch, n, n, generator=generator, dtype=dtype) / n**0.5
    z = torch.randn(*batch, n, generator=generator, dtype=dtype)
    s = 0.2 + 3 * torch.rand(*batch, n, generator=generator, dtype=dtype)
    return B, z, s


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("noise", [1e-3, 0.05, 3.0])
def test_closed_form_equals_n_refits(weight, noise):
    twin = make_twin(weight, noise=noise)
    mean, variance = reference.leave_one_out_by_refits(twin.K, twin.y, twin.m, twin.w, twin.slope, noise)
    ours = twin.model.leave_one_out()
    np.testing.assert_allclose(ours.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.variance, variance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_closed_form_equals_the_papers(weight):
    twin = make_twin(weight)
    mean, variance = reference.leave_one_out_closed_form(twin.K, twin.y, twin.m, twin.w, twin.slope, twin.noise)
    ours = twin.model.leave_one_out()
    np.testing.assert_allclose(ours.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.variance, variance, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1e3, 1e8, 1e100, 1e300])
@pytest.mark.parametrize("weight", ROBUST)
def test_closed_form_equals_a_refit_for_an_outlier_of_any_size(weight, size):
    """The direct form 1/A_ii − r_i would lose eps · r_i here."""
    twin = make_twin(weight, c=1.0)
    model = twin.model
    model.train_y[0] += size
    terms = model.training_terms()
    latent = leave_one_out(model.kernel_matrix().detach(), terms.pseudo)
    rest = np.arange(1, len(twin.y))
    e, w, slope = twin.y[rest] - twin.m[rest], twin.w[rest], twin.slope[rest]
    mean, cov = reference.predict(twin.K[1:, 1:], twin.K[1:, [0]], twin.K[:1, :1], 0.0, e, 0.0, w, slope, twin.noise)
    np.testing.assert_allclose(latent.mean[0].detach(), mean[0], rtol=1e-8)
    np.testing.assert_allclose(latent.variance[0].detach(), cov[0, 0], rtol=1e-8)
    assert latent.mean.isfinite().all()
    assert latent.variance.isfinite().all()


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_hand_written_backward_passes_gradcheck(batch):
    B, z, s = (tensor.requires_grad_() for tensor in inputs(5, *batch))

    def moments(B, z, s):
        return tuple(leave_one_out(B @ B.mT, PseudoData(z, s)))

    assert torch.autograd.gradcheck(moments, (B, z, s))


@pytest.mark.parametrize("smallest_block", [2, 3, 192])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_hand_written_backward_equals_autograd(monkeypatch, smallest_block, scale):
    monkeypatch.setattr(exact, "_SMALLEST_BLOCK", smallest_block)
    B, z, s = (tensor.requires_grad_() for tensor in inputs(11, 2))
    gradients = []
    for function in (direct_form, lambda K, z, s: leave_one_out(K, PseudoData(z, s))):
        mean, variance = function(B @ B.mT, z, scale * s)
        gradients.append(torch.autograd.grad(log_density(z - mean, variance + 0.1).sum(), (B, z, s)))
    for ours, autograd in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, autograd, rtol=1e-7, atol=1e-9)


def test_gradient_in_the_kernel_matrix_is_symmetric():
    B, z, s = inputs(6)
    K = (B @ B.mT).requires_grad_()
    mean, variance = leave_one_out(K, PseudoData(z, s))
    (gradient,) = torch.autograd.grad(mean.sum() + variance.sin().sum(), K)
    torch.testing.assert_close(gradient, gradient.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_stay_finite_and_vanish_for_a_deleted_point(dtype):
    B, z, s = inputs(6, dtype=dtype)
    s[2] = torch.finfo(dtype).tiny ** 0.4
    z[2] = 0.0
    z, s = z.requires_grad_(), s.requires_grad_()
    K = (B @ B.mT).requires_grad_()
    mean, variance = leave_one_out(K, PseudoData(z, s))
    grad_K, grad_z, grad_s = torch.autograd.grad(log_density(1 - mean, variance + 0.1).sum(), (K, z, s))
    assert grad_K.isfinite().all()
    assert grad_z[2].abs() < 1e-10
    assert grad_s[2].abs() < 1e-10
    assert grad_K[2].abs().max() > 1e-6  # its own leave-one-out prediction still depends on the kernel


def test_unrequested_gradients_do_not_affect_others():
    """Gradients of the evidence with a huge observation that is not scored."""
    K = torch.eye(4, dtype=torch.float64) + 0.5
    z = torch.tensor([1.0, 2.0, -1.0, 1e200], dtype=torch.float64)
    s = torch.tensor([1.0, 1.0, 1.0, 1e-6], dtype=torch.float64, requires_grad=True)
    mean, variance = leave_one_out(K, PseudoData(z, s))
    (gradient,) = torch.autograd.grad(mean[:3].sum() + variance[:3].sum(), s)
    assert gradient.isfinite().all()


def test_backward_can_run_twice():
    B, z, s = inputs(4)
    K = (B @ B.mT).requires_grad_()
    mean, variance = leave_one_out(K, PseudoData(z, s))
    total = mean.sum() + variance.sum()
    (first,) = torch.autograd.grad(total, K, retain_graph=True)
    (second,) = torch.autograd.grad(total, K)
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_equal_their_members(dtype):
    B, z, s = inputs(7, 2, 3, dtype=dtype)
    K = B @ B.mT
    whole = leave_one_out(K, PseudoData(z, s))
    assert whole.mean.dtype == dtype
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    for index in np.ndindex(2, 3):
        one = leave_one_out(K[index], PseudoData(z[index], s[index]))
        torch.testing.assert_close(whole.mean[index], one.mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(whole.variance[index], one.variance, rtol=tolerance, atol=tolerance)


def test_a_single_point_is_predicted_by_the_prior():
    K, z, s = torch.tensor([[2.0]]), torch.tensor([5.0]), torch.tensor([3.0])
    mean, variance = leave_one_out(K, PseudoData(z, s))
    torch.testing.assert_close(mean, torch.zeros(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(variance, torch.tensor([2.0]))


def test_log_density_is_that_of_a_normal():
    e, v = torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64) + 0.1
    expected = torch.distributions.Normal(0.0, v.sqrt()).log_prob(e)
    torch.testing.assert_close(log_density(e, v), expected)


def test_one_kernel_matrix_serves_several_outputs():
    B, z, s = inputs(6, 3)
    K = (B[0] @ B[0].mT).requires_grad_()
    mean, variance = leave_one_out(K, PseudoData(z, s))
    for i in range(3):
        one = leave_one_out(K, PseudoData(z[i], s[i]))
        torch.testing.assert_close(mean[i], one.mean)
        torch.testing.assert_close(variance[i], one.variance)
    (shared,) = torch.autograd.grad(mean.sum() + variance.sum(), K)
    parts = [leave_one_out(K, PseudoData(z[i], s[i])) for i in range(3)]
    (summed,) = torch.autograd.grad(sum(part.mean.sum() + part.variance.sum() for part in parts), K)
    torch.testing.assert_close(shared, summed)


def test_batches_of_kernels_and_of_data_broadcast():
    B, z, s = inputs(5, 3)
    K = B @ B.mT
    mean, variance = leave_one_out(K.unsqueeze(1), PseudoData(z[:2], s[:2]))  # 3 x 1 and 2
    assert mean.shape == variance.shape == (3, 2, 5)
    torch.testing.assert_close(mean[2, 1], leave_one_out(K[2], PseudoData(z[1], s[1])).mean)
    torch.testing.assert_close(
        leave_one_out(K, PseudoData(z[0], s[0])).mean[1], leave_one_out(K[1], PseudoData(z[0], s[0])).mean
    )
