from __future__ import annotations

import pytest

from cli.houses import house_table


@pytest.fixture
def houses(tmp_path):
    """A CSV file of houses."""
    path = tmp_path / "houses.csv"
    house_table().to_csv(path, index=False)
    return path
