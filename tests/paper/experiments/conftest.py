from __future__ import annotations

import os
from pathlib import Path

import pytest

#: What the tests of this room read.
NEEDED = ("djia_20130423_open_2min.csv", "djia_20130422_23_close_1min.csv")


@pytest.fixture
def data_home(monkeypatch):
    """The folder of data files, for this process and its children; without it the test is skipped, or fails in CI."""
    named = os.environ.get("RCGP_DATA_HOME")
    home = Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"
    missing = [name for name in NEEDED if not (home / name).is_file()]
    if missing:
        reason = f"no {', '.join(missing)} in {home.name!r}: name the folder of data files in RCGP_DATA_HOME"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    monkeypatch.setenv("RCGP_DATA_HOME", str(home))
    return home
