"""A function and its partial derivatives: twins in GPyTorch and by finite differences, and what a user may give."""

from __future__ import annotations

import copy
import pickle
import warnings

import gpytorch
import numpy as np
import pytest
import torch

from problems import check_gradients, check_leave_one_out
from rcgp import RCGP, GradientRCGP, fit, fit_robust, posterior_influence
from rcgp.training.fit import fit_ordinary
from rcgp.training.objectives import marginal, weighed_evidence
from rcgp.weights import Constant, InverseMultiquadric, LawWeight

TEST_X = torch.from_numpy(np.random.default_rng(9).uniform(-2, 2, (5, 2)))
NOISE = torch.tensor([0.02, 0.05, 0.03], dtype=torch.float64)


def function(X):
    return torch.sin(X[..., 0]) * torch.cos(0.7 * X[..., 1]) + 0.3 * X[..., 1]


def make_data(n=12, noise=0.05, seed=0):
    """Inputs, values and derivatives."""
    random = np.random.default_rng(seed)
    X = torch.from_numpy(random.uniform(-2, 2, (n, 2))).requires_grad_(True)
    y = function(X)
    (dy,) = torch.autograd.grad(y.sum(), X)
    errors = torch.from_numpy(noise * random.standard_normal((n, 3)))
    return X.detach(), y.detach() + errors[:, 0], dy + errors[:, 1:]


def with_missing(y, dy, share=0.3, seed=1):
    random = np.random.default_rng(seed)
    y, dy = y.clone(), dy.clone()
    y[torch.from_numpy(random.random(y.shape) < share)] = torch.nan
    dy[torch.from_numpy(random.random(dy.shape) < share)] = torch.nan
    return y, dy


def make_kernel(base=gpytorch.kernels.RBFKernelGrad):
    kernel = gpytorch.kernels.ScaleKernel(base(ard_num_dims=2)).double()
    kernel.outputscale = torch.tensor(1.3).double()
    kernel.base_kernel.lengthscale = torch.tensor([1.2, 1.9]).double()
    return kernel


class Twin(gpytorch.models.ExactGP):
    """GPyTorch's exact GP with derivatives."""

    def __init__(self, X, Y, kernel):
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=3, has_global_noise=False).double()
        likelihood.task_noises = NOISE
        super().__init__(X, Y, likelihood)
        self.kernel = kernel

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(x.new_zeros(len(x), 3), self.kernel(x))


@pytest.mark.parametrize("base", [gpytorch.kernels.RBFKernelGrad, gpytorch.kernels.Matern52KernelGrad])
def test_constant_weights_are_gpytorchs_gp_with_derivatives(base):
    X, y, dy = make_data()
    Y = torch.cat([y.unsqueeze(-1), dy], dim=-1)
    model = GradientRCGP(X, y, dy, kernel=make_kernel(base), mean="zero", weight=Constant(), noise=NOISE)
    twin = Twin(X, Y, make_kernel(base))
    with gpytorch.settings.fast_computations(False, False, False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = gpytorch.mlls.ExactMarginalLogLikelihood(twin.likelihood, twin)(twin(X), Y) * Y.numel()
        twin.eval(), twin.likelihood.eval()
        with torch.no_grad():
            expected = twin(TEST_X)
            noisy = twin.likelihood(expected)
    torch.testing.assert_close(marginal(model), value, rtol=1e-8, atol=1e-8)
    for found, wanted in (
        (model.posterior(TEST_X), expected),
        (model.posterior(TEST_X, observation_noise=True), noisy),
    ):
        assert isinstance(found, gpytorch.distributions.MultitaskMultivariateNormal)
        torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.covariance_matrix, wanted.covariance_matrix, rtol=1e-8, atol=1e-8)
    f = model.posterior(TEST_X, outputs=[0])
    torch.testing.assert_close(f.mean[:, 0], expected.mean[:, 0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()])
