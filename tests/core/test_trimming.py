from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from rcgp.core.trimming import outlier_log_odds, trim

SHARE, WIDTH, CONTRADICTED, MOST, UNKNOWN, RULED_OUT, TOO_FEW = 0.1, 3.0, 6.0, 0.4, 0.25, 10.0, 2


def make_problem(n=20, seed=0, outliers=(3, 8, 14), size=8.0, noise=0.01):
    """Kernel matrix, residuals of a smooth function with some far off, and noises."""
    random = np.random.default_rng(seed)
    X = random.uniform(0, 1, (n, 2))
    e = np.sin(4 * X.sum(-1)) + noise**0.5 * random.standard_normal(n)
    e[list(outliers)] += size
    return reference.se_kernel(X, X, np.array([0.4, 0.6]), 1.3), e, np.full(n, noise)


def trim_of(K, e, r):
    return trim(*(torch.tensor(values) for values in (K, e, r)))


class Twin:
    """The same rule, with matrices inverted from the beginning for each row."""

    def __init__(self, K, e, r):
        self.K, self.e, self.r = K, e, r
        self.scatter = max(np.median(np.abs(e)) / 0.6744897501960817, np.sqrt(r.min()))
        self.width = WIDTH * self.scatter
        self.trusted, self.taken_back = np.ones(len(e), dtype=bool), []

    def predict(self, row):
        """Mean and variance of one observation from the trusted rows other than itself."""
        rest = np.flatnonzero(self.trusted & (np.arange(len(self.e)) != row))
        A = np.linalg.inv(self.K[np.ix_(rest, rest)] + np.diag(self.r[rest]))
        k = self.K[row, rest]
        return k @ A @ self.e[rest], self.K[row, row] - k @ A @ k + self.r[row]

    def log_odds(self, e):
        """log ε/(1 − ε) + log q(e), q the Cauchy distribution of this width."""
        return np.log(SHARE / (1 - SHARE)) - np.log(np.pi * self.width * (1 + (e / self.width) ** 2))

    def limit(self, row, variance):
        """How many standard deviations off a row may be: six, or ten if the others say little of its place."""
        return CONTRADICTED if variance - self.r[row] < UNKNOWN * self.K[row, row] else RULED_OUT

    def excess(self, row):
        """By how much a row is further off, in standard deviations, than it may be."""
        mean, variance = self.predict(row)
        return abs(self.e[row] - mean) / np.sqrt(variance) - self.limit(row, variance)

    def climb(self):
        """Reject and take back one row after the other, from the rows that are trusted now."""
        n, most, half = len(self.e), int(MOST * (len(self.e) - TOO_FEW)), (len(self.e) - 1) // 2
        from_prior = np.abs(self.e) / np.sqrt(np.diag(self.K) + self.r)
        while True:
            rejected = n - self.trusted.sum()
            ruled_out = self.trusted & (from_prior > RULED_OUT)
            if ruled_out.any() and rejected < half:
                self.trusted[np.argmax(np.where(ruled_out, from_prior, -np.inf))] = False
                continue
            excess = np.array([self.excess(row) if self.trusted[row] else -np.inf for row in range(n)])
            if rejected >= most or excess.max() <= 0:
                break
            self.trusted[np.argmax(excess)] = False
        while not self.trusted.all():
            slack = [-np.inf if self.trusted[row] else -self.excess(row) for row in range(n)]
            if max(slack) <= 0:
                break
            self.taken_back.append(int(np.argmax(slack)))
            self.trusted[self.taken_back[-1]] = True
        return self.trusted

    def density(self):
        """Log density of all rows, those that are not trusted as outliers."""
        t = self.trusted
        C = self.K[np.ix_(t, t)] + np.diag(self.r[t])
        inliers = -0.5 * (self.e[t] @ np.linalg.solve(C, self.e[t]) + np.linalg.slogdet(2 * np.pi * C)[1])
        return inliers + self.log_odds(self.e)[~t].sum()

    def run(self):
        """From everyone and, where somebody is rejected, from annealing: the more likely end."""
        n, first = len(self.e), self.climb().copy()
        if not first.all():
            value, near = self.density(), reference.annealed(self.K, self.e, self.r, self.scatter) <= CONTRADICTED
            self.trusted = near.copy() if near.sum() > n // 2 else first.copy()
            self.climb()
            if self.density() <= value:
                self.trusted = first
        moments = np.array([self.predict(row) for row in range(n)])
        threshold = [self.limit(row, v) * np.sqrt(v) for row, (_, v) in enumerate(moments)]
        unknown = (moments[:, 1] - self.r) / np.diag(self.K)
        return self.trusted, moments[:, 0], moments[:, 1], np.array(threshold), unknown, self.log_odds(self.e)


