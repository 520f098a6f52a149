"""The sparse models of the paper: what is held fixed, what they run on, and that the robust one is the better."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from marks import slow
from rcgp.training.objectives import elbo, leave_one_out
from rcgp.weights import Constant, InverseMultiquadric
from rcgp_paper.data import prepare
from rcgp_paper.experiments import EXPERIMENTS, Options, RecordFile, figures, run_experiment, runs_to_make
from rcgp_paper.experiments.methods import METHODS, Outcome, run_method
from rcgp_paper.experiments.scores import normal_prediction

SPARSE = ("svgp", "svgp-noise", "rcsvgp", "rcsvgp-loo")


def fitted(method, problem, **settings):
    X, y = torch.tensor(problem.train_X), torch.tensor(problem.train_y)
    return METHODS[method](X, y, problem, **settings)


@pytest.mark.parametrize("protocol", ["paper", "published"])
@pytest.mark.parametrize(
    ("method", "weight", "held", "objective"),
    [
        ("svgp", Constant, True, "elbo"),
        ("svgp-noise", Constant, False, "elbo"),
        ("rcsvgp", InverseMultiquadric, True, "elbo"),
        ("rcsvgp-loo", InverseMultiquadric, False, "loo"),
    ],
)
def test_what_is_fitted_and_what_is_held(method, weight, held, objective, protocol):
    problem = prepare("synthetic", "uniform", protocol)
    model, report = fitted(method, problem, inducing=30)
    assert type(model.weight) is weight
    assert report.objective == objective
    assert report.value == pytest.approx({"elbo": elbo, "loo": leave_one_out}[objective](model).item())
    assert model.noise.item() == pytest.approx(0.01) if held else abs(model.noise.item() - 0.01) > 1e-3
    residual = model.residual().detach().abs().numpy()
    assert model.mean(model.train_X)[0].item() == pytest.approx(problem.train_y.mean() if protocol == "paper" else 0.0)
    if weight is InverseMultiquadric:
        c = model.hyperparameters()["weight.c"].item()
        assert c == pytest.approx(np.quantile(residual, 0.95 if protocol == "paper" else 0.9), rel=0.02)
    # All have the same points, in the requested number.
    points = model.inducing_points
    assert points.shape == (30, 1)
    assert torch.equal(points, fitted("svgp", problem, inducing=30)[0].inducing_points)
    assert torch.isin(points, model.train_X).all()


def test_the_table_has_a_hundred_points_by_default():
    problem = prepare("synthetic", "clean")
    assert fitted("rcsvgp", problem)[0].inducing_points.shape == (100, 1)
    few, many = (np.abs(run_method("svgp", problem, inducing=m).prediction.mean - problem.test_y) for m in (5, 100))
    assert few.mean() > 2 * many.mean()


def test_the_table_has_the_papers_cells_and_repetitions():
    configs = EXPERIMENTS["table_sparse"].configs(Options())
    assert {(c["contamination"], c["data"]) for c in configs} == {
        (contamination, data)
        for contamination in ("clean", "focused", "asymmetric")
        for data in ("synthetic", "boston", "energy", "yacht")
    }
    assert {c["index"] for c in configs} == set(range(10))
    assert len(configs) == 12 * 4 * 10
    assert [c["method"] for c in configs[:4]] == list(SPARSE)
    assert {c["index"] for c in EXPERIMENTS["table_sparse"].configs(Options(splits=3))} == {0, 1, 2}
    assert len(EXPERIMENTS["table_sparse"].configs(Options(quick=True))) == 2 * 3 * 4


@pytest.mark.parametrize(
    ("contamination", "most", "protocol"),
    [
        ("focused", 1.0, "paper"),
        ("asymmetric", 0.9, "published"),
        slow("uniform", 0.9, "paper"),
        slow("focused", 1.0, "published"),
        slow("asymmetric", 0.9, "paper"),
        slow("uniform", 0.9, "published"),
    ],
)
def test_with_outliers_the_robust_model_is_better_on_synthetic_data(contamination, most, protocol):
    """At the same fixed noise, over four repetitions: the paper's claim. Of focused outliers by a few per cent only."""

    def error(method):
        problems = [prepare("synthetic", contamination, protocol, index) for index in range(4)]
        return np.mean([np.abs(run_method(method, p).prediction.mean - p.test_y).mean() for p in problems])

    assert error("rcsvgp") < most * error("svgp")


def some_of_table_sparse(options):
    configs = EXPERIMENTS["table_sparse"].configs(options)
    return [c for c in configs if (c["data"], c["contamination"]) == ("synthetic", "focused")]


