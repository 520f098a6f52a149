"""Append-only files of JSON lines that survive a killed process, and a lock against other writers.

A killed process leaves at most a last line that is cut short: :func:`parse_line` returns None for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import filelock

__all__ = ["LockedError", "append_line", "hold", "parse_line"]

# Seconds to wait for a lock: long enough for a process that has just removed the file.
_PATIENCE = 0.1


class LockedError(ValueError):
    """Another process holds the lock."""


def append_line(file: IO[bytes], line: str) -> None:
    """Append a line to a file opened with mode ``ab+``; when this returns it is on disk."""
    before = b""
    if file.seek(0, os.SEEK_END) > 0:
        file.seek(-1, os.SEEK_END)
        before = b"" if file.read(1) == b"\n" else b"\n"  # do not extend a line without its newline
    file.write(before + line.encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def parse_line(line: bytes) -> Any:
    """The JSON value of a line; None if it is cut short or damaged."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@contextmanager
def hold(path: str | os.PathLike[str], message: str) -> Iterator[bool]:
    """Create, lock and finally remove a lock file; the system releases the lock when the process ends.

    Yields:
        Whether it is locked: some network folders have no locks.

    Raises:
        LockedError: with that message, if the lock is held already.
        OSError: if the file cannot be created.
    """
    lock = filelock.FileLock(path, timeout=_PATIENCE)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise LockedError(message) from None
    except OSError as error:
        if error.filename is not None:  # not created; else created, but the system cannot lock it
            raise
    try:
        yield lock.is_locked
    finally:
        # Removed while held: a process that opened it in between finds it gone and creates another.
        with suppress(OSError):
            os.unlink(path)
        lock.release()
