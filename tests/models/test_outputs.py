"""Several outputs: twins in dense numpy, GPyTorch and BoTorch, and what a user may give."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.operators import DiagLinearOperator

import reference
from problems import check_leave_one_out
from problems_of_outputs import NOISE, TEST_X, make_data
from rcgp import RCGP, MultiOutputRCGP, fit, fit_robust, posterior_influence
from rcgp.models.coregion import CellKernel, CoregionKernel
from rcgp.training.fit import fit_ordinary
from rcgp.training.learning import Learning
from rcgp.training.objectives import leave_one_out, marginal, weighed_evidence
from rcgp.training.search import hyperparameters_of
from rcgp.weights import ByOutput, Constant, InverseMultiquadric, LawWeight, SquaredExponential


def make_model(missing=0.3, weight=None, terms=2, n=12, outputs=3, **options):
    """A model with arbitrary hyperparameters."""
    X, Y = make_data(n, outputs, missing)
    model = MultiOutputRCGP(X, Y, weight=weight, terms=terms, noise=NOISE[:outputs], **options)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.kernel.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def kernel_of(model, X1, t1, X2, t2):
    """Σ_q B_q[t, t'] k_q(x, x') in numpy, entry by entry."""
    total = np.zeros((len(X1), len(X2)))
    for kernel, index in zip(model.kernel.kernels, model.kernel.indices, strict=True):
        lengthscale = kernel.lengthscale.detach().numpy().reshape(-1)
        W, v = index.covar_factor.detach().numpy(), index.var.detach().numpy()
        B = W @ W.T + np.diag(v)
        total += reference.se_kernel(X1, X2, lengthscale, 1.0) * B[np.ix_(t1, t2)]
    return total


def long_format(model):
    return model.train_X[:, :-1].numpy(), model.train_X[:, -1].long().numpy()


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric(), SquaredExponential(epsilon=0.2)])
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
def test_the_posterior_is_proposition_3_1_over_cells(weight, missing):
    model = make_model(missing, weight)
    X, t = long_format(model)
    q = len(TEST_X)
    at_X, at_t = np.repeat(TEST_X.numpy(), 3, axis=0), np.tile(np.arange(3), q)
    K, K_star, K_all = (
        kernel_of(model, *pair) for pair in ((X, t, X, t), (X, t, at_X, at_t), (at_X, at_t, at_X, at_t))
    )
    noise = NOISE.numpy()[t]
    e = model.residual().detach().numpy()
    w, slope = np.ones_like(e), np.zeros_like(e)
    for output in range(3):
        rows = t == output
        if not isinstance(weight, Constant):
            rule = reference.imq if isinstance(weight, InverseMultiquadric) else reference.se
            c = reference.quantile_c(e[rows], weight.epsilon)
            own = NOISE.numpy()[output]
            w[rows], slope[rows] = rule(e[rows], c, own)
            w[rows] /= np.sqrt(own / 2)
    A = np.linalg.inv(K + np.diag(noise / w**2))
    mean = K_star.T @ A @ (e - noise * slope) + np.tile([float(part.coefficients) for part in model.mean.means], q)
    cov = K_all - K_star.T @ A @ K_star
    posterior = model.posterior(TEST_X)
    assert isinstance(posterior, gpytorch.distributions.MultitaskMultivariateNormal)
    np.testing.assert_allclose(posterior.mean, mean.reshape(q, 3), atol=1e-9)
    np.testing.assert_allclose(posterior.covariance_matrix, cov, atol=1e-9)
    np.testing.assert_allclose(posterior.variance, np.diag(cov).reshape(q, 3), atol=1e-9)
    np.testing.assert_allclose(model.weights(), w, atol=1e-12)
    noisy = model.posterior(TEST_X, observation_noise=True)
    np.testing.assert_allclose(noisy.variance, (np.diag(cov) + NOISE.numpy()[at_t]).reshape(q, 3), atol=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 6), outputs=st.integers(1, 7))
def test_any_pattern_of_cells_is_the_gp_of_the_observed_ones(seed, n, outputs):
    """Also outputs of one cell, rows without any, repeated rows, and more outputs than rows."""
    random = np.random.default_rng(seed)
    X, Y = random.integers(-2, 3, (n, 2)).astype(float), random.standard_normal((n, outputs))
    observed = random.random(Y.shape) < random.random()
    observed[random.integers(n, size=outputs), np.arange(outputs)] = True
    noise = random.uniform(0.1, 0.5, outputs)
    options = {"kernel": gpytorch.kernels.RBFKernel(), "mean": "zero", "weight": Constant(), "noise": noise.tolist()}
    model = MultiOutputRCGP(X, np.where(observed, Y, np.nan), **options)
    row, t = observed.nonzero()
    q = len(TEST_X)
    at_X, at_t = np.repeat(TEST_X.numpy(), outputs, axis=0), np.tile(np.arange(outputs), q)
    K = kernel_of(model, X[row], t, X[row], t) + np.diag(noise[t])
    K_star = kernel_of(model, X[row], t, at_X, at_t)
    cov = kernel_of(model, at_X, at_t, at_X, at_t) - K_star.T @ np.linalg.solve(K, K_star)
    posterior = model.posterior(TEST_X)
    mean = (K_star.T @ np.linalg.solve(K, Y[observed])).reshape(q, outputs)
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(posterior.covariance_matrix, cov, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()])
def test_leaving_out_a_cell_is_a_refit_without_it(weight):
    check_leave_one_out(make_model(0.4, weight))


def test_constant_weights_are_gpytorchs_multitask_gp():
    X, Y = make_data(missing=0.0)

    class Twin(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(X, Y, likelihood)
            self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=3)
            self.covar_module = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=3, rank=2)

        def forward(self, x):
            return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=3, has_global_noise=False).double()
    twin = Twin(likelihood).double()
    likelihood.task_noises = NOISE
    for mean, value in zip(twin.mean_module.base_means, (0.3, 1.0, 2.0), strict=True):
        mean.initialize(constant=torch.tensor(value).double())
    kernels = {
        "coregionalised": (gpytorch.kernels.RBFKernel(), {"rank": 2}),
        "gpytorch's own": (copy.deepcopy(twin.covar_module), {}),
    }
    for kernel, options in kernels.values():
        means = [gpytorch.means.ConstantMean().double() for _ in range(3)]
        for mean, value in zip(means, (0.3, 1.0, 2.0), strict=True):
            mean.initialize(constant=torch.tensor(value).double())
        model = MultiOutputRCGP(X, Y, kernel=kernel, weight=Constant(), noise=NOISE, mean=means, **options)
        if isinstance(model.kernel, CoregionKernel):
            (own,) = model.kernel.kernels
            (index,) = model.kernel.indices
            own.lengthscale = twin.covar_module.data_covar_module.lengthscale.detach()
            with torch.no_grad():
                index.covar_factor.copy_(twin.covar_module.task_covar_module.covar_factor)
                index.var = twin.covar_module.task_covar_module.var.detach()
        twin.train(), likelihood.train()
        with gpytorch.settings.fast_computations(False, False, False):
            value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, twin)(twin(X), Y) * Y.numel()
            twin.eval(), likelihood.eval()
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                expected = twin(TEST_X)
                noisy = likelihood(expected)
        torch.testing.assert_close(marginal(model), value, rtol=1e-8, atol=1e-8)
        found = model.posterior(TEST_X)
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix, rtol=1e-8, atol=1e-8)
        found = model.posterior(TEST_X, observation_noise=True)
        torch.testing.assert_close(found.covariance_matrix, noisy.covariance_matrix, rtol=1e-8, atol=1e-8)


def test_one_output_is_the_ordinary_model():
    X, Y = make_data(missing=0.0)
    y = Y[:, 0].clone()
    y[3] = 40.0
    single = RCGP(X, y, mean="median")
    model = MultiOutputRCGP(X, y.unsqueeze(-1))
    torch.testing.assert_close(model.posterior(TEST_X).mean.squeeze(-1), single.posterior(TEST_X).mean)
    torch.testing.assert_close(model.posterior(TEST_X).covariance_matrix, single.posterior(TEST_X).covariance_matrix)
    torch.testing.assert_close(leave_one_out(model), leave_one_out(single))
    first, second = fit_robust(model), fit_robust(single)
    assert first.evidence == pytest.approx(second.evidence, abs=1e-3)
    torch.testing.assert_close(model.outlier_probability(), single.outlier_probability(), rtol=0, atol=1e-3)
    mean = single.posterior(TEST_X).mean
    torch.testing.assert_close(model.posterior(TEST_X).mean.squeeze(-1), mean, rtol=1e-3, atol=1e-3)


def test_uncorrelated_outputs_are_independent_models():
    X, Y = make_data(missing=0.3)
    Y[2, 0] = 30.0
    model = MultiOutputRCGP(X, Y, rank=0, noise=NOISE)
    (kernel,), (index,) = model.kernel.kernels, model.kernel.indices
    singles = []
    for output in range(3):
        observed = ~Y[:, output].isnan()
        single = RCGP(X[observed], Y[observed, output], mean="median", noise=float(NOISE[output]))
        single.kernel.base_kernel.lengthscale = kernel.lengthscale.detach()
        single.kernel.outputscale = index.var.detach()[output]
        singles.append(single)
        found = model.posterior(TEST_X, outputs=[output])
        torch.testing.assert_close(found.mean.squeeze(-1), single.posterior(TEST_X).mean)
        torch.testing.assert_close(found.covariance_matrix, single.posterior(TEST_X).covariance_matrix)
        torch.testing.assert_close(model.weights()[model.output_rows()[output]], single.weights())
    torch.testing.assert_close(leave_one_out(model), sum(leave_one_out(single) for single in singles))
    torch.testing.assert_close(model.output_correlation, torch.eye(3, dtype=torch.float64))


def test_gradients_of_the_objectives():
    model = make_model(0.4, n=6)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    n = len(model.train_y)
    random = torch.Generator().manual_seed(0)
    weight, slope, good = (torch.rand(n, generator=random, dtype=torch.float64) for _ in range(3))

    def value(objective, *values):
        with torch.no_grad():
            for parameter, new in zip(parameters, values, strict=True):
                parameter.copy_(new)
        return objective(model)

    for objective in (leave_one_out, lambda m: weighed_evidence(m, weight, slope, good)):
        found = torch.autograd.grad(value(objective, *before), parameters, allow_unused=True, materialize_grads=True)
        for i, (parameter, gradient) in enumerate(zip(before, found, strict=True)):
            for place in range(parameter.numel()):
                step = torch.zeros_like(parameter).reshape(-1)
                step[place] = 1e-6
                moved = [
                    [part + sign * step.reshape(part.shape) if j == i else part for j, part in enumerate(before)]
                    for sign in (1.0, -1.0)
                ]
                with torch.no_grad():
                    difference = (value(objective, *moved[0]) - value(objective, *moved[1])) / 2e-6
                assert float(gradient.reshape(-1)[place]) == pytest.approx(float(difference), rel=2e-5, abs=1e-6)


def test_the_long_format_is_the_wide_one():
    X, Y = make_data(missing=0.4)
    wide = MultiOutputRCGP(X, Y)
    row, output = (~Y.isnan()).nonzero().T
    order = torch.randperm(len(row), generator=torch.Generator().manual_seed(0))
    row, output = row[order], output[order]
    long = MultiOutputRCGP(X[row], Y[row, output], output=output, kernel=copy.deepcopy(list(wide.kernel.kernels)))
    long.kernel.load_state_dict(wide.kernel.state_dict())
    torch.testing.assert_close(long.posterior(TEST_X).mean, wide.posterior(TEST_X).mean)
    torch.testing.assert_close(long.cells(long.weights()), wide.cells(wide.weights())[row, output])
    cells = wide.posterior_of_cells(TEST_X, [0, 2, 1, 1, 0])
    torch.testing.assert_close(cells.mean, wide.posterior(TEST_X).mean[range(5), [0, 2, 1, 1, 0]])


def test_only_the_bad_cell_is_down_weighted():
    X, Y = make_data(n=40, missing=0.2)
    clean = MultiOutputRCGP(X, Y)
    before = clean.cells(clean.weights())
    row = int((~Y.isnan()).all(dim=1).nonzero()[0])
    Y[row, 1] = 1e6
    model = MultiOutputRCGP(X, Y)
    after = model.cells(model.weights())
    assert after[row, 1] < 1e-3
    torch.testing.assert_close(after[:, [0, 2]], before[:, [0, 2]], equal_nan=True)


@pytest.mark.parametrize("value", [1e3, 1e100, 1e300])
def test_the_influence_of_a_cell_is_bounded(value):
    model = make_model(0.3)
    largest = posterior_influence(model, 4, [1e3, -1e3])
    found = posterior_influence(model, 4, [value, -value, torch.inf])
    assert found.isfinite().all()
    assert found.max() < 10.0 * largest.max() + 10.0
    X, Y = make_data(n=30, missing=0.2)
    row, output = (int(part[5]) for part in (~Y.isnan()).nonzero().T)
    Y[row, output] = torch.nan
    without = MultiOutputRCGP(X, Y, rank=2)
    Y[row, output] = value
    robust = MultiOutputRCGP(X, Y, rank=2)
    for model in (without, robust):
        fit_robust(model)
    assert robust.cells(robust.outlier_probability())[row, output] > 0.99
    expected, spread = without.posterior(TEST_X).mean, without.posterior(TEST_X).stddev
    assert ((robust.posterior(TEST_X).mean - expected).abs() < 2.0 * spread + 0.05).all()


def test_robust_fit_flags_cells_and_uses_other_outputs():
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 10, 60))
    f = np.sin(x)[:, None] * np.array([1.0, -2.0, 0.5])
    Y = f + 0.05 * random.standard_normal(f.shape)
    bad = random.random(f.shape) < 0.1
    Y[bad] += random.choice([-1, 1], bad.sum()) * random.uniform(1, 5, bad.sum())
    Y[20:40, 2] = np.nan  # which the other outputs tell
    model = MultiOutputRCGP(torch.tensor(x)[:, None], torch.tensor(Y))
    report = fit_robust(model)
    assert len(report.laws) == 3
    assert "output 2: The noise of good rows" in str(report)
    flagged = (model.cells(model.outlier_probability()) > 0.5).numpy()
    assert (flagged == (bad & ~np.isnan(Y)))[np.abs(Y - f) > 0.5].all()
    assert (flagged & ~bad).sum() <= 2
    posterior = model.posterior(model.train_X[:1, :-1].new_tensor(x)[:, None])
    assert (posterior.mean.numpy() - f)[20:40, 2] == pytest.approx(np.zeros(20), abs=0.1)
    correlation = model.output_correlation
    assert correlation[0, 1] < -0.95
    assert correlation[0, 2] > 0.9
    assert all(isinstance(weight, LawWeight) for weight in model.output_weights())


def test_clean_data_give_the_ordinary_model():
    X, Y = make_data(n=40, missing=0.2, seed=3)
    model, plain = MultiOutputRCGP(X, Y), MultiOutputRCGP(X, Y, weight=Constant())
    report = fit_robust(model)
    assert report.is_normal
    fit_ordinary(plain)
    torch.testing.assert_close(model.posterior(TEST_X).mean, plain.posterior(TEST_X).mean, rtol=1e-10, atol=1e-10)
    assert (model.weights() == 1.0).all()


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_the_order_of_rows_and_outputs_does_not_matter(seed):
    X, Y = make_data(missing=0.3)
    generator = torch.Generator().manual_seed(seed)
    rows, outputs = torch.randperm(len(Y), generator=generator), torch.randperm(3, generator=generator)
    first, second = MultiOutputRCGP(X, Y), MultiOutputRCGP(X[rows], Y[rows][:, outputs])
    torch.testing.assert_close(first.posterior(TEST_X).mean[:, outputs], second.posterior(TEST_X).mean)
    torch.testing.assert_close(
        first.cells(first.weights())[rows][:, outputs], second.cells(second.weights()), equal_nan=True
    )


def test_a_fit_does_not_depend_on_the_order_of_rows_and_outputs():
    X, Y = make_data(n=25, missing=0.2)
    Y[3, 0] += 8.0
    rows, outputs = torch.randperm(25, generator=torch.Generator().manual_seed(1)), [2, 0, 1]
    first, second = MultiOutputRCGP(X, Y), MultiOutputRCGP(X[rows], Y[rows][:, outputs])
    for model in (first, second):
        fit_robust(model)
    torch.testing.assert_close(
        first.posterior(TEST_X).mean[:, outputs], second.posterior(TEST_X).mean, rtol=1e-3, atol=1e-3
    )
    flags = [model.cells(model.outlier_probability()) for model in (first, second)]
    torch.testing.assert_close(flags[0][rows][:, outputs], flags[1], rtol=1e-3, atol=1e-3, equal_nan=True)


def test_a_fit_does_not_depend_on_the_units_of_each_output():
    X, Y = make_data(n=25, missing=0.2)
    Y[3, 0] += 8.0
    unit, shift = torch.tensor([1e-6, 1.0, 1e5]).double(), torch.tensor([2.0, 0.0, -1e5]).double()
    first, second = MultiOutputRCGP(X, Y), MultiOutputRCGP(X * 1e3, Y * unit + shift)
    for model in (first, second):
        fit_robust(model)
    expected, found = first.posterior(TEST_X), second.posterior(TEST_X * 1e3)
    torch.testing.assert_close(found.mean, expected.mean * unit + shift, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance / unit**2, expected.variance, rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize(
    "Y",
    [
        [[1.0, 2.0], [torch.nan, 1.0], [torch.nan, 0.5]],  # an output of one cell
        [[1.0], [2.0], [0.5]],  # T = 1
        [[1.0, 2.0, 0.3, 4.0], [2.0, torch.nan, 0.1, 0.2], [0.3, 0.2, 0.1, torch.nan]],  # T > n
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],  # constant
    ],
)
def test_a_fit_works_with_few_cells(Y):
    X = torch.tensor([[0.0], [1.0], [1.0]]).double()  # the last two rows are the same place
    model = MultiOutputRCGP(X, torch.tensor(Y).double())
    fit_robust(model)
    posterior = model.posterior(X)
    assert posterior.mean.isfinite().all()
    assert posterior.variance.isfinite().all()


def test_sample_weights_of_rows_and_cells():
    X, Y = make_data(missing=0.3)
    p = torch.rand(len(Y), dtype=torch.float64) + 0.5
    by_row, by_cell = (
        MultiOutputRCGP(X, Y, sample_weight=weights) for weights in (p, p.unsqueeze(-1).expand(len(Y), 3))
    )
    torch.testing.assert_close(by_row.posterior(TEST_X).mean, by_cell.posterior(TEST_X).mean)
    plain, tripled = MultiOutputRCGP(X, Y, noise=NOISE), MultiOutputRCGP(X, Y, noise=3 * NOISE, sample_weight=p * 0 + 3)
    torch.testing.assert_close(plain.posterior(TEST_X).mean, tripled.posterior(TEST_X).mean)


def test_copies_pickles_and_float32():
    X, Y = make_data(missing=0.3)
    model = MultiOutputRCGP(X, Y)
    fit_robust(model)
    expected = model.posterior(TEST_X).mean
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other.posterior(TEST_X).mean, expected)
    single = MultiOutputRCGP(X.float(), Y.float())
    assert single.posterior(TEST_X.float()).mean.dtype == torch.float32


def test_posteriors_of_batches_and_their_gradient():
    model = make_model(0.3)
    x = TEST_X.reshape(1, 5, 2).repeat(2, 1, 1).requires_grad_(True)
    posterior = model.posterior(x)
    assert posterior.mean.shape == (2, 5, 3)
    assert posterior.rsample(torch.Size([4])).shape == (4, 2, 5, 3)
    assert posterior.log_prob(posterior.mean).shape == (2,)
    (gradient,) = torch.autograd.grad(posterior.mean.sum() + posterior.variance.sum(), x)
    assert gradient.abs().sum() > 0
    expected = model.posterior(TEST_X)
    torch.testing.assert_close(posterior.mean[1], expected.mean)
    value = torch.randn(5, 3, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(expected.mean.reshape(-1), expected.covariance_matrix)
    torch.testing.assert_close(expected.log_prob(value), normal.log_prob(value.reshape(-1)))


@pytest.mark.parametrize("options", [{"terms": 2}, {"kernel": gpytorch.kernels.MaternKernel(nu=2.5)}, {"rank": 1}])
def test_other_kernels_are_fitted(options):
    X, Y = make_data(n=20)
    Y[2, 0] = 30.0
    model = MultiOutputRCGP(X, Y, **options)
    fit_robust(model)
    assert model.cells(model.outlier_probability())[2, 0] > 0.5


def test_a_kernel_of_gpytorch_with_several_outputs():
    X, Y = make_data(n=20)
    kernel = gpytorch.kernels.LCMKernel([gpytorch.kernels.RBFKernel(), gpytorch.kernels.MaternKernel()], 3, rank=1)
    model = MultiOutputRCGP(X, Y, kernel=kernel)
    assert isinstance(model.kernel, CellKernel)
    dense = kernel(X).to_dense()
    expected = dense[~Y.isnan().reshape(-1)][:, ~Y.isnan().reshape(-1)]
    torch.testing.assert_close(model.kernel_matrix(), expected)
    torch.testing.assert_close(model.kernel(model.train_X).to_dense(), expected)
    torch.testing.assert_close(model.kernel(model.train_X, diag=True), expected.diagonal())
    fit(model, max_iterations=3)


def test_start_rows_have_a_cell_of_each_output():
    random = np.random.default_rng(0)
    X = torch.from_numpy(random.uniform(0, 1, (1000, 2)))
    Y = torch.from_numpy(random.standard_normal((1000, 2)))
    Y[1:, 1] = torch.nan
    model = MultiOutputRCGP(X, Y)
    rows = model.start_rows()
    assert len(rows) == pytest.approx(500, abs=2)
    assert set(model.train_X[rows, -1].tolist()) == {0.0, 1.0}
    assert MultiOutputRCGP(X[:100], Y[:100]).start_rows() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_Y": torch.full((4, 2), torch.nan)}, "train_Y has no observed cell: all 8 are missing"),
        ({"train_Y": torch.tensor([[1.0, torch.nan]] * 4)}, "output 1 has no observed cell"),
        ({"train_Y": torch.tensor([[1.0, torch.inf]] * 4)}, "train_Y contains inf in row 0, column 1"),
        ({"train_Y": torch.zeros(4)}, "give their numbers as output=..."),
        ({"train_Y": torch.zeros(3, 2)}, "must have the same number of rows, got 4 and 3"),
        ({"train_X": torch.tensor([[0.0], [1.0], [torch.nan], [2.0]])}, "train_X contains NaN in row 2"),
        ({"train_X": torch.zeros(4)}, "train_X must have shape n x d"),
        ({"train_Y": torch.zeros(4), "output": [0, 1, 3, 0]}, "output 2 has no observed cell"),
        ({"train_Y": torch.zeros(4), "output": [0, 1, -1, 0]}, "output must be whole numbers from 0 on, got -1 in row"),
        ({"train_Y": torch.zeros(4), "output": [0, 1, 0.5, 0]}, "got 0.5 in row 2"),
        ({"train_Y": torch.zeros(4), "output": [0, 1]}, "output must have one number for each of the 4 rows"),
        ({"rank": 3}, "rank must be a whole number from 0 to 2, the number of outputs, got 3"),
        ({"terms": 0}, "terms must be a whole number, at least 1, got 0"),
        ({"kernel": [gpytorch.kernels.RBFKernel()], "terms": 2}, "terms must be 1, the number of kernels, got 2"),
        ({"mean": ["median"]}, "mean must be one for all outputs or one for each of the 2, got 1"),
        ({"sample_weight": torch.ones(3)}, "sample_weight must have shape"),
        (
            {"kernel": gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=3)},
            "the kernel has 3 outputs, train_Y has 2",
        ),
    ],
)
def test_bad_input_raises(change, message):
    random = np.random.default_rng(0)
    given_data = {"train_X": torch.from_numpy(random.uniform(size=(4, 1))), "train_Y": torch.zeros(4, 2), **change}
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("...", r"\.\.\.")):
        MultiOutputRCGP(**given_data)


def test_other_bad_input_raises():
    X, Y = make_data()
    with pytest.raises(TypeError, match="kernel must be a GPyTorch kernel or a list of them"):
        MultiOutputRCGP(X, Y, kernel="rbf")
    with pytest.raises(TypeError, match="one number, or 3: one for each output"):
        MultiOutputRCGP(X, Y, noise=[0.1, 0.2])
    with pytest.raises(TypeError, match="weight must be a WeightFunction"):
        MultiOutputRCGP(X, Y, weight="imq")
    model = MultiOutputRCGP(X, Y)
    with pytest.raises(ValueError, match="outputs must be whole numbers from 0 to 2"):
        model.posterior(TEST_X, outputs=[3])
    with pytest.raises(ValueError, match="output must be one number, or one for each of the 5 inputs, got 2"):
        model.posterior_of_cells(TEST_X, [0, 1])
    with pytest.raises(ValueError, match="values must have shape"):
        model.cells(torch.zeros(2))
    for method in (lambda: model.weight.frozen(model.residual()), lambda: model.weight.of_row(0)):
        with pytest.raises(TypeError, match="the rows of each output are not known"):
            method()
    with pytest.raises(TypeError, match="ByOutput takes one or more"):
        ByOutput()


def test_diagonals_of_the_kernel():
    model = make_model(0.3)
    assert isinstance(model.kernel(model.train_X), object)
    K = model.kernel_matrix()
    torch.testing.assert_close(model.kernel(model.train_X).to_dense(), K)
    torch.testing.assert_close(model.kernel(model.train_X, diag=True), K.diagonal())
    assert not isinstance(K, DiagLinearOperator)


def test_covariances_of_tasks_are_looked_up_as_gpytorch_computes_them():
    from rcgp.models.kernel_matrix import dense_kernel

    torch.manual_seed(0)
    index = gpytorch.kernels.IndexKernel(3, 2, active_dims=[1]).double()
    kernel = gpytorch.kernels.RBFKernel(active_dims=[0]).double() * index
    x = torch.stack([torch.rand(7, dtype=torch.float64), torch.arange(7) % 3], dim=-1)
    for x1, x2 in ((x, x), (x[:4], x), (x.expand(2, 7, 2), x[:3])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GPyTorch's sparse matrices
            expected = kernel(x1, x2).to_dense()
        torch.testing.assert_close(dense_kernel(kernel, x1, x2), expected, rtol=1e-12, atol=1e-12)


def test_new_data_are_checked_before_they_replace_the_old():
    model = make_model(0.3)
    X, Y = make_data(n=7, missing=0.2)
    before = model.train_X
    for data, message in (
        ((X, Y[:, :2]), "train_Y must have 3 outputs, got 2"),
        ((X, Y, torch.ones(4)), "sample_weight must have shape"),
        ((X, Y, -torch.ones(7)), "sample_weight must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            model.set_cells(*data)
        assert model.train_X is before
    model.set_cells(X, Y)
    assert model.observed.shape == Y.shape
    wide = model.posterior(TEST_X).mean
    assert wide.isfinite().all()
    row, output = (~Y.isnan()).nonzero().T
    model.set_cells(X[row], Y[row, output], output=output)
    torch.testing.assert_close(model.posterior(TEST_X).mean, wide)


def test_inputs_changed_in_place_are_noticed():
    model = make_model(0.3)
    before = model.kernel_matrix().detach()
    model.train_X[:, 0] *= 3.0
    assert not torch.allclose(model.kernel_matrix(), before)
    torch.testing.assert_close(model.kernel_matrix(), copy.deepcopy(model).kernel_matrix())


def test_trained_means_have_the_units_of_their_outputs():
    X, Y = make_data(n=25, missing=0.0)
    unit = torch.tensor([1e-8, 1.0, 1e8]).double()
    means = []
    for scale in (torch.ones(3).double(), unit):
        model = MultiOutputRCGP(X, Y * scale, mean=gpytorch.means.ConstantMean().double(), weight=Constant(), rank=0)
        fit(model, "marginal")
        means.append(torch.stack([mean.constant.detach() for mean in model.mean.means]))
    torch.testing.assert_close(means[1] / unit, means[0], rtol=1e-2, atol=1e-2)


def test_noise_law_raises_for_several_outputs():
    model = make_model(0.3)
    with pytest.raises(TypeError, match="use noise_laws"):
        model.noise_law  # noqa: B018
    with pytest.raises(ValueError, match="noise of output 1 must be above"):
        model.noise = torch.tensor([0.1, 1e-30, 0.1], dtype=torch.float64)
    assert model.posterior(TEST_X, outputs=1).mean.shape == (5, 1)


def test_one_weight_given_twice_is_copied():
    X, Y = make_data()
    weight = InverseMultiquadric()
    model = MultiOutputRCGP(X, Y, weight=[weight, weight, weight])
    assert len({id(part) for part in model.output_weights()}) == 3


def test_an_output_at_the_limit_of_its_noise_lets_the_others_have_local_noise():
    """The search may end at the limit itself, which no caller may set."""
    random = np.random.default_rng(0)
    X = torch.linspace(0.0, 6.0, 40, dtype=torch.float64).unsqueeze(-1)
    noise = torch.stack([torch.zeros(40), 0.1 * X[:, 0]], dim=-1) * torch.from_numpy(random.standard_normal((40, 2)))
    model = MultiOutputRCGP(X, torch.cat([X.sin(), X.cos()], dim=-1) + noise)
    learning = Learning(model, 20, True, lambda *_: None)
    with torch.no_grad():
        constraint = model.raw_noise_constraint
        model.raw_noise[0] = constraint.inverse_transform(constraint.lower_bound).expand(2)[0]
        learning.state = replace(learning.state, parameters=hyperparameters_of(model))
        state = learning.finish(learning._expect("start", learn=False))
    assert math.isfinite(state.evidence)
