from __future__ import annotations

import copy
import math

import gpytorch
import numpy as np
import pytest
import scipy.optimize
import torch
from linear_operator.utils.errors import NanError, NotPSDError

from problems import make_data, make_twin
from rcgp import RCGP, FitError, SparseRCGP, fit, fit_robust
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.training import objectives
from rcgp.training.fit import fit_ordinary
from rcgp.training.search import shorter_starts
from rcgp.weights import Constant, InverseMultiquadric


def small_model(n=25, seed=0, **arguments):
    X, y = make_data(n, seed=seed)
    return RCGP(X, y, **arguments)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("objective", "weight"), [("loo", InverseMultiquadric), ("loo", Constant), ("marginal", Constant)]
)
def test_fit_finds_a_stationary_point_better_than_the_start(objective, weight):
    model = small_model(weight=weight())
    function = objectives.OBJECTIVES[objective]
    start = function(model).item()
    report = fit(model, objective)
    assert report.converged
    assert report.value == pytest.approx(function(model).item(), rel=1e-12)
    assert report.value > start
    gradients = torch.autograd.grad(function(model), list(model.parameters()))
    assert max(gradient.abs().max().item() for gradient in gradients) < 0.02


def test_a_derivative_free_search_finds_nothing_better_nearby():
    X = torch.linspace(0, 5, 30, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = RCGP(X, y)
    value = fit(model).value
    parameters = list(model.parameters())

    def loss(x):
        with torch.no_grad():
            for parameter, value in zip(parameters, x, strict=True):
                parameter.fill_(value)
        return -objectives.leave_one_out(model).item()

    start = np.array([parameter.item() for parameter in parameters])
    search = scipy.optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    assert value == pytest.approx(-search.fun, abs=1e-5)


def test_fit_recovers_the_hyperparameters_of_its_own_prior():
    generator = torch.Generator().manual_seed(1)
    X = torch.linspace(0, 40, 400, dtype=torch.float64).unsqueeze(-1)
    K = 2.0 * torch.exp(-0.5 * (X - X.T) ** 2 / 1.5**2) + 1e-8 * torch.eye(400, dtype=torch.float64)
    y = torch.linalg.cholesky(K) @ torch.randn(400, generator=generator, dtype=torch.float64)
    y += 0.2 * torch.randn(400, generator=generator, dtype=torch.float64)
    model = RCGP(X, y)
    fit(model)
    assert model.noise.item() == pytest.approx(0.04, rel=0.25)
    assert model.kernel.base_kernel.lengthscale.item() == pytest.approx(1.5, rel=0.25)


def test_robust_fit_is_closer_to_the_truth_than_a_plain_one():
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 20, 200, dtype=torch.float64).unsqueeze(-1)
    truth = torch.sin(X[:, 0])
    y = truth + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    y[::20] += 8.0
    errors = []
    for weight in (Constant(), InverseMultiquadric()):
        model = RCGP(X, y, weight=weight)
        fit(model)
        errors.append((model.posterior(X).mean - truth).abs().mean().item())
    assert errors[1] < 0.6 * errors[0]


def test_a_second_fit_goes_on_from_the_first():
    model = small_model()
    first = fit(model, max_iterations=2)
    assert not first.converged
    assert "ITERATIONS" in first.message.upper()
    second = fit(model)
    assert second.value >= first.value
    assert second.converged


def test_restarts_keep_the_best_and_repeat_with_the_seed():
    reports = [fit(small_model(), restarts=3, seed=seed) for seed in (7, 7, 8)]
    for report in reports:
        assert len(report.starts) == 4
        assert report.value == max(report.starts)
    assert reports[0].starts == reports[1].starts
    assert reports[0].starts[1:] != reports[2].starts[1:]


def test_parameters_that_need_no_gradient_stay_fixed():
    model = small_model(noise=0.3)
    model.raw_noise.requires_grad_(False)
    fit(model)
    assert model.noise.item() == pytest.approx(0.3)


@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
def test_a_fit_works_where_gradients_are_switched_off(switch):
    model, other = small_model(), small_model()
    with switch():
        value = fit(model).value
    assert value == fit(other).value


