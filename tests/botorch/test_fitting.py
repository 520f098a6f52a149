from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize, Warp
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood

from marks import slow
from problems_of_botorch import INPUTS, OUTLIERS, D, make_data, single_precision
from rcgp.botorch import LeaveOneOutObjective, RobustStandardize, SingleTaskRCGP, fit
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
    assert model.outliers().nonzero()[:, 0].tolist() == OUTLIERS
    if mll is ExactMarginalLogLikelihood:
        alone = SingleTaskRCGP(X, Y)
        (report,) = fit(alone)
        assert report.converged
        assert_same_state(alone, model.state_dict())


@pytest.mark.parametrize(
    ("scaled", "m"),
    [
        (True, 1),
        (False, 2),
        slow(True, 2),
        slow(False, 1),
    ],
)
def test_without_outliers_the_fit_is_that_of_single_task_gp(x, scaled, m):
    """With the same kernel and transforms: hyperparameters and posterior."""
    X, Y = make_data(n=N, m=m, outliers=False)
    Y = Y + 0.05 * torch.randn(Y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = torch.Size([m] if m > 1 else [])

    def kernel():
        base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=D, batch_shape=batch)
        return gpytorch.kernels.ScaleKernel(base, batch_shape=batch) if scaled else base

    models = [
        kind(X, Y, covar_module=kernel(), outcome_transform=RobustStandardize(m=m), input_transform=Normalize(d=D))
        for kind in (SingleTaskRCGP, SingleTaskGP)
    ]
    for some in models:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(some.likelihood, some))
    model, gp = models
    assert (model.weights() == 1.0).all()
    assert not model.outliers().any()
    assert all(law.is_normal for law in (model.noise_law if m > 1 else [model.noise_law]))
    for name, value in gp.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    for noise in (False, True):
        posterior, expected = (some.posterior(x, observation_noise=noise) for some in models)
        torch.testing.assert_close(posterior.mean, expected.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(posterior.variance, expected.variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e300])
def test_outliers_may_be_any_size(x, clean, size):
    X, Y = make_data(n=N)
    Y[OUTLIERS] = size
    model = SingleTaskRCGP(X, Y)
    fit(model)
    assert (model.posterior(x).mean - clean.posterior(x).mean).abs().max() < 0.1


@pytest.mark.parametrize("weight", ["learned", "constant"])
def test_options_of_botorchs_optimiser_are_honoured(weight):
    """The ordinary GP is fitted with them, as ``SingleTaskGP`` is."""
    X, Y = make_data(n=N, outliers=False)
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=D)
    models = [
        SingleTaskRCGP(X, Y, covar_module=copy.deepcopy(kernel), outcome_transform=Standardize(m=1), weight=weight),
        SingleTaskGP(X, Y, covar_module=copy.deepcopy(kernel), outcome_transform=Standardize(m=1)),
    ]
    seen = []
    for some in models:
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(some.likelihood, some),
            optimizer_kwargs={"options": {"maxiter": 2}, "callback": lambda *_: seen.append(1)},
        )
    assert len(seen) == 4
    if models[0].weights().min() == 1.0:
        torch.testing.assert_close(models[0].covar_module.lengthscale, models[1].covar_module.lengthscale)


def test_a_learned_law_has_more_evidence_than_normal_noise():
    model = SingleTaskRCGP(*make_data(n=N))
    (report,) = fit(model)
    assert report.evidence > report.normal_evidence
    assert report.law.outlier_share == pytest.approx(model.noise_law.outlier_share)
    assert model.noise_law.outlier_share == pytest.approx(model.law[-2].item())
    assert model.outlier_probability()[OUTLIERS].min() > 0.9


def test_papers_weights_are_fitted_by_leave_one_out(x):
    X, Y = make_data(n=N)
    model = SingleTaskRCGP(X, Y, weight=InverseMultiquadric(c=1.0))
    before = objective_of(model)
    (report,) = fit(model)
    after = objective_of(model)
    assert after > before
    assert report.value == pytest.approx(N * after, rel=1e-6)
    # No small step in any direction is better; the noise may be at its lower bound.
    for parameter in (*model.covar_module.parameters(), *model.mean_module.parameters()):
        for factor in (1.01, 0.99):
            with torch.no_grad():
                parameter *= factor
                assert objective_of(model) < after + 1e-5
                parameter /= factor


