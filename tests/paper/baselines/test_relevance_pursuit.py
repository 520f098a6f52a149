from __future__ import annotations

import sys

import pytest
import torch

from problems import make_data
from rcgp_paper.baselines import GaussianGP, RelevancePursuitGP


def test_without_botorch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch", None)
    model = RelevancePursuitGP(*make_data(5))
    with pytest.raises(ImportError, match=r"rcgp\[botorch\]"):
        model.fit()


def test_before_a_fit_it_is_the_ordinary_gp():
    X, y = make_data(15)
    model, ordinary = RelevancePursuitGP(X, y), GaussianGP(X, y)
    torch.testing.assert_close(model.posterior(X).mean, ordinary.posterior(X).mean)
    assert not model.outlier_variances.any()


@pytest.fixture
def pursued(monkeypatch):
    """A fitted model, and the model of BoTorch that it was taken from."""
    pytest.importorskip("botorch")
    taken = []
    take_over = RelevancePursuitGP._take_over
    monkeypatch.setattr(
        RelevancePursuitGP, "_take_over", lambda self, model: (taken.append(model), take_over(self, model))
    )
    inputs = 3.0 + 2.0 * torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
    y = 50.0 + 10.0 * torch.sin(0.5 * inputs[:, 0]) + torch.randn(30, dtype=torch.float64)
    y[5:30:10] += 80.0
    model = RelevancePursuitGP(inputs, y)
    report = model.fit()
    return model, report, taken[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_botorch_finds_the_outliers_and_predicts_the_same(pursued):
    model, report, other = pursued
    assert report.evaluations > 10
    assert (model.outlier_variances[5:30:10] > 100).all()
    assert (model.weights()[5:30:10] < 0.5).all()
    test_X = model.train_X[:7] + 0.3
    with torch.no_grad():
        expected, got = other.posterior(test_X), model.posterior(test_X)
        torch.testing.assert_close(got.mean, expected.mean.squeeze(-1), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(got.variance, expected.variance.squeeze(-1), rtol=1e-3, atol=1e-3)
