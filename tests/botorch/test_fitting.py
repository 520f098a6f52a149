from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood

from problems_of_botorch import INPUTS, OUTLIERS, D, make_data, single_precision
from rcgp.botorch import LeaveOneOutObjective, SingleTaskRCGP, fit
from rcgp.weights import InverseMultiquadric

N = 24


@pytest.fixture
def x():
    return torch.rand(8, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def clean():
    """The ordinary GP of the rows that are no outliers, fitted."""
    X, Y = make_data(n=N)
    rest = [row for row in range(N) if row not in OUTLIERS]
    gp = SingleTaskGP(X[rest], Y[rest])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def state(model):
    return copy.deepcopy(model.state_dict())


def assert_same_state(model, before, tolerance=0.0):
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m)


def objective_of(model):
    """The leave-one-out objective of all models of a batch together."""
    objective = LeaveOneOutObjective(model).train()
    with torch.no_grad():
        value = objective(model(*model.train_inputs), model.train_targets).sum().item()
    objective.eval()
    return value


class Broken(gpytorch.kernels.RBFKernel):
    """No covariance function."""

    def forward(self, *arguments, **named):
        return super().forward(*arguments, **named) * torch.nan


@pytest.mark.parametrize("mll", [ExactMarginalLogLikelihood, LeaveOneOutObjective])
def test_script_of_single_task_gp_fits_robustly(x, clean, mll):
    X, Y = make_data(n=N)
    model = SingleTaskRCGP(X, Y)
    objective = mll(model.likelihood, model)
    assert fit_gpytorch_mll(objective) is objective
    assert not objective.training
    assert not model.training
    assert (model.posterior(x).mean - clean.posterior(x).mean).abs().max() < 0.1  # outliers are 8 off
    assert (model.weights() < 0.5).nonzero()[:, 0].tolist() == OUTLIERS
    alone = SingleTaskRCGP(X, Y)
    (report,) = fit(alone)
    assert report.converged
    assert_same_state(alone, model.state_dict())


def test_without_outliers_the_fit_is_that_of_single_task_gp(x):
    X, Y = make_data(n=N, outliers=False)
    model, gp = SingleTaskRCGP(X, Y), SingleTaskGP(X, Y)
    for some in (model, gp):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(some.likelihood, some))
    assert model.weights().min() > 0.9
    torch.testing.assert_close(model.posterior(x).mean, gp.posterior(x).mean, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(
        model.posterior(x).variance.sqrt(), gp.posterior(x).variance.sqrt(), rtol=5e-2, atol=1e-3
    )


@pytest.mark.parametrize("size", [1e3, 1e6, 1e300])
def test_outliers_may_be_any_size(x, clean, size):
    X, Y = make_data(n=N)
    Y[OUTLIERS] = size
    model = SingleTaskRCGP(X, Y)
    fit(model)
    assert (model.posterior(x).mean - clean.posterior(x).mean).abs().max() < 0.1


@pytest.mark.parametrize("seed", range(6))
def test_where_nobody_is_rejected_the_fit_is_that_of_single_task_gp(seed):
    """Noise alone, of which the evidence has several maxima: the same one is found."""
    generator = torch.Generator().manual_seed(seed)
    X, Y = torch.rand(15, 2, dtype=torch.float64, generator=generator), torch.randn(15, 1, generator=generator).double()
    model, gp = SingleTaskRCGP(X, Y), SingleTaskGP(X, Y)
    reports = fit(model)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert (model.weights() > 0.5).all()
    lengthscale, scale = model.covar_module.base_kernel.lengthscale, model.covar_module.outputscale
    torch.testing.assert_close(lengthscale, gp.covar_module.lengthscale, rtol=2e-3, atol=0.0)
    torch.testing.assert_close(model.likelihood.noise / scale, gp.likelihood.noise, rtol=2e-3, atol=0.0)
    assert reports[0].objective == "trimmed"
    assert reports[0].hyperparameters["kernel.base_kernel.lengthscale"] == pytest.approx(lengthscale.flatten().tolist())


def test_papers_weights_are_fitted_by_leave_one_out(x):
    X, Y = make_data(n=N)
    model = SingleTaskRCGP(X, Y, weight=InverseMultiquadric(c=1.0), centre="prior")
    before = objective_of(model)
    (report,) = fit(model)
    after = objective_of(model)
    assert after > before
    assert report.value == pytest.approx(N * after, rel=1e-6)
    # No step in any direction is better; the noise is at its lower bound.
    for parameter in (*model.covar_module.parameters(), *model.mean_module.parameters()):
        for factor in (1.1, 0.9):
            with torch.no_grad():
                parameter *= factor
                assert objective_of(model) < after
                parameter /= factor


@pytest.mark.parametrize(("batch", "m"), [((2,), 1), ((), 2), ((2,), 2)])
@pytest.mark.parametrize("centre", ["adaptive", "prior"])
def test_batch_is_fitted_model_by_model(batch, m, centre):
    n = 10
    X, Y = make_data(n=n, batch=batch, m=m)
    model = SingleTaskRCGP(X, Y, centre=centre)
    reports = fit(model, max_iterations=30)
    assert len(reports) == max(1, *batch, 0) * m
    index = (1,) if batch else ()
    single = SingleTaskRCGP(X[index], Y[index][:, -1:], centre=centre)
    fit(single, max_iterations=30)
    subset = model.subset_output([m - 1])
    for name, parameter in single.named_parameters():
        batched = dict(subset.named_parameters())[name][index]
        torch.testing.assert_close(batched, parameter, rtol=1e-5, atol=1e-5)


def test_known_noises_are_kept():
    X, Y = make_data(n=30)
    Yvar = torch.full_like(Y, 0.01)
    model = SingleTaskRCGP(X, Y, Yvar)
    fit(model)
    torch.testing.assert_close(model.likelihood.noise * model.outcome_transform.stdvs**2, Yvar.mT)
    assert (model.weights() < 0.5).nonzero()[:, 0].tolist() == OUTLIERS


def test_single_precision_is_fitted_in_double():
    X, Y = make_data(n=12)
    double = SingleTaskRCGP(X, Y)
    with single_precision(X.float()):
        model = SingleTaskRCGP(X.float(), Y.float())
    for some in (double, model):
        fit(some)
    assert model.covar_module.base_kernel.lengthscale.dtype == torch.float32
    torch.testing.assert_close(model.posterior(X.float()).mean.double(), double.posterior(X).mean, rtol=1e-2, atol=1e-2)


def test_bounds_of_the_noise_are_kept():
    X, Y = make_data(n=N, outliers=False)
    constraint = gpytorch.constraints.GreaterThan(0.01, transform=None, initial_value=0.02)
    model = SingleTaskRCGP(X, Y, likelihood=gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint))
    fit(model)
    # Of a function without noise; a bound is one for standardised rows, as priors are.
    assert 0.01 <= model.likelihood.noise.item() == pytest.approx(0.01 * model.train_targets.var().item(), rel=1e-3)


