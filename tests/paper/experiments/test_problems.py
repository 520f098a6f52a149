"""The functions that are minimised, what spoils their values, and the steps that minimise them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from optional_parts import optional

optional("botorch")

from botorch.models import SingleTaskGP  # noqa: E402

from rcgp.weights import InverseMultiquadric  # noqa: E402
from rcgp_paper.baselines import StudentTGP  # noqa: E402
from rcgp_paper.experiments import trials  # noqa: E402
from rcgp_paper.experiments.trials import FUNCTIONS, Contamination, ModelOf, minimise, suggest  # noqa: E402

# The definitions, written again in numpy: x and x' on their own domains, domains and scalings.
PI = math.pi
DEFINITIONS = {
    "camel": (
        lambda x, y: (4 - 2.1 * x**2 + x**4 / 3) * x**2 + x * y + (4 * y**2 - 4) * y**2,
        ((-2, 2), (-1, 1)),
        lambda g: g,
    ),
    "branin": (
        lambda x, y: (y - 5.1 / (4 * PI**2) * x**2 + 5 / PI * x - 6) ** 2 + 10 * (1 - 1 / (8 * PI)) * np.cos(x) + 10,
        ((-5, 10), (0, 15)),
        lambda g: (g - 54.81) / 51.95,
    ),
    "mccormick": (
        lambda x, y: np.sin(x + y) + (x - y) ** 2 - 1.5 * x + 2.5 * y + 1,
        ((-1.5, 4), (-3, 4)),
        lambda g: g / 20,
    ),
    "rosenbrock": (lambda x, y: 100 * (y - x**2) ** 2 + (x - 1) ** 2, ((-5, 10), (-5, 10)), lambda g: g / 3.755e5),
}

# As the paper prints them.
MINIMA = {"camel": -1.0316, "branin": 0.3979, "mccormick": -1.9133, "rosenbrock": 0.0}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_functions_are_their_definitions_on_the_unit_square(name):
    definition, domain, scaled = DEFINITIONS[name]
    U = np.random.default_rng(0).uniform(size=(50, 2))
    x, y = (low + U[:, i] * (high - low) for i, (low, high) in enumerate(domain))
    expected = scaled(definition(x, y))
    np.testing.assert_allclose(FUNCTIONS[name](torch.from_numpy(U)).numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_minimum_is_what_a_search_finds_and_never_undercut(name):
    function = FUNCTIONS[name]

    def value(u):
        return float(function(torch.from_numpy(np.asarray(u, dtype=np.float64))))

    grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 101, dtype=torch.float64)])
    starts = grid[function(grid).topk(20, largest=False).indices].numpy()
    options = {"ftol": 1e-16, "gtol": 1e-12}
    found = min(
        scipy.optimize.minimize(value, start, bounds=[(0, 1)] * 2, method="L-BFGS-B", options=options).fun
        for start in starts
    )
    assert found == pytest.approx(function.minimum, abs=1e-7)
    assert found >= function.minimum - 1e-12
    assert function.minimum == pytest.approx(DEFINITIONS[name][2](MINIMA[name]), abs=1e-4)


def test_the_papers_thresholds():
    assert {name: function.threshold for name, function in FUNCTIONS.items()} == {
        "camel": 1.0,
        "branin": 2.0,
        "mccormick": 1.0,
        "rosenbrock": 1.0,
    }


def test_one_evaluation_in_five_is_larger_by_one_to_two():
    clean = torch.linspace(-3, 3, 20_000, dtype=torch.float64)
    seen, outlier = Contamination(torch.Generator().manual_seed(0))(clean)
    shift = (seen - clean)[outlier]
    assert outlier.double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert 1.0 <= shift.min() < 1.01 < 1.99 < shift.max() <= 2.0
    assert shift.mean().item() == pytest.approx(1.5, abs=0.02)
    assert torch.equal(seen[~outlier], clean[~outlier])


def test_the_fate_of_an_evaluation_depends_on_its_number_only():
    def fates(values, parts):
        contamination = Contamination(torch.Generator().manual_seed(3))
        return torch.cat([contamination(part)[1] for part in values.split(parts)])

    values = torch.zeros(40, dtype=torch.float64)
    assert torch.equal(fates(values, 40), fates(values + 7.0, 1))
    never = Contamination(torch.Generator().manual_seed(3), probability=0.0)
    assert torch.equal(never(values)[0], values)


@pytest.fixture(scope="module")
def fitted():
    """A GP and the data of it."""
    X = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    Y = FUNCTIONS["branin"](X).unsqueeze(-1)
    return SingleTaskGP(X, Y).eval(), X


def test_ucb_is_the_papers_with_lambda_ten_of_the_negated_function(fitted):
    model, X = fitted
    points = torch.rand(30, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    posterior = model.posterior(points)
    expected = -posterior.mean.flatten() + 10.0 * posterior.variance.sqrt().flatten()
    torch.testing.assert_close(trials.acquisition_function("ucb", model, X)(points), expected)


def test_pi_is_the_papers_and_the_best_value_is_the_smallest_posterior_mean(fitted):
    model, X = fitted
    points = torch.rand(30, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    posterior, best = model.posterior(points), model.posterior(X).mean.min()
    expected = torch.special.ndtr((best - posterior.mean) / posterior.variance.sqrt()).flatten()
    torch.testing.assert_close(trials.acquisition_function("pi", model, X)(points).exp(), expected)
    with pytest.raises(ValueError, match="there is no acquisition function 'ei'"):
        trials.acquisition_function("ei", model, X)


def test_a_suggestion_is_repeated_by_its_seed_and_near_the_best_of_a_grid(fitted):
    model, X = fitted
    point = suggest("ucb", model, X, seed=5)
    assert point.shape == (1, 2)
    assert torch.equal(point, suggest("ucb", model, X, seed=5))
    grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 41, dtype=torch.float64)]).unsqueeze(-2)
    value = trials.acquisition_function("ucb", model, X)
    with torch.no_grad():
        assert value(point.unsqueeze(0)).item() >= 0.98 * value(grid).max().item()


def test_a_model_of_the_package_is_one_for_botorch():
    X = torch.rand(15, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inner = StudentTGP(X, X.sum(dim=-1).sin())
    model = ModelOf(inner)
    points = torch.rand(4, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    posterior, expected = model.posterior(points), inner.posterior(points)
    assert posterior.mean.shape == (4, 1, 1)
    torch.testing.assert_close(posterior.mean.squeeze(-1), expected.mean)
    torch.testing.assert_close(posterior.variance.squeeze(-1), expected.variance)
    noisy = model.posterior(points, observation_noise=True).variance - posterior.variance
    torch.testing.assert_close(noisy, torch.full_like(noisy, inner.noise_variance.item()))
    (slope,) = torch.autograd.grad(trials.acquisition_function("ucb", model, X)(points).sum(), points)
    assert slope.abs().min() > 0


def test_the_papers_model_has_its_prior_weight_and_starting_noise(monkeypatch):
    seen = []
    monkeypatch.setattr(trials, "fit_gpytorch_mll", lambda mll: seen.append(mll.model))
    X = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    trials.fit_rcgp_as_in_paper(2.0)(X, FUNCTIONS["branin"](X).unsqueeze(-1))
    (model,) = seen
    assert isinstance(model.weight, InverseMultiquadric)
    assert float(model.weight.threshold(X[:, 0])) == pytest.approx(2.0)
    assert not [parameter for parameter in model.weight.parameters() if parameter.requires_grad]
    assert model.mean_module(X).abs().max() == 0.0
    assert model.likelihood.noise.item() == pytest.approx(1e-4)
    assert not hasattr(model, "outcome_transform")
    assert list(model.named_priors()) == []


def test_a_failed_fit_is_reported_and_the_model_kept(monkeypatch):
    def fail(mll):
        raise trials.ModelFittingError("no")

    monkeypatch.setattr(trials, "fit_gpytorch_mll", fail)
    X = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model, well = trials.fit_gp(X, X[:, :1])
    assert not well
    assert not model.training
    contamination = Contamination(torch.Generator().manual_seed(0))
    trace = minimise(FUNCTIONS["camel"], trials.fit_gp, "ucb", X, 2, contamination, seed=0)
    assert trace.failed == [0, 1]


def test_the_trace_has_clean_values_and_the_model_only_what_was_observed():
    first = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    seen = []

    def fit(X, Y):
        seen.append(Y.squeeze(-1).tolist())
        return SingleTaskGP(X, Y).eval(), True

    contamination = Contamination(torch.Generator().manual_seed(5), probability=0.5)
    trace = minimise(FUNCTIONS["mccormick"], fit, "ucb", first, 3, contamination, seed=0)
    points = torch.tensor(trace.points, dtype=torch.float64)
    assert torch.equal(points[:5], first)
    np.testing.assert_allclose(trace.values, FUNCTIONS["mccormick"](points).numpy())
    difference = np.array(trace.observed) - trace.values
    assert ((difference >= 1.0) == np.array(trace.outlier)).all()
    assert 0 < sum(trace.outlier) < 8
    assert seen[-1] == trace.observed[:7]  # of the model that chose the last point
    assert [len(y) for y in seen] == [5, 5, 6, 7]  # the first to be warm
    assert len(trace.fit_seconds) == len(trace.acquisition_seconds) == 3
    assert min(*trace.fit_seconds, *trace.acquisition_seconds) > 0
