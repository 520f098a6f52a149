"""Several tasks in the long format: twins in BoTorch and MultiOutputRCGP, data that grow, acquisition functions."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch
from botorch.acquisition import qKnowledgeGradient, qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective import qLogExpectedHypervolumeImprovement
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from gpytorch.means import LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from problems_of_botorch import leave_one_out
from rcgp import MultiOutputRCGP
from rcgp.botorch import LeaveOneOutObjective, MultiTaskRCGP, RobustStratifiedStandardize, fit
from rcgp.botorch.task_modules import MeanOfTask, TaskKernel, TaskMean
from rcgp.training.robust import weigh_by_law
from rcgp.weights import Constant, InverseMultiquadric, NoiseLaw

BAD = [3, 10, 21]
FEW = {"optimizer_kwargs": {"options": {"maxiter": 10}}}  # iterations, of BoTorch's optimiser
SAMPLER = {"sample_shape": torch.Size([3]), "seed": 1}

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
    pytest.mark.filterwarnings("ignore:`scipy_minimize` terminated"),
]


def make_data(n=30, tasks=(0, 1), column=2, bad=True, seed=0):
    """Inputs in the unit cube with a task in one column, and smooth observations; some rows are far off."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    number = torch.arange(n) % len(tasks)
    f = (5.0 * X[:, :1]).sin() + X[:, 1:]
    Y = (1.0 + number.unsqueeze(-1)) * f + 3.0 * number.unsqueeze(-1)
    Y = Y + 0.03 * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    if bad:
        rows = [row for row in BAD if row < n]
        Y[rows] += torch.tensor([[6.0], [-7.0], [8.0]], dtype=torch.float64)[: len(rows)]
    return with_task(X, torch.tensor(tasks, dtype=torch.float64)[number], column), Y


def with_task(X, task, column=2):
    task = torch.as_tensor(task, dtype=X.dtype).expand(X.shape[:-1]).unsqueeze(-1)
    return torch.cat([X[..., :column], task, X[..., column:]], dim=-1)


def make_model(X, Y, column=2, **arguments):
    """A model with hyperparameters that are nothing special."""
    torch.manual_seed(1)
    model = MultiTaskRCGP(X, Y, column, **arguments)
    set_hyperparameters(model)
    return model


def set_hyperparameters(model):
    tasks = model.num_tasks
    kernel = model.covar_module.kernels[0]
    base = getattr(kernel, "base_kernel", kernel)
    base.lengthscale = torch.tensor([[0.4, 0.9]], dtype=torch.float64)
    if base is not kernel:
        kernel.outputscale = 1.7
    for task in range(tasks):
        model.mean_module.base_means[task].constant.data.copy_(torch.tensor(0.2 - 0.1 * task))
    if not isinstance(model.likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood):
        model.likelihood.noise = 0.01 + 0.01 * torch.arange(tasks, dtype=torch.float64)


def variances(Y):
    return 0.01 + 0.02 * torch.rand(Y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def x():
    return torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def assert_same(posterior, expected, tolerance=1e-8):
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(posterior, name), getattr(expected, name), rtol=tolerance, atol=tolerance)
    covariances = (some.distribution.covariance_matrix for some in (posterior, expected))
    torch.testing.assert_close(*covariances, rtol=tolerance, atol=tolerance)


