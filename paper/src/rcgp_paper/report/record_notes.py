"""What tables of records have in common: which records have a place in them, and what is said below them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rcgp_paper.experiments import Record
from rcgp_paper.experiments.methods import TITLES

__all__ = [
    "CONTAMINATION_TITLES",
    "by_protocol",
    "convergence",
    "in_order",
    "over_runs",
    "states_of_code",
    "with_a_place",
]

#: What contaminations are called in the headings of a table.
CONTAMINATION_TITLES = MappingProxyType(
    {"clean": "no outliers", "focused": "focused", "asymmetric": "asymmetric", "uniform": "uniform"}
)


def with_a_place(records: Sequence[Record], known: Mapping[str, Collection[str]]) -> tuple[list[Record], list[str]]:
    """The records whose configuration has a place in the table, and a notice that names one without, if there are."""
    placed: list[Record] = []
    foreign: list[Record] = []
    for record in records:
        config = record.config
        fits = isinstance(config.get("protocol"), str) and all(config.get(name) in known[name] for name in known)
        (placed if fits else foreign).append(record)
    if not foreign:
        return placed, []
    count = "1 record has" if len(foreign) == 1 else f"{len(foreign)} records have"
    return placed, [f"{foreign[0].experiment}: {count} no place in the tables, such as {foreign[0].key}"]


def by_protocol(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    """The records of each protocol, with its name."""
    for protocol in sorted({record.config["protocol"] for record in records}):
        yield protocol, [record for record in records if record.config["protocol"] == protocol]


def over_runs(what: str, counts: Collection[int]) -> str:
    """What a table shows, and of how many runs: those behind each of its cells."""
    fewest, most = min(counts, default=0), max(counts, default=0)
    if fewest != most:
        return f"{what}, between {fewest} and {most} repetitions in a cell"
    return "One run in each cell" if most == 1 else f"{what} over {most} repetitions"


def convergence(records: Sequence[Record], methods: Sequence[str]) -> str:
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


def states_of_code(records: Sequence[Record], methods: Sequence[str]) -> str:
    """Of methods whose records were made by code that changed in between: by how many states of it."""
    parts = []
    for method in methods:
        states = {record.code for record in records if record.config.get("method") == method}
        if len(states) > 1:
            parts.append(f"{TITLES[method]} {len(states)}")
    if not parts:
        return ""
    return f" The package's code changed between the runs of a method (its states: {', '.join(parts)})."


def in_order(order: Iterable[str], present: set[str]) -> list[str]:
    """Those names that are present, in that order."""
    return [name for name in order if name in present]
