from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import reference
from problems import LENGTHSCALE, NOISE, VARIANCE, WEIGHTS, gpytorch_gp, make_data, make_twin, set_hyperparameters
from rcgp import RCGP, fit, fit_robust
from rcgp.core.exact import ExactPosterior
from rcgp.training.objectives import leave_one_out
from rcgp.weights import Constant, Heteroskedastic, InverseMultiquadric, NoNoiseTerm, NoShrinkage, SquaredExponential

TEST_X = np.random.default_rng(9).uniform(-2, 2, (6, 2))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_posterior_equals_the_dense_transcription(weight):
    twin = make_twin(weight)
    K_star = reference.se_kernel(twin.X, TEST_X, LENGTHSCALE, VARIANCE)
    K_star_star = reference.se_kernel(TEST_X, TEST_X, LENGTHSCALE, VARIANCE)
    mean, cov = reference.predict(
        twin.K, K_star, K_star_star, twin.y.mean(), twin.y, twin.m, twin.w, twin.slope, twin.noise
    )
    posterior = twin.model.posterior(torch.tensor(TEST_X))
    assert isinstance(posterior, gpytorch.distributions.MultivariateNormal)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.covariance_matrix, cov, atol=1e-9)
    np.testing.assert_allclose(posterior.variance, np.diag(cov), atol=1e-9)
    noisy = twin.model.posterior(torch.tensor(TEST_X), observation_noise=True)
    np.testing.assert_allclose(noisy.covariance_matrix, cov + twin.noise * np.eye(6), atol=1e-9)
    np.testing.assert_allclose(noisy.variance, np.diag(cov) + twin.noise, atol=1e-9)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_posterior_at_the_training_points_equals_proposition_3_1(weight):
    twin = make_twin(weight)
    mean, cov = reference.posterior(twin.K, twin.y, twin.m, twin.w, twin.slope, twin.noise)
    posterior = twin.model.posterior(torch.tensor(twin.X))
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.covariance_matrix, cov, atol=1e-9)


def scikit_learn_gp(X, y, alpha):
    kernel = ConstantKernel(VARIANCE) * RBF(LENGTHSCALE)
    return GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, y)


def test_constant_weights_are_scikit_learns_gp():
    twin = make_twin("constant")
    mean, cov = scikit_learn_gp(twin.X, twin.y - twin.m, NOISE).predict(TEST_X, return_cov=True)
    posterior = twin.model.posterior(torch.tensor(TEST_X))
    np.testing.assert_allclose(posterior.mean - twin.m[0], mean, atol=1e-8)
    np.testing.assert_allclose(posterior.covariance_matrix, cov, atol=1e-8)


def test_heteroskedastic_weights_are_a_gp_with_that_noise_at_each_point():
    X, y = make_data()
    model = RCGP(X, y, weight=Heteroskedastic(lambda x: 0.3 + 0.1 * x[..., 0] ** 2), mean="zero")
    set_hyperparameters(model)
    gp = scikit_learn_gp(X, y, (0.3 + 0.1 * X[:, 0] ** 2) ** 2)
    mean, cov = gp.predict(TEST_X, return_cov=True)
    for noise in (0.1, 2.0):  # σ² cancels from the posterior
        model.noise = noise
        posterior = model.posterior(torch.tensor(TEST_X))
        np.testing.assert_allclose(posterior.mean, mean, atol=1e-8)
        np.testing.assert_allclose(posterior.covariance_matrix, cov, atol=1e-8)


def test_constant_weights_are_gpytorchs_gp():
    twin = make_twin("constant")
    gp, _ = gpytorch_gp(twin)
    gp.eval()
    theirs, ours = gp(torch.tensor(TEST_X)), twin.model.posterior(torch.tensor(TEST_X))
    torch.testing.assert_close(ours.mean, theirs.mean.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.covariance_matrix, theirs.covariance_matrix.detach(), rtol=1e-8, atol=1e-8)


