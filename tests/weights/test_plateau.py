from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rcgp import RCGP
from rcgp.weights import Plateau, WeightFunction, smallest_weight

NOISE = torch.tensor(0.3, dtype=torch.float64)


def plateau(n=12, dtype=torch.float64):
    """A weight whose rows differ in centre and threshold, with inputs of the right shape."""
    return Plateau(torch.linspace(-1, 2, n, dtype=dtype), torch.linspace(0.5, 3, n, dtype=dtype)), torch.zeros(n, 1)


def test_the_weight_is_its_formula():
    weight, x = plateau()
    e = torch.linspace(-4, 5, 12, dtype=torch.float64)
    u = (e.numpy() - np.linspace(-1, 2, 12)) / np.linspace(0.5, 3, 12)
    np.testing.assert_allclose(weight(e, x, NOISE).numpy(), 1 / np.sqrt(1 + u**8), rtol=1e-12)


def test_the_figures_of_the_docstring():
    weight = Plateau(torch.zeros(4, dtype=torch.float64), torch.full((4,), 2.0, dtype=torch.float64))
    w = weight(torch.tensor([1.0, 2.0, 4.0, 20.0], dtype=torch.float64), torch.zeros(4, 1), NOISE)
    np.testing.assert_allclose(w.numpy(), [0.998, 0.71, 0.06, 1e-4], rtol=0.05)
    assert w[1].item() == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slope_equals_autograd(dtype):
    weight, x = plateau(dtype=dtype)
    e = torch.linspace(-4, 5, 12, dtype=dtype)
    torch.testing.assert_close(weight.slope(e, x, NOISE), WeightFunction.slope(weight, e, x, NOISE))


def test_a_row_on_its_centre_has_full_weight_and_no_slope():
    weight, x = plateau()
    assert torch.equal(weight(weight.centre, x, NOISE), torch.ones(12, dtype=torch.float64))
    assert (weight.slope(weight.centre, x, NOISE) == 0).all()


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 1e37), (torch.float64, 1e300)])
def test_extreme_residuals_give_finite_weights_slopes_and_gradients(dtype, largest):
    weight, x = plateau(n=4, dtype=dtype)
    e = torch.tensor([0.0, 1e6, largest, -largest], dtype=dtype, requires_grad=True)
    w, slope = weight(e, x, NOISE.to(dtype)), weight.slope(e, x, NOISE.to(dtype))
    (gradient,) = torch.autograd.grad((w + slope).sum(), e)
    for tensor in (w, slope, gradient):
        assert tensor.isfinite().all()
    assert (w[2:] <= smallest_weight(dtype)).all()


def test_the_influence_falls_to_zero():
    """y w̃² at ever larger y, for which the posterior moves less and less."""
    weight, x = Plateau(torch.zeros(5), torch.ones(5)).double(), torch.zeros(5, 1)
    sizes = torch.tensor([1e1, 1e2, 1e4, 1e8, 1e16], dtype=torch.float64)
    influence = sizes * weight(sizes, x, NOISE) ** 2
    assert (influence[1:] < 1e-6 * influence[:-1]).all()


def test_it_is_a_copy_that_nothing_trains():
    centre, threshold = torch.zeros(3), torch.ones(3)
    weight = Plateau(centre, threshold)
    centre += 1.0
    threshold += 1.0
    assert weight.centre.sum() == 0
    assert weight.threshold.sum() == 3
    assert not list(weight.parameters())
    assert not weight.constant_in_y
    assert repr(weight) == "Plateau(rows=3)"
    assert torch.equal(
        copy.deepcopy(weight)(torch.arange(3.0), torch.zeros(3, 1), NOISE),
        weight(torch.arange(3.0), torch.zeros(3, 1), NOISE),
    )


def test_it_weighs_only_the_rows_it_was_made_for():
    weight, _ = plateau(n=4)
    for function in (weight, weight.slope):
        with pytest.raises(ValueError, match="centres for 4 rows and cannot weigh 5 others"):
            function(torch.zeros(5, dtype=torch.float64), torch.zeros(5, 1), NOISE)
    with pytest.raises(ValueError, match="cannot weigh 6 others"):
        RCGP(torch.randn(6, 1, dtype=torch.float64), torch.randn(6, dtype=torch.float64), weight=weight)


@pytest.mark.parametrize(
    ("centre", "threshold", "message"),
    [
        (torch.zeros(3), torch.ones(2), r"got shapes \(3,\) and \(2,\)"),
        (torch.zeros(3, 1), torch.ones(3, 1), r"got shapes \(3, 1\) and \(3, 1\)"),
        (torch.tensor(0.0), torch.tensor(1.0), r"got shapes \(\) and \(\)"),
        (torch.tensor([0.0, torch.nan]), torch.ones(2), "centre must be finite"),
        (torch.tensor([0.0, torch.inf]), torch.ones(2), "centre must be finite"),
        (torch.zeros(2), torch.tensor([1.0, 0.0]), "threshold positive"),
        (torch.zeros(2), torch.tensor([1.0, -1.0]), "threshold positive"),
        (torch.zeros(2), torch.tensor([1.0, torch.nan]), "threshold positive"),
    ],
)
def test_what_cannot_be_a_centre_or_threshold_is_refused(centre, threshold, message):
    with pytest.raises(ValueError, match=message):
        Plateau(centre, threshold)


def test_a_model_with_it_has_the_posterior_of_proposition_3_1():
    """Against plain numpy: an ordinary GP that observes z with noise r."""
    random = np.random.default_rng(0)
    X, y = random.uniform(-2, 2, (15, 1)), random.standard_normal(15)
    centre, threshold = 0.3 * random.standard_normal(15), random.uniform(0.3, 2, 15)
    model = RCGP(X, y, mean="zero", weight=Plateau(torch.tensor(centre), torch.tensor(threshold)), noise=0.2)
    model.kernel.base_kernel.lengthscale, model.kernel.outputscale = 1.0, 1.5
    u = (y - centre) / threshold
    z = y + 0.2 * 8 * u**7 / (threshold * (1 + u**8))
    K = 1.5 * np.exp(-0.5 * (X - X.T) ** 2)
    expected = K @ np.linalg.solve(K + np.diag(0.2 * (1 + u**8)), z)
    np.testing.assert_allclose(model.posterior(model.train_X).mean.numpy(), expected, atol=1e-7)
