"""Draws of whole functions: by BoTorch's path-wise sampling, from the robust posterior."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import (
    GeneralizedLinearPath,
    KernelEvaluationMap,
    draw_kernel_feature_paths,
    draw_matheron_paths,
    gaussian_update,
    get_matheron_path_model,
)
from linear_operator.operators import DiagLinearOperator

from problems_of_botorch import OUTLIERS, D, make_data, make_model, ordinary_gp, pseudo_data
from rcgp.botorch import SingleTaskRCGP

DRAWS = 20_000


@pytest.fixture
def x():
    return torch.rand(5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def seeded(draw, *arguments, **options):
    torch.manual_seed(3)
    return draw(*arguments, **options)


def exact_prior_at(points):
    """Draws from the prior without BoTorch's approximation, exact at these points: k(x, P) L⁻ᵀ u with K = L Lᵀ."""

    def draw(model, sample_shape):
        transform = getattr(model, "input_transform", None)
        P = points if transform is None else transform(points)
        L = torch.linalg.cholesky(model.covar_module(P).to_dense().detach())
        u = torch.randn(*sample_shape, *L.shape[:-1], dtype=L.dtype)
        weight = torch.linalg.solve_triangular(L.mT, u.movedim(0, -1), upper=True).movedim(-1, 0)
        kernels = KernelEvaluationMap(model.covar_module, P)
        return GeneralizedLinearPath(kernels, weight, model.mean_module, input_transform=transform)

    return draw


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("inputs", ["none", "normalize"])
@pytest.mark.parametrize("known", [False, True])
def test_moments_of_draws_are_those_of_the_posterior(x, m, inputs, known):
    X, Y = make_data(m=m)
    model = make_model(X, Y, inputs=inputs, **({"train_Yvar": torch.full_like(Y, 0.2)} if known else {}))
    sampler = exact_prior_at(torch.cat([x, X]))
    paths = seeded(draw_matheron_paths, model, torch.Size([DRAWS]), prior_sampler=sampler)
    with torch.no_grad():
        draws = paths(x).reshape(DRAWS, m, len(x))
    for output in range(m):
        posterior = model.posterior(x, output_indices=[output]).distribution
        mean, covariance = posterior.mean.detach(), posterior.covariance_matrix.detach()
        variance = covariance.diagonal()
        found = draws[:, output]
        assert ((found.mean(dim=0) - mean).abs() < 4.0 * (variance / DRAWS).sqrt()).all()
        error = ((variance.unsqueeze(-1) * variance + covariance.square()) / DRAWS).sqrt()
        assert ((found.T.cov() - covariance).abs() < 4.0 * error).all()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_are_botorchs_of_the_ordinary_gp_of_pseudo_data(x, batch, known):
    X, Y = make_data(batch=batch)
    model = make_model(X, Y, outcomes="none", **({"train_Yvar": torch.full_like(Y, 0.02)} if known else {}))
    _, _, z, r = pseudo_data(model)
    gp = ordinary_gp(model, z, r)
    found, expected = (seeded(draw_matheron_paths, some, torch.Size([7]))(x) for some in (model, gp))
    assert found.shape == (7, *batch, 5)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("given", ["targets", "noise", "both"])
def test_updates_take_targets_and_a_noise_covariance(x, given):
    """Pseudo-targets and pseudo-noises go together: with another noise the observations are the targets."""
    model = make_model(*make_data(), outcomes="none").eval()
    _, _, _, r = pseudo_data(model)
    y, f = model.train_targets, torch.randn(7, len(r), dtype=torch.float64)
    arguments = {"target_values": y + 1.0} if given != "noise" else {}
    if given != "targets":
        arguments["noise_covariance"] = DiagLinearOperator(torch.full_like(r, 0.3))
    gp = ordinary_gp(model, y, r)
    found, expected = (seeded(gaussian_update, some, f, **arguments)(x) for some in (model, gp))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_draws_from_the_prior_are_botorchs(x):
    X, Y = make_data()
    model = make_model(X, Y, outcomes="none")
    gp = SingleTaskGP(X, Y, covar_module=model.covar_module, mean_module=model.mean_module, outcome_transform=None)
    found, expected = (seeded(draw_kernel_feature_paths, some, torch.Size([7]))(x) for some in (model, gp.eval()))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_outliers_at_any_distance_are_harmless(x):
    X, Y = make_data()
    draws = []
    for size in (1e8, 1e100, 1e300):
        Y[OUTLIERS] = size
        draws.append(seeded(draw_matheron_paths, make_model(X, Y, outcomes="none"), torch.Size([7]))(x))
    for some in draws:
        torch.testing.assert_close(some, draws[0], rtol=1e-6, atol=1e-6)
    clean = make_model(*make_data(outliers=False), outcomes="none").posterior(x)
    assert ((draws[0] - clean.mean.squeeze(-1)).abs() < 6.0 * clean.variance.squeeze(-1).sqrt() + 0.5).all()


def test_a_new_model_draws_as_one_that_has_predicted(x):
    """Its transforms would learn from the points of a draw if it stayed in training mode."""
    new, used = (make_model(*make_data(m=2), inputs="normalize") for _ in range(2))
    used.posterior(x)
    wide = torch.cat([x, x + 10.0])
    found, expected = (seeded(get_matheron_path_model, model)(wide) for model in (new, used))
    assert found.shape == (10, 2)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    torch.testing.assert_close(new.input_transform.bounds, used.input_transform.bounds, rtol=0.0, atol=0.0)


def test_single_precision(x):
    double, single = (make_model(*make_data(dtype=dtype)) for dtype in (torch.float64, torch.float32))
    path = seeded(get_matheron_path_model, single)
    assert path(x.float()).dtype == torch.float32
    at_data = path(single.train_inputs[0]).double()
    posterior = double.posterior(double.train_inputs[0])
    assert ((at_data - posterior.mean).abs() < 6.0 * posterior.variance.sqrt()).all()


def test_gradient_in_the_inputs_is_right(x):
    path = seeded(get_matheron_path_model, make_model(*make_data(m=2), inputs="normalize"))
    assert torch.autograd.gradcheck(path, x[:2].clone().requires_grad_())


def test_of_a_list_are_those_of_its_models(x):
    models = [make_model(*make_data(seed=seed)) for seed in (0, 1)]
    found = seeded(get_matheron_path_model, ModelListGP(*models))(x)
    torch.manual_seed(3)
    expected = torch.cat([get_matheron_path_model(model)(x) for model in models], dim=-1)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_thompson_samples_are_where_the_best_may_be():
    X = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Y = -(X - 0.4).square().sum(dim=-1, keepdim=True)
    worst = int(Y.argmin())
    Y[worst] += 5.0  # too good to be true
    model = SingleTaskRCGP(X, Y)
    model.covar_module.base_kernel.lengthscale = 0.7
    model.likelihood.noise = 1e-3
    assert model.weights()[worst] < 1e-2
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    torch.manual_seed(0)
    acquisition = PathwiseThompsonSampling(model)
    points, _ = optimize_acqf(acquisition, bounds, q=3, num_restarts=4, raw_samples=64)
    assert len(points) == 3
    assert ((points - 0.4).norm(dim=-1) < 0.25).all()