def test_a_mean_that_does_not_use_its_parameter_leaves_it_alone():
    class Idle(gpytorch.means.Mean):
        def __init__(self):
            super().__init__()
            self.register_parameter("idle", torch.nn.Parameter(torch.tensor(2.0)))

        def forward(self, x):
            return torch.zeros(x.shape[:-1], dtype=x.dtype)

    model = small_model(mean=Idle())
    fit(model)
    assert model.mean.idle.item() == 2.0


@pytest.mark.parametrize("objective", [lambda model: 1.0, lambda model: torch.ones(3)])
def test_an_objective_that_gives_no_number_is_named(objective):
    with pytest.raises(TypeError, match="an objective must return one number as a tensor"):
        fit(small_model(), objective)


def test_a_model_with_nothing_to_fit_is_only_evaluated():
    model = small_model().requires_grad_(False)
    before = state(model)
    report = fit(model)
    assert report.converged
    assert report.evaluations == 1
    assert same(before, state(model))


def test_a_trainable_threshold_is_fitted():
    model = small_model(weight=InverseMultiquadric(c=3.0, trainable=True))
    model.weight.requires_grad_(False)
    fixed = fit(model)
    assert fixed.hyperparameters["weight.c"][0] == pytest.approx(3.0)
    model.weight.requires_grad_(True)
    report = fit(model)
    assert report.value > fixed.value
    assert report.hyperparameters["weight.c"][0] != pytest.approx(3.0)


def test_constraints_without_a_transform_become_bounds():
    constraint = gpytorch.constraints.Interval(0.5, 0.7, transform=None)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(lengthscale_constraint=constraint))
    kernel.base_kernel.lengthscale = 0.6
    model = small_model(kernel=kernel)
    fit(model, restarts=2, seed=0)
    assert 0.5 <= model.kernel.base_kernel.lengthscale.item() <= 0.7


def test_priors_pull_the_fit():
    prior = gpytorch.priors.NormalPrior(0.01, 1e-4)
    model = small_model()
    model.kernel.base_kernel.register_prior("lengthscale_prior", prior, "lengthscale")
    fit(model)
    assert (model.kernel.base_kernel.lengthscale - 0.01).abs().max() < 0.01


def test_a_float32_model_is_fitted_in_float64_and_cast_back():
    X, y = make_data(25)
    single = RCGP(torch.tensor(X).float(), torch.tensor(y).float())
    double = RCGP(single.train_X.double(), single.train_y.double())
    reports = fit(single), fit(double)
    assert single.raw_noise.dtype == single.train_X.dtype == torch.float32
    assert reports[0].value == pytest.approx(reports[1].value, rel=1e-5)
    torch.testing.assert_close(single.noise, double.noise.float(), rtol=1e-3, atol=1e-5)


# What goes wrong ------------------------------------------------------------------------------------------------------


