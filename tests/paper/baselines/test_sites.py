from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import reference
from problems import make_data
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp_paper.baselines import MixtureGP, StudentTGP, variational
from rcgp_paper.baselines.sites import Sites, Step, _Memory, ascend, solve_sites

N = 12


def problem(negative, seed=0):
    """A well-conditioned kernel matrix, some negative sites, and 5 test points."""
    random = np.random.default_rng(seed)
    X, test_X = random.uniform(-3, 3, (N, 1)), random.uniform(-3, 3, (5, 1))
    inputs = np.concatenate([X, test_X])
    K = reference.se_kernel(inputs, inputs, 0.3, 1.3) + 0.05 * np.eye(N + 5)
    precision, shift = random.uniform(1, 5, N), random.standard_normal(N)
    precision[:negative] = -random.uniform(0.05, 0.3, negative)
    return K, precision, shift


def solve(K, precision, shift):
    return solve_sites(torch.tensor(K[:N, :N]), Sites(torch.tensor(precision), torch.tensor(shift)))


@pytest.mark.parametrize("negative", [0, 1, 4, N])
def test_posterior_is_the_dense_one_whatever_the_signs(negative):
    K, precision, shift = problem(negative)
    q = solve(K, precision, shift)
    V = np.linalg.inv(np.linalg.inv(K[:N, :N]) + np.diag(precision))
    mean = V @ shift
    np.testing.assert_allclose(q.mean.numpy(), mean, atol=1e-10)
    np.testing.assert_allclose(q.variance.numpy(), np.diag(V), atol=1e-10)
    divergence = reference.gaussian_kl(mean, V, np.zeros(N), K[:N, :N])
    assert q.divergence.item() == pytest.approx(divergence, abs=1e-9)


@pytest.mark.parametrize("negative", [0, 4])
def test_predictions_are_the_dense_ones(negative):
    K, precision, shift = problem(negative)
    posterior = solve(K, precision, shift).posterior
    K_nn, K_star, K_ss = K[:N, :N], K[N:, :N], K[N:, N:]
    A = np.linalg.inv(K_nn + np.diag(1 / precision))
    expected = K_ss - K_star @ A @ K_star.T
    cross = torch.tensor(K_star)
    np.testing.assert_allclose(posterior.mean(cross).numpy(), K_star @ A @ (shift / precision), atol=1e-9)
    np.testing.assert_allclose(
        posterior.variance(cross, torch.tensor(np.diag(K_ss))).numpy(), np.diag(expected), atol=1e-10
    )
    covariance = posterior.covariance(cross, cross[:3], torch.tensor(K_ss[:, :3]))
    np.testing.assert_allclose(covariance.numpy(), expected[:, :3], atol=1e-10)


@pytest.mark.parametrize("negative", [0, 4])
def test_gradient_of_the_divergence_is_autograd_s_with_the_moments_fixed(negative):
    K, precision, shift = problem(negative)
    q = solve(K, precision, shift)
    V = torch.linalg.inv(torch.linalg.inv(torch.tensor(K[:N, :N])) + torch.diag(torch.tensor(precision)))
    prior = torch.tensor(K[:N, :N], requires_grad=True)
    divergence = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(q.mean, V),
        torch.distributions.MultivariateNormal(torch.zeros(N, dtype=torch.float64), prior),
    )
    (expected,) = torch.autograd.grad(divergence, prior)
    torch.testing.assert_close(q.divergence_gradient(), 0.5 * (expected + expected.T), rtol=0, atol=1e-8)


def test_sites_without_precision_shift_the_prior():
    K, _, shift = problem(0)
    q = solve(K, np.zeros(N), shift)
    np.testing.assert_allclose(q.mean.numpy(), K[:N, :N] @ shift, atol=1e-9)
    np.testing.assert_allclose(q.variance.numpy(), np.diag(K[:N, :N]), atol=1e-9)


def test_too_large_negative_sites_raise():
    K, precision, shift = problem(1)
    precision[0] = -1e3
    with pytest.raises(NotPositiveDefiniteError, match="negative precision"):
        solve(K, precision, shift)


