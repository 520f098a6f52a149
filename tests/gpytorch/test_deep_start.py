"""The start of a deep GP: lengthscales and responsibilities of an exact fit."""

from __future__ import annotations

import gpytorch
import pytest
import torch

from rcgp.gpytorch import NoiseLawLikelihood
from rcgp.gpytorch.deep import DeepModel
from rcgp.gpytorch.deep_fit import fit_deep
from rcgp.gpytorch.deep_start import start_from_exact
from rcgp.weights import NoiseLaw

DOUBLE = torch.float64


def chirp(n, wrong=0, fast=1.0, dtype=DOUBLE):
    """A function that oscillates ever faster; its first rows are wrong."""
    random = torch.Generator().manual_seed(1)
    X = torch.rand(n, 1, generator=random, dtype=DOUBLE)
    truth = torch.sin(2.0 * torch.pi * (1.5 * X[:, 0] + fast * X[:, 0] ** 3))
    y = truth + 0.1 * torch.randn(n, generator=random, dtype=DOUBLE)
    y[:wrong] += 4.0
    X = (X - 0.5) * 3.5
    return X.to(dtype), y.to(dtype), truth


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("layers", [1, 2])
def test_wrong_rows_are_outliers_and_the_last_layer_has_the_lengthscale(layers, dtype):
    X, y, _ = chirp(100, wrong=10, dtype=dtype)
    model = DeepModel(X[::4].clone(), layers)
    share = start_from_exact(model, NoiseLawLikelihood(y), X, y)
    assert share.shape == (100, 5)
    assert share.dtype == dtype
    torch.testing.assert_close(share.sum(dim=-1), torch.ones(100, dtype=dtype))
    assert float(share[:10, -1].min()) > 0.9
    assert float(share[10:, -1].max()) < 0.1
    shorter = float(model.last.covar_module.base_kernel.lengthscale.detach())
    assert 0.1 < shorter < 0.6  # a quarter of a period is 0.2 of the input at its fast end, 0.7 at its slow one


def test_clean_rows_have_normal_noise():
    X, y, _ = chirp(60)
    share = start_from_exact(DeepModel(X[::4].clone()), NoiseLawLikelihood(y), X, y)
    torch.testing.assert_close(share, torch.eye(5, dtype=DOUBLE)[0].expand(60, 5))


def test_outliers_beyond_the_sample_are_recognised_even_if_it_has_none(monkeypatch):
    monkeypatch.setattr("rcgp.gpytorch.deep_start._ROWS", 80)
    X, y, _ = chirp(300, wrong=1)
    torch.manual_seed(0)
    assert 0 not in torch.randperm(300)[:80]
    torch.manual_seed(0)
    share = start_from_exact(DeepModel(X[::10].clone()), NoiseLawLikelihood(y), X, y)
    assert float(share[0, -2:].sum()) > 0.9
    assert float(share[1:, -1].max()) < 0.1
    torch.testing.assert_close(share.sum(dim=-1), torch.ones(300, dtype=DOUBLE))


def test_likelihoods_that_learn_no_law_start_from_an_ordinary_gp():
    X, y, _ = chirp(60)
    lengthscales = []
    for likelihood in (
        gpytorch.likelihoods.GaussianLikelihood().double(),
        NoiseLawLikelihood(y, NoiseLaw.normal()),
        NoiseLawLikelihood(y),
    ):
        model = DeepModel(X[::4].clone())
        share = start_from_exact(model, likelihood, X, y)
        assert (share is None) == (len(lengthscales) < 2)
        lengthscales.append(model.last.covar_module.base_kernel.lengthscale.detach())
    torch.testing.assert_close(lengthscales[1], lengthscales[0])
    torch.testing.assert_close(lengthscales[2], lengthscales[0])  # the rows are clean


@pytest.mark.slow
def test_a_fast_part_of_the_function_is_not_taken_for_outliers():
    X, y, truth = chirp(256, wrong=38, fast=7.5)
    clean, robust = (deep_error(X, targets, truth) for targets in (chirp(256, fast=7.5)[1], y))
    assert robust < 1.2 * clean
    assert clean < 0.12  # with noise of 0.1; rounding, and so the machine, decides on a tenth of it


def deep_error(X, y, truth):
    model, likelihood = DeepModel(X[::4].clone()), NoiseLawLikelihood(y)
    fit_deep(model, likelihood, X, y, steps=300, rate=0.04, held_out=0.0, samples=1)
    with torch.no_grad():
        mean = model.eval()(X, torch.zeros(1, 1, 1, 8, dtype=DOUBLE)).mean[0]
    return float((mean - truth).abs().mean())


def test_responsibilities_are_held_until_the_finish(monkeypatch):
    X, y, _ = chirp(60, wrong=6)
    seen = []
    given = NoiseLawLikelihood.expected_log_prob

    def recorded(self, *args, share=None):
        seen.append(share is not None)
        return given(self, *args, share=share)

    monkeypatch.setattr(NoiseLawLikelihood, "expected_log_prob", recorded)
    fit_deep(DeepModel(X[::6].clone()), NoiseLawLikelihood(y), X, y, steps=10, held_out=0.0)
    assert seen == [True] * 8 + [False] * 2


def test_a_copy_of_the_inputs_runs_through_the_skip_connections_alone():
    X = torch.randn(20, 10, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    model = DeepModel(X[:8].clone(), layers=3)
    with torch.no_grad():
        first, _ = model.hidden[0].moments(X)
        second, _ = model.hidden[1].moments(first.mT)
        torch.testing.assert_close(model.skipped(X), second.mT)
    torch.testing.assert_close(DeepModel(X[:8].clone(), layers=1).skipped(X), X)