@pytest.mark.parametrize(
    ("weight", "batch", "m"),
    [
        ("learned", (2,), 2),
        ("imq", (2,), 1),
        ("imq", (), 2),
        slow("imq", (2,), 2),
        slow("learned", (2,), 1),
        slow("learned", (), 2),
    ],
)
@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
def test_batch_is_fitted_model_by_model(batch, m, weight):
    n = 10
    X, Y = make_data(n=n, batch=batch, m=m)
    model = SingleTaskRCGP(X, Y, weight=weight)
    reports = fit(model, max_iterations=30)
    assert len(reports) == max(1, *batch, 0) * m
    index = (1,) if batch else ()
    single = SingleTaskRCGP(X[index], Y[index][:, -1:], weight=weight)
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
    assert model.outliers().nonzero()[:, 0].tolist() == OUTLIERS


@pytest.mark.filterwarnings("ignore:A not p.d.")  # of BoTorch's fit in single precision
@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
def test_single_precision_is_close_to_double():
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
    assert model.likelihood.noise.item() == pytest.approx(0.01, rel=1e-3)  # of a function without noise


@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
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
    model = SingleTaskRCGP(*make_data(n=10, m=m), input_transform=INPUTS["warp"]((), m), weight="imq")
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
    model = SingleTaskRCGP(X, Y, covar_module=kernel, weight="imq")
    before = objective_of(model)
    assert fit(model, max_iterations=10) == []
    assert objective_of(model) > before
    assert kernel.lengthscale.shape == (1, D)


class TestOptimizers:
    def test_of_botorch_climb_the_papers_objective(self):
        model = SingleTaskRCGP(*make_data(n=12), weight="imq")
        before = objective_of(model)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        kwargs = {"optimizer_kwargs": {"step_limit": 8}}
        assert fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_torch, **kwargs) is mll
        assert not mll.training
        assert objective_of(model) > before

    @pytest.mark.parametrize(
        ("weight", "kind"), [("learned", ExactMarginalLogLikelihood), ("imq", LeaveOneOutObjective)]
    )
    def test_take_their_arguments(self, weight, kind):
        model = SingleTaskRCGP(*make_data(n=12, outliers=False), weight=weight)
        seen = {}

        def optimizer(objective, **kwargs):
            seen.update(kwargs, objective=objective, training=objective.training)

        mll = (ExactMarginalLogLikelihood if weight == "learned" else LeaveOneOutObjective)(model.likelihood, model)
        fit_gpytorch_mll(mll, optimizer=optimizer, optimizer_kwargs={"timeout_sec": 1.0})
        assert seen["objective"] is mll
        assert seen["training"]
        assert seen["timeout_sec"] == 1.0

    def test_stop_at_the_given_number_of_iterations(self):
        model, further = (SingleTaskRCGP(*make_data(n=12), weight="imq") for _ in range(2))
        for some, steps in ((model, 1), (further, 15)):
            options = {"optimizer_kwargs": {"options": {"maxiter": steps}}}
            fit_gpytorch_mll(LeaveOneOutObjective(some), **options)
        assert objective_of(model) < objective_of(further)

    @pytest.mark.parametrize("weight", ["learned", "imq", "constant"])
    def test_failing_leave_the_model_as_it_was(self, weight):
        model = SingleTaskRCGP(*make_data(n=12, outliers=False), weight=weight)
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


@pytest.mark.parametrize("weight", ["learned", "imq"])
@pytest.mark.parametrize("inputs", ["none", "warp"])  # our searches, BoTorch's optimiser
def test_failing_fit_leaves_the_model_as_it_was(weight, inputs):
    model = SingleTaskRCGP(
        *make_data(n=12), covar_module=Broken(ard_num_dims=D), weight=weight, input_transform=INPUTS[inputs]((), 1)
    )
    before = state(model)
    with pytest.raises(ModelFittingError):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert_same_state(model, before)


def test_failure_of_one_model_leaves_all_as_they_were(monkeypatch):
    model = SingleTaskRCGP(*make_data(n=8, m=2))
    before, calls = state(model), []
    original = fit.__globals__["fit_robust"]

    def second_fails(*arguments, **named):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    monkeypatch.setitem(fit.__globals__, "fit_robust", second_fails)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert len(calls) == 2
    assert_same_state(model, before)


@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
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


@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
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


def test_takes_other_methods_of_scipy_where_hyperparameters_are_shared():
    X, Y = make_data(n=12)
    model = SingleTaskRCGP(X, Y, input_transform=Warp(D, list(range(D))))
    before = state(model)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"method": "SLSQP", "options": {"ftol": 0.1}})  # a warning is an error
    assert not torch.equal(before["covar_module.raw_outputscale"], model.covar_module.raw_outputscale)