def test_an_indefinite_kernel_matrix_gives_no_negative_divergence():
    # Eigenvalues of K that should be zero are -1e-12, and the sites nearly that precise: (I + SKS)⁻¹ exists, but αᵀKα
    # is a huge negative number, which made the bound of a Student-t GP as high as you like.
    K = torch.full((N, N), 0.01, dtype=torch.float64) - 1e-12 * torch.eye(N, dtype=torch.float64)
    precision = torch.full((N,), 0.9e12, dtype=torch.float64)
    shift = precision * torch.linspace(-1.0, 1.0, N, dtype=torch.float64)
    with pytest.raises(NotPositiveDefiniteError, match="rounding"):
        solve_sites(K, Sites(precision, shift))


def hard_model(cls):
    """Little noise, so that the first posteriors are far from the best one."""
    X, y = make_data(30)
    return cls(X, y, noise=0.001)


def watch(monkeypatch, refuse=()):
    """Values of all steps, and of those that were accepted, in the order in which they were taken."""
    values, accepted = [], []
    original, add = ascend, _Memory.add

    def watched(take, here, *arguments):
        def take_and_note(sites):
            values.append(-math.inf)
            if len(values) in refuse:
                raise NotPositiveDefiniteError("refused")
            step = take(sites)
            values[-1] = step.value
            return step

        return original(take_and_note, here, *arguments)

    def noted(self, step):
        accepted.append(step.value)
        add(self, step)

    monkeypatch.setattr(variational, "ascend", watched)
    monkeypatch.setattr(_Memory, "add", noted)
    return values, accepted


@pytest.mark.parametrize("cls", [StudentTGP, MixtureGP])
def test_the_bound_never_falls_and_the_highest_is_kept(cls, monkeypatch):
    values, accepted = watch(monkeypatch)
    best = hard_model(cls).elbo().item()
    assert len(accepted) > 4
    assert all(later > earlier for earlier, later in itertools.pairwise(accepted))
    assert best == pytest.approx(max(values), abs=1e-9)


@pytest.mark.parametrize("cls", [StudentTGP, MixtureGP])
def test_steps_without_a_posterior_are_shortened(cls, monkeypatch):
    values, accepted = watch(monkeypatch, refuse=(1, 2, 4, 7))
    best = hard_model(cls).elbo().item()
    assert values[0] == values[1] == -math.inf
    assert best == pytest.approx(max(values), abs=1e-9)
    assert all(later > earlier for earlier, later in itertools.pairwise(accepted))


def test_extrapolation_saves_steps_and_finds_the_same(monkeypatch):
    values, _ = watch(monkeypatch)
    X, y = make_data(60)
    fast = StudentTGP(X, y, noise=0.01, degrees_of_freedom=2.1).elbo().item()
    steps = len(values)
    values.clear()
    monkeypatch.setattr(_Memory, "extrapolate", lambda self, step: None)
    assert StudentTGP(X, y, noise=0.01, degrees_of_freedom=2.1).elbo().item() == pytest.approx(fast, abs=1e-5)
    assert steps < 0.9 * len(values)


def test_a_linear_map_is_solved_by_extrapolation_in_as_many_steps_as_it_has_dimensions():
    matrix = torch.tensor([[0.9, 0.2], [0.0, 0.5]], dtype=torch.float64)
    offset = torch.tensor([1.0, 2.0], dtype=torch.float64)
    memory = _Memory(torch.tensor(1.0, dtype=torch.float64))

    def step(x):
        target = matrix @ x + offset
        return Step(Sites(x[:1], x[1:]), None, 0.0, Sites(target[:1], target[1:]))

    x = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        here = step(x)
        sites = memory.extrapolate(here) or here.target
        memory.add(here)
        x = torch.cat([sites.precision, sites.shift])
    solution = torch.linalg.solve(torch.eye(2, dtype=torch.float64) - matrix, offset)
    torch.testing.assert_close(x, solution, rtol=0, atol=1e-9)


def test_there_is_no_extrapolation_from_nan():
    memory = _Memory(torch.tensor(1.0, dtype=torch.float64))
    sites, broken = (Sites(torch.full((3,), value), torch.ones(3)) for value in (1.0, math.nan))
    memory.add(Step(sites, None, 0.0, broken))
    assert memory.extrapolate(Step(sites, None, 0.0, sites)) is None
