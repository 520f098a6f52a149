"""The robust model in Ax: by name in an experiment, cross-validated, saved and loaded."""

import copy
import json
import logging
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from marks import slow

pytest.importorskip("ax", reason="needs rcgp[ax]")

from ax.adapter import cross_validation
from ax.adapter.registry import Generators
from ax.adapter.transforms.standardize_y import StandardizeY
from ax.adapter.transforms.winsorize import Winsorize
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.observation import ObservationFeatures
from ax.core.search_space import SearchSpaceDigest
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.surrogate import Surrogate, SurrogateSpec, submodel_input_constructor
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.json_store.decoder import object_from_json
from ax.storage.json_store.encoder import object_to_json
from ax.utils.common.logger import set_stderr_log_level
from botorch.models.model import Model
from botorch.test_functions import Branin
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood

import rcgp.botorch.ax as robust_ax
from rcgp.botorch import LeaveOneOutObjective, RobustStandardize, SingleTaskRCGP, fit
from rcgp.weights import InverseMultiquadric

set_stderr_log_level(logging.ERROR)

# What Ax does to itself and to pandas.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning"),
    # what BoTorch's sampling says of posteriors that hardly vary
    pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning"),
    pytest.mark.filterwarnings("ignore:add_tracking_metric is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'lsuffix' and 'rsuffix' keywords:DeprecationWarning"),
]

branin = Branin()


def value(parameters):
    return branin(torch.tensor([parameters["x"], parameters["y"]], dtype=torch.float64)).item()


def new_client(strategy=None, seed=0, objective="-loss"):
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[
            RangeParameterConfig(name="x", bounds=(-5.0, 10.0), parameter_type="float"),
            RangeParameterConfig(name="y", bounds=(0.0, 15.0), parameter_type="float"),
        ]
    )
    client.configure_optimization(objective=objective)
    if strategy is not None:
        client.set_generation_strategy(strategy)
    return client


def smooth(parameters):
    return 10.0 * np.sin(parameters["x"] / 4.0) + parameters["y"]


def with_data(
    n: int = 12,
    outlier: float = 60.0,
    sem: float | None = None,
    metrics: tuple[str, ...] = ("loss",),
    objective: str = "-loss",
    function: Callable = smooth,
):
    """A client with evaluations, every fifth an outlier, and a strategy with the robust model."""
    rng = np.random.default_rng(3)
    client = new_client(robust_ax.generation_strategy(), objective=objective)
    for row in range(n):
        parameters = {"x": rng.uniform(-5.0, 10.0), "y": rng.uniform(0.0, 15.0)}
        y = function(parameters) + outlier * (row % 5 == 2)
        index = client.attach_trial(parameters)
        client.complete_trial(
            index, raw_data={m: y * (k + 1) if sem is None else (y * (k + 1), sem) for k, m in enumerate(metrics)}
        )
    return client


def adapter_of(client, config=None, transforms=None, **kwargs):
    experiment = client._experiment
    return Generators.BOTORCH_MODULAR(
        experiment=experiment,
        data=experiment.lookup_data(),
        surrogate_spec=SurrogateSpec(model_configs=[config or robust_ax.model_config()]),
        transforms=transforms or robust_ax.transforms(),
        **kwargs,
    )


def model_of(adapter):
    return adapter.generator.surrogate.model


def predictions(results):
    """Mean and variance of each arm of a cross-validation of one metric."""
    return {
        result.observed.arm_name: (result.predicted.means[0], result.predicted.covariance[0, 0]) for result in results
    }


def error_on_grid(adapter, function):
    points = [{"x": x, "y": y} for x in np.linspace(-5.0, 10.0, 8) for y in np.linspace(0.0, 15.0, 8)]
    means, _ = adapter.predict([ObservationFeatures(point) for point in points])
    return np.sqrt(np.mean((np.array(means["loss"]) - [function(point) for point in points]) ** 2))


