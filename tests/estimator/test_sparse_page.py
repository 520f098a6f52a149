"""The page on many rows: what it shows, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sparse.md"


@pytest.mark.slow
def test_the_pages_python_runs_and_finds_the_bad_rows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        exec(compile(block, "docs/sparse.md", "exec"), names)
    printed = re.search(r"(\d+) of (\d+) bad rows flagged, and (\d+) others", capsys.readouterr().out)
    found, bad, others = map(int, printed.groups())
    assert found == bad > 1900
    # A good row beyond 3.3 standard deviations is more likely an outlier here: 0.1 % of 18 000.
    assert others < 40
    assert abs(names["means"] - names["y"])[~names["bad"]].mean() < 0.1
    assert (names["outliers"] & names["bad"]).sum() == bad
