"""The learned noise law as a likelihood of GPyTorch: beside GPyTorch's own, quadrature, and the exact model's bound."""

from __future__ import annotations

import copy
import math
from functools import partial

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal

from rcgp.core.exact import LeaveOneOut, signal_evidence
from rcgp.core.expected_law import expected_responsibilities
from rcgp.core.noise_law import PRIOR_COUNTS, evidence_of_shares, learn_law, log_bound
from rcgp.core.pseudo import pseudo_data
from rcgp.gpytorch import NoiseLawLikelihood, RCGPLikelihood
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import OUTLIER_WIDTH, SCALES, by_component

LAW = NoiseLaw((0.7, 0.08, 0.04, 0.02), 0.16, 5.0)
DOUBLE = torch.float64


def function(n=12, batch=(), seed=0, dtype=DOUBLE):
    """Targets, and a distribution of f."""
    random = torch.Generator().manual_seed(seed)
    mean = torch.randn(*batch, n, generator=random, dtype=DOUBLE)
    root = 0.3 * torch.randn(*batch, n, n, generator=random, dtype=DOUBLE)
    y = mean + 0.5 * torch.randn(*batch, n, generator=random, dtype=DOUBLE)
    y[..., :3] += torch.tensor([5.0, -9.0, 40.0], dtype=DOUBLE)
    covariance = root @ root.mT + 0.01 * torch.eye(n, dtype=DOUBLE)
    return y.to(dtype), MultivariateNormal(mean.to(dtype), covariance.to(dtype))


