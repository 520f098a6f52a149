"""What the commands show: a summary of a fit, and tables of rows. Numbers have four digits, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rcgp.estimator import RCGPRegressor

__all__ = ["NORMAL_95", "number", "print_notices", "print_rows", "print_summary", "suspicion"]

#: Of a normal distribution, 95 % lie within this many standard deviations.
NORMAL_95 = 1.959963984540054


def suspicion(model: RCGPRegressor, y: pd.Series[float]) -> pd.DataFrame:
    """Every row with what the others predict there, the most suspicious first.

    Columns: row, observed, expected, residual, standard_deviations (the residual in those of its own leave-one-out
    prediction), weight, outlier. Sorted by the size of the residual in standard deviations.
    """
    observed = y.to_numpy()
    residual = observed - model.loo_mean_
    rows = pd.DataFrame(
        {
            "row": y.index.to_numpy(),
            "observed": observed,
            "expected": model.loo_mean_,
            "residual": residual,
            "standard_deviations": residual / model.loo_std_,
            "weight": model.weights_,
            "outlier": model.outliers_,
        }
    )
    order = np.argsort(-rows["standard_deviations"].abs().to_numpy(), kind="stable")
    return rows.iloc[order].reset_index(drop=True)


def print_summary(model: RCGPRegressor, X: pd.DataFrame, y: pd.Series[float], console: Console, shown: int) -> None:
    """What was fitted, how well the rows predict each other, and which do not fit in."""
    rows = suspicion(model, y)
    error = rows["residual"].abs()
    covered = float((rows["standard_deviations"].abs() < NORMAL_95).mean())
    flagged = int(rows["outlier"].sum())
    report = model.fit_report_
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("rows used", f"{len(y)}"),
        ("target", escape(str(y.name))),
        ("noise", f"standard deviation {number(model.noise_variance_**0.5)}"),
        ("leave-one-out error", f"median {number(error.median())}, mean {number(error.mean())}"),
        ("leave-one-out coverage", f"{covered:.1%} of the rows lie in their 95 % interval"),
        ("suspicious rows", f"{flagged} flagged"),
        ("optimiser", f"{'converged' if report.converged else 'did NOT converge'} in {report.seconds:.1f} s"),
    ):
        facts.add_row(name, value)
    console.print(facts)
    _print_lengthscales(model, X, console)
    if shown and len(rows):
        console.print("\nMost suspicious rows, predicted from all others:")
        print_rows(rows.head(shown), console)


def print_rows(rows: pd.DataFrame, console: Console) -> None:
    """Rows as :func:`suspicion` gives them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("row", "observed", "expected", "residual", "in sd", "weight", "flag"):
        table.add_column(head, justify="left" if head == "flag" else "right", no_wrap=True)
    for row in rows.itertuples(index=False):
        values: Any = row
        numbers = (values.observed, values.expected, values.residual, values.standard_deviations, values.weight)
        flag = Text("outlier", style="bold red") if values.outlier else Text("")
        table.add_row(str(values.row), *map(number, numbers), flag)
    console.print(table)


def print_notices(notices: Iterable[str], console: Console) -> None:
    """One line each, on the console for messages."""
    for notice in notices:
        console.print(Text(f"note: {notice}", style="yellow"), soft_wrap=True)


def _print_lengthscales(model: RCGPRegressor, X: pd.DataFrame, console: Console) -> None:
    """Lengthscales beside the range of each feature: only their ratio says how much a feature matters."""
    low, high = (X.quantile(q).to_numpy() for q in (0.05, 0.95))
    lengthscales: NDArray[np.float64] = model.lengthscales_
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("feature", overflow="fold")
    table.add_column("lengthscale", justify="right", no_wrap=True)
    table.add_column("middle 90 % of its values", justify="right")
    order = np.argsort(lengthscales / np.where(high > low, high - low, 1.0), kind="stable")
    for j in order:
        span = f"{number(low[j])} to {number(high[j])}"
        table.add_row(Text(str(X.columns[j])), number(lengthscales[j]), span)
    console.print("\nHow far one moves in a feature before the function changes:")
    console.print(table)


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"
