from __future__ import annotations

import numpy as np
import pytest
import torch

from rcgp import RCGP
from rcgp.training import fit_adaptive
from rcgp.training.contested import contested_rows, judge

LIMIT = 3.0


def sine(n=100, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(0, 10, n)
    return X, np.sin(X) + 0.1 * random.standard_normal(n), random


def with_cluster(seed=0, size=15):
    """A sine, and rows at 4.7 that say 3 where it says -1; they come last."""
    X, y, random = sine(seed=seed)
    return np.r_[X, random.normal(4.7, 0.1, size)], np.r_[y, 3.0 + 0.05 * random.standard_normal(size)]


def model_of(X, y, lengthscale=1.0):
    model = RCGP(torch.tensor(X)[:, None], torch.tensor(y), mean="median", noise=0.01)
    model.kernel.base_kernel.lengthscale, model.kernel.outputscale = lengthscale, 1.0
    return model


def flags(n, rows):
    trusted = torch.zeros(n, dtype=torch.bool)
    trusted[rows] = True
    return trusted


def brute_force(X, rejected, lengthscale):
    """The region, by the definition, pair by pair."""
    rho = np.exp(-0.5 * (X[:, None] - X[None, :]) ** 2 / lengthscale**2)
    crowding = []
    for i in np.flatnonzero(rejected):
        others = np.delete(np.arange(len(X)), i)
        share = (rho[i, others] * rejected[others]).sum() / rho[i, others].sum()
        if share > 3.0 * rejected.mean():
            crowding.append(i)
    if len(crowding) < 5:
        return None
    region = (rho[crowding] > 0.1).any(axis=0)
    return region if region.mean() <= 0.5 else None


@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("where", ["crowd", "anywhere", "few"])
def test_the_region_is_its_definition(lengthscale, where):
    X, y, random = sine()
    rejected = {
        "crowd": np.abs(X - 4.7) < 0.6,
        "anywhere": random.uniform(size=100) < 0.15,
        "few": np.argsort(np.abs(X - 4.7)).argsort() < 4,
    }[where]
    region = contested_rows(model_of(X, y, lengthscale), torch.tensor(~rejected))
    expected = brute_force(X, rejected, lengthscale)
    assert (region is None) == (expected is None)
    if region is not None:
        assert region.tolist() == expected.tolist()


def test_rejected_rows_that_crowd_make_a_region_around_them():
    """The good rows among a cluster are rejected: the region holds both and leaves the rest outside."""
    X, y = with_cluster()
    rejected = (np.arange(115) < 100) & (np.abs(X - 4.7) < 0.5)
    region = contested_rows(model_of(X, y, 0.3), torch.tensor(~rejected))
    assert region is not None
    assert region[torch.tensor(rejected)].all()
    assert region[100:].all()
    assert not region[torch.tensor(np.abs(X - 4.7) > 2.0)].any()


def test_outliers_that_fall_anywhere_make_none():
    for seed in range(20):
        X, y, random = sine(seed=seed)
        for share in (0.1, 0.3, 0.4):
            trusted = torch.tensor(random.uniform(size=100) >= share)
            assert contested_rows(model_of(X, y), trusted) is None


def test_nothing_rejected_makes_none():
    X, y, _ = sine()
    assert contested_rows(model_of(X, y), torch.ones(100, dtype=torch.bool)) is None


def test_the_region_does_not_depend_on_scale_or_order():
    X, y = with_cluster()
    trusted = torch.tensor((np.arange(115) >= 100) | (np.abs(X - 4.7) >= 0.5))
    region = contested_rows(model_of(X, y, 0.3), trusted)
    order = np.random.default_rng(0).permutation(115)
    louder = model_of(X[order], y[order], 0.3)
    louder.kernel.outputscale = 1e6
    assert torch.equal(contested_rows(louder, trusted[order]), region[order])


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_that_was_trusted_is_convicted_and_the_good_rows_are_acquitted(seed):
    X, y = with_cluster(seed)
    near = np.abs(X - 4.7) < 0.5
    rejected = (np.arange(115) < 100) & near
    verdict = judge(model_of(X, y), torch.tensor(~rejected), torch.tensor(near), LIMIT)
    assert verdict is not None
    assert not verdict.trusted[100:].any()
    assert verdict.trusted[torch.tensor(rejected)].double().mean() > 0.9
    assert verdict.trusted[torch.tensor(~near)].all()
    # The prediction by which the cluster was judged knows the acquitted rows: it is near the sine.
    np.testing.assert_allclose(verdict.prediction.mean[100:].numpy(), np.sin(X[100:]), atol=0.3)


def test_rows_rejected_rightly_stay_so():
    """The cluster is what was rejected: the rows outside do not contradict that."""
    X, y = with_cluster()
    trusted, near = flags(115, slice(0, 100)), torch.tensor(np.abs(X - 4.7) < 0.5)
    assert judge(model_of(X, y), trusted, near, LIMIT) is None


def test_no_verdict_without_several_convictions():
    """Good rows that were rejected among good rows that were not: everyone is acquitted, nobody convicted."""
    X, y, _ = sine()
    near = np.abs(X - 4.7) < 0.8
    rejected = near & (np.arange(100) % 2 == 0)
    assert judge(model_of(X, y), torch.tensor(~rejected), torch.tensor(near), LIMIT) is None


def test_a_sharp_bump_of_the_function_that_is_rejected_whole_is_neither_judged_nor_acquitted():
    """The rows outside know nothing of a bump. Nobody contests it: there is no verdict and nothing changes."""
    X, y, _ = sine()
    near = np.abs(X - 4.7) < 0.5
    y = y + 5.0 * near
    trusted = torch.tensor(~near)
    model = model_of(X, y, 0.3)
    region = contested_rows(model, trusted)
    assert region is not None
    assert judge(model_of(X, y), trusted, region, LIMIT) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_sharp_bump_with_rows_on_its_slopes_is_followed(seed):
    X, _, random = sine(seed=seed)
    X = np.r_[X, random.uniform(4.4, 5.0, 15)]
    truth = np.sin(X) + 3.0 * np.exp(-0.5 * ((X - 4.7) / 0.12) ** 2)
    model = RCGP(torch.tensor(X)[:, None], torch.tensor(truth + 0.1 * random.standard_normal(115)), mean="median")
    report = fit_adaptive(model)
    bump = torch.tensor(np.abs(X - 4.7) < 0.3)
    assert report.contested == 0
    assert (model.weights() < 0.5).sum() <= 2
    assert (model.posterior(model.train_X).mean - torch.tensor(truth))[bump].abs().mean() < 0.15
