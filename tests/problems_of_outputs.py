"""Tables of several outputs, for tests."""

from __future__ import annotations

import numpy as np
import torch

TEST_X = torch.from_numpy(np.random.default_rng(9).uniform(-2, 2, (5, 2)))
NOISE = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)


def make_data(n=12, outputs=3, missing=0.3, seed=0):
    """Inputs, observations with missing cells, of outputs that go together."""
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (n, 2))
    base = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1])], axis=-1)
    Y = base @ random.normal(size=(2, outputs)) + 0.1 * random.standard_normal((n, outputs)) + np.arange(outputs)
    Y[random.random(Y.shape) < missing] = np.nan
    for output in range(outputs):  # at least one cell each
        if np.isnan(Y[:, output]).all():
            Y[output % n, output] = 0.5
    return torch.tensor(X), torch.tensor(Y)
