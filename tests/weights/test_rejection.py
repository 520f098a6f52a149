from __future__ import annotations

import pytest
import torch

from rcgp.core.pseudo import pseudo_data
from rcgp.weights import Rejection, WeightFunction
from rcgp.weights.rejection import bounded, rejection

CENTRE = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
THRESHOLD = torch.tensor([3.0, 0.5, 2.0], dtype=torch.float64)
DEVIATION = torch.tensor([1.0, 0.1, 0.4], dtype=torch.float64)
INPUTS = torch.zeros(3, 1, dtype=torch.float64)


def make_weight():
    return Rejection(CENTRE, THRESHOLD, DEVIATION)


@pytest.mark.parametrize("noise", [1e-8, 1e-2, 1.0])
@pytest.mark.parametrize("u", [0.0, 0.3, -0.9, 1.0, -1.1, 1.5])
def test_slope_is_that_of_the_weight(u, noise):
    weight, sigma = make_weight(), torch.tensor(noise, dtype=torch.float64)
    residual = CENTRE + u * THRESHOLD
    by_autograd = WeightFunction.slope(weight, residual, INPUTS, sigma)
    torch.testing.assert_close(weight.slope(residual, INPUTS, sigma), by_autograd, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", [1e-8, 1e-2])
def test_pseudo_noise_is_measured_by_the_deviation_not_by_the_noise(noise):
    weight, sigma = make_weight(), torch.tensor(noise, dtype=torch.float64)
    at = {
        u: pseudo_data(
            CENTRE + u * THRESHOLD,
            weight(CENTRE + u * THRESHOLD, INPUTS, sigma),
            weight.slope(CENTRE + u * THRESHOLD, INPUTS, sigma),
            sigma,
        ).noise
        for u in (0.0, 0.5, 1.0, 1.2)
    }
    torch.testing.assert_close(at[0.0], sigma.expand(3))
    torch.testing.assert_close(at[0.5], sigma.expand(3), rtol=0.1, atol=0.0)
    torch.testing.assert_close(at[1.0], sigma + DEVIATION.square())
    torch.testing.assert_close(at[1.2], sigma + 1.2**32 * DEVIATION.square())


def test_trust_ends_at_the_threshold_whatever_the_noise():
    ones = torch.ones_like(CENTRE)
    torch.testing.assert_close(rejection(ones, THRESHOLD, ones)[0], torch.full_like(ones, 0.5).sqrt())
    assert (rejection(0.8 * ones, THRESHOLD, ones)[0] > 0.999).all()
    assert (rejection(-1.5 * ones, THRESHOLD, ones)[0] < 0.01).all()


@pytest.mark.parametrize("size", [1e6, 1e150, 1e300, -1e300])
def test_nothing_overflows(size):
    weight, sigma = make_weight(), torch.tensor(1e-10, dtype=torch.float64)
    residual = torch.full((3,), size, dtype=torch.float64)
    w, slope = weight(residual, INPUTS, sigma), weight.slope(residual, INPUTS, sigma)
    assert (w < 1e-60).all()
    assert slope.isfinite().all()
    assert rejection(bounded(residual), THRESHOLD, DEVIATION)[0].isfinite().all()


def test_row_of_its_own():
    weight, sigma = make_weight(), torch.tensor(0.01, dtype=torch.float64)
    values = torch.linspace(-3.0, 3.0, 7, dtype=torch.float64)
    single = weight.of_row(1)(values, torch.zeros(7, 1), sigma)
    expected = [weight(CENTRE.index_fill(0, torch.tensor([1]), float(v)), INPUTS, sigma)[1] for v in values]
    torch.testing.assert_close(single, torch.stack(expected))


def test_batches():
    weight = Rejection(*(torch.stack([values, 2.0 * values]) for values in (CENTRE, THRESHOLD, DEVIATION)))
    noise = torch.tensor([0.01, 0.04], dtype=torch.float64)
    residual = torch.stack([CENTRE + THRESHOLD, 2.0 * (CENTRE + THRESHOLD)])
    w = weight(residual, INPUTS, noise)
    torch.testing.assert_close(w[0], make_weight()(CENTRE + THRESHOLD, INPUTS, noise[0]))
    torch.testing.assert_close(w[1], w[0])  # the same in other units


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((torch.zeros(3), torch.ones(2), torch.ones(3)), r"got shapes \(3,\), \(2,\) and \(3,\)"),
        ((torch.tensor(0.0), torch.tensor(1.0), torch.tensor(1.0)), r"got shapes \(\), \(\) and \(\)"),
        ((torch.tensor([torch.nan]), torch.ones(1), torch.ones(1)), "centre must be finite"),
        ((torch.zeros(1), torch.zeros(1), torch.ones(1)), "positive"),
        ((torch.zeros(1), torch.ones(1), torch.tensor([-1.0])), "positive"),
    ],
)
def test_what_cannot_be_weighed_by_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Rejection(*values)


def test_other_rows_are_refused():
    with pytest.raises(ValueError, match="centres for 3 rows and cannot weigh 4 others"):
        make_weight()(torch.zeros(4), torch.zeros(4, 1), torch.tensor(1.0))