def test_ablations_equal_their_dense_transcriptions():
    twin = make_twin("imq")
    X, y = torch.tensor(twin.X), torch.tensor(twin.y)
    full_trust = np.sqrt(twin.noise / 2) * np.ones_like(twin.w)
    for wrapper, w, slope in ((NoShrinkage, twin.w, 0 * twin.slope), (NoNoiseTerm, full_trust, twin.slope)):
        model = RCGP(X, y, weight=wrapper(InverseMultiquadric()), noise=twin.noise)
        set_hyperparameters(model)
        mean, _ = reference.posterior(twin.K, twin.y, twin.m, w, slope, twin.noise)
        np.testing.assert_allclose(model.posterior(X).mean, mean, atol=1e-9)


# Hard cases -----------------------------------------------------------------------------------------------------------


def check_sound(model, X):
    """Predictions, leave-one-out and weights are finite and of the right sign, before and after a short fit."""
    for _ in range(2):
        posterior = model.posterior(X)
        loo = model.leave_one_out()
        weights = model.weights()
        for tensor in (posterior.mean, posterior.variance, *loo, weights):
            assert tensor.isfinite().all()
        assert (posterior.variance >= 0).all()
        assert (loo.variance > 0).all()
        assert ((weights > 0) & (weights <= 1)).all()
        fit(model, max_iterations=5)


HARD = {
    "one point": lambda: (torch.zeros(1, 1), torch.ones(1)),
    "two points": lambda: (torch.arange(2.0).unsqueeze(-1), torch.tensor([0.0, 1.0])),
    "duplicated rows": lambda: (torch.arange(4.0).repeat_interleave(5).unsqueeze(-1), torch.randn(20)),
    "all rows equal": lambda: (torch.ones(10, 2), torch.randn(10)),
    "constant y": lambda: (torch.randn(12, 2), torch.full((12,), 3.0)),
    "zero y": lambda: (torch.randn(12, 2), torch.zeros(12)),
    "fewer rows than columns": lambda: (torch.randn(4, 9), torch.randn(4)),
    "constant column": lambda: (torch.cat([torch.randn(12, 1), torch.ones(12, 1)], dim=-1), torch.randn(12)),
    "half outlying": lambda: (torch.linspace(0, 1, 20).unsqueeze(-1), torch.arange(20) % 2 * 50.0 + torch.randn(20)),
    "tiny y": lambda: (torch.randn(12, 2), 1e-30 * torch.randn(12)),
    "huge y": lambda: (torch.randn(12, 2), 1e30 * torch.randn(12)),
    "huge X": lambda: (1e20 * torch.randn(12, 2), torch.randn(12)),
}


@pytest.mark.parametrize("weight", [InverseMultiquadric, SquaredExponential, Constant])
@pytest.mark.parametrize("case", HARD)
def test_hard_cases_work(case, weight):
    torch.manual_seed(0)
    X, y = HARD[case]()
    check_sound(RCGP(X.double(), y.double(), weight=weight()), X.double())


@pytest.mark.parametrize("case", [case for case in HARD if case not in ("tiny y", "huge y")])
def test_hard_cases_work_in_single_precision(case):
    torch.manual_seed(0)
    X, y = HARD[case]()
    model = RCGP(X, y)
    assert model.posterior(X).mean.dtype == torch.float32
    check_sound(model, X)


@pytest.mark.parametrize("noise", [1e-10, 1e-6, 1e6])
@pytest.mark.parametrize("lengthscale", [1e-4, 1.0, 1e4])
def test_extreme_hyperparameters_work(noise, lengthscale):
    X = torch.linspace(-1, 1, 50, dtype=torch.float64).unsqueeze(-1)
    model = RCGP(X, torch.sin(3 * X[:, 0]), noise=noise)
    model.kernel.base_kernel.lengthscale = lengthscale
    check_sound(model, X)


def test_integer_data_work():
    X = torch.arange(20).unsqueeze(-1)
    model = RCGP(X, torch.arange(20) % 5)
    check_sound(model, X)


def test_nearly_noiseless_data_are_interpolated():
    X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(X[:, 0])
    model = RCGP(X, y, noise=1e-10, weight=Constant())
    torch.testing.assert_close(model.posterior(X).mean, y, rtol=0, atol=1e-4)


