"""The format and the columns of a training table, as kept with a model; and the one exception of this package.

An encoding is saved with the model as JSON, and a file may come from anyone, so each object here checks itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args

__all__ = [
    "MOST_LEVELS",
    "Column",
    "CsvFormat",
    "Encoding",
    "Kind",
    "TableError",
    "listed",
    "printable",
    "repeated",
    "shown",
]

Kind: TypeAlias = Literal["number", "date", "category"]

#: A column of more different texts is not a category; each level is a dimension of the kernel.
MOST_LEVELS = 50
#: Longer texts are cut in messages: a cell may hold a whole file.
_LONGEST = 40


class TableError(ValueError):
    """A table cannot be used; the message is one sentence: what is wrong, where, and what to do."""


def shown(text: str) -> str:
    """A name or cell in quotes, shortened, with control characters escaped so that no terminal interprets them."""
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def listed(texts: Iterable[str], most: int = 10) -> str:
    """Names or cells in quotes, separated by commas; after the first ``most`` only their number."""
    every = list(texts)
    beginning = ", ".join(shown(text) for text in every[:most])
    return beginning if len(every) <= most else f"{beginning} and {len(every) - most} more"


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def printable(text: object, longest: int | None = None) -> str:
    """A text that may come from a file, with control characters escaped so that no terminal interprets them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text)[:longest])


@dataclass(frozen=True)
class CsvFormat:
    """Format of a CSV file; ``None`` is found from the file.

    Attributes:
        encoding: of its text, such as ``"cp1252"``. ``None``: UTF-8, or UTF-16 with a byte order mark.
        separator: between cells, one character. ``None``: comma, semicolon, tab or bar.
        decimal: ``"."`` or ``","``. ``None``: ``"."``.
        date_format: of dates, such as ``"%d/%m/%Y"``. ``None``: only forms that can be read in one way.

    Raises:
        TableError: for a format that no file has.
    """

    encoding: str | None = None
    separator: str | None = None
    decimal: str | None = None
    date_format: str | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not isinstance(value, str):
                raise TableError(f"the {name} of a CSV file must be text, got {value!r:.50}")
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
            form = shown(self.date_format)
            raise TableError(f"--date-format must be a format such as '%d/%m/%Y' for 31/12/2024, got {form}")
        if self.encoding is not None:
            try:
                "a".encode(self.encoding)
            except (LookupError, ValueError):
                remedy = "try utf-8, cp1252 (Windows), latin-1 or mac-roman"
                raise TableError(f"there is no --encoding {shown(self.encoding)}: {remedy}") from None

    def overridden_by(self, other: CsvFormat) -> CsvFormat:
        """This format, except for what the other one states."""
        return replace(self, **{name: value for name, value in asdict(other).items() if value is not None})


@dataclass(frozen=True)
class Column:
    """A column that the model uses.

    Attributes:
        name: of the column in the table.
        kind: ``"number"``, ``"date"`` (days since 1970-01-01) or ``"category"``.
        levels: the texts of a category, sorted; empty for the other kinds.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_text(self.name, "the name of a column")
        name, kinds = shown(self.name), get_args(Kind)
        if self.kind not in kinds:
            raise TableError(f"column {name} must be of kind {listed(kinds)}, got {self.kind!r:.50}")
        most = MOST_LEVELS if self.kind == "category" else 0
        if not isinstance(self.levels, tuple) or not min(1, most) <= len(self.levels) <= most:
            raise TableError(f"column {name} of kind {shown(self.kind)} has the wrong number of levels")
        for level in self.levels:
            _check_text(level, f"a level of column {name}")
        _check_distinct(self.levels, f"levels of column {name}")

    @property
    def indicated(self) -> tuple[str, ...]:
        """Levels with a feature, 1 in their rows and 0 elsewhere. Of two levels only the second has one."""
        return self.levels[1:] if len(self.levels) == 2 else self.levels

    @property
    def feature_names(self) -> list[str]:
        """Names of the column's features: its own, or ``name=level`` for each indicated level."""
        return [f"{self.name}={level}" for level in self.indicated] if self.kind == "category" else [self.name]


