"""How much memory is free, and how much inducing points take: too large a fit is refused before it begins."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rcgp.models.inducing import CANDIDATES

__all__ = ["available_memory", "check_inducing_memory", "gigabytes", "inducing_bytes"]

# m x m matrices of float64 held at the peak of a sparse fit with m inducing points, as measured.
_MATRICES = 12.0


def inducing_bytes(points: int, rows: int) -> int:
    """Bytes at the peak of a sparse fit, beside a chunk of rows.

    While greedy selection goes through its candidates it holds a row of them for each point; then a pass over the rows
    holds some m x m matrices.

    Args:
        points: the number m that was asked for; no more are chosen than there are candidates.
        rows: of the table.
    """
    candidates = min(rows, CANDIDATES)
    m = min(points, candidates)
    return round(8 * max(m * candidates, _MATRICES * m**2))


def check_inducing_memory(points: int, rows: int) -> None:
    """Raise a MemoryError if so many inducing points need more memory than there is."""
    needed, free = inducing_bytes(points, rows), available_memory()
    if free is not None and needed > free:
        raise MemoryError(
            f"{min(points, rows, CANDIDATES)} inducing points need about {gigabytes(needed)} GB of memory, and "
            f"{gigabytes(free)} are free: take fewer"
        )


def gigabytes(size: float) -> str:
    """A number of bytes in gigabytes, for people."""
    return f"{round(size / 1e9)}" if size >= 1e10 else f"{size / 1e9:.1f}"


def available_memory() -> int | None:
    """Free memory in bytes, within the limit of a container if there is one; None where the system does not say.

    Where it only says how much memory there is, that.
    """
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not free:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # each for some system
            free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        free.append(int(limit) - int(used) + _forgettable())
    return min(free, default=None)


def _forgettable() -> int:
    """Bytes of files that the system keeps in a container's memory only as long as nobody needs it."""
    lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
