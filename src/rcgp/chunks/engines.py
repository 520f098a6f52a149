"""Engines, which apply a task to all chunks of a table: one after the other, on threads, or on a Dask cluster."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from rcgp.chunks.chunk import Chunk, Chunks, Piece

__all__ = ["Engine", "Gather", "Serial", "Threads", "added", "engine_for", "torch_threads"]

T = TypeVar("T")

#: Makes one list, or one sum, of results.
Gather = Callable[[Iterable[Any]], Any]


class Engine(ABC):
    """Applies a task to all chunks of a table. The result depends on the order of the rows, not on the engine."""

    def collect(self, task: Callable[[Chunk], T], chunks: Chunks) -> list[T]:
        """The result of each chunk, in the order of the rows."""
        return [result for results in self.results(task, chunks, list) for result in results]

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        """The sum of the results by ``+``; only a few are in memory at a time."""
        total: T = added(self.results(task, chunks, added))
        return total

    @abstractmethod
    def results(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Gather) -> Iterable[Any]:
        """The results of consecutive chunks, gathered into lists or sums, in the order of the rows."""


class Serial(Engine):
    """One chunk after the other, with all threads of torch."""

    def results(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Gather) -> Iterable[Any]:
        return [gather(map(task, chunks))]


class Threads(Engine):
    """Several chunks at a time in this process; each thread reads the chunks that it works on.

    The threads share torch's threads equally. Results are added in the order of the rows.

    Args:
        count: number of threads.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"threads must be at least 1, got {count}")
        self.count = int(count)

    def results(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Gather) -> Iterator[Any]:
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
            finally:  # after an error or an interrupt, start no further piece
                for future in waiting:
                    future.cancel()


def engine_for(chunks: Chunks, *, client: Any = None, threads: int | None = None) -> Engine:
    """The engine for these chunks.

    Args:
        chunks: the rows.
        client: a ``distributed.Client``: the workers of its cluster, for Dask data and Parquet files.
        threads: number of threads of this process.

    Returns:
        By default, one chunk after the other in this process; for Dask data, the workers of Dask's default client if
        there is one.
    """
    if client is not None and threads is not None:
        raise ValueError("client and threads exclude each other: the workers of a cluster have threads of their own")
    if threads is not None:
        return Threads(threads)
    if client is None and not hasattr(chunks, "blocks"):  # not Dask data; Dask may not be installed
        return Serial()
    from rcgp.chunks.dask import DaskEngine, current_client

    client = client if client is not None else current_client()
    return Serial() if client is None else DaskEngine(client)


def added(results: Iterable[T]) -> T:
    """The sum of at least one result, from the first to the last."""
    plus: Callable[[Any, Any], Any] = operator.add
    total: T = functools.reduce(plus, results)
    return total


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads, and restore it."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
