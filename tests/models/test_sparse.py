from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch

import reference
from problems import LENGTHSCALE, VARIANCE, WEIGHTS, make_data, make_twin, set_hyperparameters
from rcgp import RCGP, SparseRCGP, fit, fit_robust
from rcgp.models import sparse_rows
from rcgp.training.objectives import OBJECTIVES, elbo, leave_one_out
from rcgp.weights import Constant, InverseMultiquadric, LawWeight, NoiseLaw

NOISE = 0.05


def sparse_of(twin, Z, **options):
    """The sparse model with the data, hyperparameters and weight of a twin."""
    model = SparseRCGP(
        twin.model.train_X,
        twin.model.train_y,
        inducing=torch.as_tensor(Z),
        weight=copy.deepcopy(twin.model.weight),
        noise=twin.noise,
        **options,
    )
    set_hyperparameters(model)
    return model


def points(m=6, seed=5):
    return np.random.default_rng(seed).uniform(-2, 2, (m, 2))


def kernels(twin, Z):
    """K_uu, K_u and the prior variances, for the reference."""
    K_uu, K_u = (reference.se_kernel(Z, other, LENGTHSCALE, VARIANCE) for other in (Z, twin.X))
    return K_uu, K_u, np.full(len(twin.y), VARIANCE)


@pytest.fixture(params=[None, 5], ids=["one block", "blocks of five rows"])
def blocks(request, monkeypatch):
    """All rows at once, or in blocks that are not kept."""
    if request.param is not None:
        monkeypatch.setattr(sparse_rows, "block_rows", lambda m: request.param)
        monkeypatch.setattr(sparse_rows, "_KEPT_ENTRIES", 0)


