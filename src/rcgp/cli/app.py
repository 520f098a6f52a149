"""The commands and their options. Results go to standard output, everything else to standard error.

The libraries that take a second to import are imported by the commands that need them, so that ``--help`` answers at
once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rcgp
from rcgp.cli.options import (
    Data,
    Exclude,
    Features,
    FitRows,
    Inducing,
    LocalNoise,
    Mean,
    MeanOption,
    Methods,
    Missing,
    MissingOption,
    Options,
    ProtocolOption,
    Redo,
    Restarts,
    Seed,
    SparseOption,
    Splits,
    Target,
    Weight,
    WeightOption,
)

__all__ = ["app"]

app = typer.Typer(
    help="Gaussian process regression that outliers cannot break: from a table with bad values in it to a robust fit, "
    "honest error bars and the list of suspicious rows.\n\n"
    "Start with [bold]rcgp report data.csv --target price --output report.html[/bold] and look at the page, or with "
    "[bold]rcgp demo[/bold]. Tables are CSV or Parquet files with a header; columns of dates become numbers, those of "
    "text one column for each value. Every command has a --help of its own.",
    epilog="Bad input ends with one sentence on standard error and exit code 2.",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"rcgp {rcgp.__version__}")
        raise typer.Exit


@app.command()
def fit(
    data: Data,
    target: Target,
    features: Features = None,
    exclude: Exclude = None,
    model: Annotated[Path | None, typer.Option(help="File to save the fitted model in.", show_default=False)] = None,
    missing: MissingOption = Missing.error,
    weight: WeightOption = Weight.learned,
    local_noise: LocalNoise = True,
    mean: MeanOption = Mean.median,
    restarts: Restarts = None,
    sparse: SparseOption = None,
    inducing: Inducing = None,
    fit_rows: FitRows = None,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(min=0, help="How many suspicious rows to show.")] = 10,
) -> None:
    """Fit a robust model to a table; show its noise law, how well it fits and which rows are suspicious.

    Example: [bold]rcgp fit houses.csv --target price --model houses.rcgp[/bold]
    """
    from rcgp.cli.fitting import fit_table
    from rcgp.cli.printing import print_doubts, print_notices, print_summary
    from rcgp.estimator.saved import save

    options = Options(
        target, features, exclude, missing, weight, local_noise, mean, restarts, sparse, inducing, fit_rows, seed
    )
    if model is not None:
        _check_output(model, data)
    fitted = fit_table(data, options, _messages())
    print_notices(fitted.notices, _messages())
    print_summary(fitted, _results(), top)
    print_doubts(fitted.model.doubts_, _messages())
    if model is not None:
        save(fitted.model, model, table=fitted.encoding.to_json())
        _messages().print(f"\nmodel saved in {model}", markup=False, soft_wrap=True)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File that 'rcgp fit' saved.", show_default=False)],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file with the same columns.")],
    output: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet file to write; standard output by default.", show_default=False),
    ] = None,
    missing: MissingOption = Missing.error,
) -> None:
    """Predict new rows: mean, standard deviation and 95 % interval of a new observation in each.

    The columns are row (its number in DATA), mean, std, lower and upper. The interval follows the noise law of the
    model and holds a new observation that is no outlier.

    Example: [bold]rcgp predict houses.rcgp new.csv --output predictions.csv[/bold]
    """
    from rcgp.cli.predicting import predictions, write_table
    from rcgp.cli.printing import print_notices

    if output is not None:
        _check_output(output, data, model)
        if output.suffix.lower() in (".xlsx", ".xls", ".ods"):
            raise ValueError(f"{str(output)!r}: predictions are written as .csv or .parquet")
    table, notices = predictions(model, data, missing.value)
    print_notices(notices, _messages())
    write_table(table, output)
    if output is not None:
        _messages().print(f"{len(table)} predictions written to {output}", markup=False, soft_wrap=True)


@app.command()
def outliers(
    data: Data,
    target: Target,
    features: Features = None,
    exclude: Exclude = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, for machines.")] = False,
    top: Annotated[
        int | None, typer.Option(min=0, help="Show only so many rows, the most suspicious.", show_default="all")
    ] = None,
    only_flagged: Annotated[bool, typer.Option("--only-flagged", help="Show only rows that are flagged.")] = False,
    missing: MissingOption = Missing.error,
    weight: WeightOption = Weight.learned,
    local_noise: LocalNoise = True,
    mean: MeanOption = Mean.median,
    restarts: Restarts = None,
    sparse: SparseOption = None,
    inducing: Inducing = None,
    fit_rows: FitRows = None,
    seed: Seed = 0,
) -> None:
    """Show every row, or only some, with its weight, residual and outlier probability, the most suspicious first.

    Residuals are from the prediction by all other rows, also in standard deviations. Rows that are more likely
    outliers than not, by the noise law learned from the table, are flagged. The exit code is 0 whether or not there
    are outliers.

    Example: [bold]rcgp outliers houses.csv --target price --json | jq '.rows[] | select(.outlier)'[/bold]
    """
    from rcgp.cli.fitting import fit_table
    from rcgp.cli.printing import outliers_json, print_doubts, print_notices, print_rows, print_verdict, suspicion

    options = Options(
        target, features, exclude, missing, weight, local_noise, mean, restarts, sparse, inducing, fit_rows, seed
    )
    fitted = fit_table(data, options, _messages())
    rows = suspicion(fitted.model, fitted.y)
    rows = (rows[rows["outlier"]] if only_flagged else rows).head(len(rows) if top is None else top)
    print_notices(fitted.notices, _messages())
    if as_json:
        typer.echo(json.dumps(outliers_json(fitted, rows), ensure_ascii=False))
    else:
        print_rows(rows, _results())
        print_verdict(fitted, _results())
    print_doubts(fitted.model.doubts_, _messages())


@app.command()
def report(
    data: Data,
    target: Target,
    output: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
    features: Features = None,
    exclude: Exclude = None,
    missing: MissingOption = Missing.error,
    weight: WeightOption = Weight.learned,
    local_noise: LocalNoise = True,
    mean: MeanOption = Mean.median,
    restarts: Restarts = None,
    sparse: SparseOption = None,
    inducing: Inducing = None,
    fit_rows: FitRows = None,
    seed: Seed = 0,
) -> None:
    """Write one HTML page about a table: the fit, the noise law, residuals, weights, suspicious rows.

    The page is one file that works offline, and compares the robust fit with an ordinary GP.

    Example: [bold]rcgp report houses.csv --target price --output report.html[/bold]
    """
    from rcgp.cli.fitting import fit_plain, fit_table
    from rcgp.cli.printing import print_doubts, print_notices
    from rcgp.report import write_report

    options = Options(
        target, features, exclude, missing, weight, local_noise, mean, restarts, sparse, inducing, fit_rows, seed
    )
    _check_output(output, data)
    fitted = fit_table(data, options, _messages())
    plain = fit_plain(fitted, options, _messages())
    print_notices(fitted.notices, _messages())
    with _messages().status("Drawing the page"):
        write_report(output, fitted.model, plain, fitted.X, fitted.y, target=target, notices=fitted.notices)
    size = output.stat().st_size / 1e6
    print_doubts(fitted.model.doubts_, _messages())
    _messages().print(f"report written to {output} ({size:.1f} MB): open it in a browser", markup=False, soft_wrap=True)


@app.command()
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
    from rcgp.cli.reproduce import list_experiments
    from rcgp.cli.reproduce import reproduce as run_and_render

    if list_names or name is None:
        list_experiments(_results())
        return
    page = run_and_render(
        name, None if protocol is None else protocol.value, splits, quick, redo, output, jobs, _messages(), methods
    )
    if page is not None:
        _results().print(str(page), markup=False, soft_wrap=True)


@app.command()
def optimise(
    command: Annotated[
        str,
        typer.Option(
            help="Program with its arguments, run once for each evaluation: parameters as a JSON object on its "
            "standard input, a number as the last line of its standard output.",
            show_default=False,
        ),
    ],
    parameter: Annotated[
        list[str], typer.Option(metavar="NAME:LOW:HIGH", help="A parameter; one option for each.", show_default=False)
    ],
    budget: Annotated[int, typer.Option(min=1, help="Evaluations in all, those in the trace included.")] = 50,
    maximise: Annotated[bool, typer.Option("--maximise", help="Look for the maximum, not the minimum.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="File of all evaluations, from which the same command goes on.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of everything random.", show_default="the trace's, or any")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which an evaluation has failed.", show_default="none")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, for machines.")] = False,
) -> None:
    """Find the parameters with which a program gives the smallest number, although some numbers are wrong.

    Bayesian optimisation with the robust model. An evaluation that ends with an error, takes too long or gives no
    number is recorded and skipped; it counts towards the budget. Evaluations that do not fit the others are listed at
    the end. The exit code is 1 where none has a value.

    Example: [bold]rcgp optimise --command "python bake.py" --parameter heat:150:250 --parameter minutes:10:60 --trace
    bread.jsonl[/bold]
    """
    from rcgp.cli.optimise import optimise_program, print_found

    result = optimise_program(command, parameter, budget, maximise, seed, trace, timeout, _messages())
    print_found(result, _results(), as_json)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the figure and the data.")] = Path("build"),
) -> None:
    """Fit a plain and a robust GP to made-up data with outliers; write a figure and the data."""
    from rcgp.cli.demo import run_demo

    run_demo(output, _results())


def _check_output(path: Path, *inputs: Path) -> None:
    """Refuse, before any work is done, an output that cannot be written in the end, or that is one of the inputs."""
    from rcgp.saving import check_writable

    check_writable(path)
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            raise ValueError(f"{str(path)!r} is an input: writing there would overwrite it; choose another name")


def _results() -> Console:
    return Console(highlight=False)


def _messages() -> Console:
    return Console(stderr=True, highlight=False)
