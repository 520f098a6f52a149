"""What the documentation shows, works: README and guide run, and every gallery script draws its figure."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import rcgp
from rcgp.cli import run

ROOT = Path(__file__).resolve().parents[1]
NEEDED = {"plot_real_outliers": "well_log.csv", "plot_plug_in": "protein.csv"}
GALLERY = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))


def blocks_of(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run_python(page):
    blocks = blocks_of(page, "python")
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return "".join(blocks)


def test_the_readmes_python_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = run_python("README.md")
    text = capsys.readouterr().out
    law = re.search(r"The noise of good rows .*\.", text)[0]
    assert f"print(model.noise_law_)  # {law}" in code
    rows = re.search(r"\[ *(\d+) +(\d+) +(\d+)\]", text)
    assert f"# [{' '.join(rows.groups())}]" in code
    assert (tmp_path / "model.rcgp").exists()


@pytest.mark.slow
def test_the_guides_python_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = run_python("docs/start.md")
    text = capsys.readouterr().out
    shown = [line.split()[0] for line in text.splitlines() if re.match(r"\d+ +\d+\.\d", line)]
    assert shown == ["3", "40", "77"]  # the rows that it is about
    assert "robust = " in text
    errors = [float(error) for error in re.findall(r"(?:plain|paper|learned) tensor\((0\.\d+)", text)]
    assert "# {:.2f}, {:.2f} and {:.2f}".format(*errors) in code
    own_kernel = float(re.search(r"Matérn tensor\((0\.\d+)", text)[1])
    assert own_kernel < errors[1] / 3  # it does not follow the outliers
    assert f"truth).abs().mean())  # {own_kernel:.2f}\nmodel.hyperparameters()" in code


@pytest.mark.slow
def test_the_python_of_the_page_on_series_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python("docs/series.md")
    assert capsys.readouterr().out == "[100 333 334]\nTrue\n"
    assert (tmp_path / "stream.rcgp").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")
def test_the_python_of_the_page_on_likelihoods_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python("docs/plug_in.md")
    text = capsys.readouterr().out
    assert text.startswith("100\n")
    flagged = {int(number) for number in text[text.rindex("[") + 1 : text.rindex("]")].split()}
    assert set(range(20)) <= flagged  # and one or two beside the step
    assert len(flagged) <= 24
    assert (tmp_path / "deep.rcgp").exists()


def test_the_python_of_the_page_on_several_outputs_runs(capsys):
    run_python("docs/several_outputs.md")
    assert capsys.readouterr().out == "[[12  0]]\n-1.0\n"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def tables_of(page):
    """Cells of every table row by their first cell, bold or not; and the heads, whose next line is a rule."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    split = [[cell.strip().replace("**", "") for cell in line.strip("|").split("|")] for line in lines]
    tables, head = [], None
    for line, cells, following in zip(lines, split, [*lines[1:], ""], strict=True):
        if re.match(r"\|[ :|-]+\|$", following):
            head = cells
            tables.append([])
        elif line.startswith("|") and not re.match(r"\|[ :|-]+\|$", line):
            tables[-1].append(dict(zip(head, cells, strict=True)))
    return tables


def test_the_readmes_comparison_has_the_benchmarks_figures():
    """Each figure is that of docs/benchmark.md, which is made from the records; a method without records has dashes."""
    peers = {
        "rcgp, learned law": "learned law",
        "plain GP, as in scikit-learn": "plain GP",
        "Student-t GP ¹": "Student-t GP",
        "gradient boosting ²": "boosting",
        "RRP (BoTorch) ³": "RRP",
    }
    columns = {
        "no errors": "none",
        "all kinds": "all but t₂ noise",
        "two-sided 35 %": "two-sided 35 %",
        "worst, scattered": "scattered, worst",
    }
    pages = tables_of("docs/benchmark.md")
    errors = next(
        {line[""]: line for line in table} for table in pages if any(line.get("") == "none" for line in table)
    )
    times = next({line[""]: line for line in table} for table in pages if "time, median" in table[0])
    (comparison,) = (table for table in tables_of("README.md") if "no errors" in table[0])
    assert [line[""] for line in comparison] == list(peers)
    for line in comparison:
        method = peers[line[""]]
        for column, row in columns.items():
            assert line[column] == errors[row].get(method, "–"), (method, column)
        assert line["time"] == times.get(method, {}).get("time, median", "–"), method


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_plan_names_every_room_and_only_files_that_exist():
    plan = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for package in (ROOT / "src" / "rcgp", ROOT / "paper" / "src" / "rcgp_paper"):
        rooms = [path.parent.name for path in package.glob("*/__init__.py")]
        assert not [room for room in rooms if f"`{room}/`" not in plan]
    named = set(re.findall(r"[a-z_]+/[a-z_]+\.py", plan))
    known = [path.as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    assert named
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in known)]


