"""Bayesian optimisation against the aims set for it: outliers in designs, regret, and the time of a step.

``designs`` fits surrogates to Sobol designs of functions with 4 to 8 inputs, 15 % of whose values are wrong by 0.6 to
15 times their range: share of errors flagged (recall), share of good rows flagged, and root mean squared error over
that of a GP of the same rows without errors. For comparison: a GP with errors, and one of the good rows alone.

``loop`` maximises the same functions: 40 evaluations chosen by log expected improvement after a Sobol design of twice
as many rows as inputs, 15 % of all evaluations wrong, up or down. Simple regret and time of a step over those of a GP
that gets the same evaluations without errors. Finished runs are kept in ``loop.jsonl`` of the folder of records.

``regret``, the default, compares with GP and t-GP. It is read from the records of ``rcgp reproduce``; nothing is
optimised here. The time of a step, fit and acquisition, is measured now: SingleTaskRCGP over SingleTaskGP on the same
data in turn, and BoTorch's relevance pursuit over SingleTaskRCGP at 30 rows. With records the ratio of RCGP's and GP's
seconds in those is shown as well.

Exits with 1 where a bar is missed, with 2 where there are no records to judge regret by.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rcgp_paper.experiments import EXPERIMENTS, Record, RecordFile
from rcgp_paper.experiments.optimisation import FUNCTION_TITLES
from rcgp_paper.experiments.records import Config
from rcgp_paper.experiments.runner import Experiment, Options, run_experiment

if TYPE_CHECKING:
    from botorch.models.model import Model
    from botorch.test_functions.synthetic import SyntheticTestFunction

EXPERIMENTS_BO = ("figure_bo_ucb", "figure_bo_pi", "figure_bo_clean", "table_bo")

#: Largest regret of RCGP over that of another method, with and without outliers: (method, outliers) → ratio.
REGRET = {("gp", True): 1.0, ("t-gp", True): 1.05, ("gp", False): 1.05}

#: Largest time of a step over the GP's, and smallest of relevance pursuit over ours.
STEP, PURSUIT = 1.2, 20.0

#: Share of wrong rows in a design, and their sizes in units of the range of the values.
SHARE, SIZES = 0.15, (0.6, 15.0)

#: Least share of errors flagged, largest of good rows flagged, largest error over that of the GP without errors.
RECALL, FALSE, ERROR = 0.95, 0.02, 1.05

#: Functions of 4 to 8 inputs, by name and number of inputs.
FUNCTIONS = (("Hartmann", 6), ("Ackley", 5), ("Levy", 4), ("Griewank", 5), ("Rosenbrock", 4), ("StyblinskiTang", 8))

#: Evaluations of a loop, and its largest simple regret over that of the GP without errors.
EVALUATIONS, LOOP = 40, 1.15


@dataclass(frozen=True)
class Figure:
    """A measured ratio and its limits; one that is not a number keeps none."""

    bar: str
    where: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    runs: int = 0

    @property
    def met(self) -> bool:
        return self.low <= self.value <= self.high

    def told(self) -> str:
        limit = f"≤ {self.high:g}" if math.isfinite(self.high) else f"≥ {self.low:g}"
        runs = f"{self.runs} runs" if self.runs else ""
        return (
            f"| {self.bar} | {self.where} | {self.value:.3f} | {limit} | {'met' if self.met else 'MISSED'} | {runs} |"
        )


def read(folder: Path) -> list[Record]:
    """All runs of the longest kind; of two of the same configuration the newer."""
    files = [RecordFile(folder / f"{name}.jsonl").read()[0] for name in EXPERIMENTS_BO]
    records = list({record.key: record for found in files for record in found}.values())
    steps = max((record.config["steps"] for record in records), default=0)
    return [record for record in records if record.config["steps"] == steps]


def regret_figures(records: Sequence[Record], method: str = "rcgp") -> list[Figure]:
    """Mean final cumulative regret over another method's, of the repetitions that both have."""
    figures = []
    for outliers in (True, False):
        for acquisition in ("ucb", "pi"):
            for function in FUNCTION_TITLES:
                cell = {"function": function, "acquisition": acquisition, "outliers": outliers}
                ours = _final(records, {**cell, "method": method})
                for other, limited in REGRET:
                    theirs = _final(records, {**cell, "method": other})
                    common = sorted(ours.keys() & theirs.keys())
                    if limited == outliers and common:
                        ratio = sum(ours[i] for i in common) / sum(theirs[i] for i in common)
                        where = f"{function} {acquisition} {'outliers' if outliers else 'clean'}"
                        figures.append(
                            Figure(
                                f"regret {method}/{other}", where, ratio, high=REGRET[other, limited], runs=len(common)
                            )
                        )
    return figures


