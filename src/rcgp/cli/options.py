"""Options that several commands share, each with its help, and what the number of rows decides."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

__all__ = ["SPARSE_ABOVE", "Choice", "Data", "Options", "ReadingOptions", "Weight", "many", "with_options"]

#: Tables of more rows than this are fitted through inducing points by default. An exact fit takes half a minute there,
#: four times as long as a sparse one, and soon minutes.
SPARSE_ABOVE = 4000
_INDUCING = 500
# Rows on which hyperparameters are chosen.
_EXACT_FIT_ROWS, _SPARSE_FIT_ROWS = 2000, 1000

Weight: TypeAlias = Literal["learned", "imq", "se", "constant"]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file with a header.", show_default=False)]


def _option(text: str, *names: str, default: str | bool = True, **more: Any) -> Any:
    """An option with its help, and its default in words where the value does not tell."""
    return typer.Option(*names, help=text, show_default=default, **more)


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How to read a table; ``None`` where the user did not say."""

    row_id: Annotated[
        str | None, _option("Column that names the rows; not a feature.", "--id", metavar="COLUMN", default=False)
    ] = None
    missing: Annotated[
        Literal["drop", "error"], _option("Rows that lack a value: drop them, or end with an error.")
    ] = "error"
    encoding: Annotated[str | None, _option("Encoding of a CSV file, such as cp1252.", default="UTF-8 or UTF-16")] = (
        None
    )
    decimal: Annotated[Literal[".", ","] | None, _option("Decimal mark of a CSV file.", default=".")] = None
    separator: Annotated[
        str | None, _option("Character between the cells of a CSV file, or 'tab'.", default="found from the file")
    ] = None
    date_format: Annotated[
        str | None, _option("Format of dates, such as %d/%m/%Y for 31/12/2024.", default="unambiguous dates only")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Options(ReadingOptions):
    """How to read and fit a table; ``None`` where the user did not say.

    Raises:
        typer.BadParameter: if options exclude each other.
    """

    target: Annotated[str, _option("Column to predict.", default=False)]
    features: Annotated[
        list[str] | None,
        _option(
            "Columns to predict from, with commas between or the option repeated; all others by default.",
            metavar="A,B,C",
            default=False,
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        _option("Columns to leave out, such as names and identifiers.", metavar="A,B,C", default=False),
    ] = None
    log: Annotated[bool, _option("Fit the logarithm of a positive target; results are in its own units.", "--log")] = (
        False
    )
    weight: Annotated[
        Weight,
        _option(
            "How much a row counts: by a noise law learned from the table; by its distance from the prior mean, as in "
            "the paper (imq: inverse multiquadric, se: squared exponential); or all rows alike (constant: an ordinary "
            "GP)."
        ),
    ] = "learned"
    local_noise: Annotated[
        bool,
        _option(
            "With --weight learned: let the noise differ from place to place where the evidence grows by it.",
            "--local-noise/--no-local-noise",
        ),
    ] = True
    mean: Annotated[
        Literal["median", "constant", "robust_linear", "linear", "quadratic", "zero"], _option("Prior mean.")
    ] = "median"
    restarts: Annotated[
        int | None, _option("In an exact fit: further starts of the optimiser; the best is kept.", min=0, default="0")
    ] = None
    sparse: Annotated[
        bool | None,
        _option(
            "See the function through inducing points, in time proportional to the rows, or through all rows, in time "
            "proportional to their cube.",
            "--sparse/--exact",
            default=f"sparse above {SPARSE_ABOVE} rows",
        ),
    ] = None
    inducing: Annotated[
        int | None,
        _option(
            "In a sparse fit: largest number of inducing points. More of them see more of the function.",
            min=1,
            default=f"{_INDUCING}",
        ),
    ] = None
    fit_rows: Annotated[
        int | None,
        _option(
            "Largest number of rows on which hyperparameters are chosen; the fit uses all rows.",
            min=2,
            default=f"{_EXACT_FIT_ROWS}; {_SPARSE_FIT_ROWS} in a sparse fit",
        ),
    ] = None
    seed: Annotated[int, _option("Seed of everything random.", min=0)] = 0

    def __post_init__(self) -> None:
        if self.sparse is not None:
            self._check_kind(self.sparse)

    def for_rows(self, rows: int) -> Choice:
        """Choose what the user did not say for a table of this many rows.

        Raises:
            typer.BadParameter: if an option means nothing to the kind of fit that such a table gets.
        """
        sparse = rows > SPARSE_ABOVE if self.sparse is None else self.sparse
        if self.sparse is None:
            self._check_kind(sparse, f", which is what {many(rows)} rows get")
        fit_rows = self.fit_rows or (_SPARSE_FIT_ROWS if sparse else _EXACT_FIT_ROWS)
        return Choice(sparse=sparse, inducing=self.inducing or _INDUCING, fit_rows=fit_rows)

    def _check_kind(self, sparse: bool, why: str = "") -> None:
        """Refuse an option that means nothing to a kind of fit."""
        if sparse and self.restarts is not None:
            sentence = f"there are no restarts in a sparse fit{why}; say --exact, or leave it out"
            raise typer.BadParameter(sentence, param_hint=["--restarts"])
        if not sparse and self.inducing is not None:
            sentence = f"there are no inducing points in an exact fit{why}; say --sparse, or leave it out"
            raise typer.BadParameter(sentence, param_hint=["--inducing"])


@dataclass(frozen=True)
class Choice:
    """What depends on the number of rows: the kind of fit, and the most inducing points and rows for the search."""

    sparse: bool
    inducing: int
    fit_rows: int


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of its parameter ``options``, a dataclass of options."""
    own = dict(inspect.signature(command, eval_str=True).parameters)
    kind = own.pop("options").annotation
    hints = get_type_hints(kind, include_extras=True)
    names = list(inspect.get_annotations(kind) | hints)  # those of its base come last

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = kind(**{name: given.pop(name) for name in names})
        command(options=options, **given)

    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    every = [parameter.replace(kind=keyword) for parameter in own.values()]
    for name in names:
        every.append(inspect.Parameter(name, keyword, annotation=hints[name], default=getattr(kind, name, required)))
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return run


def many(count: int) -> str:
    """A count for people: from ten thousand on with gaps."""
    return f"{count:,}".replace(",", " ") if count >= 10_000 else str(count)
