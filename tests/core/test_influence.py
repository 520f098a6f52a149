from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from problems import WEIGHTS, make_twin
from rcgp import posterior_influence
from rcgp.core.exact import influence
from rcgp.core.pseudo import PseudoData


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("index", [0, 7])
def test_one_dimensional_divergence_equals_the_n_dimensional_one(weight, index):
    arguments = {} if weight == "constant" else {"c": 1.5}
    twin = (
        make_twin(weight, n=6, noise=0.2, **arguments) if index < 6 else make_twin(weight, n=9, noise=0.2, **arguments)
    )
    values = np.array([-9.0, -2.0, 0.1, 0.9, 4.0, 11.0])
    before = reference.posterior(twin.K, twin.y, twin.m, twin.w, twin.slope, twin.noise)
    expected = []
    for value in values:
        y = twin.y.copy()
        y[index] = value
        w, slope = WEIGHTS[weight][1](y - twin.m, 1.5, twin.noise)
        after = reference.posterior(twin.K, y, twin.m, w, slope, twin.noise)
        expected.append(reference.gaussian_kl(*before, *after))
    np.testing.assert_allclose(posterior_influence(twin.model, index, values), expected, rtol=1e-6, atol=1e-9)


def test_an_observation_left_as_it_is_has_no_influence():
    twin = make_twin("imq")
    assert abs(posterior_influence(twin.model, 3, twin.y[3]).item()) < 1e-14


def test_influence_stays_finite_where_the_data_are_almost_exact():
    """One observation of noise 1e-10 under a prior of variance 1e8: the update is by a factor of 1e18."""
    mean, variance = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1e8, dtype=torch.float64)
    before = PseudoData(torch.tensor(0.5, dtype=torch.float64), torch.tensor(1e5, dtype=torch.float64))
    after = PseudoData(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1e-120, dtype=torch.float64))
    # KL( N(0.5, 1e-10) ‖ N(0, 1e8) )
    expected = 0.5 * (1e-18 - 1 + np.log(1e18) + 0.25 / 1e8)
    np.testing.assert_allclose(influence(mean, variance, before, after), expected, rtol=1e-6)
