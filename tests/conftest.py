from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# Shared machines have slow moments: no example fails for having taken long.
settings.register_profile("rcgp", deadline=None)
settings.load_profile("rcgp")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def rng():
    """Seeded generator for torch."""
    return torch.Generator().manual_seed(20240722)
