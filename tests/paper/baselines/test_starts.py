"""A fit of a variational baseline is searched from several starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from problems import make_data
from rcgp.training import FitError
from rcgp_paper.baselines import MixtureGP, StudentTGP, variational

VARIATIONAL = [StudentTGP, MixtureGP]
each = pytest.mark.parametrize("cls", VARIATIONAL)


def steep_function(seed, n=90, d=4):
    """A function of one input of four, with little noise and a tenth of the observations shifted down."""
    random = np.random.default_rng(seed)
    X = random.uniform(-1.7, 1.7, (n, d))
    f = np.exp(1.5 * X[:, 0])
    y = (f - f.mean()) / f.std() + 0.01 * random.standard_normal(n)
    y[: n // 10] -= random.uniform(3, 9, n // 10) * y.std()
    return X, y


def test_a_fit_with_one_bad_start_is_as_good_as_with_restarts():
    X, y = steep_function(seed=2)
    value = MixtureGP(X, y).fit().value
    assert value > MixtureGP(X, y).fit(restarts=3, seed=0).value - 1.0
    alone = MixtureGP(X, y)._search(0, 1000, None, False).value
    assert alone < value - 20.0  # so that it is about starts


@each
def test_the_best_of_the_short_searches_is_continued(cls, monkeypatch):
    model = cls(*map(torch.tensor, make_data(25)))
    searches, original = [], variational.VariationalGP._search

    def search(self, restarts=0, max_iterations=1000, seed=None, progress=False):
        report = original(self, restarts, max_iterations, seed, progress)
        searches.append((max_iterations, report))
        return report

    monkeypatch.setattr(variational.VariationalGP, "_search", search)
    report = model.fit(max_iterations=200)
    *short, (iterations, last) = searches
    assert [limit for limit, _ in short] == [variational._SHORT] * 3
    assert iterations == 200
    assert last.value >= max(each.value for _, each in short) - 1e-9
    assert report.value == last.value
    assert report.evaluations > sum(each.evaluations for _, each in searches)  # and those of the ordinary GP
    assert report.seconds > sum(each.seconds for _, each in searches)


@each
def test_starts_without_a_bound_are_skipped(cls, monkeypatch):
    X, y = map(torch.tensor, make_data(25))
    expected, original = cls(X, y).fit().value, variational.VariationalGP._search
    failed = []

    def search(self, *arguments):
        if not failed:
            failed.append(True)
            raise FitError("as if", 0)
        return original(self, *arguments)

    monkeypatch.setattr(variational.VariationalGP, "_search", search)
    model = cls(X, y)
    report = model.fit()
    assert report.value == pytest.approx(expected, abs=1.0)
    assert model.elbo().item() == pytest.approx(report.value, abs=1e-6)


@each
def test_progress_counts_all_searches_and_never_falls(cls):
    reports = []
    report = cls(*map(torch.tensor, make_data(25))).fit(progress=lambda count, best: reports.append((count, best)))
    counts, values = zip(*reports, strict=True)
    assert all(np.diff(counts) > 0)
    assert all(np.diff(values) >= -1e-9)
    assert counts[-1] <= report.evaluations
    assert values[-1] == pytest.approx(report.value, abs=1e-6)


@each
@pytest.mark.parametrize("when", [3, 12, 20])
def test_an_interrupt_leaves_the_best_of_all_searches(cls, when):
    model = cls(*map(torch.tensor, make_data(20)))
    reports = []

    def interrupt(count, best):
        reports.append(best)
        if len(reports) == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(progress=interrupt)
    assert model.elbo().item() == pytest.approx(max(reports), abs=1e-6)


@each
def test_an_error_leaves_the_model_as_it_was(cls):
    model = cls(*map(torch.tensor, make_data(20)))
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def fail(count, best):
        if count > 12:
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        model.fit(progress=fail)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


@each
def test_a_fixed_noise_adds_no_start(cls):
    model = cls(*map(torch.tensor, make_data(20)), noise=0.04)
    assert len(model._moves()) == 3
    model.raw_noise.requires_grad_(False)
    assert len(model._moves()) == 2
    model.fit()
    assert model.noise.item() == pytest.approx(0.04)