class TestPosterior:
    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("column", [0, 2])
    @pytest.mark.parametrize("weight", ["constant", "learned"])
    def test_of_normal_noise_is_that_of_multi_task_gp(self, x, known, column, weight):
        X, Y = make_data(column=column)
        arguments = {"train_Yvar": variances(Y) if known else None, "input_transform": Normalize(2, indices=[1])}
        gp = MultiTaskGP(X, Y, column, outcome_transform=Standardize(1), **arguments)
        set_hyperparameters(gp)
        model = MultiTaskRCGP(X, Y, column, outcome_transform=Standardize(1), weight=weight, **arguments)
        model.load_state_dict(gp.state_dict())
        if weight == "learned":
            model.law[:, :-1] = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
        for noise in (False, True):
            for outputs in (None, [1], [1, 0]):
                posterior, expected = (some.posterior(x, outputs, noise) for some in (model, gp))
                assert_same(posterior, expected)
            long = with_task(x, [0, 1, 1, 0], column)
            assert_same(model.posterior(long, None, noise), gp.posterior(long, None, noise))

    def test_of_tasks_with_other_numbers_is_the_same(self, x):
        """BoTorch gives tasks above T − 1 no noise; here they are only names."""
        posteriors = []
        for tasks in ((0, 1), (2, 5)):
            X, Y = make_data(tasks=tasks)
            posteriors.append(make_model(X, Y).posterior(x, observation_noise=True))
        assert_same(posteriors[1], posteriors[0], 1e-12)

    @pytest.mark.parametrize("known", [False, True])
    def test_is_that_of_the_multi_output_model(self, x, known):
        X, Y = make_data()
        Yvar = variances(Y) if known else None
        model = make_model(X, Y, train_Yvar=Yvar, outcome_transform=None)
        model.law[1, :-1] = torch.tensor([0.7, 0.1, 0.05, 0.05, 0.1], dtype=torch.float64)
        mean = TaskMean(copy.deepcopy(model.mean_module), 2)
        twin = MultiOutputRCGP(
            X[:, :2],
            Y.squeeze(-1),
            output=X[:, 2],
            kernel=TaskKernel(copy.deepcopy(model.covar_module), 2, [0, 1]),
            mean=[MeanOfTask(mean, task) for task in (0, 1)],
            noise=1.0 if known else model.likelihood.noise.detach(),
            sample_weight=Yvar.reciprocal().squeeze(-1) if known else None,
        )
        weigh_by_law(twin, list(model.noise_law.values()))
        torch.testing.assert_close(model.weights().squeeze(-1), twin.weights(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            model.outlier_probability().squeeze(-1), twin.outlier_probability(), rtol=1e-8, atol=1e-8
        )
        posterior, expected = model.posterior(x), twin.posterior(x)
        torch.testing.assert_close(posterior.mean, expected.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(posterior.variance, expected.variance, rtol=1e-8, atol=1e-8)
        if not known:
            noisy = (some.posterior(x, observation_noise=True).variance for some in (model, twin))
            torch.testing.assert_close(*noisy, rtol=1e-8, atol=1e-8)

    def test_of_the_papers_weights_has_a_threshold_for_each_task(self):
        X, Y = make_data()
        model = make_model(X, Y, weight=InverseMultiquadric(), outcome_transform=None)
        twin = model.separable()[()]
        torch.testing.assert_close(model.weights().squeeze(-1), twin.weights(), rtol=1e-10, atol=1e-10)

    def test_bad_values_have_bounded_influence_however_far(self, x):
        X, Y = make_data()
        means = []
        for size in (1e8, 1e100, 1e300):
            Y[BAD] = size
            means.append(make_model(X, Y, outcome_transform=None).posterior(x).mean)
        for mean in means[1:]:
            torch.testing.assert_close(mean, means[0], rtol=1e-8, atol=1e-8)

    def test_does_not_depend_on_the_units_of_a_task(self, x):
        X, Y = make_data()
        scaled = torch.where(X[:, 2:] == 1, 1000.0 * Y - 5e4, Y)
        posterior, other = (make_model(X, values).posterior(x) for values in (Y, scaled))
        torch.testing.assert_close(other.mean[:, 0], posterior.mean[:, 0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(other.mean[:, 1], 1000.0 * posterior.mean[:, 1] - 5e4, rtol=1e-9, atol=1e-6)

    def test_of_chosen_tasks_is_part_of_that_of_all(self, x):
        model = make_model(*make_data(tasks=(0, 1, 2)))
        everything = model.posterior(x)
        part = make_model(*make_data(tasks=(0, 1, 2)), output_tasks=[2, 0])
        assert part.num_outputs == 2
        for posterior in (model.posterior(x, [2, 0]), part.posterior(x)):
            torch.testing.assert_close(posterior.mean, everything.mean[:, [2, 0]])
            torch.testing.assert_close(posterior.variance, everything.variance[:, [2, 0]])
        long = model.posterior(with_task(x, 2.0))
        torch.testing.assert_close(long.mean, everything.mean[:, [2]])
        torch.testing.assert_close(long.variance, everything.variance[:, [2]])
        weights = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
        scalar = model.posterior(x, posterior_transform=ScalarizedPosteriorTransform(weights))
        torch.testing.assert_close(scalar.mean, everything.mean @ weights.unsqueeze(-1))

    def test_botorchs_stratified_transform_serves_several_outputs(self, x):
        X, Y = make_data(bad=False)
        transform = StratifiedStandardize(2, torch.tensor([0, 1]))
        posterior = make_model(X, Y, outcome_transform=transform).posterior(x)
        for task in (0, 1):
            alone = make_model(X, Y, outcome_transform=copy.deepcopy(transform)).posterior(with_task(x, task))
            torch.testing.assert_close(posterior.mean[:, [task]], alone.mean)
            torch.testing.assert_close(posterior.variance[:, [task]], alone.variance)

    def test_gradient_in_the_inputs_is_right(self, x):
        model = make_model(*make_data())
        assert torch.autograd.gradcheck(
            lambda x: (model.posterior(x).mean, model.posterior(x).variance), x[:2].clone().requires_grad_()
        )

    def test_leave_one_out_is_that_of_refits(self):
        X, Y = make_data(n=12)
        model = make_model(X, Y, outcome_transform=None).eval()
        weighed = model._weighed_rows()
        pseudo = weighed.pseudo
        mean, variance = leave_one_out(weighed.K, pseudo.target, pseudo.root_precision.square().reciprocal())
        found = model.latent_leave_one_out()
        torch.testing.assert_close(found.mean, mean + Y.squeeze(-1) - weighed.residual, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.variance, variance, rtol=1e-8, atol=1e-8)


class TestMoreData:
    @pytest.mark.parametrize("weight", ["learned", "imq"])
    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("inputs", [None, Normalize(2, indices=[0])])
    def test_conditioning_equals_a_model_of_all_data(self, x, known, weight, inputs):
        X, Y = make_data()
        Yvar = variances(Y)
        kept = slice(0, 24)  # row 21 is bad
        transforms = {"outcome_transform": None, "weight": weight}

        def build(rows):
            noise = {"train_Yvar": Yvar[rows]} if known else {}
            return make_model(X[rows], Y[rows], input_transform=copy.deepcopy(inputs), **noise, **transforms)

        part, everything = build(kept), build(slice(None))
        part.eval(), everything.eval()
        if inputs is not None:
            everything.input_transform.load_state_dict(part.input_transform.state_dict())
            everything.train().eval()
        noise = {"noise": Yvar[24:]} if known else {}
        more = part.condition_on_observations(X[24:], Y[24:], **noise)
        assert_same(more.posterior(x), everything.posterior(x))
        torch.testing.assert_close(more.weights(), everything.weights())

    def test_without_tasks_conditions_on_all_outputs(self, x):
        model = make_model(*make_data())
        Y = model.posterior(x).mean + 0.1
        together = model.condition_on_observations(x, Y)
        long = model.condition_on_observations(
            torch.cat([with_task(x, 0.0), with_task(x, 1.0)]), torch.cat([Y[:, :1], Y[:, 1:]])
        )
        assert_same(together.posterior(x + 0.05), long.posterior(x + 0.05), 1e-12)

    def test_a_batch_of_tasks_that_differ_is_a_batch_of_models(self, x):
        model = make_model(*make_data(), weight="imq")
        X = torch.stack([with_task(x, [0, 1, 0, 1]), with_task(x, 1.0)])
        Y = torch.ones(2, 4, 1, dtype=torch.float64)
        batch = model.condition_on_observations(X, Y).posterior(x)
        for number in range(2):
            one = model.condition_on_observations(X[number], Y[number]).posterior(x)
            torch.testing.assert_close(batch.mean[number], one.mean)
            torch.testing.assert_close(batch.variance[number], one.variance)

    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("with_column", [False, True])
    def test_fantasies_have_their_shapes(self, x, known, with_column):
        X, Y = make_data()
        model = make_model(X, Y, train_Yvar=variances(Y) if known else None)
        new = torch.stack([x[:2], x[2:]])
        new = with_task(new, [0.0, 1.0]) if with_column else new
        fantasy = model.fantasize(new, SobolQMCNormalSampler(**SAMPLER))
        rows = 2 if with_column else 4
        assert fantasy.train_targets.shape == (3, 2, 30 + rows)
        assert fantasy.posterior(x).mean.shape == (3, 2, 4, 2)
        assert model.train_targets.shape == (30,)

    @pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
    def test_state_of_another_number_of_rows_loads(self, x):
        X, Y = make_data()
        fitted = make_model(X[:24], Y[:24], outcome_transform=None)
        fit(fitted)
        model = MultiTaskRCGP(X, Y, 2, outcome_transform=None)
        model.load_state_dict(fitted.state_dict())
        more = fitted.condition_on_observations(X[24:], Y[24:])
        assert_same(model.posterior(x), more.posterior(x))

    @pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_copies_predict_the_same(self, x, twin):
        model = make_model(*make_data(tasks=(1, 4)))
        assert_same(twin(model).posterior(x, observation_noise=True), model.posterior(x, observation_noise=True))


class TestFit:
    def test_flags_bad_values_of_a_task_alone(self, x):
        X, Y = make_data()
        clean = make_data(bad=False)[1]
        model = MultiTaskRCGP(X, Y, 2)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        assert model.outliers().squeeze(-1).nonzero().flatten().tolist() == BAD
        good = MultiTaskRCGP(X, clean, 2)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(good.likelihood, good), **FEW)
        assert not good.outliers().any()
        truth = (5.0 * x[:, :1]).sin() + x[:, 1:]
        truth = torch.cat([truth, 2.0 * truth + 3.0], dim=-1)
        assert (model.posterior(x).mean - truth).abs().max() < 0.2
        assert set(model.noise_law) == {0, 1}
        assert all(law.is_normal for law in good.noise_law.values())

    def test_state_after_a_fit_is_that_of_the_robust_fit(self):
        X, Y = make_data()
        torch.manual_seed(3)
        model = MultiTaskRCGP(X, Y, 2)
        (report,) = fit(model)
        for law, (task, own) in zip(report.laws, model.noise_law.items(), strict=True):
            assert own.shares == pytest.approx(law.shares, rel=1e-10), task
            assert own.width == pytest.approx(law.width, rel=1e-8)
        assert model.likelihood.noise.tolist() == pytest.approx(report.hyperparameters["noise"], rel=1e-5)

    def test_of_normal_noise_is_botorchs(self, x):
        X, Y = make_data(bad=False)
        gp, model = (
            make(
                X,
                Y,
                2,
                covar_module=get_covar_module_with_dim_scaled_prior(ard_num_dims=2, active_dims=[0, 1]),
                outcome_transform=StratifiedStandardize(2, torch.tensor([0, 1])),
            )
            for make in (MultiTaskGP, MultiTaskRCGP)
        )
        start = copy.deepcopy(gp.state_dict())
        model.load_state_dict(start)
        for some in (gp, model):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(some.likelihood, some), **FEW)
        assert all(law.is_normal for law in model.noise_law.values())
        for name, value in gp.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-8, atol=1e-8)

    @pytest.mark.filterwarnings("ignore:A not p.d.")  # BoTorch's fit of an ordinary GP to bad values
    def test_known_noise_and_other_weights_and_likelihoods_are_fitted(self):
        X, Y = make_data()
        shared = gpytorch.likelihoods.GaussianLikelihood()
        for arguments, reported in (
            ({"train_Yvar": torch.full_like(Y, 1e-3)}, True),
            ({"weight": "imq"}, True),
            ({"weight": "constant"}, False),
            ({"likelihood": shared, "mean_module": LinearMean(3)}, False),
        ):
            model = MultiTaskRCGP(X, Y, 2, **arguments)
            before = copy.deepcopy(model.covar_module.state_dict())
            reports = fit(model, max_iterations=20)
            assert bool(reports) == reported
            assert not all(torch.equal(before[name], value) for name, value in model.covar_module.state_dict().items())
            if "train_Yvar" in arguments or "likelihood" in arguments:
                assert set(BAD) <= set(model.outliers().squeeze(-1).nonzero().flatten().tolist())

    def test_objective_has_the_gradient_of_its_value(self):
        model = make_model(*make_data(n=16))
        objective = LeaveOneOutObjective(model).train()

        def value():
            return objective(model(*model.train_inputs), model.train_targets)

        parameters = [model.likelihood.noise_covar.raw_noise, model.covar_module.kernels[1].raw_covar_factor]
        for parameter, gradient in zip(parameters, torch.autograd.grad(value(), parameters), strict=True):
            flat = parameter.detach().reshape(-1)
            for i in range(flat.numel()):
                ends = []
                for step in (1e-6, -2e-6):
                    flat[i] += step
                    ends.append(value().item())
                flat[i] += 1e-6
                assert gradient.reshape(-1)[i].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6)

    def test_tasks_without_observations_keep_the_prior_law(self, x):
        X, Y = make_data(tasks=(0, 3))
        model = MultiTaskRCGP(X, Y, 2, all_tasks=[0, 1, 3])
        fit(model)
        assert model.outliers().squeeze(-1).nonzero().flatten().tolist() == BAD
        torch.testing.assert_close(model.law[1], model.prior_law()[1])
        posterior = model.posterior(x, observation_noise=True)
        assert posterior.mean.shape == (4, 3)
        assert posterior.variance.isfinite().all()

    def test_one_row_of_a_task_is_enough(self, x):
        X, Y = make_data(n=12)
        X[:, 2] = 0.0
        X[5, 2] = 1.0
        model = MultiTaskRCGP(X, Y, 2)
        fit(model, max_iterations=20)
        assert model.posterior(x).mean.isfinite().all()