@pytest.mark.parametrize("noise", [1e-3, 0.05])
@pytest.mark.parametrize("size", [0.0, 1.5, 8.0])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_rule_with_inverted_matrices(seed, size, noise):
    K, e, r = make_problem(seed=seed, size=size, noise=noise)
    trimmed, expected = trim_of(K, e, r), Twin(K, e, r).run()
    np.testing.assert_array_equal(trimmed.trusted, expected[0])
    for values, twin in zip(trimmed[1:], expected[1:], strict=True):
        np.testing.assert_allclose(values, twin, rtol=1e-7, atol=1e-9)


def test_what_rejecting_a_row_is_worth_is_known_without_trimming():
    K, e, r = make_problem()
    assert torch.equal(outlier_log_odds(*map(torch.as_tensor, (e, r))), trim_of(K, e, r).log_odds)


def test_known_noises_count():
    K, e, r = make_problem(size=1.0)
    r = r * np.linspace(0.5, 3.0, len(r))
    r[8] = 4.0  # an outlier among exact rows, but not among those of its own noise
    trimmed, expected = trim_of(K, e, r), Twin(K, e, r).run()
    np.testing.assert_array_equal(trimmed.trusted, expected[0])
    assert trimmed.trusted[8]
    for values, twin in zip(trimmed[1:], expected[1:], strict=True):
        np.testing.assert_allclose(values, twin, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 13])
def test_outliers_are_rejected_and_nothing_else(seed):
    trusted = trim_of(*make_problem(seed=seed)).trusted
    assert (~trusted).nonzero().squeeze(-1).tolist() == [3, 8, 14]


@pytest.mark.parametrize("seed", range(3))
def test_clean_rows_are_trusted(seed):
    assert trim_of(*make_problem(seed=seed, outliers=())).trusted.all()


@pytest.mark.parametrize("seed", [0, 13, 20])
def test_rows_that_outliers_made_look_bad_are_taken_back(seed):
    problem = make_problem(seed=seed)
    twin = Twin(*problem)
    twin.run()
    assert twin.taken_back
    trusted = trim_of(*problem).trusted
    assert trusted[twin.taken_back].all()
    assert (~trusted).nonzero().squeeze(-1).tolist() == [3, 8, 14]


def test_batch_is_row_of_singles():
    problems = [make_problem(seed=seed, size=size) for seed, size in ((0, 8.0), (1, 0.0), (2, 1.5), (3, 1e300))]
    batch = trim(*(torch.tensor(np.stack(values)).unflatten(0, (2, 2)) for values in zip(*problems, strict=True)))
    for number, problem in enumerate(problems):
        single = trim_of(*problem)
        assert torch.equal(batch.trusted.flatten(0, 1)[number], single.trusted)
        for values, expected in zip(batch[1:], single[1:], strict=True):
            torch.testing.assert_close(values.flatten(0, 1)[number], expected, rtol=1e-8, atol=1e-10)


def test_one_kernel_matrix_serves_several_outputs():
    K, e, r = (torch.tensor(values) for values in make_problem())
    both = trim(K, torch.stack([e, -e]), r)
    assert torch.equal(both.trusted[1], both.trusted[0])
    torch.testing.assert_close(both.mean[1], -both.mean[0])


@pytest.mark.parametrize("size", [1e4, 1e20, 1e150, 1e300, -1e300])
def test_how_far_outliers_are_does_not_matter(size):
    K, e, r = make_problem()
    near = trim_of(K, e, r)
    e[[3, 8, 14]] = size
    far = trim_of(K, e, r)
    assert torch.equal(far.trusted, near.trusted)
    assert far.log_odds.isfinite().all()
    for values, expected in zip(far[1:-1], near[1:-1], strict=True):
        torch.testing.assert_close(values, expected, rtol=1e-7, atol=1e-9)


