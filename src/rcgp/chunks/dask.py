"""Rows in Dask arrays and data frames, and the engine that works on a Dask cluster."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from math import isnan, nan
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows, names_of, split
from rcgp.chunks.engines import Engine, Gather, added, torch_threads
from rcgp.chunks.parquet import ParquetChunks

try:
    import cloudpickle
    import dask
    import dask.array as da
    from distributed import Client, Future
    from distributed.comm import CommClosedError
except ImportError as error:
    raise ImportError(f'Dask data and client= need dask.distributed ({error}): pip install "rcgp[dask]"') from error

__all__ = ["DaskChunks", "DaskEngine", "Packed", "current_client"]

T = TypeVar("T")

# Results that a worker adds at a time.
_BRANCHES = 8

# Seconds between two checks of the connection, and for how many it may be broken.
_POLL, _BROKEN = 0.5, 5.0

# Seconds for which a cluster that had workers may have none: a nanny restarts one within two or three.
_DESERTED = 8.0


class DaskChunks(Chunks):
    """The blocks of Dask arrays or data frames, divided into rows as X is; blocks longer than ``rows`` are split.

    Blocks of unknown size are counted once, when first needed. Without a cluster each pass computes every block again,
    when it is read; memory O(block · d).
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any = None, rows: int | None = None) -> None:
        for values, name, ndim in ((X, "X", 2), (y, "y", 1), (sample_weight, "sample_weight", 1)):
            if values is not None:
                _check_collection(values, name, ndim)
        self.names = names_of(X)
        self.columns = int(X.shape[1])
        if not self.columns:
            raise ValueError("X is empty: it has no columns")
        self.rows = default_rows(self.columns, rows)
        self.arrays = [_as_array(values) for values in (X, y, sample_weight) if values is not None]
        self._sizes: list[tuple[int, ...]] | None = None

    @property
    def counted(self) -> bool:
        """Whether the number of rows of every block is known."""
        return self._sizes is not None or not any(map(_is_unknown, self.arrays))

    def pieces(self) -> Iterator[Piece]:
        return (partial(self._read, block) for block in self.blocks(self.arrays, dask.compute))

    def _read(self, block: Any) -> Iterator[Chunk]:
        return split(block.compute(), self.rows)

    def blocks(self, arrays: list[Any], compute: Callable[..., Sequence[Any]]) -> list[Any]:
        """Delayed chunks of the arrays, which may be kept on a cluster: one for each block with at least one row."""
        sizes = self._block_sizes(arrays, compute)
        X, *others = (
            da.Array(values.dask, values.name, (size, *values.chunks[1:]), meta=values)
            for values, size in zip(arrays, sizes, strict=True)
        )
        rows = X.chunks[0]
        columns = [values.to_delayed().ravel() for values in (X, *(values.rechunk((rows,)) for values in others))]
        columns += [[None] * len(rows)] * (3 - len(columns))
        firsts = np.cumsum([0, *rows]).tolist()
        check = dask.delayed(partial(checked, columns=self.columns, names=self.names), pure=False)
        return [check(*(values[i] for values in columns), firsts[i]) for i in range(len(rows)) if rows[i]]

    def _block_sizes(self, arrays: list[Any], compute: Callable[..., Sequence[Any]]) -> list[tuple[int, ...]]:
        """The number of rows in each block of each array, computed once where they are unknown."""
        if self._sizes is None:
            unknown = [block for values in arrays if _is_unknown(values) for block in values.to_delayed().ravel()]
            counts = iter(compute(*map(dask.delayed(len), unknown)) if unknown else ())
            sizes = [
                tuple(int(next(counts)) for _ in values.chunks[0]) if _is_unknown(values) else values.chunks[0]
                for values in arrays
            ]
            rows, *others = map(sum, sizes)
            if rows == 0:
                raise ValueError("X is empty: it has no rows")
            for name, total in zip(("y", "sample_weight"), others, strict=False):
                if total != rows:
                    raise ValueError(f"X and {name} must have the same number of rows, got {rows} and {total}")
            self._sizes = sizes
        return self._sizes


def _is_unknown(values: Any) -> bool:
    """Whether the number of rows of some block of an array is unknown."""
    return any(map(isnan, values.chunks[0]))


