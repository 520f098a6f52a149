"""The steps of a fit of many rows: what each took, and how far it is, for those who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rcgp.chunks import Chunk, Chunks, Engine, Serial, Threads
from rcgp.training.search import Progress
from rcgp.training.status_line import StatusLine

__all__ = ["Stages"]

T = TypeVar("T")


class Stages:
    """Names the steps of a fit, times them, and tells how many rows each pass has gone through.

    A function that is told of evaluations hears of steps and passes, too, if it has a method
    ``stage(name, done, total)``: rows that are done and rows in all, 0 where that is not known.

    Args:
        progress: ``True`` shows steps, passes and evaluations on standard error; or a function, as in :func:`rcgp.fit`.
        rows: number of rows of a pass, where it is known; else the first pass counts them.
    """

    def __init__(self, progress: bool | Progress, rows: int = 0) -> None:
        self.seconds: dict[str, float] = {}
        self.progress: bool | Progress = progress if callable(progress) else _Shown() if progress else False
        self._tell: Callable[[str, int, int], None] | None = getattr(self.progress, "stage", None)
        self._name, self._rows = "", rows

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step by its name: how long it takes is kept where it ends well."""
        began, self._name = time.perf_counter(), name
        self._report(0, 0)
        try:
            yield
        finally:
            if isinstance(self.progress, _Shown):
                self.progress.end()
        self.seconds[name] = time.perf_counter() - began

    def watched(self, engine: Engine) -> Engine:
        """The engine, whose passes are told of. Not those of a cluster: how far its workers are is not known here."""
        return _Watched(self, engine) if self._tell is not None and isinstance(engine, Serial | Threads) else engine

    @contextmanager
    def one_pass(self) -> Iterator[Callable[[int], None]]:
        """A function to tell how many more rows are done."""
        done, lock = 0, threading.Lock()

        def more(rows: int) -> None:
            nonlocal done
            with lock:  # several threads may be done at once
                done += rows
                self._report(done, self._rows)

        yield more
        self._rows = self._rows or done

    def _report(self, done: int, total: int) -> None:
        if self._tell is not None:
            self._tell(self._name, done, total)


class _Watched(Engine):
    """An engine of this process that tells of every chunk that is done."""

    def __init__(self, stages: Stages, engine: Engine) -> None:
        self._stages, self._engine = stages, engine

    def collect(self, task: Callable[[Chunk], T], chunks: Chunks) -> list[T]:
        with self._stages.one_pass() as more:
            return self._engine.collect(_telling(task, more), chunks)

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        with self._stages.one_pass() as more:
            return self._engine.reduce(_telling(task, more), chunks)


def _telling(task: Callable[[Chunk], T], more: Callable[[int], None]) -> Callable[[Chunk], T]:
    def told(chunk: Chunk) -> T:
        result = task(chunk)
        more(len(chunk.y))
        return result

    return told


class _Shown:
    """Steps, passes and evaluations on standard error, one line for each step."""

    def __init__(self) -> None:
        self._name, self._line = "fit", StatusLine()

    def __call__(self, evaluations: int, best: float) -> None:
        self._line.show(f"{self._name}: {evaluations} evaluations, best {best:.6g}")

    def stage(self, name: str, done: int, total: int) -> None:
        self._name = name
        self._line.show(f"{name}: {done} of {total} rows" if total else f"{name}: {done} rows" if done else name)

    def end(self) -> None:
        self._line.end()