def test_fixed_hyperparameters_stay():
    X, Y = make_data(n=12)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=D))
    kernel.base_kernel.lengthscale = 0.77
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    model = SingleTaskRCGP(X, Y, covar_module=kernel)
    fit(model)
    torch.testing.assert_close(kernel.base_kernel.lengthscale, torch.full((1, D), 0.77, dtype=torch.float64))
    assert kernel.outputscale.item() != pytest.approx(0.6931, abs=1e-3)  # where it began


def test_inputs_are_normalised_before_they_are_fitted(x, clean):
    X, Y = make_data(n=N)
    bounds = torch.tensor([[0.0] * D, [5.0] * D], dtype=torch.float64)
    model = SingleTaskRCGP(5.0 * X, Y, input_transform=Normalize(d=D, bounds=bounds))
    assert len(fit(model)) == 1
    assert (model.posterior(5.0 * x).mean - clean.posterior(x).mean).abs().max() < 0.1


@pytest.mark.parametrize("m", [1, 2])
def test_learnt_transforms_are_fitted_with_the_rest(m):
    model = SingleTaskRCGP(*make_data(n=10, m=m), input_transform=INPUTS["warp"]((), m), centre="prior")
    before, value = state(model), objective_of(model)
    assert fit(model, max_iterations=10) == []
    assert objective_of(model) > value
    for name in ("input_transform.concentration0", "input_transform.concentration1"):
        assert (model.state_dict()[name] != before[name]).all()
    # What was learnt is used: training inputs are warped by it.
    warped = model.input_transform(make_data(n=10)[0])
    torch.testing.assert_close(model.train_inputs[0].reshape(m, 10, D)[0], warped)


def test_shared_hyperparameters_are_fitted_together():
    X, Y = make_data(n=10, m=2)
    kernel = gpytorch.kernels.MaternKernel(ard_num_dims=D)  # one for both outputs
    model = SingleTaskRCGP(X, Y, covar_module=kernel, centre="prior")
    before = objective_of(model)
    assert fit(model, max_iterations=10) == []
    assert objective_of(model) > before
    assert kernel.lengthscale.shape == (1, D)


