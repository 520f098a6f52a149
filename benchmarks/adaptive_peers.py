"""Adaptive centring against other robust GPs: a Student-t likelihood, and BoTorch's relevance pursuit.

Random splits as in ``adaptive.py``. The Student-t GP is there twice, with its degrees of freedom learned both times:

- as this package has it, by Newton steps and L-BFGS from three starts, the fastest that is known here;
- as one writes it with GPyTorch: ``ApproximateGP`` with all inputs as inducing points and ``StudentTLikelihood``, by
  Adam. It ends where a hundred iterations gain less than a thousandth of a nat for each observation, which is early:
  its bound is then still below the other one's.

Relevance pursuit needs BoTorch (``pip install 'rcgp[botorch]'``) and minutes to an hour for each fit, so it is run only
where ``--methods`` names it. All in one process on one thread; times are CPU seconds. With ``--records FILE`` each
result is added to that file when it is there, and what the file has is not measured again: a run can be interrupted and
gone on with.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import Positive
from threadpoolctl import threadpool_limits
from torch import Tensor

from adaptive_bars import table
from rcgp.data import Problem, prepare
from rcgp.experiments.methods import METHODS
from rcgp.experiments.paper_values import CONTAMINATIONS, DATA

OURS = "adaptive"
LEARNING_RATE, WINDOW, GAIN, MOST = 0.05, 100, 1e-3, 3000

# How many times as long as adaptive RCGP a method is to take, at least, and in how many cells of sixteen it is to have
# no smaller errors.
TIMES, CELLS = {"t-gp": 10.0, "gpytorch-t-gp": 10.0, "rrp": 50.0}, 14

#: Fits a method; what comes back predicts the mean at inputs.
Fit = Callable[[Problem], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Record:
    """One method on one problem: mean absolute error on the test part, and CPU seconds of the fit."""

    data: str
    contamination: str
    index: int
    method: str
    mae: float
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.data, self.contamination, self.index, self.method


class Comparison(NamedTuple):
    """A method in one cell: on how many splits, mean absolute errors of ours and of theirs, its time over ours."""

    splits: int
    ours: float
    theirs: float
    time: float


class VariationalGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """GPyTorch's variational GP, with all inputs as inducing points."""

    def __init__(self, X: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(X))
        super().__init__(
            gpytorch.variational.VariationalStrategy(self, X, distribution, learn_inducing_locations=False)
        )
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[-1]))

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))


def by_gpytorch(problem: Problem) -> Callable[[Tensor], Tensor]:
    """A Student-t GP with GPyTorch and Adam."""
    X, y = torch.from_numpy(problem.train_X), torch.from_numpy(problem.train_y)
    model = VariationalGP(X).double()
    likelihood = gpytorch.likelihoods.StudentTLikelihood(deg_free_constraint=Positive()).double()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(y))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=LEARNING_RATE)
    best = before = -np.inf
    for iteration in range(1, MOST + 1):
        optimiser.zero_grad()
        loss = -bound(model(X), y)
        loss.backward()
        optimiser.step()
        best = max(best, -float(loss))
        if iteration % WINDOW == 0:
            if best - before < GAIN:
                break
            before = best
    model.eval()
    return lambda new: model(new).mean


def by_name(method: str) -> Fit:
    """A method of the tables."""

    def fit(problem: Problem) -> Callable[[Tensor], Tensor]:
        X, y = torch.from_numpy(problem.train_X), torch.from_numpy(problem.train_y)
        model = METHODS[method](X, y, problem)[0]
        model.posterior(X[:1]).mean  # noqa: B018  conditions the model
        return lambda new: model.posterior(new).mean

    return fit


FITS: dict[str, Fit] = {
    **{name: by_name(name) for name in (OURS, "gp", "t-gp", "rrp")},
    "gpytorch-t-gp": by_gpytorch,
}


def measure(data: str, contamination: str, index: int, method: str) -> Record:
    problem = prepare(data, contamination, "paper", index)
    torch.manual_seed(0)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict = FITS[method](problem)
    seconds = time.process_time() - began
    with torch.no_grad():
        mean = predict(torch.from_numpy(problem.test_X)).numpy()
    return Record(data, contamination, index, method, float(np.abs(problem.test_y - mean).mean()), seconds)


