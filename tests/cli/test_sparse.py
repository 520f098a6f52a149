"""Large tables on the command line: kind of model, notices, and refusals."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import rcgp
from cli.houses import assert_one_sentence, rcgp_command
from rcgp import RCGPRegressor, SparseRCGPRegressor
from rcgp.chunked import resources
from rcgp.cli import fitting
from rcgp.cli.options import SPARSE_ABOVE, Options
from rcgp.cli.progress import progress_bar
from rcgp.report.summary import rows_of

NOTICE = "120 rows: fitted through 20 inducing points; --exact for the exact model"


def wave_table(n=120):
    random = np.random.default_rng(3)
    table = pd.DataFrame({"a": random.uniform(0, 10, n), "b": random.uniform(0, 1, n)})
    table["y"] = np.sin(table["a"]) + table["b"] + 0.1 * random.standard_normal(n)
    table.loc[[7, 50], "y"] += 6.0
    return table


@pytest.fixture
def waves(tmp_path):
    path = tmp_path / "waves.csv"
    wave_table().to_csv(path, index=False)
    return path


@pytest.fixture
def many_are_100(monkeypatch):
    """Tables of more than 100 rows are large."""
    monkeypatch.setattr("rcgp.cli.options.SPARSE_ABOVE", 100)


def fit_options(**given):
    return Options(target="y", **given)


def test_the_number_of_rows_chooses_options_that_are_not_given():
    assert SPARSE_ABOVE == 4000
    few, many = fit_options().for_rows(4000), fit_options().for_rows(4001)
    assert (few.sparse, few.fit_rows) == (False, 2000)
    assert (many.sparse, many.inducing, many.fit_rows) == (True, 500, 1000)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("rows", [10, 10**6])
def test_given_options_hold_for_any_number_of_rows(sparse, rows):
    choice = fit_options(sparse=sparse, fit_rows=300).for_rows(rows)
    assert (choice.sparse, choice.fit_rows) == (sparse, 300)


@pytest.mark.parametrize("command", ["fit", "outliers", "report"])
def test_the_help_states_the_number_of_rows(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert rcgp_command(command, "--help") == 0
    shown = capsys.readouterr().out
    assert re.search(r"--sparse +--exact .*sparse above 4000 rows", shown)
    assert re.search(r"--inducing .*500", shown)


@pytest.mark.usefixtures("many_are_100")
def test_large_tables_are_fitted_through_inducing_points_with_a_notice(waves, tmp_path, capsys):
    model = tmp_path / "m.rcgp"
    assert rcgp_command("fit", waves, "--target", "y", "--inducing", "20", "--seed", "4", "--model", model) == 0
    out, err = capsys.readouterr()
    assert f"note: {NOTICE}\n" in err
    assert "--fit-rows" not in err  # all 120 rows were used
    loaded, table = rcgp.load(model), wave_table()
    direct = SparseRCGPRegressor(n_inducing=20, random_state=4).fit(table[["a", "b"]], table["y"])
    assert isinstance(loaded, SparseRCGPRegressor)
    np.testing.assert_allclose(loaded.loo_mean_, direct.loo_mean_, rtol=1e-9)
    assert re.search(r"^inducing points +20$", out, re.MULTILINE)
    assert re.search(r"^rows used +120$", out, re.MULTILINE)
    flagged = [int(line.split()[0]) for line in out.splitlines() if line.endswith("outlier")]
    assert sorted(flagged) == [8, 51]


@pytest.mark.parametrize(
    ("option", "kind"), [("--exact", RCGPRegressor), ("--sparse", SparseRCGPRegressor)], ids=["exact", "sparse"]
)
@pytest.mark.parametrize("limit", [100, 4000])
def test_a_requested_kind_of_fit_has_no_notice(option, kind, limit, waves, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rcgp.cli.options.SPARSE_ABOVE", limit)
    model = tmp_path / "m.rcgp"
    arguments = ("--fit-rows", "60", option, "--model", model)
    assert rcgp_command("fit", waves, "--target", "y", *arguments) == 0
    out, err = capsys.readouterr()
    assert type(rcgp.load(model)) is kind
    assert "fitted through" not in err
    assert "sample of 60 of 120 rows (--fit-rows)" in err
    assert ("inducing points" in out) == (kind is SparseRCGPRegressor)


def test_options_reach_the_sparse_model(waves, tmp_path):
    model = tmp_path / "m.rcgp"
    paper = ("--weight", "se", "--mean", "robust_linear", "--seed", "5", "--no-local-noise")
    many = ("--sparse", "--inducing", "12", "--fit-rows", "50")
    assert rcgp_command("fit", waves, "--target", "y", *many, *paper, "--model", model) == 0
    loaded = rcgp.load(model)
    chosen = (loaded.weight, loaded.local_noise, loaded.mean, loaded.random_state)
    assert chosen == ("se", False, "robust_linear", 5)
    assert (loaded.n_inducing, loaded.fit_rows, loaded.inducing_points_.shape) == (12, 50, (12, 2))


def test_saved_sparse_models_predict_from_tables(waves, tmp_path, capsys):
    model, new = tmp_path / "m.rcgp", tmp_path / "new.csv"
    assert rcgp_command("fit", waves, "--target", "y", "--sparse", "--inducing", "20", "--model", model) == 0
    inputs = wave_table()[["a", "b"]].head(30)
    inputs[["b", "a"]].to_csv(new, index=False)  # columns go by their names
    capsys.readouterr()
    assert rcgp_command("predict", model, new) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    mean, std = rcgp.load(model).predict(inputs, return_std=True, include_noise=True)
    np.testing.assert_allclose(predicted["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(predicted["std"], std, rtol=1e-12)
    lower, upper = rcgp.load(model).predict_interval(inputs)
    np.testing.assert_allclose(predicted["lower"], lower, rtol=1e-9)
    np.testing.assert_allclose(predicted["upper"], upper, rtol=1e-9)


def test_sparse_models_saved_in_python_predict_from_tables(waves, tmp_path, capsys):
    table = wave_table()
    fitted = SparseRCGPRegressor(n_inducing=20).fit(table[["a", "b"]].to_numpy(), table["y"])
    fitted.save(tmp_path / "nameless.rcgp")
    assert rcgp_command("predict", tmp_path / "nameless.rcgp", waves) == 2
    assert_one_sentence(capsys, "2 columns without names and the table has 3")
    table[["a", "b"]].to_csv(tmp_path / "new.csv", index=False)
    assert rcgp_command("predict", tmp_path / "nameless.rcgp", tmp_path / "new.csv") == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose(predicted["mean"], fitted.predict(table[["a", "b"]].to_numpy()), rtol=1e-9)


@pytest.mark.usefixtures("many_are_100")
def test_outliers_of_a_large_table(waves, capsys):
    assert rcgp_command("outliers", waves, "--target", "y", "--json", "--inducing", "20") == 0
    out, err = capsys.readouterr()
    content = json.loads(out)
    assert NOTICE in content["notices"]
    assert f"note: {NOTICE}\n" in err
    assert sorted(row["row"] for row in content["rows"]) == list(range(1, 121))
    assert {row["row"] for row in content["rows"] if row["outlier"]} == {8, 51}
    assert {row["row"] for row in content["rows"][:2]} == {8, 51}


@pytest.mark.usefixtures("many_are_100")
@pytest.mark.parametrize("features", ["a", "a,b"])
def test_the_report_of_a_large_table_compares_with_an_ordinary_sparse_gp(
    features, waves, tmp_path, capsys, monkeypatch
):
    plain, fit_plain = [], fitting.fit_plain
    monkeypatch.setattr(fitting, "fit_plain", lambda *given: plain.append(fit_plain(*given)) or plain[0])
    report = tmp_path / "report.html"
    options = ("--features", features, "--inducing", "20", "--output", report)
    assert rcgp_command("report", waves, "--target", "y", *options) == 0
    page = report.read_text()
    assert page.rstrip().endswith("</html>")
    assert re.search(r"120 rows: fitted through \d+ inducing points", page)
    assert "Robust against ordinary" in page
    assert isinstance(plain[0], SparseRCGPRegressor)
    assert (plain[0].weights_ == plain[0].weights_[0]).all()
    assert (plain[0].weight, plain[0].n_inducing) == ("constant", 20)


@pytest.mark.parametrize("kind", ["--exact", "--sparse"])
def test_a_report_of_the_papers_method(kind, waves, tmp_path):
    report = tmp_path / "report.html"
    options = ("--features", "a", "--weight", "imq", "--output", report)
    assert rcgp_command("report", waves, "--target", "y", kind, *options) == 0
    assert report.exists()


@pytest.mark.parametrize("command", ["fit", "outliers", "report"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--exact", "--inducing", "500"), "'--inducing': there are no inducing points in an exact fit; use --sparse"),
        (("--sparse", "--restarts", "0"), "'--restarts': there are no restarts in a sparse fit; use --exact"),
        (("--sparse", "--inducing", "0"), "'--inducing': Input should be greater than or equal to 1"),
    ],
)
def test_options_of_the_other_kind_are_wrong_usage_before_data_are_read(command, options, message, tmp_path, capsys):
    output = ("--output", tmp_path / "report.html") if command == "report" else ()
    # The file does not exist, but is not read yet.
    assert rcgp_command(command, tmp_path / "none.csv", "--target", "y", *options, *output) == 2
    assert_one_sentence(capsys, f"{message}.*see 'rcgp {command} --help'")


def test_options_that_do_not_apply_to_the_chosen_kind_are_wrong_usage(waves, capsys, monkeypatch):
    monkeypatch.setattr(fitting, "_fit", no_fit)
    assert rcgp_command("fit", waves, "--target", "y", "--inducing", "20") == 2
    assert_one_sentence(
        capsys, "no inducing points in an exact fit, which is what 120 rows get; use --sparse, or leave"
    )
    monkeypatch.setattr("rcgp.cli.options.SPARSE_ABOVE", 100)
    assert rcgp_command("fit", waves, "--target", "y", "--restarts", "1") == 2
    assert_one_sentence(capsys, "no restarts in a sparse fit, which is what 120 rows get; use --exact, or leave it out")


def no_fit(*arguments):
    raise AssertionError("the fit has begun")


def test_a_sparse_fit_that_fails_names_the_row_of_the_file(tmp_path, capsys):
    table = wave_table()
    table.loc[2, "a"] = np.nan  # dropped, so that rows of the model are not those of the file
    table.loc[20, "y"] = 1e300
    table.to_csv(tmp_path / "far.csv", index=False)
    command = ("fit", tmp_path / "far.csv", "--target", "y", "--missing", "drop", "--sparse", "--weight", "imq")
    assert rcgp_command(*command) == 2
    assert_one_sentence(capsys, r"the fit failed: .* look at row 21, whose 'y' is 1e\+300")


@pytest.fixture
def fourteen_kilobytes(monkeypatch):
    """Free memory for one exact model of 22 rows, and nothing is fitted."""
    monkeypatch.setattr(resources, "available_memory", lambda: 14_000)
    monkeypatch.setattr(fitting, "_fit", no_fit)


@pytest.mark.usefixtures("fourteen_kilobytes")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--exact", "--fit-rows", "5"), "an exact fit of 120 rows needs about .* free: leave --exact out$"),
        (("--fit-rows", "5"), "an exact fit of 120 rows needs about .* free: add --sparse$"),
        (("--fit-rows", "110"), "choosing hyperparameters on 110 rows needs about .* free: lower --fit-rows$"),
        (("--sparse", "--inducing", "50"), "choosing hyperparameters on 120 rows .* free: lower --fit-rows$"),
        (("--sparse", "--fit-rows", "5"), "with 500 inducing points needs about .* free: lower --inducing$"),
    ],
)
def test_fits_that_need_more_memory_than_is_free_are_refused(options, message, waves, capsys):
    assert rcgp_command("fit", waves, "--target", "y", *options) == 2
    assert_one_sentence(capsys, message)


@pytest.mark.usefixtures("fourteen_kilobytes")
def test_memory_of_a_sparse_fit_is_not_quadratic_in_rows(waves, monkeypatch):
    begun = []
    monkeypatch.setattr(fitting, "_fit", lambda *arguments: begun.append(arguments) or no_fit())
    with pytest.raises(AssertionError, match="the fit has begun"):
        rcgp_command("fit", waves, "--target", "y", "--sparse", "--fit-rows", "5", "--inducing", "10")
    assert len(begun) == 1


def test_a_sparse_fit_with_too_few_points_has_a_notice(tmp_path, capsys):
    x = np.linspace(0, 10, 600)
    y = np.sin(2 * x) + 0.1 * np.random.default_rng(0).standard_normal(600)
    pd.DataFrame({"x": x, "y": y}).to_csv(tmp_path / "fast.csv", index=False)
    command = ("fit", tmp_path / "fast.csv", "--target", "y", "--sparse", "--fit-rows", "200")
    assert rcgp_command(*command, "--inducing", "6") == 0
    notice = "note: 6 inducing points are (too few|few).*; raise --inducing, or --fit-rows"  # as errors or as variance
    assert re.search(notice, capsys.readouterr().err)
    assert rcgp_command(*command, "--inducing", "30") == 0
    assert "raise --inducing" not in capsys.readouterr().err


def test_coverage_does_not_count_flagged_rows_against_the_intervals(waves, tmp_path, capsys):
    model = tmp_path / "m.rcgp"
    assert rcgp_command("fit", waves, "--target", "y", "--model", model) == 0
    good, every = re.search(
        r"coverage +(\S+)% of the rows that are not flagged lie in their 95 % interval, (\S+)% of all",
        capsys.readouterr().out,
    ).groups()
    fitted, y = rcgp.load(model), wave_table()["y"].to_numpy()
    covered = rows_of(fitted, wave_table()[["a", "b"]], y, tuple(range(120))).inside
    assert fitted.outliers_.sum() == 2
    assert float(good) == pytest.approx(100 * covered[~fitted.outliers_].mean(), abs=0.05)
    assert float(every) == pytest.approx(100 * covered.mean(), abs=0.05)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), 120),
        (("--top", "5"), 5),
        (("--only-flagged",), 2),
        (("--only-flagged", "--top", "1"), 1),
        (("--top", "0"), 0),
    ],
)
def test_only_some_rows_are_shown_if_asked_for(options, count, waves, capsys):
    command = ("outliers", waves, "--target", "y", "--sparse", "--inducing", "20", *options)
    assert rcgp_command(*command) == 0
    assert capsys.readouterr().out.splitlines().index("") == count + 1  # below them, the verdict
    assert rcgp_command(*command, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == count
    assert {row["row"] for row in rows[:2]} <= {8, 51}


def test_progress_names_the_steps_and_counts_the_rows(waves):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=200)
    table = wave_table()
    with progress_bar(console, "Fitting the model") as report:
        SparseRCGPRegressor(n_inducing=20, progress=report).fit(table[["a", "b"]], table["y"])
        (task,) = report._progress.tasks
        assert task.description == "Fitting the model, weights of all rows: 120 of 120 rows"
        assert (task.completed, task.total) == (120, 120)
        report(7, 3.5)
        assert task.description == "Fitting the model, weights of all rows: 7 evaluations, objective 3.5"


@pytest.mark.parametrize(
    ("rows", "free", "message"),
    [
        (120_000, 23 * 10**9, "an exact fit of 120 000 rows needs about 403 GB of memory, and 23 are free: leave"),
        (10_000, 2 * 10**9, "an exact fit of 10 000 rows needs about 2.8 GB of memory, and 2.0 are free: leave"),
    ],
)
def test_refusals_state_memory_in_gigabytes(rows, free, message, monkeypatch):
    options = fit_options(sparse=False)
    monkeypatch.setattr(resources, "available_memory", lambda: free)
    with pytest.raises(ValueError, match=message):
        fitting._check_memory(rows, np.array([rows]), options.for_rows(rows), options)


PEAK = """
import re, sys
from pathlib import Path
import numpy as np
from rcgp import RCGPRegressor

def memory(kind):
    return 1024 * int(re.search(rf"{kind}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

n, fit_rows = map(int, sys.argv[1:])
random = np.random.default_rng(0)
X = random.uniform(0, 6, (n, 2))
y = np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.1 * random.standard_normal(n)
RCGPRegressor(fit_rows=50).fit(X[:100], y[:100])  # what is loaded at first use is loaded
before = memory("VmRSS")
RCGPRegressor(fit_rows=fit_rows, max_iter=3, random_state=0).fit(X, y)
print((memory("VmHWM") - before) / (8 * n**2))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("rows", "fit_rows", "stated"),
    [(2500, 100, fitting._MODEL_MATRICES), (2500, 2500, fitting._SEARCH_MATRICES)],
    ids=["model", "search"],
)
def test_an_exact_fit_holds_about_as_many_matrices_as_stated(rows, fit_rows, stated):
    command = [sys.executable, "-W", "ignore", "-c", PEAK, str(rows), str(fit_rows)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"})
    assert 0.6 * stated < float(shown.stdout) < 1.1 * stated
