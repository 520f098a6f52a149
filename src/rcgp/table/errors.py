"""The one exception of this room, and how a text from a stranger's file is shown inside its sentence."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TableError", "listed", "reason", "shown"]

#: Longer texts are cut: a message is one sentence, and a cell may hold a whole file.
_LONGEST = 40


class TableError(ValueError):
    """A table cannot be used; the message is one sentence saying what is wrong, where, and what to do."""


def shown(text: str) -> str:
    """A name or cell in quotes, shortened, with control characters escaped so that no terminal obeys them."""
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def listed(texts: Iterable[str], most: int = 10) -> str:
    """Names or cells in quotes, separated by commas; after the first ``most`` only how many follow."""
    every = list(texts)
    beginning = ", ".join(shown(text) for text in every[:most])
    return beginning if len(every) <= most else f"{beginning} and {len(every) - most} more"


def reason(error: Exception) -> str:
    """What a library says about a file, with control characters escaped: it may quote the file's bytes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(error)[:200])
