"""Options that several commands share, each with its help, and choices that depend on the number of rows."""

# ruff: noqa: RUF009 (_option returns a field)

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

__all__ = [
    "CORRELATED_UP_TO",
    "SPARSE_ABOVE",
    "AsJson",
    "Choice",
    "Data",
    "FormatOptions",
    "Options",
    "Outputs",
    "ReadingOptions",
    "SeriesOptions",
    "Weight",
    "many",
    "with_options",
]

#: Larger tables are fitted through inducing points by default. An exact fit of this many rows takes half a minute, four
#: times as long as a sparse one.
SPARSE_ABOVE = 4000
#: More cells of several targets are fitted target by target by default: a fit of all costs the cube of their number.
CORRELATED_UP_TO = 5000
_INDUCING = 500
# Rows on which hyperparameters are chosen; of correlated targets, cells.
_EXACT_FIT_ROWS, _SPARSE_FIT_ROWS = 2000, 1000

Weight: TypeAlias = Literal["learned", "imq", "se", "constant"]
Outputs: TypeAlias = Literal["correlated", "independent"]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for machines.")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file with a header.", show_default=False)]


def _option(value: Any, text: str, *names: str, shown: str | bool = True, **more: Any) -> Any:
    """A field with its default (``...`` if required), help and, if the default does not explain itself, its text."""
    option = typer.Option(*names, help=text, show_default=shown, **more)
    return field(default=MISSING if value is ... else value, metadata={"option": option})


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Format of a table; ``None`` if not given."""

    missing: Literal["drop", "error"] = _option("error", "Rows that lack a value: drop them, or end with an error.")
    encoding: str | None = _option(None, "Encoding of a CSV file, such as cp1252.", shown="UTF-8 or UTF-16")
    decimal: Literal[".", ","] | None = _option(None, "Decimal mark of a CSV file.", shown=".")
    separator: str | None = _option(
        None, "Character between the cells of a CSV file, or 'tab'.", shown="found from the file"
    )
    date_format: str | None = _option(
        None, "Format of dates, such as %d/%m/%Y for 31/12/2024.", shown="unambiguous dates only"
    )


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(FormatOptions):
    """How to read a table; ``None`` if not given."""

    row_id: str | None = _option(
        None, "Column that names the rows; not a feature.", "--id", metavar="COLUMN", shown=False
    )


@dataclass(frozen=True, kw_only=True)
class Options(ReadingOptions):
    """How to read and fit a table; ``None`` if not given. Raises typer.BadParameter if options exclude each other."""

    target: list[str] = _option(
        ...,
        "Column to predict; one option for each of several. Cells of several may be empty in rows that have one of "
        "them.",
        metavar="COLUMN",
        shown=False,
    )
    outputs: Outputs | None = _option(
        None,
        "Several targets: one model of all cells, in which correlated targets inform each other, or a model for each.",
        shown=f"correlated up to {CORRELATED_UP_TO} cells",
    )
    features: list[str] | None = _option(
        None,
        "Columns to predict from, separated by commas or with the option repeated; all others by default.",
        metavar="A,B,C",
        shown=False,
    )
    exclude: list[str] | None = _option(
        None, "Columns to leave out, such as names and identifiers.", metavar="A,B,C", shown=False
    )
    log: bool = _option(False, "Fit the logarithm of positive targets; results are in their own units.", "--log")
    weight: Weight = _option(
        "learned",
        "How much a row counts: by a noise law learned from the table; by its distance from the prior mean, as in the "
        "paper (imq: inverse multiquadric, se: squared exponential); or all rows alike (constant: an ordinary GP).",
    )
    local_noise: bool = _option(
        True,
        "With --weight learned: let the noise vary with the inputs if that increases the evidence.",
        "--local-noise/--no-local-noise",
    )
    mean: Literal["median", "constant", "robust_linear", "linear", "quadratic", "zero"] = _option(
        "median", "Prior mean."
    )
    restarts: int | None = _option(
        None, "In an exact fit: further starts of the optimiser; the best is kept.", min=0, shown="0"
    )
    sparse: bool | None = _option(
        None,
        "Fit through inducing points, in time proportional to the rows, or through all rows, in time proportional to "
        "their cube.",
        "--sparse/--exact",
        shown=f"sparse above {SPARSE_ABOVE} rows",
    )
    inducing: int | None = _option(
        None, "In a sparse fit: largest number of inducing points.", min=1, shown=f"{_INDUCING}"
    )
    fit_rows: int | None = _option(
        None,
        "Largest number of rows on which hyperparameters are chosen; the fit uses all rows.",
        min=2,
        shown=f"{_EXACT_FIT_ROWS}; {_SPARSE_FIT_ROWS} in a sparse fit",
    )
    seed: int = _option(0, "Random seed.", min=0)

    def __post_init__(self) -> None:
        if len(self.target) == 1 and self.outputs is not None:
            raise typer.BadParameter("needs more than one --target", param_hint=["--outputs"])
        if len(self.target) > 1 and (self.sparse or self.inducing is not None):
            sentence = "works with one --target only; fit each of several by itself, or leave it out"
            raise typer.BadParameter(sentence, param_hint=["--sparse" if self.sparse else "--inducing"])
        if self.sparse is not None:
            self._check_kind(self.sparse)

    def for_cells(self, rows: int, cells: int) -> Choice:
        """Choose what was not given for several targets with this many observed cells."""
        outputs = self.outputs or ("correlated" if cells <= CORRELATED_UP_TO else "independent")
        searched = _EXACT_FIT_ROWS * rows // cells if outputs == "correlated" else _EXACT_FIT_ROWS
        fit_rows = self.fit_rows or max(2, searched)
        return Choice(sparse=False, inducing=_INDUCING, fit_rows=fit_rows, outputs=outputs)

    def for_rows(self, rows: int) -> Choice:
        """Choose what was not given. Raises typer.BadParameter if an option does not apply to such a table's fit."""
        sparse = rows > SPARSE_ABOVE if self.sparse is None else self.sparse
        if self.sparse is None:
            self._check_kind(sparse, f", which is what {many(rows)} rows get")
        fit_rows = self.fit_rows or (_SPARSE_FIT_ROWS if sparse else _EXACT_FIT_ROWS)
        return Choice(sparse=sparse, inducing=self.inducing or _INDUCING, fit_rows=fit_rows)

    def _check_kind(self, sparse: bool, why: str = "") -> None:
        """Refuse an option that does not apply to a kind of fit."""
        if sparse and self.restarts is not None:
            sentence = f"there are no restarts in a sparse fit{why}; use --exact, or leave it out"
            raise typer.BadParameter(sentence, param_hint=["--restarts"])
        if not sparse and self.inducing is not None:
            sentence = f"there are no inducing points in an exact fit{why}; use --sparse, or leave it out"
            raise typer.BadParameter(sentence, param_hint=["--inducing"])


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(FormatOptions):
    """What to do with a series; ``None`` if not given. Raises typer.BadParameter if options exclude each other."""

    time: str | None = _option(None, "Column of the times: dates, or numbers.", metavar="COLUMN", shown=False)
    target: list[str] | None = _option(
        None, "Column of the values; several are fitted one by one.", metavar="COLUMN", shown=False
    )
    period: list[str] | None = _option(
        None,
        "Length of a season, such as 1D or 7D for dates (ms, s, min, h, D, W), a number for numbers; one option for "
        "each.",
        shown=False,
    )
    stuck: bool = _option(
        False, "Treat values that repeat more often than chance explains as errors of a stuck sensor.", "--stuck"
    )
    local_noise: bool = _option(
        True, "Let the noise vary in time if that increases the evidence.", "--local-noise/--no-local-noise"
    )
    forecast: str | None = _option(
        None,
        "How far to forecast: a duration such as 48h for dates, a length in their unit for numbers, or '12 steps' of "
        "the typical gap.",
        shown=False,
    )
    coverage: float = _option(0.95, "Probability that an interval holds a value that is not an outlier.")
    output: Path | None = _option(None, "HTML page to write.", shown=False)
    predictions: Path | None = _option(
        None, "CSV or Parquet file for what is expected at the time of each row, and the forecast.", shown=False
    )
    model: Path | None = _option(None, "File to save the fitted model in; without DATA, to start from.", shown=False)
    follow: bool = _option(
        False,
        "Then read rows 'time,value' from standard input and write a JSON line for each: what was expected, and "
        "whether the value is an outlier.",
        "--follow",
    )
    as_json: bool = _option(False, "JSON on standard output, for machines.", "--json")
    top: int = _option(10, "How many suspicious rows to show.", min=0)

    def __post_init__(self) -> None:
        if not 0.0 < self.coverage < 1.0:
            raise typer.BadParameter(f"must be between 0 and 1, got {self.coverage}", param_hint=["--coverage"])
        if self.follow and self.as_json:
            raise typer.BadParameter("--follow writes JSON already: leave it out", param_hint=["--json"])
        if len(self.target or ()) > 1:
            for name, given in (("--output", self.output), ("--model", self.model), ("--follow", self.follow)):
                if given:
                    raise typer.BadParameter("works with one --target only", param_hint=[name])


@dataclass(frozen=True)
class Choice:
    """Choices that depend on the number of rows: kind of fit, most inducing points, rows for hyperparameters."""

    sparse: bool
    inducing: int
    fit_rows: int
    outputs: Outputs = "independent"


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of its parameter ``options``, a dataclass of options."""
    own = dict(inspect.signature(command, eval_str=True).parameters)
    kind = own.pop("options").annotation
    hints, first = get_type_hints(kind), inspect.get_annotations(kind)
    shared = sorted(fields(kind), key=lambda option: option.name not in first)  # those of its base come last

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(options=kind(**{option.name: given.pop(option.name) for option in shared}), **given)

    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    every = [parameter.replace(kind=keyword) for parameter in own.values()]
    for option in shared:
        hint = Annotated[hints[option.name], option.metadata["option"]]  # type: ignore[name-defined, valid-type]
        default = required if option.default is MISSING else option.default
        every.append(inspect.Parameter(option.name, keyword, annotation=hint, default=default))
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return run


def many(count: int) -> str:
    """A count for people, as in 4000 and 10 000."""
    return f"{count:,}".replace(",", " ") if count >= 10_000 else str(count)
