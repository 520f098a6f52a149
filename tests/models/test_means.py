from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.linear_model import HuberRegressor

from rcgp import RCGP, fit
from rcgp.weights import Constant


def data(n=40, d=2, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(-3, 5, (n, d))
    y = 2.0 - 1.5 * X[:, 0] + 0.7 * X[:, -1] + 0.1 * random.standard_normal(n)
    return torch.tensor(X), torch.tensor(y)


def prior_mean(X, y, mean, at=None):
    return RCGP(X, y, mean=mean).mean(X if at is None else at)


def test_zero_constant_and_median():
    X, y = data()
    assert (prior_mean(X, y, "zero") == 0).all()
    torch.testing.assert_close(prior_mean(X, y, "constant"), y.mean().expand(40))
    torch.testing.assert_close(prior_mean(X, y, "median"), torch.tensor(np.median(y.numpy())).expand(40))


@pytest.mark.parametrize("degree", [1, 2])
def test_polynomials_are_least_squares_fits(degree):
    X, y = data()
    columns = [np.ones(40), *X.numpy().T]
    if degree == 2:
        columns += [X[:, 0] ** 2, X[:, 0] * X[:, 1], X[:, 1] ** 2]
        y = y + X[:, 0] * X[:, 1]
    A = np.stack(columns, axis=-1)
    expected = A @ np.linalg.lstsq(A, y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(prior_mean(X, y, {1: "linear", 2: "quadratic"}[degree]), expected, rtol=1e-9, atol=1e-9)


def test_dependent_columns_and_too_few_rows_work():
    X, y = data()
    torch.testing.assert_close(
        prior_mean(torch.cat([X, X[:, :1] * 2], dim=-1), y, "linear"), prior_mean(X, y, "linear")
    )
    few = prior_mean(X[:3], y[:3], "quadratic")
    torch.testing.assert_close(few, y[:3])
    assert RCGP(X[:1], y[:1], mean="linear").posterior(X).mean.isfinite().all()


def test_robust_linear_is_hubers_estimate():
    X, y = data(n=200)
    y[::9] += 40.0
    ours = prior_mean(X, y, "robust_linear")
    theirs = HuberRegressor(epsilon=1.345, alpha=0.0, max_iter=1000, tol=1e-10).fit(X.numpy(), y.numpy())
    # scikit-learn estimates the scale jointly, rcgp by the median: close, not equal.
    np.testing.assert_allclose(ours, theirs.predict(X.numpy()), atol=0.05)


@pytest.mark.parametrize("size", [1e3, 1e12, 1e300])
def test_robust_linear_ignores_gross_outliers(size):
    X, y = data()
    clean = prior_mean(X, y, "robust_linear")
    y[5] += size
    assert (prior_mean(X, y, "robust_linear") - clean).abs().max() < 0.1


def test_robust_linear_passes_through_points_on_a_line():
    X, _ = data()
    y = 3 * X[:, 0] - 1
    torch.testing.assert_close(prior_mean(X, y, "robust_linear"), y)


@pytest.mark.parametrize("mean", ["zero", "constant", "median", "linear", "quadratic", "robust_linear"])
def test_named_means_are_fixed_in_a_fit_and_support_batches(mean):
    X, y = data(n=15)
    model = RCGP(X, y, mean=mean)
    before = model.mean(X)
    fit(model, max_iterations=3)
    assert torch.equal(model.mean(X), before)
    assert model.posterior(torch.stack([X, X + 1])).mean.shape == (2, 15)


def test_units_of_the_inputs_do_not_matter():
    X, y = data()
    for mean in ("linear", "quadratic", "robust_linear"):
        torch.testing.assert_close(prior_mean(X * 1e6 + 1e7, y, mean), prior_mean(X, y, mean), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(prior_mean(X * 1e170, y, mean), prior_mean(X, y, mean), rtol=1e-6, atol=1e-6)


def test_a_callable_is_the_mean():
    X, y = data()
    model = RCGP(X, y, mean=lambda x: x[..., 0] ** 2)
    assert torch.equal(model.residual(), y - X[:, 0] ** 2)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    torch.testing.assert_close(model.posterior(far).mean, torch.tensor([1e6], dtype=torch.float64))


def test_a_torch_module_given_as_callable_is_not_trained():
    X, y = data()
    network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(-2))
    model = RCGP(X.float(), y.float(), mean=network)
    before = [parameter.clone() for parameter in network.parameters()]
    fit(model, max_iterations=5)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (lambda x: x, "mean must return a tensor of shape"),
        (lambda x: 0.0, "got float"),
        (lambda x: x[..., 0] * torch.nan, "mean must be finite: it gives nan in row 0"),
        ("average", "mean must be 'zero'"),
        (3, "mean must be 'zero'"),
    ],
)
def test_invalid_means_raise(mean, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        RCGP(X, y, mean=mean)


def test_parameters_of_a_gpytorch_mean_are_fitted():
    """With everything else fixed, the constant of largest marginal likelihood is that of generalised least squares."""
    X, y = data(n=30)
    model = RCGP(X, y, mean=gpytorch.means.ConstantMean(), weight=Constant())
    model.kernel.requires_grad_(False)
    model.raw_noise.requires_grad_(False)
    assert fit(model, objective="marginal").converged
    terms = model.training_terms()
    A = torch.linalg.inv(model.kernel_matrix().detach() + torch.diag(terms.pseudo.noise.detach()))
    estimate = (A @ y).sum() / A.sum()
    assert model.hyperparameters()["mean.constant"].item() == pytest.approx(estimate.item(), abs=1e-3)


def test_the_threshold_follows_a_trained_mean():
    X, y = data(n=30)
    model = RCGP(X, y + 100.0, mean=gpytorch.means.ConstantMean())
    assert model.weight.threshold(model.residual()).item() > 90
    model.mean.initialize(constant=102.0)
    assert model.weight.threshold(model.residual()).item() < 15
