"""The options that several commands have in common, and those of ``reproduce``, each with its help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Centre",
    "CentreOption",
    "Data",
    "Epsilon",
    "Exclude",
    "Features",
    "FitRows",
    "Mean",
    "MeanOption",
    "Methods",
    "Missing",
    "MissingOption",
    "Protocol",
    "ProtocolOption",
    "Redo",
    "Restarts",
    "Seed",
    "Splits",
    "Target",
    "Weight",
    "WeightOption",
]


class Missing(StrEnum):
    """What to do with rows that lack a value."""

    drop = "drop"
    error = "error"


class Centre(StrEnum):
    """What the weights are centred on."""

    adaptive = "adaptive"
    prior = "prior"


class Weight(StrEnum):
    """How trust falls with the distance from the prior mean."""

    imq = "imq"
    se = "se"
    constant = "constant"


class Mean(StrEnum):
    """Prior means, on which the weights are centred."""

    constant = "constant"
    median = "median"
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
CentreOption = Annotated[
    Centre,
    typer.Option(
        help="Trust goes by the distance from what the other rows say, or, in the paper's method, from the prior mean."
    ),
]
WeightOption = Annotated[
    Weight | None,
    typer.Option(
        help="With --centre prior: how trust in a row falls with that distance: inverse multiquadric, squared "
        "exponential, or not at all (constant: an ordinary GP).",
        show_default="imq",
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=0.99, help="With --centre prior: share of rows expected to be outlying.", show_default="0.05"
    ),
]
MeanOption = Annotated[Mean, typer.Option(help="Prior mean.")]
Restarts = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With --centre prior: further starts of the optimiser, of which the best is kept.",
        show_default="0",
    ),
]
FitRows = Annotated[
    int, typer.Option(min=2, help="Largest number of rows on which hyperparameters are chosen; the fit uses all rows.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


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
        help="Repetitions of each configuration; at most 10 in table2, and one in figures and with --quick.",
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
