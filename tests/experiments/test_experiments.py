"""The experiments themselves: what they run, and that what comes out is what the models say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rcgp import RCGP, fit
from rcgp.data import prepare
from rcgp.experiments import EXPERIMENTS, Options
from rcgp.experiments.methods import METHODS, TITLES, run_method
from rcgp.experiments.paper_values import CONTAMINATIONS, DATA, TABLE_1, TABLE_2, TABLE_C_LOO
from rcgp.experiments.records import key_of


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("options", [Options(), Options(quick=True), Options(protocol="published", splits=3)], ids=str)
def test_every_run_has_a_key_of_its_own(name, options):
    keys = [key_of(config) for config in EXPERIMENTS[name].configs(options)]
    assert len(keys) == len(set(keys)) > 0


def test_table_1_has_every_cell_before_it_repeats_any():
    configs = EXPERIMENTS["table1"].configs(Options(splits=20))
    cells = {(c["contamination"], c["data"], c["method"]) for c in configs}
    assert len(cells) == 16 * 5
    assert len(configs) == 16 * 5 * 20
    assert {c["index"] for c in configs[: 16 * 5]} == {0}


def test_the_papers_tables_are_complete():
    assert set(TABLE_1) == {(contamination, data) for contamination in CONTAMINATIONS for data in DATA}
    assert all(set(row) == {"gp", "rcgp", "t-gp", "m-gp"} for row in (*TABLE_1.values(), *TABLE_2.values()))
    assert set(TABLE_C_LOO) == {key for key in TABLE_1 if key[0] != "uniform"}
    assert set(TITLES) == set(METHODS)


def test_rcgp_is_the_papers_setting():
    problem = prepare("synthetic", "uniform")
    model = RCGP(torch.tensor(problem.train_X), torch.tensor(problem.train_y))
    fit(model)
    posterior = model.posterior(torch.tensor(problem.test_X), observation_noise=True)
    outcome = run_method("rcgp", problem)
    np.testing.assert_allclose(outcome.mean, posterior.mean.numpy(), rtol=1e-9)
    np.testing.assert_allclose(outcome.std, posterior.stddev.detach().numpy(), rtol=1e-9)
    assert outcome.seconds > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("protocol", ["paper", "published"])
def test_every_method_predicts_clean_data_well(method, protocol):
    values = EXPERIMENTS["table1"].run(
        {"data": "synthetic", "contamination": "clean", "method": method, "protocol": protocol, "index": 0}
    )
    assert values["mae"] < 0.12
    assert 0.8 <= values["coverage"] <= 1.0
    assert json.loads(json.dumps(values)) == values


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match="there is no method 'svm'"):
        run_method("svm", prepare("synthetic", "clean"))


def test_times_are_ratios_within_one_run():
    values = EXPERIMENTS["table2"].run({"data": "synthetic", "contamination": "clean", "protocol": "paper", "index": 0})
    assert values["ratio"]["gp"] == 1.0
    assert values["ratio"]["rcgp"] == pytest.approx(values["seconds"]["rcgp"] / values["seconds"]["gp"])


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("figure") and "crash" not in name])
def test_figures_are_plain_numbers(name):
    values = EXPERIMENTS[name].run({"index": 0})
    assert json.loads(json.dumps(values)) == values


def test_the_influence_of_the_robust_model_is_bounded():
    values = EXPERIMENTS["figure_influence"].run({"index": 0})
    assert max(values["rcgp"]) < 0.1 * max(values["gp"])


def test_the_flash_crash_series_is_the_papers(data_home):
    """The authors printed the plain GP's negative log marginal likelihood: 181.0214."""
    values = EXPERIMENTS["figure_flash_crash"].run({"index": 0})
    assert values["negative_log_marginal_likelihood"] == pytest.approx(181.0214, abs=1e-3)
    assert len(values["price"]) == 202
    crash = [109, 110]
    assert max(values["weight"][i] for i in crash) < 0.75