@pytest.mark.parametrize("gone", [(), (0,), (1,), (0, 2)])
def test_missing_cells_equal_deleted_rows_of_the_dense_gp(weight, gone):
    """For any missing cells, including all of an output."""
    X, y, dy = make_data()
    y, dy = with_missing(y, dy)
    Y = torch.cat([y.unsqueeze(-1), dy], dim=-1)
    Y[:, list(gone)] = torch.nan
    model = GradientRCGP(X, Y[:, 0], Y[:, 1:], kernel=make_kernel(), weight=weight, noise=NOISE)
    seen = ~Y.isnan()
    assert model.observed_outputs == [t for t in range(3) if t not in gone]
    assert model.noise.shape == (3 - len(gone),)
    centre = float(Y[seen[:, 0], 0].quantile(0.5)) if 0 not in gone else 0.0
    centres = torch.tensor([centre, 0.0, 0.0]).double()
    residual = (Y - centres)[seen]
    torch.testing.assert_close(model.residual(), residual)
    w = model.weights()
    z = residual - NOISE.expand_as(Y)[seen] * model.training_terms().slope
    R = torch.diag(NOISE.expand_as(Y)[seen] / w**2)
    both = torch.cat([X, TEST_X])
    with torch.no_grad():
        K = make_kernel()(both).to_dense()
    rows = torch.cat([seen.reshape(-1), torch.zeros(15, dtype=torch.bool)])
    at = torch.cat([torch.zeros(seen.numel(), dtype=torch.bool), torch.ones(15, dtype=torch.bool)])
    A = torch.linalg.inv(K[rows][:, rows] + R)
    mean = K[at][:, rows] @ A @ z + centres.repeat(5)
    posterior = model.posterior(TEST_X)
    torch.testing.assert_close(posterior.mean.reshape(-1), mean, rtol=1e-8, atol=1e-8)
    covariance = K[at][:, at] - K[at][:, rows] @ A @ K[rows][:, at]
    torch.testing.assert_close(posterior.covariance_matrix, covariance, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(model.cells(residual), Y - centres, equal_nan=True)
    if gone:
        with pytest.raises(ValueError, match="the noise of others is not known"):
            model.posterior(TEST_X, observation_noise=True)
        model.posterior(TEST_X, observation_noise=True, outputs=model.observed_outputs)


def test_predicted_gradient_is_the_gradient_of_the_predicted_function():
    X, y, dy = make_data()
    model = GradientRCGP(X, y, dy)
    fit_robust(model)
    step = 1e-5
    for j in range(2):
        shift = torch.zeros(2).double()
        shift[j] = step
        up, down = (model.posterior(TEST_X + sign * shift, outputs=[0]).mean[:, 0] for sign in (1, -1))
        torch.testing.assert_close(
            model.posterior(TEST_X, outputs=[j + 1]).mean[:, 0], (up - down) / (2 * step), rtol=1e-6, atol=1e-7
        )
    x = TEST_X.clone().requires_grad_(True)
    posterior = model.posterior(x)
    (gradient,) = torch.autograd.grad(posterior.mean[:, 0].sum(), x)
    torch.testing.assert_close(gradient, posterior.mean[:, 1:])


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()])
def test_leaving_out_a_cell_is_a_refit_without_it(weight):
    X, y, dy = make_data()
    check_leave_one_out(GradientRCGP(X, *with_missing(y, dy), kernel=make_kernel(), weight=weight, noise=NOISE))


def test_gradients_of_the_objective():
    X, y, dy = make_data(n=5)
    model = GradientRCGP(X, *with_missing(y, dy, 0.2), kernel=make_kernel(), noise=NOISE)
    weight, slope = (torch.rand(len(model.train_y), dtype=torch.float64) + 0.5 for _ in range(2))
    check_gradients(lambda: weighed_evidence(model, weight, slope, weight), list(model.parameters()))


