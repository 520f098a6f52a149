"""Tables of the paper made from records: our numbers, the paper's beside them, and how far apart they are.

Here are the tables of accuracy; those of times are next door.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from rcgp_paper.experiments import Record
from rcgp_paper.experiments.methods import TITLES
from rcgp_paper.experiments.paper_values import CONTAMINATIONS, DATA, TABLE_1, TABLE_C_LOO, TABLE_SPARSE
from rcgp_paper.report.printed_table import Table
from rcgp_paper.report.record_notes import (
    CONTAMINATION_TITLES,
    by_protocol,
    convergence,
    in_order,
    over_runs,
    states_of_code,
    with_a_place,
)
from rcgp_paper.report.time_tables import time_tables

__all__ = ["Table", "accuracy_tables", "standard_errors_apart", "tables_of", "time_tables"]

#: Repetitions behind the paper's averages, and behind those of its table of sparse models.
_PAPER_REPETITIONS, _PAPER_SPARSE_REPETITIONS = 50, 10
#: The paper prints two decimals: its own rounding has this standard deviation.
_ROUNDING = 0.01 / math.sqrt(12.0)

_METRICS = MappingProxyType(
    {
        "mae": "mean absolute error",
        "rmse": "root mean square error",
        "nlpd": "negative log predictive density",
        "coverage": "coverage of the 95 % interval",
        "crps": "continuous ranked probability score",
    }
)

#: What tells the columns of the table of sparse models apart.
_SPARSE_REMARK = (
    "SVGP and RCSVGP by the bound, with the noise variance held at 0.01 as in the paper, and c at its rule; the other "
    "two fit the noise variance."
)


def standard_errors_apart(
    ours: Sequence[float], paper: tuple[float, float], repetitions: int = _PAPER_REPETITIONS
) -> float:
    """Our mean minus the paper's, in standard errors of that difference.

    The standard error counts our repetitions, the paper's with the standard deviation that it prints, and the rounding
    of what it prints.
    """
    values = np.asarray(ours, dtype=np.float64)
    own = values.var(ddof=1) / len(values) if len(values) > 1 else 0.0
    error = math.sqrt(float(own) + paper[1] ** 2 / repetitions + _ROUNDING**2)
    return (float(values.mean()) - paper[0]) / error


def tables_of(experiment: str, records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """All tables that the records of an experiment give, none for a figure; and notices about records that fit none."""
    if experiment == "table2":
        return time_tables(records)
    if experiment in ("table1", "table_c_loo"):
        return accuracy_tables(records)
    if experiment == "table_sparse":
        return accuracy_tables(records, _PAPER_SPARSE_REPETITIONS, _SPARSE_REMARK)
    return [], []


def accuracy_tables(
    records: Sequence[Record], repetitions: int = _PAPER_REPETITIONS, remark: str = ""
) -> tuple[list[Table], list[str]]:
    """A table for each protocol and score, the first with the paper's numbers beside ours; and notices.

    Args:
        records: of the runs.
        repetitions: how many the paper has.
        remark: a sentence for the note of each table.
    """
    records, notices = with_a_place(records, {"data": DATA, "contamination": CONTAMINATIONS, "method": tuple(TITLES)})
    tables = []
    for protocol, chosen in by_protocol(records):
        methods = in_order(TITLES, {record.config["method"] for record in chosen})
        below = f"{remark and ' '}{remark}{convergence(chosen, methods)}{states_of_code(chosen, methods)}"
        for metric, title in _METRICS.items():
            cells = _accuracy_cells(chosen, metric)
            counts = [len(cell) for cell in cells.values()]
            note = over_runs("Mean and standard deviation", counts)
            if metric == "mae":
                note += "; behind a slash the paper's mean"
                if max(counts, default=0) > 1:
                    note += (
                        ", and the difference in standard errors: of our mean, of the paper's over its "
                        f"{repetitions} repetitions, and of the rounding to two digits"
                    )
            heading = f"{title[0].upper()}{title[1:]}, protocol “{protocol}”"
            head = ["", *(TITLES[method] for method in methods)]
            rows = _accuracy_rows(cells, methods, metric, repetitions)
            best = _best_cells(cells, methods) if metric != "coverage" else []
            note += "; the best of each row in bold" if best else ""
            tables.append(Table(heading, head, rows, f"{note}.{below}", best))
    return tables, notices


Cells = dict[tuple[str, str, str], list[float]]


def _accuracy_cells(records: Sequence[Record], metric: str) -> Cells:
    """All values of a score, by contamination, data and method."""
    cells: Cells = {}
    for record in records:
        value = record.values.get(metric)
        if isinstance(value, int | float):
            key = (record.config["contamination"], record.config["data"], record.config["method"])
            cells.setdefault(key, []).append(float(value))
    return cells


def _accuracy_rows(cells: Cells, methods: Sequence[str], metric: str, repetitions: int) -> list[list[str]]:
    rows: list[list[str]] = []
    for contamination in CONTAMINATIONS:
        lines = []
        for data in DATA:
            found = [cells.get((contamination, data, method), []) for method in methods]
            if any(found):
                paper = [_paper_value(contamination, data, method) if metric == "mae" else None for method in methods]
                pairs = zip(found, paper, strict=True)
                lines.append([data, *(_cell(ours, theirs, repetitions) for ours, theirs in pairs)])
        if lines:
            rows += [[CONTAMINATION_TITLES[contamination]], *lines]
    return rows


def _best_cells(cells: Cells, methods: Sequence[str]) -> list[tuple[int, int]]:
    """Places of the lowest mean of each row, as printed: several where they are the same, none where one is alone."""
    places: list[tuple[int, int]] = []
    row = -1
    for contamination in CONTAMINATIONS:
        found = [data for data in DATA if any(cells.get((contamination, data, method)) for method in methods)]
        row += 1 if found else 0  # the heading
        for data in found:
            row += 1
            means = [_mean_as_printed(cells.get((contamination, data, method), [])) for method in methods]
            finite = [mean for mean in means if math.isfinite(mean)]
            if len(finite) > 1:
                places += [(row, column) for column, mean in enumerate(means, start=1) if mean == min(finite)]
    return places


def _mean_as_printed(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    with np.errstate(over="ignore"):
        return round(float(np.mean(finite)), 3) if finite and len(finite) == len(values) else math.inf


def _cell(ours: Sequence[float], paper: tuple[float, float] | None, repetitions: int) -> str:
    """Mean and standard deviation of what is finite, and the paper's; of a single run there is no deviation."""
    if not ours:
        return "–"
    finite = [value for value in ours if math.isfinite(value)]
    several = len(finite) > 1
    with np.errstate(over="ignore", invalid="ignore"):
        text = f"{np.mean(finite):.3f}" if finite else ""
        text += f" ({np.std(finite, ddof=1):.3f})" if several else ""
        if len(finite) < len(ours):
            text = f"{text}, {len(ours) - len(finite)} not finite".removeprefix(", ")
        if paper is None:
            return text
        apart = f", {standard_errors_apart(finite, paper, repetitions):+.1f} se" if several else ""
    return f"{text} / {paper[0]:.2f}{apart}"


def _paper_value(contamination: str, data: str, method: str) -> tuple[float, float] | None:
    if method == "rcgp-c-loo":
        return TABLE_C_LOO.get((contamination, data))
    cell = (contamination, data)
    return {**TABLE_1.get(cell, {}), **TABLE_SPARSE.get(cell, {})}.get(method)
