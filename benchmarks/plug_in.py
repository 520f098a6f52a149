"""Robust likelihoods in variational and deep GPs of GPyTorch, beside what GPyTorch has.

python benchmarks/plug_in.py svgp kin8nm protein     # minibatches; records in results/plug_in.jsonl
python benchmarks/plug_in.py speed                   # epochs by each method in turn
python benchmarks/plug_in.py deep --seeds 2          # two-layer deep GPs on functions and tables
python benchmarks/plug_in.py page                    # the tables of docs/plug_in.md, from the records

A run that has its record is not run again. RCGP_DATA_HOME names the folder of the data files. One thread.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from linear_operator.operators import DiagLinearOperator
from numpy.typing import NDArray
from torch import Tensor

from rcgp import DeepRCGPRegressor, RCGPRegressor
from rcgp.gpytorch import NoiseLawLikelihood
from rcgp.gpytorch.deep_fit import fit_deep
from rcgp.models.defaults import robust_scales, robust_spread
from rcgp.models.inducing import choose_inducing
from rcgp_paper.data import load
from suite import KINDS as SUITE_KINDS
from suite import Problem, problem

Array = NDArray[np.float64]

RECORDS = Path(__file__).parents[1] / "results" / "plug_in.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "plug_in.md"
METHODS = ("Gaussian", "noise law", "Student-t", "gamma")
KINDS = ("none", "two-sided 15 %", "one-sided 15 %")
EPOCHS = {"kin8nm": 40, "protein": 8}
INDUCING, BATCH, RATE = 500, 1024, 0.02
DEEP_METHODS = ("Gaussian", "noise law", "gamma", "exact RCGP")
DEEP_KINDS = ("none", "two-sided 15 %")
DEEP_PROBLEMS = ("blocks", "doppler", "ridge", "concrete", "mpg")


def errors(y: Array, kind: str, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """15 % of the rows off by 3 to 9 standard deviations, to both sides or to one; and which they are."""
    wrong = np.zeros(len(y), dtype=bool)
    if kind == "none":
        return y, wrong
    wrong[random.permutation(len(y))[: round(0.15 * len(y))]] = True
    side = np.where(random.random(len(y)) < 0.5, -1.0, 1.0) if kind.startswith("two") else random.choice([-1.0, 1.0])
    return y + wrong * side * y.std() * random.uniform(3.0, 9.0, len(y)), wrong


def read(name: str, seed: int) -> tuple[Tensor, Array, Tensor, Array]:
    """Training inputs and targets, and a tenth of the rows to test on; inputs in robust units."""
    data = load(name)
    order = np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(len(data.y))
    test = len(data.y) // 10
    X, y = torch.from_numpy(data.X[order]), data.y[order]
    X = (X - X.median(dim=0).values) / robust_scales(X)
    return X[test:], y[test:], X[:test], y[:test]


class SVGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """GPyTorch's sparse variational GP."""

    def __init__(self, inducing: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1]))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def likelihood_of(method: str, y: Tensor) -> Any:
    """The one line that differs."""
    if method == "noise law":
        return NoiseLawLikelihood(y)
    return (
        gpytorch.likelihoods.StudentTLikelihood()
        if method == "Student-t"
        else gpytorch.likelihoods.GaussianLikelihood()
    )


def objective_of(method: str, likelihood: Any, model: Any, rows: int) -> Any:
    if method == "gamma":
        return gpytorch.mlls.GammaRobustVariationalELBO(likelihood, model, num_data=rows)
    return gpytorch.mlls.VariationalELBO(likelihood, model, num_data=rows)


def train_svgp(X: Tensor, y: Tensor, method: str, epochs: int, seed: int) -> tuple[Any, Any, float]:
    """Model, likelihood and seconds of the median epoch."""
    torch.manual_seed(seed)
    inducing = choose_inducing(gpytorch.kernels.RBFKernel(), X, INDUCING, "kmeans", seed=seed)
    model, likelihood = SVGP(inducing), likelihood_of(method, y)
    mll = objective_of(method, likelihood, model, len(y))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=RATE)
    model.train()
    likelihood.train()
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        for rows in torch.randperm(len(y)).split(BATCH):  # type: ignore[no-untyped-call]
            optimiser.zero_grad()
            (-mll(model(X[rows]), y[rows])).backward()
            optimiser.step()
        seconds.append(time.perf_counter() - began)
    return model.eval(), likelihood.eval(), float(np.median(seconds))