def test_without_derivatives_it_is_the_ordinary_model():
    X, y, dy = make_data(n=20)
    y[3] += 4.0
    model, plain = GradientRCGP(X, y, dy * torch.nan), RCGP(X, y, mean="median")
    for each in (model, plain):
        fit_robust(each)
    torch.testing.assert_close(model.posterior(TEST_X, outputs=[0]).mean[:, 0], plain.posterior(TEST_X).mean)
    assert model.posterior(TEST_X).mean.shape == (5, 3)


def test_only_the_wrong_derivative_is_down_weighted():
    X, y, dy = make_data(n=25)
    dy[7, 1] += 3.0
    y[12] -= 5.0
    model = GradientRCGP(X, y, dy)
    report = fit_robust(model)
    assert len(report.laws) == 3
    probability, w = model.cells(model.outlier_probability()), model.cells(model.weights())
    assert torch.nonzero(probability > 0.5).tolist() == [[7, 2], [12, 0]]
    assert w[7, 2] < 0.1
    assert w[12, 0] < 0.1
    assert (w[7, :2] > 0.5).all()
    assert all(isinstance(weight, LawWeight) for weight in model.output_weights())
    grid = torch.from_numpy(np.random.default_rng(3).uniform(-1.8, 1.8, (200, 2)))
    error = model.posterior(grid, outputs=[0]).mean[:, 0] - function(grid)
    clean = [X, *make_data(n=25)[1:]]
    clean[1][12] = clean[2][7, 1] = torch.nan
    other = GradientRCGP(*clean, weight=Constant())
    fit_ordinary(other)
    assert error.square().mean() < 1.1**2 * (other.posterior(grid).mean[:, 0] - function(grid)).square().mean()


@pytest.mark.parametrize("column", [0, 2])
def test_influence_of_a_cell_is_bounded(column):
    X, y, dy = make_data()
    Y = torch.cat([y.unsqueeze(-1), dy], dim=-1)
    model = GradientRCGP(X, y, dy, mean="zero")
    row = column  # of the first input
    influence = posterior_influence(model, row, torch.tensor([1e2, 1e6, 1e100, 1e300]).double())
    assert influence.isfinite().all()
    assert influence[-1] <= 1.5 * influence[1]
    Y[0, column] = 1e300
    extreme = GradientRCGP(X, Y[:, 0], Y[:, 1:])
    fit_robust(extreme)
    assert extreme.posterior(TEST_X).mean.isfinite().all()


def test_a_fit_does_not_depend_on_units():
    X, y, dy = make_data(n=20)
    dy[3, 0] += 8.0
    units, scale, shift = torch.tensor([1e3, 1e-4]).double(), 1e5, -2e4
    first, second = GradientRCGP(X, y, dy), GradientRCGP(X * units, y * scale + shift, dy * scale / units)
    for model in (first, second):
        fit_robust(model)
    expected, found = first.posterior(TEST_X), second.posterior(TEST_X * units)
    back = torch.cat([torch.ones(1).double(), 1 / units]) * scale
    offset = torch.tensor([shift, 0.0, 0.0]).double()
    torch.testing.assert_close((found.mean - offset) / back, expected.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.variance / back**2, expected.variance, rtol=2e-2, atol=1e-5)


def test_derivatives_alone_give_the_shape_of_the_function():
    X, y, dy = make_data(n=30, noise=0.01)
    model = GradientRCGP(X, y * torch.nan, dy)
    fit_robust(model)
    f = model.posterior(TEST_X, outputs=[0]).mean[:, 0]
    torch.testing.assert_close(f - f[0], function(TEST_X) - function(TEST_X[0]), rtol=0.05, atol=0.05)


