"""Tables made from records: accuracy, time and Bayesian optimisation, with the paper's numbers next to ours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

import numpy as np

from rcgp_paper.experiments import Record
from rcgp_paper.experiments.methods import TITLES
from rcgp_paper.experiments.optimisation import FUNCTION_TITLES, METHOD_TITLES, clock_time, cumulative_regret, longest
from rcgp_paper.experiments.records import Config
from rcgp_paper.experiments.tables import CONTAMINATIONS, DATA, PAPER_ERRORS, PAPER_SECONDS

__all__ = ["Table", "accuracy_tables", "optimisation_tables", "standard_errors_apart", "tables_of", "time_tables"]

#: Repetitions behind the paper's averages, and behind the averages of its sparse models.
_PAPER_REPETITIONS, _PAPER_SPARSE_REPETITIONS = 50, 10
#: Standard deviation of the paper's rounding to two decimals.
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
_SETTINGS: Mapping[tuple[str, bool], str] = MappingProxyType(
    {
        ("ucb", True): "UCB, 20 % outliers",
        ("pi", True): "PI, 20 % outliers",
        ("ucb", False): "UCB, no outliers",
        ("pi", False): "PI, no outliers",
    }
)
_SPARSE_REMARK = (
    " SVGP and RCSVGP by the bound, with the noise variance held at 0.01 as in the paper, and c at its rule; the other "
    "two fit the noise variance."
)


@dataclass(frozen=True)
class Table:
    """A table of text, for Markdown and HTML.

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
        for i, (name, *cells) in enumerate(self.rows):
            if cells:
                marked = [
                    f"<strong>{escape(cell)}</strong>" if (i, j) in self.best else escape(cell)
                    for j, cell in enumerate(cells, start=1)
                ]
                shown = "".join(f"<td>{cell}</td>" for cell in marked)
                body.append(f'<tr><th scope="row">{escape(name)}</th>{shown}</tr>')
            else:
                body.append(f'<tr><th class="group" colspan="{len(self.head)}"><span>{escape(name)}</span></th></tr>')
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        # Only a wide table scrolls, also by keyboard; its title and note stay in view.
        return (
            f"<section><h{level}>{escape(self.title)}</h{level}>"
            f'<div class="wide" role="region" tabindex="0" aria-label="{escape(self.title)}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{note}</section>"
        )


