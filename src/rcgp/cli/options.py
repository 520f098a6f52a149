"""The options that several commands have in common, and those of ``reproduce``, each with its help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "SPARSE_ABOVE",
    "Choice",
    "Data",
    "Exclude",
    "Features",
    "FitRows",
    "Inducing",
    "LocalNoise",
    "Mean",
    "MeanOption",
    "Methods",
    "Missing",
    "MissingOption",
    "Options",
    "Protocol",
    "ProtocolOption",
    "Redo",
    "Restarts",
    "Seed",
    "SparseOption",
    "Splits",
    "Target",
    "Weight",
    "WeightOption",
    "many",
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


@dataclass(frozen=True)
class Options:
    """How to fit, as the command line says; ``None`` where it does not say.

    Raises:
        typer.BadParameter: where some exclude each other.
    """

    target: str
    features: Sequence[str] | None
    exclude: Sequence[str] | None
    missing: Missing
    weight: Weight
    local_noise: bool
    mean: Mean
    restarts: int | None
    sparse: bool | None
    inducing: int | None
    fit_rows: int | None
    seed: int

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


class Protocol(StrEnum):
    """How the experiments are set up."""

    paper = "paper"
    published = "published"


ProtocolOption = Annotated[
    Protocol | None,
    typer.Option(
        help="The paper's text, or the authors' published experiment where it differs; means nothing to figures.",
        show_default="paper",
    ),
]
Splits = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Repetitions of each configuration; at most 10 in table2, table_sparse and figure_sparse, and one in "
        "other figures and with --quick.",
        show_default="50",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A,B,C",
        help="Run only these methods of a table, such as gp,rcgp; what is recorded of others is still shown. "
        "Means nothing to table2 and figures, whose runs are not of single methods.",
        show_default=False,
    ),
]
Redo = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Make the recorded runs of this method, or of 'all', again and nothing else: those that other code made, "
        "if there are any. The newer record of a run counts.",
        show_default=False,
    ),
]
