from __future__ import annotations

import warnings

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """OpenML is out of reach, and so is a folder that the environment names."""
    from urllib.error import URLError

    def refuse(**arguments):
        warnings.warn("retrying", RuntimeWarning, stacklevel=2)  # as scikit-learn does
        raise URLError("no network")

    monkeypatch.delenv("RCGP_DATA_HOME", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", refuse)
