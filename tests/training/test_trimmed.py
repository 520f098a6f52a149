from __future__ import annotations

import gpytorch
import pytest
import torch

from rcgp import RCGP
from rcgp.core.trimming import trim
from rcgp.models.constraints import Between
from rcgp.models.defaults import add_weak_priors, robust_spread
from rcgp.training import FitError, find_trusted, fit_to_rows, fit_trimmed
from rcgp.training.climbing import trimmed_at
from rcgp.training.rows import evidence_of
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters
from rcgp.weights import Constant, Rejection

ROWS, OUTLIERS = 60, 12


def make_data(outliers=OUTLIERS, n=ROWS, seed=0, shift=(1.0, 2.0)):
    """A function of two inputs without noise; the first rows are shifted upwards."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(4.0 * X[:, 0]) + torch.cos(3.0 * X[:, 1]) + X.prod(dim=-1)
    low, high = shift
    y[:outliers] += low + (high - low) * torch.rand(outliers, generator=generator, dtype=torch.float64)
    return X, y


def make_model(X, y, **arguments):
    """A model with weak priors whose noise is, as in an optimisation, little and not nothing."""
    model = RCGP(X, y, weight=Constant(), mean="median", **arguments)
    add_weak_priors(model)
    scale = robust_spread(y - y.median()) ** 2
    model.register_constraint("raw_noise", Between(1e-4 * scale, torch.inf))
    model.noise = 1e-2 * scale
    return model


def flagged(model):
    """Rows beyond the thresholds of the model's weight."""
    weight = model.weight
    return ((model.residual() - weight.centre).abs() > weight.threshold).nonzero().squeeze(-1).tolist()


def test_outliers_of_one_side_are_found():
    """In five data sets of six; the search for who is trusted is not an exhaustive one."""
    found = 0
    for seed in range(6):
        X, y = make_data(seed=seed)
        model = make_model(X, y)
        assert fit_trimmed(model).objective == "trimmed"
        if flagged(model) != list(range(OUTLIERS)):
            continue
        found += 1
        truth = make_data(outliers=0, seed=seed)[1]
        assert (model.posterior(X).mean - truth).abs().max() < 0.1  # outliers are 1 to 2 off
    assert found >= 5


@pytest.mark.parametrize("seed", range(3))
def test_none_is_found_where_there_is_none(seed):
    model = make_model(*make_data(outliers=0, seed=seed))
    fit_trimmed(model)
    assert flagged(model) == []


def test_hyperparameters_maximise_the_evidence_of_the_trusted_rows():
    model = make_model(*make_data(n=20, outliers=3))
    report = fit_trimmed(model)
    trusted = torch.ones(20, dtype=torch.bool)
    trusted[:3] = False
    assert flagged(model) == [0, 1, 2]
    best = evidence_of(trusted)(model)
    assert report.value == pytest.approx(best.item(), rel=1e-6)
    # Noise is at its lower bound.
    changes = [(parameter, change) for parameter in model.kernel.parameters() for change in (0.3, -0.3)]
    for parameter, change in [*changes, (model.raw_noise, 0.3)]:
        with torch.no_grad():
            parameter += change
            assert evidence_of(trusted)(model) < best
            parameter -= change


def test_weight_is_that_of_the_final_hyperparameters():
    model = make_model(*make_data(n=20, outliers=3))
    fit_trimmed(model)
    with torch.no_grad():
        noise = model.training_terms().row_noise.expand(20)
        trimmed = trim(model.kernel_matrix(), model.residual(), noise)
    assert isinstance(model.weight, Rejection)
    torch.testing.assert_close(model.weight.centre, trimmed.mean)
    torch.testing.assert_close(model.weight.threshold, trimmed.threshold)


@pytest.mark.parametrize(("unit", "shift"), [(1e-3, 0.0), (250.0, -1e4)])
def test_unit_and_origin_of_observations_do_not_matter(unit, shift):
    X, y = make_data(n=20, outliers=3)
    plain, other = make_model(X, y), make_model(X, unit * y + shift)
    for model in (plain, other):
        fit_trimmed(model)
    assert flagged(other) == flagged(plain)
    torch.testing.assert_close((other.posterior(X).mean - shift) / unit, plain.posterior(X).mean, rtol=1e-2, atol=1e-2)


