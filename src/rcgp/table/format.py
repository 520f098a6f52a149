"""How the cells of a CSV file are written: what a reader cannot know from the file alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rcgp.table.errors import TableError, shown

__all__ = ["CsvFormat"]


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written. ``None`` where the reader finds out.

    Attributes:
        encoding: of its text, such as ``"cp1252"``. ``None``: UTF-8, or UTF-16 with a byte order mark.
        separator: between cells, one character. ``None``: comma, semicolon, tab or bar.
        decimal: ``"."`` or ``","``. ``None``: ``"."``.
        date_format: of dates, such as ``"%d/%m/%Y"``. ``None``: only forms that can be read in one way.

    Raises:
        TableError: for what no file can be written in.
    """

    encoding: str | None = None
    separator: str | None = None
    decimal: str | None = None
    date_format: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, str):
                raise TableError(f"the {field.name} of a CSV file must be text, got {value!r:.50}")
        if self.separator is not None:
            named = {"tab": "\t", "\\t": "\t"}.get(self.separator, self.separator)
            object.__setattr__(self, "separator", named)
            if len(named) != 1 or named in '"\r\n ':
                raise TableError(f"--separator must be one character, or 'tab', got {shown(named)}")
        if self.decimal not in (None, ".", ","):
            raise TableError(f"--decimal must be '.' or ',', got {shown(self.decimal)}")
        if self.decimal == "," == self.separator:
            raise TableError("--decimal and --separator cannot both be ',': use --separator ';' or 'tab'")
        if self.date_format is not None and "%" not in self.date_format:
            raise TableError(
                f"--date-format must be a format such as '%d/%m/%Y' for 31/12/2024, got {shown(self.date_format)}"
            )
        if self.encoding is not None:
            try:
                "a".encode(self.encoding)
            except (LookupError, ValueError):
                raise TableError(
                    f"there is no --encoding {shown(self.encoding)}: try utf-8, cp1252 (Windows), latin-1 or mac-roman"
                ) from None

    def overridden_by(self, other: CsvFormat) -> CsvFormat:
        """This format, but for what the other one states."""
        return replace(self, **{name: value for name, value in asdict(other).items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """A description in plain dictionaries and texts."""
        return asdict(self)

    @classmethod
    def from_json(cls, description: object) -> CsvFormat:
        """The format that :meth:`to_json` described. Raises TableError for anything that it cannot have written."""
        if not isinstance(description, dict) or set(description) != {field.name for field in fields(cls)}:
            raise TableError("the description of the CSV format is damaged")
        return cls(**description)
