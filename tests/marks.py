"""Cases of a test that take long beside others of the same test."""

from __future__ import annotations

import pytest

__all__ = ["slow"]


def slow(*values):
    """A case for make check; in make test each of its values occurs in another case, or another test asserts it."""
    return pytest.param(*values, marks=pytest.mark.slow)
