"""Tables of the paper made from records: our numbers, the paper's beside them, and how far apart they are.

A table is text in cells; it becomes Markdown for the repository and HTML for a page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

import numpy as np

from rcgp.experiments import Record
from rcgp.experiments.methods import TITLES
from rcgp.experiments.paper_values import CONTAMINATIONS, DATA, TABLE_1, TABLE_2, TABLE_C_LOO, TABLE_SPARSE

__all__ = ["Table", "accuracy_tables", "standard_errors_apart", "tables_of", "time_tables"]

#: Repetitions behind the paper's averages, and behind those of its table of sparse models.
_PAPER_REPETITIONS, _PAPER_SPARSE_REPETITIONS = 50, 10
#: The paper prints two decimals: its own rounding has this standard deviation.
_ROUNDING = 0.01 / math.sqrt(12.0)

_CONTAMINATION_TITLES = MappingProxyType(
    {"clean": "no outliers", "focused": "focused", "asymmetric": "asymmetric", "uniform": "uniform"}
)
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


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        title: above it.
        head: names of the columns, the first of the rows.
        rows: cells as text, the first the name of the row. A row of a single cell is a heading within the table.
        note: below it.
        best: row and column of cells to emphasise.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    best: Collection[tuple[int, int]] = ()

    def markdown(self) -> str:
        """As a table of GitHub's Markdown."""
        lines = [f"### {self.title}", "", "| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        for i, row in enumerate(self.rows):
            cells = [f"**{cell}**" if (i, j) in self.best else cell for j, cell in enumerate(row)]
            if len(row) == 1:
                cells = [f"**{row[0]}**", *[""] * (len(self.head) - 1)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def html(self, level: int = 2) -> str:
        """As HTML, all text escaped, with a heading of that level."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        body = []
        for i, row in enumerate(self.rows):
            if len(row) == 1:
                body.append(f'<tr><th class="group" colspan="{len(self.head)}"><span>{escape(row[0])}</span></th></tr>')
            else:
                marked = [
                    f"<strong>{escape(cell)}</strong>" if (i, j) in self.best else escape(cell)
                    for j, cell in enumerate(row)
                ]
                cells = "".join(f"<td>{cell}</td>" for cell in marked[1:])
                body.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        # The table alone scrolls where it is too wide, also by keyboard; its title and note stay in view.
        return (
            f"<section><h{level}>{escape(self.title)}</h{level}>"
            f'<div class="wide" role="region" tabindex="0" aria-label="{escape(self.title)}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{note}</section>"
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
    records, notices = _fitting(records, {"data": DATA, "contamination": CONTAMINATIONS, "method": tuple(TITLES)})
    tables = []
    for protocol, chosen in _by_protocol(records):
        methods = _in_order(TITLES, {record.config["method"] for record in chosen})
        below = f"{remark and ' '}{remark}{_convergence(chosen, methods)}{_states_of_code(chosen, methods)}"
        for metric, title in _METRICS.items():
            cells = _accuracy_cells(chosen, metric)
            counts = [len(cell) for cell in cells.values()]
            note = _over("Mean and standard deviation", counts)
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


def _fitting(records: Sequence[Record], known: Mapping[str, Collection[str]]) -> tuple[list[Record], list[str]]:
    """The records whose configuration has a place in the table, and a notice that names one without, if there are."""
    fitting: list[Record] = []
    foreign: list[Record] = []
    for record in records:
        config = record.config
        fits = isinstance(config.get("protocol"), str) and all(config.get(name) in known[name] for name in known)
        (fitting if fits else foreign).append(record)
    if not foreign:
        return fitting, []
    count = "1 record has" if len(foreign) == 1 else f"{len(foreign)} records have"
    return fitting, [f"{foreign[0].experiment}: {count} no place in the tables, such as {foreign[0].key}"]


def _by_protocol(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    for protocol in sorted({record.config["protocol"] for record in records}):
        yield protocol, [record for record in records if record.config["protocol"] == protocol]


def _over(what: str, counts: Collection[int]) -> str:
    """What a table shows, and of how many runs: those behind each of its cells."""
    fewest, most = min(counts, default=0), max(counts, default=0)
    if fewest != most:
        return f"{what}, between {fewest} and {most} repetitions in a cell"
    return "One run in each cell" if most == 1 else f"{what} over {most} repetitions"


def _convergence(records: Sequence[Record], methods: Sequence[str]) -> str:
    """How many fits of each method did not converge, as a sentence; empty where the records do not say."""
    told = {method: [fit for record in records for fit in _fits(record, method)] for method in methods}
    parts = [f"{TITLES[method]} {fits.count(False)} of {len(fits)}" for method, fits in told.items() if not all(fits)]
    if parts:
        return f" Fits that did not converge: {', '.join(parts)}."
    return " All fits converged." if any(told.values()) else ""


def _fits(record: Record, method: str) -> list[bool]:
    """Whether the fit of a method in this record converged; empty where the record is of another or does not say."""
    found = record.values.get("converged")
    if isinstance(found, dict):  # a run of several methods
        found = found.get(method)
    elif record.config.get("method") != method:
        return []
    return [found] if isinstance(found, bool) else []


def _states_of_code(records: Sequence[Record], methods: Sequence[str]) -> str:
    """Of methods whose records were made by code that changed in between: by how many states of it."""
    parts = []
    for method in methods:
        states = {record.code for record in records if record.config.get("method") == method}
        if len(states) > 1:
            parts.append(f"{TITLES[method]} {len(states)}")
    if not parts:
        return ""
    return f" The package's code changed between the runs of a method (its states: {', '.join(parts)})."


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
            rows += [[_CONTAMINATION_TITLES[contamination]], *lines]
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


def time_tables(records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """Seconds of a fit, and their ratio to the GP's, for each protocol, the paper's ratios beside ours; and notices."""
    records, notices = _fitting(records, {"data": DATA, "contamination": CONTAMINATIONS})
    tables = []
    for protocol, chosen in _by_protocol(records):
        methods = _in_order(TITLES, {method for record in chosen for method in _times(record, "seconds")})
        head = ["", *(TITLES[method] for method in methods)]
        counts = Counter((record.config["contamination"], record.config["data"]) for record in chosen)
        note = _over("Median", counts.values()) + ", all methods one after the other in one process with one thread"
        states = len({record.code for record in chosen})
        below = _convergence(chosen, methods)
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
            rows += [[_CONTAMINATION_TITLES[contamination]], *lines]
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


def _in_order(order: Iterable[str], present: set[str]) -> list[str]:
    return [name for name in order if name in present]
