"""Robust likelihoods in variational and deep GPs of GPyTorch, beside what GPyTorch has.

python benchmarks/plug_in.py svgp kin8nm protein     # 500 inducing points, minibatches; records in results/plug_in.jsonl
python benchmarks/plug_in.py deep blocks doppler     # two-layer deep GPs
python benchmarks/plug_in.py page                    # the tables of docs/plug_in.md, from the records

A run that has its record is not run again. RCGP_DATA_HOME names the folder of the data files. One thread.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.gpytorch import NoiseLawLikelihood
from rcgp.models.defaults import robust_scales, robust_spread
from rcgp.models.inducing import choose_inducing

Array = NDArray[np.float64]

RECORDS = Path(__file__).parents[1] / "results" / "plug_in.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "plug_in.md"
METHODS = ("Gaussian", "noise law", "Student-t", "gamma")
KINDS = ("none", "two-sided 15 %", "one-sided 15 %")
EPOCHS = {"kin8nm": 40, "protein": 8}
INDUCING, BATCH, RATE = 500, 1024, 0.02
DEEP_SEEDS = 5


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
    path = Path(os.environ.get("RCGP_DATA_HOME", "../shared/data")) / f"{name}.csv"
    with open(path, newline="") as file:
        table = np.array(list(csv.reader(file))[1:], dtype=np.float64)
    table = table[np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(len(table))]
    test = len(table) // 10
    X = torch.from_numpy(table[:, :-1])
    X = (X - X.median(dim=0).values) / robust_scales(X)
    return X[test:], table[test:, -1], X[:test], table[:test, -1]


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
        for rows in torch.randperm(len(y)).split(BATCH):
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["svgp", "deep", "page"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "svgp":
        svgp(arguments.names or list(EPOCHS), arguments.seeds)