def test_a_derivative_by_an_input_that_did_not_vary():
    X, y, dy = make_data(n=20, noise=0.01)
    X = X.clone()
    X[:, 1] = 40.0
    y, dy[:, 0] = torch.sin(X[:, 0]), torch.cos(X[:, 0])
    dy[:, 1] = 1e3 * torch.sin(X[:, 0])  # f = sin(x₀) (1 + 1000 (x₁ − 40))
    model = GradientRCGP(X, y, dy)
    fit_robust(model)
    x = torch.tensor([[0.5, 40.0], [0.5, 40.0001]]).double()
    expected = np.sin(0.5) * torch.tensor([1.0, 1.1]).double()
    torch.testing.assert_close(model.posterior(x, outputs=[0]).mean[:, 0], expected, rtol=0.02, atol=0.02)


def test_an_absurd_input_does_not_affect_others():
    X, y, dy = make_data()
    far = torch.cat([X, torch.tensor([[1e12, 0.0]]).double()])
    more = GradientRCGP(
        far, torch.cat([y, y[:1]]), torch.cat([dy, dy[:1]]), kernel=make_kernel(), mean="zero", noise=0.1
    )
    fewer = GradientRCGP(X, y, dy, kernel=make_kernel(), mean="zero", noise=0.1)
    for model in (more, fewer):
        model.weight = Constant()
    torch.testing.assert_close(more.posterior(TEST_X).mean, fewer.posterior(TEST_X).mean, rtol=1e-9, atol=1e-9)


def test_copies_pickles_state_dicts_and_float32():
    X, y, dy = make_data(n=15)
    y, dy = with_missing(y, dy)
    dy[:, 1] = torch.nan
    model = GradientRCGP(X, y, dy)
    fit_robust(model)
    expected = model.posterior(TEST_X).mean
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other.posterior(TEST_X).mean, expected)
    first, second = (GradientRCGP(X, y, dy, weight=Constant()) for _ in range(2))
    fit(first, "marginal", max_iterations=5)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.posterior(TEST_X).mean, first.posterior(TEST_X).mean)
    single = GradientRCGP(X.float(), y.float(), dy.float())
    fit_robust(single)
    posterior = single.posterior(TEST_X.float())
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    torch.testing.assert_close(posterior.mean.double(), expected, rtol=1e-2, atol=1e-2)


def test_lists_arrays_and_sample_weights():
    X, y, dy = make_data()
    p = torch.rand(len(y), dtype=torch.float64) + 0.5
    by_row, by_cell = (
        GradientRCGP(X.numpy(), y.tolist(), dy.numpy(), sample_weight=weights)
        for weights in (p, p.unsqueeze(-1).expand(len(y), 3))
    )
    torch.testing.assert_close(by_row.posterior(TEST_X).mean, by_cell.posterior(TEST_X).mean)
    weights = [Constant(), InverseMultiquadric(), Constant()]
    model = GradientRCGP(X, y, dy, weight=weights, noise=0.1)
    assert model.output_weights() == tuple(weights)
    assert model.noise.tolist() == pytest.approx([0.1] * 3)
    assert model.output_covariance.shape == (3, 3)