def test_small_variances_are_not_rounded_up():
    """GPyTorch returns 1e-10, whatever the units of y."""
    X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(5 * X[:, 0]) + torch.cos(17 * X[:, 0])
    ordinary, small = RCGP(X, y), RCGP(X, y * 1e-10)
    torch.testing.assert_close(small.posterior(X).stddev, 1e-10 * ordinary.posterior(X).stddev)


# Equivariance ---------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 25),
    shift=st.floats(-1e3, 1e3),
    log_scale=st.floats(-6, 6),
    weight=st.sampled_from([InverseMultiquadric, SquaredExponential, Constant]),
)
def test_shifting_and_scaling_y_shifts_and_scales_the_posterior(seed, n, shift, log_scale, weight):
    X, y = make_data(n, seed=seed, outliers=min(2, n - 1))
    X, y, scale = torch.tensor(X), torch.tensor(y), 10.0**log_scale
    base, moved = RCGP(X, y, weight=weight()).posterior(X), RCGP(X, scale * (y + shift), weight=weight()).posterior(X)
    size = float(y.abs().max() + abs(shift))
    torch.testing.assert_close(moved.mean / scale - shift, base.mean, rtol=1e-6, atol=1e-8 * size)
    torch.testing.assert_close(moved.stddev / scale, base.stddev, rtol=1e-5, atol=1e-7 * size)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 25))