def _check_collection(values: Any, name: str, ndim: int) -> None:
    """Raise an error unless this is a Dask collection of numbers of the right shape."""
    if not hasattr(values, "__dask_graph__") or not hasattr(values, "ndim"):
        raise TypeError(
            f"{name} must be a Dask array or data frame as X is, got {type(values).__name__}; "
            f"use dask.array.from_array({name})"
        )
    if values.ndim != ndim:
        shape = "n x d, with rows and columns" if ndim == 2 else "n, one number for each row"
        raise ValueError(f"{name} must have shape {shape}, got {values.ndim} dimensions")
    if isinstance(values, da.Array):
        if ndim == 2 and isnan(values.shape[1]):
            raise ValueError(f"{name} has an unknown number of columns; use {name}.compute_chunk_sizes()")
        return
    for column, kind in values.dtypes.items() if ndim == 2 else [(values.name, values.dtype)]:
        # pandas text and categories have the kind of objects, too.
        if kind.kind not in "biuf" and kind != np.dtype(object):
            raise ValueError(f"{name} must be numbers, but column {str(column)!r} is of type {kind}")


def _as_array(values: Any) -> Any:
    """A Dask array in blocks of rows, whose numbers of rows may be unknown."""
    if isinstance(values, da.Array):
        return values.rechunk({1: -1}) if values.ndim == 2 else values
    shape, meta = (nan, *values.shape[1:]), np.empty((0,) * values.ndim)
    blocks = map(dask.delayed(_block_array), values.to_delayed())
    return da.concatenate([da.from_delayed(block, shape, meta=meta) for block in blocks], allow_unknown_chunksizes=True)


def _block_array(block: Any) -> Any:
    """A block of pandas as an array, with NaN for missing numbers."""
    try:
        return block.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):  # reported with its row by the check
        return block.to_numpy()


def current_client() -> Client | None:
    """Dask's default client, if there is one."""
    with suppress(ValueError):
        client = Client.current()
        return None if client.asynchronous else client
    return None


