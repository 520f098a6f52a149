"""Sample weights at the model: factors on the precision of each row."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import reference
from problems import make_data, make_twin, set_hyperparameters
from rcgp import RCGP, fit, fit_robust, posterior_influence
from rcgp.training.objectives import leave_one_out, marginal, pseudo_marginal
from rcgp.weights import Constant, InverseMultiquadric, LawWeight

COUNTS = np.array([1, 3, 2] * 6)[:17]


def weighted_model(weight, counts=COUNTS, repeat=False, mean="zero"):
    X, y = make_data()
    if repeat:
        X, y, counts = np.repeat(X, counts, axis=0), np.repeat(y, counts), None
    model = RCGP(X, y, weight=weight, mean=mean, noise=0.05, sample_weight=counts)
    set_hyperparameters(model)
    return model


def test_an_integer_weight_counts_as_repeated_rows():
    """In the posterior of an ordinary GP, at given hyperparameters."""
    test_X = torch.rand(9, 2, dtype=torch.float64)
    posteriors = [weighted_model(Constant(), repeat=repeat).posterior(test_X) for repeat in (False, True)]
    torch.testing.assert_close(posteriors[0].mean, posteriors[1].mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posteriors[0].variance, posteriors[1].variance, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()], ids=["constant", "imq"])
@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_only_ratios_of_weights_matter(weight, factor):
    """A common factor is a unit of the noise variance: posterior, leave-one-out and objectives stay the same."""
    X, y = make_data()
    models = [RCGP(X, y, weight=weight, noise=0.05 * c, sample_weight=c * COUNTS) for c in (1.0, factor)]
    test_X = torch.rand(9, 2, dtype=torch.float64)
    one, other = (model.posterior(test_X) for model in models)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-9, atol=1e-9)
    for objective in (leave_one_out, pseudo_marginal):
        assert objective(models[0]).item() == pytest.approx(objective(models[1]).item(), rel=1e-9)
    reports = [fit(RCGP(X, y, weight=weight, sample_weight=c * COUNTS)) for c in (1.0, factor)]
    assert reports[0].value == pytest.approx(reports[1].value, abs=1e-6)


def test_equal_weights_change_nothing():
    X, y = make_data()
    plain, weighted = RCGP(X, y), RCGP(X, y, sample_weight=np.full(17, 100.0))
    assert fit(weighted).value == pytest.approx(fit(plain).value, abs=1e-6)
    assert weighted.noise.item() == pytest.approx(100.0 * plain.noise.item(), rel=1e-3)


def test_the_posterior_is_that_of_proposition_3_1_with_each_rows_own_noise():
    twin = make_twin("imq", c=1.3, mean="zero")
    model = weighted_model(InverseMultiquadric(c=1.3))
    noise = twin.noise / COUNTS
    w, slope = reference.imq(twin.y, 1.3, noise)  # the paper's w, of each row's own σ
    R, m_w = np.diag(noise**2 / 2 * w**-2.0), noise * slope
    H = np.linalg.inv(twin.K + R)
    posterior = model.posterior(torch.tensor(twin.X))
    np.testing.assert_allclose(posterior.mean.numpy(), twin.K @ H @ (twin.y - m_w), atol=1e-9)
    np.testing.assert_allclose(posterior.covariance_matrix.detach().numpy(), twin.K - twin.K @ H @ twin.K, atol=1e-9)


def test_leave_one_out_equals_refits_with_each_rows_own_noise():
    twin = make_twin("imq")
    twin.model.sample_weight = torch.tensor(COUNTS, dtype=torch.float64)
    loo = twin.model.leave_one_out()
    for i in range(len(twin.y)):
        rest = np.delete(np.arange(len(twin.y)), i)
        R = twin.noise**2 / 2 * twin.w[rest] ** -2.0 / COUNTS[rest]  # pseudo-noise over the factor
        z = (twin.y - twin.m - twin.noise / COUNTS * twin.slope)[rest]
        A = np.linalg.inv(twin.K[np.ix_(rest, rest)] + np.diag(R))
        k = twin.K[rest, i]
        assert loo.mean[i].item() == pytest.approx(twin.m[i] + k @ A @ z, abs=1e-9)
        variance = twin.K[i, i] - k @ A @ k + twin.noise / COUNTS[i]
        assert loo.variance[i].item() == pytest.approx(variance, abs=1e-9)
    score = reference.log_normal(twin.y, loo.mean.numpy(), loo.variance.numpy()).sum()
    assert leave_one_out(twin.model).item() == pytest.approx(score, abs=1e-8)


def test_the_marginal_likelihood_is_that_of_noise_divided_by_the_weights():
    model = weighted_model(Constant())
    X, y = make_data()
    K = reference.se_kernel(X, X, np.array([0.9, 1.7]), 1.4)
    density = gpytorch.distributions.MultivariateNormal(
        torch.zeros(17, dtype=torch.float64), torch.tensor(K + np.diag(0.05 / COUNTS))
    ).log_prob(torch.tensor(y))
    assert marginal(model).item() == pytest.approx(density.item(), abs=1e-8)


def test_the_pseudo_marginal_likelihood_has_each_rows_own_noise():
    twin = make_twin("imq", c=1.3, mean="zero")
    noise = twin.noise / COUNTS
    w, slope = reference.imq(twin.y, 1.3, noise)
    w_tilde2 = 2 * w**2 / noise
    z, R_inv = twin.y - noise * slope, np.diag(2 * w**2 / noise**2)
    C = twin.y @ R_inv @ twin.y - 2 * np.sum(w_tilde2 + twin.y * w_tilde2 * slope)
    inner = np.linalg.inv(twin.K) + R_inv
    expected = -0.5 * (np.linalg.slogdet(twin.K)[1] + np.linalg.slogdet(inner)[1])
    expected += 0.5 * z @ R_inv @ np.linalg.inv(inner) @ R_inv @ z - 0.5 * C
    assert pseudo_marginal(weighted_model(InverseMultiquadric(c=1.3))).item() == pytest.approx(expected, abs=1e-6)


def test_influence_counts_the_weight_of_the_moved_row():
    """Against the divergence between the two posteriors of f at the training points."""
    twin = make_twin("imq", c=1.3, mean="zero")
    model = weighted_model(InverseMultiquadric(c=1.3))
    moved = weighted_model(InverseMultiquadric(c=1.3))
    moved.train_y[1] = 4.0
    before, after = (m.posterior(torch.tensor(twin.X)) for m in (model, moved))
    # The two posteriors differ in the direction of f(x_1) alone.
    kl = reference.gaussian_kl(
        *(part[1:2].detach().numpy() if part.ndim == 1 else part[1:2, 1:2].detach().numpy()
          for posterior in (before, after) for part in (posterior.mean, posterior.covariance_matrix))
    )  # fmt: skip
    assert posterior_influence(model, 1, [4.0]).item() == pytest.approx(kl, rel=1e-6)


def test_gradients_of_the_objectives_match_central_differences():
    model = weighted_model(InverseMultiquadric(c=1.3))
    for objective in (leave_one_out, pseudo_marginal):
        (gradient,) = torch.autograd.grad(objective(model), model.raw_noise)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                model.raw_noise += step
                values.append(objective(model).item())
                model.raw_noise -= step
        assert gradient.item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(5), r"one number for each of the 17 rows, got \(5,\)"),
        (np.r_[np.ones(16), 0.0], "must be positive, got 0.0 in row 16"),
        (np.r_[np.nan, np.ones(16)], "sample_weight contains NaN in row 0"),
    ],
)
def test_bad_weights_raise(weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_model(Constant(), counts=weights)


def test_weights_follow_the_type_of_the_model():
    model = weighted_model(InverseMultiquadric()).float()
    assert model.sample_weight.dtype == torch.float32
    assert model.leave_one_out().mean.dtype == torch.float32
    assert not any("sample_weight" in name for name in model.state_dict())


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_the_weights_of_a_learned_law_follow_sample_weights(factor):
    """The model weights its rows as the fit did, for any unit of the sample weights."""
    X, y = (torch.tensor(a) for a in make_data(40))
    precision = torch.linspace(0.5, 3.0, 40, dtype=torch.float64)
    models = []
    for p in (precision, factor * precision):
        models.append(RCGP(X, y, mean="median", sample_weight=p))
        fit_robust(models[-1])
    assert isinstance(models[0].weight, LawWeight)
    torch.testing.assert_close(models[0].weight.relative, 1.0 / precision)
    torch.testing.assert_close(models[1].weights(), models[0].weights(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(models[1].outlier_probability(), models[0].outlier_probability(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(models[1].posterior(X).mean, models[0].posterior(X).mean, rtol=1e-4, atol=1e-4)
