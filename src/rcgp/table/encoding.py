"""What is kept of a training table: the kind of each column, and so how any table becomes the model's numbers.

An encoding is stored beside the model as JSON and read back from files that anyone may have written, so every object
here checks itself when it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from rcgp.table.cells import Kind
from rcgp.table.errors import TableError, listed, shown
from rcgp.table.format import CsvFormat

__all__ = ["MOST_LEVELS", "Column", "Encoding"]

#: A category of more levels is rather a text, and would give the kernel as many dimensions.
MOST_LEVELS = 50


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
        if self.kind not in get_args(Kind):
            raise TableError(
                f"column {shown(self.name)} must be of kind {listed(get_args(Kind))}, got {self.kind!r:.50}"
            )
        most = MOST_LEVELS if self.kind == "category" else 0
        if not isinstance(self.levels, tuple) or not min(1, most) <= len(self.levels) <= most:
            raise TableError(f"column {shown(self.name)} of kind {shown(self.kind)} has the wrong number of levels")
        for level in self.levels:
            _check_text(level, f"a level of column {shown(self.name)}")
        _check_distinct(self.levels, f"levels of column {shown(self.name)}")

    @property
    def indicated(self) -> tuple[str, ...]:
        """The levels that have a feature, 1 in their rows and 0 elsewhere.

        Of two levels only the second in order: a feature for the other would say the same again, at the price of one
        more lengthscale.
        """
        return self.levels[1:] if len(self.levels) == 2 else self.levels

    @property
    def feature_names(self) -> list[str]:
        """Names of the features that the column gives: its own, or ``name=level`` for each indicated level."""
        return [f"{self.name}={level}" for level in self.indicated] if self.kind == "category" else [self.name]


@dataclass(frozen=True)
class Encoding:
    """How a table becomes numbers.

    Attributes:
        target: name of the column to predict, a column of numbers.
        columns: the columns to predict it from, in order.
        form: how numbers and dates are written in CSV files.
        row_id: name of the column that names the rows, if there is one.
        log: whether the model predicts the logarithm of the target.
    """

    target: str
    columns: tuple[Column, ...]
    form: CsvFormat = field(default_factory=CsvFormat)
    row_id: str | None = None
    log: bool = False

    def __post_init__(self) -> None:
        _check_text(self.target, "the name of the target")
        if not isinstance(self.columns, tuple) or not self.columns:
            raise TableError(f"there is no column to predict {shown(self.target)} from")
        if any(column.name == self.target for column in self.columns):
            raise TableError(f"the target {shown(self.target)} cannot be one of the features as well")
        _check_distinct([column.name for column in self.columns], "columns")
        _check_distinct(self.feature_names, "features")
        if self.row_id is not None:
            _check_text(self.row_id, "the name of the id column")

    @property
    def feature_names(self) -> list[str]:
        """Names of the ``d`` features, such as ``size``, ``when``, ``colour=blue`` and ``colour=red``."""
        return [name for column in self.columns for name in column.feature_names]

    def to_json(self) -> dict[str, Any]:
        """A description in plain dictionaries, lists and texts."""
        columns = [{"name": c.name, "kind": c.kind, "levels": list(c.levels)} for c in self.columns]
        form = self.form.to_json()
        return {"target": self.target, "columns": columns, "format": form, "id": self.row_id, "log": self.log}

    @classmethod
    def from_json(cls, description: object) -> Encoding:
        """The encoding that :meth:`to_json` described. Raises TableError for anything that it cannot have written."""
        types = {"target": str, "columns": list, "format": dict, "id": (str, type(None)), "log": bool}
        if isinstance(description, dict):  # a model saved before there were these options
            description = {"format": CsvFormat().to_json(), "id": None, "log": False, **description}
        fields = _fields(description, types, "the description of the table")
        columns = []
        for item in fields["columns"]:
            column = _fields(item, {"name": str, "kind": str, "levels": list}, "the description of a column")
            columns.append(Column(column["name"], column["kind"], tuple(column["levels"])))
        form = CsvFormat.from_json(fields["format"])
        return cls(fields["target"], tuple(columns), form, fields["id"], fields["log"])


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
    """Refuse a name that stands for two things, such as column ``a=b`` beside level ``b`` of column ``a``."""
    repeated = [text for text, count in Counter(texts).items() if count > 1]
    if repeated:
        raise TableError(f"more than one of the {what} would be called {listed(repeated)}: rename a column or level")
