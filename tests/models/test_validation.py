from __future__ import annotations

import copy
from datetime import date

import gpytorch
import numpy as np
import pytest
import torch

from rcgp import RCGP, fit
from rcgp.weights import WeightFunction

X = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
Y = torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0], dtype=torch.float64)


def spoilt(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


BAD = {
    "nan in X": (spoilt(X, (3, 1), torch.nan), Y, r"train_X contains NaN in row 3, column 1 \(1 bad row in all"),
    "inf in X": (spoilt(X, (2, 0), torch.inf), Y, "train_X contains inf in row 2, column 0"),
    "nan in y": (X, spoilt(Y, 4, torch.nan), "train_y contains NaN in row 4"),
    "minus inf in y": (X, spoilt(Y, 1, -torch.inf), "train_y contains -inf in row 1"),
    "empty": (X[:0], Y[:0], "train_X is empty: it has 0 rows and 2 columns"),
    "no columns": (X[:, :0], Y, "train_X is empty: it has 5 rows and 0 columns"),
    "mismatched rows": (X, Y[:3], "same number of rows, got 5 and 3"),
    "one-dimensional X": (X[:, 0], Y, r"train_X must have shape n x d.*unsqueeze\(-1\)"),
    "column y": (X, Y.unsqueeze(-1), r"train_y must have shape n.*squeeze\(-1\)"),
    "two outputs": (X, Y.expand(2, 5).T, "train_y must have shape n, got"),
    "complex": (X.to(torch.complex128), Y, "train_X must be real"),
    "sparse": (X.to_sparse(), Y, "train_X must be dense"),
    "strings": ([["a", "b"]], [1.0], "train_X cannot be read"),
    "dates": (np.array([["2024-01-01"]], "datetime64[D]"), [1.0], "train_X cannot be read .* it holds dates; give num"),
    "objects that are dates": ([[date(2024, 1, 1)]], [1.0], "train_X cannot be read .* it holds dates"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_training_data_are_named(name):
    train_X, train_y, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        RCGP(train_X, train_y)


@pytest.mark.parametrize(
    ("test_X", "message"),
    [
        (spoilt(X, (4, 0), torch.nan), "test_X contains NaN in row 4, column 0"),
        (X[:, :1], "test_X must have shape ... x q x 2"),
        (X[0], "test_X must have shape"),
        (X[:0], "test_X is empty"),
    ],
)
def test_bad_test_inputs_are_named_and_do_not_change_the_model(test_X, message):
    model = RCGP(X, Y)
    before = model.posterior(X).mean
    with pytest.raises(ValueError, match=message):
        model.posterior(test_X)
    assert torch.equal(model.posterior(X).mean, before)


def test_first_bad_row_of_a_batch_is_found():
    with pytest.raises(ValueError, match=r"row 1, column 0"):
        RCGP(X, Y).posterior(spoilt(torch.stack([X, X]), (1, 1, 0), torch.nan))


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan")])
def test_invalid_noise_raises(noise):
    with pytest.raises(ValueError, match="noise must be a positive variance"):
        RCGP(X, Y, noise=noise)


@pytest.mark.parametrize("argument", ["kernel", "weight"])
def test_objects_of_the_wrong_type_raise(argument):
    with pytest.raises(TypeError, match=argument):
        RCGP(X, Y, **{argument: "rbf"})


def test_integers_numpy_arrays_and_lists_are_accepted():
    expected = RCGP(X, Y).posterior(X).mean
    for train_X, train_y in ((X.long(), Y), (X.numpy(), Y.numpy()), (X.tolist(), Y), (X.int(), Y.float().double())):
        torch.testing.assert_close(RCGP(train_X, train_y).posterior(X).mean, expected)
    model = RCGP(X.long(), Y.long())
    assert model.train_X.dtype == model.train_y.dtype == torch.float64


def test_the_wider_floating_type_wins():
    assert RCGP(X.float(), Y).train_X.dtype == torch.float64
    assert RCGP(X.float(), Y.float()).train_X.dtype == torch.float32
    assert RCGP(X.half(), Y.bfloat16()).train_X.dtype == torch.float32


def test_non_contiguous_tensors_give_the_same_model():
    wide = torch.stack([X, X + 100], dim=-1)
    strided_X, strided_y = wide[..., 0], torch.stack([Y, Y], dim=-1)[:, 0]
    assert not strided_X.is_contiguous()
    expected = RCGP(X, Y).posterior(X)
    ours = RCGP(strided_X, strided_y).posterior(X.T.contiguous().T)
    torch.testing.assert_close(ours.mean, expected.mean)
    torch.testing.assert_close(ours.variance, expected.variance)


def test_the_model_keeps_its_own_copy_of_the_data():
    train_X, train_y = X.clone(), Y.clone()
    model = RCGP(train_X, train_y)
    before = model.posterior(X).mean
    train_X.fill_(torch.nan)
    train_y.fill_(torch.nan)
    torch.testing.assert_close(RCGP(X, Y).posterior(X).mean, before)
    assert fit(model).value == fit(RCGP(X, Y)).value


def test_read_only_and_reversed_arrays_are_accepted():
    array = X.numpy()[::-1]
    array.setflags(write=False)
    torch.testing.assert_close(RCGP(array, Y.numpy()[::-1]).posterior(X).mean, RCGP(X, Y).posterior(X).mean)


def test_lists_keep_double_precision():
    assert RCGP([[0.1], [0.2]], [1.0, 2.0]).train_X.dtype == torch.float64


def test_data_that_require_gradients_are_detached():
    model = RCGP(X.clone().requires_grad_(), Y.clone().requires_grad_())
    assert not model.train_X.requires_grad
    assert not model.train_y.requires_grad
    model.posterior(X).mean.numpy()
    copy.deepcopy(model)


class Broken(WeightFunction):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, residual, inputs, noise):
        return self.result(residual)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            lambda e: e.unsqueeze(-1),
            r"weight must give one number for each of the 5 rows.*, got shape \(5, 1\)",
        ),
        (lambda e: torch.tensor(1.0), r"got shape \(\)"),
        (lambda e: e.numpy(), "got ndarray"),
        (lambda e: -torch.ones_like(e), "weight must be finite and at least 0: it gives -1.0 in row 0"),
        (lambda e: torch.where(e == e[2], torch.nan, 1.0), "it gives nan in row 2"),
    ],
)
def test_a_weight_with_invalid_values_raises(result, message):
    with pytest.raises(ValueError, match=message):
        RCGP(X, Y, weight=Broken(result))


def test_a_mean_of_another_shape_raises():
    with pytest.raises(ValueError, match="mean must give one number for each of the 5 rows"):
        RCGP(X, Y, mean=gpytorch.means.ConstantMean(batch_shape=torch.Size([2])))


@pytest.mark.parametrize(("value", "error"), [(-1.0, ValueError), (1e-30, ValueError), ("a", TypeError)])
def test_invalid_noise_cannot_be_assigned(value, error):
    model = RCGP(X, Y)
    before = model.noise.item()
    with pytest.raises(error, match="noise must be"):
        model.noise = value
    assert model.noise.item() == before


def test_noise_below_the_floor_can_be_given_initially():
    assert RCGP(X, Y, noise=1e-30).noise.item() == pytest.approx(1e-30)
