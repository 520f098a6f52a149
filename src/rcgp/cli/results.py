"""Output of the commands: a summary of a fit, rows, tables. Printed numbers have four digits."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rcgp.cli.fitting import Fitted
from rcgp.estimator import FLAG_RULE, SparseRCGPRegressor
from rcgp.estimator.base import BaseRegressor
from rcgp.report.summary import Rows, rows_of
from rcgp.saving import write_atomically
from rcgp.table import Encoding
from rcgp.table.encoding import printable
from rcgp.weights.noise_law import SCALES

__all__ = [
    "NEW_COLUMNS",
    "cleaned",
    "coverage_of",
    "number",
    "optimiser_fact",
    "outliers_json",
    "output_json",
    "print_columns",
    "print_doubts",
    "print_lengthscales",
    "print_notices",
    "print_rows",
    "print_summary",
    "print_verdict",
    "summary_facts",
    "suspicion",
    "suspicion_order",
    "verdict_facts",
    "verdict_json",
    "write_table",
]

#: Columns that ``rcgp clean`` adds to a table.
NEW_COLUMNS = ("outlier_probability", "expected", "outlier")
# Largest number of rows at which the noise is evaluated for its range: a million take 15 seconds.
_NOISE_ROWS = 20_000


def suspicion(
    model: BaseRegressor,
    y: pd.Series[float],
    expected: NDArray[np.float64] | None = None,
    names: pd.Series[str] | None = None,
) -> pd.DataFrame:
    """Every row with its leave-one-out prediction, the most suspicious first.

    Columns: row, id if the rows have names, observed, expected, residual, score (the residual in standard deviations),
    weight, outlier_probability, outlier. Sorted by outlier_probability, then by the size of the score. With --log,
    expected is the median in the units of the table, and score is that of the logarithm.
    """
    observed, expected = y.to_numpy(), model.loo_mean_ if expected is None else expected
    rows = pd.DataFrame(
        {
            "row": y.index.to_numpy(),
            **({} if names is None else {"id": names.to_numpy(dtype=object)}),
            "observed": observed,
            "expected": expected,
            "residual": observed - expected,
            "score": model.outlier_scores_,
            "weight": model.weights_,
            "outlier_probability": model.outlier_probability_,
            "outlier": model.outliers_,
        }
    )
    return suspicion_order(rows)


def suspicion_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The same rows, the most suspicious first."""
    order = np.lexsort((-rows["score"].abs().to_numpy(), -rows["outlier_probability"].to_numpy()))
    return rows.iloc[order].reset_index(drop=True)


def outliers_json(fitted: Fitted, rows: pd.DataFrame) -> dict[str, Any]:
    """The rows of :func:`suspicion` and the noise law as JSON."""
    listed = rows.to_dict(orient="records")
    return {**output_json(fitted), "rows": listed, "flag_rule": FLAG_RULE, "notices": fitted.notices}


def output_json(fitted: Fitted) -> dict[str, Any]:
    """The noise law of a target, its coverage and its doubts as JSON."""
    return {"target": fitted.y.name, **verdict_json(fitted.model, _rows(fitted))}


def verdict_json(model: Any, rows: Rows) -> dict[str, Any]:
    """The facts of :func:`verdict_facts`, and the doubts, as JSON."""
    law, (of_good, of_all) = model.noise_law_, coverage_of(rows)
    return {
        "noise_law": {"scales": list(SCALES), "shares": list(law.shares), "outlier_share": law.outlier_share},
        "flagged": int(model.outliers_.sum()),
        "coverage": {"not_flagged": None if math.isnan(of_good) else of_good, "all": of_all},
        "doubts": list(model.doubts_),
    }


def print_summary(fitted: Fitted, console: Console, shown: int) -> None:
    """The fit, its leave-one-out error, its noise law and the most suspicious rows."""
    model = fitted.model
    rows = suspicion(model, fitted.y, fitted.expected, fitted.names)
    sparse = [("inducing points", f"{len(model.inducing_points_)}")] if isinstance(model, SparseRCGPRegressor) else []
    facts = (("rows used", f"{len(fitted.y)}"), *sparse, *summary_facts(fitted), optimiser_fact(model))
    print_columns(facts, console)
    print_lengthscales(fitted.X, model, fitted.encoding, console)
    if shown and len(rows):
        console.print("\nMost suspicious rows, predicted from all others:")
        print_rows(rows.head(shown), console)


