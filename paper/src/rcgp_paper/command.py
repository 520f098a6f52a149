"""The command ``rcgp reproduce`` and its options; slow imports wait until it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["reproduce"]


class Protocol(StrEnum):
    """How the experiments are set up."""

    paper = "paper"
    published = "published"


ProtocolOption = Annotated[
    Protocol | None,
    typer.Option(
        help="The paper's text, or the authors' published experiment where it differs; no effect on figures.",
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
        help="Run only these methods of a table, such as gp,rcgp; records of others are still shown. "
        "No effect on table2 and figures, whose runs are of several methods.",
        show_default=False,
    ),
]
Redo = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Repeat the recorded runs of this method, or of 'all', and nothing else: those of older code, if any. "
        "The newer record of a run counts.",
        show_default=False,
    ),
]


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure, 'all', or 'report' for one page of it all.", show_default=False),
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="Show the names and end.")] = False,
    protocol: ProtocolOption = None,
    splits: Splits = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="A small part of everything, as a check.")] = False,
    methods: Methods = None,
    redo: Redo = None,
    output: Annotated[Path, typer.Option(help="Folder of records, tables and figures.")] = Path("reproduction"),
) -> None:
    """Reproduce the paper: make the runs without a record, then render tables and figures from the records.

    Finished runs are never repeated, even after an interrupt. Data sets come from the folder that the environment
    variable RCGP_DATA_HOME names, or from OpenML.

    Example: [bold]rcgp reproduce table1 --splits 20[/bold]
    """
    from rcgp_paper.reproduce import list_experiments, run_and_render_all

    if list_names or name is None:
        list_experiments(Console(highlight=False))
        return
    console = Console(stderr=True, highlight=False)
    chosen = None if protocol is None else protocol.value
    page = run_and_render_all(name, chosen, splits, quick, redo, output, jobs, console, methods)
    if page is not None:
        Console(highlight=False).print(str(page), markup=False, soft_wrap=True)
