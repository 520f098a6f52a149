from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rcgp.chunked import resources


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Sets the limit and use of a container on a machine with 8 GB free."""
    machine = SimpleNamespace(available=8 * 10**9)
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)

    def write(limit, used, forgettable):
        for name, text in (("max", limit), ("current", used), ("stat", f"anon 5\ninactive_file {forgettable}\n")):
            (tmp_path / f"memory.{name}").write_text(f"{text}\n")

    return write


def test_free_memory_is_limited_by_the_container(container):
    assert resources.available_memory() == 8 * 10**9
    container("max", 10**9, 0)  # no limit
    assert resources.available_memory() == 8 * 10**9
    container(4 * 10**9, 3 * 10**9, 0)
    assert resources.available_memory() == 10**9
    container(4 * 10**9, 3 * 10**9, 2 * 10**9)  # the last number: files that need not stay
    assert resources.available_memory() == 3 * 10**9
    container(10**12, 10**9, 0)
    assert resources.available_memory() == 8 * 10**9


def test_memory_of_points_is_that_of_candidates_or_matrices():
    assert resources.inducing_bytes(500, 10**6) == 8 * 500 * 20_000
    assert resources.inducing_bytes(500, 600) == 8 * 12 * 500**2
    assert resources.inducing_bytes(10**6, 10**7) == resources.inducing_bytes(20_000, 10**7) == 8 * 12 * 20_000**2


@pytest.mark.parametrize(("free", "left"), [(2e9, "2.0"), (403.2e9, "403")])
def test_sizes_are_in_gigabytes(free, left, monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: free)
    resources.check_memory(free, "", "")
    with pytest.raises(MemoryError, match=f"^it needs about 2000 GB of memory, and {left} are free: use less$"):
        resources.check_memory(2e12, "it needs", "use less")


PEAK = """
import re, warnings
from pathlib import Path
import numpy as np
from rcgp import SparseRCGPRegressor

def held(kind):
    return 1024 * int(re.search(rf"{kind}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

random = np.random.default_rng(0)
X = random.uniform(0, 6, (1100, 6))
y = np.sin(3 * X).sum(1) + 0.1 * random.standard_normal(1100)
warnings.simplefilter("ignore")
SparseRCGPRegressor(50, fit_rows=50).fit(X[:200], y[:200])  # what is loaded at first use is loaded
before = held("VmRSS")
model = SparseRCGPRegressor(1000, fit_rows=50, random_state=0).fit(X, y)
print(len(model.inducing_points_), held("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_of_a_sparse_fit_is_close_to_its_estimate():
    command = [sys.executable, "-W", "ignore", "-c", PEAK]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"})
    points, peak = map(int, re.findall(r"\d+", shown.stdout))
    assert points == 1000
    assert 0.6 < peak / resources.inducing_bytes(1000, 1100) < 1.3