def summary_facts(fitted: Fitted, several: bool = False) -> tuple[tuple[str, str], ...]:
    """A target, its noise and leave-one-out error, and its noise law; the rule of flags unless there are several."""
    error = np.abs(fitted.y.to_numpy() - fitted.expected)
    return (
        ("target", printable(fitted.y.name)),
        ("noise", _noise(fitted)),
        ("leave-one-out error", f"absolute: median {number(float(np.median(error)))}, mean {number(error.mean())}"),
        *verdict_facts(fitted.model, _rows(fitted), several),
    )


def optimiser_fact(model: Any) -> tuple[str, str]:
    """How the fit ended."""
    report = model.fit_report_
    return "optimiser", f"{'converged' if report.converged else 'did NOT converge'} in {report.seconds:.1f} s"


def print_verdict(fitted: Fitted, console: Console, several: bool = False) -> None:
    """The noise law, the coverage of the intervals and the number of flagged rows, below a blank line."""
    console.print()
    print_columns(verdict_facts(fitted.model, _rows(fitted), several), console)


def print_rows(rows: pd.DataFrame, console: Console) -> None:
    """The rows of :func:`suspicion`, one line each, whatever the width of the terminal."""
    named = [name for name in ("id", "time", "target") if name in rows]
    lines = [["row", *named, "observed", "expected", "residual", "in sd", "weight", "outlier probability", "flag"]]
    for row in rows.itertuples(index=False):
        values: Any = row
        numbers = (values.observed, values.expected, values.residual, values.score, values.weight)
        flag = "outlier" if values.outlier else ""
        name = [printable(getattr(values, column)) for column in named]
        lines.append([str(values.row), *name, *map(number, numbers), f"{values.outlier_probability:.3f}", flag])
    print_columns(lines, console, right=range(len(lines[0]) - 1), head=True)


def print_notices(notices: Iterable[str], console: Console) -> None:
    """Notices about the table and the fit, one line each."""
    for notice in notices:
        console.print(Text(f"note: {printable(notice)}", style="yellow"), soft_wrap=True)


def print_doubts(doubts: Iterable[str], console: Console) -> None:
    """Doubts about the noise law, one line each."""
    for doubt in doubts:
        console.print(Text(f"Doubt: {printable(doubt)}", style="bold yellow"), soft_wrap=True)


def cleaned(fitted: Fitted, drop: bool) -> tuple[pd.DataFrame, str]:
    """The table with :data:`NEW_COLUMNS`, or without flagged and incomplete rows.

    Also a sentence about it, with ``{output}`` for the name of the file.
    """
    model, table = fitted.model, fitted.table
    flags = pd.Series(model.outliers_, index=fitted.y.index)
    count, left_out = int(flags.sum()), len(table) - len(flags)
    if drop:
        kept = table.loc[flags.index[~flags]]
        incomplete = f" and {left_out} that lack a value" if left_out else ""
        summary = f"{len(kept)} of {len(table)} rows, without {count} flagged{incomplete}, written to {{output}}"
        return kept, f"{summary} ({FLAG_RULE})"
    values = (model.outlier_probability_, fitted.expected, flags.astype("boolean"))
    new = pd.DataFrame(dict(zip(NEW_COLUMNS, values, strict=True)), flags.index)
    incomplete = f" and {left_out} not judged, as they lack a value" if left_out else ""
    summary = f"{len(table)} rows, {count} of them flagged{incomplete}, written to {{output}}"
    return table.join(new), f"{summary} ({FLAG_RULE})"


def write_table(table: pd.DataFrame, path: Path | None, separator: str = ",", decimal: str = ".") -> None:
    """Write a table as CSV or, by its suffix, Parquet, completely or not at all. ``None`` is standard output."""
    if path is None:
        table.to_csv(sys.stdout, index=False)
        return
    if path.suffix.lower() in (".parquet", ".pq"):
        write_atomically(path, table.to_parquet(index=False))
    else:
        write_atomically(path, table.to_csv(index=False, sep=separator, decimal=decimal).encode())


