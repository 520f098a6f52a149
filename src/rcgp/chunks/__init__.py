"""Rows in chunks: where they come from (memory, files, a cluster), and who works on them."""

from rcgp.chunks.chunk import Chunk, Chunks
from rcgp.chunks.engines import Engine, Serial, Threads
from rcgp.chunks.source import check_kind, chunks_of, engine_for

__all__ = ["Chunk", "Chunks", "Engine", "Serial", "Threads", "check_kind", "chunks_of", "engine_for"]