def run_svgp(name: str, kind: str, method: str, seed: int) -> dict[str, object]:
    train_X, clean, test_X, test_y = read(name, seed)
    noisy, wrong = errors(clean, kind, np.random.default_rng([seed, zlib.crc32(kind.encode())]))
    y = torch.from_numpy(noisy)
    centre, unit = float(y.median()), robust_spread(y - y.median())
    X, y, test = train_X.float(), ((y - centre) / unit).float(), test_X.float()
    model, likelihood, seconds = train_svgp(X, y, method, EPOCHS[name], seed)
    with torch.no_grad():
        mean = model(test).mean.double().numpy() * unit + centre
        record: dict[str, object] = {
            "part": "svgp", "data": name, "kind": kind, "method": method, "seed": seed, "epochs": EPOCHS[name],
            "error": float(np.abs(mean - test_y).mean()), "epoch_seconds": seconds,
        }  # fmt: skip
        if method == "noise law":
            flags = (likelihood.outlier_probability(y, model(X)) > 0.5).numpy()
            low, high = (end.numpy() * unit + centre for end in likelihood(model(test)).confidence_region())
            record["coverage"] = float(((test_y > low) & (test_y < high)).mean())
            record["precision"] = float((flags & wrong).sum() / max(flags.sum(), 1))
            record["recall"] = float((flags & wrong).sum() / max(wrong.sum(), 1))
    return record


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def keep(record: dict[str, object]) -> None:
    print({key: round(value, 4) if isinstance(value, float) else value for key, value in record.items()}, flush=True)
    with RECORDS.open("a") as file:
        file.write(json.dumps(record) + "\n")


def svgp(names: list[str], seeds: int) -> None:
    known = {(r["data"], r["kind"], r["method"], r["seed"]) for r in records() if r["part"] == "svgp"}
    for seed in range(seeds):
        for name in names:
            for kind in KINDS:
                for method in METHODS:
                    if (name, kind, method, seed) not in known:
                        keep(run_svgp(name, kind, method, seed))


# Deep GPs -------------------------------------------------------------------------------------------------------------


def ridge(kind: str, seed: int) -> Problem:
    """A function of two inputs with a steep ridge across a gentle slope, 300 rows with noise 0.1."""
    random = np.random.default_rng([seed, zlib.crc32(b"ridge")])

    def draw(count: int) -> tuple[Array, Array]:
        X = random.random((count, 2))
        f = np.sin(3.0 * X[:, 0]) + X[:, 1] + 2.0 / (1.0 + np.exp(-60.0 * (X[:, 0] + 0.5 * X[:, 1] - 0.75)))
        return X, f + 0.1 * random.standard_normal(count)

    (X, y), (test_X, test_y) = draw(300), draw(500)
    problem_ = Problem(X, y, y, np.zeros(len(y), dtype=bool), test_X, test_y)
    noisy, wrong = SUITE_KINDS[kind](problem_, np.random.default_rng([seed, zlib.crc32(kind.encode())]))
    return replace(problem_, train_y=noisy, wrong=wrong)


def train_deep(data: Problem, method: str, seed: int) -> tuple[Array, dict[str, object]]:
    """Predictions at the test inputs by one method, and what else is recorded."""
    estimator = DeepRCGPRegressor(random_state=seed)
    if method == "noise law":
        estimator.fit(data.train_X, data.train_y)
        return estimator.predict(data.test_X), {"steps": estimator.n_iter_}
    if method == "exact RCGP":
        return RCGPRegressor(random_state=seed).fit(data.train_X, data.train_y).predict(data.test_X), {}
    X, y = torch.from_numpy(data.train_X), torch.from_numpy(data.train_y)
    start = estimator._start(X, y, seed)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    objective = gpytorch.mlls.GammaRobustVariationalELBO if method == "gamma" else gpytorch.mlls.VariationalELBO
    scaled = (y - start.y_centre) / start.y_scale
    report = fit_deep(start.model, likelihood, start.standardised(X), scaled, seed=seed, objective=objective)
    means, _ = start.moments(torch.from_numpy(data.test_X))
    mean: Array = (means.mean(dim=0) * start.y_scale + start.y_centre).numpy()
    return mean, {"steps": report.iterations}


def run_deep(name: str, kind: str, method: str, seed: int) -> dict[str, object]:
    data = ridge(kind, seed) if name == "ridge" else problem(name, kind, seed)
    record: dict[str, object] = {"part": "deep", "data": name, "kind": kind, "method": method, "seed": seed}
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mean, more = train_deep(data, method, seed)
    except RuntimeError as problem_:
        return {**record, "diverged": True, "message": str(problem_)}
    spread = float(np.abs(data.test_y - np.median(data.train_y)).mean())
    error = float(np.abs(mean - data.test_y).mean())
    diverged = not np.isfinite(error) or error > 2.0 * spread
    return {**record, "error": error, "diverged": diverged, "seconds": time.perf_counter() - began, **more}