class TestOptimizers:
    @pytest.mark.parametrize("centre", ["adaptive", "prior"])
    def test_of_botorch_climb_the_leave_one_out_objective(self, centre):
        # With adaptive centres the objective jumps where trust in a row changes.
        model = SingleTaskRCGP(*make_data(n=12, outliers=centre == "prior"), centre=centre)
        before = objective_of(model)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        kwargs = {"optimizer_kwargs": {"step_limit": 8}}
        assert fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_torch, **kwargs) is mll
        assert not mll.training
        assert objective_of(model) > before

    def test_take_their_arguments(self):
        model = SingleTaskRCGP(*make_data(n=12))
        mll = LeaveOneOutObjective(model)
        seen = {}

        def optimizer(objective, **kwargs):
            seen.update(kwargs, objective=objective, training=objective.training)

        fit_gpytorch_mll(mll, optimizer=optimizer, optimizer_kwargs={"timeout_sec": 1.0})
        assert isinstance(seen["objective"], LeaveOneOutObjective)
        assert seen["objective"].model is model
        assert seen["training"]
        assert seen["timeout_sec"] == 1.0

    def test_stop_where_they_are_told(self):
        model, further = (SingleTaskRCGP(*make_data(n=12), centre="prior") for _ in range(2))
        for some, steps in ((model, 1), (further, 15)):
            options = {"optimizer_kwargs": {"options": {"maxiter": steps}}}
            fit_gpytorch_mll(LeaveOneOutObjective(some), **options)
        assert objective_of(model) < objective_of(further)

    def test_failing_leave_the_model_as_it_was(self):
        model = SingleTaskRCGP(*make_data(n=12))
        before = state(model)

        def optimizer(objective, **kwargs):
            with torch.no_grad():
                for parameter in objective.parameters():
                    parameter += 1.0
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            fit_gpytorch_mll(LeaveOneOutObjective(model), optimizer=optimizer)
        assert_same_state(model, before)
        assert not model.training

    def test_closure_kwargs_are_refused(self):
        model = SingleTaskRCGP(*make_data(n=12))
        with pytest.raises(ValueError, match="closure_kwargs are not supported"):
            fit_gpytorch_mll(LeaveOneOutObjective(model), closure_kwargs={"a": 1})


@pytest.mark.parametrize("centre", ["adaptive", "prior"])
@pytest.mark.parametrize("inputs", ["none", "warp"])  # our searches, BoTorch's optimiser
def test_failing_fit_leaves_the_model_as_it_was(centre, inputs):
    model = SingleTaskRCGP(
        *make_data(n=12), covar_module=Broken(ard_num_dims=D), centre=centre, input_transform=INPUTS[inputs]((), 1)
    )
    before = state(model)
    with pytest.raises(ModelFittingError):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert_same_state(model, before)


def test_failure_of_one_model_leaves_all_as_they_were(monkeypatch):
    model = SingleTaskRCGP(*make_data(n=8, m=2))
    before, calls = state(model), []
    original = fit.__globals__["fit_standardised"]

    def second_fails(*arguments, **named):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    monkeypatch.setitem(fit.__globals__, "fit_standardised", second_fails)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert len(calls) == 2
    assert_same_state(model, before)


def test_lists_are_fitted(x):
    models = [SingleTaskRCGP(*make_data(n=12, seed=seed), input_transform=Normalize(d=D)) for seed in (0, 1)]
    both = ModelListGP(*models)
    mll = SumMarginalLogLikelihood(both.likelihood, both)
    fit_gpytorch_mll(mll)
    assert not mll.training
    for model, seed in zip(models, (0, 1), strict=True):
        alone = SingleTaskRCGP(*make_data(n=12, seed=seed), input_transform=Normalize(d=D))
        fit(alone)
        assert_same_state(model, alone.state_dict(), 1e-10)
    assert both.posterior(x).mean.shape == (8, 2)


def test_scale_of_outcomes_does_not_matter(x):
    X, Y = make_data(n=12)
    plain, other = SingleTaskRCGP(X, Y), SingleTaskRCGP(X, 250.0 * Y - 1e4)
    for model in (plain, other):
        fit(model)
    torch.testing.assert_close((other.posterior(x).mean + 1e4) / 250.0, plain.posterior(x).mean, rtol=1e-3, atol=1e-3)


def test_outcome_transform_of_the_caller_is_fitted_through(x, clean):
    X, Y = make_data(n=N)
    model = SingleTaskRCGP(X, Y, outcome_transform=Standardize(m=1))
    fit(model)
    assert (model.posterior(x).mean - clean.posterior(x).mean).abs().max() < 0.1


def test_priors_of_the_noise_are_kept():
    X, Y = make_data(n=N, outliers=False)
    prior = gpytorch.priors.LogNormalPrior(0.0, 0.01)  # noise is 1, whatever the data say
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_prior=prior, noise_constraint=gpytorch.constraints.GreaterThan(1e-4, transform=None, initial_value=0.5)
    )
    model = SingleTaskRCGP(X, Y, likelihood=likelihood, covar_module=gpytorch.kernels.RBFKernel(ard_num_dims=D))
    fit(model)
    assert model.likelihood.noise.item() == pytest.approx(1.0, abs=0.05)
