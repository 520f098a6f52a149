"""What the benchmark of adaptive centring makes of its measurements: tables, and the bars with met or missed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rcgp.experiments.paper_values import CONTAMINATIONS

# What the bars allow: largest MAE over the clean GP's with scattered outliers, and largest MAE for a share of them.
RATIO, RATIO_YACHT, WORST = 1.25, 1.6, 2.5
SHARES = {0.2: 0.10, 0.3: 0.11, 0.4: 0.14}


@dataclass(frozen=True)
class Result:
    """One method on one problem; nan where its fit failed.

    Attributes:
        mae, nlpd, coverage: scores of the test part, the last of the 95 % interval.
        seconds: CPU time of building, fitting and conditioning.
        flagged, found: training rows that were flagged, and how many of them are outliers.
    """

    mae: float
    nlpd: float
    coverage: float
    seconds: float
    flagged: int
    found: int


@dataclass(frozen=True)
class Case:
    """One problem and all methods' results on it, by name."""

    data: str
    contamination: str
    index: int
    rows: int
    outliers: int
    results: dict[str, Result]

    @property
    def cell(self) -> str:
        return f"{self.data} {self.contamination}"


@dataclass(frozen=True)
class Figure:
    """A measured number and the limits that it has to keep, ends included; nan keeps none."""

    where: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def judged(self) -> bool:
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def met(self) -> bool:
        return self.low <= self.value <= self.high or not self.judged


def share_name(share: float) -> str:
    return f"uniform {100 * share:g} %"


@dataclass(frozen=True)
class Cell:
    """All splits of one data set with one contamination."""

    data: str
    contamination: str
    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        return self.cases[0].cell

    def mean(self, method: str, metric: str) -> float:
        return float(np.mean([getattr(case.results[method], metric) for case in self.cases]))

    def ratio(self, metric: str, method: str, other: str) -> float:
        """Mean over mean."""
        return self.mean(method, metric) / self.mean(other, metric)

    def worst(self, method: str, other: str) -> float:
        """Largest ratio of mean absolute errors on a single split."""
        return float(np.max([case.results[method].mae / case.results[other].mae for case in self.cases]))

    def share(self, part: str, of: str) -> float:
        """A number of adaptive RCGP's rows over another, all splits together; nan over none."""
        counts = {
            "flagged": sum(case.results["adaptive"].flagged for case in self.cases),
            "found": sum(case.results["adaptive"].found for case in self.cases),
            "outliers": sum(case.outliers for case in self.cases),
            "rows": sum(case.rows for case in self.cases),
        }
        return counts[part] / counts[of] if counts[of] else math.nan


def cells_of(cases: Iterable[Case]) -> list[Cell]:
    """Cases by data set and contamination, in the order in which these first come."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        found.setdefault((case.data, case.contamination), []).append(case)
    order = list(dict.fromkeys(data for data, _ in found))
    return [Cell(*key, tuple(found[key])) for key in sorted(found, key=lambda key: order.index(key[0]))]


def demands(cells: Sequence[Cell]) -> list[tuple[str, list[Figure]]]:
    """The bars, one to seven, each with its figures; without limits where a line is for comparison only."""
    clean, focused = (named(cells, name) for name in ("clean", "focused"))
    scattered, tenths = named(cells, "uniform", "asymmetric"), named(cells, *CONTAMINATIONS)
    synthetic = [cell for cell in cells if cell.data == "synthetic"]
    many = [(cell, limit) for share, limit in SHARES.items() for cell in named(synthetic, share_name(share))]

    def over(cell: Cell, other: str) -> float:
        return cell.ratio("mae", "adaptive", other)

    def above(cell: Cell, other: str) -> float:
        return cell.mean("adaptive", "nlpd") - cell.mean(other, "nlpd")

    def over_better(cell: Cell) -> float:
        # fmin: a method whose fit failed is not the better one.
        return cell.mean("adaptive", "mae") / float(np.fmin(cell.mean("GP", "mae"), cell.mean("RCGP", "mae")))

    def limit(cell: Cell) -> float:
        return RATIO_YACHT if cell.data == "yacht" else RATIO

    return [
        ("1: no outliers, MAE over the GP's at most 1.05", [Figure(c.data, over(c, "GP"), high=1.05) for c in clean]),
        (
            "1: no outliers, NLPD above the GP's at most 0.05",
            [Figure(c.data, above(c, "GP"), high=0.05) for c in clean],
        ),
        ("MAE over that of the GP with weak priors", [Figure(c.data, over(c, "GP with priors")) for c in clean]),
        ("NLPD above that of the GP with weak priors", [Figure(c.data, above(c, "GP with priors")) for c in clean]),
        (
            f"2: scattered outliers, MAE over the clean GP's at most {RATIO}, on Yacht {RATIO_YACHT}",
            [Figure(c.name, over(c, "clean GP"), high=limit(c)) for c in scattered],
        ),
        (
            f"2: the same on the worst split at most {WORST}",
            [Figure(c.name, c.worst("adaptive", "clean GP"), high=WORST) for c in scattered],
        ),
        (
            "3: focused outliers, MAE over that of the better of GP and RCGP at most 1.05",
            [Figure(c.data, over_better(c), high=1.05) for c in focused],
        ),
        (
            "3: focused outliers, MAE on Synthetic at most 0.12",
            [Figure(c.data, c.mean("adaptive", "mae"), high=0.12) for c in named(synthetic, "focused")],
        ),
        (
            f"4: many outliers, MAE on Synthetic at most {', '.join(f'{most:.2f}' for most in SHARES.values())}",
            [Figure(c.contamination, c.mean("adaptive", "mae"), high=most) for c, most in many],
        ),
        (
            "5: coverage of the 95 % interval from 0.90 to 0.985, with at most 10 % outliers",
            [Figure(c.name, c.mean("adaptive", "coverage"), 0.9, 0.985) for c in tenths],
        ),
        (
            "6: scattered outliers, precision of flags at least 0.95",
            [Figure(c.name, c.share("found", "flagged"), low=0.95) for c in scattered],
        ),
        (
            "6: scattered outliers, recall of flags at least 0.95",
            [Figure(c.name, c.share("found", "outliers"), low=0.95) for c in scattered],
        ),
        (
            "6: no outliers, share of rows flagged on Synthetic at most 0.03",
            [Figure(c.data, c.share("flagged", "rows"), high=0.03) for c in named(synthetic, "clean")],
        ),
        ("7: seconds of all fits to a data set over the GP's at most 5", costs(tenths)),
        ("seconds over the GP's by cell", [Figure(c.name, c.ratio("seconds", "adaptive", "GP")) for c in cells]),
    ]


def named(cells: Sequence[Cell], *contaminations: str) -> list[Cell]:
    return [cell for cell in cells if cell.contamination in contaminations]


def costs(cells: Sequence[Cell]) -> list[Figure]:
    """For each data set the seconds of all fits over those of the GP's, on the same problems."""
    gathered: dict[str, list[Case]] = {}
    for cell in cells:
        gathered.setdefault(cell.data, []).extend(cell.cases)
    together = [Cell(data, "all", tuple(cases)) for data, cases in gathered.items()]
    return [Figure(cell.data, cell.ratio("seconds", "adaptive", "GP"), high=5.0) for cell in together]


