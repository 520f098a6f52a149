"""What the documentation shows, works: the README's Python runs and every gallery script draws its figure."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import rcgp

ROOT = Path(__file__).parents[1]
GALLERY = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))


def test_the_readmes_python_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    text = capsys.readouterr().out
    assert "loo = " in text
    errors = re.findall(r"(?:plain|robust) tensor\((0\.\d\d)", text)
    assert f"# {errors[0]} and {errors[1]}" in "".join(blocks)


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_gallery_scripts_draw_their_figure(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    (figure,) = (tmp_path / "build").glob("*.png")
    assert figure.stat().st_size > 10_000


def test_the_demo_shows_the_robust_fit_to_be_better(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "docs" / "gallery" / "plot_outliers.py"), run_name="__main__")
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert float(lines["RCGP"][1]) < 0.8 * float(lines["GP"][1])


def test_importing_the_package_imports_no_optional_library():
    code = "import sys, rcgp; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gpytorch" in loaded
    assert not {"botorch", "dask", "matplotlib", "pandas", "plotly", "sklearn"} & set(loaded)


def test_every_public_name_is_documented():
    for name in rcgp.__all__:
        assert name == "__version__" or getattr(rcgp, name).__doc__
    for module in (rcgp.weights, rcgp.training.objectives):
        for name in module.__all__:
            value = getattr(module, name)
            assert not (inspect.isclass(value) or inspect.isfunction(value)) or value.__doc__
