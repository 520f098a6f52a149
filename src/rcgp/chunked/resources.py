"""Time, progress and memory of a fit of many rows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rcgp.chunks import Chunk, Chunks, Engine, Serial, Threads
from rcgp.chunks.engines import Gather
from rcgp.models.inducing import CANDIDATES
from rcgp.training.search import Progress
from rcgp.training.status_line import StatusLine

__all__ = ["Stages", "available_memory", "check_inducing_memory", "check_memory", "inducing_bytes"]

T = TypeVar("T")

# m x m matrices of float64 held at the peak of a sparse fit with m inducing points, as measured.
_MATRICES = 12.0

# Where a container finds its limit; psutil reports the memory of the machine.
_CGROUP = Path("/sys/fs/cgroup")


class Stages:
    """Times the named steps of a fit, and reports how many rows each pass has read.

    If the progress function has a method ``stage(name, done, total)``, it is called with the rows read so far and the
    total, 0 if unknown.

    Args:
        progress: ``True`` shows steps, passes and evaluations on standard error; or a function, as in :func:`rcgp.fit`.
        rows: number of rows of a pass; by default the first pass counts them.
    """

    def __init__(self, progress: bool | Progress, rows: int = 0) -> None:
        self.seconds: dict[str, float] = {}
        self.progress: bool | Progress = progress if callable(progress) else _Shown() if progress else False
        self.rows, self._name = rows, ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A named step, timed if it succeeds."""
        began, self._name = time.perf_counter(), name
        self.report(0, 0)
        try:
            yield
        finally:
            if isinstance(self.progress, _Shown):
                self.progress.line.end()
        self.seconds[name] = time.perf_counter() - began

    def report(self, done: int, total: int) -> None:
        """Report the rows that the current step has read."""
        if hasattr(self.progress, "stage"):
            self.progress.stage(self._name, done, total)

    def watched(self, engine: Engine) -> Engine:
        """The engine, reporting its passes; a cluster is returned unchanged, since its progress is unknown here."""
        watch = hasattr(self.progress, "stage") and isinstance(engine, Serial | Threads)
        return _Watched(self, engine) if watch else engine


class _Watched(Engine):
    """An engine of this process that reports every chunk."""

    def __init__(self, stages: Stages, engine: Engine) -> None:
        self._stages, self._engine = stages, engine

    def results(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Gather) -> Iterator[Any]:
        done, lock = 0, threading.Lock()

        def reported(chunk: Chunk) -> T:
            nonlocal done
            result = task(chunk)
            with lock:
                done += len(chunk.y)
                self._stages.report(done, self._stages.rows)
            return result

        yield from self._engine.results(reported, chunks, gather)
        self._stages.rows = self._stages.rows or done


class _Shown:
    """Steps, passes and evaluations on standard error, one line for each step."""

    def __init__(self) -> None:
        self._name, self.line = "fit", StatusLine()

    def __call__(self, evaluations: int, best: float) -> None:
        self.line.show(f"{self._name}: {evaluations} evaluations, best {best:.6g}")

    def stage(self, name: str, done: int, total: int) -> None:
        self._name = name
        self.line.show(f"{name}: {done} of {total} rows" if total else f"{name}: {done} rows" if done else name)


def inducing_bytes(points: int, rows: int) -> int:
    """Peak bytes of a sparse fit with at most this many inducing points, without the chunk of rows.

    Greedy selection holds a row of candidates for each point; a pass over the rows holds several m x m matrices.
    """
    candidates = min(rows, CANDIDATES)
    m = min(points, candidates)
    return round(8 * max(m * candidates, _MATRICES * m**2))


def check_inducing_memory(points: int, rows: int) -> None:
    """Raise a MemoryError if this many inducing points need more memory than is free."""
    check_memory(inducing_bytes(points, rows), f"{min(points, rows, CANDIDATES)} inducing points need", "use fewer")


def check_memory(needed: float, what: str, remedy: str, error: type[Exception] = MemoryError) -> None:
    """Raise an error unless this many bytes are free; ``what`` is its subject and verb."""
    if needed > (free := available_memory()):
        size, left = (f"{value / 1e9:.{0 if value >= 1e10 else 1}f}" for value in (needed, free))
        raise error(f"{what} about {size} GB of memory, and {left} are free: {remedy}")


def available_memory() -> int:
    """Free memory in bytes, within a container's limit."""
    free: int = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = map(str.split, (_CGROUP / "memory.stat").read_text().splitlines())
        cached = sum(int(line[1]) for line in lines if line[:1] == ["inactive_file"])  # dropped when memory is needed
        free = min(free, limit - used + cached)
    return free
