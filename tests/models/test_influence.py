from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import make_data, make_twin
from rcgp import RCGP, posterior_influence
from rcgp.weights import Constant, Heteroskedastic, InverseMultiquadric, OneSided, Product, SquaredExponential

k = gpytorch.kernels
KERNELS = [
    lambda: k.ScaleKernel(k.RBFKernel()),
    lambda: k.MaternKernel(nu=0.5),
    lambda: k.RBFKernel() + k.LinearKernel(),
]
ROBUST = {
    "imq": InverseMultiquadric,
    "se": SquaredExponential,
    "imq fixed": lambda: InverseMultiquadric(c=0.7),
    "product": lambda: Product(InverseMultiquadric(), Heteroskedastic(lambda x: 1 + x[..., 0] ** 2)),
}


def signed(values):
    return torch.cat([values, -values])


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 20),
    index=st.integers(-2, 1),
    weight=st.sampled_from(sorted(ROBUST)),
    kernel=st.sampled_from(KERNELS),
    log_noise=st.floats(-4, 1),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_influence_is_bounded_for_robust_weights(seed, n, index, weight, kernel, log_noise, dtype):
    X, y = (torch.tensor(a, dtype=dtype) for a in make_data(n, seed=seed, outliers=1))
    model = RCGP(X, y, kernel=kernel(), weight=ROBUST[weight](), noise=10.0**log_noise)
    largest = 37 if dtype == torch.float32 else 300
    values = signed(torch.logspace(0, largest, 80, dtype=dtype))
    influence = posterior_influence(model, index, values)
    assert influence.isfinite().all()
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    assert (influence >= -tolerance).all()
    # It converges: beyond 1e16 the influence is that of deleting the point.
    limit = posterior_influence(model, index, torch.tensor([torch.inf], dtype=dtype))
    settled = influence[values.abs() > 1e16]
    torch.testing.assert_close(settled, limit.expand_as(settled), rtol=100 * tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", ["imq", "se"])
def test_posterior_converges_to_the_one_without_the_point(weight, dtype):
    X, y = (torch.tensor(a, dtype=dtype) for a in make_data(15))
    frozen = ROBUST[weight]().frozen(y - y.mean())
    largest = 1e37 if dtype == torch.float32 else 1e300
    keep = torch.arange(15) != 4

    kernel = k.ScaleKernel(k.RBFKernel())

    def posterior(train_X, train_y):
        mean = lambda x: y.mean().expand(x.shape[:-1])  # noqa: E731
        return RCGP(train_X, train_y, kernel=kernel, weight=frozen, mean=mean, noise=0.1).posterior(X)

    without = posterior(X[keep], y[keep])
    errors = []
    for value in (1e2, 1e4, 1e8, largest, -largest):
        y_new = y.clone()
        y_new[4] = value
        full = posterior(X, y_new)
        errors.append((full.mean - without.mean).abs().max().item())
        if abs(value) >= 1e8:
            torch.testing.assert_close(full.covariance_matrix, without.covariance_matrix)
        assert full.variance.isfinite().all()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    assert errors[-1] < tolerance
    assert errors[-2] < tolerance
    assert errors[0] >= errors[2] - tolerance


@pytest.mark.parametrize("weight", [Constant, lambda: Heteroskedastic(lambda x: 0.5 + x[..., 0] ** 2)])
def test_influence_grows_quadratically_without_a_robust_weight(weight):
    X, y = (torch.tensor(a) for a in make_data(12))
    model = RCGP(X, y, weight=weight(), noise=0.1)
    steps = torch.tensor([1.0, 10.0, 1e3, 1e6, -1e6], dtype=torch.float64)
    influence = posterior_influence(model, 5, y[5] + steps)
    torch.testing.assert_close(influence / influence[0], steps**2, rtol=1e-8, atol=0)
    far = posterior_influence(model, 5, torch.tensor([1e300, -torch.inf], dtype=torch.float64))
    assert (far == torch.inf).all()


def test_influence_of_a_gp_is_the_papers_formula():
    twin = make_twin("constant")
    K, n = torch.tensor(twin.K), len(twin.y)
    H = torch.linalg.inv(K + twin.noise * torch.eye(n, dtype=torch.float64)) @ K / twin.noise
    for index in (0, 5):
        expected = 0.5 * H[index, index] * (torch.tensor([3.0, -8.0], dtype=torch.float64) - twin.y[index]) ** 2
        torch.testing.assert_close(posterior_influence(twin.model, index, [3.0, -8.0]), expected, rtol=1e-8, atol=0)


def test_one_sided_weights_bound_the_influence_on_one_side():
    X, y = (torch.tensor(a) for a in make_data(12))
    model = RCGP(X, y, weight=OneSided(InverseMultiquadric(), "above"), noise=0.1)
    above, below = posterior_influence(model, 5, torch.tensor([1e8, -1e8], dtype=torch.float64))
    assert above < 1e3
    assert below > 1e10


def test_the_threshold_is_held_at_its_value_for_the_clean_data():
    X, y = (torch.tensor(a) for a in make_data(5, outliers=1))
    rule, fixed = RCGP(X, y), RCGP(X, y)
    fixed.weight = InverseMultiquadric(c=rule.weight.threshold(rule.residual()).item())
    values = torch.logspace(0, 10, 20, dtype=torch.float64)
    torch.testing.assert_close(posterior_influence(rule, 2, values), posterior_influence(fixed, 2, values))


def test_numbers_lists_and_any_shape_are_accepted():
    model = make_twin("imq").model
    assert posterior_influence(model, 1, 3.0).shape == ()
    assert posterior_influence(model, np.int64(1), np.arange(5.0)[::-1]).shape == (5,)
    assert posterior_influence(model, model.weights().argmin(), 1.0).shape == ()
    assert posterior_influence(model, index=-1, values=[[1.0, 2.0], [3.0, 4.0]]).shape == (2, 2)
    # As users type it: without a dtype these are single precision, and mostly infinite.
    assert posterior_influence(model, 7, torch.logspace(0, 300, 50)).isfinite().all()


def test_bad_arguments_raise_and_are_named():
    model = make_twin("imq").model
    for index in (17, [1, 2], 1.5, True):
        with pytest.raises(IndexError, match="17 training rows"):
            posterior_influence(model, index, [1.0])
    with pytest.raises(ValueError, match=r"values contains nan at position \(1,\)"):
        posterior_influence(model, 0, [1.0, float("nan")])
