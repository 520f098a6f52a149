"""Output of the commands for several targets: a summary of each, their correlation, and suspicious cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from rcgp.cli.fitting import FittedTable
from rcgp.cli.results import (
    NEW_COLUMNS,
    optimiser_fact,
    output_json,
    print_columns,
    print_lengthscales,
    print_rows,
    print_verdict,
    summary_facts,
    suspicion,
    suspicion_order,
)
from rcgp.estimator import FLAG_RULE
from rcgp.table.encoding import printable

__all__ = ["cells_json", "cleaned_cells", "new_columns", "print_outputs", "print_verdicts", "suspicious_cells"]

_CELL_RULE = FLAG_RULE.replace("rows", "cells")
_RULE_FACT = ("flagged", _CELL_RULE.removeprefix("flagged: "))


def new_columns(targets: list[str]) -> tuple[str, ...]:
    """Columns that ``rcgp clean`` adds to a table: :data:`NEW_COLUMNS`, of several targets after the name of each."""
    several = len(targets) > 1
    return tuple(f"{target}_{name}" if several else name for target in targets for name in NEW_COLUMNS)


def suspicious_cells(fitted: FittedTable) -> pd.DataFrame:
    """Every observed cell as in :func:`suspicion`, with a column for its target, the most suspicious first."""
    parts = []
    for one in fitted.targets:
        rows = suspicion(one.model, one.y, one.expected, one.names)
        rows.insert(1 if one.names is None else 2, "target", str(one.y.name))
        parts.append(rows)
    return suspicion_order(pd.concat(parts, ignore_index=True))


def cells_json(fitted: FittedTable, cells: pd.DataFrame) -> dict[str, Any]:
    """The cells of :func:`suspicious_cells`, the verdict on each target, and their correlation, as JSON."""
    correlation = _correlation(fitted)
    return {
        "targets": [output_json(one) for one in fitted.targets],
        "correlation": None if correlation is None else correlation.tolist(),
        "cells": cells.to_dict(orient="records"),
        "flagged": int(fitted.model.outliers_.sum()),
        "flag_rule": _CELL_RULE,
        "notices": fitted.notices,
    }


def print_outputs(fitted: FittedTable, console: Console, shown: int) -> None:
    """What :func:`rcgp.cli.results.print_summary` prints, for each of several targets, and their correlation."""
    cells, together = int(fitted.Y.count().sum()), _correlation(fitted) is not None
    kind = "correlated: one model of all cells" if together else "independent: a model for each"
    facts = [("rows used", f"{len(fitted.Y)}"), ("cells", f"{cells} of {fitted.Y.size} observed"), ("targets", kind)]
    facts += [optimiser_fact(fitted.model)] if together else []
    facts += [_RULE_FACT]
    print_columns(facts, console)
    for one in fitted.targets:
        console.print()
        own = summary_facts(one, several=True) + (() if together else (optimiser_fact(one.model),))
        print_columns(own, console)
        if not together:
            print_lengthscales(one.X, one.model, fitted.encoding, console)
    if together:
        print_lengthscales(fitted.X, fitted.model, fitted.encoding, console)
        _print_correlation(fitted, console)
    if shown:
        console.print("\nMost suspicious cells, predicted from all others:")
        print_rows(suspicious_cells(fitted).head(shown), console)


def print_verdicts(fitted: FittedTable, console: Console) -> None:
    """What :func:`rcgp.cli.results.print_verdict` prints, for each of several targets."""
    for one in fitted.targets:
        console.print(f"\n{printable(one.y.name)}", markup=False, end="")
        print_verdict(one, console, several=True)
    console.print()
    print_columns([_RULE_FACT], console)


def cleaned_cells(fitted: FittedTable, drop: bool) -> tuple[pd.DataFrame, str]:
    """The table with :func:`new_columns`, or with flagged cells emptied and without rows that then have no target.

    Also a sentence about it, with ``{output}`` for the name of the file. Expected values are also given for empty
    cells.
    """
    table, model, Y = fitted.table, fitted.model, fitted.Y
    flags = pd.DataFrame(model.outliers_, index=Y.index, columns=Y.columns)
    count, left_out = int(flags.to_numpy().sum()), len(table) - len(Y)
    if drop:
        kept = (Y.notna() & ~flags).any(axis=1)
        emptied = table.loc[Y.index].copy()
        for target in Y.columns:
            emptied[target] = emptied[target].mask(flags[target])
        summary = f"{int(kept.sum())} of {len(table)} rows, {count} flagged cells emptied, written to {{output}}"
        return emptied.loc[kept], f"{summary} ({_CELL_RULE})"
    with np.errstate(over="ignore"):
        expected = np.exp(model.loo_mean_) if fitted.encoding.log else model.loo_mean_
    columns: list[Any] = []
    for t, target in enumerate(Y.columns):
        judged = flags[target].astype("boolean").where(Y[target].notna())
        columns += [model.outlier_probability_[:, t], expected[:, t], judged]
    new = pd.DataFrame(dict(zip(new_columns(list(Y.columns)), columns, strict=True)), Y.index)
    incomplete = f" and {left_out} rows not judged, as they lack a value" if left_out else ""
    summary = f"{len(table)} rows, {count} cells flagged{incomplete}, written to {{output}}"
    return table.join(new), f"{summary} ({_CELL_RULE})"


def _correlation(fitted: FittedTable) -> Any:
    """The correlation of the targets' functions, ``T x T``; ``None`` for independent models."""
    return getattr(fitted.model, "output_correlation_", None)


def _print_correlation(fitted: FittedTable, console: Console) -> None:
    names = [printable(name) for name in fitted.Y.columns]
    rows = zip(names, _correlation(fitted), strict=True)
    lines = [["", *names], *([name, *(f"{value:.2f}" for value in row)] for name, row in rows)]
    console.print("\nCorrelation of the targets' functions:")
    print_columns(lines, console, right=range(1, len(lines[0])), head=True)
