"""Parts of the environment that may be missing: without them a test is skipped, but fails in CI."""

from __future__ import annotations

import importlib
import os

import pytest


def optional(name):
    """A module that may be missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"no {name}: what needs it was not tested ({error})"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


def local_cluster(workers):
    """A Dask cluster of worker processes on this machine, of one thread each, which talk by TCP."""
    # Any free port for its web page: the usual one may be taken by another cluster on the machine.
    arguments = {"processes": True, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    return optional("distributed").LocalCluster(n_workers=workers, threads_per_worker=1, **arguments)
