from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import re, sys
from pathlib import Path
import numpy as np, torch
from rcgp.chunks import chunks_of, engine_for

def peak():  # in MB, of this program: getrusage would count the one that started it, too
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

path, dtype, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None
size = {"float64": 8, "float32": 4}[dtype]
n = 200 * 2**20 // (8 * size)
def total(X, y):
    chunks = chunks_of(X, y)
    engine = engine_for(chunks, threads=threads)
    return engine.reduce(lambda chunk: torch.cat([chunk.X.sum(0), chunk.y.sum()[None]]), chunks)
total(np.ones((1000, 7), dtype), np.ones(1000, dtype))  # what is loaded at first use is loaded
before = peak()
table = np.memmap(path, dtype=dtype, mode="r", shape=(n, 8))
result = total(table[:, :7], table[:, 7])
print(peak() - before, float(result.sum()) / (n * 8))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(("dtype", "threads"), [("float64", 0), ("float32", 2)])
def test_a_file_of_200_mb_is_summed_in_60(tmp_path, dtype, threads):
    path = tmp_path / "table.bin"
    np.full(200 * 2**20 // np.dtype(dtype).itemsize, 0.5, dtype).tofile(path)
    arguments = [sys.executable, "-c", SCRIPT, str(path), dtype, str(threads)]
    answer = subprocess.run(arguments, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"})
    extra, mean = map(float, answer.stdout.split())
    assert mean == 0.5
    assert extra < 60