class TestAcquisition:
    def check(self, acquisition, X):
        X = X.clone().requires_grad_()
        value = acquisition(X)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0.0

    def test_of_one_task(self, x):
        model = make_model(*make_data(), output_tasks=[1])
        sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
        points = make_data()[0][:, :2]
        self.check(qLogExpectedImprovement(model, best_f=3.0, sampler=sampler), x.unsqueeze(1))
        self.check(qLogNoisyExpectedImprovement(model, points, sampler=sampler), x.unsqueeze(1))
        few = SobolQMCNormalSampler(torch.Size([2]), seed=0)
        self.check(qKnowledgeGradient(model, num_fantasies=2, sampler=few), x[:3].unsqueeze(0))

    def test_of_a_sum_of_tasks(self, x):
        model = make_model(*make_data())
        objective = LinearMCObjective(torch.tensor([1.0, 0.5], dtype=torch.float64))
        points = make_data()[0][:, :2]
        self.check(qLogNoisyExpectedImprovement(model, points, objective=objective), x.unsqueeze(1))

    def test_of_several_objectives(self, x):
        model = make_model(*make_data(tasks=(0, 1, 2)), output_tasks=[0, 2])
        reference = torch.tensor([0.0, 0.0], dtype=torch.float64)
        partitioning = NondominatedPartitioning(reference, Y=model.posterior(x).mean.detach())
        self.check(qLogExpectedHypervolumeImprovement(model, reference.tolist(), partitioning), x.unsqueeze(1) + 0.1)

    def test_whole_functions_are_not_drawn_from_an_ordinary_gp(self):
        model = make_model(*make_data())
        with pytest.raises(UnsupportedError, match="rsample"):
            draw_matheron_paths(model, torch.Size([2]))


