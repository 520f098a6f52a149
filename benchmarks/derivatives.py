"""Values and derivatives of which a tenth is wrong, and averages of which a tenth is: errors beside the clean fit.

python benchmarks/derivatives.py gradients     # root mean squared errors; records in results/derivatives.jsonl
python benchmarks/derivatives.py averages      # the same, coverage and flags, of f from its averages over intervals

Clean is the ordinary GP of the same data without the wrong cells.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rcgp import RCGP, AverageRCGP, GradientRCGP, fit_robust
from rcgp.training.fit import fit_ordinary
from rcgp.weights import Constant
from rcgp.weights.noise_law import FLAGGED

RECORDS = Path(__file__).parents[1] / "results" / "derivatives.jsonl"
SEEDS, TEST, SHARE = range(5), 1000, 0.1


def branin(X: Tensor) -> Tensor:
    x, y = 15.0 * X[:, 0] - 5.0, 15.0 * X[:, 1]
    square = y - 5.1 / (4.0 * np.pi**2) * x**2 + 5.0 / np.pi * x - 6.0
    value: Tensor = square**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * torch.cos(x) + 10.0
    return value


def waves(X: Tensor) -> Tensor:
    """Four inputs: waves of three directions, and a product."""
    a, b, c, d = X.T
    value: Tensor = torch.sin(3.0 * a + b) + torch.cos(2.0 * c - 2.0 * d) + torch.sin(2.0 * b * d) + 0.5 * a * c
    return value


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {"Branin": (branin, 2, 40), "waves": (waves, 4, 50)}


def scattered(Y: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A tenth of all cells, off by one to five standard deviations of their output."""
    bad = torch.from_numpy(random.random(Y.shape) < SHARE)
    size = random.choice([-1.0, 1.0], Y.shape) * random.uniform(1.0, 5.0, Y.shape)
    return torch.where(bad, Y + torch.from_numpy(size) * Y.std(dim=0), Y), bad


