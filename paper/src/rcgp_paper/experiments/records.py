"""Records of finished runs: append-only JSON lines that a killed process cannot spoil.

Each line is one finished run: its configuration, what came out and how long it took. A run that has a line is never
repeated; a line that a crash cut short is set aside, and its run made again. Reading writes nothing, so it may happen
while another process appends; whoever appends holds the lock.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rcgp.saving import write_whole

try:
    from fcntl import LOCK_EX, LOCK_NB, flock

    _HAS_LOCKS = True
except ImportError:  # Windows
    _HAS_LOCKS = False

__all__ = ["Config", "LockedError", "Record", "RecordFile", "hold_folder", "key_of"]

Config = dict[str, Any]


class LockedError(ValueError):
    """Another process is making runs in the same folder, or of the same experiment there."""


@dataclass(frozen=True)
class Record:
    """One finished run. The first three fields are in every record; others may be missing in old ones.

    Attributes:
        experiment: name of the table or figure.
        config: what was run: data, contamination, method, protocol, index of the repetition …
        values: what came out. A number that is not finite is written as null, and null is read as nan.
        seconds: wall time of the whole run.
        versions: of the libraries that decide on numbers.
        time: when it finished, in UTC.
        seed: what decides on the random draws of the run.
        code: a short hash of the package's source at that time.
        machine: ``cores``, and ``memory`` in GiB.
    """

    experiment: str
    config: Config
    values: dict[str, Any]
    seconds: float = math.nan
    versions: dict[str, str] = field(default_factory=dict)
    time: str = ""
    seed: int | None = None
    code: str = ""
    machine: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What tells this run from all others."""
        return key_of(self.config)


def key_of(config: Config) -> str:
    """A configuration as text that is the same for equal ones."""
    return json.dumps(config, sort_keys=True, ensure_ascii=False)


class RecordFile:
    """The records of one experiment in one file.

    Args:
        path: the file; made, with its folder, by the first record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> tuple[list[Record], list[str]]:
        """All records, the last of each configuration, and notices about lines that are none. Writes nothing."""
        records: dict[str, Record] = {}
        whole, broken = 0, 0
        for line in self._lines():
            record = _parsed(line)
            if record is None:
                broken += 1
            else:
                whole += 1
                records[record.key] = record
        notices = [f"{self.path}: {_lines_told(broken)} left out; {whole} read"] if broken else []
        return list(records.values()), notices

    def set_aside(self) -> list[str]:
        """Move broken lines to a file ``….damaged`` beside this one, and tell of it; every whole line stays.

        Only for who holds the lock: what another process appends meanwhile would be lost.
        """
        lines = self._lines()
        broken = [line for line in lines if _parsed(line) is None]
        if not broken:
            return []
        aside = self.path.with_name(self.path.name + ".damaged")
        with open(aside, "ab") as file:
            file.writelines(_ended(line) for line in broken)
            file.flush()
            os.fsync(file.fileno())
        kept = [_ended(line) for line in lines if _parsed(line) is not None]
        write_whole(self.path, b"".join(kept))
        return [f"{self.path}: {_lines_told(len(broken))} set aside in {aside.name}; {len(kept)} kept"]

    def append(self, record: Record) -> None:
        """Add a record; when this returns it is on disk."""
        fields = asdict(record)
        fields["values"], fields["seconds"] = _finite(fields["values"]), _finite(fields["seconds"])
        line = json.dumps(fields, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # the last line was cut short: do not become part of it
                    line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def locked(self) -> Iterator[list[str]]:
        """Hold the file for this process alone, by a lock on ``….lock`` that ends with the process however it ends.

        Where the system has no such locks (Windows, some network folders) nothing is held; the notices that this gives
        then say so.

        Raises:
            LockedError: if another process holds it.
        """
        told = f"another process is running {self.path.stem} in {str(self.path.parent)!r}: wait for its end"
        with _held(self.path.with_name(self.path.name + ".lock"), told) as notices:
            yield notices

    def __iter__(self) -> Iterator[Record]:
        return iter(self.read()[0])

    def _lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for one command that runs several experiments: two would meet in each of them, and both fail.

    Raises:
        LockedError: if another process holds it.
    """
    told = f"another 'rcgp reproduce' is at work in {str(folder)!r}: wait for its end, or give another folder"
    with _held(folder / "reproduce.lock", told):
        yield


@contextmanager
def _held(path: Path, told: str) -> Iterator[list[str]]:
    """A lock file, made and removed; gives a notice where files cannot be locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, notices = _lock(path, told)
    try:
        yield notices
    finally:
        if handle is not None:
            # While it is held: whoever opened the file in between finds that it is gone, and makes another.
            path.unlink(missing_ok=True)
            os.close(handle)


def _lock(path: Path, told: str) -> tuple[int | None, list[str]]:
    """The open and locked file of that name; None, and a notice, where files cannot be locked."""
    unable = [f"files cannot be locked in {str(path.parent)!r}: do not run this twice at the same time"]
    if not _HAS_LOCKS:
        return None, unable
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            flock(handle, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise LockedError(told) from None
        except OSError:
            os.close(handle)
            path.unlink(missing_ok=True)
            return None, unable
        try:
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle, []
        except FileNotFoundError:
            pass
        os.close(handle)  # its holder removed it before it was ours


def _parsed(line: bytes) -> Record | None:
    """The record in a line; None where there is none. What is unknown is ignored, what is optional may be missing."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    needed = (("experiment", str), ("config", dict), ("values", dict))
    if not all(isinstance(fields.get(name), kind) for name, kind in needed):
        return None
    optional = (
        ("seconds", int | float),
        ("versions", dict),
        ("time", str),
        ("seed", int),
        ("code", str),
        ("machine", dict),
    )
    return Record(
        experiment=fields["experiment"],
        config=fields["config"],
        values=_numbers(fields["values"]),
        **{name: fields[name] for name, kind in optional if isinstance(fields.get(name), kind)},
    )


def _finite(value: Any) -> Any:
    """A value for JSON, which knows no infinities and no nan: they become None."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    """A value from JSON: None becomes nan, so that it can stand among numbers."""
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return math.nan if value is None else value


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _lines_told(count: int) -> str:
    return f"{count} broken line{'s' if count > 1 else ''}"
