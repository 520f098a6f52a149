"""The commands of ``rcgp`` and their options. Results go to standard output, everything else to standard error.

Commands import slow libraries themselves, so that ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

import rcgp
from rcgp.cli.options import AsJson, Data, Options, ReadingOptions, SeriesOptions, with_options

if TYPE_CHECKING:
    from rcgp.cli.fitting import FittedTable

__all__ = ["app", "run"]

_BAD_INPUT, _INTERRUPTED = 2, 130

# The class of all errors of usage, to which Typer gives no public name.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    help="Gaussian process regression that outliers cannot break: from a table with bad values to a robust fit, honest "
    "error bars and the list of suspicious rows.\n\n"
    "Start with [bold]rcgp report data.csv --target price --output report.html[/bold] and look at the page, or with "
    "[bold]rcgp demo[/bold]. Tables are CSV or Parquet files with a header; columns of dates become numbers, those of "
    "text one column for each value. Every command has its own --help.",
    epilog="Bad input ends with one sentence on standard error and exit code 2.",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. Bad input gives one sentence, not a traceback."""
    command: Any = typer.main.get_command(app)
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = f"{given[0]} " if given[0] in command.commands else ""
    try:
        # Not command.main, which exits the process.
        with command.make_context("rcgp", list(given)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return int(done.exit_code)
    except _UsageError as error:
        sentence = error.format_message().removeprefix("Value error, ").rstrip(".").replace(": Value error,", ":")
        return _fail(f"{sentence}; see 'rcgp {name}--help'")
    except (KeyboardInterrupt, typer.Abort):
        kept = "finished runs are kept, and the same command continues from there"
        return _fail(f"interrupted; {kept if name == 'reproduce ' else 'nothing was written'}", _INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("there is not enough memory for a table of this size")
    except ModuleNotFoundError as error:
        if error.name == "numba":
            return _fail("'rcgp series' needs numba: pip install \"rcgp[series]\"")
        if error.name == "rcgp_paper":
            return _fail("'rcgp reproduce' needs rcgp-paper: pip install \"rcgp[paper]\"")
        return _fail(f'{error.name} is missing: pip install "rcgp[demo]" installs all that the commands use')
    except OSError as error:
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except (ValueError, ArithmeticError) as error:  # a matrix that is not positive definite is an ArithmeticError
        return _fail(" ".join(str(error).split()) or type(error).__name__)
    return 0


def _fail(sentence: str, code: int = _BAD_INPUT) -> int:
    # A file name may hold bytes that are not text.
    print(f"rcgp: {sentence.encode('utf-8', 'backslashreplace').decode()}", file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"rcgp {rcgp.__version__}")
        raise typer.Exit


@app.command()
@with_options
def fit(
    data: Data,
    options: Options,
    model: Annotated[Path | None, typer.Option(help="File to save the fitted model in.", show_default=False)] = None,
    top: Annotated[int, typer.Option(min=0, help="How many suspicious rows to show.")] = 10,
) -> None:
    """Fit a robust model to a table; show its noise law, how well it fits and which rows are suspicious.

    Example: [bold]rcgp fit houses.csv --target price --model houses.rcgp[/bold]
    """
    from rcgp.cli.results import print_doubts, print_summary
    from rcgp.estimator.saved import save

    if model is not None:
        _check_output(model, "model", data)
    fitted = _fit(data, options)
    if model is not None:  # before printing, which a closed pipe ends
        save(fitted.model, model, table=fitted.encoding.to_json())
    print_summary(fitted, _results(), top)
    print_doubts(fitted.doubts, _messages())
    if model is not None:
        _say(f"\nmodel saved in {model}")


@app.command()
@with_options
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File that 'rcgp fit' saved.", show_default=False)],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file with the same columns.")],
    options: ReadingOptions,
    output: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file to write.", show_default="standard output")
    ] = None,
) -> None:
    """Predict new rows: mean, standard deviation and 95 % interval of a new observation in each.

    The columns are row (its number in DATA), id if the rows have names, mean, std, lower and upper. The interval
    follows the noise law of the model and holds a new observation that is not an outlier. For a model fitted with
    --log, results are in the units of the target, and a further column is the median. For several targets the names of
    these columns begin with that of the target, as in price_mean. By default, tables are read as the training table
    was.

    Example: [bold]rcgp predict houses.rcgp new.csv --output predictions.csv[/bold]
    """
    from rcgp.cli.fitting import predictions
    from rcgp.cli.results import print_notices, write_table

    if output is not None:
        _check_output(output, "table", data, model)
    table, notices = predictions(model, data, options)
    print_notices(notices, _messages())
    write_table(table, output)
    if output is not None:
        _say(f"{len(table)} predictions written to {output}")