def test_order_of_rows_does_not_matter():
    K, e, r = make_problem(size=1.5, noise=1e-3)
    order = np.random.default_rng(1).permutation(len(e))
    there, here = trim_of(K[np.ix_(order, order)], e[order], r[order]), trim_of(K, e, r)
    assert not here.trusted.all()
    for values, expected in zip(there, here, strict=True):
        torch.testing.assert_close(values, expected[torch.tensor(order)], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("unit", [-1e-6, 1e-3, 1e6])
def test_unit_of_observations_does_not_matter(unit):
    K, e, r = make_problem(size=1.5, noise=1e-3)
    scaled, plain = trim_of(unit**2 * K, unit * e, unit**2 * r), trim_of(K, e, r)
    assert torch.equal(scaled.trusted, plain.trusted)
    torch.testing.assert_close(scaled.mean / unit, plain.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(scaled.variance / unit**2, plain.variance, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(scaled.threshold / abs(unit), plain.threshold, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 11, 20])
def test_at_most_two_in_five_are_rejected_that_the_prior_allows(n):
    """However bad all rows are: here noise is far below the differences of neighbours."""
    K = reference.se_kernel(np.zeros((n, 1)), np.zeros((n, 1)), np.ones(1), 1.0)
    e = np.random.default_rng(0).uniform(-9.0, 9.0, n)
    rejected = int((~trim_of(K, e, np.full(n, 1e-6)).trusted).sum())
    assert rejected == max(0, int(0.4 * (n - 2)))


@pytest.mark.parametrize("n", [1, 2, 4, 5, 11, 20])
def test_fewer_than_half_are_rejected_that_the_prior_rules_out(n):
    K = reference.se_kernel(np.zeros((n, 1)), np.zeros((n, 1)), np.ones(1), 1.0)
    e = 10.0 ** np.random.default_rng(0).uniform(2, 6, n)
    rejected = (~trim_of(K, e, np.full(n, 1e-6)).trusted).numpy()
    assert set(np.flatnonzero(rejected)) == set(np.argsort(-e)[: (n - 1) // 2])  # the farthest


def test_order_of_rows_that_the_prior_rules_out_does_not_matter():
    K, e, r = make_problem(n=6, outliers=())
    e[0], e[5] = 15.0, 1e6
    for order in (np.arange(6), np.arange(6)[::-1]):
        trimmed = trim_of(K[np.ix_(order, order)], e[order], r[order])
        assert not trimmed.trusted[list(order).index(5)]
        assert trimmed.mean.abs().max() < 20.0


def test_outliers_side_by_side_are_found():
    """Rejecting one at a time ends where they confirm each other; annealing does not."""
    found = alone = 0
    for seed in range(10):
        K, e, r = make_problem(n=40, seed=seed, outliers=range(12), size=1.5, noise=1e-3)
        twin = Twin(K, e, r)
        alone += list(np.flatnonzero(~twin.climb())) == list(range(12))
        found += (~trim_of(K, e, r).trusted).nonzero().squeeze(-1).tolist() == list(range(12))
    assert found > alone
    assert found >= 7


def test_nothing_is_unknown_where_the_prior_says_all():
    """A linear kernel at zero: f is known there, whatever the others say."""
    X = np.linspace(0.0, 1.0, 8)
    K, e, r = np.outer(X, X), X + 0.0, np.full(8, 0.01)
    e[0] = 0.8  # eight standard deviations
    trimmed = trim_of(K, e, r)
    assert trimmed.unknown[0] == 0.0
    assert not trimmed.trusted[0]


def test_threshold_of_a_row_does_not_depend_on_its_observation():
    K, e, r = make_problem()
    e[0] = 2.0 * np.abs(e).max()
    before = trim_of(K, e, r)
    e[0] *= 3.0
    after = trim_of(K, e, r)
    assert not before.trusted[0]
    torch.testing.assert_close(after.threshold, before.threshold, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-8, atol=1e-10)


def test_rows_are_rejected_beyond_six_standard_deviations():
    K, e, r = make_problem(outliers=())
    mean, variance = Twin(K, e, r).predict(4)
    assert variance - r[4] < UNKNOWN * K[4, 4]
    for size, trusted in ((5.9, True), (6.1, False)):
        e[4] = mean + size * np.sqrt(variance)
        assert trim_of(K, e, r).trusted[4] == trusted


def test_far_from_other_rows_only_what_the_prior_rules_out_is_rejected():
    K, e, r = make_problem(outliers=())
    K[0, 1:] = K[1:, 0] = 0.0  # a row that no other says anything of
    deviation = np.sqrt(K[0, 0] + r[0])
    e[0] = 9.9 * deviation
    assert trim_of(K, e, r).trusted[0]
    e[0] = 10.1 * deviation
    assert not trim_of(K, e, r).trusted[0]


def test_outliers_far_beyond_the_prior_do_not_cost_their_neighbours():
    """Each of these makes rows around it look worse than it does itself, where it is nearly alone."""
    for seed in range(6):
        trusted = trim_of(*make_problem(n=30, seed=seed, outliers=range(0, 30, 5), size=-300.0)).trusted
        assert (~trusted).nonzero().squeeze(-1).tolist() == list(range(0, 30, 5))


def test_single_precision():
    K, e, r = (torch.tensor(values) for values in make_problem())
    double, single = trim(K, e, r), trim(K.float(), e.float(), r.float())
    assert torch.equal(single.trusted, double.trusted)
    for values, expected in zip(single[1:], double[1:], strict=True):
        assert values.dtype == torch.float32
        torch.testing.assert_close(values.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_single_precision_trusts_the_same_rows_with_little_noise(seed):
    K, e, r = (torch.tensor(v, dtype=torch.float32) for v in make_problem(n=30, seed=seed, size=1.5, noise=1e-4))
    assert torch.equal(trim(K, e, r).trusted, trim(K.double(), e.double(), r.double()).trusted)
