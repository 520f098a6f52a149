from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import torch

import reference
from problems import LENGTHSCALE, VARIANCE, make_data, set_hyperparameters
from problems_of_baselines import assert_gradient_by_differences
from rcgp_paper.baselines import MixtureGP, variational

NOISE, PRIOR = 0.05, (6.0, 2.0)


def make_model(n=14, **arguments):
    X, y = make_data(n)
    model = MixtureGP(X, y, noise=NOISE, prior=PRIOR, **arguments)
    set_hyperparameters(model)
    model.kernel.base_kernel.lengthscale = torch.tensor(0.5 * LENGTHSCALE)
    return model, X, y


def dense_bound(K, e, mean, V, p, a, b, region):
    """The bound of q(f) q(γ) Π q(z_i) from its definition, term by term."""
    log_inlier, log_outlier = scipy.special.digamma([a, b]) - scipy.special.digamma(a + b)
    log_normal = reference.log_normal(e, mean, NOISE) - 0.5 * np.diag(V) / NOISE
    observations = (p * log_normal + (1 - p) * -np.log(region)).sum()
    labels = (p * log_inlier + (1 - p) * log_outlier).sum()
    entropy = scipy.special.entr(p).sum() + scipy.special.entr(1 - p).sum()
    beta = (
        scipy.special.betaln(*PRIOR)
        - scipy.special.betaln(a, b)
        + (a - PRIOR[0]) * log_inlier
        + (b - PRIOR[1]) * log_outlier
    )
    return observations + labels + entropy - beta - reference.gaussian_kl(mean, V, np.zeros(len(e)), K)


def coordinate_ascent(X, y, p, sweeps=200):
    """The updates of the method in turn, from given inlier probabilities; the bound after each, and the end."""
    K = reference.se_kernel(X, X, 0.5 * LENGTHSCALE, VARIANCE)
    e, region = y - y.mean(), np.ptp(y)
    values = []
    for _ in range(sweeps):
        V = np.linalg.inv(np.linalg.inv(K) + np.diag(p / NOISE))
        mean = V @ (p * e / NOISE)
        a, b = PRIOR[0] + p.sum(), PRIOR[1] + (1 - p).sum()
        values.append(dense_bound(K, e, mean, V, p, a, b, region))
        score = reference.log_normal(e, mean, NOISE) - 0.5 * np.diag(V) / NOISE + np.log(region)
        p = scipy.special.expit(score + scipy.special.digamma(a) - scipy.special.digamma(b))
    return np.array(values), p, mean, V


def test_bound_and_posterior_are_a_fixed_point_of_dense_coordinate_ascent():
    model, X, y = make_model()
    rising, _, _, _ = coordinate_ascent(X, y, np.full(len(y), 0.9))
    assert (np.diff(rising) > -1e-9).all()  # so that the reference itself is right
    p = model.inlier_probability().numpy()
    assert p.min() < 0.01
    values, p_later, mean, V = coordinate_ascent(X, y, p)
    assert model.elbo().item() == pytest.approx(values[0], abs=1e-6)
    assert values[-1] == pytest.approx(values[0], abs=1e-6)
    np.testing.assert_allclose(p_later, p, atol=1e-4)
    posterior = model.posterior(torch.tensor(X))
    np.testing.assert_allclose(posterior.mean.numpy(), y.mean() + mean, atol=1e-4)
    np.testing.assert_allclose(posterior.covariance_matrix.numpy(), V, atol=1e-4)


def test_outliers_have_a_low_and_inliers_a_high_probability():
    X, y = make_data(60, outliers=5)
    model = MixtureGP(X, y)
    model.fit()
    p = model.inlier_probability()
    assert p[:5].max() < 0.05
    assert p[5:].quantile(0.1) > 0.5
    torch.testing.assert_close(model.weights(), p.clamp_min(torch.finfo(p.dtype).tiny).sqrt(), rtol=0, atol=1e-5)


def test_gradient_is_the_one_of_central_differences(monkeypatch):
    monkeypatch.setattr(variational, "_TOLERANCE", 1e-15)
    model, _, _ = make_model()
    assert_gradient_by_differences(model)


def test_clean_data_are_not_all_outliers():
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 20, 60, dtype=torch.float64).unsqueeze(-1)
    truth = torch.sin(X[:, 0])
    model = MixtureGP(X, truth + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64))
    report = model.fit()
    assert report.value > -10
    assert (model.posterior(X).mean - truth).abs().mean() < 0.1
    assert model.inlier_probability().median() > 0.9


def test_an_observation_of_any_size_does_not_affect_the_rest():
    X, y = make_data(20, outliers=0)
    y[3] = 1e300
    model = MixtureGP(X, y, mean="median")
    others = np.delete(np.arange(20), 3)
    assert model.inlier_probability()[3] == 0
    error = model.posterior(torch.tensor(X[others])).mean - torch.tensor(y[others])
    assert error.abs().mean() < 0.5


@pytest.mark.parametrize("prior", [(0.0, 1.0), (1.0, float("nan")), (1.0,)])
def test_an_invalid_beta_prior_raises(prior):
    with pytest.raises(ValueError, match="two positive numbers"):
        MixtureGP(torch.zeros(3, 1), torch.zeros(3), prior=prior)
