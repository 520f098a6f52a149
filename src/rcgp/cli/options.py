"""The options that several commands have in common, and those of ``reproduce``, each with its help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Data",
    "Epsilon",
    "Exclude",
    "Features",
    "FitRows",
    "Mean",
    "MeanOption",
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
WeightOption = Annotated[
    Weight | None,
    typer.Option(
        help="The paper's method instead: how trust in a row falls with its distance from the prior mean: inverse "
        "multiquadric, squared exponential, or not at all (constant: an ordinary GP). By default it depends on what "
        "the other rows say.",
        show_default=False,
    ),
]
Epsilon = Annotated[
    float,
    typer.Option(min=0.0, max=0.99, help="Share of rows expected to be outlying; the paper's method if not 0.05."),
]
MeanOption = Annotated[Mean, typer.Option(help="Prior mean.")]
Restarts = Annotated[
    int, typer.Option(min=0, help="Further starts of the optimiser, of which the best is kept; the paper's method.")
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
Redo = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Make the recorded runs of this method, or of 'all', again and nothing else: those that other code made, "
        "if there are any. The newer record of a run counts.",
        show_default=False,
    ),
]
