"""What users can tell the commands about their tables, and the tables that the commands write."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from rcgp.cli import run
from rcgp.estimator import FLAG_RULE


def wave_table(n=40):
    x = np.linspace(0, 6, n)
    table = pd.DataFrame({"name": [f"w{i}" for i in range(n)], "x": x.round(3), "y": (2 + np.sin(x)).round(3)})
    table["y"] += np.random.default_rng(0).normal(0, 0.05, n).round(3)
    table.loc[11, "y"] += 9.0
    return table


@pytest.fixture
def waves(tmp_path):
    path = tmp_path / "waves.csv"
    wave_table().to_csv(path, index=False)
    return path


def rcgp_command(*arguments):
    return run([str(argument) for argument in arguments])


def test_ids_name_the_rows_in_every_output(waves, tmp_path, capsys):
    model = tmp_path / "m.rcgp"
    told = ("--target", "y", "--id", "name")
    assert rcgp_command("fit", waves, *told, "--model", model) == 0
    assert re.search(r"^ *12 +w11 ", capsys.readouterr().out, re.MULTILINE)
    assert rcgp_command("outliers", waves, *told, "--json") == 0
    first = json.loads(capsys.readouterr().out)["rows"][0]
    assert (first["row"], first["id"]) == (12, "w11")
    assert rcgp_command("predict", model, waves) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(predicted) == ["row", "id", "mean", "std", "lower", "upper"]
    assert list(predicted["id"]) == list(wave_table()["name"])
    assert rcgp_command("report", waves, *told, "--output", tmp_path / "r.html") == 0
    assert "w11" in (tmp_path / "r.html").read_text()


def test_a_saved_model_reads_new_tables_as_the_training_table(tmp_path, capsys):
    path, model = tmp_path / "german.csv", tmp_path / "m.rcgp"
    table = wave_table().assign(day=pd.date_range("2024-01-01", periods=40).strftime("%d.%m.%Y"))
    table["name"] = "größe"
    path.write_bytes(table.to_csv(index=False, sep=";", decimal=",").encode("cp1252"))
    told = ("--target", "y")
    steps = [("--encoding", "cp1252"), ("--decimal", ","), ("--date-format", "%d.%m.%Y")]
    for option, value in steps:  # each error names the option to try
        assert rcgp_command("fit", path, *told) == 2
        assert option in capsys.readouterr().err
        told += (option, value)
    assert rcgp_command("fit", path, *told, "--model", model) == 0
    capsys.readouterr()
    assert rcgp_command("predict", model, path) == 0
    german = capsys.readouterr().out
    table.assign(day=table["day"].str.replace(".", "/")).to_csv(tmp_path / "new.csv", index=False)
    overriding = ("--encoding", "utf-8", "--decimal", ".", "--date-format", "%d/%m/%Y")
    assert rcgp_command("predict", model, tmp_path / "new.csv", *overriding) == 0
    assert capsys.readouterr().out == german
    assert rcgp_command("fit", path, "--target", "y", "--separator", "::") == 2
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
def test_clean_writes_the_table_with_its_outliers_marked(waves, tmp_path, capsys, kind):
    output = tmp_path / f"clean.{kind}"
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    command = ("clean", waves, "--target", "y", "--id", "name", "--output", output)
    assert rcgp_command(*command) == 0
    assert f"40 rows, 1 of them flagged, written to {output} ({FLAG_RULE})" in capsys.readouterr().err
    table = read(output)
    assert list(table) == ["name", "x", "y", "outlier_probability", "expected", "outlier"]
    pd.testing.assert_frame_equal(table[["x", "y"]].astype(float), wave_table()[["x", "y"]])
    assert list(table["outlier"].to_numpy().nonzero()[0]) == [11]
    assert table["outlier_probability"][11] > 0.9
    np.testing.assert_allclose(table["expected"], 2 + np.sin(wave_table()["x"]), atol=0.2)
    assert rcgp_command(*command, "--drop") == 0
    assert list(read(output)["name"]) == [f"w{i}" for i in range(40) if i != 11]
    assert list(read(output)) == ["name", "x", "y"]


def test_clean_keeps_cells_as_they_are_and_rows_that_lack_a_value(tmp_path, capsys):
    table = wave_table().astype({"x": str})
    table["note"] = '007, "so"'
    table.loc[3, "x"] = "n.a."
    path, output = tmp_path / "gaps.csv", tmp_path / "clean.csv"
    table.to_csv(path, index=False, sep=";")
    command = ("clean", path, "--target", "y", "--exclude", "note,name", "--missing", "drop", "--output", output)
    assert rcgp_command(*command) == 0
    err = capsys.readouterr().err
    assert "column 'x': row 4 ('n.a.') counts as missing, as it is no number" in err
    assert "40 rows, 1 of them flagged and 1 not judged, as they lack a value, written" in err
    before, after = (file.read_text().splitlines() for file in (path, output))
    assert after[0] == before[0] + ";outlier_probability;expected;outlier"
    assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert after[4] == before[4] + ";;;"
    assert rcgp_command(*command, "--drop") == 0
    assert "38 of 40 rows, without 1 flagged and 1 that lack a value," in capsys.readouterr().err
    assert output.read_text().splitlines() == [line for i, line in enumerate(before) if i not in (4, 12)]


def test_clean_overwrites_neither_its_input_nor_a_column(waves, tmp_path, capsys):
    content = waves.read_bytes()
    assert rcgp_command("clean", waves, "--target", "y", "--output", waves) == 2
    assert "is an input" in capsys.readouterr().err
    assert waves.read_bytes() == content
    wave_table().rename(columns={"name": "outlier"}).to_csv(waves, index=False)
    assert rcgp_command("clean", waves, "--target", "y", "--output", tmp_path / "c.csv") == 2
    assert "already has a column 'outlier'" in capsys.readouterr().err


def test_suspicious_inputs_are_named_before_the_fit_is_trusted(tmp_path, capsys):
    table = wave_table()
    table.loc[20:25, "x"] = 0
    table.to_csv(tmp_path / "zeros.csv", index=False)
    assert rcgp_command("outliers", tmp_path / "zeros.csv", "--target", "y", "--json") == 0
    notices = json.loads(capsys.readouterr().out)["notices"]
    assert any("column 'x': 7 values are exactly 0" in notice for notice in notices)
