"""The command ``rcgp reproduce`` and its options. What takes a second to import is imported when it runs."""

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


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure, 'all', or 'report' for one page of it all.", show_default=False),
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="Show the names and end.")] = False,
    protocol: ProtocolOption = None,
    splits: Splits = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="A small part of everything, to see that it works.")] = False,
    methods: Methods = None,
    redo: Redo = None,
    output: Annotated[Path, typer.Option(help="Folder of records, tables and figures.")] = Path("reproduction"),
) -> None:
    """Reproduce the paper: run what has no record yet, then render tables and figures from the records.

    Finished runs are never repeated, whatever interrupts the command. Data sets are read from the folder that the
    environment variable RCGP_DATA_HOME names, or fetched from OpenML.

    Example: [bold]rcgp reproduce table1 --splits 20[/bold]
    """
    from rcgp_paper.reproduce import list_experiments, run_and_render_all

    if list_names or name is None:
        list_experiments(Console(highlight=False))
        return
    page = run_and_render_all(
        name,
        None if protocol is None else protocol.value,
        splits,
        quick,
        redo,
        output,
        jobs,
        Console(stderr=True, highlight=False),
        methods,
    )
    if page is not None:
        Console(highlight=False).print(str(page), markup=False, soft_wrap=True)
