"""Several outputs with bad and missing cells: errors, flags and coverage beside other methods, and speed.

python benchmarks/outputs.py accuracy --half judge   # records in results/outputs.jsonl; a second call goes on
python benchmarks/outputs.py speed                   # value and gradient at 2000 cells, and a whole fit
python benchmarks/outputs.py page                    # the tables of docs/several_outputs.md, from the records

Seeds 0 to 4 are for tuning, 100 to 104 for judging. Some methods are told which cells are bad, to learn what can be
attained: GPs of the other cells, joint or independent, and a robust fit of all cells that starts at the joint GP's
hyperparameters. Where that one has more evidence, by a nat, and the smaller error, the search has missed it; where it
has the smaller error only, the evidence prefers the worse fit.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray

from rcgp import RCGP, MultiOutputRCGP, fit_robust
from rcgp.models.defaults import add_weak_priors
from rcgp.training.fit import fit_ordinary
from rcgp.training.objectives import marginal
from rcgp.training.search import hyperparameters_of, restore_hyperparameters
from rcgp.weights import Constant
from rcgp.weights.noise_law import FLAGGED
from rcgp_paper.baselines import StudentTGP
from rcgp_paper.baselines.row_centred import RowCentredGP

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

RECORDS = Path(__file__).parents[1] / "results" / "outputs.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "several_outputs.md"
SEEDS = {"tune": range(5), "judge": range(100, 105)}
MISSING = (0.0, 0.3, 0.6)
TEST_ROWS = 200

KEYS = ("table", "errors", "missing", "seed")
MUCH_WORSE = 1.15  # error over that of the clean fit


def _sample(X: Array, lengthscale: float, count: int, random: np.random.Generator) -> Array:
    """Functions of a squared exponential of variance one, ``n x count``."""
    squares = ((X[:, None] - X[None]) ** 2).sum(-1)
    K = np.exp(-0.5 * squares / lengthscale**2) + 1e-9 * np.eye(len(X))
    f: Array = np.linalg.cholesky(K) @ random.standard_normal((len(X), count))
    return f


def icm(random: np.random.Generator) -> tuple[Array, Array, int]:
    """Four outputs with one kernel: inputs, functions, and number of training rows."""
    X = random.uniform(0.0, 10.0, (60 + TEST_ROWS, 1))
    W = random.standard_normal((2, 4))
    W /= np.linalg.norm(W, axis=0)
    F = 0.95 * _sample(X, 1.0, 2, random) @ W + 0.3 * _sample(X, 1.0, 4, random)
    return X, F * np.array([1.0, 10.0, 0.1, 3.0]), 60


def lmc(random: np.random.Generator) -> tuple[Array, Array, int]:
    """Three outputs of two inputs, sums of a slow and a fast function."""
    X = random.uniform(0.0, 4.0, (80 + TEST_ROWS, 2))
    slow, fast = random.standard_normal((1, 3)), random.standard_normal((1, 3))
    F = _sample(X, 2.5, 1, random) @ slow + 0.5 * _sample(X, 1.0, 1, random) @ fast
    return X, F + 0.1 * _sample(X, 1.5, 3, random), 80


def energy(random: np.random.Generator) -> tuple[Array, Array, int]:
    """Heating and cooling loads of buildings; the noise is their own."""
    home = Path(os.environ.get("RCGP_DATA_HOME", "../shared/data"))
    table = np.loadtxt(home / "suite" / "energy_two_outputs.csv", delimiter=",", skiprows=1)
    rows = random.permutation(len(table))[: 120 + TEST_ROWS]
    return table[rows, :8], table[rows, 8:], 120


TABLES: dict[str, Callable[[np.random.Generator], tuple[Array, Array, int]]] = {
    "icm": icm,
    "lmc": lmc,
    "energy": energy,
}


def two_sided(Y: Array, random: np.random.Generator) -> tuple[Array, Mask]:
    bad = random.random(Y.shape) < 0.10
    size = random.choice([-1.0, 1.0], Y.shape) * random.uniform(3.0, 9.0, Y.shape) * Y.std(axis=0)
    return np.where(bad, Y + size, Y), bad


def one_sided(Y: Array, random: np.random.Generator) -> tuple[Array, Mask]:
    bad = random.random(Y.shape) < 0.10
    return np.where(bad, Y - random.uniform(3.0, 9.0, Y.shape) * Y.std(axis=0), Y), bad


def whole_rows(Y: Array, random: np.random.Generator) -> tuple[Array, Mask]:
    """All cells of a tenth of the rows, each off by its own amount."""
    bad = np.broadcast_to(random.random((len(Y), 1)) < 0.10, Y.shape).copy()
    size = random.choice([-1.0, 1.0], Y.shape) * random.uniform(3.0, 9.0, Y.shape) * Y.std(axis=0)
    return np.where(bad, Y + size, Y), bad


def stretch(Y: Array, random: np.random.Generator) -> tuple[Array, Mask]:
    """The first output is shifted for a tenth of its rows, in one stretch of the first input."""
    count = round(0.10 * len(Y))
    start = random.integers(0, len(Y) - count + 1)
    bad = np.zeros(Y.shape, dtype=bool)
    bad[start : start + count, 0] = True
    size = random.choice([-1.0, 1.0]) * random.uniform(3.0, 6.0) * Y.std(axis=0)
    return np.where(bad, Y + size, Y), bad


ERRORS = {"two-sided": two_sided, "one-sided": one_sided, "whole rows": whole_rows, "stretch": stretch}


def problem(name: str, errors: str, missing: float, seed: int) -> tuple[Array, Array, Mask, Array, Array]:
    """Training inputs, observations with bad and missing cells, which are bad; test inputs and observations."""
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    X, F, n = TABLES[name](random)
    Y = F if name == "energy" else F + 0.1 * F.std(axis=0) * random.standard_normal(F.shape)
    order = np.argsort(X[:n, 0], kind="stable")
    X, Y = np.concatenate([X[:n][order], X[n:]]), np.concatenate([Y[:n][order], Y[n:]])
    spoilt, bad = ERRORS[errors](Y[:n], np.random.default_rng([seed, zlib.crc32(errors.encode())]))
    gone = np.random.default_rng([seed, 7]).random(spoilt.shape) < missing
    return X[:n], np.where(gone, np.nan, spoilt), bad & ~gone, X[n:], Y[n:]


class Fitted(NamedTuple):
    """Means and 95 % intervals of new observations; flags of cells and evidence, if any."""

    mean: Array
    low: Array
    high: Array
    flags: Mask | None = None
    evidence: float | None = None


def _joint(X: Array, Y: Array) -> MultiOutputRCGP:
    """The model before its fit, with weak priors as the estimator has them."""
    model = MultiOutputRCGP(torch.from_numpy(X), torch.from_numpy(Y), weight=Constant())
    add_weak_priors(model)
    return model


def _predict_joint(model: MultiOutputRCGP, X: Array) -> tuple[Array, Array, Array]:
    with torch.no_grad():
        x = torch.from_numpy(X)
        posterior = model.posterior(x)
        low, high = [], []
        for t, law in enumerate(model.noise_laws):
            noise = model.noise_scale(model.inputs_of(x, t))
            width = law.quantile(torch.tensor(0.975).double(), posterior.variance[:, t].clamp_min(0.0), noise)
            low.append(posterior.mean[:, t] - width)
            high.append(posterior.mean[:, t] + width)
        return posterior.mean.numpy(), torch.stack(low, -1).numpy(), torch.stack(high, -1).numpy()


def ours(X: Array, Y: Array, new: Array, start: MultiOutputRCGP | None = None) -> Fitted:
    model = _joint(X, Y)
    if start is not None:
        restore_hyperparameters(model, hyperparameters_of(start))
    report = fit_robust(model)
    flags = (model.cells(model.outlier_probability()) > FLAGGED).numpy()
    return Fitted(*_predict_joint(model, new), flags, report.value)


def _plain(X: Array, Y: Array) -> MultiOutputRCGP:
    model = _joint(X, Y)
    fit_ordinary(model)
    return model


def plain(X: Array, Y: Array, new: Array) -> Fitted:
    return Fitted(*_predict_joint(_plain(X, Y), new))


def row_centred(X: Array, Y: Array, new: Array) -> Fitted:
    model = RowCentredGP(torch.from_numpy(X), torch.from_numpy(Y))
    model.fit()
    return Fitted(*_predict_joint(model, new))


def independent(X: Array, Y: Array, new: Array, run: Callable[[RCGP], Any] = fit_robust) -> Fitted:
    parts, flags = [], np.zeros(Y.shape, dtype=bool)
    for t in range(Y.shape[1]):
        seen = ~np.isnan(Y[:, t])
        model = RCGP(torch.from_numpy(X[seen]), torch.from_numpy(Y[seen, t]), mean="median", weight=Constant())
        add_weak_priors(model)
        run(model)
        flags[seen, t] = (model.outlier_probability() > FLAGGED).numpy()
        with torch.no_grad():
            x = torch.from_numpy(new)
            posterior = model.posterior(x)
            q = torch.tensor(0.975).double()
            width = model.noise_law.quantile(q, posterior.variance.clamp_min(0.0), model.noise_scale(x))
            parts.append([(posterior.mean + sign * width).numpy() for sign in (0.0, -1.0, 1.0)])
    mean, low, high = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
    return Fitted(mean, low, high, flags if run is fit_robust else None)


def student_t(X: Array, Y: Array, new: Array) -> Fitted:
    means = []
    for t in range(Y.shape[1]):
        seen = ~np.isnan(Y[:, t])
        model = StudentTGP(torch.from_numpy(X[seen]), torch.from_numpy(Y[seen, t]), mean="median")
        add_weak_priors(model)
        model.fit()
        with torch.no_grad():
            means.append(model.posterior(torch.from_numpy(new)).mean.numpy())
    mean = np.stack(means, axis=-1)
    return Fitted(mean, mean, mean)


METHODS: dict[str, Callable[[Array, Array, Array], Fitted]] = {
    "MultiOutputRCGP": ours,
    "multi-output GP": plain,
    "independent RCGPs": independent,
    "MO-RCGP's rule": row_centred,
    "Student-t GPs": student_t,
}

# What is told the bad cells: inputs, observations without them, all observations, test inputs.
TOLD: dict[str, Callable[[Array, Array, Array, Array], Fitted]] = {
    "clean": lambda X, kept, Y, new: plain(X, kept, new),
    "clean independent GPs": lambda X, kept, Y, new: independent(X, kept, new, fit_ordinary),
    "from the clean fit": lambda X, kept, Y, new: ours(X, Y, new, _plain(X, kept)),
}


def judge(name: str, errors: str, missing: float, seed: int, methods: Iterable[str]) -> Iterable[dict[str, Any]]:
    """A record for each method; "clean" is the multi-output GP without the bad cells."""
    X, Y, bad, new, truth = problem(name, errors, missing, seed)
    scale, kept = truth.std(axis=0), np.where(bad, np.nan, Y)
    for method in methods:
        began = time.process_time()
        found = METHODS[method](X, Y, new) if method in METHODS else TOLD[method](X, kept, Y, new)
        mean, low, high, flags, evidence = found
        record: dict[str, Any] = {
            "table": name, "errors": errors, "missing": missing, "seed": seed, "method": method,
            "error": float((np.abs(mean - truth) / scale).mean()), "seconds": time.process_time() - began,
        }  # fmt: skip
        if method != "Student-t GPs":
            record["coverage"] = float(((low <= truth) & (truth <= high)).mean())
        if evidence is not None:
            record["evidence"] = evidence
        if flags is not None:
            hits = int((flags & bad).sum())
            record["recall"] = hits / max(int(bad.sum()), 1)
            record["precision"] = hits / max(int(flags.sum()), 1)
        yield record


def accuracy(half: str, only: list[str] | None) -> None:
    RECORDS.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    done = {tuple(record[key] for key in (*KEYS, "method")) for record in known}
    for cell in [(t, e, m, s) for s in SEEDS[half] for t in TABLES for e in ERRORS for m in MISSING]:
        wanted = [method for method in (*TOLD, *(only or METHODS)) if (*cell, method) not in done]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            records = list(judge(*cell, wanted))
        with RECORDS.open("a") as file:
            file.writelines(json.dumps({"half": half, **record}) + "\n" for record in records)
        print(*cell, *(f"{r['method']} {r['error']:.4f}" for r in records), flush=True)


def table(records: list[dict[str, Any]]) -> str:
    """Errors over those of the multi-output GP without the bad cells, geometric means; flags; coverage."""
    clean = {tuple(r[k] for k in KEYS): r["error"] for r in records if r["method"] == "clean"}
    lines = ["| errors | method | 0 % missing | 30 % | 60 % | worst | recall | precision | coverage |",
             "|---" * 9 + "|"]  # fmt: skip
    for errors in ERRORS:
        for method in METHODS:
            own = [r for r in records if r["errors"] == errors and r["method"] == method]
            ratio = {
                m: [r["error"] / clean[tuple(r[k] for k in KEYS)] for r in own if r["missing"] == m] for m in MISSING
            }
            cells = [f"{np.exp(np.mean(np.log(values))):.3f}" if values else "" for values in ratio.values()]
            cells.append(f"{max((max(v) for v in ratio.values() if v), default=np.nan):.2f}")
            for key in ("recall", "precision", "coverage"):
                values = [r[key] for r in own if key in r]
                cells.append(f"{np.mean(values):.3f}" if values else "")
            lines.append(f"| {errors} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def attainable(records: list[dict[str, Any]]) -> str:
    """The gain of one model over independent ones, by table; and why fits are much worse than the clean one."""
    by = {(r["method"], *(r[k] for k in KEYS)): r for r in records}
    cells = [key[1:] for key in by if key[0] == "MultiOutputRCGP"]
    lines = ["| table | " + " | ".join(f"{m:.0%} missing: clean | robust" for m in MISSING) + " |", "|---" * 7 + "|"]
    for name in TABLES:
        row = []
        for missing in MISSING:
            own = [c for c in cells if (c[0], c[2]) == (name, missing)]
            for pair in (("clean", "clean independent GPs"), ("MultiOutputRCGP", "independent RCGPs")):
                first, second = (np.log([by[method, *c]["error"] for c in own]) for method in pair)
                row.append(f"{np.exp((first - second).mean()):.2f}")
        lines.append(f"| {name} | {' | '.join(row)} |")
    lines += ["", "| errors | fits | much worse | missed by the search |", "|---" * 4 + "|"]
    for errors in ERRORS:
        three = ("MultiOutputRCGP", "clean", "from the clean fit")
        own = [tuple(by[method, *c] for method in three) for c in cells if c[1] == errors]
        worse = [(ours, told) for ours, clean, told in own if ours["error"] > MUCH_WORSE * clean["error"]]
        missed = sum(t["evidence"] > o["evidence"] + 1.0 and t["error"] < o["error"] for o, t in worse)
        lines.append(f"| {errors} | {len(own)} | {len(worse)} | {missed} |")
    return "\n".join(lines)


def speed() -> None:
    """Value and gradient of the objective at 2000 cells beside its matrix products and GPyTorch; and whole fits."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    X = torch.from_numpy(random.uniform(0.0, 10.0, (500, 2)))
    F = torch.from_numpy(_sample(X.numpy(), 1.5, 2, random) @ random.standard_normal((2, 4)))
    Y = F + 0.1 * torch.randn(F.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = MultiOutputRCGP(X, Y, weight=Constant())
    K = model.kernel_matrix().detach() + torch.eye(2000, dtype=torch.float64)

    def products() -> None:
        torch.cholesky_inverse(torch.linalg.cholesky(K)) @ K

    def value_and_gradient() -> None:
        torch.autograd.grad(marginal(model), list(model.parameters()), allow_unused=True)

    class Twin(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, Y, likelihood)
            self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=4)
            base = gpytorch.kernels.RBFKernel(ard_num_dims=2)
            self.covar_module = gpytorch.kernels.MultitaskKernel(base, num_tasks=4, rank=4)

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=4, has_global_noise=False).double()
    twin = Twin(likelihood).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, twin)

    def theirs() -> None:
        with gpytorch.settings.fast_computations(False, False, False):
            torch.autograd.grad(objective(twin(X), Y), list(twin.parameters()), allow_unused=True)

    times = {}
    for name, function in (("products", products), ("ours", value_and_gradient), ("GPyTorch", theirs)):
        function()
        runs = []
        for _ in range(5):
            began = time.perf_counter()
            function()
            runs.append(time.perf_counter() - began)
        times[name] = min(runs)
    print(", ".join(f"{name} {value:.3f} s" for name, value in times.items()))
    ratios = (f"{times['ours'] / times[other]:.2f} of {other}" for other in ("products", "GPyTorch"))
    print("value and gradient take", ", ".join(ratios))
    X, Y = X[:150], Y[:150].clone()
    bad = torch.rand(Y.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    Y[bad] += 5.0
    seconds = []
    for run in (fit_robust, fit_ordinary):
        model = MultiOutputRCGP(X, Y, weight=Constant())
        add_weak_priors(model)
        began = time.process_time()
        run(model)
        seconds.append(time.process_time() - began)
    print(f"robust fit of 600 cells {seconds[0]:.1f} s, plain {seconds[1]:.1f} s: ratio {seconds[0] / seconds[1]:.2f}")


def page() -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    start, end = "<!-- figures -->\n", "<!-- end of figures -->\n"
    head, rest = PAGE.read_text().split(start)
    _, tail = rest.split(end)
    judged = [r for r in records if r["half"] == "judge"]
    PAGE.write_text(f"{head}{start}{table(judged)}\n\n{attainable(judged)}\n{end}{tail}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["accuracy", "summary", "speed", "page"])
    parser.add_argument("--half", choices=list(SEEDS), default="tune")
    parser.add_argument("--methods", nargs="*", choices=list(METHODS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "accuracy":
        accuracy(arguments.half, arguments.methods)
    elif arguments.command == "summary":
        found = [json.loads(line) for line in RECORDS.read_text().splitlines()]
        found = [record for record in found if record["half"] == arguments.half]
        print(table(found), attainable(found), sep="\n\n")
    else:
        {"speed": speed, "page": page}[arguments.command]()
