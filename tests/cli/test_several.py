"""Several targets on the command line: cells may be empty, and results are named by their target."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest

from cli.houses import assert_one_sentence, rcgp_command
from rcgp import FitError, RCGPRegressor, load
from rcgp.chunked import resources
from rcgp.cli import fitting
from rcgp.cli.options import Options

TARGETS = ("--target", "heat", "--target", "flow", "--id", "name")


def plant_table(n=40):
    """Two sensors of one process: heat is wrong in the fourth row, flow in the eighth, and empty in some."""
    random = np.random.default_rng(0)
    hour = np.linspace(0.0, 12.0, n)
    table = pd.DataFrame({"name": [f"s{i}" for i in range(n)], "hour": hour.round(3)})
    table["heat"] = (20.0 + 4.0 * np.sin(hour) + 0.1 * random.standard_normal(n)).round(3)
    table["flow"] = (5.0 - 2.0 * np.sin(hour) + 0.05 * random.standard_normal(n)).round(3)
    table.loc[3, "heat"] += 15.0
    table.loc[7, "flow"] += 9.0
    table.loc[20:24, "flow"] = np.nan
    return table


@pytest.fixture
def plant(tmp_path):
    path = tmp_path / "plant.csv"
    plant_table().to_csv(path, index=False)
    return path


def test_a_fit_shows_each_target_their_correlation_and_suspicious_cells(plant, tmp_path, capsys):
    model = tmp_path / "plant.rcgp"
    assert rcgp_command("fit", plant, *TARGETS, "--model", model, "--top", 2) == 0
    out = capsys.readouterr().out
    assert "cells      75 of 80 observed" in out
    assert "correlated: one model of all cells" in out
    assert out.count("noise law  ") == 2
    correlation = out[out.index("Correlation of the targets") :].splitlines()
    assert correlation[1].split() == ["heat", "flow"]
    assert float(correlation[2].split()[2]) < -0.9
    cells = [line.split()[:3] for line in out.splitlines() if line.endswith("outlier")]
    assert sorted(cells) == [["4", "s3", "heat"], ["8", "s7", "flow"]]
    assert rcgp_command("predict", model, plant) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    parts = ("mean", "std", "lower", "upper")
    assert list(predicted) == ["row", "id", *(f"heat_{part}" for part in parts), *(f"flow_{part}" for part in parts)]
    fitted, table = load(model), plant_table()
    expected, std = fitted.predict(table[["hour"]], return_std=True, include_noise=True)
    np.testing.assert_allclose(predicted[["heat_mean", "flow_mean"]], expected, rtol=1e-9)
    np.testing.assert_allclose(predicted[["heat_std", "flow_std"]], std, rtol=1e-9)
    np.testing.assert_allclose(predicted["flow_upper"], fitted.predict_interval(table[["hour"]])[1][:, 1], rtol=1e-9)
    assert np.abs(predicted["flow_mean"] - 5.0 + 2.0 * np.sin(table["hour"])).max() < 0.3


def test_outliers_for_machines(plant, capsys):
    assert rcgp_command("outliers", plant, *TARGETS, "--outputs", "independent", "--json", "--only-flagged") == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in result["targets"]] == ["heat", "flow"]
    assert [one["flagged"] for one in result["targets"]] == [1, 1]
    assert result["correlation"] is None
    assert sorted((cell["row"], cell["id"], cell["target"]) for cell in result["cells"]) == [
        (4, "s3", "heat"),
        (8, "s7", "flow"),
    ]
    assert "cells that are more likely outliers" in result["flag_rule"]


def test_a_cleaned_table_has_columns_for_each_target(plant, tmp_path, capsys):
    output = tmp_path / "clean.csv"
    assert rcgp_command("clean", plant, *TARGETS, "--output", output) == 0
    assert "40 rows, 2 cells flagged" in capsys.readouterr().err
    table, clean = plant_table(), pd.read_csv(output)
    new = [f"{target}_{name}" for target in ("heat", "flow") for name in ("outlier_probability", "expected", "outlier")]
    assert list(clean) == [*table, *new]
    pd.testing.assert_frame_equal(clean[list(table)], table)
    empty = table["flow"].isna()
    for name in ("flow_outlier_probability", "flow_outlier"):
        np.testing.assert_array_equal(clean[name].isna(), empty)
    assert clean["flow_expected"].notna().all()  # of empty cells too
    assert clean.index[clean["heat_outlier"]].tolist() == [3]
    assert clean.index[clean["flow_outlier"] == True].tolist() == [7]  # noqa: E712 (some are empty)


def test_drop_empties_flagged_cells_and_keeps_the_others_of_the_row(tmp_path, capsys):
    table = plant_table()
    table.loc[7, "heat"] = np.nan  # its only other cell is flagged
    table.loc[30, ["heat", "flow"]] = np.nan
    table.to_csv(tmp_path / "plant.csv", index=False)
    output = tmp_path / "clean.csv"
    command = ("clean", tmp_path / "plant.csv", *TARGETS, "--output", output, "--drop")
    assert rcgp_command(*command) == 2
    assert_one_sentence(capsys, "row 31 of column 'heat' has no value, nor has any other target .1 of 40 rows lack one")
    assert rcgp_command(*command, "--missing", "drop") == 0
    assert "38 of 40 rows, 2 flagged cells emptied" in capsys.readouterr().err
    table.loc[3, "heat"] = np.nan
    pd.testing.assert_frame_equal(pd.read_csv(output), table.drop(index=[7, 30]).reset_index(drop=True))


def test_logarithms_are_of_each_target_and_results_in_their_units(plant, tmp_path, capsys):
    model = tmp_path / "plant.rcgp"
    assert rcgp_command("fit", plant, *TARGETS, "--log", "--model", model) == 0
    capsys.readouterr()
    assert rcgp_command("predict", model, plant) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose(predicted["heat_median"], np.exp(load(model).predict(plant_table()[["hour"]])[:, 0]))
    assert predicted["flow_mean"].between(1.0, 9.0).all()
    table = plant_table()
    table.loc[5, "flow"] = -1.0
    table.to_csv(plant, index=False)
    assert rcgp_command("fit", plant, *TARGETS, "--log") == 2
    assert_one_sentence(capsys, "row 6 of column 'flow' is -1, and --log needs positive values")


def test_the_report_has_a_panel_for_each_target(plant, tmp_path, capsys):
    output = tmp_path / "report.html"
    assert rcgp_command("report", plant, *TARGETS, "--output", output) == 0
    assert "report written" in capsys.readouterr().err
    page = output.read_text(encoding="utf-8")
    assert "2 of 75 cells are flagged" in page
    assert page.count("<details class=output open>") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "heat", "--target", "heat"), "--target names 'heat' more than once"),
        (("--target", "heat", "--target", "flaw"), "no column 'flaw': did you mean 'flow'"),
        (("--target", "heat", "--target", "name"), "must be a column of numbers, but 'name' holds text"),
        (("--target", "heat", "--target", "flow", "--features", "heat,hour"), "'heat' cannot be one of the features"),
        (("--target", "heat", "--target", "flow", "--sparse"), "--sparse.*: works with one --target only"),
        (("--target", "heat", "--target", "flow", "--inducing", "9"), "--inducing.*: works with one --target only"),
        (("--target", "heat", "--outputs", "correlated"), "--outputs.*: needs more than one --target"),
        (("--target", "heat", "--target", "empty"), "'empty' has no values at all"),
        (("--target", "heat", "--target", "single"), "'single' has only one value"),
        (("--target", "heat", "--target", "same", "--features", "hour"), "every value of 'same' is 1.0"),
    ],
)
def test_bad_input_is_one_sentence(options, message, tmp_path, capsys):
    table = plant_table(12).assign(empty=np.nan, single=np.nan, same=1.0)
    table.loc[4, "single"] = 1.0
    table.to_csv(tmp_path / "plant.csv", index=False)
    assert rcgp_command("fit", tmp_path / "plant.csv", *options) == 2
    assert_one_sentence(capsys, message)


def test_many_cells_get_a_model_for_each_target():
    options = Options(target=["a", "b"])
    assert options.for_cells(2500, 5000).outputs == "correlated"
    assert options.for_cells(2500, 5000).fit_rows == 1000  # with 2000 cells
    assert options.for_cells(2501, 5001).outputs == "independent"
    assert Options(target=["a", "b"], outputs="correlated").for_cells(9000, 9000).outputs == "correlated"


def test_the_choice_of_many_cells_is_a_notice(plant, capsys, monkeypatch):
    monkeypatch.setattr("rcgp.cli.options.CORRELATED_UP_TO", 50)
    monkeypatch.setattr(fitting, "CORRELATED_UP_TO", 50)
    assert rcgp_command("fit", plant, *TARGETS) == 0
    out, err = capsys.readouterr()
    assert "75 cells are more than 50: a model for each target; --outputs correlated for one of all" in err
    assert "independent: a model for each" in out


@pytest.mark.parametrize(("outputs", "remedy"), [("correlated", "independent"), ("independent", "--sparse")])
def test_a_fit_that_needs_too_much_memory_is_refused(outputs, remedy, plant, capsys, monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: 1000)
    assert rcgp_command("fit", plant, *TARGETS, "--outputs", outputs) == 2
    assert_one_sentence(capsys, f"GB of memory, and .* are free: .*{remedy}")


def test_a_fit_that_fails_names_the_cells_of_the_row(plant, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise FitError("no matrix", 22, "")

    monkeypatch.setattr(RCGPRegressor, "fit", fail)
    assert rcgp_command("fit", plant, *TARGETS) == 2
    assert_one_sentence(capsys, r"look at row 23, whose 'heat' is [\d.]+$")


@pytest.mark.parametrize("named", [True, False])
def test_a_model_of_several_outputs_from_python_predicts(plant, tmp_path, capsys, named):
    table = pd.read_csv(plant)[["hour", "heat", "flow"]].head(40)
    Y = table[["heat", "flow"]]
    model = RCGPRegressor().fit(table[["hour"]], Y if named else Y.to_numpy())
    model.save(tmp_path / "python.rcgp")
    assert rcgp_command("predict", tmp_path / "python.rcgp", plant) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    column = "flow_mean" if named else "output1_mean"
    np.testing.assert_allclose(predicted[column].head(40), model.predict(table[["hour"]])[:, 1], rtol=1e-9)


def test_a_summary_says_once_what_holds_for_all_targets(plant, capsys):
    assert rcgp_command("fit", plant, "--target", "heat", "--target", "flow", "--missing", "drop", "--top", 0) == 0
    printed = capsys.readouterr().out
    assert printed.count("more likely outliers than not") == printed.count("optimiser") == 1
    assert printed.count("suspicious rows") == 2
