from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from botorch.acquisition import (
    ProbabilityOfImprovement,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.analytic import LogNoisyExpectedImprovement, NoisyExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.exceptions.errors import UnsupportedError
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

import reference
from problems_of_botorch import OUTLIERS, D, make_data, make_model
from rcgp.weights import InverseMultiquadric

C = 2.0


@pytest.fixture
def x():
    return torch.rand(6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@pytest.fixture
def model():
    return make_model(*make_data(), outcomes="none", weight=InverseMultiquadric(c=C))


@pytest.fixture
def papers(model, x):
    """μ*^R and the roots of Σ*^R of Prop. 3.1 at the test inputs, by the dense transcription."""
    X, y = model.train_inputs[0].numpy(), model.train_targets.numpy()
    noise, m = model.likelihood.noise.item(), model.mean_module.constant.item()
    scale, lengthscale = model.covar_module.outputscale.item(), model.covar_module.base_kernel.lengthscale[0]
    K = [reference.se_kernel(a, b, lengthscale.detach().numpy(), scale) for a, b in ((X, X), (X, x), (x, x))]
    w, slope = reference.imq(y - m, C, noise)
    mean, covariance = reference.predict(*K, m, y, m, w, slope, noise)
    return mean, np.sqrt(np.diag(covariance))


@pytest.mark.parametrize("scale", [0.5, 10.0])
def test_upper_confidence_bound_is_the_papers(model, x, papers, scale):
    """a(x) = μ* + λ Σ*^(1/2); BoTorch's β is λ²."""
    mean, deviation = papers
    values = UpperConfidenceBound(model, beta=scale**2)(x.unsqueeze(-2))
    np.testing.assert_allclose(values.detach(), mean + scale * deviation, rtol=1e-8)


@pytest.mark.parametrize("best", [2.5, 3.5])
def test_probability_of_improvement_is_the_papers(model, x, papers, best):
    """a(x) = Φ((μ* − f(x_max)) Σ*^(−1/2))."""
    mean, deviation = papers
    values = ProbabilityOfImprovement(model, best_f=best)(x.unsqueeze(-2))
    np.testing.assert_allclose(values.detach(), scipy.stats.norm.cdf((mean - best) / deviation), rtol=1e-7)


def test_minimising_is_maximising_the_opposite(x):
    X, Y = make_data()
    up, down = make_model(X, -Y, outcomes="none"), make_model(X, Y, outcomes="none")
    up.mean_module.constant.data.neg_()
    rises = UpperConfidenceBound(up, beta=4.0)(x.unsqueeze(-2))
    falls = UpperConfidenceBound(down, beta=4.0, maximize=False)(x.unsqueeze(-2))
    torch.testing.assert_close(rises, falls, rtol=1e-8, atol=1e-8)


def test_outliers_do_not_attract_an_acquisition_function(x):
    """Upwards outliers of a function to be maximised: the ordinary GP goes where they are, this model does not."""
    X, Y = make_data()
    candidates = torch.cat([X, x])
    for model, attracted in ((make_model(X, Y), False), (SingleTaskGP(X, Y), True)):
        best = UpperConfidenceBound(model, beta=0.01)(candidates.unsqueeze(-2)).argmax().item()
        assert (best in OUTLIERS) == attracted


def test_acquisition_functions_are_optimised():
    model = make_model(*make_data(), inputs="normalize")
    bounds = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    acquisition = qLogExpectedImprovement(model, best_f=2.0, sampler=SobolQMCNormalSampler(torch.Size([16]), seed=0))
    arguments = {"num_restarts": 2, "raw_samples": 8, "options": {"seed": 0, "maxiter": 10}}
    points, value = optimize_acqf(acquisition, bounds, q=2, **arguments)
    assert ((points >= 0.0) & (points <= 1.0)).all()
    corners = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    assert value > acquisition(corners)


@pytest.mark.parametrize("m", [1, 2])
def test_thompson_sampling_chooses_candidates(x, m):
    model = make_model(*make_data(m=m), inputs="normalize")
    objective = LinearMCObjective(torch.ones(m, dtype=torch.float64)) if m > 1 else None
    chosen = MaxPosteriorSampling(model, objective=objective, replacement=False)(x, num_samples=3)
    assert chosen.shape == (3, D)
    assert all(any(torch.equal(row, candidate) for candidate in x) for row in chosen)
    assert len({tuple(row.tolist()) for row in chosen}) == 3


def test_thompson_samples_follow_the_posterior():
    """Of two candidates the better is chosen as often as it is better in the posterior."""
    model = make_model(*make_data(), outcomes="none")
    many = torch.rand(30, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    # One of the pair is probably, but not surely, better.
    distribution = model.posterior(many).distribution
    mean, C = distribution.mean.detach(), distribution.covariance_matrix.detach()
    difference = mean.unsqueeze(-1) - mean
    deviation = (C.diagonal().unsqueeze(-1) + C.diagonal() - 2.0 * C + torch.eye(30)).sqrt()
    odd = ((difference / deviation).abs() - 0.7).abs() + 1e9 * torch.eye(30)
    first, second = divmod(odd.argmin().item(), 30)
    x, score = many[[first, second]], difference[first, second] / deviation[first, second]
    expected = scipy.stats.norm.cdf(score.item())
    chosen = MaxPosteriorSampling(model, replacement=True)(x, num_samples=4000)
    share = (chosen == x[0]).all(dim=-1).double().mean().item()
    assert 0.1 < abs(expected - 0.5) < 0.4
    assert share == pytest.approx(expected, abs=4.0 * np.sqrt(expected * (1.0 - expected) / 4000))


def test_the_analytic_noisy_expected_improvement_is_botorchs_own_models_only(x):
    X, Y = make_data()
    model = make_model(X, Y, train_Yvar=torch.full_like(Y, 0.01))
    for kind in (NoisyExpectedImprovement, LogNoisyExpectedImprovement):
        with pytest.raises(UnsupportedError, match="not a `SingleTaskGP`"):
            kind(model, X)
    assert qLogNoisyExpectedImprovement(model, X)(x.unsqueeze(-2)).isfinite().all()


def test_pending_points_count_as_chosen(x):
    model = make_model(*make_data())
    arguments = {"best_f": 2.0, "sampler": SobolQMCNormalSampler(torch.Size([64]), seed=0)}
    free = qLogExpectedImprovement(model, **arguments)
    pending = qLogExpectedImprovement(model, X_pending=x[:1], **arguments)
    torch.testing.assert_close(pending(x[1:2].unsqueeze(0)), free(x[[1, 0]].unsqueeze(0)), rtol=1e-8, atol=1e-8)
