from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def data_home(monkeypatch):
    """The folder of data files, for this process and those that it starts; without it a skip, or a failure in CI."""
    home = Path(os.environ.get("RCGP_DATA_HOME", FOLDER))
    if not home.is_dir():
        reason = f"needs the data files; name their folder in RCGP_DATA_HOME (looked in {home})"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    monkeypatch.setenv("RCGP_DATA_HOME", str(home))
    return home
