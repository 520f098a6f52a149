"""The trace of an optimisation: an append-only file of JSON lines that survives a killed process.

The first line describes the optimisation. Each evaluation has a line when it starts and one, synced to disk, when it
ends: a finished evaluation is never repeated, one that only started is. A last line cut short by a crash is removed.
Any other unreadable line means damage, possibly lost evaluations, and the file is refused.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from contextlib import ExitStack
from typing import IO, Any

from rcgp.botorch.evaluations import Box, Evaluation, Parameters
from rcgp.saving.archive import check_writable, own_version
from rcgp.saving.json_lines import append_line, hold, parse_line

__all__ = ["Trace"]

_FORMAT = 1
_BEGINS = b'{"rcgp_trace": '


class Trace:
    """The evaluations of one optimisation, written to a file if a path is given; a context manager.

    While open, a file ``….lock`` next to it locks out other processes.

    Args:
        path: the file, created if missing; ``None`` for no file. An existing file must agree with the other arguments.
        box: the search space.
        maximise: whether values are maximised.
        seed: random seed. Default: the file's, or one drawn at random.
        initial: number of points that do not depend on values. Default: the file's, or twice the number of parameters,
            at least 5.

    Attributes:
        box, maximise, seed, initial: as given, or from the file.
        started: parameters of each evaluation that has started, by number.
        finished: each evaluation that has ended, by number.

    Raises:
        ValueError: if the file cannot be written, belongs to another optimisation, is not a trace, is damaged (naming
            the line) or is in use.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, box: Box, maximise: bool, seed: int | None, initial: int | None
    ) -> None:
        self.box, self.maximise = box, maximise
        self.seed = secrets.randbits(32) if seed is None else seed
        self.initial = max(5, 2 * box.dimension) if initial is None else initial
        self._given = {"bounds": box.to_json(), "maximise": maximise, "seed": seed, "initial": initial}
        self.started: dict[int, Parameters] = {}
        self.finished: dict[int, Evaluation] = {}
        self._path = None if path is None else os.fspath(path)
        self._held = ExitStack()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Trace:
        if self._path is None:
            return self
        busy = f"trace {self._path!r} is in use by another optimisation: wait for its end, or give another file"
        with ExitStack() as held:
            try:
                check_writable(self._path)
                held.enter_context(hold(os.path.realpath(self._path) + ".lock", busy))
                self._file = held.enter_context(open(self._path, "ab+"))
            except OSError as error:
                raise ValueError(f"trace {self._path!r} cannot be written: {error.strerror or error}") from error
            self._read_or_begin(self._file)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def start(self, number: int, x: Parameters) -> None:
        """Record that an evaluation starts."""
        self.started[number] = x
        self._append({"event": "started", "number": number, "x": _jsonable(x)})

    def finish(self, evaluation: Evaluation) -> None:
        """Record an evaluation that has ended, on disk when this returns."""
        self.finished[evaluation.number] = evaluation
        failed = evaluation.value is None
        self._append(
            {
                "event": "failed" if failed else "finished",
                "number": evaluation.number,
                "x": _jsonable(evaluation.x),
                "seconds": round(evaluation.seconds, 6),
                **({"reason": evaluation.reason} if failed else {"value": evaluation.value}),
            }
        )

    def _read_or_begin(self, file: IO[bytes]) -> None:
        file.seek(0)
        lines = file.read().splitlines(keepends=True)
        torn = lines.pop() if lines and _cut_short(lines[-1], first=len(lines) == 1) else b""
        if lines:
            self._read_header(lines[0])
        for i, line in enumerate(lines[1:], start=2):
            try:
                self._read_event(parse_line(line))
            except (KeyError, OverflowError, TypeError, ValueError) as error:
                why = f"it has no field {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(
                    f"trace {self._path!r} is damaged in line {i}: {why}; repair that line, or give a new file"
                ) from None
        if torn:  # only now: a refused file stays as it was
            file.truncate(sum(map(len, lines)))
        if not lines:
            own = {"seed": self.seed, "initial": self.initial}
            self._append({"rcgp_trace": _FORMAT, "version": own_version(), **self._given, **own})

    def _read_header(self, line: bytes) -> None:
        header = parse_line(line)
        known = isinstance(header, dict) and header.get("rcgp_trace") == _FORMAT
        if not known or not all(_is_count(header.get(name)) for name in ("seed", "initial")):
            raise ValueError(f"trace {self._path!r} is a file of another kind, or of another version; give a new name")
        for name, value in self._given.items():
            # Compared as text: dictionaries in another order are equal, but the order is that of the vectors.
            if value is not None and json.dumps(value) != json.dumps(header.get(name)):
                raise ValueError(
                    f"trace {self._path!r} is of another optimisation: its {name} is {json.dumps(header.get(name))} "
                    f"and not {json.dumps(value)}; use its own, or a new file"
                )
        self.seed, self.initial = header["seed"], header["initial"]

    def _read_event(self, content: Any) -> None:
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        event, number, x = content["event"], content["number"], self.box.parameters(content["x"])
        if not _is_count(number) or number < 1:
            raise ValueError(f"{number!r} is not the number of an evaluation")
        if event == "started":
            self.started[number] = x
            return
        if event not in ("finished", "failed"):
            raise ValueError(f"{event!r} is not a known event")
        if number in self.finished:
            raise ValueError(f"evaluation {number} has already ended in a line above")
        seconds = float(content["seconds"])
        if not math.isfinite(seconds):
            raise ValueError(f"{seconds} is not a duration in seconds")
        value, reason = None, ""
        if event == "failed":
            reason = str(content["reason"])
        else:
            value = content["value"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{value!r} is not a finite number")
            value = float(value)
        self.finished[number] = Evaluation(number, x, value, reason, seconds)

    def _append(self, content: dict[str, Any]) -> None:
        if self._file is not None:
            append_line(self._file, json.dumps(content, allow_nan=False))


def _jsonable(x: Parameters) -> Any:
    return x if isinstance(x, dict) else x.tolist()


def _cut_short(line: bytes, first: bool) -> bool:
    """Whether a crash cut the last line short; if it is also the first line, it must begin as a trace does."""
    if line.endswith(b"\n") or parse_line(line) is not None:
        return False
    return not first or line[: len(_BEGINS)] == _BEGINS[: len(line)]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