@app.command()
@with_options
def outliers(
    data: Data,
    options: Options,
    as_json: AsJson = False,
    top: Annotated[int | None, typer.Option(min=0, help="How many rows to show.", show_default="all")] = None,
    only_flagged: Annotated[bool, typer.Option("--only-flagged", help="Show only flagged rows.")] = False,
) -> None:
    """Show rows with their weight, residual and outlier probability, the most suspicious first.

    Each residual is from the prediction by all other rows, also in standard deviations. Flagged rows are more likely
    outliers than not, by the noise law learned from the table. The exit code is 0 with or without outliers.

    Example: [bold]rcgp outliers houses.csv --target price --json | jq '.rows[] | select(.outlier)'[/bold]
    """
    from rcgp.cli.results import outliers_json, print_doubts, print_rows, print_verdicts, suspicious

    fitted = _fit(data, options)
    rows = suspicious(fitted)
    rows = (rows[rows["outlier"]] if only_flagged else rows).head(len(rows) if top is None else top)
    if as_json:
        typer.echo(json.dumps(outliers_json(fitted, rows), ensure_ascii=False))
    else:
        print_rows(rows, _results())
        print_verdicts(fitted, _results())
    print_doubts(fitted.doubts, _messages())


@app.command()
@with_options
def report(
    data: Data,
    options: Options,
    output: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
) -> None:
    """Write one HTML page about a table: the fit, the noise law, residuals, weights, suspicious rows.

    The page is one file that works offline, and compares the robust fit with an ordinary GP.

    Example: [bold]rcgp report houses.csv --target price --output report.html[/bold]
    """
    from rcgp.cli import fitting
    from rcgp.cli.results import print_doubts
    from rcgp.report import write_report

    _check_output(output, "page", data)
    fitted = _fit(data, options)
    plain = fitting.fit_plain(fitted, options, _messages())
    with _messages().status("Drawing the page"):
        write_report(
            output,
            fitted.model,
            plain,
            fitted.X,
            fitted.fitted_y,
            target=fitted.titles if len(options.target) > 1 else fitted.titles[0],
            rows=fitted.labels,
            notices=fitted.notices,
            columns=fitted.encoding.columns,
        )
    print_doubts(fitted.doubts, _messages())
    _say(f"report written to {output} ({output.stat().st_size / 1e6:.1f} MB): open it in a browser")


@app.command()
@with_options
def clean(
    data: Data,
    options: Options,
    output: Annotated[Path, typer.Option(help="CSV or Parquet file to write.", show_default=False)],
    drop: Annotated[bool, typer.Option("--drop", help="Leave out flagged rows and those that lack a value.")] = False,
) -> None:
    """Write the table with an outlier probability, an expected value and a flag for each row, or without flagged rows.

    All columns are kept, in order. New ones are outlier_probability, expected (predicted from all other rows) and
    outlier, empty in rows that lack a value. For several targets their names begin with that of the target, empty cells
    have an expected value too, and --drop empties flagged cells.

    Example: [bold]rcgp clean houses.csv --target price --output clean.csv --drop[/bold]
    """
    from rcgp.cli.results import cleaned, new_columns, print_doubts, write_table

    _check_output(output, "table", data)
    fitted = _fit(data, options, new_columns(options.target))
    table, summary = cleaned(fitted, drop)
    write_table(table, output, fitted.table.attrs.get("separator", ","), options.decimal or ".")
    print_doubts(fitted.doubts, _messages())
    _say(summary.format(output=output))


