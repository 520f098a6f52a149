from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad

import reference
from problems import ROBUST, WEIGHTS, make_twin
from rcgp.core.exact import log_pseudo_marginal, signal_evidence
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.training import objectives


def log_marginal(K, pseudo):
    """log N(z; 0, K + R) by the module's formula."""
    s = pseudo.root_precision
    return signal_evidence(K, pseudo) + s.log().sum(dim=-1) - 0.5 * s.shape[-1] * math.log(2.0 * math.pi)


def test_evidence_with_its_constant_is_the_density_of_the_pseudo_targets():
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
    z, s = torch.randn(2, 2, 3, 6, generator=generator, dtype=torch.float64).abs()
    K = B @ B.mT
    zero = torch.zeros(6, dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(zero, K + torch.diag_embed(s**-2)).log_prob(z)
    torch.testing.assert_close(log_marginal(K, PseudoData(z, s)), expected, rtol=1e-9, atol=1e-9)


def test_one_kernel_matrix_serves_several_outputs():
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    z, s = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64).abs()
    whole = log_marginal(B @ B.mT, PseudoData(z, s))
    assert whole.shape == (3,)
    torch.testing.assert_close(whole[1], log_marginal(B @ B.mT, PseudoData(z[1], s[1])))


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_hand_written_backward_passes_gradcheck(scale):
    generator = torch.Generator().manual_seed(1)
    B = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    s = (scale * (torch.rand(2, 5, generator=generator, dtype=torch.float64) + 0.3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda B, z, s: log_marginal(B @ B.mT, PseudoData(z, s)), (B, z, s))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_pseudo_marginal_equals_the_papers_closed_form(weight):
    twin = make_twin(weight)
    expected = reference.log_pseudo_marginal(twin.K, twin.y - twin.m, twin.w, twin.slope, twin.noise)
    np.testing.assert_allclose(objectives.pseudo_marginal(twin.model).item(), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ROBUST)
def test_pseudo_marginal_equals_the_integral_of_its_definition(name):
    """∫ p(f) exp(−n L(f)) df by quadrature, L from its definition: nothing of the closed form is used."""
    cls, transcription = ROBUST[name]
    e, noise, c = np.array([0.7, -1.9]), 0.3, 0.8
    K = np.array([[1.0, 0.4], [0.4, 1.5]])

    def total_loss(f, i):
        return reference.loss(f, e[i], lambda y: transcription(y, c, noise)[0], noise)

    one, _ = quad(
        lambda f: np.exp(reference.log_normal(f, 0, K[0, 0]) - total_loss(f, 0)), -12, 12, epsabs=1e-12, epsrel=1e-10
    )
    K_inv, det = np.linalg.inv(K), np.linalg.det(K)

    def integrand(g, f):
        prior = -0.5 * (np.log(det) + 2 * np.log(2 * np.pi) + np.array([f, g]) @ K_inv @ np.array([f, g]))
        return np.exp(prior - total_loss(f, 0) - total_loss(g, 1))

    two, _ = dblquad(integrand, -8, 8, -8, 8, epsabs=1e-9, epsrel=1e-7)
    for n, integral, tolerance in ((1, one, 1e-7), (2, two, 1e-6)):
        et, sigma2 = torch.tensor(e[:n]), torch.tensor(noise, dtype=torch.float64)
        x, weight = torch.zeros(n, 1, dtype=torch.float64), cls(c=c)
        w, slope = weight(et, x, sigma2), weight.slope(et, x, sigma2)
        value = log_pseudo_marginal(torch.tensor(K[:n, :n]), pseudo_data(et, w, slope, sigma2), w, slope, sigma2)
        np.testing.assert_allclose(value, np.log(integral), atol=tolerance)


def test_pseudo_marginal_of_constant_weights_is_the_marginal_less_its_normaliser():
    twin = make_twin("constant")
    n, noise = len(twin.y), twin.noise
    expected = reference.log_marginal(twin.K, twin.y, twin.m, noise) + n / 2 * np.log(2 * np.pi * noise) + n
    np.testing.assert_allclose(objectives.pseudo_marginal(twin.model).item(), expected, rtol=1e-10)