class DaskEngine(Engine):
    """Sends tasks to the workers that hold the rows, and gets one sum back.

    Workers read and check the rows when they are first needed, and keep them as long as the chunks and the engine
    exist. Each call sends its task once. Results are added on the workers, eight at a time, in an order that depends
    only on the blocks: repeated runs agree to the last bit. If a worker dies, Dask recomputes its rows and task from
    the graph. Of several bad blocks, the first in the order of the rows is reported. A lost scheduler, or the loss of
    all workers, raises a RuntimeError within seconds. Like Dask, it waits for a cluster that has had no workers yet.

    Args:
        client: a ``distributed.Client``, which the caller closes.
    """

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client) or client.asynchronous:
            raise TypeError(f"client must be a distributed.Client that is not asynchronous, got {client!r}")
        self._client = client
        # A closed client has no address.
        address = "" if client.scheduler is None else f" at {client.scheduler.address}"
        self._scheduler = f"the Dask scheduler{address}"
        self._had_workers = False
        self._held: WeakKeyDictionary[Chunks, tuple[list[Future], int]] = WeakKeyDictionary()

    def results(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Gather) -> list[Any]:
        return [part.value for part in self._values(self._submitted(task, chunks, gather), chunks)]

    def reduce(self, task: Callable[[Chunk], T], chunks: Chunks) -> T:
        parts = self._submitted(task, chunks, added)
        while len(parts) > 1:
            # Dropping the futures of the summands lets the workers free them.
            groups = [parts[start : start + _BRANCHES] for start in range(0, len(parts), _BRANCHES)]
            parts = [self._client.submit(_sum, *group, pure=False) for group in groups]
        (part,) = self._values(parts, chunks, order=self._held[chunks][0])
        total: T = part.value
        return total

    def _submitted(self, task: Callable[[Chunk], T], chunks: Chunks, gather: Gather) -> list[Future]:
        """Futures of the task's result for each block."""
        if self._client.status not in ("running", "connecting"):
            raise RuntimeError(f"{self._scheduler} is gone: the client is {self._client.status}")
        blocks, rows = self._blocks(chunks)
        # Unlike scattered data, a task in the graph survives the death of every worker. It may be large.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            sent = self._client.submit(_identity, Packed(task), pure=False)
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
        """Futures of the blocks of Dask data, computed once even if their rows have to be counted first."""
        arrays = chunks.arrays if chunks.counted else self._client.persist(chunks.arrays)
        delayed = chunks.blocks(arrays, lambda *counts: self._values(self._client.compute(counts)))
        blocks: list[Future] = self._client.compute([dask.delayed(Packed)(block) for block in delayed])
        if arrays is not chunks.arrays:  # hold them until the blocks are there: the scheduler may see the release first
            self._values(self._client.map(_wait_for, blocks, pure=False))
        return blocks

    def _values(
        self, futures: Sequence[Future], chunks: Chunks | None = None, order: Sequence[Future] | None = None
    ) -> list[Any]:
        """The results; raises the error of a task, or a RuntimeError if the scheduler or all workers are lost.

        The error is that of the first bad future in ``order``, by default the order of the results. After an error or
        an interrupt the futures are released, and so are chunks that are not fully read.
        """
        coroutine = self._gathered(futures, futures if order is None else order)
        gathered = asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)
        try:
            well = time.monotonic()
            while not concurrent.futures.wait([gathered], _POLL).done:
                if self._client.status == "running":
                    well = time.monotonic()
                elif time.monotonic() - well > _BROKEN:
                    raise _LostError("the connection is broken")
            return gathered.result()
        except _LostError as error:
            raise RuntimeError(f"{self._scheduler} is gone: {error}") from None
        except BaseException:
            # Not by Client.cancel: the scheduler fails on the dependents and closes the connection.
            if chunks is not None and any(block.status == "pending" for block in self._held[chunks][0]):
                futures = [*futures, *self._held.pop(chunks)[0]]
            for future in futures:
                future.release()
            raise

    async def _gathered(self, futures: Sequence[Future], order: Sequence[Future]) -> list[Any]:
        """The results, in the client's loop, which notices a lost connection at once."""
        gathering = asyncio.ensure_future(self._results_or_first_error(futures, order))
        watching = asyncio.ensure_future(self._deserted())
        try:
            await asyncio.wait({gathering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not gathering.done():
                watching.result()  # raises its own error, if any
                raise RuntimeError(
                    f"the Dask cluster has lost all its workers: {self._scheduler} had none for {_DESERTED:g} seconds"
                )
            return gathering.result()
        except CommClosedError:
            raise _LostError("the connection was closed") from None
        except concurrent.futures.CancelledError as error:
            if getattr(error, "reason", None) == "scheduler-connection-lost" or self._client.status != "running":
                raise _LostError("the connection was lost") from None
            raise RuntimeError(f"the work was cancelled: {error}") from None
        finally:
            watching.cancel()
            # It ends when its futures are released. Retrieve its error, which asyncio would otherwise log.
            gathering.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _results_or_first_error(self, futures: Sequence[Future], order: Sequence[Future]) -> list[Any]:
        """The results, or the error of the first bad future in that order; waits only for the futures before it."""
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
        """Return when a cluster that had workers has had none for too long."""
        well = time.monotonic()
        while True:
            workers: dict[str, int] | None = None  # unknown; a lost scheduler is noticed elsewhere
            if self._client.status == "running":
                with suppress(OSError):
                    workers = await self._client.scheduler.ncores(workers=None)
            self._had_workers = self._had_workers or bool(workers)
            if workers or workers is None or not self._had_workers:
                well = time.monotonic()
            elif time.monotonic() - well > _DESERTED:
                return
            await asyncio.sleep(_POLL)


class _LostError(Exception):
    """The scheduler cannot be reached."""


class Packed(Generic[T]):
    """A value whose tensors are pickled as arrays of their own numbers.

    Torch pickles a tensor's whole storage, even for a small slice. The reported size is that of the tensors; Dask uses
    it to decide whether to move the data or the work.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        with io.BytesIO() as file:
            _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(self.value)
            return _unpacked, (file.getvalue(),)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + _bytes(self.value)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # not typed
    def reducer_override(self, value: Any) -> Any:
        # All but plain numbers that numpy can hold are pickled by torch.
        plain = type(value) is Tensor and value.layout == torch.strided and value.dtype != torch.bfloat16
        if plain and value.device.type == "cpu" and not value.requires_grad:
            return torch.from_numpy, (value.contiguous().numpy(force=True),)
        return super().reducer_override(value)


def _unpacked(content: bytes) -> Packed[Any]:
    return Packed(pickle.loads(content))


def _bytes(value: Any) -> int:
    """Bytes of the tensors in a value: in modules, tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return value.element_size() * value.nelement()
    parts: list[Any] = []
    if isinstance(value, torch.nn.Module):
        parts = [*value.parameters(), *value.buffers()]
    elif isinstance(value, tuple | list | dict):
        parts = list(value.values() if isinstance(value, dict) else value)
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    return sum(map(_bytes, parts))


def _identity(task: Packed[T]) -> Packed[T]:
    return task


def _wait_for(block: Packed[Chunk]) -> None:
    """Return nothing, once the block is computed."""


def _read(piece: Piece) -> Packed[Chunk]:
    """A piece as one block."""
    X, y, weights, first = zip(*piece(), strict=True)
    return Packed(Chunk(torch.cat(X), torch.cat(y), None if weights[0] is None else torch.cat(weights), first[0]))


def _results(block: Packed[Chunk], task: Packed[Callable[[Chunk], T]], rows: int, gather: Gather) -> Any:
    """The task's results for the chunks of a block, as a list or added. On one thread: workers have a core each."""
    with torch_threads(1):
        return Packed(gather(task.value(chunk) for chunk in split(block.value, rows)))


def _sum(*parts: Packed[T]) -> Packed[T]:
    with torch_threads(1):
        return Packed(added(part.value for part in parts))