def rows(Y: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A tenth of the rows: value and gradient, off by one to five standard deviations each."""
    bad = torch.from_numpy(random.random((len(Y), 1)) < SHARE).expand_as(Y)
    size = random.choice([-1.0, 1.0], Y.shape) * random.uniform(1.0, 5.0, Y.shape)
    return torch.where(bad, Y + torch.from_numpy(size) * Y.std(dim=0), Y), bad


def signs(Y: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A tenth of the derivatives with the wrong sign."""
    bad = torch.from_numpy(random.random(Y.shape) < SHARE)
    bad[:, 0] = False
    return torch.where(bad, -Y, Y), bad


KINDS = {"scattered": scattered, "rows": rows, "signs": signs}


def gradients(name: str, kind: str, noise: float, seed: int) -> list[dict[str, object]]:
    """Errors of the function for each method, on one data set."""
    function, d, n = FUNCTIONS[name]
    random = np.random.default_rng(seed)
    X = torch.from_numpy(random.uniform(size=(n, d))).requires_grad_(True)
    y = function(X)
    (dy,) = torch.autograd.grad(y.sum(), X)
    X, Y = X.detach(), torch.cat([y.detach().unsqueeze(-1), dy], dim=-1)
    Y = Y + noise * Y.std(dim=0) * torch.from_numpy(random.standard_normal(Y.shape))
    given, bad = KINDS[kind](Y, random)
    test = torch.from_numpy(random.uniform(size=(TEST, d)))
    kept = torch.where(bad, torch.nan, given)
    robust = GradientRCGP(X, given[:, 0], given[:, 1:])
    fit_robust(robust)
    ordinary = {
        "clean": GradientRCGP(X, kept[:, 0], kept[:, 1:], weight=Constant()),
        "ordinary": GradientRCGP(X, given[:, 0], given[:, 1:], weight=Constant()),
    }
    for model in ordinary.values():
        fit_ordinary(model)
    values_only = RCGP(X, given[:, 0], mean="median")
    fit_robust(values_only)
    flagged = robust.cells(robust.outlier_probability()) > FLAGGED
    base = {"task": "gradients", "function": name, "kind": kind, "noise": noise, "seed": seed, "bad": int(bad.sum())}
    found = {name: model.posterior(test, outputs=[0]).mean[:, 0] for name, model in ordinary.items()}
    found |= {"robust": robust.posterior(test, outputs=[0]).mean[:, 0], "values only": values_only.posterior(test).mean}
    errors = {name: float((mean - function(test)).square().mean().sqrt()) for name, mean in found.items()}
    flags = {"found": int((flagged & bad).sum()), "false": int((flagged & ~bad).sum())}
    return [
        {**base, "method": name, "error": error, **(flags if name == "robust" else {})}
        for name, error in errors.items()
    ]


def run_gradients() -> list[dict[str, object]]:
    return [
        record
        for name in FUNCTIONS
        for kind in KINDS
        for noise in (0.0, 0.02)
        for seed in SEEDS
        for record in gradients(name, kind, noise, seed)
    ]


def table(records: list[dict[str, object]]) -> str:
    """Errors over the clean model's, geometric mean and worst of the seeds, and flags."""
    keys = ("function", "kind", "noise")
    lines = [
        "| function | errors | noise | robust | worst | ordinary | values only | found | false |",
        "|" + "---|" * 9,
    ]
    for group in dict.fromkeys(tuple(r[key] for key in keys) for r in records):
        own = [r for r in records if tuple(r[key] for key in keys) == group]
        clean = {r["seed"]: r["error"] for r in own if r["method"] == "clean"}
        ratio = {
            method: np.array([float(r["error"]) / float(clean[r["seed"]]) for r in own if r["method"] == method])  # type: ignore[arg-type]
            for method in ("robust", "ordinary", "values only")
        }
        mean = {method: f"{np.exp(np.log(values).mean()):.3g}" for method, values in ratio.items()}
        robust = [r for r in own if r["method"] == "robust"]
        found, false, bad = (sum(int(r[key]) for r in robust) for key in ("found", "false", "bad"))  # type: ignore[call-overload]
        cells = (*group, mean["robust"], f"{ratio['robust'].max():.3g}", mean["ordinary"], mean["values only"],
                 f"{found} of {bad}", false)  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def averages(seed: int, share: float) -> dict[str, object]:
    """f from sixty averages over intervals, of which a share is bad: errors and coverage of f on a grid, and flags."""
    random = np.random.default_rng(seed)
    low = np.sort(random.uniform(0.0, 10.0, 60))
    high = low + random.uniform(0.05, 1.5, 60)
    ends = [np.sin(2.0 * x) / 4.0 - np.cos(x) for x in (low, high)]  # of sin x + ½ cos 2x
    y = (ends[1] - ends[0]) / (high - low) + 0.05 * random.standard_normal(60)
    bad = random.random(60) < share
    given = np.where(bad, y + random.choice([-1.0, 1.0], 60) * random.uniform(1.0, 4.0, 60), y)
    clean = AverageRCGP.of_intervals(low, high, np.where(bad, np.nan, given), weight=Constant())
    ordinary = AverageRCGP.of_intervals(low, high, given, weight=Constant())
    robust = AverageRCGP.of_intervals(low, high, given)
    fit_ordinary(clean), fit_ordinary(ordinary), fit_robust(robust)
    x = np.linspace(low.min(), high.max(), 200)
    record: dict[str, object] = {"task": "averages", "seed": seed, "share": share, "bad": int(bad.sum())}
    for name, model in (("clean", clean), ("ordinary", ordinary), ("robust", robust)):
        posterior = model.posterior(torch.from_numpy(x).unsqueeze(-1))
        error = posterior.mean.numpy() - np.sin(x) - 0.5 * np.cos(2.0 * x)
        record[name] = float(np.sqrt(np.mean(error**2)))
        record[f"{name}, coverage"] = float(np.mean(np.abs(error) < 1.96 * posterior.variance.sqrt().numpy()))
    flagged = (robust.outlier_probability() > FLAGGED).numpy()
    return {**record, "found": int((flagged & bad).sum()), "false": int((flagged & ~bad).sum())}


def table_of_averages(records: list[dict[str, object]]) -> str:
    """Errors over the clean model's, and mean coverage of the intervals of 95 %."""
    lines = [
        "| bad | robust | worst | ordinary | coverage: clean | robust | ordinary | found | false |",
        "|" + "---|" * 9,
    ]
    for share in dict.fromkeys(record["share"] for record in records):
        rows = [record for record in records if record["share"] == share]
        values = {key: np.array([float(row[key]) for row in rows]) for key in rows[0] if key != "task"}  # type: ignore[arg-type]
        ratio = {name: values[name] / values["clean"] for name in ("robust", "ordinary")}
        cells = [f"{np.exp(np.log(ratio['robust']).mean()):.3g}", f"{ratio['robust'].max():.3g}",
                 f"{np.exp(np.log(ratio['ordinary']).mean()):.3g}"]  # fmt: skip
        cells += [f"{values[f'{name}, coverage'].mean():.3f}" for name in ("clean", "robust", "ordinary")]
        flags = [int(values[key].sum()) for key in ("found", "bad", "false")]
        lines.append(f"| {share:.0%} | {' | '.join(cells)} | {flags[0]} of {flags[1]} | {flags[2]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gradients", "averages"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gradient_data = arguments.what == "gradients"
    records = (
        run_gradients() if gradient_data else [averages(seed, share) for share in (0.0, 0.1) for seed in range(20)]
    )
    with RECORDS.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    print(table(records) if gradient_data else table_of_averages(records))
