"""The trace of an optimisation: an append-only file of JSON lines that a killed process cannot spoil.

The first line says what is optimised. Each evaluation has a line when it starts and one when it ends, which is on disk
before the next begins: whatever is finished is never evaluated again. An evaluation that has only started is evaluated
again. A last line that a crash cut short is taken off. Whatever else cannot be read is no trace of a crash: the file is
refused as damaged, since evaluations may be missing.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from rcgp.botorch.box import Box
from rcgp.saving import check_writable

try:
    from fcntl import LOCK_EX, LOCK_NB, flock

    _HAS_LOCKS = True
except ImportError:  # Windows
    _HAS_LOCKS = False

__all__ = ["Finished", "Plan", "Trace"]

_FORMAT = 1
_BEGINS = b'{"rcgp_trace": '


@dataclass(frozen=True)
class Plan:
    """What is optimised and what decides on its points.

    Attributes:
        box: the parameters.
        maximise: the direction.
        seed: of everything random; ``None`` where any will do.
        initial: number of points that do not depend on values; ``None`` where any will do.
    """

    box: Box
    maximise: bool
    seed: int | None
    initial: int | None


@dataclass(frozen=True)
class Finished:
    """An evaluation that has ended: its number from 1, point, value or why there is none, and seconds."""

    number: int
    values: tuple[float, ...]
    value: float | None
    reason: str
    seconds: float


class Trace:
    """The evaluations of one optimisation, kept in a file if it has one; to be used as a context.

    While it is open the file is locked against other processes, where the system has such locks. A lock ends with its
    process, however that ends.

    Args:
        path: the file, made where there is none; ``None`` to keep nothing.
        plan: what is optimised; an existing file must be of the same.
        seed, initial: used where neither the plan nor the file has them.

    Attributes:
        seed, initial: of this optimisation.
        started: point of each evaluation that has started, by number.
        finished: each evaluation that has ended, by number.

    Raises:
        ValueError: if the file cannot be written, is of another optimisation or no trace, is damaged (which line is
            said), or is in use.
    """

    def __init__(self, path: str | os.PathLike[str] | None, plan: Plan, seed: int, initial: int) -> None:
        self.plan = plan
        self.seed = seed if plan.seed is None else plan.seed
        self.initial = initial if plan.initial is None else plan.initial
        self.started: dict[int, tuple[float, ...]] = {}
        self.finished: dict[int, Finished] = {}
        self._path = None if path is None else os.fspath(path)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Trace:
        if self._path is None:
            return self
        try:
            check_writable(self._path)
            # Its own file, which is only appended to and never replaced, can carry the lock.
            self._file = open(self._path, "ab+")
        except OSError as error:
            raise ValueError(f"trace {self._path!r} cannot be written: {error.strerror or error}") from error
        try:
            self._lock()
            self._read_or_begin()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def start(self, number: int, values: tuple[float, ...]) -> None:
        """Note that an evaluation starts."""
        self.started[number] = values
        self._append({"event": "started", "number": number, "x": self.plan.box.values_to_json(values)})

    def finish(self, evaluation: Finished) -> None:
        """Keep an evaluation that has ended; when this returns it is on disk."""
        self.finished[evaluation.number] = evaluation
        x = self.plan.box.values_to_json(evaluation.values)
        line = {"event": "finished", "number": evaluation.number, "x": x, "seconds": round(evaluation.seconds, 6)}
        if evaluation.value is None:
            self._append({**line, "event": "failed", "reason": evaluation.reason})
        else:
            self._append({**line, "value": evaluation.value})

    def _lock(self) -> None:
        if self._file is None or not _HAS_LOCKS:
            return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"trace {self._path!r} is in use by another optimisation: wait for its end, or give another file"
            ) from None
        except OSError:  # some network folders have no locks
            pass

    def _read_or_begin(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        content = self._file.read()
        lines = content.splitlines(keepends=True)
        torn = lines.pop() if lines and _cut_short(lines[-1], first=len(lines) == 1) else b""
        if lines:
            self._read_header(lines[0])
        for i, line in enumerate(lines[1:], start=2):
            self._read_event(line, i)
        # Not before all else is read: a file that is refused stays as it was.
        if torn:
            self._file.truncate(len(content) - len(torn))
        if not lines:
            self._append(
                {
                    "rcgp_trace": _FORMAT,
                    "version": _version(),
                    "bounds": self.plan.box.to_json(),
                    "maximise": self.plan.maximise,
                    "seed": self.seed,
                    "initial": self.initial,
                }
            )

    def _read_header(self, line: bytes) -> None:
        header = _parsed(line)
        known = isinstance(header, dict) and header.get("rcgp_trace") == _FORMAT
        if not known or not all(_is_count(header.get(name)) for name in ("seed", "initial")):
            raise ValueError(f"trace {self._path!r} is a file of another kind, or of another version; give a new name")
        wanted = {
            "bounds": self.plan.box.to_json(),
            "maximise": self.plan.maximise,
            "seed": self.plan.seed,
            "initial": self.plan.initial,
        }
        for name, value in wanted.items():
            # As text: dictionaries of another order would be equal, vectors in that order not.
            if value is not None and json.dumps(value) != json.dumps(header.get(name)):
                raise ValueError(
                    f"trace {self._path!r} is of another optimisation: its {name} is {json.dumps(header.get(name))} "
                    f"and not {json.dumps(value)}; give what it was begun with, or a new file"
                )
        self.seed, self.initial = header["seed"], header["initial"]

    def _read_event(self, line: bytes, i: int) -> None:
        try:
            content = _parsed(line)
            if not isinstance(content, dict):
                raise ValueError("it is no JSON object")
            event, number = content["event"], content["number"]
            values = self.plan.box.values_from_json(content["x"])
            if not _is_count(number) or number < 1:
                raise ValueError(f"{number!r} is no number of an evaluation")
            if event == "started":
                self.started[number] = values
            elif event in ("finished", "failed") and number in self.finished:
                raise ValueError(f"evaluation {number} has ended before, in a line above")
            elif event == "finished":
                value = content["value"]
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise ValueError(f"{value!r} is no value")
                self.finished[number] = Finished(number, values, float(value), "", _seconds(content))
            elif event == "failed":
                self.finished[number] = Finished(number, values, None, str(content["reason"]), _seconds(content))
            else:
                raise ValueError(f"there is no event {event!r}")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            said = f"it has no field {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"trace {self._path!r} is damaged in line {i}: {said}; mend that line, or give a new file"
            ) from None

    def _append(self, content: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = json.dumps(content, allow_nan=False).encode() + b"\n"
        if self._file.seek(0, os.SEEK_END) > 0:
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":  # the last line is whole but for its end: do not become part of it
                line = b"\n" + line
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


def _version() -> str:
    try:
        return importlib.metadata.version("rcgp")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


def _cut_short(line: bytes, first: bool) -> bool:
    """Whether a last line is what a crash leaves of one; if it is the first, too, what begins otherwise is no trace."""
    if line.endswith(b"\n") or _parsed(line) is not None:
        return False
    return not first or line[: len(_BEGINS)] == _BEGINS[: len(line)]


def _parsed(line: bytes) -> Any:
    """What a line holds; None where it is not whole."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _seconds(content: dict[str, Any]) -> float:
    seconds = float(content["seconds"])
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time in seconds")
    return seconds


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