def _final(records: Sequence[Record], config: dict[str, object]) -> dict[int, float]:
    """Cumulative regret at the end, by repetition."""
    found = [record for record in records if config.items() <= record.config.items()]
    return {record.config["index"]: float(np.sum(record.values["regret"])) for record in found}


def recorded_step_figure(records: Sequence[Record]) -> list[Figure]:
    """Seconds of RCGP's steps over the GP's in pairs of recorded runs: the median over pairs. It is not judged.

    The runs of a pair were made one after the other at best, and beside whatever else the machine did.
    """
    totals: dict[str, dict[str, float]] = {"gp": {}, "rcgp": {}}
    for record in records:
        if record.config["method"] in totals:
            pair = str({**record.config, "method": ""})
            seconds = np.sum(record.values["fit_seconds"]) + np.sum(record.values["acquisition_seconds"])
            totals[record.config["method"]][pair] = float(seconds)
    ratios = [totals["rcgp"][pair] / totals["gp"][pair] for pair in totals["gp"].keys() & totals["rcgp"].keys()]
    if not ratios:
        return []
    return [Figure("step rcgp/gp, in records", "all", statistics.median(ratios), high=math.inf, runs=len(ratios))]


def step_figures(repeats: int, sizes: Sequence[int], pursuit: bool) -> list[Figure]:
    """Time of a step on contaminated evaluations of all functions: medians over repeats and functions."""
    from rcgp_paper.experiments.trials import (
        FUNCTIONS,
        Contamination,
        Fitted,
        fit_gp,
        fit_rcgp,
        fit_relevance_pursuit,
        suggest,
    )

    def seconds(fit: Fitted, X: torch.Tensor, Y: torch.Tensor) -> float:
        began = time.perf_counter()
        suggest("ucb", fit(X, Y)[0], X, seed=0)
        return time.perf_counter() - began

    def data(name: str, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(n, 2, dtype=torch.float64, generator=generator)
        return X, Contamination(generator)(FUNCTIONS[name](X))[0].unsqueeze(-1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warm = data("branin", 10, 0)
        for fit in (fit_gp, fit_rcgp):
            seconds(fit, *warm)
        figures = []
        for n in sizes:
            pairs = [
                (seconds(fit_rcgp, *problem), seconds(fit_gp, *problem))
                for seed in range(repeats)
                for problem in (data(name, n, seed) for name in FUNCTIONS)
            ]
            ratio = sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)
            figures.append(Figure("step rcgp/gp, now", f"n = {n}", ratio, high=STEP, runs=len(pairs)))
        if pursuit:
            pairs = [
                (seconds(fit_relevance_pursuit, *problem), seconds(fit_rcgp, *problem))
                for problem in (data(name, 30, 0) for name in FUNCTIONS)
            ]
            ratio = sum(theirs for theirs, _ in pairs) / sum(ours for _, ours in pairs)
            figures.append(Figure("step RRP/rcgp, now", "n = 30", ratio, low=PURSUIT, runs=len(pairs)))
    return figures


@dataclass
class Design:
    """What surrogates made of some designs: counts of rows, and errors over those of the GP without errors."""

    found: int = 0
    errors: int = 0
    flagged: int = 0
    good: int = 0
    robust: list[float] = field(default_factory=list)
    ordinary: list[float] = field(default_factory=list)
    good_rows: list[float] = field(default_factory=list)

    def __add__(self, other: Design) -> Design:
        return Design(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(Design)))

    def told(self, where: str) -> str:
        means = (statistics.geometric_mean(values) for values in (self.robust, self.ordinary, self.good_rows))
        shares = f"{self.found / self.errors:.3f} | {self.flagged / self.good:.3f}"
        return f"| {where} | {shares} | " + " | ".join(f"{mean:.3f}" for mean in means) + f" | {max(self.robust):.2f} |"