def verdict_facts(model: Any, rows: Rows, several: bool = False) -> tuple[tuple[str, str], ...]:
    """The noise law as a sentence, the coverage of the intervals, and the number of flagged rows.

    With the rule of flags, unless there are several targets: the caller then prints it once.
    """
    of_good, of_all = coverage_of(rows)
    afterwards = "" if model.weight == "learned" else " It was learned after the fit and only flags rows."
    coverage = f"{of_good:.1%} of the rows that are not flagged lie in their 95 % interval, {of_all:.1%} of all"
    return (
        ("noise law", str(model.noise_law_).splitlines()[0] + afterwards),
        ("leave-one-out coverage", "every row is flagged" if math.isnan(of_good) else coverage),
        ("suspicious rows", f"{int(model.outliers_.sum())} {'flagged' if several else FLAG_RULE}"),
    )


def coverage_of(rows: Rows) -> tuple[float, float]:
    """Share of the rows inside their 95 % leave-one-out interval by the law: of those not flagged, and of all."""
    good = rows.inside[~rows.flagged]
    return float(good.mean()) if len(good) else math.nan, float(rows.inside.mean())


def _rows(fitted: Fitted) -> Rows:
    return rows_of(fitted.model, fitted.X, np.asarray(fitted.fitted_y, dtype=np.float64), tuple(fitted.y.index))


def _noise(fitted: Fitted) -> str:
    """Standard deviation of the noise; if it varies, its range over evenly spaced rows."""
    noise = fitted.model.noise_std(fitted.X.iloc[:: -(-len(fitted.X) // _NOISE_ROWS)])
    low, middle, high = np.quantile(noise, [0.0, 0.5, 1.0])
    of = " of the logarithm" if fitted.encoding.log else ""
    if high <= low * (1.0 + 1e-6):
        return f"standard deviation {number(middle)}{of}"
    return f"standard deviation {number(low)} to {number(high)} from place to place, median {number(middle)}{of}"


def print_lengthscales(X: pd.DataFrame, model: BaseRegressor, encoding: Encoding, console: Console) -> None:
    """Lengthscales beside the range of each feature: only their ratio says how much a feature matters.

    Constant features come last, without a lengthscale.
    """
    lengthscales = model.lengthscales_
    low, high = (X.quantile(q).to_numpy() for q in (0.05, 0.95))
    dates = {column.name for column in encoding.columns if column.kind == "date"}
    lines = [["feature", "lengthscale", "middle 90 % of its values"]]
    constant = (X.min() == X.max()).to_numpy()
    for j in np.lexsort((lengthscales / np.where(high > low, high - low, 1.0), constant)):  # by the latter first
        name = str(X.columns[j])
        if name in dates:
            scale = f"{number(lengthscales[j])} days"
            span = " to ".join(str(np.datetime64(int(day), "D")) for day in (low[j], high[j]))
        else:
            scale, span = number(lengthscales[j]), f"{number(low[j])} to {number(high[j])}"
        lines.append([printable(name), "–" if constant[j] else scale, span])
    console.print("\nHow far one moves in a feature before the function changes:")
    print_columns(lines, console, right=(1, 2), head=True)


def print_columns(
    lines: Iterable[Sequence[str]], console: Console, right: Iterable[int] = (), head: bool = False
) -> None:
    """Lines with aligned columns, never cut: the terminal wraps what does not fit."""
    lines, aligned_right = list(lines), set(right)
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for i, line in enumerate(lines):
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        padded = [gaps[j] + cell if j in aligned_right else cell + gaps[j] for j, cell in enumerate(line)]
        text = Text("  ".join(padded).rstrip(), style="bold" if head and i == 0 else "")
        if not (head and i == 0):
            text.highlight_words(["outlier"], style="bold red")
        console.print(text, soft_wrap=True)


def number(value: float) -> str:
    """A number with four significant digits, or all whole ones, so that it can be found in its table."""
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"
