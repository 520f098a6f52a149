"""Learning the noise law: expectation and maximisation against a transcription in loops, and the bound F."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch

from rcgp.core.exact import LeaveOneOut, signal_evidence
from rcgp.core.noise_law import PRIOR_COUNTS, learn_law, local_squares, log_bound
from rcgp.core.pseudo import PseudoData
from rcgp.weights.noise_law import OUTLIER_WIDTH, SCALES, TAIL, Responsibilities

WIDTH = 3.0


def make_rows(n=200, share=0.1, seed=0):
    """Residuals with outliers, and their leave-one-out predictions."""
    random = np.random.default_rng(seed)
    mean, variance = random.standard_normal(n), 0.02 * random.random(n)
    e = mean + np.sqrt(variance) * random.standard_normal(n) + 0.3 * random.standard_normal(n)
    e[: round(share * n)] = random.uniform(4.0, 9.0, round(share * n))
    return tuple(torch.from_numpy(part) for part in (e, mean, variance, 0.5 + random.random(n)))


def one_step(e, mean, variance, relative, counts, noise, width):
    """One step of expectation and maximisation, row by row."""
    normal, tail, outliers = np.array(counts) / np.sum(counts)
    shares = [normal, *(tail * np.array(TAIL)), outliers]
    total, squares, good = np.array(PRIOR_COUNTS), 0.0, 0.0
    far = WIDTH**2 / (width**2 + WIDTH**2)  # that of one more outlier, at the first width
    for i in range(len(e)):
        own = noise * relative[i] * np.square(SCALES)
        density = [
            share * scipy.stats.norm(mean[i], np.sqrt(variance[i] + a)).pdf(e[i])
            for share, a in zip(shares[:-1], own, strict=True)
        ]
        reach = 16.0 * noise * relative[i]
        predicted = scipy.stats.norm(mean[i], np.sqrt(variance[i] + reach)).pdf(e[i])
        gap = 1.0 - math.sqrt(2.0 * math.pi * reach) * predicted
        mass = 1.0 - scipy.special.erfcx(width / math.sqrt(2.0 * reach))
        density.append(shares[-1] * scipy.stats.cauchy(0.0, width).pdf(e[i]) * gap / mass)
        rho = np.array(density) / np.sum(density)
        total += np.array([rho[0], rho[1:-1].sum(), rho[-1]])
        far += rho[-1] * e[i] ** 2 / (width**2 + e[i] ** 2)
        for k, a in enumerate(own):
            gain = a / (variance[i] + a)
            expected = (gain * (e[i] - mean[i])) ** 2 + gain * variance[i]  # E[ε² | scale k]
            squares += rho[k] * expected / (SCALES[k] ** 2 * relative[i])
            good += rho[k]
    return total, squares / good, width * math.sqrt(2.0 * far / (total[-1] - PRIOR_COUNTS[-1] + 1.0))


def test_steps_are_those_of_the_formulas():
    e, mean, variance, relative = make_rows(40)
    counts, noise, width = np.array(PRIOR_COUNTS), 0.2, 2.0
    rows = [part.numpy() for part in (e, mean, variance, relative)]
    for _ in range(3):
        counts, noise, width = one_step(*rows, counts, noise, width)
    start = {"counts": torch.tensor(PRIOR_COUNTS).double(), "width": 2.0}
    cavity = LeaveOneOut(mean, variance)
    found = learn_law(e, cavity, torch.tensor(0.2).double(), relative, WIDTH, bounds=(1e-12, 1e12), steps=3, **start)
    np.testing.assert_allclose(found.counts.numpy(), counts, rtol=1e-8)
    assert found.noise.item() == pytest.approx(noise, rel=1e-8)
    assert found.law.width == pytest.approx(width, rel=1e-8)
    assert [share for _, share in found.law.components()] == pytest.approx(list(counts / counts.sum()))


def test_each_step_increases_the_density_of_the_rows():
    e, mean, variance, relative = make_rows(seed=3)
    prior, cavity = torch.tensor(PRIOR_COUNTS).double(), LeaveOneOut(mean, variance)

    def posterior(found, log_left):
        """Log density of rows, shares and width, with the gap in the density of outliers as it was before the step."""
        normal = scipy.stats.norm(0.0, found.rows.std).logpdf(found.rows.score * found.rows.std)
        outlier = scipy.stats.cauchy(0.0, found.law.width).logpdf(e) + log_left.numpy()
        shares = np.array([*found.law.shares, found.law.outlier_share])
        rows = scipy.special.logsumexp(np.column_stack([normal, outlier]) + np.log(shares), axis=1)
        one_more = scipy.stats.cauchy(0.0, found.law.width).logpdf(WIDTH)
        return rows.sum() + float((prior * (found.counts / found.counts.sum()).log()).sum()) + one_more

    start = {"noise": torch.tensor(2.0).double(), "counts": prior, "width": WIDTH}
    before = learn_law(e, cavity, relative=relative, first_width=WIDTH, bounds=(1e-9, 1e9), learn=False, **start)
    for _ in range(15):
        start = {"noise": before.noise, "counts": before.counts, "width": before.law.width}
        after = learn_law(e, cavity, relative=relative, first_width=WIDTH, bounds=(1e-9, 1e9), steps=1, **start)
        assert posterior(after, before.rows.log_left) > posterior(before, before.rows.log_left) - 1e-9
        before = after


def test_learned_law_recovers_the_true_law():
    e, mean, variance, _ = make_rows(2000, share=0.1, seed=1)
    cavity, ones = LeaveOneOut(mean, variance), torch.ones_like(e)
    found = learn_law(e, cavity, torch.tensor(1.0).double(), ones, WIDTH, bounds=(1e-9, 1e9), steps=60)
    assert found.noise.sqrt().item() == pytest.approx(0.3, rel=0.07)
    assert found.law.outlier_share == pytest.approx(0.1, abs=0.03)  # the tail of good rows counts, too
    assert found.law.shares[0] > 0.8
    assert bool((found.rows.outlier[:200] > 0.5).all())


@pytest.mark.parametrize("size", [2.0, 6.0, 40.0, 1e9])
def test_the_width_is_that_of_the_outliers(size):
    e, mean, variance, relative = make_rows(share=0.2)
    e[:40] *= size / 6.0
    cavity = LeaveOneOut(mean, variance)
    found = learn_law(e, cavity, torch.tensor(0.1).double(), relative, WIDTH, bounds=(1e-9, 1e9), steps=500)

    def loss(log_width):
        density = scipy.stats.cauchy(0.0, math.exp(log_width)).logpdf
        return -density(WIDTH) - (found.rows.outlier.numpy() * density(e.numpy())).sum()

    best = scipy.optimize.minimize_scalar(
        loss, bounds=(math.log(WIDTH / OUTLIER_WIDTH), math.log(10.0 * WIDTH)), method="bounded"
    )
    assert found.law.width == pytest.approx(math.exp(best.x), rel=1e-4)


@pytest.mark.parametrize("size", [1e4, 1e12])
def test_moderate_errors_beside_gross_ones_do_not_widen_the_noise(size):
    e, mean, variance, relative = make_rows(share=0.0, seed=3)
    e[:20], e[20:24] = size, 8.0
    cavity = LeaveOneOut(mean, variance)
    found = learn_law(e, cavity, torch.tensor(0.1).double(), relative, WIDTH, bounds=(1e-9, 1e9), steps=500)
    assert bool((found.rows.outlier[:24] > 0.5).all())


def test_errors_at_the_prior_mean_do_not_draw_the_width_of_outliers_to_zero():
    e, mean, variance, relative = make_rows()
    e[:40], mean[:40] = 0.0, 8.0
    found = learn_law(
        e, LeaveOneOut(mean, variance), torch.tensor(0.1).double(), relative, WIDTH, bounds=None, steps=500
    )
    assert bool((found.rows.outlier[:40] > 0.99).all())
    assert found.law.width == pytest.approx(WIDTH / OUTLIER_WIDTH)


def test_fixed_noise_is_not_updated():
    e, mean, variance, relative = make_rows()
    noise, cavity = torch.tensor(0.7, dtype=torch.float64), LeaveOneOut(mean, variance)
    found = learn_law(e, cavity, noise, relative, WIDTH, bounds=None)
    assert found.noise.item() == 0.7


@pytest.mark.parametrize("far", [1e10, 1e150, 1e300])
def test_no_outlier_is_too_far_away(far):
    e, mean, variance, relative = make_rows()
    cavity, noise = LeaveOneOut(mean, variance), torch.tensor(0.1).double()
    near = learn_law(e, cavity, noise, relative, WIDTH, bounds=(1e-9, 1e9))
    e[0] = far
    found = learn_law(e, cavity, noise, relative, WIDTH, bounds=(1e-9, 1e9))
    assert found.rows.outlier[0].item() == 1.0
    assert found.noise.item() == pytest.approx(near.noise.item(), rel=1e-3)
    assert bool(found.rows.slope.isfinite().all())


def make_problem(n=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    K = torch.exp(-0.5 * (X - X.T) ** 2)
    return K, torch.randn(n, dtype=torch.float64, generator=generator)


def bound_of(K, e, noise, rows, first_width=WIDTH):
    pseudo = PseudoData(e, (rows.precision / noise).sqrt())
    return float(signal_evidence(K, pseudo) + log_bound(noise.expand_as(e), rows, first_width))


def rows_with(share, e, left=1.0):
    """Given responsibilities at residuals e, with a given log H/Z."""

    class Given(Responsibilities):
        log_left = torch.full_like(e, math.log(left))

    half_width, nothing = torch.tensor([WIDTH], dtype=torch.float64), torch.zeros_like(e)
    return Given(share, nothing, e, nothing, nothing, nothing, half_width)


def test_for_normal_noise_the_bound_is_the_log_marginal_likelihood():
    """Up to the shares: the cost of learning that all rows have scale one."""
    K, e = make_problem()
    noise = torch.tensor(0.3, dtype=torch.float64)
    share = torch.zeros(len(e), len(SCALES) + 1, dtype=torch.float64)
    share[:, 0] = 1.0
    prior = torch.tensor(PRIOR_COUNTS, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(
        torch.zeros_like(e), K + noise * torch.eye(len(e), dtype=torch.float64)
    )
    marginal = normal.log_prob(e).item()
    shares = [math.lgamma(prior.sum()) - math.lgamma(prior.sum() + 30), math.lgamma(40.0) - math.lgamma(10.0)]
    found = bound_of(K, e, noise, rows_with(share, e))
    assert found == pytest.approx(marginal + sum(shares), rel=1e-9)


@pytest.mark.parametrize("left", [1.0, 0.4])
def test_the_bound_is_a_lower_bound(left):
    """Against log p(y), summed over all assignments of four rows to components, shares integrated out."""
    K, e = make_problem(4, seed=2)
    e[1] = 8.0
    noise, prior = torch.tensor(0.3, dtype=torch.float64), np.array(PRIOR_COUNTS)
    terms = []
    for scales in itertools.product(range(5), repeat=4):  # the last one is that of outliers
        of_tail = [k for k in scales if 0 < k < 4]
        counts = np.array([scales.count(0), len(of_tail), scales.count(4)])
        log_p = scipy.special.gammaln(prior.sum()) - scipy.special.gammaln(prior.sum() + 4)
        log_p += (scipy.special.gammaln(prior + counts) - scipy.special.gammaln(prior)).sum()
        log_p += sum(math.log(TAIL[k - 1]) for k in of_tail)
        good = [i for i, k in enumerate(scales) if k < 4]
        outliers = [e[i].item() for i, k in enumerate(scales) if k == 4]
        log_p += sum(scipy.stats.cauchy(0, WIDTH).logpdf(value) + math.log(left) for value in outliers)
        if good:
            own = np.array([0.3 * SCALES[scales[i]] ** 2 for i in good])
            covariance = K.numpy()[np.ix_(good, good)] + np.diag(own)
            log_p += scipy.stats.multivariate_normal(np.zeros(len(good)), covariance).logpdf(e.numpy()[good])
        terms.append(log_p)
    truth = scipy.special.logsumexp(terms)
    random = np.random.default_rng(0)
    bounds = []
    for _ in range(200):
        share = torch.from_numpy(random.dirichlet([0.3, 0.3, 0.3, 0.3, 0.3], 4))
        bounds.append(bound_of(K, e, noise, rows_with(share, e, left)))
    assert max(bounds) <= truth
    share = torch.zeros(4, 5, dtype=torch.float64)
    share[[0, 1, 2, 3], [0, 4, 0, 0]] = 1.0  # the second row is an outlier, all other rows have scale one
    found = bound_of(K, e, noise, rows_with(share, e, left))
    assert truth - 2.0 < found <= truth
    density = scipy.stats.cauchy(
        0.0, WIDTH
    ).logpdf  # that of one more row at the first width, over the largest it can be
    assert bound_of(K, e, noise, rows_with(share, e, left), 5.0) - found == pytest.approx(
        density(5.0) + math.log(10.0 * math.pi)
    )


def test_local_squares_grow_with_the_noise_of_rows():
    e, mean, variance, _ = make_rows(2000, share=0.0)
    loud = torch.arange(2000) % 2 == 0
    e = torch.where(loud, mean + 3.0 * (e - mean), e)
    cavity, ones = LeaveOneOut(mean, variance), torch.ones_like(e)
    found = learn_law(e, cavity, torch.tensor(0.1).double(), ones, WIDTH, bounds=(1e-9, 1e9))
    row_noise = found.noise * ones
    squares, counts = local_squares(found.rows, row_noise)
    assert float(squares[loud].sum() / counts[loud].sum()) > 1.5 * float(squares[~loud].sum() / counts[~loud].sum())
