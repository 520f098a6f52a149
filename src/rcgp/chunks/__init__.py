"""Rows in chunks: sources (memory, files, a cluster) and the engines that apply a task to each chunk."""

from rcgp.chunks.chunk import Chunk, Chunks
from rcgp.chunks.engines import Engine, Serial, Threads, engine_for
from rcgp.chunks.source import check_kind, chunks_of

__all__ = ["Chunk", "Chunks", "Engine", "Serial", "Threads", "check_kind", "chunks_of", "engine_for"]