# Against the dense reference ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_posterior_is_the_papers(weight, blocks):
    twin, Z = make_twin(weight), points()
    x = np.random.default_rng(1).uniform(-3, 3, (9, 2))
    K_uu, K_u, _ = kernels(twin, Z)
    K_star = reference.se_kernel(Z, x, LENGTHSCALE, VARIANCE)
    mean, variance = reference.sparse_predict(
        K_uu, K_u, K_star, np.full(9, VARIANCE), np.full(9, twin.m[0]), twin.y, twin.m, twin.w, twin.slope, NOISE
    )
    posterior = sparse_of(twin, Z).posterior(torch.tensor(x))
    np.testing.assert_allclose(posterior.mean.detach(), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(posterior.variance.detach(), variance, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(posterior.covariance_matrix.detach().diagonal(), variance, rtol=1e-8, atol=1e-8)
    noisy = sparse_of(twin, Z).posterior(torch.tensor(x), observation_noise=True)
    np.testing.assert_allclose(noisy.variance.detach(), variance + NOISE, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_leave_one_out_equals_n_refits(weight, blocks):
    twin, Z = make_twin(weight), points()
    mean, variance = reference.sparse_leave_one_out_by_refits(
        *kernels(twin, Z), twin.y, twin.m, twin.w, twin.slope, NOISE
    )
    ours = sparse_of(twin, Z).leave_one_out()
    np.testing.assert_allclose(ours.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.variance, variance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_bound_is_the_papers_with_its_errata(weight, blocks):
    twin, Z = make_twin(weight), points()
    args = (*kernels(twin, Z), twin.y - twin.m)
    bound = float(elbo(sparse_of(twin, Z)).detach())
    if weight == "constant":
        assert bound == pytest.approx(reference.titsias_bound(*args, NOISE), abs=1e-8)
    else:
        assert bound == pytest.approx(reference.sparse_bound(*args, twin.w, twin.slope, NOISE), abs=1e-8)


def test_with_a_constant_weight_it_is_gpytorchs_sgpr():
    twin, Z = make_twin("constant"), points()

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(torch.tensor(twin.X), torch.tensor(twin.y), likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                copy.deepcopy(twin.model.kernel), inducing_points=torch.tensor(Z), likelihood=likelihood
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    gp = SGPR().double()
    gp.mean_module.constant.data.fill_(twin.m[0])
    likelihood.noise = torch.tensor(twin.noise, dtype=torch.float64)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, gp)
    theirs = float(objective(gp(torch.tensor(twin.X)), torch.tensor(twin.y)).detach()) * len(twin.y)
    assert float(elbo(sparse_of(twin, Z)).detach()) == pytest.approx(theirs, abs=1e-8)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_with_every_row_an_inducing_point_it_is_the_exact_model(weight, blocks):
    twin = make_twin(weight)
    model, x = sparse_of(twin, twin.X), torch.linspace(-3, 3, 20, dtype=torch.float64).reshape(10, 2)
    for ours, exact in zip(model.leave_one_out(), twin.model.leave_one_out(), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-6)
    ours, exact = model.posterior(x), twin.model.posterior(x)
    torch.testing.assert_close(ours.mean, exact.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.covariance_matrix, exact.covariance_matrix, rtol=1e-6, atol=1e-6)
    values = [float(leave_one_out(one).detach()) for one in (model, twin.model)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    assert torch.equal(model.weights(), twin.model.weights())


# Gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [elbo, leave_one_out])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_gradients_are_those_of_finite_differences(objective, weight, blocks):
    twin = make_twin(weight, **({} if weight == "constant" else {"c": 1.5, "trainable": True}))
    model = sparse_of(twin, points(), train_inducing=True)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert any(parameter is model.inducing_points for parameter in parameters)
    gradients = torch.autograd.grad(objective(model), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for i in range(parameter.numel()):
            values = []
            for step in (-1e-6, 1e-6):
                with torch.no_grad():
                    parameter.view(-1)[i] += step
                    values.append(float(objective(model)))
                    parameter.view(-1)[i] -= step
            expected = (values[1] - values[0]) / 2e-6
            assert float(gradient.reshape(-1)[i]) == pytest.approx(expected, rel=2e-5, abs=2e-5)


def test_the_moments_pass_gradcheck():
    torch.manual_seed(0)
    X, Z = torch.rand(9, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64).requires_grad_()
    z, s = torch.randn(9, dtype=torch.float64, requires_grad=True), torch.rand(9, dtype=torch.float64) + 0.5
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.6, dtype=torch.float64)

    def function(z, s, Z):
        found, unseen = sparse_rows.sparse_moments(sparse_rows.Rows(kernel, X, Z), sparse_rows.PseudoData(z, s))
        return *found, unseen

    assert torch.autograd.gradcheck(function, (z, s.requires_grad_(), Z))


# As a model -----------------------------------------------------------------------------------------------------------


def sine(n=400, seed=0, share=0.1):
    random = np.random.default_rng(seed)
    X = random.uniform(0, 10, n)
    y = np.sin(X) + 0.1 * random.standard_normal(n)
    bad = random.random(n) < share
    y[bad] += random.uniform(3, 9, int(bad.sum()))
    return torch.tensor(X)[:, None], torch.tensor(y), torch.tensor(bad)


def test_a_fit_by_leave_one_out_is_as_good_as_the_exact_one():
    X, y, _ = sine(share=0.0)
    sparse, exact = SparseRCGP(X, y, inducing=30), RCGP(X, y)
    assert fit(sparse).value == pytest.approx(fit(exact).value, rel=1e-3)
    assert sparse.noise.item() == pytest.approx(exact.noise.item(), rel=0.02)
    torch.testing.assert_close(sparse.posterior(X).mean, exact.posterior(X).mean, rtol=0.0, atol=5e-3)


def test_a_fit_of_the_inducing_points_raises_the_bound():
    X, y, _ = sine(share=0.0)
    values = []
    for trained in (False, True):
        model = SparseRCGP(
            1e3 * X,
            y,
            inducing=1e3 * torch.tensor([[1.0], [3.0], [4.0], [8.0], [9.0]]).double(),
            weight=Constant(),
            train_inducing=trained,
        )
        before = model.inducing_points.detach().clone()
        values.append(fit(model, "elbo").value)
        assert torch.equal(model.inducing_points.detach(), before) != trained
        assert not any("inducing" in name for name in model.hyperparameters())
    assert values[1] > values[0] + 10.0


@pytest.mark.parametrize("name", ["marginal", "pseudo_marginal"])
def test_objectives_of_the_exact_model_raise(name):
    X, y, _ = sine(30)
    with pytest.raises(TypeError, match="this is for RCGP, the exact model"):
        OBJECTIVES[name](SparseRCGP(X, y, inducing=5, weight=Constant()))


def test_the_bound_raises_for_an_exact_model():
    X, y, _ = sine(30)
    with pytest.raises(ValueError, match="'elbo' is for SparseRCGP"):
        fit(RCGP(X, y), "elbo")


def test_the_posterior_follows_inducing_points_and_hyperparameters():
    X, y, _ = sine(60)
    model = SparseRCGP(X, y, inducing=8)
    first = model.posterior(X[:3]).mean
    assert torch.equal(model.posterior(X[:3]).mean, first)
    model.inducing_points = torch.linspace(0, 10, 12, dtype=torch.float64)[:, None]
    second = model.posterior(X[:3]).mean
    assert not torch.equal(first, second)
    model.noise = 1e-3
    assert not torch.equal(model.posterior(X[:3]).mean, second)


def test_copies_and_pickles_predict_the_same():
    X, y, _ = sine(60)
    model = SparseRCGP(X, y, inducing=8, weight=InverseMultiquadric(c=1.0))
    expected = model.posterior(X[:5]).mean
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.posterior(X[:5]).mean, expected)


def test_a_float32_model_returns_float32():
    X, y, _ = sine(60)
    model = SparseRCGP(X.float(), y.float(), inducing=8)
    assert model.posterior(X[:5].float()).variance.dtype == torch.float32
    assert model.leave_one_out().mean.dtype == torch.float32
    double = SparseRCGP(X, y, inducing=model.inducing_points.double())
    torch.testing.assert_close(
        model.posterior(X[:5].float()).mean.double(), double.posterior(X[:5]).mean, rtol=1e-3, atol=1e-3
    )


def test_a_weight_for_each_row_works():
    X, y, bad = sine()
    law = NoiseLaw((0.9, 0.0, 0.0, 0.0), 0.1, 5.0)
    model = SparseRCGP(X, y, inducing=20, noise=0.01)
    model.weight = LawWeight(law, torch.sin(X[:, 0]) - y.mean(), torch.full_like(y, 0.01))
    assert float((model.posterior(X).mean - torch.sin(X[:, 0])).abs().mean()) < 0.05
    assert bool((model.weights()[bad] < 0.1).all())


def test_a_robust_fit_finds_the_outliers():
    X, y, bad = sine()
    model = SparseRCGP(X, y, inducing=20, mean="median")
    report = fit_robust(model)
    assert report.evidence > report.normal_evidence
    flagged = model.outlier_probability() > 0.5
    assert bool(flagged[bad].all())
    assert int(flagged.sum()) <= int(bad.sum()) + 4
    assert float((model.posterior(X).mean - torch.sin(X[:, 0])).abs().mean()) < 0.03


def test_sample_weights_are_repeated_rows():
    X, y, _ = sine(40)
    counts = torch.tensor(np.random.default_rng(0).integers(1, 4, 40))
    Z = torch.linspace(0, 10, 10, dtype=torch.float64)[:, None]
    options = {"inducing": Z, "weight": Constant(), "mean": "zero", "noise": 0.1}
    weighted = SparseRCGP(X, y, sample_weight=counts.double(), **options)
    repeated = SparseRCGP(X.repeat_interleave(counts, 0), y.repeat_interleave(counts), **options)
    repeated.kernel.load_state_dict(weighted.kernel.state_dict())
    torch.testing.assert_close(weighted.posterior(X).mean, repeated.posterior(X).mean)
    torch.testing.assert_close(weighted.posterior(X).variance, repeated.posterior(X).variance)


@pytest.mark.parametrize(
    ("inducing", "error", "message"),
    [
        (0, ValueError, "inducing must be at least 1, got 0"),
        ("all", TypeError, "a number of points or an m x d tensor"),
        (torch.zeros(3, 2), ValueError, r"must have shape m x 1 like the training inputs, got \(3, 2\)"),
        (torch.zeros(0, 1), ValueError, "must have shape m x 1"),
        (torch.tensor([[0.0], [float("nan")]]), ValueError, "inducing.*row 1"),
    ],
)
def test_bad_inducing_points_raise(inducing, error, message):
    X, y = (torch.tensor(part) for part in make_data(d=1))
    with pytest.raises(error, match=message):
        SparseRCGP(X, y, inducing=inducing)
