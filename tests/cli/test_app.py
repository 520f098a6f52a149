"""The command line, as its users meet it: arguments in, text and exit codes out."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rcgp
from cli.houses import ClosedPipe, assert_one_sentence, house_table, rcgp_command
from rcgp import RCGPRegressor
from rcgp.cli.app import _loaded
from rcgp.estimator import FLAG_RULE
from rcgp.report.summary import rows_of
from rcgp.weights.noise_law import SCALES


def test_fit_prints_a_summary_and_saves_a_model(houses, tmp_path, capsys):
    model = tmp_path / "out.rcgp"
    assert rcgp_command("fit", houses, "--target", "price", "--model", model) == 0
    out, err = capsys.readouterr()
    fitted = rcgp.load(model)
    assert "rows used" in out
    assert "40" in out
    assert re.search(rf"^noise law +{re.escape(str(fitted.noise_law_).splitlines()[0])}$", out, re.MULTILINE)
    assert f"{fitted.outliers_.sum()} {FLAG_RULE}" in out
    residual = np.abs(house_table()["price"] - fitted.loo_mean_)
    assert f"absolute: median {residual.median():.4g}, mean {residual.mean():.4g}" in out
    inputs = pd.DataFrame(fitted.models_[0].train_X.numpy(), columns=fitted.feature_names_in_)
    assert f"standard deviation {np.median(fitted.noise_std(inputs)):.4g}" in out
    covered = rows_of(fitted, inputs, house_table()["price"].to_numpy(), tuple(range(40))).inside
    good = f"{covered[~fitted.outliers_].mean():.1%} of the rows that are not flagged lie in their 95 % interval"
    assert f"{good}, {covered.mean():.1%} of all" in out
    for name, lengthscale in zip(fitted.feature_names_in_, fitted.lengthscales_, strict=True):
        (line,) = (line for line in out.splitlines() if line.startswith(name))
        assert f"{lengthscale:.4g}{' days' if name == 'sold' else ''}  " in line
    first = next(line.split() for line in out.splitlines() if line.endswith("outlier"))
    assert first[0] == "12"  # the twelfth row
    assert [float(value) for value in (first[1], first[2], first[5])] == pytest.approx(
        [house_table()["price"][11], fitted.loo_mean_[11], fitted.weights_[11]], rel=1e-3
    )
    assert "dates" in err
    assert "colour" in err  # that it was one-hot encoded
    assert "model saved" in err


def test_predict_gives_mean_deviation_and_interval(houses, tmp_path, capsys):
    model, new, output = (tmp_path / name for name in ("out.rcgp", "new.csv", "predictions.csv"))
    rcgp_command("fit", houses, "--target", "price", "--model", model)
    house_table().drop(columns="price").head(7).to_csv(new, index=False)
    assert rcgp_command("predict", model, new, "--output", output) == 0
    predicted = pd.read_csv(output)
    assert list(predicted) == ["row", "mean", "std", "lower", "upper"]
    fitted = rcgp.load(model)
    inputs = fitted.models_[0].train_X[:7].numpy()
    mean, std = fitted.predict(
        pd.DataFrame(inputs, columns=fitted.feature_names_in_), return_std=True, include_noise=True
    )
    np.testing.assert_allclose(predicted["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(predicted["std"], std, rtol=1e-12)
    lower, upper = fitted.predict_interval(pd.DataFrame(inputs, columns=fitted.feature_names_in_))
    np.testing.assert_allclose(predicted["lower"], lower, rtol=1e-9)
    np.testing.assert_allclose(predicted["upper"], upper, rtol=1e-9)
    capsys.readouterr()
    assert rcgp_command("predict", model, new) == 0
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(capsys.readouterr().out)), predicted)
    assert rcgp_command("predict", model, new, "--output", tmp_path / "p.parquet") == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "p.parquet"), predicted, rtol=1e-12)


def test_outliers_lists_every_row_most_suspicious_first(houses, capsys):
    assert rcgp_command("outliers", houses, "--target", "price", "--json") == 0
    out, err = capsys.readouterr()
    content = json.loads(out)
    rows = content["rows"]
    assert sorted(row["row"] for row in rows) == list(range(1, 41))
    assert rows[0]["row"] == 12
    assert rows[0]["outlier"] is True
    names = {"row", "observed", "expected", "residual", "score", "weight", "outlier_probability", "outlier"}
    assert set(rows[0]) == names
    order = [(row["outlier_probability"], abs(row["score"])) for row in rows]
    assert order == sorted(order, reverse=True)
    assert all(row["outlier"] == (row["outlier_probability"] > 0.5) for row in rows)
    law = content["noise_law"]
    assert law["scales"] == list(SCALES)
    assert sum(law["shares"]) + law["outlier_share"] == pytest.approx(1.0)
    assert content["flagged"] == sum(row["outlier"] for row in rows)
    assert content["flag_rule"] == FLAG_RULE
    assert 0.8 < content["coverage"]["not_flagged"] <= 1.0
    assert content["doubts"] == []
    assert all(row["residual"] == pytest.approx(row["observed"] - row["expected"]) for row in rows)
    assert content["notices"]
    assert "note:" in err
    assert rcgp_command("outliers", houses, "--target", "price") == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", lines[0].strip()) == [
        "row",
        "observed",
        "expected",
        "residual",
        "in sd",
        "weight",
        "outlier probability",
        "flag",
    ]
    assert lines[1].split()[0] == "12"
    assert lines[41] == ""
    assert [line.split("  ")[0] for line in lines[42:]] == ["noise law", "leave-one-out coverage", "suspicious rows"]
    assert lines[-1].endswith(f"{content['flagged']} {FLAG_RULE}")


def test_parquet_gives_the_same_as_csv(houses, tmp_path, capsys):
    house_table().to_parquet(tmp_path / "houses.parquet")
    results = []
    for path in (houses, tmp_path / "houses.parquet"):
        assert rcgp_command("outliers", path, "--target", "price", "--json") == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1]


def test_features_are_chosen_by_name(tmp_path, houses, capsys):
    model = tmp_path / "m.rcgp"
    assert rcgp_command("fit", houses, "--target", "price", "--features", "size, sold", "--model", model) == 0
    assert list(rcgp.load(model).feature_names_in_) == ["size", "sold"]
    table = house_table().rename(columns={"size": "size, in m2"})
    table.to_csv(tmp_path / "comma.csv", index=False)
    arguments = ("--features", "size, in m2", "--features", "sold", "--model", model)
    assert rcgp_command("fit", tmp_path / "comma.csv", "--target", "price", *arguments) == 0
    assert list(rcgp.load(model).feature_names_in_) == ["size, in m2", "sold"]


def test_columns_are_left_out_by_name_or_because_they_cannot_be_used(tmp_path, capsys):
    table = house_table().assign(owner=[f"owner {i}" for i in range(40)], empty="")
    table.to_csv(tmp_path / "t.csv", index=False)
    model = tmp_path / "m.rcgp"
    assert (
        rcgp_command("fit", tmp_path / "t.csv", "--target", "price", "--exclude", "sold,colour", "--model", model) == 0
    )
    assert list(rcgp.load(model).feature_names_in_) == ["size"]
    err = capsys.readouterr().err
    assert "'owner': left out, as it holds 40 different texts" in err
    assert "'empty': left out, as it has no values" in err


def test_large_tables_choose_hyperparameters_on_a_sample(houses, tmp_path, capsys):
    model = tmp_path / "m.rcgp"
    assert rcgp_command("fit", houses, "--target", "price", "--fit-rows", "30", "--model", model) == 0
    assert "sample of 30 of 40 rows" in capsys.readouterr().err
    assert len(rcgp.load(model).weights_) == 40


def test_options_reach_the_model(houses, tmp_path):
    model = tmp_path / "m.rcgp"
    command = ("fit", houses, "--target", "price", "--model", model)
    given = ("--weight", "se", "--restarts", "1", "--mean", "robust_linear", "--seed", "5", "--no-local-noise")
    assert rcgp_command(*command, *given) == 0
    loaded = rcgp.load(model)
    chosen = (loaded.weight, loaded.local_noise, loaded.n_restarts, loaded.mean, loaded.random_state)
    assert chosen == ("se", False, 1, "robust_linear", 5)
    assert rcgp_command(*command) == 0
    unsaid = rcgp.load(model)
    assert (unsaid.weight, unsaid.local_noise, unsaid.n_restarts, unsaid.mean) == ("learned", True, 0, "median")


@pytest.mark.parametrize("weight", ["imq", "constant"])
def test_the_law_of_a_given_weight_only_flags_rows(weight, houses, capsys):
    for command in (("fit", houses), ("outliers", houses)):
        assert rcgp_command(*command, "--target", "price", "--weight", weight) == 0
        assert "It was learned after the fit and only flags rows." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "outliers", "report"])
def test_doubts_are_printed_and_not_raised_as_warnings(command, tmp_path, capsys):
    house_table().head(6).drop(columns="colour").to_csv(tmp_path / "few.csv", index=False)
    output = ("--output", tmp_path / "report.html") if command == "report" else ()
    assert rcgp_command(command, tmp_path / "few.csv", "--target", "price", *output) == 0
    out, err = capsys.readouterr()
    assert "\nDoubt: 6 rows are too few to tell errors from good observations\n" in err
    assert "Warning" not in out + err
    if command == "report":
        assert "<strong>Doubt:</strong> 6 rows are too few" in (tmp_path / "report.html").read_text()
    if command == "outliers":
        assert rcgp_command(command, tmp_path / "few.csv", "--target", "price", "--json") == 0
        assert json.loads(capsys.readouterr().out)["doubts"][0].startswith("6 rows are too few")


def test_the_range_of_local_noise_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rcgp.cli.results._NOISE_ROWS", 60)  # every fourth row shows the range
    random = np.random.default_rng(0)
    x = np.linspace(0, 10, 200)
    table = pd.DataFrame({"x": x, "y": np.sin(x) + (0.02 + 0.1 * x) * random.standard_normal(200)})
    table.to_csv(tmp_path / "grow.csv", index=False)
    command = ("fit", tmp_path / "grow.csv", "--target", "y")
    assert rcgp_command(*command) == 0
    low, high = re.search(r"standard deviation (\S+) to (\S+) from place to place", capsys.readouterr().out).groups()
    assert float(high) > 1.5 * float(low)
    assert rcgp_command(*command, "--no-local-noise") == 0
    assert "from place to place" not in capsys.readouterr().out


def test_rows_that_lack_values_are_dropped_on_request(tmp_path, capsys):
    table = house_table()
    table.loc[[2, 5], "size"] = np.nan
    table.to_csv(tmp_path / "gaps.csv", index=False)
    assert rcgp_command("outliers", tmp_path / "gaps.csv", "--target", "price") == 2
    assert "--missing drop" in capsys.readouterr().err
    assert rcgp_command("outliers", tmp_path / "gaps.csv", "--target", "price", "--missing", "drop", "--json") == 0
    out, err = capsys.readouterr()
    rows = [row["row"] for row in json.loads(out)["rows"]]
    assert set(range(1, 41)) - set(rows) == {3, 6}
    assert json.loads(out)["rows"][0]["row"] == 12  # still the number in the file
    assert "2 of 40 rows" in err


def test_models_saved_in_python_predict_from_tables(tmp_path, capsys):
    table = house_table()
    table[["size", "price"]].to_csv(tmp_path / "new.csv", index=False)
    named = RCGPRegressor().fit(table[["size"]], table["price"])
    named.save(tmp_path / "named.rcgp")
    assert rcgp_command("predict", tmp_path / "named.rcgp", tmp_path / "new.csv") == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose(predicted["mean"], named.predict(table[["size"]]), rtol=1e-9)
    RCGPRegressor().fit(table[["size"]].to_numpy(), table["price"]).save(tmp_path / "nameless.rcgp")
    assert rcgp_command("predict", tmp_path / "nameless.rcgp", tmp_path / "new.csv") == 2
    assert "1 columns without names and the table has 2" in capsys.readouterr().err
    table[["size"]].to_csv(tmp_path / "new.csv", index=False)
    assert rcgp_command("predict", tmp_path / "nameless.rcgp", tmp_path / "new.csv") == 0


BAD_TABLES = {
    "empty file": ("", "empty"),
    "header only": ("a,price\n", "no rows|row"),
    "one row": ("a,price\n1,2\n", "only one usable row"),
    "constant target": ("a,price\n1,2\n2,2\n3,2\n", "nothing to predict"),
    "text among numbers": ("a,price\n1,2\n2,x\n3,5\n", "row 2.*'price'.*'x'"),
    "missing value": ("a,price\n1,2\n,3\n4,5\n", "row 2.*--missing drop"),
    "no such column": ("a,prise\n1,2\n2,3\n", "'price'.*'prise'"),
    "only the target": ("price\n1\n2\n", "predict"),
    "ragged": ("a,price\n1,2\n1,2,3\n", "line 3"),
    "infinite": ("a,price\n1,2\n2,inf\n3,4\n", "row 2"),
    "twice the same name": ("a,a,price\n1,2,3\n4,5,6\n", "'a'"),
}


@pytest.mark.parametrize("command", ["fit", "outliers", "report"])
@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_end_with_one_sentence(command, name, tmp_path, capsys):
    content, message = BAD_TABLES[name]
    path = tmp_path / "bad.csv"
    path.write_text(content)
    output = ("--output", tmp_path / "report.html") if command == "report" else ()
    assert rcgp_command(command, path, "--target", "price", *output) == 2
    assert_one_sentence(capsys, message)
    assert not (tmp_path / "report.html").exists()


def test_files_that_cannot_be_read_end_with_one_sentence(tmp_path, houses, capsys):
    (tmp_path / "latin.csv").write_bytes("a,price\nä,2\n".encode("latin-1"))
    for path, message in (
        (tmp_path / "none.csv", "none.csv"),
        (tmp_path, "folder|directory"),
        (tmp_path / "latin.csv", "UTF-8"),
    ):
        assert rcgp_command("fit", path, "--target", "price") == 2
        assert_one_sentence(capsys, message)
        assert rcgp_command("predict", path, houses) == 2
        assert_one_sentence(capsys, path.name)


def test_outputs_that_cannot_be_written_are_refused_before_the_fit(tmp_path, houses, capsys):
    for command, option in (("fit", "--model"), ("report", "--output")):
        for path, message in ((tmp_path / "none" / "x", "no folder"), (tmp_path, "it is a folder")):
            assert rcgp_command(command, houses, "--target", "price", option, path) == 2
            assert_one_sentence(capsys, message)


def test_a_new_table_must_fit_the_model(tmp_path, houses, capsys):
    model = tmp_path / "m.rcgp"
    rcgp_command("fit", houses, "--target", "price", "--model", model)
    capsys.readouterr()
    for table, message in (
        (house_table().drop(columns="size"), "'size'"),
        (house_table().replace({"colour": {"red": "violet"}}), "violet.*blue"),
        (
            house_table().astype({"size": str}).replace({"size": {str(house_table()["size"][4]): "big"}}),
            "row 5.*'size'",
        ),
    ):
        table.to_csv(tmp_path / "new.csv", index=False)
        assert rcgp_command("predict", model, tmp_path / "new.csv") == 2
        assert_one_sentence(capsys, message)


def test_a_new_category_is_an_error_although_rows_may_be_dropped(tmp_path, houses, capsys):
    model, new = tmp_path / "m.rcgp", house_table()
    rcgp_command("fit", houses, "--target", "price", "--model", model)
    capsys.readouterr()
    new.loc[2, "colour"] = "violet"
    new.to_csv(tmp_path / "new.csv", index=False)
    assert rcgp_command("predict", model, tmp_path / "new.csv", "--missing", "drop") == 2
    assert_one_sentence(capsys, "row 3 of column 'colour' is 'violet', which the training table did not have")


@pytest.mark.parametrize(
    ("command", "option", "name", "message"),
    [
        ("fit", "--model", "m.CSV", r"a model is not a \.csv file"),
        ("fit", "--model", "m.html", r"a model is not a \.html file"),
        ("series", "--model", "m.parquet", r"a model is not a \.parquet file"),
        ("report", "--output", "r.pdf", r"pages are written as \.html"),
        ("report", "--output", "r", r"pages are written as \.html"),
        ("series", "--output", "s.csv", r"pages are written as \.html"),
        ("series", "--predictions", "p.html", r"tables are written as \.csv or \.parquet"),
        ("clean", "--output", "m.rcgp", r"tables are written as \.csv or \.parquet"),
    ],
)
def test_an_output_with_the_suffix_of_another_kind_is_refused(command, option, name, message, houses, capsys):
    time = ("--time", "sold") if command == "series" else ()
    assert rcgp_command(command, houses, "--target", "price", *time, option, houses.with_name(name)) == 2
    assert_one_sentence(capsys, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit",), "Missing argument 'DATA'; see 'rcgp fit --help'"),
        (("fit", "DATA"), "Missing option '--target'"),
        (("fit", "DATA", "--target", "price", "--missing", "guess"), "'guess' is not one of 'drop', 'error'"),
        (
            ("fit", "DATA", "--target", "price", "--weight", "flat"),
            "'flat' is not one of 'learned', 'imq', 'se', 'constant'",
        ),
        (("fit", "DATA", "--target", "price", "--centre", "prior"), "No such option: --centre"),
        (("fit", "DATA", "--target", "price", "--rows", "3"), "No such option: --rows"),
        (("nonsense",), "No such command 'nonsense'.*see 'rcgp --help'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(arguments, message, houses, capsys):
    assert rcgp_command(*(houses if argument == "DATA" else argument for argument in arguments)) == 2
    assert_one_sentence(capsys, message)


def test_inputs_are_not_overwritten(houses, tmp_path, capsys):
    content, model = houses.read_bytes(), tmp_path / "m.rcgp"
    assert rcgp_command("fit", houses, "--target", "price", "--model", model) == 0
    capsys.readouterr()
    for command in (
        ("fit", houses, "--target", "price", "--model", houses),
        ("report", houses, "--target", "price", "--output", houses),
        ("predict", model, houses, "--output", houses),
        ("predict", model, houses, "--output", model),
    ):
        assert rcgp_command(*command) == 2
        assert_one_sentence(capsys, "is an input: writing there would overwrite it")
    assert houses.read_bytes() == content
    for name in ("p.csv.gz", "p.xlsx"):
        assert rcgp_command("predict", model, houses, "--output", tmp_path / name) == 2
        assert_one_sentence(capsys, r"\.csv or \.parquet")
    assert rcgp_command("predict", houses, model) == 2
    assert_one_sentence(capsys, "the model comes first")


def test_a_fit_that_fails_names_the_row_of_the_file(tmp_path, capsys):
    table = house_table()
    table.loc[2, "size"] = np.nan  # dropped, so that rows of the model are not those of the file
    table.loc[20, "price"] = 1e300
    table.to_csv(tmp_path / "far.csv", index=False)
    command = ("fit", tmp_path / "far.csv", "--target", "price", "--missing", "drop")
    assert rcgp_command(*command) == 0
    assert re.search(r"^ *21 +1e\+300", capsys.readouterr().out, re.MULTILINE)
    assert rcgp_command(*command, "--weight", "imq") == 2
    assert_one_sentence(capsys, r"the fit failed: .* look at row 21, whose 'price' is 1e\+300")


def test_an_absurd_input_is_named_by_the_row_of_the_file_and_does_no_harm(tmp_path, capsys):
    size = np.random.default_rng(0).uniform(0, 6, 40)
    table = pd.DataFrame({"size": size, "price": np.sin(size)})
    table.loc[2, "price"] = np.nan  # dropped, so that rows of the model are not those of the file
    table.loc[20, "size"] = 1e12
    table.to_csv(tmp_path / "far.csv", index=False)
    command = ("fit", tmp_path / "far.csv", "--target", "price", "--missing", "drop")
    assert rcgp_command(*command) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "column 'size': look at row 21 (1e+12), while half of the column lies within" in shown
    table.drop(index=[2, 20]).to_csv(tmp_path / "good.csv", index=False)
    for name, expected in (("far", True), ("good", False)):
        assert rcgp_command("fit", tmp_path / f"{name}.csv", *command[2:], "--model", tmp_path / f"{name}.rcgp") == 0
        assert ("look at row" in " ".join(capsys.readouterr().err.split())) == expected
    far, good = (rcgp.load(tmp_path / f"{name}.rcgp") for name in ("far", "good"))
    np.testing.assert_allclose(far.predict(table[["size"]][:5]), good.predict(table[["size"]][:5]), atol=0.01)


def test_a_constant_feature_comes_last_and_has_no_lengthscale(tmp_path, capsys):
    table = house_table()
    table.insert(0, "country", 7)
    table.to_csv(tmp_path / "houses.csv", index=False)
    assert rcgp_command("fit", tmp_path / "houses.csv", "--target", "price") == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("feature"))
    last = lines[lines.index("", start) - 1]
    assert last.split() == ["country", "–", "7", "to", "7"]
    assert sum(line.startswith("country") for line in lines) == 1


def test_control_characters_in_names_are_escaped(tmp_path, capsys):
    table = house_table()[["size", "price"]].rename(columns={"size": "si\x1b[31mze"})
    table.to_csv(tmp_path / "t.csv", index=False)
    assert rcgp_command("fit", tmp_path / "t.csv", "--target", "price") == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert r"si\x1b[31mze" in out


def test_rows_are_not_cut_on_a_narrow_terminal(houses, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert rcgp_command("outliers", houses, "--target", "price") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.endswith("outlier"))
    assert line.split()[0] == "12"
    assert len(line.split()) == 8


@pytest.mark.parametrize("command", [(), ("fit",), ("predict",), ("outliers",), ("report",), ("clean",), ("demo",)])
def test_help_explains_every_command(command, capsys):
    assert rcgp_command(*command, "--help") == 0
    out = capsys.readouterr().out
    assert ("rcgp demo" in out) if not command else ("Usage: rcgp" in out)


def test_both_names_of_the_program_work():
    for program in ([sys.executable, "-m", "rcgp"], [str(_script())]):
        shown = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
        assert shown.stdout == f"rcgp {rcgp.__version__}\n"


def _script():
    return Path(sys.executable).with_name("rcgp")


def test_help_does_not_wait_for_heavy_libraries():
    code = (
        "import sys; sys.argv = ['rcgp', '--help']\n"
        "from rcgp.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'gpytorch', 'numpy', 'pandas', 'plotly', 'sklearn', 'matplotlib'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "set()"


def test_a_missing_library_names_the_extra():
    code = "import sys; sys.modules['typer'] = None\nfrom rcgp.__main__ import main\nmain()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert shown.stderr == 'rcgp: the command line needs typer, which is missing; pip install "rcgp[cli]" brings it\n'


def test_an_interrupt_is_one_sentence_and_writes_nothing(houses, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("rcgp.estimator.output.fit_robust", interrupted)
    assert rcgp_command("fit", houses, "--target", "price", "--model", tmp_path / "m.rcgp") == 130
    assert_one_sentence(capsys, "interrupted; nothing was written")
    assert not (tmp_path / "m.rcgp").exists()


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(houses):
    """It has closed the pipe before the first line is written."""
    command = f'"{sys.executable}" -m rcgp outliers "{houses}" --target price --json'
    shell = f"{command} | true; exit ${{PIPESTATUS[0]}}"
    shown = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "Traceback" not in shown.stderr
    assert "BrokenPipe" not in shown.stderr


def test_a_closed_pipe_loses_no_file(houses, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    assert rcgp_command("fit", houses, "--target", "price", "--model", tmp_path / "m.rcgp") == 0
    assert rcgp_command("demo", "--output", tmp_path) == 0
    assert {"m.rcgp", "demo.csv", "demo.png"} <= {path.name for path in tmp_path.iterdir()}


def test_free_memory_is_known_here():
    from rcgp.chunked.resources import available_memory

    assert 2**20 < available_memory() < 2**50


def test_the_report_is_written(houses, tmp_path, capsys):
    report = tmp_path / "report.html"
    assert rcgp_command("report", houses, "--target", "price", "--output", report) == 0
    page = report.read_text()
    assert "price" in page
    assert page.rstrip().endswith("</html>")
    assert report.stat().st_size < 5e6


def test_the_robust_fit_of_the_demo_is_better(tmp_path, capsys):
    assert rcgp_command("demo", "--output", tmp_path / "build") == 0
    lines = capsys.readouterr().out.splitlines()
    plain, robust = (float(line.split()[1]) for line in lines if line.startswith(("GP ", "RCGP ")))
    assert robust < 0.8 * plain
    wide, narrow = (float(line.split()[4]) for line in lines if line.startswith(("GP ", "RCGP ")))
    assert any(f"it is {wide / narrow:.0f} times as wide" in line for line in lines)
    first = next(line.split() for line in lines if line.endswith("outlier"))
    table = pd.read_csv(tmp_path / "build" / "demo.csv")
    assert float(first[1]) == pytest.approx(table["y"][int(first[0]) - 1], rel=1e-3)  # rows count from 1
    assert (tmp_path / "build" / "demo.png").stat().st_size > 10_000
    assert len(pd.read_csv(tmp_path / "build" / "demo.csv")) == 300


def test_a_command_of_another_package_that_cannot_be_loaded_fails_alone():
    class Broken:
        def load(self):
            raise ModuleNotFoundError("no matplotlib", name="matplotlib")

    command = _loaded(Broken())
    with pytest.raises(ModuleNotFoundError, match="no matplotlib"):
        command()