def design(function: SyntheticTestFunction, n: int, sign: float, seed: int) -> Design:
    """One Sobol design of ``n`` rows; errors have the sign."""
    from rcgp_paper.experiments.trials import fit_gp, fit_rcgp

    low, high = function.bounds
    X = torch.quasirandom.SobolEngine(len(low), True, seed).draw(n, dtype=torch.float64)  # type: ignore[no-untyped-call]
    test = torch.rand(1000, len(low), dtype=torch.float64, generator=torch.Generator().manual_seed(99))
    y, truth = (function.evaluate_true(low + points * (high - low)) for points in (X, test))
    generator = torch.Generator().manual_seed(1000 + seed)
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[torch.randperm(n, generator=generator)[: round(SHARE * n)]] = True
    size = SIZES[0] + (SIZES[1] - SIZES[0]) * torch.rand(n, generator=generator, dtype=torch.float64)
    observed = torch.where(wrong, y + sign * size * (y.max() - y.min()), y)

    def error(model: Model) -> float:
        with torch.no_grad():
            return float((model.posterior(test).mean.squeeze(-1) - truth).square().mean().sqrt())

    robust = fit_rcgp(X, observed.unsqueeze(-1))[0]
    flagged = robust.outliers().squeeze(-1)
    clean = error(fit_gp(X, y.unsqueeze(-1))[0])
    return Design(
        found=int((flagged & wrong).sum()),
        errors=int(wrong.sum()),
        flagged=int((flagged & ~wrong).sum()),
        good=int((~wrong).sum()),
        robust=[error(robust) / clean],
        ordinary=[error(fit_gp(X, observed.unsqueeze(-1))[0]) / clean],
        good_rows=[error(fit_gp(X[~wrong], y[~wrong].unsqueeze(-1))[0]) / clean],
    )


def judge_designs(seeds: int, sizes: Sequence[int]) -> bool:
    """Print a table of all designs; whether the bars are met."""
    functions = [_function(*entry) for entry in FUNCTIONS]
    print("| function, rows, sign | recall | good flagged | RMSE | GP's | GP of good rows | worst |\n|" + "---|" * 7)
    total = Design()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function in functions:
            for n in sizes:
                for sign in (-1.0, 1.0):
                    runs = [design(function, n, sign, seed) for seed in range(seeds)]
                    cell = sum(runs, Design())
                    total = total + cell
                    where = f"{type(function).__name__} {function.dim}, {n}, {'+' if sign > 0 else '−'}"
                    print(cell.told(where), flush=True)
    print(total.told("all"))
    met = total.found >= RECALL * total.errors and total.flagged <= FALSE * total.good
    return met and statistics.geometric_mean(total.robust) <= ERROR


def _function(name: str, inputs: int) -> SyntheticTestFunction:
    from botorch import test_functions

    function: SyntheticTestFunction = getattr(test_functions, name)(inputs)
    return function


def loop_configs(options: Options) -> list[Config]:
    """All runs; ``clean`` is the GP that sees no errors."""
    return [
        {"function": name, "inputs": inputs, "method": method, "seed": seed, "evaluations": EVALUATIONS}
        for name, inputs in FUNCTIONS
        for seed in range(options.splits)
        for method in ("clean", "gp", "rcgp")
    ]