@pytest.mark.parametrize("X", [[[0.0], [1.0], [1.0]], [[2.0]]])
def test_a_fit_works_with_few_rows(X):
    X = torch.tensor(X).double()
    model = GradientRCGP(X, X[:, 0], torch.ones_like(X))
    fit_robust(model)
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"train_X": torch.zeros(4)}, ValueError, "train_X must have shape n x d"),
        ({"train_y": torch.zeros(3)}, ValueError, "one value for each of the 4 rows, got shape (3,)"),
        ({"train_y": torch.zeros(4, 1)}, ValueError, "one value for each of the 4 rows"),
        ({"train_dy": torch.zeros(4)}, ValueError, "train_dy must have the shape of train_X, (4, 2), got (4,)"),
        ({"train_X": torch.tensor([[0.0, torch.nan]] * 4)}, ValueError, "train_X contains NaN in row 0"),
        ({"train_dy": torch.tensor([[0.0, torch.inf]] * 4)}, ValueError, "train_dy contains inf in row 0, column 1"),
        (
            {"train_y": torch.full((4,), torch.nan), "train_dy": torch.full((4, 2), torch.nan)},
            ValueError,
            "nothing was",
        ),
        ({"mean": "linear"}, ValueError, "whose gradient is zero, got 'linear'"),
        ({"mean": gpytorch.means.ConstantMean()}, ValueError, "whose gradient is zero"),
        ({"kernel": "rbf"}, TypeError, "kernel must be a GPyTorch kernel"),
        ({"kernel": gpytorch.kernels.RBFKernel()}, ValueError, "kernel must have 3 outputs"),
        ({"weight": [Constant()]}, ValueError, "weight must be one, or 3"),
        ({"weight": "imq"}, TypeError, "weight must be a WeightFunction"),
        ({"noise": [0.1, 0.2]}, ValueError, "noise must be one, or 3"),
        ({"sample_weight": torch.ones(3)}, ValueError, "sample_weight must have shape (4,) or (4, 3), got (3,)"),
    ],
)
def test_bad_input_raises(change, error, message):
    X = torch.from_numpy(np.random.default_rng(0).uniform(size=(4, 2)))
    data = {"train_X": X, "train_y": torch.zeros(4), "train_dy": torch.zeros(4, 2), **change}
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        GradientRCGP(**data)


def test_invalid_outputs_raise():
    model = GradientRCGP(*make_data())
    with pytest.raises(ValueError, match="outputs must be whole numbers from 0 to 2"):
        model.posterior(TEST_X, outputs=[3])


def test_the_order_of_rows_and_inputs_does_not_matter():
    X, y, dy = make_data()
    y, dy = with_missing(y, dy)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    first, second = GradientRCGP(X, y, dy), GradientRCGP(X[rows].flip(-1), y[rows], dy[rows].flip(-1))
    expected, found = first.posterior(TEST_X).mean, second.posterior(TEST_X.flip(-1)).mean
    torch.testing.assert_close(found[:, [0, 2, 1]], expected)
    w = [model.cells(model.weights()) for model in (first, second)]
    torch.testing.assert_close(w[1][:, [0, 2, 1]], w[0][rows], equal_nan=True)


@pytest.mark.parametrize("ard", [None, 2])
def test_the_kernel_matrix_is_gpytorchs(ard):
    X, y, dy = make_data()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernelGrad(ard_num_dims=ard)).double()
    model = GradientRCGP(X, y, dy, kernel=kernel)
    K, expected = model.kernel_matrix(), kernel(X).to_dense()
    torch.testing.assert_close(K, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(K, K.mT)
    pull = torch.randn(K.shape, dtype=torch.float64)
    parameters = list(kernel.parameters())
    for found, wanted in zip(*(torch.autograd.grad(M, parameters, pull) for M in (K, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    batch = TEST_X[:4].reshape(2, 2, 2)
    pairs = torch.cat([batch, torch.tensor([[[0.0], [2.0]]]).double().expand(2, 2, 1)], dim=-1)
    with torch.no_grad():
        cross = kernel(batch, X.expand(2, 12, 2)).to_dense()[:, [0, 5]]
        torch.testing.assert_close(model.kernel(pairs, model.train_X.expand(2, 36, 3)).to_dense(), cross)


def test_data_are_replaced_where_all_outputs_were_observed():
    X, y, dy = make_data()
    model, Y = GradientRCGP(X, y, dy, kernel=make_kernel()), torch.cat([y.unsqueeze(-1), dy], dim=-1)
    model.set_cells(X[:6], Y[:6])
    torch.testing.assert_close(model.cells(model.train_y), Y[:6])
    alone = GradientRCGP(X, None, dy)
    with pytest.raises(ValueError, match=r"only outputs \[1, 2\] were observed"):
        alone.set_cells(X, y, output=[0] * len(X))  # f, which the model would take for the first derivative