def test_the_order_of_rows_does_not_matter(seed, n):
    X, y = (torch.tensor(a) for a in make_data(n, seed=seed, outliers=min(2, n - 1)))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    one, other = RCGP(X, y), RCGP(X[order], y[order])
    torch.testing.assert_close(other.posterior(X).mean, one.posterior(X).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(other.weights(), one.weights()[order])
    torch.testing.assert_close(other.leave_one_out().mean, one.leave_one_out().mean[order], rtol=1e-8, atol=1e-8)


def test_a_fit_does_not_depend_on_units_or_order():
    X, y = (torch.tensor(a) for a in make_data(40, seed=2))
    order = torch.randperm(40)
    base, other = RCGP(X, y), RCGP(1e3 * X[order] + 5, 1e-4 * y[order] - 7)
    fit(base)
    fit(other)
    torch.testing.assert_close(
        (other.posterior(1e3 * X + 5).mean + 7) * 1e4, base.posterior(X).mean, rtol=1e-3, atol=1e-3
    )


# The object -----------------------------------------------------------------------------------------------------------


def test_any_gpytorch_kernel_works():
    X, y = (torch.tensor(a) for a in make_data(20))
    k = gpytorch.kernels
    for kernel in (
        k.ScaleKernel(k.MaternKernel(nu=1.5)),
        k.RBFKernel() + k.LinearKernel(),
        k.ScaleKernel(k.RBFKernel(active_dims=[1])) * k.PeriodicKernel(),
        k.PolynomialKernel(power=2),
        k.RQKernel(ard_num_dims=2),
    ):
        model = RCGP(X, y, kernel=kernel)
        start = fit(model, max_iterations=1).value
        assert fit(model).value >= start
        K, R = model.kernel(X).to_dense(), torch.diag(model.training_terms().pseudo.noise)
        expected = model.mean(X) + K @ torch.linalg.solve(K + R, model.training_terms().pseudo.target)
        torch.testing.assert_close(model.posterior(X).mean, expected.detach(), rtol=1e-6, atol=1e-7)


def test_unsuitable_kernels_raise():
    X, y = (torch.tensor(a) for a in make_data(5))
    with pytest.raises(ValueError, match="one output: for 2 rows"):
        RCGP(X, y, kernel=gpytorch.kernels.RBFKernelGrad())
    with pytest.raises(ValueError, match="cannot be evaluated on train_X, which has 2 columns"):
        RCGP(X, y, kernel=gpytorch.kernels.RBFKernel(ard_num_dims=3))


def test_predictions_follow_changes_of_hyperparameters():
    twin = make_twin("imq")
    model, X = twin.model, torch.tensor(TEST_X)
    seen = [model.posterior(X).mean]
    model.noise = 0.7
    seen.append(model.posterior(X).mean)
    model.kernel.base_kernel.lengthscale = 0.3  # written through .data, unseen by version counters
    seen.append(model.posterior(X).mean)
    with torch.no_grad():
        model.raw_noise.add_(1.0)
    seen.append(model.posterior(X).mean)
    model.train_y[0] = 0.0
    seen.append(model.posterior(X).mean)
    for earlier, later in itertools.pairwise(seen):
        assert (earlier - later).abs().max() > 1e-4


def test_a_posterior_does_not_change_with_the_model():
    model, X = make_twin("imq").model, torch.tensor(TEST_X)
    early, lazy = model.posterior(X), model.posterior(X, observation_noise=True)
    variance = early.variance.clone()
    noise = model.noise.item()
    model.noise = 5.0
    model.kernel.base_kernel.lengthscale = 0.1
    model.posterior(X)
    torch.testing.assert_close(early.covariance_matrix.diagonal(), variance)
    torch.testing.assert_close(lazy.variance, variance + noise)


def test_the_factorisation_is_kept_between_predictions(monkeypatch):
    import rcgp.models.exact as module

    model, X = make_twin("imq").model, torch.tensor(TEST_X)
    calls = []
    original = module.condition
    monkeypatch.setattr(module, "condition", lambda *arguments: calls.append(1) or original(*arguments))
    model.leave_one_out()
    model.posterior(X)
    model.posterior(X + 1)
    assert len(calls) == 1
    fit_robust(model, local_noise=False)
    model.leave_one_out()
    model.posterior(X)
    assert len(calls) == 2


def test_gradients_flow_to_the_test_inputs():
    model = make_twin("imq").model
    x = torch.tensor(TEST_X, requires_grad=True)

    def moments(x):
        posterior = model.posterior(x)
        return posterior.mean, posterior.variance, posterior.covariance_matrix

    assert torch.autograd.gradcheck(moments, (x,), atol=1e-6)


def test_batches_of_test_inputs_equal_their_members():
    model = make_twin("imq").model
    X = torch.tensor(TEST_X).reshape(3, 2, 2)
    whole = model.posterior(X)
    assert whole.batch_shape == (3,)
    for i in range(3):
        torch.testing.assert_close(whole.mean[i], model.posterior(X[i]).mean)
        torch.testing.assert_close(whole.covariance_matrix[i], model.posterior(X[i]).covariance_matrix)
        torch.testing.assert_close(whole.variance[i], model.posterior(X[i]).variance)


def test_samples_have_the_moments_of_the_posterior():
    posterior = make_twin("imq").model.posterior(torch.tensor(TEST_X[:3]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        samples = posterior.rsample(torch.Size([20000]))
    torch.testing.assert_close(samples.mean(0), posterior.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(samples.T.cov(), posterior.covariance_matrix, rtol=0, atol=0.03)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_models_can_be_copied_and_pickled_after_prediction(duplicate):
    model, X = make_twin("se").model, torch.tensor(TEST_X)
    fit(model, max_iterations=3)
    before = model.posterior(X)
    twin = duplicate(model)
    assert torch.equal(twin.posterior(X).mean, before.mean)
    assert torch.equal(twin.posterior(X).variance, before.variance)
    twin.noise = 3.0
    assert model.noise.item() != 3.0


def test_state_dict_does_not_depend_on_the_number_of_rows():
    small, large = make_twin("imq", n=6), make_twin("imq", n=17)
    fit(large.model, max_iterations=5)
    buffer = io.BytesIO()
    torch.save(large.model.state_dict(), buffer)
    buffer.seek(0)
    small.model.load_state_dict(torch.load(buffer))
    assert torch.equal(small.model.noise, large.model.noise)


def test_two_threads_predict_at_once():
    model, X = make_twin("imq").model, torch.tensor(TEST_X)
    expected = make_twin("imq").model.posterior(X).mean
    found = []
    barrier = threading.Barrier(8)

    def predict():
        barrier.wait()
        found.append(model.posterior(X).mean)

    threads = [threading.Thread(target=predict) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(mean, expected) for mean in found)


def test_no_global_state_is_changed():
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.random.get_rng_state()
    model = make_twin("imq").model
    fit(model, restarts=1, max_iterations=2)
    model.posterior(torch.tensor(TEST_X))
    assert torch.get_default_dtype() == before[0]
    assert torch.is_grad_enabled() == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])


def test_weights_find_the_outliers():
    X, y = make_data(n=60, outliers=3)
    weights = RCGP(X, y).weights()
    assert set(weights.argsort()[:3].tolist()) == {0, 1, 2}


@pytest.mark.slow
def test_predicting_many_points_takes_little_memory(monkeypatch):
    """10⁵ points from n = 1000: no cross-covariance beyond the chunk, and no 10⁵ x 10⁵ matrix, is ever made."""
    X, y = make_data(1000)
    model = RCGP(X, y)
    sizes = []
    original = ExactPosterior.whiten

    def watched(self, K_star):
        sizes.append(K_star.numel())
        return original(self, K_star)

    monkeypatch.setattr(ExactPosterior, "whiten", watched)
    posterior = model.posterior(torch.rand(100_000, 2, dtype=torch.float64))
    assert posterior.mean.shape == posterior.variance.shape == (100_000,)
    assert (posterior.variance > 0).all()
    assert max(sizes) <= 2**22
    assert sum(sizes) == 1000 * 100_000


# Extreme observations, end to end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [InverseMultiquadric, SquaredExponential])
@pytest.mark.parametrize("mean", ["median", "robust_linear", "zero"])
def test_one_extreme_observation_does_not_move_the_default_rule(weight, mean, dtype):
    """With the threshold from the data: the quantile rule must not follow the outlier."""
    X, y = (torch.tensor(a, dtype=dtype) for a in make_data(60, outliers=0))
    means = []
    for size in (1e12, 1e20, 1e37 if dtype == torch.float32 else 1e300):
        y[10] = size
        model = RCGP(X, y, mean=mean, weight=weight(), noise=0.1)
        set_hyperparameters(model)
        means.append(model.posterior(X).mean)
        assert model.leave_one_out().variance.isfinite().all()
    assert means[0].abs().max() < 3
    for other in means[1:]:
        torch.testing.assert_close(other, means[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", ["zero", "constant", "median", "linear", "quadratic", "robust_linear"])
def test_extreme_observations_give_finite_numbers_under_every_mean(mean, dtype):
    X, y = (torch.tensor(a, dtype=dtype) for a in make_data(30))
    y[10] = 1e37 if dtype == torch.float32 else 1e300
    model = RCGP(X, y, mean=mean)
    for tensor in (model.posterior(X).mean, model.posterior(X).variance, model.weights(), *model.leave_one_out()):
        assert tensor.isfinite().all()


# Staleness ------------------------------------------------------------------------------------------------------------


def change_weight(model):
    model.weight = Constant()


def change_epsilon(model):
    model.weight.epsilon = 0.5


def change_kernel(model):
    model.kernel = copy.deepcopy(model.kernel)
    model.kernel.base_kernel = gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=2).double()
    model.kernel.base_kernel.lengthscale = torch.tensor(LENGTHSCALE)


def change_mean_function(model):
    model.offset.fill_(3.0)


def change_noise_function(model):
    level = torch.ones(1, dtype=torch.float64)
    model.weight = Heteroskedastic(lambda x: level.expand(x.shape[:-1]))
    model.posterior(model.train_X)
    level.fill_(0.01)


def change_smoothness(model):
    model.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()
    model.posterior(model.train_X)
    model.kernel.base_kernel.nu = 0.5


class ScaledByHand(gpytorch.kernels.RBFKernel):
    """A user's kernel with state in attributes: a dictionary, a private number, an unregistered tensor, its mode."""

    def __init__(self):
        super().__init__()
        self.settings, self._factor, self.unit = {"scales": [1.0]}, 1.0, torch.ones(1, dtype=torch.float64)

    def forward(self, x1, x2, **params):
        scale = self.settings["scales"][0] * self._factor * self.unit * (1.0 if self.training else 0.01)
        return super().forward(x1, x2, **params) * scale


def change_setting(kernel):
    kernel.settings["scales"][0] = 0.01


def change_private_number(kernel):
    kernel._factor = 0.01


def change_plain_tensor(kernel):
    kernel.unit.fill_(0.01)


def change_mode(kernel):
    kernel.eval()


def change_own_kernel(change):
    def changed(model):
        model.kernel = ScaledByHand().double()
        model.posterior(model.train_X)
        change(model.kernel)

    return changed


@pytest.mark.parametrize(
    "change",
    [
        *(change_smoothness, change_weight, change_epsilon, change_kernel, change_mean_function, change_noise_function),
        *map(change_own_kernel, (change_setting, change_private_number, change_plain_tensor, change_mode)),
    ],
)
def test_predictions_follow_changes_of_attributes_and_modules(change):
    X, y = (torch.tensor(a) for a in make_data())
    offset = torch.zeros(1, dtype=torch.float64)
    model = RCGP(X, y, mean=lambda x: offset.expand(x.shape[:-1]))
    model.offset = offset
    before = model.posterior(X).mean
    change(model)
    fresh = copy.deepcopy(model)  # copies carry no factorisation
    assert (model.posterior(X).mean - before).abs().max() > 1e-3
    torch.testing.assert_close(model.posterior(X).mean, fresh.posterior(X).mean)


def test_gradients_do_not_leak_into_hyperparameters():
    X, y = (torch.tensor(a) for a in make_data())
    model = RCGP(X, y, mean=gpytorch.means.LinearMean(2))
    x = torch.tensor(TEST_X, requires_grad=True)
    posterior = model.posterior(x)
    (posterior.mean.sum() + posterior.variance.sum()).backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_do_not_leak_into_the_function_that_is_the_mean():
    network = torch.nn.Linear(2, 1).double()
    X, y = (torch.tensor(a) for a in make_data())
    model = RCGP(X, y, mean=lambda x: network(x)[..., 0])
    assert not model.posterior(X).mean.requires_grad
    x = torch.tensor(TEST_X, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model.posterior(x).mean, (x,))
    model.posterior(x).mean.sum().backward()
    leave_one_out(model).backward()
    assert network.weight.grad is None


@pytest.mark.parametrize("seed", range(4))
def test_a_fitted_float32_model_predicts_like_a_float64_one(seed):
    """Fits of nearly noiseless or nearly linear data end at hyperparameters that float32 could not factorise."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(100, 3, generator=generator)
    y = X.sum(dim=1) + 0.01 * seed * torch.randn(100, generator=generator)
    model = RCGP(X, y)
    fit(model)
    double = copy.deepcopy(model).double()
    x = torch.rand(50, 3, generator=generator)
    ours, expected = model.posterior(x), double.posterior(x.double())
    assert ours.mean.dtype == ours.variance.dtype == ours.covariance_matrix.dtype == torch.float32
    torch.testing.assert_close(ours.mean, expected.mean.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.stddev, expected.stddev.float(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(
        model.leave_one_out().variance, double.leave_one_out().variance.float(), rtol=1e-4, atol=1e-7
    )


def test_inference_mode_gives_the_same_posterior_without_side_effects():
    twin = make_twin("imq")
    X = torch.tensor(TEST_X)
    with torch.inference_mode():
        inside = twin.model.posterior(X).mean
    torch.testing.assert_close(inside, make_twin("imq").model.posterior(X).mean)
    x = X.clone().requires_grad_()
    twin.model.posterior(x).variance.sum().backward()
    assert x.grad.isfinite().all()


def test_calling_the_model_returns_its_posterior():
    model, X = make_twin("imq").model, torch.tensor(TEST_X)
    torch.testing.assert_close(model(X).mean, model.posterior(X).mean)


def test_hyperparameters_include_the_threshold():
    twin = make_twin("imq")
    values = twin.model.hyperparameters()
    assert values["weight.c"].item() == pytest.approx(twin.c)
    assert values["noise"].item() == pytest.approx(NOISE)
    np.testing.assert_allclose(values["kernel.base_kernel.lengthscale"][0], LENGTHSCALE)
    assert "weight.log_c" not in make_twin("imq", c=1.0, trainable=True).model.hyperparameters()