def run_loop(config: Config) -> dict[str, Any]:
    """Maximise −f by log expected improvement over the best posterior mean: simple regret, seconds, flags."""
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.utils.sampling import manual_seed

    from rcgp_paper.experiments.trials import fit_gp, fit_rcgp

    function, method, seed = _function(config["function"], config["inputs"]), config["method"], config["seed"]
    low, high = function.bounds
    cube = torch.stack([torch.zeros_like(low), torch.ones_like(low)]).double()
    generator = torch.Generator().manual_seed(1 + seed)

    def value(points: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = -function.evaluate_true(low + points * (high - low))
        return values

    sample = value(torch.rand(2000, len(low), dtype=torch.float64, generator=torch.Generator().manual_seed(99)))
    span = sample.max() - sample.min()

    def errors(n: int) -> torch.Tensor:
        """Of 15 % of the evaluations, up or down; the same ones for all methods."""
        size = SIZES[0] + (SIZES[1] - SIZES[0]) * torch.rand(n, generator=generator, dtype=torch.float64)
        sign = 2.0 * torch.randint(0, 2, (n,), generator=generator) - 1.0
        return torch.where(torch.rand(n, generator=generator) < SHARE, sign * size * span, 0.0)

    n = 2 * len(low)
    X = torch.quasirandom.SobolEngine(len(low), True, seed).draw(n, dtype=torch.float64)  # type: ignore[no-untyped-call]
    y, wrong = value(X), errors(n)
    seconds = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(EVALUATIONS):
            observed = (y if method == "clean" else y + wrong).unsqueeze(-1)
            began = time.process_time()
            model = (fit_rcgp if method == "rcgp" else fit_gp)(X, observed)[0]
            with torch.no_grad():
                best = model.posterior(X).mean.max()
            with manual_seed(1000 * seed + step):
                x, _ = optimize_acqf(
                    LogExpectedImprovement(model, best_f=best), cube, q=1, num_restarts=4, raw_samples=128
                )
            seconds += time.process_time() - began
            X, y, wrong = torch.cat([X, x]), torch.cat([y, value(x)]), torch.cat([wrong, errors(1)])
    found = {"regret": float(-function.optimal_value - y.max()), "seconds": seconds}
    if method == "rcgp":
        flagged, bad = model.outliers().squeeze(-1), wrong[:-1] != 0.0
        found["recall"] = float((flagged & bad).sum() / bad.sum().clamp_min(1))
        found["good_flagged"] = float((flagged & ~bad).sum() / (~bad).sum())
    return found


def judge_loop(seeds: int, folder: Path, jobs: int, redo: str | None) -> bool:
    """Make the runs that have no record, print a table, and say whether the bars are met.

    Args:
        seeds, folder, jobs: see ``main``.
        redo: a method whose runs by other code are made again.
    """
    experiment = Experiment("loop", "log expected improvement, 4 to 8 inputs", loop_configs, run_loop)
    tell = functools.partial(print, end="\r", file=sys.stderr)
    run_all = functools.partial(
        run_experiment, experiment, Options(splits=seeds), folder, jobs, lambda done, total: tell(f"{done} of {total}")
    )
    if redo:
        run_all(redo)  # which returns the records of that method alone
    records, failures, _ = run_all()
    for failure in failures:
        print(failure, file=sys.stderr)
    print("| function | regret, clean GP | over it: RCGP | GP | time of a step: RCGP | recall | good flagged |")
    print("|" + "---|" * 7)
    ratios, times, met = [], [], not failures
    for name, inputs in FUNCTIONS:
        of_function = [record for record in records if record.config["function"] == name]
        runs = {
            method: [record.values for record in of_function if record.config["method"] == method]
            for method in ("clean", "gp", "rcgp")
        }
        if len({len(found) for found in runs.values()}) > 1 or not runs["rcgp"]:
            print(f"| {name} {inputs} | runs failed or are missing |")
            met = False
            continue
        regret = {method: statistics.mean(run["regret"] for run in found) for method, found in runs.items()}
        seconds = {method: sum(run["seconds"] for run in found) for method, found in runs.items()}
        ratios.append(regret["rcgp"] / regret["clean"])
        times.append(seconds["rcgp"] / seconds["clean"])
        met = met and regret["rcgp"] < regret["gp"]
        flags = [statistics.mean(run[key] for run in runs["rcgp"]) for key in ("recall", "good_flagged")]
        cells = [ratios[-1], regret["gp"] / regret["clean"], times[-1], *flags]
        print(f"| {name} {inputs} | {regret['clean']:.4g} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    print(
        f"\nmean regret {statistics.mean(ratios):.3f} (bar {LOOP}), mean time {statistics.mean(times):.2f} (bar {STEP})"
    )
    return met and statistics.mean(ratios) <= LOOP and statistics.mean(times) <= STEP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("regret", "designs", "loop"), default="regret")
    parser.add_argument("--seeds", type=int, default=5, help="designs of each kind, or loops of each function")
    parser.add_argument("--redo", choices=("clean", "gp", "rcgp"), help="repeat the loops of this method by older code")
    parser.add_argument("--jobs", type=int, default=1, help="loops at a time; times are those of one at a time")
    parser.add_argument("--design-rows", type=int, nargs="+", default=[20, 40])
    parser.add_argument("--records", type=Path, default=Path("results"), help="folder of rcgp reproduce")
    parser.add_argument("--repeats", type=int, default=3, help="of each measured step")
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 30, 50])
    parser.add_argument("--no-times", action="store_true", help="regret only")
    parser.add_argument("--no-pursuit", action="store_true", help="leave relevance pursuit out: it takes minutes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "designs":
        sys.exit(0 if judge_designs(arguments.seeds, arguments.design_rows) else 1)
    if arguments.what == "loop":
        sys.exit(0 if judge_loop(arguments.seeds, arguments.records, arguments.jobs, arguments.redo) else 1)
    records = read(arguments.records)
    judged = regret_figures(records)
    shown = [*judged, *regret_figures(records, "rcgp_paper")]
    if not arguments.no_times:
        times = step_figures(arguments.repeats, arguments.rows, not arguments.no_pursuit)
        judged, shown = [*judged, *times], [*shown, *times]
    print("| ratio | where | value | bar | verdict | over |\n|---|---|---|---|---|---|")
    for figure in shown:
        print(figure.told())
    for figure in recorded_step_figure(records):
        print(f"\nIn records, which is not judged: {figure.bar.split(',')[0]} {figure.value:.2f} ({figure.runs} pairs)")
    if not records:
        titles = ", ".join(name for name in EXPERIMENTS if name in EXPERIMENTS_BO)
        print(f"\nno records in {str(arguments.records)!r}: run 'rcgp reproduce' for {titles} first")
        sys.exit(2)
    sys.exit(0 if all(figure.met for figure in judged) else 1)


if __name__ == "__main__":
    main()
