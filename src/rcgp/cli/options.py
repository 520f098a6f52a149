"""The options that several commands share, each with its help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

__all__ = [
    "SPARSE_ABOVE",
    "Choice",
    "Data",
    "DateFormat",
    "Decimal",
    "DecimalOption",
    "Exclude",
    "Features",
    "FitRows",
    "Inducing",
    "LocalNoise",
    "Log",
    "Mean",
    "MeanOption",
    "Missing",
    "MissingOption",
    "Options",
    "Restarts",
    "RowId",
    "Seed",
    "Separator",
    "SparseOption",
    "Target",
    "TextEncoding",
    "Weight",
    "WeightOption",
    "many",
    "with_options",
]

#: Tables of more rows than this are fitted through inducing points unless told otherwise. An exact fit takes half a
#: minute there, four times as long as a sparse one, and soon minutes.
SPARSE_ABOVE = 4000
_INDUCING = 500
# Rows on which hyperparameters are chosen.
_EXACT_FIT_ROWS, _SPARSE_FIT_ROWS = 2000, 1000


class Missing(StrEnum):
    """What to do with rows that lack a value."""

    drop = "drop"
    error = "error"


class Weight(StrEnum):
    """How much a row counts."""

    learned = "learned"
    imq = "imq"
    se = "se"
    constant = "constant"


class Decimal(StrEnum):
    """Decimal marks."""

    point = "."
    comma = ","


class Mean(StrEnum):
    """Prior means."""

    median = "median"
    constant = "constant"
    robust_linear = "robust_linear"
    linear = "linear"
    quadratic = "quadratic"
    zero = "zero"


Data = Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file with a header.", show_default=False)]
Target = Annotated[str, typer.Option(help="Column to predict.", show_default=False)]
Features = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A,B,C",
        help="Columns to predict from, with commas between or the option repeated; all others by default.",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="A,B,C", help="Columns to leave out, such as names and identifiers.", show_default=False),
]
MissingOption = Annotated[Missing, typer.Option(help="Rows that lack a value: drop them, or end with an error.")]
WeightOption = Annotated[
    Weight,
    typer.Option(
        help="How much a row counts: by a noise law learned from the table; by its distance from the prior mean, as in "
        "the paper (imq: inverse multiquadric, se: squared exponential); or all rows alike (constant: an ordinary GP)."
    ),
]
LocalNoise = Annotated[
    bool,
    typer.Option(
        "--local-noise/--no-local-noise",
        help="With --weight learned: let the noise differ from place to place where the evidence grows by it.",
    ),
]
MeanOption = Annotated[Mean, typer.Option(help="Prior mean.")]
Restarts = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="In an exact fit: further starts of the optimiser; the best is kept.",
        show_default="0",
    ),
]
SparseOption = Annotated[
    bool | None,
    typer.Option(
        "--sparse/--exact",
        help="See the function through inducing points, in time proportional to the rows, or through all rows, in time "
        "proportional to their cube.",
        show_default=f"sparse above {SPARSE_ABOVE} rows",
    ),
]
Inducing = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="In a sparse fit: largest number of inducing points. More of them see more of the function.",
        show_default=f"{_INDUCING}",
    ),
]
FitRows = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Largest number of rows on which hyperparameters are chosen; the fit uses all rows.",
        show_default=f"{_EXACT_FIT_ROWS}; {_SPARSE_FIT_ROWS} in a sparse fit",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


RowId = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Column that names the rows; not a feature.", show_default=False),
]
Log = Annotated[
    bool,
    typer.Option("--log", help="Fit the logarithm of a positive target; results are in its own units."),
]
TextEncoding = Annotated[
    str | None, typer.Option(help="Encoding of a CSV file, such as cp1252.", show_default="UTF-8 or UTF-16")
]
DecimalOption = Annotated[Decimal | None, typer.Option(help="Decimal mark of a CSV file.", show_default=".")]
Separator = Annotated[
    str | None,
    typer.Option(help="Character between the cells of a CSV file, or 'tab'.", show_default="found from the file"),
]
DateFormat = Annotated[
    str | None,
    typer.Option(help="Format of dates, such as %d/%m/%Y for 31/12/2024.", show_default="unambiguous dates only"),
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to read and fit a table, as the command line says; ``None`` where it does not say.

    Each field is an option of every command that fits: see :func:`with_options`.

    Raises:
        typer.BadParameter: where some exclude each other.
    """

    target: Target
    features: Features = None
    exclude: Exclude = None
    row_id: RowId = None
    log: Log = False
    missing: MissingOption = Missing.error
    encoding: TextEncoding = None
    decimal: DecimalOption = None
    separator: Separator = None
    date_format: DateFormat = None
    weight: WeightOption = Weight.learned
    local_noise: LocalNoise = True
    mean: MeanOption = Mean.median
    restarts: Restarts = None
    sparse: SparseOption = None
    inducing: Inducing = None
    fit_rows: FitRows = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.sparse is not None:
            _check_kind(self, self.sparse)

    def for_rows(self, rows: int) -> Choice:
        """What was not said, chosen for a table of so many rows.

        Raises:
            typer.BadParameter: where an option means nothing to the kind of fit that such a table gets.
        """
        sparse = rows > SPARSE_ABOVE if self.sparse is None else self.sparse
        if self.sparse is None:
            _check_kind(self, sparse, f", which is what {many(rows)} rows get")
        return Choice(
            sparse=sparse,
            inducing=self.inducing or _INDUCING,
            fit_rows=self.fit_rows or (_SPARSE_FIT_ROWS if sparse else _EXACT_FIT_ROWS),
        )


@dataclass(frozen=True)
class Choice:
    """What depends on the number of rows.

    Attributes:
        sparse: whether the fit goes through inducing points.
        inducing: how many of them, at most, if so.
        fit_rows: rows on which hyperparameters are chosen, at most.
    """

    sparse: bool
    inducing: int
    fit_rows: int


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of :class:`Options` in place of its parameter ``options``."""
    hints = get_type_hints(Options, include_extras=True)
    own = inspect.signature(command, eval_str=True).parameters.values()
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(Options)
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = Options(**{field.name: given.pop(field.name) for field in fields(Options)})
        command(options=options, **given)

    every = [
        *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != "options"),
        *shared,
    ]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return run


def _check_kind(options: Options, sparse: bool, why: str = "") -> None:
    """Refuse an option that means nothing to a kind of fit."""
    if sparse and options.restarts is not None:
        raise typer.BadParameter(
            f"there are no restarts in a sparse fit{why}; say --exact, or leave it out", param_hint=["--restarts"]
        )
    if not sparse and options.inducing is not None:
        raise typer.BadParameter(
            f"there are no inducing points in an exact fit{why}; say --sparse, or leave it out",
            param_hint=["--inducing"],
        )


def many(count: int) -> str:
    """A number of things, for people: from ten thousand on with gaps."""
    return f"{count:,}".replace(",", " ") if count >= 10_000 else str(count)
