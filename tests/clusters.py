"""One Dask cluster for all tests that leave it whole: its workers are long in starting."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from optional_parts import local_cluster, optional

_CLIENT = pytest.StashKey()


def shared_client(config):
    """A client of two worker processes on this machine, which start when first asked for and end with the tests."""
    if _CLIENT not in config.stash:
        with ExitStack() as opened:
            cluster = opened.enter_context(local_cluster(2))
            # Not the default: a test that wants it there says so.
            client = opened.enter_context(optional("distributed").Client(cluster, set_as_default=False))
            config.stash[_CLIENT] = client
            config.add_cleanup(opened.pop_all().close)
    return config.stash[_CLIENT]
