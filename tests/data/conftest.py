from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_home():
    """The folder of data files; where there is none the test is skipped, but never in continuous integration."""
    named = os.environ.get("RCGP_DATA_HOME")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not (folder / "boston.csv").is_file():
        reason = f"no data files in {folder.name!r}: name their folder in RCGP_DATA_HOME"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture
def no_network(monkeypatch):
    """OpenML is out of reach, and so is a folder that the environment names."""
    from urllib.error import URLError

    def refuse(**arguments):
        warnings.warn("retrying", RuntimeWarning, stacklevel=2)  # as scikit-learn does
        raise URLError("no network")

    monkeypatch.delenv("RCGP_DATA_HOME", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", refuse)
