"""Records of finished runs: append-only JSON lines that a killed process cannot spoil.

Each line is one finished run: its configuration, what came out and how long it took. A run that has a line is never
repeated; a line that a crash cut short is set aside, and its run made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rcgp.saving import write_whole

__all__ = ["Config", "Record", "RecordFile", "key_of"]

Config = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One finished run.

    Attributes:
        experiment: name of the table or figure.
        config: what was run: data, contamination, method, protocol, index of the repetition …
        values: what came out.
        seconds: wall time of the whole run.
        versions: of the libraries that decide on numbers.
        time: when it finished, in UTC.
    """

    experiment: str
    config: Config
    values: dict[str, Any]
    seconds: float
    versions: dict[str, str]
    time: str

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
        """All records, the last of each configuration, and notices about lines that are none.

        Broken lines are moved to a file ``….damaged`` beside this one, so that they are told of once; every whole line
        stays.
        """
        if not self.path.exists():
            return [], []
        records: dict[str, Record] = {}
        good: list[bytes] = []
        damaged: list[bytes] = []
        for line in self.path.read_bytes().splitlines(keepends=True):
            record = _parsed(line)
            if record is None:
                damaged.append(line)
            else:
                good.append(line)
                records[record.key] = record
        notices = []
        if damaged:
            aside = self.path.with_name(self.path.name + ".damaged")
            with open(aside, "ab") as file:
                file.writelines(line if line.endswith(b"\n") else line + b"\n" for line in damaged)
            write_whole(self.path, b"".join(good))
            notices.append(
                f"{self.path}: {len(damaged)} broken line{'s' if len(damaged) > 1 else ''} set aside in {aside.name}; "
                f"{len(good)} kept"
            )
        return list(records.values()), notices

    def append(self, record: Record) -> None:
        """Add a record; when this returns it is on disk."""
        line = json.dumps(asdict(record), sort_keys=True, ensure_ascii=False, allow_nan=True).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[Record]:
        return iter(self.read()[0])


def _parsed(line: bytes) -> Record | None:
    """The record in a line; None where there is none, or where the line has no end: it may have been cut short."""
    if not line.endswith(b"\n"):
        return None
    try:
        fields = json.loads(line)
        record = Record(**fields)
    except (ValueError, TypeError):
        return None
    well_formed = (
        isinstance(record.experiment, str)
        and isinstance(record.config, dict)
        and isinstance(record.values, dict)
        and isinstance(record.seconds, int | float)
    )
    return record if well_formed else None