@pytest.mark.parametrize("sem", [None, 0.3, 0.0])
def test_an_experiment_uses_the_model_by_name(sem):
    client = with_data(sem=sem)
    trials = client.get_next_trials(max_trials=2)
    adapter = client._generation_strategy.adapter
    model = model_of(adapter)
    assert client._generation_strategy.name == "Center+Sobol+MBM:SingleTaskRCGP"
    assert adapter.generator.surrogate.model_name_by_metric == {"loss": "SingleTaskRCGP"}
    assert type(model) is SingleTaskRCGP
    outliers = torch.arange(12) % 5 == 2
    assert torch.equal(model.weights().squeeze(-1) < 0.5, outliers)
    known = (
        model.likelihood.noise
        * (model.outcome_transform.stdvs * adapter.transforms["RobustStandardizeY"].Ystd["loss"]) ** 2
    )
    if sem:
        torch.testing.assert_close(known.flatten(), torch.full((12,), 0.09, dtype=torch.float64))
    assert (model.likelihood.noise.numel() == 12) == (sem is not None)
    assert len(trials) == 2
    best, prediction, _, _ = client.get_best_parameterization()
    assert smooth(best) == pytest.approx(prediction["loss"][0], abs=1.0)


def test_two_metrics_are_outputs_of_one_model():
    client = with_data(metrics=("loss", "cost"), objective="-loss, -cost")
    client.get_next_trials(max_trials=1)
    adapter = adapter_of(client)
    assert type(model_of(adapter)) is SingleTaskRCGP
    means, _ = adapter.predict([ObservationFeatures({"x": 3.0, "y": 5.0})])
    truth = smooth({"x": 3.0, "y": 5.0})
    np.testing.assert_allclose([means["loss"][0], means["cost"][0]], [truth, 2.0 * truth], rtol=0.05)


def test_options_reach_strategy_and_model():
    strategy = robust_ax.generation_strategy(weight="imq", initialization_budget=3, initialize_with_center=False)
    specs = strategy.nodes_by_name["MBM"].generator_specs
    (config,) = specs[0].generator_kwargs["surrogate_spec"].model_configs
    assert strategy.nodes_by_name["Sobol"].transition_criteria[0].threshold == 3
    assert model_of(adapter_of(with_data(), config)).weight.__class__ is InverseMultiquadric


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match='weight must be "learned", "imq"'):
        robust_ax.generation_strategy(weight="median")
    with pytest.raises(TypeError, match="no method"):
        robust_ax.generation_strategy(method="fast")
    with pytest.raises(TypeError, match="budget"):
        robust_ax.generation_strategy(budget=3)


def test_transforms_are_those_of_ax_without_what_outliers_spoil():
    defaults = Generators.BOTORCH_MODULAR._get_adapter_kwargs(
        Generators.BOTORCH_MODULAR.GENERATOR_KEY_TO_GENERATOR_SETUP["BoTorch"]
    )["transforms"]
    assert Winsorize in defaults
    assert StandardizeY in defaults
    expected = [robust_ax.RobustStandardizeY if kind is StandardizeY else kind for kind in defaults]
    expected.remove(Winsorize)
    assert robust_ax.transforms() == expected


def test_outliers_do_not_change_the_scale_of_the_outcomes():
    scales = []
    for outlier in (0.0, 1e8):
        adapter = adapter_of(with_data(outlier=outlier))
        (spread,) = adapter.transforms["RobustStandardizeY"].Ystd.values()
        scales.append(spread)
    assert scales[1] < 2.0 * scales[0]


def test_standardisation_of_ax_is_spoiled_by_outliers_and_ours_is_not():
    client = with_data(n=20, outlier=-1e4)  # to the better side, where Ax does not winsorize
    bare = adapter_of(client, ModelConfig(SingleTaskRCGP), Generators.BOTORCH_MODULAR.view_defaults()[1]["transforms"])
    config_only = adapter_of(client, None, Generators.BOTORCH_MODULAR.view_defaults()[1]["transforms"])
    ours = adapter_of(client)
    assert error_on_grid(ours, smooth) < 0.5
    assert error_on_grid(config_only, smooth) < 0.5
    assert error_on_grid(bare, smooth) > 2.0 * error_on_grid(ours, smooth)


