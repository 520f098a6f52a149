"""Averages as data: twins in dense numpy, one point for each row, quadrature, and what a user may give."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from scipy.special import erf

import reference
from problems import check_gradients, check_leave_one_out
from rcgp import RCGP, AverageRCGP, fit, fit_robust, posterior_influence
from rcgp.models.linear_map import FunctionalKernel, LinearMap
from rcgp.training.objectives import weighed_evidence
from rcgp.weights import Constant, InverseMultiquadric, LawWeight

POINTS = torch.from_numpy(np.random.default_rng(2).uniform(-2, 2, (15, 2)))
TEST_X = torch.from_numpy(np.random.default_rng(9).uniform(-2, 2, (5, 2)))
LENGTHSCALE, SCALE, NOISE = np.array([1.1, 0.8]), 1.7, 0.05


def make_kernel():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
    kernel.outputscale = torch.tensor(SCALE).double()
    kernel.base_kernel.lengthscale = torch.from_numpy(LENGTHSCALE)
    return kernel


def make_data(J=12, seed=0):
    """Sums of various kinds over the points, with some noise."""
    random = np.random.default_rng(seed)
    A = random.normal(size=(J, len(POINTS))) * (random.random((J, len(POINTS))) < 0.4)
    A[:, 0] += 0.5
    y = A @ np.sin(POINTS.numpy()).sum(axis=-1) + 0.1 * random.standard_normal(J)
    return torch.from_numpy(A), torch.from_numpy(y)


def make_model(weight=None, mean="zero", **options):
    A, y = make_data()
    return AverageRCGP(A, POINTS, y, kernel=make_kernel(), noise=NOISE, weight=weight, mean=mean, **options)


def k(X1, X2):
    return reference.se_kernel(np.asarray(X1), np.asarray(X2), LENGTHSCALE, SCALE)


def intervals(J=60, seed=0, errors=True):
    """Averages of sin x + ½ cos 2x over intervals, with a few outliers."""
    random = np.random.default_rng(seed)
    low = np.sort(random.uniform(0, 10, J))
    high = low + random.uniform(0.05, 1.5, J)
    y = ((-np.cos(high) + np.sin(2 * high) / 4) - (-np.cos(low) + np.sin(2 * low) / 4)) / (high - low)
    y += 0.05 * random.standard_normal(J)
    bad = (random.random(J) < 0.1) & errors
    return low, high, np.where(bad, y + random.choice([-1, 1], J) * random.uniform(1, 4, J), y), bad


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()])
@pytest.mark.parametrize("mean", ["zero", "median", lambda x: 1.0 + x[..., 0] * x[..., 1]])
def test_the_posterior_is_proposition_3_1_behind_a_linear_map(weight, mean):
    model = make_model(weight, mean)
    A, y = (part.numpy() for part in make_data())
    if mean == "zero":
        prior = np.zeros_like
    elif mean == "median":
        prior = lambda x: np.full(len(x), np.median(y / A.sum(axis=1)))  # noqa: E731
    else:
        prior = lambda x: 1.0 + x[:, 0] * x[:, 1]  # noqa: E731
    at_points, at_test = (prior(x.numpy()).reshape(len(x), -1)[:, 0] for x in (POINTS, TEST_X))
    e = y - A @ at_points
    w, slope = np.ones_like(e), np.zeros_like(e)
    if not isinstance(weight, Constant):
        w, slope = reference.imq(e, reference.quantile_c(e, weight.epsilon), NOISE)
        w /= np.sqrt(NOISE / 2)
    gram = np.linalg.inv(A @ k(POINTS, POINTS) @ A.T + np.diag(NOISE / w**2))
    cross = k(TEST_X, POINTS) @ A.T
    expected = at_test + cross @ gram @ (e - NOISE * slope)
    covariance = k(TEST_X, TEST_X) - cross @ gram @ cross.T
    posterior = model.posterior(TEST_X)
    np.testing.assert_allclose(model.weights(), w, atol=1e-12)
    np.testing.assert_allclose(posterior.mean, expected, atol=1e-9)
    np.testing.assert_allclose(posterior.covariance_matrix, covariance, atol=1e-9)
    np.testing.assert_allclose(posterior.variance, np.diag(covariance), atol=1e-9)
    # sums: those of the data, and new ones of other points
    B = np.random.default_rng(5).normal(size=(3, 5))
    joint = model.posterior(torch.cat([TEST_X, POINTS]))
    for found, rows in (
        (model.posterior_of_averages(B, TEST_X), np.hstack([B, np.zeros((3, 15))])),
        (model.posterior_of_averages(), np.hstack([np.zeros((12, 5)), A])),
        (model.posterior_of_averages(A, POINTS), np.hstack([np.zeros((12, 5)), A])),
    ):
        np.testing.assert_allclose(found.mean, rows @ joint.mean.numpy(), atol=1e-9)
        wanted = rows @ joint.covariance_matrix.numpy() @ rows.T
        np.testing.assert_allclose(found.covariance_matrix, wanted, atol=1e-9)
        np.testing.assert_allclose(found.variance, np.diag(wanted), atol=1e-9)


def test_sums_of_one_point_each_are_the_ordinary_model():
    random = np.random.default_rng(1)
    order = torch.from_numpy(random.permutation(15))
    y = POINTS[order].sin().sum(dim=-1) + 0.05 * torch.from_numpy(random.standard_normal(15))
    y[4] += 6.0
    model = AverageRCGP(torch.eye(15).double()[order], POINTS, y)
    plain = RCGP(POINTS[order], y, mean="median")
    torch.testing.assert_close(model.kernel_matrix(), plain.kernel_matrix(), rtol=1e-12, atol=1e-12)
    for each in (model, plain):
        fit_robust(each)
    torch.testing.assert_close(model.posterior(TEST_X).mean, plain.posterior(TEST_X).mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.outlier_probability(), plain.outlier_probability(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weight", [Constant(), InverseMultiquadric()])
def test_leaving_out_an_average_is_a_refit_without_it(weight):
    check_leave_one_out(make_model(weight))


@pytest.mark.parametrize("share", [0.3, 0.0])
def test_gradients_of_the_objective(share):
    """For dense and sparse maps."""
    random = np.random.default_rng(0)
    A = torch.from_numpy(random.normal(size=(60, 90)) * (random.random((60, 90)) < share))
    A[torch.arange(60), torch.arange(60)] = 1.0
    points = torch.from_numpy(random.uniform(-2, 2, (90, 2)))
    model = AverageRCGP(A, points, A.sum(dim=-1), kernel=make_kernel(), mean=gpytorch.means.ConstantMean(), noise=NOISE)
    matrix, _ = model.kernel.sums.of_rows(torch.arange(60))
    assert matrix.is_sparse == (share < 0.01)
    weight, slope = (torch.from_numpy(random.random(60)) + 0.5 for _ in range(2))
    check_gradients(lambda: weighed_evidence(model, weight, slope, weight), list(model.parameters()))


def test_kernel_of_sums_and_points_in_any_order():
    A, _ = make_data()
    kernel = FunctionalKernel(make_kernel(), make_model().kernel.sums)
    rows = torch.cat([kernel.sums.inputs(), torch.cat([-torch.ones(5, 1).double(), TEST_X], dim=-1)])
    rows = rows[torch.randperm(17, generator=torch.Generator().manual_seed(0))]
    both = np.zeros((17, 20))
    for i, row in enumerate(rows):
        if row[0] < 0:
            both[i, 15 + int((row[1:] == TEST_X).all(dim=-1).nonzero())] = 1.0
        else:
            both[i, :15] = A[int(row[0])]
    everything = torch.cat([POINTS, TEST_X])
    expected = both @ k(everything, everything) @ both.T
    with torch.no_grad():
        np.testing.assert_allclose(kernel(rows).to_dense(), expected, atol=1e-12)
        np.testing.assert_allclose(kernel(rows, diag=True), np.diag(expected), atol=1e-12)
        np.testing.assert_allclose(kernel(rows[:4], rows[4:]).to_dense(), expected[:4, 4:], atol=1e-12)
        np.testing.assert_allclose(kernel(rows[:4], rows[4:8], diag=True), np.diag(expected[:4, 4:8]), atol=1e-12)
        batch = kernel(rows[:12].reshape(3, 4, 3), rows[5:]).to_dense()
        np.testing.assert_allclose(batch.reshape(12, 12), expected[:12, 5:], atol=1e-12)


def test_equal_points_become_one():
    A, y = make_data()
    split = torch.cat([0.3 * A, 0.7 * A], dim=1)
    model, other = (
        make_model(),
        AverageRCGP(split, torch.cat([POINTS, POINTS]), y, kernel=make_kernel(), noise=NOISE, mean="zero"),
    )
    assert len(other.kernel.sums.points) == len(POINTS)
    torch.testing.assert_close(other.posterior(TEST_X).mean, model.posterior(TEST_X).mean)


def covariance_of_averages(a, b, c, d, scale):
    """Average over [a, b] × [c, d] of exp(−(x − x')²/2ℓ²), in closed form."""

    def twice(u):  # second antiderivative of exp(−u²/2ℓ²)
        return scale * np.sqrt(np.pi / 2) * u * erf(u / (scale * np.sqrt(2))) + scale**2 * np.exp(
            -(u**2) / (2 * scale**2)
        )

    return (twice(b - c) + twice(a - d) - twice(a - c) - twice(b - d)) / ((b - a) * (d - c))


@pytest.mark.parametrize(
    ("width", "nodes", "tolerance"), [(1.0, 8, 1e-12), (4.0, 8, 1e-6), (6.0, 8, 1e-3), (1.0, 4, 1e-6)]
)
def test_quadrature_error_is_within_its_bound(width, nodes, tolerance):
    """For intervals of ``width`` lengthscales."""
    low = np.linspace(0.0, 3.0 * width, 25)
    high = low + np.linspace(1.0, 0.2, 25) * width
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(1.0).double()
    model = AverageRCGP.of_intervals(low, high, np.zeros(25), nodes, kernel=kernel, mean="zero")
    ends = np.stack([low, high])
    expected = covariance_of_averages(ends[0][:, None], ends[1][:, None], ends[0], ends[1], 1.0)
    error = np.abs(model.kernel_matrix().detach().numpy() - expected).max()
    assert 1e-16 < error < tolerance


def test_an_interval_without_width_is_a_point():
    low, high, y, _ = intervals(20, errors=False)
    high[:10] = low[:10]
    model = AverageRCGP.of_intervals(low, high, y, mean="zero")
    A = model.kernel.sums
    assert len(A.points) == 10 + 80
    points = torch.from_numpy(low[:10, None])
    found, expected = model.posterior_of_intervals(low[:10], low[:10]), model.posterior(points)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix)
    torch.testing.assert_close(model.posterior_of_intervals(low, high).mean, model.posterior_of_averages().mean)


def test_bad_averages_are_flagged_and_the_function_is_recovered():
    low, high, y, bad = intervals(seed=1)
    y[5] = np.nan
    model = AverageRCGP.of_intervals(low, high, y)
    report = fit_robust(model)
    assert not report.is_normal
    assert isinstance(model.weight, LawWeight)
    flagged = model.arranged(model.outlier_probability())
    assert flagged[5].isnan()
    assert (flagged.numpy() > 0.5).nonzero()[0].tolist() == bad.nonzero()[0].tolist()
    x = np.linspace(low[0], high[-1], 100)
    f = np.sin(x) + 0.5 * np.cos(2 * x)
    posterior = model.posterior(torch.from_numpy(x[:, None]))
    error = np.abs(posterior.mean.numpy() - f)
    assert error.max() < 0.25
    assert (error < 1.96 * posterior.variance.sqrt().numpy()).mean() > 0.8
    missing = model.posterior_of_averages()
    assert missing.mean.shape == (60,)
    truth = ((-np.cos(high) + np.sin(2 * high) / 4) - (-np.cos(low) + np.sin(2 * low) / 4)) / (high - low)
    assert abs(missing.mean[5] - truth[5]) < 4 * missing.variance[5].sqrt()
    noisy = model.posterior_of_averages(observation_noise=True)
    assert (noisy.variance > missing.variance).all()
    other = model.posterior_of_intervals(low, high, observation_noise=True)
    torch.testing.assert_close(other.variance, noisy.variance)


def test_sums_are_averages_in_other_units():
    """Each sum of ten points is ten times their average, with a hundred times the noise variance."""
    low, high, y, _ = intervals(40)
    first = AverageRCGP.of_intervals(low, high, y)
    sums = first.kernel.sums
    second = AverageRCGP(LinearMap(sums.points, sums.row, sums.point, 10 * sums.coefficient), None, 10 * y)
    for model in (first, second):
        fit_robust(model)
    x = torch.linspace(0, 10, 20).double().unsqueeze(-1)
    torch.testing.assert_close(second.posterior(x).mean, first.posterior(x).mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second.noise, 100 * first.noise, rtol=1e-3, atol=0.0)


def test_a_fit_does_not_depend_on_units():
    low, high, y, _ = intervals(40)
    first = AverageRCGP.of_intervals(low, high, y)
    second = AverageRCGP.of_intervals(low * 1e4, high * 1e4, y * 1e-5 + 3.0)
    for model in (first, second):
        fit_robust(model)
    x = torch.linspace(0, 10, 20).double().unsqueeze(-1)
    found, expected = second.posterior(x * 1e4), first.posterior(x)
    torch.testing.assert_close((found.mean - 3.0) * 1e5, expected.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.variance * 1e10, expected.variance, rtol=1e-2, atol=1e-5)


def test_constants_of_sums():
    A = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, -1.0], [2.0, 1.0]]).double()
    P = torch.tensor([[0.0], [1.0]]).double()
    y = torch.tensor([2.0, 7.0, 100.0, 9.0]).double()  # over their totals: 1, 7, –, 3
    expected = {"zero": 0.0, "median": 3.0, "constant": (4.0 + 7.0 + 27.0) / 14.0}
    for mean, value in expected.items():
        model = AverageRCGP(A, P, y, mean=mean)
        torch.testing.assert_close(model.mean(model.train_X), value * A.sum(dim=-1))
    differences = AverageRCGP(A[2:3], P, y[2:3], mean="median")  # a constant cancels
    assert differences.mean(differences.train_X).tolist() == [0.0]