@app.command()
@with_options
def series(
    options: SeriesOptions,
    data: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="CSV or Parquet file with a header.", show_default=False)
    ] = None,
) -> None:
    """Fit a series: values over time, some of them wrong or missing; show what is suspicious, and forecast.

    Times are dates, all with a time zone or all without, or numbers; they may be irregular. Empty cells of the target
    are missing values, which are predicted. Costs grow with the number of rows, not with its cube.

    Example: [bold]rcgp series load.csv --time when --target load --period 1D --period 7D --forecast 48h --output
    load.html[/bold]
    """
    from rcgp.cli.series import run_series

    inputs = [] if data is None else [data]
    if options.output is not None:
        _check_output(options.output, "page", *inputs)
    if options.predictions is not None:
        _check_output(options.predictions, "table", *inputs)
    if options.model is not None and data is not None:
        _check_output(options.model, "model", data)
    run_series(data, options, _results(), _messages())


@app.command()
def optimise(
    command: Annotated[
        str,
        typer.Option(
            help="Program with its arguments, run for each evaluation. It reads the parameters, a JSON object, from "
            "standard input and writes a number as the last line of standard output.",
            show_default=False,
        ),
    ],
    parameter: Annotated[
        list[str], typer.Option(metavar="NAME:LOW:HIGH", help="A parameter; one option for each.", show_default=False)
    ],
    budget: Annotated[int, typer.Option(min=1, help="Number of evaluations, including those in the trace.")] = 50,
    maximise: Annotated[bool, typer.Option("--maximise", help="Look for the maximum, not the minimum.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="File of evaluations, which the same command continues.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed.", show_default="the trace's, or any")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for each evaluation.", show_default="none")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the parameters for which a program returns the smallest number, although some numbers are wrong.

    Bayesian optimisation with the robust model. An evaluation that fails, takes too long or returns no number is
    recorded and skipped; it counts towards the budget. Outliers among the evaluations are listed at the end. The exit
    code is 1 if no evaluation has a value.

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


def _add_commands() -> None:
    """Add the commands of other packages, which are entry points: ``reproduce`` of rcgp-paper."""
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group="rcgp.commands")}
    for name, entry in sorted(found.items()):
        app.command(name)(_loaded(entry))
    if "reproduce" not in found:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        missing = ModuleNotFoundError("rcgp-paper is not installed", name="rcgp_paper")
        app.command("reproduce", hidden=True, context_settings=anything)(_unavailable(missing))


def _loaded(entry: importlib.metadata.EntryPoint) -> Callable[..., Any]:
    """The command; if a library that it needs is missing, one that raises the error when it is called."""
    try:
        command: Callable[..., Any] = entry.load()
    except ImportError as error:
        return _unavailable(error)
    return command


def _unavailable(missing: ImportError) -> Callable[[], None]:
    def command() -> None:
        raise missing

    return command


def _fit(data: Path, options: Options, new_columns: tuple[str, ...] = ()) -> FittedTable:
    """Fit a table and print the notices."""
    from rcgp.cli.fitting import fit_table
    from rcgp.cli.results import print_notices

    fitted = fit_table(data, options, _messages(), new_columns)
    print_notices(fitted.notices, _messages())
    return fitted


def _check_output(path: Path, kind: Literal["model", "page", "table"], *inputs: Path) -> None:
    """Refuse, before any work is done, an output that cannot be written, is an input or has another kind's suffix."""
    from rcgp.saving import check_writable

    check_writable(path)
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            raise ValueError(f"{str(path)!r} is an input: writing there would overwrite it; choose another name")
    suffix, tables, pages = path.suffix.lower(), (".csv", ".tsv", ".txt", ".parquet", ".pq"), (".html", ".htm")
    others = (".xlsx", ".xls", ".ods", ".pdf", ".gz", ".bz2", ".xz", ".zip", ".zst")
    if kind == "model" and suffix in (*tables, *pages, *others):
        raise ValueError(f"{str(path)!r}: a model is not a {suffix} file; end its name in .rcgp")
    if kind == "page" and suffix not in pages:
        raise ValueError(f"{str(path)!r}: pages are written as .html")
    if kind == "table" and suffix in (".rcgp", *pages, *others):
        raise ValueError(f"{str(path)!r}: tables are written as .csv or .parquet")


class _Results(Console):
    def on_broken_pipe(self) -> None:  # rich would end with exit code 1
        raise BrokenPipeError


def _results() -> Console:
    return _Results(highlight=False)


def _messages() -> Console:
    return Console(stderr=True, highlight=False)


def _say(message: str) -> None:
    _messages().print(message, markup=False, soft_wrap=True)


_add_commands()