def test_the_table_of_the_flash_crash_is_that_of_its_record():
    lines = (ROOT / "results" / "figure_flash_crash.jsonl").read_text(encoding="utf-8").splitlines()
    values = [record["values"] for record in map(json.loads, lines) if "series" in record["config"]][-1]
    minute = np.array(values["minute"])
    crash = (minute >= 1440 + 788) & (minute <= 1440 + 791)
    around = np.abs(minute - 1440 - 790) <= 10
    (table,) = (t for t in tables_of("docs/reproduction.md") if "weights 13:08 to 13:11" in t[0])
    methods = {"GP": "gp", "RCGP as published": "rcgp", "ST-RCGP's rule": "st_rcgp", "RCGP, learned law": "learned"}
    assert [line[""] for line in table] == list(methods)
    for line in table:
        weight, mean = (np.array(values[methods[line[""]]][key]) for key in ("weight", "mean"))
        shown = [float(number) for number in line["weights 13:08 to 13:11"].split(",")]
        assert shown == weight[crash].round(2).tolist()
        assert float(line["median of all weights"]) == np.median(weight).round(2)
        assert int(line["other minutes with a weight below ½"]) == (weight[~crash] < 0.5).sum()
        assert float(line["f falls, from 14697, by"]) == (14697.4 - mean[around].min()).round()
    assert minute[values["flagged"]].tolist() == minute[crash].tolist()


@pytest.mark.parametrize("page", ["README.md", "docs/command_line.md", "docs/several_outputs.md"])
def test_the_shell_commands_shown_exist(page, tmp_path, monkeypatch, capsys):
    """Every command and option shown is one that the program knows."""
    lines = [line for block in blocks_of(page, "sh") for line in block.splitlines() if line.startswith("rcgp ")]
    assert len(lines) >= 5
    for line in lines:
        words = line.partition("#")[0].split()
        options = {word for word in words if word.startswith("--")}
        assert run([words[1], "--help"]) == 0
        shown = capsys.readouterr().out
        assert options <= set(re.findall(r"--[a-z-]+", shown)), line


def test_the_readmes_shell_session_works(tmp_path, monkeypatch, capsys):
    """The five lines of shell, one after the other."""
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks_of("README.md", "sh") for line in block.splitlines() if line.startswith("rcgp ")]
    for line in lines:
        assert run(line.partition("#")[0].split()[1:]) == 0, line
    assert (tmp_path / "build" / "report.html").exists()


def test_the_python_of_gradients_and_averages_runs(capsys):
    code = run_python("docs/linear_observations.md")
    assert capsys.readouterr().out.split() == ["tensor([[4,", "1]])", "tensor([[12]])"]
    assert "# row 4, output 1" in code
    assert "# row 12" in code


def need_data(monkeypatch, file):
    """The folder of data files for a script that reads them; without it a skip, or a failure in CI."""
    named = os.environ.get("RCGP_DATA_HOME")
    home = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (home / file).is_file():
        reason = f"no {file} in {home.name!r}: name the folder of data files in RCGP_DATA_HOME"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    monkeypatch.setenv("RCGP_DATA_HOME", str(home))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # raised inside BoTorch's acquisition functions
@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_gallery_scripts_draw_their_figure(script, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    if script.stem in NEEDED:
        need_data(monkeypatch, NEEDED[script.stem])
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.extend(plt.get_fignums()))
    runpy.run_path(str(script), run_name="__main__")
    assert drawn
    assert all(any(axis.has_data() for axis in plt.figure(number).axes) for number in drawn)
    plt.close("all")
    assert not list(tmp_path.iterdir())  # a script leaves nothing behind


def run_real_outliers():
    return runpy.run_path(str(ROOT / "docs" / "gallery" / "plot_real_outliers.py"), run_name="__main__")


def test_real_outliers_without_data_end_with_a_notice(tmp_path, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path))
    assert run_real_outliers()["series"] == {}
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("left out: data set") for line in lines)
    assert not plt.get_fignums()


@pytest.mark.slow
def test_real_outliers_are_found_as_the_page_says(monkeypatch):
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    need_data(monkeypatch, "well_log.csv")
    result = run_real_outliers()
    plt.close("all")
    series, flags = result["series"], result["flags"]
    assert flags["flash_crash"].nonzero()[0].tolist() == [109, 110]
    well = series["well_log"].y
    assert flags["well_log"][well < 88000].all()
    assert set(flags["well_log"][well >= 1e5].nonzero()[0]) <= {0}  # the end of a level
    assert not flags["stars_cyg"].any()  # the page says so, and why
    years = set(series["telef"].X[flags["telef"], 0])
    assert years == set(range(1963, 1971))  # 1963 and 1970 were minutes in part


def test_every_gallery_script_and_page_is_reachable():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= set(index.split())


def modules_after(statement):
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_package_imports_no_library_before_it_is_used():
    assert not {"torch", "gpytorch", "sklearn"} & set(modules_after("import rcgp"))
    loaded = modules_after("from rcgp import RCGP, fit_robust")
    assert "gpytorch" in loaded
    assert not {"botorch", "dask", "matplotlib", "pandas", "plotly", "rich", "sklearn", "typer"} & set(loaded)


def test_every_public_name_is_documented():
    for name in rcgp.__all__:
        assert name == "__version__" or getattr(rcgp, name).__doc__
    for room in ("weights", "gpytorch", "training.objectives", "saving", "report", "table"):
        module = importlib.import_module(f"rcgp.{room}")
        for name in module.__all__:
            value = getattr(module, name)
            assert not (inspect.isclass(value) or inspect.isfunction(value)) or value.__doc__
