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

from rcgp.cli.fitting import Fitted, FittedTable
from rcgp.estimator import FLAG_RULE, SparseRCGPRegressor
from rcgp.estimator.base import BaseRegressor
from rcgp.report.summary import Rows, rows_of
from rcgp.report.text import counted
from rcgp.saving import write_atomically
from rcgp.table import Encoding
from rcgp.table.encoding import printable
from rcgp.weights.noise_law import SCALES

__all__ = [
    "cleaned",
    "error_fact",
    "new_columns",
    "noise_fact",
    "number",
    "optimiser_fact",
    "outliers_json",
    "print_columns",
    "print_doubts",
    "print_notices",
    "print_rows",
    "print_summary",
    "print_verdicts",
    "suspicion",
    "suspicious",
    "verdict_facts",
    "verdict_json",
    "write_table",
]

_NEW_COLUMNS = ("outlier_probability", "expected", "outlier")
_CELL_RULE = FLAG_RULE.replace("rows", "cells")
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
    return _most_suspicious_first(rows)


def suspicious(fitted: FittedTable) -> pd.DataFrame:
    """Every observed cell as in :func:`suspicion`; of several targets, with a column for theirs."""
    parts = []
    for one in fitted.targets:
        rows = suspicion(one.model, one.y, one.expected, one.names)
        if len(fitted.targets) > 1:
            rows.insert(1 if one.names is None else 2, "target", str(one.y.name))
        parts.append(rows)
    return _most_suspicious_first(pd.concat(parts, ignore_index=True))


def _most_suspicious_first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["outlier_probability", "score"], key=abs, ascending=False, ignore_index=True)


def outliers_json(fitted: FittedTable, rows: pd.DataFrame) -> dict[str, Any]:
    """Rows of :func:`suspicious`, the verdict on each target and, of several, their correlation, as JSON."""
    verdicts = [{"target": one.y.name, **verdict_json(one.model, _rows(one))} for one in fitted.targets]
    listed = rows.to_dict(orient="records")
    if len(verdicts) == 1:
        return {**verdicts[0], "rows": listed, "flag_rule": FLAG_RULE, "notices": fitted.notices}
    correlation = fitted.correlation
    return {
        "targets": verdicts,
        "correlation": None if correlation is None else correlation.tolist(),
        "cells": listed,
        "flagged": int(fitted.model.outliers_.sum()),
        "flag_rule": _CELL_RULE,
        "notices": fitted.notices,
    }


def verdict_json(model: Any, rows: Rows) -> dict[str, Any]:
    """The facts of :func:`verdict_facts`, and the doubts, as JSON."""
    law, (of_good, of_all) = model.noise_law_, _coverage_of(rows)
    return {
        "noise_law": {"scales": list(SCALES), "shares": list(law.shares), "outlier_share": law.outlier_share},
        "flagged": int(model.outliers_.sum()),
        "coverage": {"not_flagged": None if math.isnan(of_good) else of_good, "all": of_all},
        "doubts": list(model.doubts_),
    }


def print_summary(fitted: FittedTable, console: Console, shown: int) -> None:
    """The fit, leave-one-out errors, noise laws, the correlation of several targets, and the most suspicious rows."""
    model, several, together = fitted.model, len(fitted.targets) > 1, fitted.correlation is not None
    facts = [("rows used", f"{len(fitted.Y)}")]
    if isinstance(model, SparseRCGPRegressor):
        facts.append(("inducing points", f"{len(model.inducing_points_)}"))
    if several:
        kind = "correlated: one model of all cells" if together else "independent: a model for each"
        facts += [("cells", f"{int(fitted.Y.count().sum())} of {fitted.Y.size} observed"), ("targets", kind)]
        facts += [optimiser_fact(model)] if together else []
        print_columns([*facts, _cell_rule_fact()], console)
        facts = []
    for one in fitted.targets:
        if several:
            console.print()
        own = () if together else (optimiser_fact(one.model),)
        print_columns([*facts, *_summary_facts(one, several), *own], console)
        if not together:
            _print_lengthscales(one.X, one.model, fitted.encoding, console)
    if together:
        _print_lengthscales(fitted.X, model, fitted.encoding, console)
        _print_correlation(fitted, console)
    if shown:
        console.print(f"\nMost suspicious {'cells' if several else 'rows'}, predicted from all others:")
        print_rows(suspicious(fitted).head(shown), console)


