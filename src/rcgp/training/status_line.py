"""How far something is, on standard error: one line that is written over, or now and then a line in a log."""

from __future__ import annotations

import sys
import time

__all__ = ["StatusLine"]

# Seconds between two lines where they cannot be written over.
_PAUSE = 10.0


class StatusLine:
    """One line that tells how far something is.

    On a terminal it is written over. Elsewhere, as in a log, each text would be a line of its own: it is written when
    ten seconds have passed since the last one, and the last text in any case.
    """

    def __init__(self) -> None:
        self._text, self._width, self._pending, self._written = "", 0, False, time.monotonic()

    def show(self, text: str) -> None:
        self._text, self._pending = text, True
        if _on_terminal():
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif time.monotonic() - self._written >= _PAUSE:
            self._write()

    def end(self) -> None:
        """No more of it: what comes next begins a line of its own."""
        if _on_terminal():
            print(file=sys.stderr)
        elif self._pending:
            self._write()
        self._width, self._pending = 0, False

    def _write(self) -> None:
        print(self._text, file=sys.stderr, flush=True)
        self._written, self._pending = time.monotonic(), False


def _on_terminal() -> bool:
    """Not where there is no standard error, as in a service, or something else in its place; ``print`` bears both."""
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and bool(isatty())