def comparison(records: Iterable[Record], methods: Sequence[str]) -> str:
    """A table of all cells, and for each method in how many of them adaptive RCGP is at least as good."""
    measured = {record.key: record for record in records}
    cells = list(dict.fromkeys((data, contamination) for data, contamination, _, _ in measured))
    peers = [method for method in methods if method != OURS]
    compared = {(cell, peer): compared_in(measured, cell, peer) for cell in cells for peer in peers}
    rows = [[" ".join(cell), *(part for peer in peers for part in told(compared[cell, peer]))] for cell in cells]
    head = [part for peer in peers for part in (f"splits with {peer}", f"MAE: ours, {peer}", "its time over ours")]
    return "\n".join(
        [table(["", *head], rows), "", *(summary(peer, [compared[cell, peer] for cell in cells]) for peer in peers)]
    )


def compared_in(measured: dict[tuple[str, str, int, str], Record], cell: tuple[str, str], peer: str) -> Comparison:
    """A method against adaptive RCGP on the splits of a cell that both were fitted to."""
    pairs = [
        (measured[*cell, index, OURS], record)
        for (*place, index, method), record in measured.items()
        if tuple(place) == cell and method == peer and (*cell, index, OURS) in measured
    ]
    if not pairs:
        return Comparison(0, np.nan, np.nan, np.nan)
    errors, seconds = (
        np.mean([[getattr(record, name) for record in pair] for pair in pairs], axis=0) for name in ("mae", "seconds")
    )
    return Comparison(len(pairs), float(errors[0]), float(errors[1]), float(seconds[1] / seconds[0]))


def told(cell: Comparison) -> list[str]:
    return [str(cell.splits), f"{cell.ours:.4f}, {cell.theirs:.4f}", f"{cell.time:.1f}"] if cell.splits else ["–"] * 3


def summary(peer: str, cells: Sequence[Comparison]) -> str:
    cells = [cell for cell in cells if cell.splits]
    if not cells:
        return f"- {peer}: not measured"
    times = [cell.time for cell in cells]
    aim = f" (aim: {TIMES[peer]:g})" if peer in TIMES else ""
    return (
        f"- {peer}: errors of adaptive RCGP equal or smaller in {sum(cell.ours <= cell.theirs for cell in cells)} of "
        f"{len(cells)} cells (aim: {CELLS} of 16); its time over ours {min(times):.1f} to {max(times):.1f}{aim}"
    )


def main() -> None:
    arguments = parsed()
    torch.set_num_threads(1)
    threadpool_limits(1)
    records = read(arguments.records)
    done = {record.key for record in records}
    for method in set(arguments.methods) - {"rrp"}:  # warm: imports, caches of memory
        measure("synthetic", "clean", 0, method)
    wanted = [
        (data, contamination, arguments.first + split, method)
        for method in arguments.methods
        for split in range(arguments.splits)
        for data in arguments.data
        for contamination in arguments.contamination
    ]
    try:
        for key in wanted:
            if key in done:
                continue
            record = measure(*key)
            records.append(record)
            print(f"{' '.join(map(str, key))}: MAE {record.mae:.4f}, {record.seconds:.2f} s", flush=True)
            if arguments.records is not None:
                with arguments.records.open("a") as file:
                    file.write(json.dumps(asdict(record)) + "\n")
    except KeyboardInterrupt:
        print("\ninterrupted: what follows is of the problems above")
    print(f"\n{comparison(records, arguments.methods)}")


def read(path: Path | None) -> list[Record]:
    """What a file of records has; none where there is no file. A last line that was not written whole is taken off."""
    if path is None or not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return [Record(**json.loads(line)) for line in whole.splitlines()]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--data", nargs="+", choices=DATA, default=list(DATA))
    add("--contamination", nargs="+", choices=CONTAMINATIONS, default=list(CONTAMINATIONS))
    add("--methods", nargs="+", choices=FITS, default=[OURS, "t-gp", "gpytorch-t-gp"], help="rrp takes hours")
    add("--splits", type=int, default=1, help="how many (default: 1)")
    add("--first", type=int, default=0, help="the first of them")
    add("--records", type=Path, metavar="FILE", help="add results there; what it has is not measured again")
    arguments = parser.parse_args()
    if arguments.splits < 1 or arguments.first < 0:
        parser.error("--splits must be at least 1 and --first at least 0")
    return arguments


if __name__ == "__main__":
    main()