def _summary_facts(fitted: Fitted, several: bool) -> list[tuple[str, str]]:
    """A target, its noise and leave-one-out error, and its noise law; the rule of flags unless there are several."""
    noise = fitted.model.noise_std(fitted.X.iloc[:: -(-len(fitted.X) // _NOISE_ROWS)])
    return [
        ("target", printable(fitted.y.name)),
        noise_fact(noise, "from place to place", " of the logarithm" if fitted.encoding.log else ""),
        error_fact(fitted.y.to_numpy() - fitted.expected),
        *verdict_facts(fitted.model, _rows(fitted), several),
    ]


def noise_fact(noise: NDArray[np.float64], where: str, of: str = "") -> tuple[str, str]:
    """Standard deviation of the noise; if it varies, its range."""
    low, middle, high = np.quantile(noise, [0.0, 0.5, 1.0])
    if high <= low * (1.0 + 1e-6):
        return "noise", f"standard deviation {number(middle)}{of}"
    return "noise", f"standard deviation {number(low)} to {number(high)} {where}, median {number(middle)}{of}"


def error_fact(residual: NDArray[np.float64]) -> tuple[str, str]:
    """Median and mean leave-one-out error."""
    error = np.abs(residual)
    return "leave-one-out error", f"absolute: median {number(float(np.median(error)))}, mean {number(error.mean())}"


def optimiser_fact(model: Any) -> tuple[str, str]:
    """How the fit ended."""
    report = model.fit_report_
    return "optimiser", f"{'converged' if report.converged else 'did NOT converge'} in {report.seconds:.1f} s"


def print_verdicts(fitted: FittedTable, console: Console) -> None:
    """The noise law, the coverage of the intervals and the number of flagged rows of each target."""
    several = len(fitted.targets) > 1
    for one in fitted.targets:
        console.print(f"\n{printable(one.y.name)}" if several else "", markup=False)
        print_columns(verdict_facts(one.model, _rows(one), several), console)
    if several:
        console.print()
        print_columns([_cell_rule_fact()], console)


def _cell_rule_fact() -> tuple[str, str]:
    return "flagged", _CELL_RULE.removeprefix("flagged: ")


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


def new_columns(targets: Sequence[str]) -> tuple[str, ...]:
    """Columns that ``rcgp clean`` adds to a table; of several targets, after the name of each."""
    several = len(targets) > 1
    return tuple(f"{target}_{name}" if several else name for target in targets for name in _NEW_COLUMNS)


def cleaned(fitted: FittedTable, drop: bool) -> tuple[pd.DataFrame, str]:
    """The table with :func:`new_columns`, or without flagged and incomplete rows, and a sentence about it.

    Of several targets flagged cells are emptied, rows without any target are left out, and empty cells have an expected
    value too. The sentence has ``{output}`` for the name of the file.
    """
    table, Y, model, several = fitted.table, fitted.Y, fitted.model, len(fitted.targets) > 1
    flags = pd.DataFrame(model.outliers_.reshape(Y.shape), Y.index, Y.columns)
    count, left_out, rule = int(flags.to_numpy().sum()), len(table) - len(Y), _CELL_RULE if several else FLAG_RULE
    if drop:
        kept = (Y.notna() & ~flags).any(axis=1)
        rest = table.loc[kept.index[kept]].copy()
        for target in Y.columns if several else ():
            rest[target] = rest[target].mask(flags.loc[kept, target])
        incomplete = f" and {left_out} that lack a value" if left_out else ""
        what = f"{counted(count, 'flagged cell')} emptied" if several else f"without {count} flagged{incomplete}"
        return rest, f"{len(rest)} of {len(table)} rows, {what}, written to {{output}} ({rule})"
    columns: list[Any] = []
    for target, expected, probability in zip(
        Y.columns, fitted.expected.T, model.outlier_probability_.reshape(Y.shape).T, strict=True
    ):
        columns += [probability, expected, flags[target].astype("boolean").where(Y[target].notna())]
    new = pd.DataFrame(dict(zip(new_columns(list(Y.columns)), columns, strict=True)), Y.index)
    what = f"{counted(count, 'cell')} flagged" if several else f"{count} of them flagged"
    incomplete = f" and {left_out} {'rows ' if several else ''}not judged, as they lack a value" if left_out else ""
    return table.join(new), f"{len(table)} rows, {what}{incomplete}, written to {{output}} ({rule})"


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
    of_good, of_all = _coverage_of(rows)
    afterwards = "" if model.weight == "learned" else " It was learned after the fit and only flags rows."
    coverage = f"{of_good:.1%} of the rows that are not flagged lie in their 95 % interval, {of_all:.1%} of all"
    return (
        ("noise law", str(model.noise_law_).splitlines()[0] + afterwards),
        ("leave-one-out coverage", "every row is flagged" if math.isnan(of_good) else coverage),
        ("suspicious rows", f"{int(model.outliers_.sum())} {'flagged' if several else FLAG_RULE}"),
    )


def _coverage_of(rows: Rows) -> tuple[float, float]:
    """Share of the rows inside their 95 % leave-one-out interval by the law: of those not flagged, and of all."""
    good = rows.inside[~rows.flagged]
    return float(good.mean()) if len(good) else math.nan, float(rows.inside.mean())


def _rows(fitted: Fitted) -> Rows:
    return rows_of(fitted.model, fitted.X, np.asarray(fitted.fitted_y, dtype=np.float64), tuple(fitted.y.index))


def _print_correlation(fitted: FittedTable, console: Console) -> None:
    names = [printable(name) for name in fitted.Y.columns]
    rows = zip(names, fitted.correlation, strict=True)
    lines = [["", *names], *([name, *(f"{value:.2f}" for value in row)] for name, row in rows)]
    console.print("\nCorrelation of the targets' functions:")
    print_columns(lines, console, right=range(1, len(lines[0])), head=True)


def _print_lengthscales(X: pd.DataFrame, model: BaseRegressor, encoding: Encoding, console: Console) -> None:
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
    console.print("\nLengthscale of each feature, the distance over which the function changes:")
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
