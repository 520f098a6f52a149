"""Who works on the rows: the workers of a Dask cluster, each on the rows that it holds."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from rcgp.chunks.chunk import Chunk, Chunks, Piece, split
from rcgp.chunks.dask_data import DaskChunks
from rcgp.chunks.engines import Engine, added, torch_threads
from rcgp.chunks.parquet import ParquetChunks
from rcgp.chunks.transport import Packed

try:
    import dask
    from distributed import Client, Future
    from distributed.comm import CommClosedError
except ImportError as error:
    raise ImportError(f'client= needs dask.distributed ({error}): pip install "rcgp[dask]"') from error

__all__ = ["DaskEngine", "current_client"]

T = TypeVar("T")

# Results that are added at a time, on a worker.
_BRANCHES = 8

# Seconds between two looks at the connection, and for how many it may be broken.
_LOOK, _BROKEN = 0.5, 5.0

# Seconds for which a cluster that had workers may be without any: a nanny starts a new one within two or three.
_DESERTED = 8.0


def current_client() -> Client | None:
    """The client that is Dask's default at present, if there is one."""
    with suppress(ValueError):
        client = Client.current()
        return None if client.asynchronous else client
    return None


class DaskEngine(Engine):
    """Tasks go to the workers that hold the rows; what comes back is one sum.

    The rows are read, checked and kept on the workers when they are first needed, until the chunks or the engine are
    gone. A call sends its task to the cluster once. The results are added on the workers, eight at a time in an order
    that depends on the blocks alone, so that repeated runs agree to the last bit. Where a worker dies, Dask computes
    anew what it held: its rows from their graph, and the task, which is a part of the graph too. Of several bad blocks
    the first is named, whichever was read first. A scheduler that is gone is a RuntimeError within seconds, and so is a
    cluster that has lost all its workers. One that never had any is waited for, as Dask does: they may still be on
    their way.

    Args:
        client: a ``distributed.Client``; it belongs to the caller and is not closed.
    """

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client) or client.asynchronous:
            raise TypeError(f"client must be a distributed.Client that is not asynchronous, got {client!r}")
        self._client = client
        # A client that was closed has forgotten it.
        address = "" if client.scheduler is None else f" at {client.scheduler.address}"
        self._scheduler = f"the Dask scheduler{address}"
        self._had_workers = False
        self._held: WeakKeyDictionary[Chunks, tuple[list[Future], int]] = WeakKeyDictionary()

    def collect(self, task: Callable[[Chunk], T], chunks: Chunks) -> list[T]:
        packed = self._values(self._work(task, chunks, list), chunks)
        return [result for part in packed for result in part.value]

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        parts = self._work(task, chunks, added)
        while len(parts) > 1:
            # The futures of what is added are let go of, so that the workers forget each result when it is added.
            groups = [parts[start : start + _BRANCHES] for start in range(0, len(parts), _BRANCHES)]
            parts = [self._client.submit(_sum, *group, pure=False) for group in groups]
        (part,) = self._values(parts, chunks, order=self._held[chunks][0])
        total: T = part.value
        return total

    def _work(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Callable[..., Any]) -> list[Future]:
        """Futures of what the task gives for each block."""
        if self._client.status not in ("running", "connecting"):
            raise RuntimeError(f"{self._scheduler} is gone: the client is {self._client.status}")
        blocks, rows = self._blocks(chunks)
        # A part of the graph, unlike data that are scattered, survives the death of every worker. It may be large.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            sent = self._client.submit(_taken, Packed(task), pure=False)
        futures: list[Future] = self._client.map(_results, blocks, task=sent, rows=rows, gather=gather, pure=False)
        return futures

    def _blocks(self, chunks: Chunks) -> tuple[list[Future], int]:
        """Futures of the blocks of rows, which stay on the workers, and the most rows of a chunk."""
        held = self._held.get(chunks)
        if held is not None and not any(block.status in ("error", "cancelled") for block in held[0]):
            return held
        if isinstance(chunks, DaskChunks):
            blocks = self._computed(chunks)
        elif isinstance(chunks, ParquetChunks):
            blocks = self._client.map(_read, list(chunks.pieces()), pure=False)
        else:
            raise TypeError(
                "client= is for rows in Dask arrays, Dask data frames or Parquet files; "
                "leave it out, or use dask.array.from_array(X)"
            )
        self._held[chunks] = blocks, chunks.rows
        return self._held[chunks]

    def _computed(self, chunks: DaskChunks) -> list[Future]:
        """Futures of the blocks of Dask data, which are computed once even if their rows have to be counted first."""
        kept: list[Any] = []

        def keep(collections: list[Any]) -> list[Any]:
            kept.extend(self._client.persist(collections))
            return kept

        delayed = chunks.blocks(lambda counts: self._values(self._client.compute(counts)), keep)
        blocks: list[Future] = self._client.compute([dask.delayed(Packed)(block) for block in delayed])
        if kept:  # and not let go of before the blocks are made from it: the scheduler may hear of that first
            self._values(self._client.map(_done, blocks, pure=False))
        return blocks

    def _values(
        self, futures: Sequence[Future], chunks: Chunks | None = None, order: Sequence[Future] | None = None
    ) -> list[Any]:
        """The results; or the error of a task as it was raised, or a RuntimeError if scheduler or workers are gone.

        After an error, or an interrupt, these futures are cancelled, and so are rows that are still to be read.

        Args:
            futures: of the results.
            chunks: the rows that they are made of.
            order: futures in the order of the rows, the first bad one of which gives the error; by default those of
                the results.
        """
        coroutine = self._gathered(futures, futures if order is None else order)
        gathered = asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)
        try:
            well = time.monotonic()
            while not concurrent.futures.wait([gathered], _LOOK).done:
                if self._client.status == "running":
                    well = time.monotonic()
                elif time.monotonic() - well > _BROKEN:
                    raise _LostError("the connection is broken")
            return gathered.result()
        except _LostError as error:
            raise RuntimeError(f"{self._scheduler} is gone: {error}") from None
        except BaseException:
            self._let_go(futures, chunks)
            raise

    async def _gathered(self, futures: Sequence[Future], order: Sequence[Future]) -> list[Any]:
        """The results, in the loop of the client: there it is told at once that the connection is lost."""
        gathering = asyncio.ensure_future(self._results_or_first_error(futures, order))
        watching = asyncio.ensure_future(self._deserted())
        try:
            await asyncio.wait({gathering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not gathering.done():
                watching.result()  # its own error, if it had one
                raise RuntimeError(
                    f"the Dask cluster has lost all its workers: {self._scheduler} had none for {_DESERTED:g} seconds"
                )
            values: list[Any] = gathering.result()
        except CommClosedError:
            raise _LostError("the connection was closed") from None
        except concurrent.futures.CancelledError as error:
            if getattr(error, "reason", None) == "scheduler-connection-lost" or self._client.status != "running":
                raise _LostError("the connection was lost") from None
            raise RuntimeError(f"the work was cancelled: {error}") from None
        finally:
            watching.cancel()
            # Not cancelled: it ends when its futures are let go of. Nobody is left then to hear of its error.
            gathering.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return values

    async def _results_or_first_error(self, futures: Sequence[Future], order: Sequence[Future]) -> list[Any]:
        """The results; or, once one is known to be bad, the error of the first bad one in that order.

        Those before it may still be under way and are waited for; those after it are not.
        """
        try:
            values: list[Any] = await self._client.gather(list(futures), asynchronous=True)
        except (CommClosedError, concurrent.futures.CancelledError):
            raise
        except Exception:
            for future in order:
                await future.exception(asynchronous=True)
                if future.status != "finished":
                    await self._client.gather([future], asynchronous=True)  # raises its error
            raise
        return values

    async def _deserted(self) -> None:
        """Ends when a cluster that had workers has been without any for too long."""
        well = time.monotonic()
        while True:
            workers: dict[str, int] | None = None  # not known; a scheduler that is gone is found out elsewhere
            if self._client.status == "running":
                with suppress(OSError):
                    workers = await self._client.scheduler.ncores(workers=None)
            self._had_workers = self._had_workers or bool(workers)
            if workers or workers is None or not self._had_workers:
                well = time.monotonic()
            elif time.monotonic() - well > _DESERTED:
                return
            await asyncio.sleep(_LOOK)

    def _let_go(self, futures: Sequence[Future], chunks: Chunks | None) -> None:
        """Release futures, and the rows if they are not all read yet: the scheduler drops what no one waits for.

        Not by Client.cancel, over whose dependents the scheduler stumbles and then closes the connection.
        """
        if chunks is not None and any(block.status == "pending" for block in self._held[chunks][0]):
            futures = [*futures, *self._held.pop(chunks)[0]]
        for future in futures:
            future.release()


class _LostError(Exception):
    """The scheduler cannot be reached."""


def _taken(task: Packed[T]) -> Packed[T]:
    return task


def _done(block: Packed[Chunk]) -> None:
    """Nothing; but only once the block is there."""


def _read(piece: Piece) -> Packed[Chunk]:
    """A piece as one block."""
    X, y, weights, first = zip(*piece(), strict=True)
    return Packed(Chunk(torch.cat(X), torch.cat(y), None if weights[0] is None else torch.cat(weights), first[0]))


def _results(block: Packed[Chunk], task: Packed[Callable[[Chunk], T]], rows: int, gather: Callable[..., Any]) -> Any:
    """What the task gives for the chunks of a block, as a list or added. One thread: workers have one core each."""
    with torch_threads(1):
        return Packed(gather(task.value(chunk) for chunk in split(block.value, rows)))


def _sum(*parts: Packed[T]) -> Packed[T]:
    with torch_threads(1):
        return Packed(added(part.value for part in parts))
