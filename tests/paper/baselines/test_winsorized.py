from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from problems import make_data
from rcgp_paper.baselines import GaussianGP, WinsorizedGP


def test_observations_beyond_tukey_s_fences_are_clipped_to_them():
    X, y = make_data(30)
    model = WinsorizedGP(X, y)
    first, third = np.percentile(y, 25, method="lower"), np.percentile(y, 75, method="higher")
    low, high = first - 1.5 * (third - first), third + 1.5 * (third - first)
    assert model.fences == pytest.approx((low, high))
    np.testing.assert_allclose(model.train_y.numpy(), np.clip(y, low, high))
    assert model.clipped.tolist() == [True] * 3 + [False] * 27


def test_it_is_the_ordinary_gp_of_the_clipped_observations():
    X, y = make_data(30)
    model = WinsorizedGP(X, y)
    ordinary = GaussianGP(X, model.train_y)
    assert model.fit().value == ordinary.fit().value
    torch.testing.assert_close(model.posterior(X).mean, ordinary.posterior(X).mean)


def test_data_within_the_fences_and_an_infinite_reach_change_nothing():
    X, y = make_data(30)
    for model in (WinsorizedGP(X, y, reach=math.inf), WinsorizedGP(X, np.full(30, 2.0), reach=math.inf)):
        assert not model.clipped.any()
    torch.testing.assert_close(WinsorizedGP(X, y, reach=math.inf).train_y, torch.tensor(y))
    inside = np.sin(X.sum(-1))
    torch.testing.assert_close(WinsorizedGP(X, inside).train_y, torch.tensor(inside))


@pytest.mark.parametrize("reach", [-1.0, math.nan])
def test_a_reach_that_is_no_distance_is_an_error(reach):
    with pytest.raises(ValueError, match="reach must be a number, at least 0"):
        WinsorizedGP(torch.zeros(3, 1), torch.zeros(3), reach=reach)
