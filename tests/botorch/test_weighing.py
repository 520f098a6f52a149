"""Influence of outliers, gradients through the weights, and what a fit must not touch."""

from __future__ import annotations

import gpytorch
import pytest
import torch

from problems_of_botorch import OUTLIERS, make_data
from rcgp.botorch import LeaveOneOutObjective, SingleTaskRCGP, fit


def value_of(model):
    objective = LeaveOneOutObjective(model).train()
    return objective(model(*model.train_inputs), model.train_targets)


def test_gradient_of_the_objective_is_that_of_its_value():
    """With outliers, whose weights follow the hyperparameters."""
    model = SingleTaskRCGP(*make_data(n=20))
    assert model.outliers().nonzero()[:, 0].tolist() == OUTLIERS
    gradients = torch.autograd.grad(value_of(model), list(model.parameters()))
    step = 1e-6
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        flat = parameter.detach().reshape(-1)
        for i in range(flat.numel()):
            with torch.no_grad():
                flat[i] += step
                up = value_of(model)
                flat[i] -= 2 * step
                down = value_of(model)
                flat[i] += step
            assert gradient.reshape(-1)[i].item() == pytest.approx(
                ((up - down) / (2 * step)).item(), rel=1e-4, abs=1e-6
            )


def test_gradient_through_a_fantasy_is_that_of_its_prediction():
    X, Y = make_data(n=20)
    model, test_X = SingleTaskRCGP(X, Y), X[:2] + 0.03
    fit(model)
    new_X = X[4:5] + 0.05

    def prediction(new_Y):
        return model.condition_on_observations(new_X, new_Y).posterior(test_X).mean.sum()

    new_Y = model.posterior(new_X).mean.detach() + 0.01
    (gradient,) = torch.autograd.grad(prediction(new_Y.requires_grad_()), new_Y)
    up, down = (prediction((new_Y + change).detach()) for change in (1e-5, -1e-5))
    assert gradient.item() == pytest.approx(((up - down) / 2e-5).item(), rel=1e-4)


def test_outliers_have_no_pull_among_rows_of_other_noise():
    X, Y = make_data(n=25, outliers=False)
    Yvar = torch.full_like(Y, 1e-4)
    Yvar[11] = 1e4  # the mean of the noises is that of this row
    clean = SingleTaskRCGP(X, Y, Yvar)
    fit(clean)
    spoilt = Y.clone()
    spoilt[9] += 20.0
    model = SingleTaskRCGP(X, spoilt, Yvar)
    fit(model)
    assert model.weights()[9] < 0.1
    flagged = model.outliers().squeeze(-1).nonzero().flatten().tolist()
    assert set(flagged) - {11} == {9}  # that row may be anything
    change = model.posterior(X[9:10]).mean - Y[9]
    assert change.abs().item() < 1.0  # a twentieth of the way


def test_what_is_held_fixed_stays():
    X, Y = make_data(n=20)
    model = SingleTaskRCGP(X, 10.0 * Y, outcome_transform=None)
    model.likelihood.noise = torch.tensor([0.01], dtype=torch.float64)
    model.covar_module.outputscale = torch.tensor(400.0, dtype=torch.float64)
    model.mean_module.constant = torch.tensor(3.0, dtype=torch.float64)
    frozen = [
        model.likelihood.noise_covar.raw_noise,
        model.covar_module.raw_outputscale,
        model.mean_module.raw_constant,
    ]
    before = [parameter.requires_grad_(False).clone() for parameter in frozen]
    fit(model)
    for parameter, value in zip(frozen, before, strict=True):
        torch.testing.assert_close(parameter, value, rtol=1e-9, atol=0.0)


def test_posterior_follows_attributes_that_are_not_parameters():
    X, Y = make_data(n=12, outliers=False)
    model = SingleTaskRCGP(X, Y, torch.full_like(Y, 0.01), covar_module=gpytorch.kernels.MaternKernel(nu=2.5))
    before = model.posterior(X + 0.1).mean
    model.likelihood.noise_covar.noise = torch.full((12,), 5.0, dtype=torch.float64)
    noisier = model.posterior(X + 0.1).mean
    model.covar_module.nu = 0.5
    rougher = model.posterior(X + 0.1).mean
    assert (noisier - before).abs().max() > 0.01
    assert (rougher - noisier).abs().max() > 0.01


def test_data_in_a_graph_are_not_mixed_up():
    X, Y = make_data(n=12, outliers=False)
    model = SingleTaskRCGP(X, Y, outcome_transform=None).eval()
    first, second = (Y.squeeze(-1).clone().requires_grad_() for _ in range(2))
    for targets in (first, second):
        model.set_train_data(targets=targets)
        model.posterior(X + 0.1).mean.sum().backward()
    torch.testing.assert_close(second.grad, first.grad)


def test_no_outputs_at_all_are_refused():
    model = SingleTaskRCGP(*make_data(m=2))
    with pytest.raises(ValueError, match="output_indices is empty"):
        model.posterior(model.train_inputs[0][0], output_indices=[])


def test_inputs_follow_the_model_to_another_type():
    from botorch.models.transforms import Normalize

    X, Y = make_data(n=12)
    model = SingleTaskRCGP(X, Y, input_transform=Normalize(d=X.shape[-1]))
    model.posterior(X)
    assert model.float().train().train_inputs[0].dtype == torch.float32
