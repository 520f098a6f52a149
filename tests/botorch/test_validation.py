from __future__ import annotations

import gpytorch
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms import Log, Normalize
from botorch.settings import validate_input_scaling
from botorch.utils.datasets import SupervisedDataset

from problems_of_botorch import ROWS, D, make_data, make_model
from rcgp.botorch import LeaveOneOutObjective, SingleTaskRCGP, fit
from rcgp.weights import Constant, InverseMultiquadric, SquaredExponential


def data_with(name, value, row, column):
    X, Y = make_data(m=2)
    data = {"train_X": X, "train_Y": Y, "train_Yvar": torch.full_like(Y, 0.01)}
    data[name][row, column] = value
    return data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["train_X", "train_Y", "train_Yvar"])
def test_bad_numbers_are_named(name, value):
    shown = str(value).replace("nan", "NaN")
    with pytest.raises(InputDataError, match=rf"{name} contains {shown} in row 3, column 1"):
        SingleTaskRCGP(**data_with(name, value, 3, 1))


def test_bad_numbers_of_a_batch_are_named():
    X, Y = make_data(batch=(2,))
    Y[1, 4, 0] = torch.nan
    with pytest.raises(InputDataError, match="train_Y contains NaN in row 4, column 0"):
        SingleTaskRCGP(X, Y)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_variances_must_be_positive(value):
    with pytest.raises(InputDataError, match="train_Yvar must be positive, but is not in row 3"):
        SingleTaskRCGP(**data_with("train_Yvar", value, 3, 1))


def test_what_a_transform_breaks_is_named():
    X, Y = make_data()
    Y[5] = -1.0
    with pytest.raises(InputDataError, match="train_Y after the transforms contains NaN in row 5, column 0"):
        SingleTaskRCGP(X, Y, outcome_transform=Log())


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        ((6, 2), (6,), r"got \(6, 2\) and \(6,\); use train_Y.unsqueeze\(-1\)"),
        ((6, 2), (5, 1), r"got \(6, 2\) and \(5, 1\)"),
        ((6,), (6,), r"train_X must have shape \.\.\. x n x d"),
        ((2, 6, 2), (6, 1), r"got \(2, 6, 2\) and \(6, 1\)"),
        ((2, 6, 2), (3, 6, 1), r"got \(2, 6, 2\) and \(3, 6, 1\)"),
        ((0, 2), (0, 1), r"train_X is empty: its shape is \(0, 2\)"),
        ((6, 0), (6, 1), r"train_X is empty: its shape is \(6, 0\)"),
    ],
)
def test_wrong_shapes_of_training_data_are_named(X, Y, message):
    with pytest.raises(BotorchTensorDimensionError, match=message):
        SingleTaskRCGP(torch.rand(X, dtype=torch.float64), torch.rand(Y, dtype=torch.float64))


def test_wrong_shape_of_variances_is_named():
    X, Y = make_data(m=2)
    with pytest.raises(BotorchTensorDimensionError, match=r"train_Yvar must have the shape of train_Y, \(10, 2\)"):
        SingleTaskRCGP(X, Y, torch.ones(ROWS, 1, dtype=torch.float64))


def test_data_must_be_tensors():
    X, Y = make_data()
    with pytest.raises(InputDataError, match="train_Y must be a tensor, got list"):
        SingleTaskRCGP(X, Y.tolist())


def test_types_must_agree():
    X, Y = make_data()
    with pytest.raises(InputDataError, match="dtype"):
        SingleTaskRCGP(X, Y.float())


@pytest.mark.parametrize("outputs", [[2], [0, 5], [-3]])
def test_unknown_outputs_are_named(outputs):
    model = make_model(*make_data(m=2))
    x = torch.rand(3, D, dtype=torch.float64)
    with pytest.raises(IndexError, match=f"output_indices has {outputs[-1]}, but the model has 2 outputs"):
        model.posterior(x, output_indices=outputs)
    with pytest.raises(IndexError, match=f"idcs has {outputs[-1]}, but the model has 2 outputs"):
        model.subset_output(outputs)


def test_unknown_output_of_a_model_with_one():
    model = make_model(*make_data())
    with pytest.raises(IndexError, match=r"output_indices has 1, but the model has 1 output$"):
        model.posterior(torch.rand(3, D, dtype=torch.float64), output_indices=[1])


@pytest.mark.parametrize("shape", [(3, D + 1), (2, 3, 1), (D,)])
def test_wrong_test_columns_are_named(shape):
    model = make_model(*make_data())
    with pytest.raises(BotorchTensorDimensionError, match=rf"X must have shape \.\.\. x q x {D} like the training"):
        model.posterior(torch.rand(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        ((4, D + 1), (4, 2), rf"X must have shape \.\.\. x n' x {D}, got \(4, {D + 1}\)"),
        ((4, D), (4, 1), r"Y must have shape \.\.\. x 4 x 2, a row for each of X and 2 outputs, got \(4, 1\)"),
        ((4, D), (3, 2), r"Y must have shape \.\.\. x 4 x 2"),
    ],
)
def test_wrong_shapes_of_new_observations_are_named(X, Y, message):
    model = make_model(*make_data(m=2))
    with pytest.raises(BotorchTensorDimensionError, match=message):
        model.condition_on_observations(torch.rand(X, dtype=torch.float64), torch.rand(Y, dtype=torch.float64))