class TestBadInput:
    def test_of_training_data(self):
        X, Y = make_data()
        for changed, error, message in (
            ((X, Y.index_fill(0, torch.tensor([4]), torch.nan)), InputDataError, "train_Y.*row 4"),
            ((X.index_fill(0, torch.tensor([6]), torch.inf), Y), InputDataError, "train_X.*row 6"),
            ((X + 0.5, Y), InputDataError, "whole numbers.*row 0"),
            ((X, Y.expand(-1, 2)), BotorchTensorDimensionError, "n x 1"),
            ((X, Y[:-1]), BotorchTensorDimensionError, "train_Y"),
            ((X.unsqueeze(0), Y.unsqueeze(0)), ValueError, "Unsupported shape"),
        ):
            with pytest.raises(error, match=message):
                MultiTaskRCGP(*changed, 2)
        with pytest.raises(ValueError, match="task_feature"):
            MultiTaskRCGP(X, Y, 5)
        with pytest.raises(RuntimeError, match="output tasks"):
            MultiTaskRCGP(X, Y, 2, output_tasks=[7])
        with pytest.raises(RuntimeError, match="larger than the number of tasks"):
            MultiTaskRCGP(X, Y, 2, rank=3)

    def test_of_likelihoods(self):
        X, Y = make_data(tasks=(1, 3))
        with pytest.raises(TypeError, match="HadamardGaussianLikelihood"):
            MultiTaskRCGP(X, Y, 2, likelihood=gpytorch.likelihoods.StudentTLikelihood())
        own = gpytorch.likelihoods.HadamardGaussianLikelihood(num_tasks=2, task_feature_index=2)
        with pytest.raises(ValueError, match=r"tasks are \[1, 3\]"):
            MultiTaskRCGP(X, Y, 2, likelihood=own)

    def test_of_predictions_and_new_data(self, x):
        model = make_model(*make_data())
        for call in (
            lambda: model.posterior(x, output_indices=[4]),
            lambda: model.posterior(x, output_indices=[]),
            lambda: model.condition_on_observations(with_task(x, 4.0), torch.zeros(4, 1)),
        ):
            with pytest.raises(ValueError, match=r"tasks of the model are \[0, 1\]"):
                call()
        with pytest.raises(ValueError, match="task features in `X`"):
            model.posterior(with_task(x, 4.0))
        with pytest.raises(InputDataError, match=r"Y.*row 0"):
            model.condition_on_observations(with_task(x, 1.0), torch.full((4, 1), torch.nan))
        with pytest.raises(BotorchTensorDimensionError, match="4 x 2"):
            model.condition_on_observations(x, torch.zeros(4, 1))
        with pytest.raises(BotorchTensorDimensionError, match="x 3"):
            model.posterior(torch.rand(2, 4, dtype=torch.float64))


