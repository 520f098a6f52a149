"""Tables of the paper made from records: our numbers, the paper's beside them, and how far apart they are.

A table is text in cells; it becomes Markdown for the repository and HTML for a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from rcgp.experiments import Record
from rcgp.experiments.methods import TITLES
from rcgp.experiments.paper_values import CONTAMINATIONS, DATA, TABLE_1, TABLE_2, TABLE_C_LOO

__all__ = ["Table", "accuracy_tables", "standard_errors_apart", "tables_of", "time_tables"]

#: Repetitions behind the paper's averages.
_PAPER_REPETITIONS = 50
#: The paper prints two decimals: its own rounding has this standard deviation.
_ROUNDING = 0.01 / math.sqrt(12.0)

_CONTAMINATION_TITLES = {"clean": "no outliers", "focused": "focused", "asymmetric": "asymmetric", "uniform": "uniform"}
_METRICS = {
    "mae": "mean absolute error",
    "rmse": "root mean square error",
    "nlpd": "negative log predictive density",
    "coverage": "coverage of the 95 % interval",
    "crps": "continuous ranked probability score",
}


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        title: above it.
        head: names of the columns, the first of the rows.
        rows: cells as text, the first the name of the row. A row of a single cell is a heading within the table.
        note: below it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """As a table of GitHub's Markdown."""
        lines = [f"### {self.title}", "", "| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        for row in self.rows:
            cells = [f"**{row[0]}**", *[""] * (len(self.head) - 1)] if len(row) == 1 else list(row)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def html(self) -> str:
        """As HTML, all text escaped."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        body = []
        for row in self.rows:
            if len(row) == 1:
                body.append(f'<tr><th class="group" colspan="{len(self.head)}">{escape(row[0])}</th></tr>')
            else:
                cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
                body.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return (
            f"<section><h2>{escape(self.title)}</h2><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table>{note}</section>"
        )


def standard_errors_apart(ours: Sequence[float], paper: tuple[float, float]) -> float:
    """Our mean minus the paper's, in standard errors of that difference.

    The standard error counts our repetitions, the paper's fifty with the standard deviation that it prints, and the
    rounding of what it prints.
    """
    values = np.asarray(ours, dtype=np.float64)
    own = values.var(ddof=1) / len(values) if len(values) > 1 else 0.0
    error = math.sqrt(float(own) + paper[1] ** 2 / _PAPER_REPETITIONS + _ROUNDING**2)
    return (float(values.mean()) - paper[0]) / error


def tables_of(experiment: str, records: Sequence[Record]) -> list[Table]:
    """All tables that the records of an experiment give; none for a figure."""
    if experiment == "table2":
        return time_tables(records)
    if experiment in ("table1", "table_c_loo"):
        return accuracy_tables(records)
    return []


def accuracy_tables(records: Sequence[Record]) -> list[Table]:
    """A table for each protocol and score; the first with the paper's numbers beside ours."""
    tables = []
    for protocol in sorted({record.config["protocol"] for record in records}):
        chosen = [record for record in records if record.config["protocol"] == protocol]
        methods = _in_order(TITLES, {record.config["method"] for record in chosen})
        repetitions = len({record.config["index"] for record in chosen})
        for metric, title in _METRICS.items():
            rows = _accuracy_rows(chosen, methods, metric)
            note = f"Mean and standard deviation over {repetitions} repetitions"
            if metric == "mae":
                note += "; behind a slash the paper's mean, and the difference in standard errors"
            heading = f"{title[0].upper()}{title[1:]}, protocol “{protocol}”"
            tables.append(Table(heading, ["", *(TITLES[method] for method in methods)], rows, f"{note}."))
    return tables


def _accuracy_rows(records: Sequence[Record], methods: Sequence[str], metric: str) -> list[list[str]]:
    cells: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        config = record.config
        key = (config["contamination"], config["data"], config["method"])
        cells.setdefault(key, []).append(float(record.values[metric]))
    rows: list[list[str]] = []
    for contamination in CONTAMINATIONS:
        lines = []
        for data in DATA:
            found = [cells.get((contamination, data, method), []) for method in methods]
            if any(found):
                paper = [_paper_value(contamination, data, method) if metric == "mae" else None for method in methods]
                lines.append([data, *(_cell(ours, theirs) for ours, theirs in zip(found, paper, strict=True))])
        if lines:
            rows += [[_CONTAMINATION_TITLES[contamination]], *lines]
    return rows


def _cell(ours: Sequence[float], paper: tuple[float, float] | None) -> str:
    if not ours:
        return "–"
    values = np.asarray(ours)
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    text = f"{values.mean():.3f} ({spread:.3f})"
    if paper is None:
        return text
    return f"{text} / {paper[0]:.2f}, {standard_errors_apart(ours, paper):+.1f} se"


def _paper_value(contamination: str, data: str, method: str) -> tuple[float, float] | None:
    if method == "rcgp-c-loo":
        return TABLE_C_LOO.get((contamination, data))
    return TABLE_1.get((contamination, data), {}).get(method)


def time_tables(records: Sequence[Record]) -> list[Table]:
    """Seconds of a fit, and their ratio to the GP's, for each protocol; the paper's ratios beside ours."""
    tables = []
    for protocol in sorted({record.config["protocol"] for record in records}):
        chosen = [record for record in records if record.config["protocol"] == protocol]
        methods = _in_order(TITLES, {method for record in chosen for method in record.values["seconds"]})
        head = ["", *(TITLES[method] for method in methods)]
        repetitions = len({record.config["index"] for record in chosen})
        note = f"Median over {repetitions} repetitions, all methods one after the other in one process with one thread"
        seconds = _time_rows(chosen, methods, _seconds)
        tables.append(Table(f"Seconds of a fit, protocol “{protocol}”", head, seconds, f"{note}."))
        tables.append(
            Table(
                f"Time of a fit over the GP's, protocol “{protocol}”",
                head,
                _time_rows(chosen, methods, _ratio),
                f"{note}; behind a slash the ratio of the paper's means.",
            )
        )
    return tables


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
            rows += [[_CONTAMINATION_TITLES[contamination]], *lines]
    return rows


def _seconds(records: Sequence[Record], data: str, method: str) -> str:
    return f"{np.median([record.values['seconds'][method] for record in records]):.2f}"


def _ratio(records: Sequence[Record], data: str, method: str) -> str:
    ours = np.median([record.values["ratio"][method] for record in records])
    paper = TABLE_2[data]
    return f"{ours:.2f}" if method == "gp" else f"{ours:.2f} / {paper[method][0] / paper['gp'][0]:.1f}"


def _in_order(order: Iterable[str], present: set[str]) -> list[str]:
    return [name for name in order if name in present]