@dataclass(frozen=True)
class Encoding:
    """How a table becomes numbers.

    Attributes:
        target: name of the column to predict, a column of numbers.
        columns: the columns to predict it from, in order.
        form: how numbers and dates are written in CSV files.
        row_id: name of the column that names the rows, if there is one.
        log: whether the model predicts the logarithm of the target, or of each of several.
        further: names of the other columns to predict, if there are several.
    """

    target: str
    columns: tuple[Column, ...]
    form: CsvFormat = field(default_factory=CsvFormat)
    row_id: str | None = None
    log: bool = False
    further: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.targets:
            _check_text(name, "the name of the target")
        if not isinstance(self.columns, tuple) or not self.columns:
            raise TableError(f"there is no column to predict {listed(self.targets)} from")
        for column in self.columns:
            if column.name in self.targets:
                raise TableError(f"the target {shown(column.name)} cannot be one of the features as well")
        _check_distinct(self.targets, "targets")
        _check_distinct([column.name for column in self.columns], "columns")
        _check_distinct(self.feature_names, "features")
        if self.row_id is not None:
            _check_text(self.row_id, "the name of the id column")

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of all columns to predict."""
        return (self.target, *self.further)

    @property
    def feature_names(self) -> list[str]:
        """Names of the ``d`` features, such as ``size``, ``when``, ``colour=blue`` and ``colour=red``."""
        return [name for column in self.columns for name in column.feature_names]

    def to_json(self) -> dict[str, Any]:
        """A description in plain dictionaries, lists and texts."""
        columns = [{"name": c.name, "kind": c.kind, "levels": list(c.levels)} for c in self.columns]
        target = {"target": self.target, "further_targets": list(self.further)}
        return {**target, "columns": columns, "format": asdict(self.form), "id": self.row_id, "log": self.log}

    @classmethod
    def from_json(cls, description: object) -> Encoding:
        """The encoding that :meth:`to_json` described. Raises TableError for anything that it cannot have written."""
        if isinstance(description, dict):  # saved before these options existed
            description = {
                "format": asdict(CsvFormat()),
                "id": None,
                "log": False,
                "further_targets": [],
                **description,
            }
        text = (str, type(None))
        types = {"target": str, "further_targets": list, "columns": list, "format": dict, "id": text, "log": bool}
        table = _fields(description, types, "the description of the table")
        form = _fields(table["format"], {f.name: text for f in fields(CsvFormat)}, "the description of the CSV format")
        columns = []
        for item in table["columns"]:
            column = _fields(item, {"name": str, "kind": str, "levels": list}, "the description of a column")
            columns.append(Column(column["name"], column["kind"], tuple(column["levels"])))
        further = tuple(table["further_targets"])
        return cls(table["target"], tuple(columns), CsvFormat(**form), table["id"], table["log"], further)


def _fields(description: object, types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The description, if it is a dictionary with exactly these keys and types."""
    if not isinstance(description, dict) or set(description) != set(types):
        raise TableError(f"{what} must have the fields {listed(types)}: the file is damaged")
    for key, kind in types.items():
        if not isinstance(description[key], kind):
            raise TableError(f"{what} has no proper {shown(key)}: the file is damaged")
    return description


def _check_text(text: object, what: str) -> None:
    """Refuse what is not text, or text that no file can hold (half of a surrogate pair)."""
    if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
        raise TableError(f"{what} must be text, got {shown(str(text))}")


def _check_distinct(texts: Sequence[str], what: str) -> None:
    """Refuse a name with two meanings, such as column ``a=b`` beside level ``b`` of column ``a``."""
    if twice := repeated(texts):
        raise TableError(f"more than one of the {what} would be called {listed(twice)}: rename a column or level")