def test_influence_of_an_average_is_bounded():
    model = make_model()
    influence = posterior_influence(model, 3, torch.tensor([1e2, 1e6, 1e100, 1e300]).double())
    assert influence.isfinite().all()
    assert influence[-1] <= 1.5 * influence[1]


def test_copies_pickles_state_dicts_float32_and_gradients():
    low, high, y, _ = intervals(30)
    model = AverageRCGP.of_intervals(low, high, y)
    fit_robust(model)
    x = torch.linspace(0, 10, 7).double().unsqueeze(-1)
    expected = model.posterior(x).mean
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other.posterior(x).mean, expected)
    first, second = (AverageRCGP.of_intervals(low, high, y, weight=Constant()) for _ in range(2))
    fit(first, "marginal", max_iterations=5)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.posterior(x).mean, first.posterior(x).mean)
    single = AverageRCGP.of_intervals(*(torch.from_numpy(part).float() for part in (low, high, y)))
    fit_robust(single)
    assert single.posterior(x.float()).mean.dtype == torch.float32
    assert single.posterior_of_intervals(low, high).mean.dtype == torch.float32
    torch.testing.assert_close(single.posterior(x.float()).mean.double(), expected, rtol=2e-2, atol=2e-2)
    inputs = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model.posterior(inputs).mean.sum(), inputs)
    up, down = (model.posterior(x + step).mean for step in (1e-5, -1e-5))
    torch.testing.assert_close(gradient[:, 0], (up - down) / 2e-5, rtol=1e-5, atol=1e-6)
    assert model.posterior(x.reshape(1, 7, 1).repeat(2, 1, 1)).mean.shape == (2, 7)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"coefficients": torch.ones(4)}, ValueError, "coefficients must have shape J x 3, one for each point"),
        ({"coefficients": torch.ones(4, 2)}, ValueError, "coefficients must have shape J x 3"),
        ({"coefficients": torch.tensor([[1.0, torch.nan, 0.0]] * 4)}, ValueError, "coefficients contains NaN in row 0"),
        (
            {"coefficients": torch.tensor([[1.0, 1.0, 0.0]] * 3 + [[0.0] * 3])},
            ValueError,
            "row 3 of coefficients is all",
        ),
        ({"points": torch.ones(3)}, ValueError, "points must have shape m x d"),
        ({"points": torch.tensor([[torch.inf]] * 3)}, ValueError, "points contains inf in row 0"),
        ({"points": None}, ValueError, "points must be given"),
        ({"train_y": torch.zeros(3)}, ValueError, "one value for each of the 4 sums, got shape (3,)"),
        ({"train_y": torch.tensor([0.0, torch.inf, 0.0, 0.0])}, ValueError, "train_y contains inf in row 1"),
        ({"train_y": torch.full((4,), torch.nan)}, ValueError, "train_y has no observation: all 4 are missing"),
        ({"mean": "linear"}, ValueError, "a callable or a GPyTorch Mean, got 'linear'"),
        ({"kernel": "rbf"}, TypeError, "kernel must be a GPyTorch kernel"),
        ({"weight": "imq"}, TypeError, "weight must be a WeightFunction"),
        ({"sample_weight": torch.ones(3)}, ValueError, "sample_weight must have one number for each of the 4 rows"),
    ],
)
def test_bad_input_raises(change, error, message):
    data = {"coefficients": torch.ones(4, 3), "points": torch.arange(3.0).unsqueeze(-1), "train_y": torch.zeros(4)}
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        AverageRCGP(**{**data, **change})


