"""Rows in chunks: where they come from (memory, files, a cluster), and who works on them."""

from rcgp.chunks.chunk import Chunk, Chunks
from rcgp.chunks.engines import Engine, Serial, Threads
from rcgp.chunks.source import chunks_of, engine_for

__all__ = ["Chunk", "Chunks", "Engine", "Serial", "Threads", "chunks_of", "engine_for"]
