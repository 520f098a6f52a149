"""What the commands show: a summary of a fit, and tables of rows. Numbers have four digits, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rcgp.cli.fitting import Fitted, Regressor
from rcgp.estimator import SparseRCGPRegressor

__all__ = [
    "NORMAL_95",
    "number",
    "print_notices",
    "print_rows",
    "print_summary",
    "printable",
    "score_unit",
    "suspicion",
]

#: Of a normal distribution, 95 % lie within this many standard deviations.
NORMAL_95 = 1.959963984540054


def suspicion(model: Regressor, y: pd.Series[float]) -> pd.DataFrame:
    """Every row with what the others predict there, the most suspicious first.

    Columns: row, observed, expected, residual, score (the residual in standard deviations, on which the flag goes; of
    which kind, :func:`score_unit` says), weight, outlier. Sorted by the size of the score.
    """
    observed = y.to_numpy()
    rows = pd.DataFrame(
        {
            "row": y.index.to_numpy(),
            "observed": observed,
            "expected": model.loo_mean_,
            "residual": observed - model.loo_mean_,
            "score": model.outlier_scores_,
            "weight": model.weights_,
            "outlier": model.outliers_,
        }
    )
    order = np.argsort(-rows["score"].abs().to_numpy(), kind="stable")
    return rows.iloc[order].reset_index(drop=True)


def score_unit(model: Regressor) -> str:
    """What scores are measured in: the model's standard deviations where they are calibrated, else robust ones."""
    return "sd" if model.centre == "adaptive" else "robust sd"


def print_summary(fitted: Fitted, console: Console, shown: int) -> None:
    """What was fitted, how well the rows predict each other, and which do not fit in."""
    model, y = fitted.model, fitted.y
    rows = suspicion(model, y)
    error = rows["residual"].abs()
    covered = np.abs(y.to_numpy() - model.loo_mean_) <= NORMAL_95 * model.loo_std_
    of_all, of_good = float(covered.mean()), float(covered[~model.outliers_].mean())
    flagged = int(rows["outlier"].sum())
    report = model.fit_report_
    sparse, errors = [], []
    if isinstance(model, SparseRCGPRegressor):
        sparse = [("inducing points", f"{len(model.inducing_points_)}")]
        typical = number(model.model_.trusted_spread)
        errors = [("errors of trusted rows", f"{typical} of what is expected; less than 1: intervals are wide")]
    facts = (
        ("rows used", f"{len(y)}"),
        *sparse,
        ("target", printable(y.name)),
        ("noise", f"standard deviation {number(model.noise_variance_**0.5)}"),
        ("leave-one-out error", f"absolute: median {number(error.median())}, mean {number(error.mean())}"),
        (
            "leave-one-out coverage",
            f"{of_good:.1%} of the rows that are not flagged lie in their 95 % interval, {of_all:.1%} of all",
        ),
        *errors,
        ("suspicious rows", f"{flagged} flagged"),
        ("optimiser", f"{'converged' if report.converged else 'did NOT converge'} in {report.seconds:.1f} s"),
    )
    _print_columns([list(fact) for fact in facts], console, right=())
    _print_lengthscales(fitted, console)
    if shown and len(rows):
        console.print("\nMost suspicious rows, predicted from all others:")
        print_rows(rows.head(shown), console, score_unit(model))


def print_rows(rows: pd.DataFrame, console: Console, unit: str) -> None:
    """Rows as :func:`suspicion` gives them, with scores in a unit. A line each, whatever the width of the terminal."""
    lines = [["row", "observed", "expected", "residual", f"in {unit}", "weight", "flag"]]
    for row in rows.itertuples(index=False):
        values: Any = row
        numbers = (values.observed, values.expected, values.residual, values.score, values.weight)
        lines.append([str(values.row), *map(number, numbers), "outlier" if values.outlier else ""])
    _print_columns(lines, console, right=range(6), head=True)


def print_notices(notices: Iterable[str], console: Console) -> None:
    """One line each, on the console for messages."""
    for notice in notices:
        console.print(Text(f"note: {printable(notice)}", style="yellow"), soft_wrap=True)


def _print_lengthscales(fitted: Fitted, console: Console) -> None:
    """Lengthscales beside the range of each feature: only their ratio says how much a feature matters.

    Of a feature that is constant a lengthscale says nothing: it comes last, without one.
    """
    X, lengthscales = fitted.X, fitted.model.lengthscales_
    low, high = (X.quantile(q).to_numpy() for q in (0.05, 0.95))
    dates = {column.name for column in fitted.encoding.columns if column.kind == "date"}
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
    _print_columns(lines, console, right=(1, 2), head=True)


def _print_columns(lines: list[list[str]], console: Console, right: Iterable[int], head: bool = False) -> None:
    """Lines with their columns below each other, never cut: what does not fit is wrapped by the terminal."""
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    aligned_right = set(right)
    for i, line in enumerate(lines):
        padded = [
            " " * (width - cell_len(cell)) + cell if j in aligned_right else cell + " " * (width - cell_len(cell))
            for j, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text = Text("  ".join(padded).rstrip(), style="bold" if head and i == 0 else "")
        text.highlight_words(["outlier"], style="bold red")
        console.print(text, soft_wrap=True)


def printable(text: object) -> str:
    """A text from a file with its control characters spelt out, so that no terminal obeys them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"
