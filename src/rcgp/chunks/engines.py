"""Who works on the rows: one after the other here, or several threads at once. (A cluster: ``dask_engine``.)"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from rcgp.chunks.chunk import Chunk, Chunks, Piece

__all__ = ["Engine", "Serial", "Threads", "added", "torch_threads"]

T = TypeVar("T")


class Engine(Protocol):
    """Gives a task all chunks of a table. Whoever does the work, the order of the rows decides the answer."""

    def collect(self, task: Callable[[Chunk], T], chunks: Chunks) -> list[T]:
        """The result of each chunk, in the order of the rows."""
        ...

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        """The sum of the results by ``+``, of which only a few are in memory at a time."""
        ...


class Serial(Engine):
    """One chunk after the other, with all threads of torch."""

    def collect(self, task: Callable[[Chunk], T], chunks: Chunks) -> list[T]:
        return [task(chunk) for chunk in chunks]

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        return added(task(chunk) for chunk in chunks)


def added(results: Iterable[T]) -> T:
    """The sum of at least one result, from the first to the last."""
    plus: Callable[[Any, Any], Any] = operator.add
    total: T = functools.reduce(plus, results)
    return total


class Threads(Engine):
    """Several chunks at a time in this process, read by the thread that works on them.

    The threads of torch are divided among them, so that together they use as many as before. The results are added in
    the order of the rows: the answer does not depend on which is done first.

    Args:
        count: number of threads.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"threads must be at least 1, got {count}")
        self.count = int(count)

    def collect(self, task: Callable[[Chunk], T], chunks: Chunks) -> list[T]:
        return [result for results in self._results(task, chunks, list) for result in results]

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        total: T = added(self._results(task, chunks, added))
        return total

    def _results(
        self, task: Callable[[Chunk], T], chunks: Chunks, gather: Callable[[Iterable[T]], Any]
    ) -> Iterator[Any]:
        """What each piece gives, in order; a few pieces are under way ahead of the one that is waited for."""

        def work(piece: Piece) -> Any:
            return gather(task(chunk) for chunk in piece())

        waiting: deque[Future[Any]] = deque()
        with torch_threads(max(1, torch.get_num_threads() // self.count)), ThreadPoolExecutor(self.count) as pool:
            try:
                for piece in chunks.pieces():
                    waiting.append(pool.submit(work, piece))
                    if len(waiting) > self.count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:  # after an error, or an interrupt, what has not begun is not begun
                for future in waiting:
                    future.cancel()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many threads of torch, and afterwards as many as before."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