def failing_beyond(limit):
    """The leave-one-out objective, which cannot be computed for noise variances above a limit."""

    def objective(model):
        if model.noise.item() > limit:
            raise NotPositiveDefiniteError("as arranged")
        return objectives.leave_one_out(model)

    return objective


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_failed_evaluation_is_a_rejected_step(how):
    """Some steps fail; the fit ends where it would have ended without."""
    X = torch.linspace(0, 10, 60, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(X[:, 0]) + 0.3 * torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = RCGP(X, y, noise=1e-3)
    free = fit(copy.deepcopy(model))
    calls = []

    def objective(model):
        calls.append(1)
        if len(calls) in (3, 4, 8):
            if how == "raises":
                raise NotPositiveDefiniteError("as arranged")
            return objectives.leave_one_out(model) * math.nan
        return objectives.leave_one_out(model)

    report = fit(model, objective)
    assert report.rejected == 3
    assert report.converged
    assert report.value == pytest.approx(free.value, abs=1e-4)


@pytest.mark.parametrize("error", [torch.linalg.LinAlgError, NotPSDError, NanError])
def test_failures_inside_other_libraries_are_rejected_steps_too(error):
    model = small_model()
    calls = []

    def objective(model):
        calls.append(1)
        if len(calls) == 3:
            raise error("as arranged")
        return objectives.leave_one_out(model)

    assert fit(model, objective).rejected >= 1


def test_a_prior_of_bounded_support_is_a_wall():
    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.RBFKernel(lengthscale_prior=gpytorch.priors.UniformPrior(0.5, 2.0))
    )
    kernel.base_kernel.lengthscale = 1.0
    model = small_model(kernel=kernel)
    fit(model)
    assert 0.5 <= model.kernel.base_kernel.lengthscale.item() <= 2.0


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_the_fit_of_a_trained_mean_does_not_depend_on_units(scale):
    X, y = (torch.tensor(a) for a in make_data(40, outliers=0))
    y = y + 3 * X[:, 0]

    def fitted(unit_x, unit_y):
        mean = gpytorch.means.LinearMean(2)
        mean.weights.data.zero_()
        mean.bias.data.zero_()
        model = RCGP(X * unit_x, y * unit_y, mean=mean)
        fit(model)
        values = model.hyperparameters()
        return values["mean.weights"][:, 0] * unit_x / unit_y, model.posterior(X * unit_x).mean / unit_y

    for ours, reference in zip(fitted(1 / scale, scale), fitted(1.0, 1.0), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=2e-2)


def test_the_error_names_an_observation_that_cannot_be_scored():
    X, y = make_data(20)
    y[11] = 1e200
    with pytest.raises(FitError, match=r"1e\+200 away from the prior mean.*Look at row 11"):
        fit(RCGP(X, y, mean="median"))


def test_a_report_is_short_where_it_is_one_of_a_list():
    model = small_model()
    for report in (fit(model, max_iterations=2), fit_robust(model, max_iterations=2)):
        assert len(repr([report])) < 420
        assert f"evaluations={report.evaluations}" in repr([report])


def test_only_models_can_be_fitted():
    with pytest.raises(TypeError, match="model must be an RCGP, got int"):
        fit(3)


def test_a_wall_in_front_of_the_optimum_ends_at_the_wall():
    model = small_model(noise=1e-3)
    start = objectives.leave_one_out(model).item()
    report = fit(model, failing_beyond(5e-3))
    assert report.rejected > 0
    assert report.value > start
    assert model.noise.item() <= 5.001e-3


def test_failure_at_every_start_leaves_the_model_alone():
    model = small_model(mean=gpytorch.means.LinearMean(2))
    before = state(model)
    with pytest.raises(FitError, match="could not be computed at any of 3 starts"):
        fit(model, failing_beyond(0.0), restarts=2)
    assert same(before, state(model))


def test_an_error_in_the_objective_is_passed_on_and_leaves_the_model_alone():
    model = small_model().float()
    before = state(model)
    calls = []

    def objective(model):
        calls.append(1)
        if len(calls) > 4:
            raise KeyError("a bug")
        return objectives.leave_one_out(model)

    with pytest.raises(KeyError, match="a bug"):
        fit(model, objective)
    assert same(before, state(model))
    assert model.train_y.dtype == torch.float32


def test_an_interrupt_keeps_the_best_so_far_and_a_new_fit_goes_on():
    model = small_model()
    start = objectives.leave_one_out(model).item()
    seen = []

    def interrupt(evaluations, best):
        seen.append(best)
        if evaluations == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, progress=interrupt)
    kept = objectives.leave_one_out(model).item()
    assert kept == pytest.approx(max(seen), rel=1e-12)
    assert kept > start
    assert fit(model).value >= kept


def test_a_start_that_fails_does_not_spoil_the_others():
    X, y = make_data(20)
    model = RCGP(X, y, noise=0.1)
    report = fit(model, failing_beyond(0.05), restarts=8, seed=3)
    assert report.starts[0] == -math.inf
    assert report.value > -math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "likelihood"}, "objective must be one of 'loo', 'marginal', 'pseudo_marginal'"),
        ({"objective": "marginal"}, "use the objective 'loo'"),
        ({"restarts": 1.5}, "restarts must be a whole number"),
        ({"restarts": -1}, "restarts must be a whole number, at least 0"),
        ({"max_iterations": 0}, "max_iterations must be a whole number, at least 1"),
    ],
)
def test_impossible_arguments_are_named_and_leave_the_model_alone(arguments, message):
    model = small_model()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        fit(model, **arguments)
    assert same(before, state(model))