def quadrature(value, mean, variance, count=200):
    """E value(f) for f ~ N(mean, variance), by Gauss–Hermite."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(count))
    f = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * nodes
    return (value(f) * weights).sum(dim=-1) / math.sqrt(2.0 * math.pi)


def normal_density(deviation, std):
    return torch.exp(-0.5 * (deviation / std) ** 2) / (std * math.sqrt(2.0 * math.pi))


def outlier_density(e, f, noise, width):
    reach = SCALES[2] * noise**0.5
    mass = 1.0 - float(torch.special.erfcx(torch.tensor(width / (math.sqrt(2.0) * reach), dtype=DOUBLE)))
    cauchy = 1.0 / (math.pi * width * (1.0 + (e / width) ** 2))
    return cauchy * (1.0 - torch.exp(-0.5 * ((e - f) / reach) ** 2)) / mass


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_normal_law_is_gpytorchs_gaussian_likelihood(batch):
    y, q = function(batch=batch)
    theirs = gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size(batch)).double()
    theirs.noise = 0.3
    ours = NoiseLawLikelihood(y, NoiseLaw.normal(), noise=theirs.noise.detach(), batch_shape=torch.Size(batch))
    options = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(ours.expected_log_prob(y, q), theirs.expected_log_prob(y, q), **options)
    torch.testing.assert_close(ours.log_marginal(y, q), theirs.log_marginal(y, q), **options)
    torch.testing.assert_close(ours(q).mean, theirs(q).mean, **options)
    torch.testing.assert_close(ours(q).variance, theirs(q).variance, **options)
    torch.testing.assert_close(ours(q.mean).log_prob(y), theirs(q.mean).log_prob(y), **options)
    for ours_end, theirs_end in zip(ours(q).confidence_region(), (-1.0, 1.0), strict=True):
        wanted = theirs(q).mean + theirs_end * 1.959963984540054 * theirs(q).variance.sqrt()
        torch.testing.assert_close(ours_end, wanted, **options)


def test_given_responsibilities_bound_less_than_the_best_and_leave_the_density_of_outliers_fixed():
    y, q = function()
    likelihood = NoiseLawLikelihood(y, LAW, noise=0.25).eval()
    residual, deviation = y - likelihood.centre, q.mean - likelihood.centre
    law = likelihood.log_shares.reshape(1, -1), likelihood.width.reshape(1)
    best = expected_responsibilities(residual, deviation, q.variance, likelihood.noise, *law)
    mean = q.mean.clone().requires_grad_()
    given = likelihood.expected_log_prob(y, MultivariateNormal(mean, q.covariance_matrix), share=best.share)
    torch.testing.assert_close(given, likelihood.expected_log_prob(y, q))
    other = torch.roll(best.share, 1, dims=-2)
    assert bool((likelihood.expected_log_prob(y, q, share=other) <= given + 1e-12).all())
    (slope,) = torch.autograd.grad(given.sum(), mean)  # weighted least squares, without the gap of the outliers
    weights = best.share[..., :-1] @ torch.tensor(SCALES, dtype=DOUBLE).square().reciprocal()
    torch.testing.assert_close(slope, weights * (y - q.mean) / 0.25)


def test_given_responsibilities_of_normal_noise_are_a_normal_law():
    y, q = function()
    share = torch.zeros(len(y), len(SCALES) + 1, dtype=DOUBLE)
    share[:, 0] = 1.0
    law = NoiseLaw.normal()
    normal = NoiseLawLikelihood(y, law, noise=0.25)
    torch.testing.assert_close(normal.expected_log_prob(y, q, share=share), normal.expected_log_prob(y, q))
    learned = NoiseLawLikelihood(y, noise=0.25)
    learned.expected_log_prob(y, q, share=share)
    counts = torch.tensor([[1.0, 0.0, 0.0]], dtype=DOUBLE) * len(y)
    torch.testing.assert_close(learned.counts, counts)


def test_the_expected_log_density_is_that_of_quadrature_component_by_component():
    y, q = function()
    noise, centre = 0.25, float(y.quantile(0.5))
    likelihood = NoiseLawLikelihood(y, LAW, noise=noise).eval()
    m, v = q.mean, q.variance
    terms = []
    for share, scale in zip(LAW.shares, SCALES, strict=True):
        std = scale * noise**0.5
        log_normal = quadrature(lambda f, s=std: torch.distributions.Normal(f, s).log_prob(y[:, None]), m, v)
        terms.append(math.log(share) + log_normal)
    mean_outlier = quadrature(
        lambda f: outlier_density(y[:, None] - centre, f - centre, noise, LAW.width).clamp_min(0.0), m, v
    )
    terms.append((LAW.outlier_share * mean_outlier).log())
    wanted = torch.logsumexp(torch.stack(terms), dim=0)
    torch.testing.assert_close(likelihood.expected_log_prob(y, q), wanted, rtol=1e-9, atol=1e-9)


def density_given_f(y, f, noise, law, centre):
    good = sum(p * normal_density(y - f, s * noise**0.5) for p, s in zip(law.shares, SCALES, strict=True))
    return good + law.outlier_share * outlier_density(y - centre, f - centre, noise, law.width)


def test_it_is_a_lower_bound_without_outliers_and_exact_as_the_variance_falls():
    tailed = NoiseLaw((0.8, 0.12, 0.05, 0.03), 0.0, 5.0)
    y, q = function(40)
    bound = NoiseLawLikelihood(y, tailed, noise=0.25).eval().expected_log_prob(y, q)
    exact = quadrature(
        lambda f: sum(
            p * normal_density(y[:, None] - f, s * 0.5) for p, s in zip(tailed.shares, SCALES, strict=True)
        ).log(),
        q.mean,
        q.variance,
    )
    assert bool((bound <= exact + 1e-10).all())
    small = MultivariateNormal(q.mean, 1e-8 * torch.eye(40, dtype=DOUBLE))
    likelihood = NoiseLawLikelihood(y, LAW, noise=0.25).eval()
    limit = density_given_f(y, q.mean, 0.25, LAW, float(y.quantile(0.5))).log()
    torch.testing.assert_close(likelihood.expected_log_prob(y, small), limit, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("law", "most"), [(LAW, 1e-9), (NoiseLaw((0.6, 0.0, 0.0, 0.0), 0.4, 3.0), 0.02)])
def test_with_outliers_it_exceeds_the_expected_log_density_by_little(law, most):
    """The docstring says that the term of outliers is no bound by itself: it shows where the law has no tail."""
    y = torch.linspace(-12.0, 12.0, 241, dtype=DOUBLE)
    likelihood = NoiseLawLikelihood(y, law, noise=0.25, centre=0.0).eval()
    for std in (0.05, 0.3, 0.5, 1.0, 3.0):
        q = MultivariateNormal(torch.zeros_like(y), std**2 * torch.eye(len(y), dtype=DOUBLE))
        bound = likelihood.expected_log_prob(y, q)
        exact = quadrature(lambda f: density_given_f(y[:, None], f, 0.25, law, 0.0).log(), q.mean, q.variance)
        assert float((bound - exact).detach().max()) < most


def test_half_of_the_targets_on_one_level_do_not_make_the_other_half_outliers():
    y = torch.cat([torch.full((52,), 1.0), torch.full((48,), -1.0)]).double()
    y = y + 0.01 * torch.arange(100) / 100
    likelihood = NoiseLawLikelihood(y)
    assert float(likelihood.spread) > 1.0
    q = MultivariateNormal(torch.zeros(100, dtype=DOUBLE), torch.eye(100, dtype=DOUBLE))
    assert float(likelihood.outlier_probability(y, q).detach().max()) < 0.5


def test_log_marginal_is_exact_by_quadrature_and_monte_carlo():
    y, q = function()
    likelihood = NoiseLawLikelihood(y, LAW, noise=0.25).eval()
    centre = float(y.quantile(0.5))
    exact = quadrature(lambda f: density_given_f(y[:, None], f, 0.25, LAW, centre), q.mean, q.variance).log()
    torch.testing.assert_close(likelihood.log_marginal(y, q), exact, rtol=1e-8, atol=1e-8)
    torch.manual_seed(0)
    samples = q.mean + q.variance.sqrt() * torch.randn(200_000, len(y), dtype=DOUBLE)
    sampled = density_given_f(y, samples, 0.25, LAW, centre).mean(dim=0).log()
    torch.testing.assert_close(likelihood.log_marginal(y, q), sampled, rtol=0.0, atol=0.02)


@pytest.mark.parametrize("method", ["expected_log_prob", "log_marginal"])
def test_gradients_are_those_of_finite_differences(method):
    y, q = function(8)
    likelihood = NoiseLawLikelihood(y, LAW).eval()

    def value(y, mean, variance, raw_noise):
        given = copy.copy(likelihood)
        given._parameters = {"raw_noise": raw_noise}
        return getattr(given, method)(y, MultivariateNormal(mean, torch.diag_embed(variance)))

    inputs = [part.detach().clone().requires_grad_() for part in (y, q.mean, q.variance, likelihood.raw_noise)]
    assert torch.autograd.gradcheck(value, inputs)


def test_its_slope_is_that_of_weighted_least_squares():
    y, q = function()
    law = NoiseLaw((0.8, 0.12, 0.05, 0.03), 0.0, 5.0)
    likelihood = NoiseLawLikelihood(y, law, noise=0.3).eval()
    mean = q.mean.clone().requires_grad_()
    likelihood.expected_log_prob(y, MultivariateNormal(mean, q.covariance_matrix)).sum().backward()
    shares, width = likelihood.log_shares.reshape(1, -1), likelihood.width.reshape(1)
    rows = expected_responsibilities(y, q.mean, q.variance, likelihood.noise, shares, width)
    torch.testing.assert_close(mean.grad, rows.precision * (y - q.mean) / 0.3)


def test_at_the_exact_posterior_the_bound_is_the_exact_models():
    """q(f) and responsibilities in turn, until both settle: then the variational bound is F."""
    n, noise = 25, 0.04
    X = torch.linspace(0.0, 5.0, n, dtype=DOUBLE)
    y = torch.sin(2 * X) + 0.2 * torch.cos(40 * X)
    y[[4, 11]] += torch.tensor([4.0, -3.0], dtype=DOUBLE)
    K = torch.exp(-0.5 * (X[:, None] - X) ** 2 / 0.6**2)
    likelihood = NoiseLawLikelihood(y, LAW, noise=noise, centre=0.0).eval()
    shares, width = likelihood.log_shares.reshape(1, -1), likelihood.width.reshape(1).clone()
    sigma2 = torch.tensor(noise, dtype=DOUBLE)
    precision = torch.ones(n, dtype=DOUBLE)
    for _ in range(300):
        noises = torch.diag(sigma2 / precision)
        gain = torch.linalg.solve(K + noises, K).mT
        mean, covariance = gain @ y, K - gain @ K
        rows = expected_responsibilities(y, mean, covariance.diagonal(), sigma2, shares, width)
        precision = rows.precision
    q, prior = MultivariateNormal(mean, covariance), torch.distributions.MultivariateNormal(torch.zeros(n).double(), K)
    divergence = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(mean, 0.5 * (covariance + covariance.mT)), prior
    )
    variational = likelihood.expected_log_prob(y, q).sum() - divergence
    pseudo = pseudo_data(y, precision.sqrt(), torch.zeros_like(y), sigma2)
    given_o = signal_evidence(K, pseudo) + log_bound(sigma2.expand(n), rows, float(width))
    counts = by_component(rows.share.sum(dim=-2))
    exact = given_o - evidence_of_shares(counts) + counts @ by_component(shares.exp()).log().squeeze()
    torch.testing.assert_close(variational, exact, rtol=1e-5, atol=1e-5)


def test_one_batch_of_all_rows_is_a_step_of_the_exact_models_law():
    y, q = function(40)
    likelihood = NoiseLawLikelihood(y, noise=0.25, centre=0.0)
    counts = (likelihood.counts + likelihood.counts.new_tensor(PRIOR_COUNTS)).squeeze(0)
    first = OUTLIER_WIDTH * float(likelihood.spread)
    likelihood.log_marginal(y, q)  # in training mode
    cavity = LeaveOneOut(q.mean, q.variance)
    noise, ones = likelihood.noise.detach().squeeze(), torch.ones_like(y)
    wanted = learn_law(y, cavity, noise, ones, first, bounds=None, counts=counts, steps=1)
    law = likelihood.noise_law
    assert law.shares == pytest.approx(wanted.law.shares, rel=1e-12)
    assert law.outlier_share == pytest.approx(wanted.law.outlier_share, rel=1e-12)
    assert law.width == pytest.approx(wanted.law.width, rel=1e-12)


def test_the_law_is_updated_only_in_training():
    y, q = function()
    likelihood = NoiseLawLikelihood(y)
    before = likelihood.noise_law
    with torch.no_grad():
        likelihood.expected_log_prob(y, q)
    likelihood.eval().expected_log_prob(y, q)
    assert likelihood.noise_law == before
    likelihood.train().expected_log_prob(y, q)
    assert likelihood.noise_law != before
    fixed = NoiseLawLikelihood(y, LAW).train()
    fixed.expected_log_prob(y, q)
    assert fixed.noise_law.shares == pytest.approx(LAW.shares)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_absurd_observations_leave_loss_and_gradients_finite(dtype):
    y, q = function(dtype=dtype)
    y[0] = torch.finfo(dtype).max * 0.1
    mean = q.mean.clone().requires_grad_()
    for method in ("expected_log_prob", "log_marginal"):
        likelihood = NoiseLawLikelihood(y)
        value = getattr(likelihood, method)(y, MultivariateNormal(mean, q.covariance_matrix)).sum()
        gradients = torch.autograd.grad(value, [mean, likelihood.raw_noise])
        assert all(bool(part.isfinite().all()) for part in (value, *gradients))
        assert abs(float(gradients[0][0])) < 1e-6
        assert likelihood.noise_law.width < 1e3


def test_units_and_shifts_of_the_targets_do_not_matter():
    y, q = function()
    plain = NoiseLawLikelihood(y)
    scaled = NoiseLawLikelihood(1e4 * y + 7.0)
    moved = MultivariateNormal(1e4 * q.mean + 7.0, 1e8 * q.covariance_matrix)
    difference = plain.expected_log_prob(y, q) - scaled.expected_log_prob(1e4 * y + 7.0, moved)
    torch.testing.assert_close(difference, torch.full_like(y, math.log(1e4)), rtol=1e-6, atol=1e-6)


def test_errors_name_what_does_not_fit():
    y, q = function()
    likelihood = NoiseLawLikelihood(y)
    with pytest.raises(ValueError, match=r"one value for each row, got the shapes \(5,\) and \(12,\)"):
        likelihood.expected_log_prob(y[:5], q)
    broken = y.clone()
    broken[4] = math.nan
    with pytest.raises(ValueError, match=r"entry \[4\] is not"):
        likelihood.expected_log_prob(broken, q)
    with pytest.raises(ValueError, match="targets"):
        NoiseLawLikelihood(broken)
    with pytest.raises(ValueError, match="targets must have shape n"):
        NoiseLawLikelihood(torch.tensor(1.0))
    with pytest.raises(ValueError, match="num_tasks=2 columns"):
        NoiseLawLikelihood(y.unsqueeze(-1), num_tasks=2)
    with pytest.raises(ValueError, match="num_tasks=2, but the distribution of the function has one output"):
        NoiseLawLikelihood(torch.stack([y, y], dim=-1), num_tasks=2).log_marginal(y, q)
    two = MultitaskMultivariateNormal(torch.zeros(4, 2), torch.eye(8))
    with pytest.raises(ValueError, match="has 2 tasks"):
        likelihood(two)
    with pytest.raises(ValueError, match="batch_shape"):
        NoiseLawLikelihood(y, batch_shape=torch.Size([3]))(function(batch=(2,))[1])
    with pytest.raises(ValueError, match=r"targets of shape \(2, 12\) do not fit batch_shape=\(3,\)$"):
        NoiseLawLikelihood(torch.stack([y, y]), batch_shape=torch.Size([3]))
    for likelihood_of in (NoiseLawLikelihood, partial(RCGPLikelihood, noise=1.0)):
        with pytest.raises(
            ValueError, match=r"targets of shape \(12, 1\) do not .*; for n x 1 give targets\.squeeze\(-1\)"
        ):
            likelihood_of(y.unsqueeze(-1).numpy())
    assert NoiseLawLikelihood(y.unsqueeze(-1), batch_shape=y.shape).num_rows == 1  # a model of one row for each
    with pytest.raises(ValueError, match=r"5 responsibilities for each row, got \(3, 5\) for 12 rows"):
        likelihood.expected_log_prob(y, q, share=torch.ones(3, 5))
    with pytest.raises(ValueError, match="positive variance"):
        NoiseLawLikelihood(y, noise=-1.0)
