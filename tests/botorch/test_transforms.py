from __future__ import annotations

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize

from problems_of_botorch import D, make_data, make_model
from rcgp.botorch import RobustStandardize, SingleTaskRCGP


def test_statistics_are_median_and_deviation():
    Y = torch.tensor([[1.0, -5.0], [2.0, -5.5], [4.0, -6.0], [8.0, -1.0], [1e6, 0.0]], dtype=torch.float64)
    transform = RobustStandardize(m=2)
    standardised, _ = transform(Y)
    # |Y - median|: 3, 2, 0, 4, 1e6 - 4 and 0, 0.5, 1, 4, 5.
    scale = torch.tensor([[3.0, 1.0]], dtype=torch.float64) / 0.6744897501960817
    torch.testing.assert_close(transform.means, torch.tensor([[4.0, -5.0]], dtype=torch.float64))
    torch.testing.assert_close(transform.stdvs, scale)
    torch.testing.assert_close(standardised, (Y - transform.means) / scale)


def test_normal_outcomes_have_unit_variance():
    Y = 3.0 + 2.0 * torch.randn(100_000, 1, dtype=torch.float64)
    standardised, _ = RobustStandardize(m=1)(Y)
    assert standardised.std().item() == pytest.approx(1.0, abs=0.02)
    assert standardised.mean().item() == pytest.approx(0.0, abs=0.02)


def test_outliers_move_the_statistics_no_further_than_other_outcomes():
    _, Y = make_data(n=21, outliers=False)
    for size in (1e3, 1e300):
        shifted = Y.clone()
        shifted[:9] = size
        transform = RobustStandardize(m=1)
        transform(shifted)
        assert Y.min() <= transform.means.item() <= Y.max()
        assert transform.stdvs.item() <= (Y.max() - Y.min()).item() / 0.67


@pytest.mark.parametrize("batch", [(), (2,), (2, 1)])
def test_there_and_back(batch):
    _, Y = make_data(batch=batch, m=2)
    Yvar = 0.1 + torch.rand_like(Y)
    transform = RobustStandardize(m=2, batch_shape=torch.Size(batch))
    transformed, variance = transform(Y, Yvar)
    torch.testing.assert_close(variance, Yvar / transform.stdvs**2)
    transform.eval()
    back, variance_back = transform.untransform(transformed, variance)
    torch.testing.assert_close(back, Y)
    torch.testing.assert_close(variance_back, Yvar)


def test_in_evaluation_mode_nothing_is_learnt():
    _, Y = make_data()
    transform = RobustStandardize(m=1)
    expected, _ = transform(Y)
    transform.eval()
    torch.testing.assert_close(transform(Y + 100.0)[0], expected + 100.0 / transform.stdvs)


@pytest.mark.parametrize(
    ("values", "mean", "scale"),
    [
        ([5.0], 5.0, 1.0),  # one outcome
        ([2.0, 2.0, 2.0], 2.0, 1.0),  # all equal
        ([2.0, 2.0, 2.0, 2.0, 12.0], 2.0, 2.0),  # more than half equal: mean absolute deviation
        ([1.0, 2.0], 1.5, 0.5 / 0.6744897501960817),
    ],
)
def test_outcomes_without_spread(values, mean, scale):
    transform = RobustStandardize(m=1)
    standardised, _ = transform(torch.tensor(values, dtype=torch.float64).unsqueeze(-1))
    assert transform.means.item() == pytest.approx(mean)
    assert transform.stdvs.item() == pytest.approx(scale)
    assert standardised.isfinite().all()


def test_some_outputs_may_be_left_alone():
    _, Y = make_data(m=3)
    transform = RobustStandardize(m=3, outputs=[0, -1])
    standardised, _ = transform(Y)
    every, _ = RobustStandardize(m=3)(Y)
    torch.testing.assert_close(standardised[:, 1], Y[:, 1])
    torch.testing.assert_close(standardised[:, [0, 2]], every[:, [0, 2]])


def test_subset_of_outputs():
    _, Y = make_data(m=3)
    transform = RobustStandardize(m=3)
    standardised, _ = transform(Y)
    subset = transform.eval().subset_output([2, 0])
    assert isinstance(subset, RobustStandardize)
    torch.testing.assert_close(subset(Y[:, [2, 0]])[0], standardised[:, [2, 0]])


def test_batch_shape_must_fit():
    _, Y = make_data(batch=(2,))
    with pytest.raises(RuntimeError, match="batch_shape"):
        RobustStandardize(m=1)(Y)


def test_is_linear_and_keeps_posteriors_gaussian():
    model = make_model(*make_data(m=2))
    transform = model.outcome_transform
    assert transform._is_linear
    x = torch.rand(4, D, dtype=torch.float64)
    posterior = model.posterior(x)
    raw = model(x.expand(2, 4, D))
    torch.testing.assert_close(posterior.mean, transform.means + transform.stdvs * raw.mean.mT)
    torch.testing.assert_close(posterior.variance, transform.stdvs**2 * raw.variance.mT)


def test_stands_in_for_standardize_in_other_models():
    X, Y = make_data(outliers=False)
    with pytest.warns(InputDataWarning, match="not standardized"):  # by mean and standard deviation, it is not
        robust = SingleTaskGP(X, Y, outcome_transform=RobustStandardize(m=1))
    plain = SingleTaskGP(X, Y, outcome_transform=Standardize(m=1))
    plain.load_state_dict(robust.state_dict())
    torch.testing.assert_close(robust.posterior(X).mean, plain.posterior(X).mean)


def test_is_the_default_and_none_is_none():
    X, Y = make_data(batch=(2,), m=2)
    assert isinstance(SingleTaskRCGP(X, Y).outcome_transform, RobustStandardize)
    assert not hasattr(SingleTaskRCGP(X, Y, outcome_transform=None), "outcome_transform")