@pytest.mark.parametrize("sem", [None, 0.3])
def test_leave_one_out_by_ax_is_that_of_the_robust_model(sem, monkeypatch):
    adapter = adapter_of(with_data(sem=sem))
    model = model_of(adapter)
    expected_mean, expected_variance = brute_force_with_weights_held(adapter)
    # Without the closed form Ax would go over to models of the folds, silently.
    monkeypatch.setattr(cross_validation, "_fold_cross_validate", None)
    for noise in (False, True):
        found = predictions(cross_validation.cross_validate(adapter, use_posterior_predictive=noise))
        mean, variance = np.array(list(found.values())).T
        extra = (
            adapter.transforms["RobustStandardizeY"].Ystd["loss"] ** 2
            * (model.likelihood.noise.detach() * model.outcome_transform.stdvs**2).flatten()
        )
        np.testing.assert_allclose(mean, expected_mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(variance, expected_variance + noise * extra.numpy(), rtol=1e-5, atol=1e-7)


def brute_force_with_weights_held(adapter):
    """Each row predicted by an ordinary GP of the other rows' pseudo-data, in the units of the experiment."""
    model = model_of(adapter)
    weighed = model._weighed()
    z, r = weighed.pseudo.target, weighed.pseudo.root_precision.square().reciprocal()
    means, variances = [], []
    for row in range(len(z)):
        others = torch.arange(len(z)) != row
        k = weighed.K[row, others]
        solved = torch.linalg.solve(
            weighed.K[others][:, others] + torch.diag(r[others]), torch.stack([z[others], k], -1)
        )
        means.append((k @ solved[:, 0]).item())
        variances.append((weighed.K[row, row] - k @ solved[:, 1]).item())
    prior = (model.train_targets - weighed.residual).detach().numpy()
    centre, scale = (statistic.item() for statistic in (model.outcome_transform.means, model.outcome_transform.stdvs))
    outer = adapter.transforms["RobustStandardizeY"]
    mean = (np.array(means) + prior) * scale + centre
    return (
        mean * outer.Ystd["loss"] + outer.Ymean["loss"],
        np.array(variances) * (scale * outer.Ystd["loss"]) ** 2,
    )


@pytest.mark.filterwarnings("ignore:Negative variance values")  # rounding, of a function without noise
@pytest.mark.parametrize(("sem", "refit"), [(None, False), (0.3, False), slow(0.3, True)])
def test_folds_by_ax_are_models_of_the_other_rows(sem, refit):
    n = 12 if not refit else 8
    adapter = adapter_of(with_data(n, sem=sem), refit_on_cv=refit, warm_start_refit=False)
    # A selector, even of everything, makes Ax build a model for each fold.
    found = predictions(cross_validation.cross_validate(adapter, test_selector=lambda _: True))
    assert len(found) == n
    (data,) = adapter.generator.surrogate.training_data
    state = model_of(adapter).state_dict()
    outer = adapter.transforms["RobustStandardizeY"]
    names = [observation.arm_name for observation in adapter.get_training_data().convert_to_list_of_observations()]
    for row, name in enumerate(names):
        others = torch.arange(n) != row
        model = SingleTaskRCGP(
            data.X[others],
            data.Y[others],
            None if sem is None else data.Yvar[others],
            input_transform=copy.deepcopy(model_of(adapter).input_transform),
        )
        if refit:
            fit(model)
        else:
            model.load_state_dict(state)
        posterior = model.posterior(data.X[[row]])
        mean, variance = posterior.mean.item() * outer.Ystd["loss"] + outer.Ymean["loss"], posterior.variance.item()
        tolerance = 1e-4 if refit else 1e-5  # two searches end where a step gains nothing
        np.testing.assert_allclose(found[name], [mean, variance * outer.Ystd["loss"] ** 2], rtol=tolerance, atol=1e-6)


def test_both_kinds_of_cross_validation_predict_the_function_at_outliers():
    adapter = adapter_of(with_data())
    rows = adapter.get_training_data().convert_to_list_of_observations()
    truth = {row.arm_name: smooth(row.features.parameters) for row in rows}
    closed = predictions(cross_validation.cross_validate(adapter))
    folds = predictions(cross_validation.cross_validate(adapter, test_selector=lambda _: True))
    for name, expected in truth.items():
        for found in (closed, folds):
            mean, variance = found[name]
            assert abs(mean - expected) < 4.0 * np.sqrt(variance) + 1.0


def test_model_options_of_ax_reach_the_model():
    """A model config put together by hand, in a process that knows nothing of the functions here."""
    rng = np.random.default_rng(0)
    X, Y = torch.tensor(rng.uniform(size=(6, 2))), torch.tensor(rng.normal(size=(6, 1)))
    weight = InverseMultiquadric(c=2.0)
    arguments = submodel_input_constructor.dispatch(Model)(
        SingleTaskRCGP,
        ModelConfig(botorch_model_class=SingleTaskRCGP, model_options={"weight": weight}),
        SupervisedDataset(X, Y, feature_names=["x", "y"], outcome_names=["loss"]),
        SearchSpaceDigest(feature_names=["x", "y"], bounds=[(0.0, 1.0), (0.0, 1.0)]),
        Surrogate(),
    )
    model = SingleTaskRCGP(**arguments)
    assert model.weight is weight


@pytest.mark.parametrize(("weight", "mll"), [("learned", ExactMarginalLogLikelihood), ("imq", LeaveOneOutObjective)])
def test_configuration_survives_json(weight, mll):
    config = robust_ax.model_config(weight)
    text = json.dumps(object_to_json([config, robust_ax.transforms()]))
    loaded, transforms = object_from_json(json.loads(text))
    assert loaded == config
    assert loaded.botorch_model_class is SingleTaskRCGP
    assert loaded.mll_class is mll
    assert loaded.outcome_transform_classes == [RobustStandardize]
    assert transforms == robust_ax.transforms()


CONTINUE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
import torch
import rcgp.botorch.ax
from ax.api.client import Client
torch.set_num_threads(1)
client = Client.load_from_json_file(sys.argv[1])
(parameters,) = client.get_next_trials(max_trials=1).values()
strategy = client._generation_strategy
model = strategy.adapter.generator.surrogate.model
print(json.dumps([type(model).__name__, strategy.current_node_name, client.predict([{"x": 3.0, "y": 5.0}])]))
"""


@pytest.mark.slow
def test_another_process_continues_a_saved_experiment(tmp_path):
    client = with_data(sem=0.3)
    client.get_next_trials(max_trials=2)
    client.save_to_json_file(str(tmp_path / "saved.json"))
    done = subprocess.run(
        [sys.executable, "-c", CONTINUE, str(tmp_path / "saved.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name, node, (prediction,) = json.loads(done.stdout.splitlines()[-1])
    assert (name, node) == ("SingleTaskRCGP", "MBM")
    (expected,) = client.predict([{"x": 3.0, "y": 5.0}])
    np.testing.assert_allclose(prediction["loss"], expected["loss"], rtol=1e-5)


def test_ax_is_imported_here_only_and_where_it_is_missing_the_error_names_the_extra():
    code = "import sys, rcgp.botorch; assert 'ax' not in sys.modules; sys.modules['ax'] = None; import rcgp.botorch.ax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "ImportError: rcgp.botorch.ax needs Ax: pip install 'rcgp[ax]'"
    code = "import sys; sys.modules['botorch'] = None; import rcgp.botorch.ax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("for rcgp.botorch.ax it is 'rcgp[ax]'")


def test_outlier_probability_is_that_of_every_observation_and_the_newest():
    client = with_data()
    client.get_next_trials(max_trials=2)  # with which the strategy has a model, of the trials before
    newest = client.attach_trial({"x": 3.0, "y": 5.0})
    client.complete_trial(newest, raw_data={"loss": smooth({"x": 3.0, "y": 5.0}) + 60.0})
    before = client._generation_strategy.adapter
    found = robust_ax.outlier_probability(client)
    assert list(found.columns) == ["loss"]
    assert found.index.names == ["trial_index", "arm_name"]
    assert list(found.index) == [(trial, f"{trial}_0") for trial in (*range(12), newest)]
    assert list(found.index[found["loss"] > 0.5].get_level_values("trial_index")) == [2, 7, newest]
    assert ((found["loss"] >= 0.0) & (found["loss"] <= 1.0)).all()
    # The strategy is as it was.
    assert client._generation_strategy.adapter is before
    assert len(model_of(before).train_targets) == 12


def test_outlier_probability_is_for_each_metric_that_a_trial_has():
    client = with_data(metrics=("loss", "cost"), objective="-loss, -cost")
    both = robust_ax.outlier_probability(client)
    half = client.attach_trial({"x": 3.0, "y": 5.0})
    client.attach_data(half, raw_data={"cost": 2.0 * smooth({"x": 3.0, "y": 5.0}) + 300.0})
    found = robust_ax.outlier_probability(client)  # a list of models, since there are trials of one metric only
    assert both.shape == (12, 2)
    assert found.shape == (13, 2)
    assert list(found.index[found["loss"].isna()]) == [(half, f"{half}_0")]
    for frame, expected in ((both, [2, 7]), (found, [2, 7, half])):
        assert list(frame.index[frame["cost"] > 0.5].get_level_values("trial_index")) == expected
        assert list(frame.index[frame["loss"] > 0.5].get_level_values("trial_index")) == [2, 7]


def test_outlier_probability_needs_a_robust_model_and_data():
    with pytest.raises(UserInputError, match="no trial has data"):
        robust_ax.outlier_probability(new_client(robust_ax.generation_strategy()))
    with pytest.raises(UserInputError, match="has no SingleTaskRCGP"):
        robust_ax.outlier_probability(new_client(choose_generation_strategy(GenerationStrategyDispatchStruct())))


@pytest.mark.parametrize("metrics", [("loss",), ("loss", "cost")])
def test_standard_errors_in_some_trials_are_refused_by_the_name_of_the_metric(metrics):
    client = with_data(n=6, sem=0.3, metrics=metrics, objective=", ".join(f"-{metric}" for metric in metrics))
    other = client.attach_trial({"x": 3.0, "y": 5.0})
    client.complete_trial(other, raw_data={"loss": 1.0, "cost": (2.0, 0.3)} if len(metrics) > 1 else {"loss": 1.0})
    with pytest.raises(UserInputError, match=r"metric 'loss' has .* standard errors in all trials or in none"):
        client.get_next_trials(max_trials=2)


def regret_of_best_arm(strategy, seed):
    """Regret of the arm that Ax calls the best, after an optimisation with one outlier in five evaluations."""
    # Few restarts: fast, and the same for both models.
    strategy.nodes_by_name["MBM"].generator_specs[0].generator_gen_kwargs.update(
        {"model_gen_options": {"optimizer_kwargs": {"num_restarts": 4, "raw_samples": 64}}}
    )
    client, rng = new_client(strategy, seed), np.random.default_rng(seed)
    for step in range(20):
        if step < 10:
            parameters = {"x": rng.uniform(-5.0, 10.0), "y": rng.uniform(0.0, 15.0)}
            index = client.attach_trial(parameters)
        else:
            ((index, parameters),) = client.get_next_trials(max_trials=1).items()
        shift = rng.choice([-1.0, 1.0]) * rng.uniform(200.0, 2000.0) * (rng.random() < 0.2)  # the range is 300
        client.complete_trial(index, raw_data={"loss": value(parameters) + shift})
    return value(client.get_best_parameterization()[0]) - branin.optimal_value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")  # with so few rows a fit may have its doubts
def test_among_outliers_the_best_arm_is_mostly_better_than_with_the_ordinary_model():
    seeds = range(4)  # an optimisation of 20 evaluations may be lost to its outliers by any model
    ordinary = [regret_of_best_arm(choose_generation_strategy(GenerationStrategyDispatchStruct()), s) for s in seeds]
    robust = [regret_of_best_arm(robust_ax.generation_strategy(), seed) for seed in seeds]
    assert np.median(robust) < np.median(ordinary)