def test_pseudo_marginal_can_be_maximised_for_study():
    report = fit(make_twin("imq").model, "pseudo_marginal", max_iterations=3)
    assert math.isfinite(report.value)


# What one sees --------------------------------------------------------------------------------------------------------


def test_the_report_prints_itself_well():
    report = fit(small_model(), restarts=1, seed=0)
    text = str(report)
    assert text.startswith(f"loo = {report.value:.6g}, converged in {report.iterations} iterations")
    for part in ("evaluations", "starts:", "noise", "kernel.base_kernel.lengthscale", " s\n"):
        assert part in text
    assert all(len(line) < 120 for line in text.splitlines())
    assert report.seconds > 0
    assert report.evaluations >= report.iterations


def test_progress_goes_to_standard_error(capsys):
    fit(small_model(), max_iterations=3, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("evaluations, best") == 1  # no terminal: a line in the end
    assert captured.err.endswith("\n")
    fit(small_model(), max_iterations=3)
    assert capsys.readouterr().err == ""


def test_scipys_threads_rest_during_a_fit_and_are_restored():
    """They would spin on the cores that torch needs."""
    from threadpoolctl import ThreadpoolController

    def threads():
        return [info["num_threads"] for info in ThreadpoolController().select(internal_api="openblas").info()]

    before, during = threads(), []
    fit(make_twin("imq").model, progress=lambda evaluations, best: during.append(threads()))
    assert before  # NumPy or SciPy bring one
    assert all(count == 1 for counts in during for count in counts)
    assert threads() == before


# Shorter starts -------------------------------------------------------------------------------------------------------


def lengthscales_of(model):
    kernel = model.kernel.base_kernel
    return [round(kernel.lengthscale.item(), 6) for _ in shorter_starts(model)]


def test_shorter_starts_end_at_the_typical_gap():
    X = torch.arange(50.0, dtype=torch.float64).unsqueeze(-1)
    model = RCGP(X, X[:, 0].sin())
    first, found = model.kernel.base_kernel.lengthscale.item(), lengthscales_of(model)
    assert found == pytest.approx([first * 0.3**step for step in range(1, len(found) + 1)], rel=1e-4)
    assert 0.3 < found[-1] <= 1.0


def test_shorter_starts_end_where_no_lengthscale_can_become_shorter():
    X = torch.arange(50.0, dtype=torch.float64).unsqueeze(-1)
    k, within = gpytorch.kernels, gpytorch.constraints.Interval(2.0, 9.0)
    bounded = RCGP(X, X[:, 0].sin(), kernel=k.ScaleKernel(k.RBFKernel(lengthscale_constraint=within)))
    assert lengthscales_of(bounded) == [pytest.approx(2.02)]
    fixed = RCGP(X, X[:, 0].sin())
    fixed.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    assert not lengthscales_of(fixed)
    assert not list(shorter_starts(RCGP(X, X[:, 0], kernel=k.ScaleKernel(k.LinearKernel()))))


@pytest.mark.parametrize("sparse", [False, True], ids=["exact", "sparse"])
def test_an_ordinary_gp_of_float32_data_is_that_of_float64(sparse):
    X, y = (torch.as_tensor(a, dtype=torch.float32) for a in make_data(25))
    models = [
        SparseRCGP(x, t, inducing=x, weight=Constant()) if sparse else RCGP(x, t, weight=Constant())
        for x, t in ((X, y), (X.double(), y.double()))
    ]
    single, double = (fit_ordinary(model).value for model in models)
    assert models[0].train_y.dtype == models[0].noise.dtype == torch.float32
    assert single == pytest.approx(double, rel=1e-4)