def test_order_of_rows_does_not_matter():
    X, y = make_data(n=20, outliers=3)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    plain, other = make_model(X, y), make_model(X[order], y[order])
    for model in (plain, other):
        fit_trimmed(model)
    assert sorted(order[flagged(other)].tolist()) == flagged(plain)
    torch.testing.assert_close(other.posterior(X).mean, plain.posterior(X).mean, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1e6, 1e100, 1e300])
def test_outliers_may_be_any_size(size):
    X, y = make_data(n=20, outliers=3)
    y[:3] = size
    model = make_model(X, y)
    fit_trimmed(model)
    assert flagged(model) == [0, 1, 2]
    truth = make_data(n=20, outliers=0)[1]
    assert (model.posterior(X).mean - truth)[3:].abs().max() < 0.1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows_are_fitted(n):
    model = make_model(*make_data(n=n, outliers=0))
    report = fit_trimmed(model)
    assert torch.tensor(report.value).isfinite()
    assert len(flagged(model)) <= 0.4 * n
    assert model.posterior(model.train_X).mean.isfinite().all()


def test_known_precisions_are_used():
    X, y = make_data(n=20, outliers=0)
    precision = torch.ones(20, dtype=torch.float64)
    y[0] += 1.0
    precision[0] = 1e-6  # known to be far off: no outlier
    model = make_model(X, y, sample_weight=precision)
    fit_trimmed(model)
    assert flagged(model) == []


class Broken(gpytorch.kernels.RBFKernel):
    """No covariance function."""

    def forward(self, *arguments, **named):
        return super().forward(*arguments, **named) * torch.nan


def test_failed_fit_leaves_the_model_as_it_was():
    X, y = make_data(n=12, outliers=2)
    model = make_model(X, y)
    model.kernel.base_kernel = Broken(ard_num_dims=2).double()
    weight, before = model.weight, {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(FitError):
        fit_trimmed(model)
    assert model.weight is weight
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0.0, atol=0.0)


def test_interrupted_fit_leaves_the_model_as_it_was(monkeypatch):
    model = make_model(*make_data(n=12, outliers=2))
    weight, before = model.weight, {name: value.clone() for name, value in model.state_dict().items()}

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("rcgp.training.trimmed.Rejection", interrupted)  # at the very end
    with pytest.raises(KeyboardInterrupt):
        fit_trimmed(model)
    assert model.weight is weight
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0.0, atol=0.0)


def test_trusted_rows_are_found_without_the_last_search():
    X, y = make_data()
    model, fitted = make_model(X, y), make_model(X, y)
    trusted, gain, evaluations = find_trusted(model)
    assert evaluations > 0
    assert gain > 30.0
    assert (~trusted).nonzero().squeeze(-1).tolist() == list(range(OUTLIERS))
    fit_trimmed(fitted)
    assert torch.equal(trimmed_at(fitted).trusted, trusted)
    assert isinstance(model.weight, Constant)


def test_of_two_maxima_of_the_evidence_the_better_is_kept():
    """A wave that few rows see may be noise around a constant: that depends on where a search begins."""
    X = torch.linspace(0.0, 1.0, 16, dtype=torch.float64).unsqueeze(-1)
    model = make_model(X, torch.sin(25.0 * X[:, 0]))
    everyone = torch.ones(len(X), dtype=torch.bool)
    starts = []
    for lengthscale, noise in ((5.0, 0.5), (0.1, 1e-3)):
        model.kernel.base_kernel.lengthscale, model.noise = lengthscale, noise
        starts.append(hyperparameters_of(model))
    values = []
    for start in starts:
        restore_hyperparameters(model, start)
        values.append(fit_to_rows(model, everyone).value)
    assert values[1] > values[0] + 2.0
    for start, other in (starts, reversed(starts)):
        restore_hyperparameters(model, start)
        report = fit_to_rows(model, everyone, other_start=other)
        assert report.value == pytest.approx(values[1], abs=1e-4)
        assert evidence_of(everyone)(model).item() == pytest.approx(report.value, abs=1e-6)