@pytest.mark.parametrize("name", ["X", "Y"])
def test_bad_new_observations_are_named(name):
    model = make_model(*make_data(m=2))
    X, Y = make_data(n=4, m=2)
    {"X": X, "Y": Y}[name][2, 1] = torch.nan
    with pytest.raises(InputDataError, match=f"{name} contains NaN in row 2, column 1"):
        model.condition_on_observations(X, Y)


@pytest.mark.parametrize("weight", ["median", None, 3.0, ["imq"], Constant])
def test_unknown_weights_are_refused(weight):
    with pytest.raises(ValueError, match=r'weight must be "learned", "imq", "se", "constant" or a weight function'):
        SingleTaskRCGP(*make_data(), weight=weight)


@pytest.mark.parametrize(
    ("name", "kind"), [("imq", InverseMultiquadric), ("se", SquaredExponential), ("constant", Constant)]
)
def test_weights_have_names(name, kind):
    model = SingleTaskRCGP(*make_data(), weight=name)
    assert type(model.weight) is kind
    assert "law" not in model.state_dict()


@pytest.mark.parametrize(
    "likelihood",
    [
        gpytorch.likelihoods.StudentTLikelihood(),
        gpytorch.likelihoods.LaplaceLikelihood(),
        gpytorch.likelihoods.BernoulliLikelihood(),
        gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2),
        type("Subclass", (gpytorch.likelihoods.GaussianLikelihood,), {})(),
        gpytorch.likelihoods.DirichletClassificationLikelihood(torch.zeros(ROWS, dtype=torch.long)),
        0.1,
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_a_likelihood_that_is_not_gaussian_is_refused(likelihood):
    name = type(likelihood).__name__
    with pytest.raises(TypeError, match=f"likelihood must be a GaussianLikelihood or Fixed.*, got {name}: outliers"):
        SingleTaskRCGP(*make_data(), likelihood=likelihood)


@pytest.mark.parametrize(
    "likelihood",
    [
        gpytorch.likelihoods.GaussianLikelihood(),
        gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full((ROWS,), 0.1, dtype=torch.float64)),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_gaussian_likelihoods_are_used(likelihood):
    model = SingleTaskRCGP(*make_data(), likelihood=likelihood)
    assert model.likelihood is likelihood
    assert model.posterior(torch.rand(3, D, dtype=torch.float64)).variance.isfinite().all()


def test_learned_noise_in_addition_to_known_noise_is_refused():
    noise = torch.full((ROWS,), 0.1, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True)
    with pytest.raises(ValueError, match="learn_additional_noise=True"):
        SingleTaskRCGP(*make_data(), likelihood=likelihood)


@pytest.mark.parametrize("shape", [(1,), (ROWS - 1,), (ROWS,), (ROWS, 2)])
def test_known_noises_must_be_those_of_the_observations(shape):
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full(shape, 0.1, dtype=torch.float64))
    with pytest.raises(BotorchTensorDimensionError, match=rf"shape of the observations, \(2, {ROWS}\)"):
        SingleTaskRCGP(*make_data(m=2), likelihood=likelihood)


def test_an_unknown_weight_is_refused_before_the_model_is_built():
    X, Y = make_data()
    data = SupervisedDataset(X, Y, feature_names=[f"x{i}" for i in range(D)], outcome_names=["y"])
    with pytest.raises(ValueError, match=r"weight must be .* got 'nonsense'"):
        SingleTaskRCGP.construct_inputs(data, weight="nonsense")


def test_only_this_kind_of_model_is_fitted():
    with pytest.raises(TypeError, match="model must be a SingleTaskRCGP or MultiTaskRCGP, got Linear"):
        fit(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="LeaveOneOutObjective needs a SingleTaskRCGP or MultiTaskRCGP, got NoneType"):
        LeaveOneOutObjective(make_model(*make_data()).likelihood)


def test_inputs_outside_the_unit_cube_are_warned_of_as_by_botorch():
    X, Y = make_data()
    with pytest.warns(InputDataWarning, match="not contained to the unit cube"):
        SingleTaskRCGP(100.0 * X, Y)
    SingleTaskRCGP(100.0 * X, Y, input_transform=Normalize(d=X.shape[-1]))
    SingleTaskRCGP(100.0 * X, Y, covar_module=gpytorch.kernels.RBFKernel())
    with validate_input_scaling(False):
        SingleTaskRCGP(100.0 * X, Y)