def tables_of(experiment: str, records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """The tables of an experiment, none for a figure, and notices about records that fit none."""
    if experiment == "table_bo":
        return optimisation_tables(records)
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
    """A table for each protocol and score, the first with the paper's numbers next to ours; and notices.

    Args:
        records: of the runs.
        repetitions: the paper's number of them.
        remark: a sentence for the note of each table.
    """
    records, notices = _with_a_place(records, lambda config: _is_cell(config) and config.get("method") in (*TITLES,))
    tables = []
    for protocol, chosen in _by_protocol(records):
        methods = _present(TITLES, chosen, "method")
        below = remark + _convergence(chosen, TITLES) + _code_changes(chosen, TITLES)
        for metric, title in _METRICS.items():
            rows, best, counts = _accuracy_rows(chosen, methods, metric, repetitions)
            note = _over_runs("Mean and standard deviation", counts)
            if metric == "mae":
                note += "; behind a slash the paper's mean"
                if max(counts, default=0) > 1:
                    note += (
                        ", and the difference in standard errors: of our mean, of the paper's over its "
                        f"{repetitions} repetitions, and of the rounding to two digits"
                    )
            note += "; the best of each row in bold" if best else ""
            heading = f"{title[0].upper()}{title[1:]}, protocol “{protocol}”"
            tables.append(Table(heading, ["", *(TITLES[method] for method in methods)], rows, f"{note}.{below}", best))
    return tables, notices


def _accuracy_rows(
    records: Sequence[Record], methods: Sequence[str], metric: str, repetitions: int
) -> tuple[list[list[str]], list[tuple[int, int]], list[int]]:
    """The rows, the best cells, and the number of runs behind each cell that has any."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        value, config = record.values.get(metric), record.config
        if isinstance(value, int | float):
            key = (config["contamination"], config["data"], config["method"])
            values.setdefault(key, []).append(float(value))
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for contamination, heading in CONTAMINATIONS.items():
        found = [data for data in DATA if any((contamination, data, method) in values for method in methods)]
        rows += [[heading]] if found else []
        for data in found:
            cells = {method: values.get((contamination, data, method), []) for method in methods}
            if metric != "coverage":
                best += [(len(rows), column) for column in _best_columns(list(cells.values()))]
            paper = PAPER_ERRORS[contamination, data] if metric == "mae" else {}
            rows.append([data, *(_beside_paper(cells[m], paper.get(m), repetitions) for m in methods)])
    return rows, best, [len(cell) for cell in values.values()]


def _beside_paper(ours: Sequence[float], paper: tuple[float, float] | None, repetitions: int) -> str:
    """Our mean and standard deviation, the paper's mean and the difference; one run has no deviation."""
    if paper is None or not ours:
        return _cell(ours)
    finite = [value for value in ours if math.isfinite(value)]
    with np.errstate(over="ignore", invalid="ignore"):
        apart = f", {standard_errors_apart(finite, paper, repetitions):+.1f} se" if len(finite) > 1 else ""
    return f"{_cell(ours)} / {paper[0]:.2f}{apart}"


def standard_errors_apart(
    ours: Sequence[float], paper: tuple[float, float], repetitions: int = _PAPER_REPETITIONS
) -> float:
    """Our mean minus the paper's, in standard errors of that difference.

    The standard error counts our repetitions, the paper's with the standard deviation that it prints, and its
    rounding.
    """
    values = np.asarray(ours, dtype=np.float64)
    own = values.var(ddof=1) / len(values) if len(values) > 1 else 0.0
    error = math.sqrt(float(own) + paper[1] ** 2 / repetitions + _ROUNDING**2)
    return (float(values.mean()) - paper[0]) / error


def time_tables(records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """Seconds of a fit and ratio to the GP's, for each protocol, the paper's ratios next to ours; and notices."""
    records, notices = _with_a_place(records, _is_cell)
    tables = []
    for protocol, chosen in _by_protocol(records):
        timed = {method for record in chosen for method in _times(record, "seconds")}
        methods = [method for method in TITLES if method in timed]
        counts = Counter((record.config["contamination"], record.config["data"]) for record in chosen)
        note = _over_runs("Median", counts.values()) + ", all methods in turn in one process with one thread"
        below = _convergence(chosen, TITLES) + _code_changes(chosen, TITLES)
        head = ["", *(TITLES[method] for method in methods)]
        for title, key, remark in (
            ("Seconds of a fit", "seconds", ""),
            ("Time of a fit over the GP's", "ratio", "; behind a slash the ratio of the paper's means"),
        ):
            rows = _time_rows(chosen, methods, key)
            tables.append(Table(f"{title}, protocol “{protocol}”", head, rows, f"{note}{remark}.{below}"))
    return tables, notices


def _time_rows(records: Sequence[Record], methods: Sequence[str], key: str) -> list[list[str]]:
    rows: list[list[str]] = []
    for contamination, heading in CONTAMINATIONS.items():
        chosen = [record for record in records if record.config["contamination"] == contamination]
        rows += [[heading]] if chosen else []
        for data in _present(DATA, chosen, "data"):
            found = [_times(record, key) for record in chosen if record.config["data"] == data]
            rows.append([data, *(_median([times.get(m, math.nan) for times in found]) for m in methods)])
            if key == "ratio":
                paper = PAPER_SECONDS[data]
                for column, method in enumerate(methods, start=1):
                    if method in paper and method != "gp":
                        rows[-1][column] += f" / {paper[method][0] / paper['gp'][0]:.1f}"
    return rows


def _median(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"{np.median(finite):.2f}" if finite else "–"


def _times(record: Record, key: str) -> dict[str, float]:
    """A number for each method; empty for a record without them."""
    found = record.values.get(key)
    return found if isinstance(found, dict) else {}


def optimisation_tables(records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """Cumulative regret at the end, and the seconds of a step, for every setting; and notices."""
    placed, notices = _with_a_place(records, _is_trial)
    if not placed:
        return [], notices
    runs = longest(placed)
    steps = runs[0].config["steps"]
    keys = ("function", "acquisition", "outliers", "method")
    counts = Counter(tuple(record.config[key] for key in keys) for record in runs).values()
    note = _over_runs("Mean and standard deviation", counts)
    below = _convergence(runs, METHOD_TITLES) + _code_changes(runs, METHOD_TITLES)
    regret, best = _optimisation_rows(runs, lambda record: float(cumulative_regret(record)[-1]))
    seconds, _ = _optimisation_rows(runs, lambda record: float(clock_time(record)[-1]) / steps)
    head = ["", *(METHOD_TITLES[method] for method in _present(METHOD_TITLES, runs, "method"))]
    regret_note = f"{note}; the best of each row in bold. Values without outliers count.{below}"
    seconds_note = f"{note} of the mean over steps.{below}"
    return [
        Table(f"Cumulative regret after {steps} steps", head, regret, regret_note, best),
        Table("Seconds of a step, fit and acquisition", head, seconds, seconds_note),
    ], notices


def _optimisation_rows(
    records: Sequence[Record], number: Callable[[Record], float]
) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """A row for each setting and function, a column for each method; and the best cells."""
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    methods = _present(METHOD_TITLES, records, "method")
    for setting, heading in _SETTINGS.items():
        chosen = [r for r in records if (r.config["acquisition"], r.config["outliers"]) == setting]
        rows += [[heading]] if chosen else []
        for function in _present(FUNCTION_TITLES, chosen, "function"):
            found = [r for r in chosen if r.config["function"] == function]
            cells = [[number(r) for r in found if r.config["method"] == method] for method in methods]
            best += [(len(rows), column) for column in _best_columns(cells)]
            rows.append([FUNCTION_TITLES[function], *map(_cell, cells)])
    return rows, best


def _cell(values: Sequence[float]) -> str:
    """Mean and standard deviation of the finite values; one value has no deviation."""
    if not values:
        return "–"
    finite = [value for value in values if math.isfinite(value)]
    with np.errstate(over="ignore", invalid="ignore"):
        text = f"{np.mean(finite):.3f}" if finite else ""
        text += f" ({np.std(finite, ddof=1):.3f})" if len(finite) > 1 else ""
    odd = len(values) - len(finite)
    return f"{text}, {odd} not finite".removeprefix(", ") if odd else text


def _best_columns(cells: Sequence[Sequence[float]]) -> list[int]:
    """Columns, from 1, of the lowest mean as printed: several if tied, none if only one mean is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = [round(float(np.mean(cell)), 3) if cell and np.isfinite(cell).all() else math.inf for cell in cells]
    if sum(map(math.isfinite, means)) < 2:
        return []
    return [column for column, mean in enumerate(means, start=1) if mean == min(means)]


def _with_a_place(records: Sequence[Record], fits: Callable[[Config], bool]) -> tuple[list[Record], list[str]]:
    """The records with a place in the table, and a notice about all others."""
    placed = [record for record in records if fits(record.config)]
    foreign = [record for record in records if not fits(record.config)]
    if not foreign:
        return placed, []
    count = "1 record has" if len(foreign) == 1 else f"{len(foreign)} records have"
    return placed, [f"{foreign[0].experiment}: {count} no place in the tables, such as {foreign[0].key}"]


def _is_cell(config: Config) -> bool:
    """Whether a configuration is a cell of the tables of accuracy or time."""
    known = config.get("data") in DATA and config.get("contamination") in (*CONTAMINATIONS,)
    return known and isinstance(config.get("protocol"), str)


def _is_trial(config: Config) -> bool:
    """Whether a configuration is a run of Bayesian optimisation."""
    known = config.get("function") in (*FUNCTION_TITLES,) and config.get("method") in (*METHOD_TITLES,)
    setting = (config.get("acquisition"), config.get("outliers"))
    return known and setting in (*_SETTINGS,) and isinstance(config.get("steps"), int)


def _by_protocol(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    for protocol in sorted({record.config["protocol"] for record in records}):
        yield protocol, [record for record in records if record.config["protocol"] == protocol]


def _present(order: Collection[str], records: Sequence[Record], key: str) -> list[str]:
    """The values of a key that records have, in that order."""
    present = {record.config[key] for record in records}
    return [name for name in order if name in present]


def _over_runs(what: str, counts: Collection[int]) -> str:
    """A statistic, and the number of runs of each cell."""
    fewest, most = min(counts, default=0), max(counts, default=0)
    if fewest != most:
        return f"{what}, between {fewest} and {most} repetitions in a cell"
    return "One run in each cell" if most == 1 else f"{what} over {most} repetitions"


def _convergence(records: Sequence[Record], titles: Mapping[str, str]) -> str:
    """A sentence on the number of fits of each method that did not converge; empty if records lack it."""
    fits = {method: [fit for record in records for fit in _fits(record, method)] for method in titles}
    parts = [f"{titles[name]} {found.count(False)} of {len(found)}" for name, found in fits.items() if not all(found)]
    if parts:
        return f" Fits that did not converge: {', '.join(parts)}."
    return " All fits converged." if any(fits.values()) else ""


def _fits(record: Record, method: str) -> list[bool]:
    """Whether each fit of a method in this record converged; empty if the record lacks it."""
    found = record.values.get("converged")
    if isinstance(found, dict):  # a run of several methods
        found = found.get(method)
    elif record.config.get("method") != method:
        return []
    elif "failed" in record.values:  # a run of several fits
        failed = len(record.values["failed"])
        return [False] * failed + [True] * (record.config["steps"] - failed)
    return [found] if isinstance(found, bool) else []


def _code_changes(records: Sequence[Record], titles: Mapping[str, str]) -> str:
    """A sentence on methods whose runs were made by several states of the code; for runs of several methods on all."""
    named = {"": "", **titles}
    states = {
        name: {record.code for record in records if (record.config.get("method") or "") == name} for name in named
    }
    parts = [f"{named[name]} {len(found)}".lstrip() for name, found in states.items() if len(found) > 1]
    return f" The package's code changed between runs (states: {', '.join(parts)})." if parts else ""
