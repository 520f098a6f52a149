from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Shared machines have slow moments: no example fails for having taken long.
settings.register_profile("rcgp", deadline=None)
settings.load_profile("rcgp")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker runs a whole file, whose fixtures are made once, or all that share compiled code or a cluster."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return next((shared for shared in ("series", "dask") if shared in file), file)

    return Files(config, log)


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    """Small matrices are slower on two threads; and no test depends on which ones ran before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def rng():
    """Seeded generator for torch."""
    return torch.Generator().manual_seed(20240722)


@pytest.fixture(scope="session")
def data_home():
    """The folder of data files. Without it the test is skipped, but fails in continuous integration."""
    named = os.environ.get("RCGP_DATA_HOME")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "boston.csv").is_file():
        reason = f"no data files in {folder.name!r}: name their folder in RCGP_DATA_HOME"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium. Without it the test is skipped, but fails in continuous integration."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if executable is None or sync_playwright is None:
        reason = "how a browser shows the report was not tested: needs Chromium (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield chromium
        chromium.close()