def test_data_sets_become_arguments():
    X, Y = make_data()
    data = SupervisedDataset(X, Y, feature_names=["a", "b", "task"], outcome_names=["y"])
    arguments = MultiTaskRCGP.construct_inputs(data, task_feature=2, output_tasks=[1], weight="imq")
    model = MultiTaskRCGP(**arguments)
    assert model.num_outputs == 1
    assert all(isinstance(part, InverseMultiquadric) for part in model.weight.outputs)


def test_outcomes_are_standardised_task_by_task():
    X, Y = make_data(n=12, tasks=(0, 2))
    transform = RobustStratifiedStandardize(2, torch.tensor([0, 1, 2, 3]))
    X[5, 2] = 3.0
    found, _ = transform(Y, X=X)
    for task in (0, 2):
        own = found[X[:, 2] == task]
        assert own.quantile(0.5).item() == pytest.approx(0.0, abs=1e-12)
        assert own.abs().quantile(0.5).item() == pytest.approx(0.6744897501960817)
    everything = (Y - Y.quantile(0.5)).abs().quantile(0.5) / 0.6744897501960817
    assert transform.stdvs[[1, 3]].flatten().tolist() == pytest.approx([everything.item()] * 2)
    back, _ = transform.eval().untransform(found, X=X)
    torch.testing.assert_close(back, Y)


def test_the_default_law_is_normal_for_constant_weights():
    model = make_model(*make_data(), weight=Constant())
    assert model.noise_law == {0: NoiseLaw.normal(), 1: NoiseLaw.normal()}
    assert bool((model.weights() == 1.0).all())