def verdict(figures: Sequence[Figure]) -> str:
    if not figures:
        return "not measured"
    if not any(figure.judged for figure in figures):
        return "for comparison"
    missed = sum(not figure.met for figure in figures)
    return f"missed in {missed} of {len(figures)}" if missed else "met"


def told(figure: Figure) -> str:
    """A figure, marked where it misses its bar: after rounding it may look as if it did not."""
    text = f"{figure.where} {figure.value:.3f}"
    return text if figure.met else f"**{text}**"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown with columns of even width."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["| " + " | ".join(part.ljust(w) for part, w in zip(line, widths, strict=True)) + " |" for line in lines]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])


def accuracy_table(cells: Sequence[Cell]) -> str:
    methods = ("clean GP", "GP", "RCGP", "adaptive")
    rows = [
        [
            cell.name,
            str(len(cell.cases)),
            *(f"{cell.mean(method, 'mae'):.3f}" for method in methods),
            f"{cell.ratio('mae', 'adaptive', 'clean GP'):.2f}",
            f"{cell.worst('adaptive', 'clean GP'):.2f}",
        ]
        for cell in cells
    ]
    return table(["mean MAE", "splits", *methods, "over clean GP", "worst split"], rows)


def detail_table(cells: Sequence[Cell]) -> str:
    head = ["", "NLPD: clean GP", "GP", "RCGP", "adaptive", "coverage: GP", "RCGP", "adaptive"]
    head += ["flagged", "precision", "recall", "GP seconds", "RCGP over GP", "adaptive over GP"]
    rows = [
        [
            cell.name,
            *(f"{cell.mean(method, 'nlpd'):.2f}" for method in ("clean GP", "GP", "RCGP", "adaptive")),
            *(f"{cell.mean(method, 'coverage'):.3f}" for method in ("GP", "RCGP", "adaptive")),
            f"{cell.share('flagged', 'rows'):.1%}",
            *(f"{cell.share('found', of):.3f}" if cell.cases[0].outliers else "–" for of in ("flagged", "outliers")),
            f"{cell.mean('GP', 'seconds'):.2f}",
            *(f"{cell.ratio('seconds', method, 'GP'):.1f}" for method in ("RCGP", "adaptive")),
        ]
        for cell in cells
    ]
    return table(head, rows)


def ablation_table(cells: Sequence[Cell]) -> str:
    parts = list(dict.fromkeys(part for cell in cells for part in cell.cases[0].results))
    rows = [
        [
            cell.name,
            str(len(cell.cases)),
            *(
                f"{cell.mean(part, 'mae'):.3f} ({cell.mean(part, 'coverage'):.3f}; "
                f"{cell.ratio('seconds', part, parts[0]):.2f})"
                for part in parts
            ),
        ]
        for cell in cells
    ]
    return table([f"mean MAE (coverage; time over {parts[0]})", "splits", *parts], rows)


def bar_list(cells: Sequence[Cell]) -> str:
    """The bars as a list in Markdown, figures that miss theirs in bold."""
    lines = [f"- {bar}: {verdict(figures)}. {', '.join(map(told, figures))}" for bar, figures in demands(cells)]
    return "\n".join(textwrap.fill(line.strip(), 120, subsequent_indent="  ") for line in lines)