def deep(names: list[str], seeds: int, methods: list[str], kinds: list[str]) -> None:
    known = {(r["data"], r["kind"], r["method"], r["seed"]) for r in records() if r["part"] == "deep"}
    for seed in range(seeds):
        for name in names:
            for kind in kinds:
                for method in methods:
                    if (name, kind, method, seed) not in known:
                        keep(run_deep(name, kind, method, seed))


# The page -------------------------------------------------------------------------------------------------------------


def geometric(values: list[float]) -> str:
    return f"{np.exp(np.mean(np.log(values))):.3f}" if values else ""


def table(part: str, methods: tuple[str, ...], reference: str) -> str:
    """Errors over those of the reference on clean rows: geometric means over seeds, fewer of them in brackets."""
    rows = [r for r in records() if r["part"] == part and "error" in r]
    clean = {(r["data"], r["seed"]): r["error"] for r in rows if r["kind"] == "none" and r["method"] == reference}
    lines = [f"| data | errors | seeds | {' | '.join(methods)} |", f"|---|---|---:|{'---:|' * len(methods)}"]
    for name in dict.fromkeys(r["data"] for r in rows):
        for kind in dict.fromkeys(r["kind"] for r in rows):
            of_kind = [r for r in rows if (r["data"], r["kind"]) == (name, kind) and (name, r["seed"]) in clean]
            ratios = [[r["error"] / clean[name, r["seed"]] for r in of_kind if r["method"] == m] for m in methods]
            most = max(map(len, ratios))
            if most:
                cells = [geometric(found) + f" ({len(found)})" * (0 < len(found) < most) for found in ratios]
                lines.append(f"| {name} | {kind} | {most} | {' | '.join(cells)} |")
    return "\n".join(lines)


def speed_table() -> str:
    latest = [r for r in records() if r["part"] == "speed"][-1]
    own = latest["seconds"]["Gaussian"]
    lines = ["| | epoch, s | over `GaussianLikelihood` | likelihood alone, ms a batch |", "|---|---:|---:|---:|"]
    for name, value in latest["seconds"].items():
        alone = latest["likelihood_seconds"].get(name)
        lines.append(f"| {name} | {value:.3f} | {value / own:.2f} | {'' if alone is None else f'{1e3 * alone:.2f}'} |")
    return "\n".join(lines)


def speed(rounds: int = 12) -> None:
    """Epochs of kin8nm by each method in turn, so that a busy moment of the machine meets all of them."""
    train_X, clean, _, _ = read("kin8nm", 0)
    y = torch.from_numpy((clean - np.median(clean)) / clean.std()).float()
    runs: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(rounds):
        for method, seconds in runs.items():
            seconds.append(train_svgp(train_X.float(), y, method, 1, 0)[2])
    alone = {method: likelihood_seconds(method, y[:BATCH]) for method in METHODS if method != "gamma"}
    fastest = {method: min(values) for method, values in runs.items()}
    keep({"part": "speed", "data": "kin8nm", "rounds": rounds, "seconds": fastest, "likelihood_seconds": alone})


def likelihood_seconds(method: str, y: Tensor, calls: int = 50, rounds: int = 10) -> float:
    """Expected log density of a batch with its gradient, without the model; the fastest round."""
    likelihood = likelihood_of(method, y)
    mean, variance = torch.zeros_like(y).requires_grad_(), torch.full_like(y, 0.1).requires_grad_()
    best = np.inf
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            q = gpytorch.distributions.MultivariateNormal(mean, DiagLinearOperator(variance))
            likelihood.expected_log_prob(y, q).sum().backward()
        best = min(best, (time.perf_counter() - began) / calls)
    return best


def page() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text()
    tables = {
        "svgp": table("svgp", METHODS, "Gaussian"),
        "speed": speed_table(),
        "deep": table("deep", DEEP_METHODS, "Gaussian"),
    }
    for name, content in tables.items():
        start, end = f"<!-- table: {name} -->\n", f"\n<!-- end: {name} -->"
        head, rest = text.split(start)
        text = head + start + content + end + rest.split(end, 1)[1]
    PAGE.write_text(text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["svgp", "speed", "deep", "page"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=list(DEEP_METHODS), help="of deep GPs")
    parser.add_argument("--kinds", nargs="+", default=list(DEEP_KINDS), help="of errors in deep GPs' data")
    arguments = parser.parse_args()
    if arguments.what == "svgp":
        svgp(arguments.names or list(EPOCHS), arguments.seeds)
    elif arguments.what == "deep":
        deep(arguments.names or list(DEEP_PROBLEMS), arguments.seeds, arguments.methods, arguments.kinds)
    else:
        {"speed": speed, "page": page}[arguments.what]()
