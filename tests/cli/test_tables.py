"""Options that describe a table, and the tables that the commands write."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from cli.houses import house_table, rcgp_command
from rcgp.estimator import FLAG_RULE

NAMES = [f"house {i}" for i in range(40)]


@pytest.fixture
def named(houses):
    """The CSV file of houses with a column of names."""
    house_table().assign(name=NAMES).to_csv(houses, index=False)
    return houses


def test_ids_name_the_rows_in_every_output(named, tmp_path, capsys):
    model = tmp_path / "m.rcgp"
    options = ("--target", "price", "--id", "name")
    assert rcgp_command("fit", named, *options, "--model", model) == 0
    assert re.search(r"^ *12 +house 11 ", capsys.readouterr().out, re.MULTILINE)
    assert rcgp_command("outliers", named, *options, "--json") == 0
    first = json.loads(capsys.readouterr().out)["rows"][0]
    assert (first["row"], first["id"]) == (12, "house 11")
    assert rcgp_command("predict", model, named) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(predicted) == ["row", "id", "mean", "std", "lower", "upper"]
    assert list(predicted["id"]) == NAMES
    assert rcgp_command("report", named, *options, "--output", tmp_path / "r.html") == 0
    assert "house 11" in (tmp_path / "r.html").read_text()


def test_a_saved_model_reads_new_tables_as_the_training_table(tmp_path, capsys):
    path, model = tmp_path / "german.csv", tmp_path / "m.rcgp"
    table = house_table().assign(sold=pd.date_range("2024-01-01", periods=40).strftime("%d.%m.%Y"))
    table["colour"] = table["colour"].replace("green", "grün")
    path.write_bytes(table.to_csv(index=False, sep=";", decimal=",").encode("cp1252"))
    options = ("--target", "price")
    steps = [("--encoding", "cp1252"), ("--decimal", ","), ("--date-format", "%d.%m.%Y")]
    for option, value in steps:  # each error names the option to try
        assert rcgp_command("fit", path, *options) == 2
        assert option in capsys.readouterr().err
        options += (option, value)
    assert rcgp_command("fit", path, *options, "--model", model) == 0
    capsys.readouterr()
    assert rcgp_command("predict", model, path) == 0
    german = capsys.readouterr().out
    table.assign(sold=table["sold"].str.replace(".", "/")).to_csv(tmp_path / "new.csv", index=False)
    overriding = ("--encoding", "utf-8", "--decimal", ".", "--date-format", "%d/%m/%Y")
    assert rcgp_command("predict", model, tmp_path / "new.csv", *overriding) == 0
    assert capsys.readouterr().out == german
    assert rcgp_command("fit", path, "--target", "price", "--separator", "::") == 2
    assert "--separator must be one character" in capsys.readouterr().err


def test_log_gives_results_in_the_units_of_the_target(tmp_path, capsys):
    path, model = tmp_path / "grow.csv", tmp_path / "m.rcgp"
    random, x = np.random.default_rng(0), np.linspace(0, 8, 60)
    table = pd.DataFrame({"x": x, "y": np.exp(x + 0.1 * random.standard_normal(60))})
    table.loc[20, "y"] *= 50
    table.to_csv(path, index=False)
    assert rcgp_command("fit", path, "--target", "y") == 0
    assert "--log may fit better" in capsys.readouterr().err
    assert rcgp_command("fit", path, "--target", "y", "--log", "--model", model) == 0
    out, err = capsys.readouterr()
    assert "--log" not in err
    assert "of the logarithm" in out
    assert rcgp_command("outliers", path, "--target", "y", "--log", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert (rows[0]["row"], rows[0]["observed"]) == (21, pytest.approx(table["y"][20]))
    assert rows[0]["expected"] == pytest.approx(np.exp(x[20]), rel=0.2)
    assert rows[0]["residual"] == pytest.approx(rows[0]["observed"] - rows[0]["expected"])
    assert rcgp_command("predict", model, path) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose(predicted["median"], np.exp(x), rtol=0.2)
    assert (predicted["lower"] < predicted["median"]).all()
    assert (predicted["median"] < predicted["mean"]).all()
    assert (predicted["mean"] < predicted["upper"]).all()
    assert rcgp_command("report", path, "--target", "y", "--log", "--output", tmp_path / "r.html") == 0
    assert "log y" in (tmp_path / "r.html").read_text()
    table.assign(y=table["y"].where(table.index != 4, -1)).to_csv(path, index=False)
    capsys.readouterr()
    assert rcgp_command("fit", path, "--target", "y", "--log") == 2
    assert "row 5 of column 'y' is -1, and --log needs positive values" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_clean_writes_the_table_with_its_outliers_marked(named, tmp_path, capsys, kind):
    output = tmp_path / f"clean.{kind}"
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    command = ("clean", named, "--target", "price", "--id", "name", "--output", output)
    assert rcgp_command(*command) == 0
    assert f"40 rows, 1 of them flagged, written to {output} ({FLAG_RULE})" in capsys.readouterr().err
    table = read(output)
    before = [*house_table(), "name"]
    assert list(table) == [*before, "outlier_probability", "expected", "outlier"]
    numbers = ["size", "price"]
    pd.testing.assert_frame_equal(table[numbers].astype(float), house_table()[numbers])
    assert list(table["outlier"].to_numpy().nonzero()[0]) == [11]
    assert table["outlier_probability"][11] > 0.9
    truth = 3.0 * house_table()["size"] + 40.0 * (house_table()["colour"] == "red")
    np.testing.assert_allclose(table["expected"], truth, atol=20.0)
    assert rcgp_command(*command, "--drop") == 0
    assert list(read(output)["name"]) == [name for name in NAMES if name != "house 11"]
    assert list(read(output)) == before


def test_clean_keeps_cells_and_incomplete_rows(tmp_path, capsys):
    table = house_table().astype({"size": str})
    table["note"] = '007, "so"'
    table.loc[3, "size"] = "n.a."
    path, output = tmp_path / "gaps.csv", tmp_path / "clean.csv"
    table.to_csv(path, index=False, sep=";")
    command = ("clean", path, "--target", "price", "--exclude", "note", "--missing", "drop", "--output", output)
    assert rcgp_command(*command) == 0
    err = capsys.readouterr().err
    assert "column 'size': row 4 ('n.a.') counts as missing, as it is not a number" in err
    assert "40 rows, 1 of them flagged and 1 not judged, as they lack a value, written" in err
    before, after = (file.read_text().splitlines() for file in (path, output))
    assert after[0] == before[0] + ";outlier_probability;expected;outlier"
    assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert after[4] == before[4] + ";;;"
    assert rcgp_command(*command, "--drop") == 0
    assert "38 of 40 rows, without 1 flagged and 1 that lack a value," in capsys.readouterr().err
    assert output.read_text().splitlines() == [line for i, line in enumerate(before) if i not in (4, 12)]


def test_clean_overwrites_neither_its_input_nor_a_column(houses, tmp_path, capsys):
    content = houses.read_bytes()
    assert rcgp_command("clean", houses, "--target", "price", "--output", houses) == 2
    assert "is an input" in capsys.readouterr().err
    assert houses.read_bytes() == content
    house_table().rename(columns={"colour": "outlier"}).to_csv(houses, index=False)
    assert rcgp_command("clean", houses, "--target", "price", "--output", tmp_path / "c.csv") == 2
    assert "already has a column 'outlier'" in capsys.readouterr().err


def test_suspicious_inputs_are_named(houses, capsys):
    table = house_table()
    table.loc[20:25, "size"] = 0
    table.to_csv(houses, index=False)
    assert rcgp_command("outliers", houses, "--target", "price", "--json") == 0
    notices = json.loads(capsys.readouterr().out)["notices"]
    assert any("column 'size': 6 values are exactly 0" in notice for notice in notices)


@pytest.mark.parametrize(("options", "noted"), [((), True), (("--date-format", "%Y%m%d"), False)])
@pytest.mark.parametrize("command", [("fit",), ("series", "--time", "sold")])
def test_whole_numbers_that_are_dates_are_noted(command, options, noted, houses, capsys):
    days = pd.date_range("2024-01-01", periods=40).strftime("%Y%m%d")
    house_table().assign(sold=days).to_csv(houses, index=False)
    assert rcgp_command(command[0], houses, "--target", "price", *command[1:], *options) == 0
    err = capsys.readouterr().err
    assert ("column 'sold': numbers that look like dates; --date-format %Y%m%d reads them as dates" in err) is noted
    assert "--id" not in err


def test_whole_numbers_of_which_one_is_no_date_are_not_noted_as_dates(houses, capsys):
    days = [20240101 + day for day in range(40)]  # 20240132 follows the last of January
    house_table().assign(sold=days).to_csv(houses, index=False)
    assert rcgp_command("fit", houses, "--target", "price") == 0
    assert "column 'sold': a different whole number in each row; if it only names" in capsys.readouterr().err