@pytest.mark.parametrize(
    ("lower", "upper", "nodes", "message"),
    [
        ([0.0, 2.0], [1.0, 1.5], 8, "lower must not be above upper: 2 and 1.5 in row 1"),
        ([0.0, np.nan], [1.0, 1.5], 8, "lower contains NaN in row 1"),
        (np.array(["2024-01-01", "2024-01-02"], "datetime64[D]"), [1.0, 1.5], 8, "lower cannot be read"),
        ([0.0], [1.0, 1.5], 8, "must be J ends each, got shapes (1,) and (2,)"),
        (0.0, 1.0, 8, "must be J ends each, got shapes () and ()"),
        ([0.0, 1.0], [1.0, 1.5], 0, "nodes must be a whole number, at least 1, got 0"),
    ],
)
def test_bad_intervals_raise(lower, upper, nodes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        AverageRCGP.of_intervals(lower, upper, [0.0, 1.0], nodes)


def test_other_bad_input_raises():
    model = make_model()
    with pytest.raises(ValueError, match="points must have 2 columns, got 1"):
        model.posterior_of_averages([[1.0]], [[0.0]])
    with pytest.raises(ValueError, match=r"values must have shape \(12,\)"):
        model.arranged(torch.zeros(3))
    with pytest.raises(ValueError, match=r"for points of one input use test_X.unsqueeze\(-1\)"):
        AverageRCGP.of_intervals([0.0, 1.0], [1.0, 2.0], [0.5, 0.7]).posterior([0.0, 1.0])


def test_the_order_of_averages_does_not_matter():
    low, high, y, _ = intervals(30, seed=2)
    order = np.random.default_rng(0).permutation(30)
    first, second = AverageRCGP.of_intervals(low, high, y), AverageRCGP.of_intervals(low[order], high[order], y[order])
    for model in (first, second):
        fit_robust(model)
    x = torch.linspace(0, 10, 7).double().unsqueeze(-1)
    torch.testing.assert_close(second.posterior(x).mean, first.posterior(x).mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(second.weights(), first.weights()[torch.from_numpy(order)], rtol=1e-5, atol=1e-5)
