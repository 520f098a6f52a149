"""Records of finished runs: append-only JSON lines that survive a killed process.

Each line is one finished run: its configuration, values and time. A recorded run is never repeated. A line that a crash
cut short is set aside, and its run is repeated. Reading writes nothing and needs no lock; appending needs it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rcgp.saving import write_atomically
from rcgp.saving.json_lines import LockedError, append_line, hold, parse_line

__all__ = ["Config", "LockedError", "Record", "RecordFile", "hold_folder", "key_of"]

Config = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One finished run. The first three fields are in every record; others may be missing in old ones.

    Attributes:
        experiment: name of the table or figure.
        config: data, contamination, method, protocol, index of the repetition …
        values: the results. A number that is not finite is written as null, and null is read as nan.
        seconds: wall time of the whole run.
        versions: of the libraries that influence numbers.
        time: of its end, in UTC.
        seed: of its random draws.
        code: a short hash of the source.
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
        """The configuration as text."""
        return key_of(self.config)


_TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "experiment": str,
        "config": dict,
        "values": dict,
        "seconds": int | float,
        "versions": dict,
        "time": str,
        "seed": int,
        "code": str,
        "machine": dict,
    }
)


def key_of(config: Config) -> str:
    """A configuration as text, the same for equal ones."""
    return json.dumps(config, sort_keys=True, ensure_ascii=False)


class RecordFile:
    """The records of one experiment in one file, created with its folder by the first record."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> tuple[list[Record], list[str]]:
        """The last record of each configuration, and notices about broken lines. Writes nothing."""
        parsed = [_parsed(line) for line in self._lines()]
        whole = [record for record in parsed if record is not None]
        broken = len(parsed) - len(whole)
        notices = [f"{self.path}: {_broken_lines(broken)} left out; {len(whole)} read"] if broken else []
        return list({record.key: record for record in whole}.values()), notices

    def set_aside(self) -> list[str]:
        """Move broken lines to a file ``….damaged`` next to this one; returns notices. Needs the lock."""
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
        write_atomically(self.path, b"".join(kept))
        return [f"{self.path}: {_broken_lines(len(broken))} set aside in {aside.name}; {len(kept)} kept"]

    def append(self, record: Record) -> None:
        """Add a record; when this returns it is on disk."""
        fields = asdict(record)
        fields["values"], fields["seconds"] = _finite(fields["values"]), _finite(fields["seconds"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            append_line(file, json.dumps(fields, sort_keys=True, ensure_ascii=False, allow_nan=False))

    @contextmanager
    def locked(self) -> Iterator[list[str]]:
        """Hold ``….lock``, which the system releases when the process ends; raises LockedError if another holds it.

        Yields notices: without locks, as in some network folders, nothing is held.
        """
        folder = str(self.path.parent)
        message = f"another process is running {self.path.stem} in {folder!r}: wait for its end"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with hold(f"{self.path}.lock", message) as held:
            yield [] if held else [f"files cannot be locked in {folder!r}: do not run this twice at the same time"]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.read()[0])

    def _lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for one command that runs several experiments; raises LockedError if another holds it."""
    message = f"another 'rcgp reproduce' is running in {str(folder)!r}: wait for its end, or give another folder"
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / "reproduce.lock", message):
        yield


def _parsed(line: bytes) -> Record | None:
    """The record in a line; None if broken. Unknown fields are ignored, optional ones may be missing."""
    fields = parse_line(line)
    if not isinstance(fields, dict):
        return None
    known = {name: fields[name] for name, kind in _TYPES.items() if isinstance(fields.get(name), kind)}
    if not known.keys() >= {"experiment", "config", "values"}:
        return None
    return Record(**{**known, "values": _numbers(known["values"])})


def _finite(value: Any) -> Any:
    """A value for JSON, where numbers that are not finite become None."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    """A value from JSON, where None becomes nan."""
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return math.nan if value is None else value


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _broken_lines(count: int) -> str:
    return f"{count} broken line{'s' if count > 1 else ''}"
