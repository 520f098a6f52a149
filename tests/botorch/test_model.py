from __future__ import annotations

import copy
import io
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.cross_validation import batch_cross_validation, efficient_loo_cv, gen_loo_cv_folds, loo_cv
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood

import reference
from problems_of_botorch import (
    OUTLIERS,
    ROWS,
    D,
    law_weights,
    make_data,
    make_model,
    ordinary_gp,
    pseudo_data,
    set_hyperparameters,
    state_of,
)
from rcgp.botorch import SingleTaskRCGP
from rcgp.weights import Constant, InverseMultiquadric

NEW = 4
SAMPLER = {"sample_shape": torch.Size([3]), "seed": 1}


@pytest.fixture
def x():
    return torch.rand(5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def assert_same(posterior, expected, tolerance):
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(posterior, name), getattr(expected, name), rtol=tolerance, atol=tolerance)


def variances(batch=(), m=1, n=ROWS):
    return 0.01 + 0.03 * torch.rand(*batch, n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class TestPosterior:
    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("batch", [(), (2,)])
    def test_is_that_of_the_ordinary_gp_of_pseudo_data(self, x, batch, known):
        arguments = {"train_Yvar": variances(batch)} if known else {}
        model = make_model(*make_data(batch=batch), outcomes="none", **arguments)
        _, _, z, r = pseudo_data(model)
        assert (r[..., OUTLIERS] > 1e3 * r.amin()).all()  # the pseudo-data are not those of the ordinary GP of y
        gp = ordinary_gp(model, z, r)
        assert_same(model.posterior(x), gp.posterior(x), 1e-8)
        covariance, expected = (some.posterior(x).distribution.covariance_matrix for some in (model, gp))
        torch.testing.assert_close(covariance, expected, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("m", [1, 2])
    @pytest.mark.parametrize("batch", [(), (2,)])
    def test_of_equal_weights_is_that_of_single_task_gp(self, x, batch, m):
        X, Y = make_data(batch=batch, m=m)
        gp = SingleTaskGP(X, Y, input_transform=Normalize(d=D), outcome_transform=Standardize(m, batch_shape=batch))
        set_hyperparameters(gp)
        model = SingleTaskRCGP(
            X,
            Y,
            covar_module=get_covar_module_with_dim_scaled_prior(ard_num_dims=D, batch_shape=gp._aug_batch_shape),
            input_transform=Normalize(d=D),
            outcome_transform=Standardize(m, batch_shape=batch),
            weight=Constant(),
        )
        model.load_state_dict(gp.state_dict())
        for noise in (False, True):
            posterior, expected = (some.posterior(x, observation_noise=noise) for some in (model, gp))
            assert_same(posterior, expected, 1e-8)

    def test_of_the_papers_weights_is_the_papers(self, x):
        X, Y = make_data()
        model = make_model(X, Y, outcomes="none", weight=InverseMultiquadric(c=2.0))
        mean, covariance = papers_posterior(model, x, c=2.0)
        distribution = model.posterior(x).distribution
        np.testing.assert_allclose(distribution.mean.detach(), mean, rtol=1e-8)
        np.testing.assert_allclose(distribution.covariance_matrix.detach(), covariance, rtol=1e-8, atol=1e-8)

    def test_ignores_outliers_however_far(self, x):
        X, Y = make_data()
        means = []
        for size in (1e4, 1e8, 1e100, 1e300):
            Y[OUTLIERS] = size
            means.append(make_model(X, Y, outcomes="none").posterior(x).mean)
        for mean in means[1:]:
            torch.testing.assert_close(mean, means[1], rtol=1e-8, atol=1e-8)
        # Without them the spread of the residuals, and so the weights of the others, differ a little.
        rest = [row for row in range(ROWS) if row not in OUTLIERS]
        without = make_model(X[rest], Y[rest], outcomes="none").posterior(x).mean
        torch.testing.assert_close(means[-1], without, rtol=1e-2, atol=1e-2)

    def test_gradient_in_the_inputs_is_right(self, x):
        model = make_model(*make_data(m=2), inputs="normalize")

        def moments(x):
            posterior = model.posterior(x)
            return posterior.mean, posterior.variance

        assert torch.autograd.gradcheck(moments, x[:2].clone().requires_grad_())

    def test_takes_batches_of_inputs(self, x):
        model = make_model(*make_data(m=2))
        t_batch = torch.stack([x, x + 0.1, x - 0.2]).unsqueeze(1)  # 3 x 1 x q x d
        posterior = model.posterior(t_batch)
        assert posterior.mean.shape == (3, 1, 5, 2)
        for number in range(3):
            single = model.posterior(t_batch[number, 0])
            torch.testing.assert_close(posterior.mean[number, 0], single.mean, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(posterior.variance[number, 0], single.variance, rtol=1e-10, atol=1e-10)

    def test_test_batches_broadcast_with_those_of_the_model(self, x):
        model = make_model(*make_data(batch=(2,)))
        posterior = model.posterior(torch.stack([x, x + 0.1, x - 0.2]).unsqueeze(1))  # 3 x 1 x q x d
        assert posterior.mean.shape == (3, 2, 5, 1)
        torch.testing.assert_close(posterior.mean[0], model.posterior(x).mean, rtol=1e-10, atol=1e-10)

    def test_applies_a_posterior_transform(self, x):
        model = make_model(*make_data(m=2))
        weights = torch.tensor([2.0, -1.0], dtype=torch.float64)
        scalar = model.posterior(x, posterior_transform=ScalarizedPosteriorTransform(weights))
        posterior = model.posterior(x)
        torch.testing.assert_close(scalar.mean, posterior.mean @ weights.unsqueeze(-1))
        torch.testing.assert_close(scalar.variance, posterior.variance @ weights.square().unsqueeze(-1))

    def test_follows_hyperparameters_that_change(self, x):
        model = make_model(*make_data())
        before = model.posterior(x).mean
        model.covar_module.base_kernel.lengthscale = 2.0
        fresh = make_model(*make_data())
        fresh.load_state_dict(model.state_dict())
        assert not torch.allclose(model.posterior(x).mean, before)
        assert_same(model.posterior(x), fresh.posterior(x), 0.0)


def papers_posterior(model, x, c):
    """μ*^R and Σ*^R of Prop. 3.1 with the inverse multiquadric, by the dense transcription."""
    X, y = model.train_inputs[0].numpy(), model.train_targets.numpy()
    noise, m = model.likelihood.noise.item(), model.mean_module.constant.item()
    scale, lengthscale = model.covar_module.outputscale.item(), model.covar_module.base_kernel.lengthscale[0]
    K = [reference.se_kernel(a, b, lengthscale.detach().numpy(), scale) for a, b in ((X, X), (X, x), (x, x))]
    w, slope = reference.imq(y - m, c, noise)
    return reference.predict(*K, m, y, m, w, slope, noise)


class TestNoise:
    """The noise of a new observation is that of good ones: σ², times the variance of the noise law."""

    @pytest.mark.parametrize("outcomes", ["default", "none", "standardize"])
    @pytest.mark.parametrize("weight", ["learned", "imq"])
    @pytest.mark.parametrize("m", [1, 2])
    def test_is_learned_noise_in_original_units(self, x, outcomes, weight, m):
        model = make_model(*make_data(m=m), outcomes=outcomes, weight=weight)
        scale = model.outcome_transform.stdvs if outcomes != "none" else torch.ones(1, m)
        sigma2 = model.likelihood.noise.reshape(1, m) * scale**2
        factor = (10.0 + 2.0 * (16.0 + 32.0 + 64.0) / 7.0) / 12.0 if weight == "learned" else 1.0  # of the prior's law
        added = model.posterior(x, observation_noise=True).variance - model.posterior(x).variance
        torch.testing.assert_close(added, factor * sigma2.expand(5, m), rtol=1e-8, atol=1e-10)
        law = model.noise_law if m == 1 else model.noise_law[0]
        assert law.variance == pytest.approx(factor)

    def test_does_not_depend_on_outliers(self, x):
        X, Y = make_data()
        added = []
        for size in (0.0, 10.0, 1e6):
            Y[OUTLIERS] = 3.0 + size
            model = make_model(X, Y, outcomes="none")
            added.append(model.posterior(x, observation_noise=True).variance - model.posterior(x).variance)
        torch.testing.assert_close(added[1], added[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(added[2], added[0], rtol=1e-10, atol=1e-12)

    def test_where_variances_are_known_it_is_their_mean(self, x):
        Yvar = variances()
        model = make_model(*make_data(), train_Yvar=Yvar, weight="imq")
        added = model.posterior(x, observation_noise=True).variance - model.posterior(x).variance
        torch.testing.assert_close(added, Yvar.mean().expand(5, 1), rtol=1e-8, atol=1e-10)

    def test_may_be_given(self, x):
        model = make_model(*make_data(m=2), outcomes="none")
        noise = 0.1 + torch.rand(5, 2, dtype=torch.float64)
        posterior = model.posterior(x, observation_noise=noise)
        torch.testing.assert_close(posterior.variance - model.posterior(x).variance, noise)
        one = model.posterior(x, output_indices=[1], observation_noise=noise)
        torch.testing.assert_close(one.variance, posterior.variance[:, 1:])

    @pytest.mark.parametrize("m", [1, 2])
    def test_known_variances_count_as_in_single_task_gp(self, x, m):
        X, Y = make_data(m=m)
        Yvar = variances(m=m)
        model = make_model(X, Y, train_Yvar=Yvar, outcomes="standardize", weight=Constant())
        kernel, mean = copy.deepcopy(model.covar_module), copy.deepcopy(model.mean_module)
        gp = SingleTaskGP(X, Y, Yvar, covar_module=kernel, mean_module=mean, outcome_transform=Standardize(m))
        assert_same(model.posterior(x), gp.posterior(x), 1e-8)


class TestConditioning:
    """What ``condition_on_observations`` gives is the model of all the data with the same hyperparameters."""

    @pytest.mark.parametrize(
        ("batch", "m", "inputs", "outcomes", "known", "weight"),
        [
            ((), 1, "none", "default", False, "learned"),
            ((), 1, "normalize", "log", True, "imq"),
            ((), 1, "warp", "default", True, "learned"),
            ((), 2, "none", "log", True, "learned"),
            ((), 2, "normalize", "default", False, "learned"),
            ((), 2, "warp", "log", False, "imq"),
            ((2,), 2, "none", "default", True, "imq"),
            ((2,), 2, "normalize", "default", True, "learned"),
            ((2,), 2, "warp", "log", False, "learned"),
        ],
    )
    def test_equals_a_model_of_all_data(self, x, batch, m, inputs, outcomes, known, weight):
        arguments = {"inputs": inputs, "outcomes": outcomes, "weight": weight}
        X, Y = make_data(n=ROWS + NEW, batch=batch, m=m)
        Y[..., -1, :] += 80.0  # a new outlier, far off by its logarithm, too
        Yvar = variances(batch, m, ROWS + NEW) if known else None
        old = {"train_Yvar": Yvar[..., :ROWS, :]} if known else {}
        model = make_model(X[..., :ROWS, :], Y[..., :ROWS, :], **old, **arguments)
        noise = {"noise": model.eval().outcome_transform(Y, Yvar)[1][..., ROWS:, :]} if known else {}
        conditioned = model.condition_on_observations(X[..., ROWS:, :], Y[..., ROWS:, :], **noise)
        whole = make_model(X, Y, **({"train_Yvar": Yvar} if known else {}), **arguments)
        whole.load_state_dict(model.state_dict())
        assert conditioned.num_outputs == m
        assert conditioned.batch_shape == torch.Size(batch)
        assert_same(conditioned.posterior(x), whole.posterior(x), 1e-10)
        torch.testing.assert_close(conditioned.weights(), whole.weights(), rtol=1e-10, atol=1e-10)
        weights = conditioned.weights()
        assert weights.shape == (*batch, ROWS + NEW, m)
        assert (weights[..., -1, :] < weights[..., -2, :]).all()  # the outlier, and the row before

    def test_leaves_the_model_alone(self, x):
        model = make_model(*make_data(), inputs="normalize")
        before = model.posterior(x)
        new_X, new_Y = make_data(n=NEW, seed=1)
        model.condition_on_observations(new_X, new_Y)
        assert_same(model.posterior(x), before, 0.0)

    def test_before_any_prediction(self, x):
        model = SingleTaskRCGP(*make_data(), input_transform=Normalize(d=D))  # in training mode still
        new = make_data(n=NEW, seed=1)
        conditioned = model.condition_on_observations(*new)
        model.eval()
        assert_same(conditioned.posterior(x), model.condition_on_observations(*new).posterior(x), 0.0)

    def test_twice_is_once_with_all(self, x):
        model = make_model(*make_data(m=2), inputs="normalize")
        X, Y = make_data(n=NEW, m=2, seed=1)
        twice = model.condition_on_observations(X[:1], Y[:1]).condition_on_observations(X[1:], Y[1:])
        assert_same(twice.posterior(x), model.condition_on_observations(X, Y).posterior(x), 1e-10)

    def test_on_several_sets_of_observations_at_once(self, x):
        model = make_model(*make_data(m=2), inputs="normalize")
        X, Y = make_data(n=NEW, m=2, seed=1)
        several = model.condition_on_observations(X.expand(3, NEW, D), torch.stack([Y, Y + 0.3, Y - 1.0]))
        assert several.batch_shape == (3,)
        last = model.condition_on_observations(X, Y - 1.0)
        torch.testing.assert_close(several.posterior(x).mean[2], last.posterior(x).mean, rtol=1e-10, atol=1e-10)


class TestFantasies:
    @pytest.mark.parametrize("weight", ["learned", "imq"])
    @pytest.mark.parametrize("m", [1, 2])
    def test_move_predictions_as_refits_do(self, x, m, weight):
        """With outliers in the data; hyperparameters are those of the model."""
        model = make_model(*make_data(m=m), inputs="normalize", weight=weight)
        X = make_data(n=NEW, m=m, seed=1)[0]
        fantasies = model.fantasize(X, SobolQMCNormalSampler(**SAMPLER))
        assert fantasies.batch_shape == (3,)
        before, moved = model.posterior(x).mean, fantasies.posterior(x).mean
        for number in range(3):
            Y = model.outcome_transform.untransform(fantasies.train_targets[number].reshape(m, -1).mT)[0]
            refit = make_model(torch.cat([make_data(m=m)[0], X]), Y, inputs="normalize", weight=weight)
            refit.load_state_dict(model.state_dict())
            expected = refit.posterior(x).mean
            assert (moved[number] - before).abs().max() <= (1 + 1e-8) * (expected - before).abs().max()
            torch.testing.assert_close(moved[number], expected, rtol=1e-8, atol=1e-8)

    def test_do_not_trust_outliers_again(self, x):
        """A fantasy next to an outlier is one of the function, and leaves the outlier as little weight as before."""
        X, Y = make_data()
        model = make_model(X, Y)
        fantasies = model.fantasize(X[OUTLIERS] + 0.01, SobolQMCNormalSampler(**SAMPLER))
        assert (model.weights()[OUTLIERS] < 1e-2).all()
        assert (fantasies.weights()[:, OUTLIERS] < 1e-2).all()
        before = model.posterior(X[OUTLIERS]).mean
        moved = (fantasies.posterior(X[OUTLIERS]).mean - before).abs().max()
        assert moved < 1.5  # outliers are 8 off, and a fantasy is a draw of f where it is not known
        assert (before - make_data(outliers=False)[1][OUTLIERS]).abs().max() < 4.0

    def test_have_noise_of_their_own_where_it_is_known(self, x):
        model = make_model(*make_data(), outcomes="none", train_Yvar=variances())
        fantasies = model.fantasize(x[:2], SobolQMCNormalSampler(**SAMPLER))
        expected = variances().mean().expand(3, 2)
        torch.testing.assert_close(fantasies.row_noise()[:, -2:], expected)
        assert fantasies.posterior(x).mean.shape == (3, 5, 1)

    @pytest.mark.parametrize("m", [1, 2])
    def test_of_fantasies(self, x, m):
        model = make_model(*make_data(m=m), inputs="normalize")
        X = make_data(n=2, m=m, seed=1)[0]
        first = model.fantasize(X[:1], SobolQMCNormalSampler(torch.Size([3]), seed=1))
        second = first.fantasize(X[1:], SobolQMCNormalSampler(torch.Size([2]), seed=2))
        assert second.batch_shape == (2, 3)
        assert second.posterior(x).mean.shape == (2, 3, 5, m)
        targets = second.train_targets[1, 2].reshape(m, -1).mT[ROWS:]
        Y = model.outcome_transform.untransform(targets)[0]
        expected = model.condition_on_observations(X, Y).posterior(x).mean
        torch.testing.assert_close(second.posterior(x).mean[1, 2], expected, rtol=1e-8, atol=1e-8)

    def test_are_differentiable_in_their_inputs(self, x):
        model = make_model(*make_data(), outcomes="none", weight=InverseMultiquadric(c=2.0))

        def mean(X):
            return model.fantasize(X, SobolQMCNormalSampler(**SAMPLER)).posterior(x[:2]).mean

        assert torch.autograd.gradcheck(mean, x[2:4].clone().requires_grad_())


class TestState:
    @pytest.mark.parametrize("weight", ["learned", "imq"])
    def test_has_the_same_shapes_for_other_numbers_of_rows(self, x, weight):
        arguments = {"inputs": "normalize", "weight": weight}
        model, other = (make_model(*make_data(n=n, m=2), **arguments) for n in (ROWS, 2 * ROWS))
        model.posterior(x)
        shapes = [{name: tuple(value.shape) for name, value in some.state_dict().items()} for some in (model, other)]
        assert shapes[0] == shapes[1]

    def test_loads_on_other_rows(self, x):
        model = make_model(*make_data(m=2), inputs="normalize")
        X, Y = make_data(n=2 * ROWS, m=2, seed=4)
        other = SingleTaskRCGP(X, Y, input_transform=Normalize(d=D))
        other.load_state_dict(model.state_dict())
        for name, value in model.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], value, rtol=0.0, atol=0.0)
        # Observations in their own units are as they were, on the scale of the other model.
        torch.testing.assert_close(other.outcome_transform.untransform(other.train_targets.mT)[0], Y)
        assert other.posterior(x).mean.isfinite().all()

    @pytest.mark.parametrize("kind", [SingleTaskGP, SingleTaskRCGP])
    def test_loaded_after_a_prediction_has_inputs_of_the_old_scale_until_trained(self, x, kind):
        """As BoTorch's own: a model keeps its transformed inputs as long as it is in evaluation mode."""
        X, Y = make_data()
        state = kind(3.0 * X, Y, input_transform=Normalize(d=D)).state_dict()
        new, used, trained = (kind(X, Y, input_transform=Normalize(d=D)) for _ in range(3))
        for model in (used, trained):
            model.posterior(x)
        old = used.train_inputs[0].clone()
        trained.train()
        for model in (new, used, trained):
            model.load_state_dict(state)
            model.eval()
        assert torch.equal(used.train_inputs[0], old)
        torch.testing.assert_close(new.train_inputs[0], new.input_transform(X))
        assert (new.train_inputs[0] - old).abs().max() > 0.1
        assert_same(trained.posterior(x), new.posterior(x), 1e-12)
        used.train()
        assert_same(used.posterior(x), new.posterior(x), 1e-12)

    @pytest.mark.parametrize("copied", ["deepcopy", "pickle", "save"])
    @pytest.mark.parametrize("m", [1, 2])
    def test_survives_copies_after_predictions(self, x, copied, m):
        model = make_model(*make_data(m=m), inputs="normalize")
        expected = model.posterior(x.clone().requires_grad_())
        clone = copy_of(model, copied)
        assert_same(clone.posterior(x), expected, 1e-12)
        clone.covar_module.base_kernel.lengthscale = 3.0
        assert_same(model.posterior(x), expected, 1e-12)

    def test_survives_a_copy_of_fantasies(self, x):
        model = make_model(*make_data())
        fantasies = model.fantasize(x, SobolQMCNormalSampler(**SAMPLER))
        expected = fantasies.posterior(x)
        assert_same(copy_of(fantasies, "pickle").posterior(x), expected, 0.0)

    def test_data_follow_the_model_to_another_type(self, x):
        model = make_model(*make_data(), inputs="normalize")
        model.posterior(x)
        model.float()
        assert model.posterior(x.float()).mean.dtype == torch.float32


def copy_of(model, how):
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class TestOutputs:
    @pytest.mark.parametrize("batch", [(), (2,)])
    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("outputs", [[0], [2], [-1], [2, 0], [0, 1, 2]])
    def test_some_are_those_of_all(self, x, batch, known, outputs):
        arguments = {"train_Yvar": variances(batch, 3)} if known else {}
        model = make_model(*make_data(batch=batch, m=3), inputs="normalize", **arguments)
        for noise in (False, True):
            all_of_them = model.posterior(x, observation_noise=noise)
            subset = model.subset_output(outputs).posterior(x, observation_noise=noise)
            indexed = model.posterior(x, output_indices=outputs, observation_noise=noise)
            for some in (subset, indexed):
                torch.testing.assert_close(some.mean, all_of_them.mean[..., outputs], rtol=1e-10, atol=1e-10)
                torch.testing.assert_close(some.variance, all_of_them.variance[..., outputs], rtol=1e-10, atol=1e-10)

    def test_some_can_be_conditioned(self, x):
        X, Y = make_data(m=2)
        model, new = make_model(X, Y, inputs="normalize"), make_data(n=NEW, m=2, seed=1)
        subset = model.subset_output([1])
        assert subset.num_outputs == 1
        conditioned = subset.condition_on_observations(new[0], new[1][:, 1:])
        whole = model.condition_on_observations(*new)
        assert_same(conditioned.posterior(x), whole.posterior(x, output_indices=[1]), 1e-10)

    def test_are_independent(self, x):
        X, Y = make_data(m=2)
        model = make_model(X, Y)
        one = make_model(X, Y[:, 1:])
        one.load_state_dict(state_of(model.subset_output([1]), (), ()))
        assert_same(model.posterior(x, output_indices=[1]), one.posterior(x), 1e-10)


class TestLists:
    def test_predict_what_their_models_do(self, x):
        models = [make_model(*make_data(seed=seed), inputs="normalize") for seed in (0, 1)]
        both = ModelListGP(*models).posterior(x, observation_noise=True)
        for column, model in enumerate(models):
            alone = model.posterior(x, observation_noise=True)
            torch.testing.assert_close(both.mean[:, [column]], alone.mean)
            torch.testing.assert_close(both.variance[:, [column]], alone.variance)

    def test_can_be_conditioned_and_fantasised(self, x):
        models = ModelListGP(*(make_model(*make_data(seed=seed)) for seed in (0, 1)))
        fantasies = models.fantasize(x[:2], SobolQMCNormalSampler(**SAMPLER))
        assert fantasies.posterior(x).mean.shape == (3, 5, 2)


class TestDatasets:
    @pytest.mark.parametrize("known", [False, True])
    def test_give_the_constructors_arguments(self, x, known):
        X, Y = make_data()
        Yvar = variances() if known else None
        names = {"feature_names": ["a", "b", "c"], "outcome_names": ["y"]}
        arguments = SingleTaskRCGP.construct_inputs(SupervisedDataset(X, Y, Yvar=Yvar, **names))
        assert ("train_Yvar" in arguments) == known
        model = SingleTaskRCGP(**arguments)
        assert_same(model.posterior(x), SingleTaskRCGP(X, Y, Yvar).posterior(x), 0.0)

    def test_pass_on_how_rows_are_weighed(self):
        X, Y = make_data()
        dataset = SupervisedDataset(X, Y, feature_names=["a", "b", "c"], outcome_names=["y"])
        weight = InverseMultiquadric(c=2.0)
        model = SingleTaskRCGP(**SingleTaskRCGP.construct_inputs(dataset, weight=weight))
        assert model.weight is weight
        with pytest.raises(TypeError, match="nu"):
            SingleTaskRCGP.construct_inputs(dataset, nu=2.5)


class TestCrossValidation:
    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("inputs", ["none", "normalize"])
    def test_leave_one_out_is_removal(self, inputs, known):
        """With the weights of the other rows as they are."""
        arguments = {"train_Yvar": variances()} if known else {}
        model = make_model(*make_data(), inputs=inputs, **arguments)
        K, m, z, r = pseudo_data(model)
        offset, scale = model.outcome_transform.means, model.outcome_transform.stdvs
        results, latent = efficient_loo_cv(model), loo_cv(model, observation_noise=False)
        raw = efficient_loo_cv(model, untransform=False)
        for row in range(ROWS):
            rest = [other for other in range(ROWS) if other != row]
            A = torch.linalg.inv(K[rest][:, rest] + r[rest].diag())
            mean = m[row] + K[row, rest] @ A @ (z - m)[rest]
            variance = K[row, row] - K[row, rest] @ A @ K[rest, row]
            noisy = variance + model.row_noise()[row]
            torch.testing.assert_close(raw.posterior.mean[row].squeeze(), mean, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(raw.posterior.variance[row].squeeze(), noisy, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(results.posterior.mean[row], offset + scale * mean, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(results.posterior.variance[row], scale**2 * noisy, rtol=1e-8, atol=1e-8)
            if not known:  # BoTorch takes off the noise of the likelihood, which for known noises warns
                torch.testing.assert_close(latent.posterior.variance[row], scale**2 * variance, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(results.observed_Y.squeeze(-1), make_data()[1])

    @pytest.mark.parametrize("batch", [(), (2,)])
    def test_leave_one_out_of_several_outputs(self, batch):
        model = make_model(*make_data(batch=batch, m=2), outcomes="none")
        results = efficient_loo_cv(model)
        assert results.posterior.mean.shape == (*batch, ROWS, 1, 2)
        for output in range(2):
            alone = efficient_loo_cv(model.subset_output([output]))
            torch.testing.assert_close(results.posterior.mean[..., [output]], alone.posterior.mean)
            torch.testing.assert_close(results.posterior.variance[..., [output]], alone.posterior.variance)

    def test_leave_one_out_with_the_papers_weights(self):
        model = make_model(*make_data(), outcomes="none", weight=InverseMultiquadric(c=2.0))
        X, y = model.train_inputs[0].numpy(), model.train_targets.numpy()
        noise, m = model.likelihood.noise.item(), np.full(ROWS, model.mean_module.constant.item())
        lengthscale = model.covar_module.base_kernel.lengthscale[0].detach().numpy()
        K = reference.se_kernel(X, X, lengthscale, model.covar_module.outputscale.item())
        w, slope = reference.imq(y - m, 2.0, noise)
        mean, variance = reference.leave_one_out_by_refits(K, y, m, w, slope, noise)
        posterior = efficient_loo_cv(model).posterior
        np.testing.assert_allclose(posterior.mean.detach().squeeze(), mean, rtol=1e-8)
        np.testing.assert_allclose(posterior.variance.detach().squeeze(), variance, rtol=1e-8)

    @pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
    def test_in_batch_mode_is_model_by_model(self):
        X, Y = make_data()
        folds = gen_loo_cv_folds(X, Y)
        few = {"optimizer_kwargs": {"options": {"maxiter": 3}}}
        results = batch_cross_validation(SingleTaskRCGP, ExactMarginalLogLikelihood, folds, fit_args=few)
        assert results.posterior.mean.shape == (ROWS, 1, 1)
        assert results.model.batch_shape == (ROWS,)
        for row in (0, OUTLIERS[0]):
            single = SingleTaskRCGP(folds.train_X[row], folds.train_Y[row])
            single.load_state_dict(state_of(results.model, (row,), (ROWS,)))
            expected = single.posterior(folds.test_X[row]).mean
            torch.testing.assert_close(results.posterior.mean[row], expected, rtol=1e-8, atol=1e-8)


class TestWeights:
    @pytest.mark.parametrize("weight", ["learned", InverseMultiquadric(c=1.0)])
    def test_are_small_for_outliers_only(self, weight):
        weights = make_model(*make_data(m=2), weight=weight).weights()
        assert weights.shape == (ROWS, 2)
        rest = [row for row in range(ROWS) if row not in OUTLIERS]
        assert weights[OUTLIERS].max() < 0.5 * weights[rest].min()

    def test_are_given_by_a_weight_function(self):
        model = make_model(*make_data(), outcomes="none", weight=InverseMultiquadric(c=2.0))
        e = model.train_targets - model.mean_module.constant
        expected = (1.0 + e.square() / 4.0).rsqrt().unsqueeze(-1)
        torch.testing.assert_close(model.weights(), expected.detach())


def test_training_mode_gives_the_prior():
    X, Y = make_data()
    model = make_model(X, Y, inputs="normalize").train()
    prior = model(*model.train_inputs)
    assert torch.equal(model(model.train_inputs[0].clone()).mean, prior.mean)
    normalized = model.input_transform(X)
    torch.testing.assert_close(prior.mean, model.mean_module(normalized))
    torch.testing.assert_close(prior.covariance_matrix, model.covar_module(normalized).to_dense())


def test_training_data_can_be_replaced(x):
    X, Y = make_data()
    model = make_model(X, Y, outcomes="none")
    model.posterior(x)
    model.set_train_data(targets=-Y.squeeze(-1))
    assert_same(model.posterior(x), make_model(X, -Y, outcomes="none").posterior(x), 0.0)
    with pytest.raises(RuntimeError, match="cannot replace targets of shape"):
        model.set_train_data(targets=Y[1:].squeeze(-1))


def test_modules_of_the_caller_are_used(x):
    X, Y = make_data(m=2)
    batch = torch.Size([2])
    model = SingleTaskRCGP(
        X,
        Y,
        likelihood=gpytorch.likelihoods.GaussianLikelihood(batch_shape=batch),
        covar_module=gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=batch),
        mean_module=gpytorch.means.ZeroMean(batch_shape=batch),
    )
    X_far = 1e3 + x
    torch.testing.assert_close(model.posterior(X_far).mean, model.outcome_transform.means.expand(5, 2))
    assert isinstance(model.covar_module, gpytorch.kernels.MaternKernel)


class TestNoiseLaw:
    @pytest.mark.parametrize(("batch", "m"), [((), 1), ((2,), 2)])
    def test_has_a_fixed_size_and_starts_at_its_prior(self, batch, m):
        model = make_model(*make_data(batch=batch, m=m))
        assert model.law.shape == (*batch, *([m] if m > 1 else []), 6)
        prior = model.law.new_tensor([10.0, 8.0 / 7.0, 4.0 / 7.0, 2.0 / 7.0, 1.0, 5.0 * 13.0]) / 13.0
        torch.testing.assert_close(model.law, prior.expand_as(model.law))

    @pytest.mark.parametrize("m", [1, 2])
    def test_gives_weights_and_probabilities(self, m):
        model = make_model(*make_data(m=m), outcomes="none")
        with torch.no_grad():
            X, y, noise = model.eval().train_inputs[0], model.train_targets, model.row_noise()
            K, e = model.covar_module(X).to_dense(), y - model.mean_module(X)
        for output in range(m):
            K_, e_, noise_, law = ((part[output] if m > 1 else part) for part in (K, e, noise, model.law))
            w, _, probability = law_weights(K_, e_, noise_, law)
            torch.testing.assert_close(model.weights()[:, output], w, rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(model.outlier_probability()[:, output], probability, rtol=1e-8, atol=1e-10)
        flagged = model.outliers().any(dim=-1).nonzero().flatten().tolist()
        assert set(OUTLIERS) <= set(flagged)
        assert len(flagged) <= len(OUTLIERS) + 1

    def test_may_be_normal_for_some_of_a_batch(self, x):
        X, Y = make_data(m=2)
        model = make_model(X, Y)
        model.law[0] = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 5.0])
        assert (model.weights()[:, 0] == 1.0).all()
        assert (model.outlier_probability()[:, 0] == 0.0).all()
        assert (model.weights()[OUTLIERS, 1] < 0.1).all()
        first, second = model.noise_law
        assert first.is_normal
        assert not second.is_normal
        ordinary = make_model(X, Y, weight="constant")
        ordinary.load_state_dict({k: v for k, v in model.state_dict().items() if k != "law"})
        torch.testing.assert_close(model.posterior(x).mean[:, 0], ordinary.posterior(x).mean[:, 0])

    def test_is_that_of_the_output(self):
        model = make_model(*make_data(m=2))
        model.law[1] = torch.tensor([0.7, 0.1, 0.05, 0.05, 0.1, 7.0])
        torch.testing.assert_close(model.subset_output([1]).law, model.law[1])

    def test_weighs_new_gross_outliers(self, x):
        """Rows that the prior rules out are outliers where they are a minority."""
        X, Y = make_data(n=24, outliers=True)
        model = SingleTaskRCGP(X, Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        before = model.posterior(x).mean
        new = torch.rand(8, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        conditioned = model.condition_on_observations(new, torch.linspace(100.0, 150.0, 8).double().unsqueeze(-1))
        assert conditioned.outliers().nonzero()[:, 0].tolist() == [*OUTLIERS, *range(24, 32)]
        torch.testing.assert_close(conditioned.posterior(x).mean, before, rtol=1e-2, atol=1e-2)


def test_forward_transforms_inputs_in_training_mode(x):
    X, Y = make_data()
    model = make_model(X, Y, inputs="normalize").train()
    prior = model.forward(x)
    torch.testing.assert_close(prior.mean, model.mean_module(model.input_transform(x)))
    torch.testing.assert_close(prior.covariance_matrix, model.covar_module(model.input_transform(x)).to_dense())


def test_forward_knows_the_training_inputs_by_value():
    model = make_model(*make_data()).eval()
    same, other = model.forward(model.train_inputs[0]), model.forward(model.train_inputs[0].clone())
    torch.testing.assert_close(same.mean, other.mean)


@pytest.mark.parametrize("outputs", [(1, 1), (1, 2), (2, 1)])
def test_lists_take_noises_of_all_their_outputs(x, outputs):
    models = ModelListGP(*(make_model(*make_data(seed=i, m=m), outcomes="none") for i, m in enumerate(outputs)))
    noise = 0.1 + torch.rand(5, sum(outputs), dtype=torch.float64)
    added = models.posterior(x, observation_noise=noise).variance - models.posterior(x).variance
    torch.testing.assert_close(added, noise)


@pytest.mark.parametrize(("batch", "m"), [((), 1), ((2,), 2)])
@pytest.mark.parametrize("weight", ["learned", "constant"])
def test_state_of_a_single_task_gp_loads(x, batch, m, weight):
    """It has neither noise law nor output scale: the law stays as it is, and the scale is one."""
    X, Y = make_data(batch=batch, m=m)
    gp = SingleTaskGP(X, Y)
    set_hyperparameters(gp)
    model = make_model(X, Y, weight=weight)
    state = gp.state_dict()
    model.load_state_dict(state)
    assert "covar_module.raw_lengthscale" in state
    torch.testing.assert_close(model.covar_module(x).to_dense(), gp.covar_module(x).to_dense())
    if weight == "constant":
        assert_same(model.posterior(x), gp.posterior(x), 1e-8)
    else:
        torch.testing.assert_close(model.law, model.prior_law())