@pytest.mark.slow
def test_a_partial_table_is_continued(tmp_path):
    experiment = dataclasses.replace(EXPERIMENTS["table_sparse"], configs=some_of_table_sparse)
    part = Options(quick=True, methods=("svgp", "rcsvgp"))
    records, failures, _ = run_experiment(experiment, part, tmp_path)
    assert failures == []
    errors = {record.config["method"]: record.values["mae"] for record in records}
    assert errors["rcsvgp"] < errors["svgp"]
    assert all(record.values["converged"] for record in records)
    lines = (tmp_path / "table_sparse.jsonl").read_bytes()
    left = [config["method"] for config in runs_to_make(experiment, Options(quick=True), tmp_path)]
    assert left == ["svgp-noise", "rcsvgp-loo"]
    all_records, _, _ = run_experiment(experiment, Options(quick=True), tmp_path)
    assert [record.config["method"] for record in all_records] == list(SPARSE)
    assert (tmp_path / "table_sparse.jsonl").read_bytes().startswith(lines)  # nothing was repeated
    assert len(list(RecordFile(tmp_path / "table_sparse.jsonl"))) == 4


def test_the_figure_has_all_sizes_before_it_repeats_any():
    experiment = EXPERIMENTS["figure_sparse"]
    configs = experiment.configs(Options())
    assert [c["n"] for c in configs[:6]] == [100, 200, 400, 800, 1600, 3200]
    assert [c["index"] for c in configs] == [index for index in range(10) for _ in range(6)]
    assert len(experiment.configs(Options(splits=2))) == 12
    assert experiment.configs(Options(quick=True)) == [{"n": 100, "index": 0}, {"n": 400, "index": 0}]
    assert experiment.most_jobs == 1  # it measures time


def test_the_functions_have_the_covariance_of_the_synthetic_data():
    x = np.linspace(0.0, 20.0, 37)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    basis = []
    for unit in np.eye(101):

        class Unit:
            def standard_normal(self, count, unit=unit):
                return unit

        basis.append(figures._Function(Unit())(x))
    np.testing.assert_allclose(np.transpose(basis) @ basis, K, atol=1e-6)


def test_a_repetition_has_one_function_and_one_test_whatever_the_number_of_rows():
    small, large, other = (
        figures._sparse_problem(100, 3),
        figures._sparse_problem(800, 3),
        figures._sparse_problem(100, 4),
    )
    np.testing.assert_array_equal(small.test_X, large.test_X)
    np.testing.assert_array_equal(small.test_y, large.test_y)
    assert not np.array_equal(small.test_y, other.test_y)
    function = figures._Function(np.random.default_rng(3))
    for problem, n in ((small, 100), (large, 800)):
        assert problem.mask.sum() == n // 10
        error = problem.train_y - function(problem.train_X[:, 0])
        assert np.abs(error[~problem.mask]).max() < 0.5 < np.abs(error[problem.mask]).min()
        np.testing.assert_array_equal(problem.train_X[:, 0], np.linspace(0, 20, n))
    assert np.std(small.test_y - function(small.test_X[:, 0])) == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize(("index", "first"), [(0, "svgp"), (2, "rcsvgp"), (7, "rcsvgp-loo")])
def test_each_method_has_its_own_time_and_error(index, first, monkeypatch):
    order = []

    def run(method, problem, inducing):
        order.append(method)
        assert inducing == 20
        y, off = problem.test_y, 1.0 + SPARSE.index(method)
        seconds = 99.0 if len(order) == 1 else 10.0 * off  # the first is to be warm
        return Outcome(normal_prediction(y, y + off, np.ones_like(y)), seconds, 1, method != "rcsvgp")

    monkeypatch.setattr(figures, "run_method", run)
    values = EXPERIMENTS["figure_sparse"].run({"n": 400, "index": index})
    assert order[:2] == ["svgp", first]
    assert sorted(order[1:]) == sorted(SPARSE)
    assert values["inducing"] == 20
    assert values["seconds"] == dict(zip(SPARSE, (10.0, 20.0, 30.0, 40.0), strict=True))
    assert values["rmse"] == pytest.approx(dict(zip(SPARSE, (1.0, 2.0, 3.0, 4.0), strict=True)))
    assert values["converged"] == {method: method != "rcsvgp" for method in SPARSE}


@pytest.mark.slow
def test_more_rows_help_and_the_robust_model_more_than_the_other():
    run = EXPERIMENTS["figure_sparse"].run
    small, large = ([run({"n": n, "index": index}) for index in range(3)] for n in (100, 800))
    assert json.loads(json.dumps(small)) == small
    error = {
        (size, method): np.mean([values["rmse"][method] for values in found])
        for size, found in (("small", small), ("large", large))
        for method in SPARSE
    }
    assert all(error["large", method] < error["small", method] for method in SPARSE)
    assert error["large", "rcsvgp"] < 0.9 * error["large", "svgp"]
    assert error["large", "rcsvgp-loo"] < error["large", "svgp-noise"]
    assert all(seconds > 0 for values in small for seconds in values["seconds"].values())
