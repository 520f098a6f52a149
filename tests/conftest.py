from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# Shared machines have slow moments: no example fails for having taken long.
settings.register_profile("rcgp", deadline=None)
settings.load_profile("rcgp")


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    """Small matrices are slower on two threads; and no test depends on which ones ran before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def rng():
    """Seeded generator for torch."""
    return torch.Generator().manual_seed(20240722)
