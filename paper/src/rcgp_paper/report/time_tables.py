"""The paper's table of times made from records: seconds of each fit, and their ratio to the GP's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from rcgp_paper.experiments import Record
from rcgp_paper.experiments.methods import TITLES
from rcgp_paper.experiments.paper_values import CONTAMINATIONS, DATA, TABLE_2
from rcgp_paper.report.printed_table import Table
from rcgp_paper.report.record_notes import (
    CONTAMINATION_TITLES,
    by_protocol,
    convergence,
    in_order,
    over_runs,
    with_a_place,
)

__all__ = ["time_tables"]


def time_tables(records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """Seconds of a fit, and their ratio to the GP's, for each protocol, the paper's ratios beside ours; and notices."""
    records, notices = with_a_place(records, {"data": DATA, "contamination": CONTAMINATIONS})
    tables = []
    for protocol, chosen in by_protocol(records):
        methods = in_order(TITLES, {method for record in chosen for method in _times(record, "seconds")})
        head = ["", *(TITLES[method] for method in methods)]
        counts = Counter((record.config["contamination"], record.config["data"]) for record in chosen)
        note = over_runs("Median", counts.values()) + ", all methods one after the other in one process with one thread"
        states = len({record.code for record in chosen})
        below = convergence(chosen, methods)
        below += f" The package's code changed between the runs (its states: {states})." if states > 1 else ""
        seconds = _time_rows(chosen, methods, _seconds)
        tables.append(Table(f"Seconds of a fit, protocol “{protocol}”", head, seconds, f"{note}.{below}"))
        tables.append(
            Table(
                f"Time of a fit over the GP's, protocol “{protocol}”",
                head,
                _time_rows(chosen, methods, _ratio),
                f"{note}; behind a slash the ratio of the paper's means.{below}",
            )
        )
    return tables, notices


def _time_rows(
    records: Sequence[Record], methods: Sequence[str], cell: Callable[[Sequence[Record], str, str], str]
) -> list[list[str]]:
    rows: list[list[str]] = []
    for contamination in CONTAMINATIONS:
        lines = []
        for data in DATA:
            found = [r for r in records if (r.config["contamination"], r.config["data"]) == (contamination, data)]
            if found:
                lines.append([data, *(cell(found, data, method) for method in methods)])
        if lines:
            rows += [[CONTAMINATION_TITLES[contamination]], *lines]
    return rows


def _seconds(records: Sequence[Record], data: str, method: str) -> str:
    return _median(records, "seconds", method)


def _ratio(records: Sequence[Record], data: str, method: str) -> str:
    ours, paper = _median(records, "ratio", method), TABLE_2[data]
    return ours if method == "gp" or method not in paper else f"{ours} / {paper[method][0] / paper['gp'][0]:.1f}"


def _median(records: Sequence[Record], name: str, method: str) -> str:
    """Of what is finite."""
    values = [_times(record, name).get(method, math.nan) for record in records]
    finite = [value for value in values if math.isfinite(value)]
    return f"{np.median(finite):.2f}" if finite else "–"


def _times(record: Record, name: str) -> dict[str, float]:
    """A number for each method; none in a record that is not one of times."""
    found = record.values.get(name)
    return found if isinstance(found, dict) else {}
