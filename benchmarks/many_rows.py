"""The sparse model at scale: a pass over the rows, a whole fit, peers, and two workers against one.

Run ``python benchmarks/many_rows.py pass scale peers robust dask``, or some of these words. Everything that is
compared is timed in the same run, and reported as ratios: absolute times depend on the machine and its load.

- ``pass``: one pass for the statistics of n rows (kernel values, whitening, symmetric product) against the matrix
  product alone, V Vᵀ of the same size, for n from 10⁴ to 10⁶ in memory; and 10⁷ rows from a memory-mapped file, whose
  peak of memory is told (``--largest 0`` leaves them out);
- ``scale``: 10⁶ rows with 10 % outliers are fitted, hyperparameters included, and 10⁵ points predicted;
- ``peers``: value and gradient of an objective at n = 10⁵ against GPyTorch's SGPR and a collapsed SGPR written with
  autograd as GPflow has it;
- ``robust``: diamonds, kin8nm and protein (at most 20 000 rows, a fifth for testing) with 15 % two-sided and one-sided
  errors of 3 to 9 standard deviations, over the same regressor's fit without errors; with ``--peer`` GPyTorch's
  minibatch SVGP given the same time;
- ``dask``: the pass with one and two worker processes of one thread each.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import gpytorch
import numpy as np
import torch
from torch import Tensor

from loo_objective import resident_bytes
from rcgp import SparseRCGP, SparseRCGPRegressor
from rcgp.chunked.passes import ByWeight, SparsePrior, SumUp
from rcgp.chunks import chunks_of, engine_for
from rcgp.models.defaults import default_kernel
from rcgp.models.means import build_mean
from rcgp.models.sparse_rows import Rows
from rcgp.training.objectives import elbo, leave_one_out
from rcgp.weights import Constant
from rcgp_paper.data import load

FEATURES, INDUCING, THREADS = 8, 500, 2


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and observations of a smooth function with noise 0.1 and 10 % outliers, a block of rows at a time."""
    X, y = np.empty((n, FEATURES)), np.empty(n)
    for start in range(0, n, 2**18):
        random = np.random.default_rng([seed, start])
        rows = slice(start, min(start + 2**18, n))
        X[rows] = random.uniform(0, 1, (rows.stop - start, FEATURES))
        y[rows] = truth(X[rows]) + 0.1 * random.standard_normal(rows.stop - start)
        bad = random.random(rows.stop - start) < 0.1
        y[rows][bad] += random.choice([-1.0, 1.0], bad.sum()) * random.uniform(3, 9, bad.sum())
    return X, y


def truth(X: np.ndarray) -> np.ndarray:
    f: np.ndarray = np.sin(5 * X[:, 0]) + np.cos(3 * X[:, 1] * X[:, 2]) + X[:, 3] ** 2 - X[:, 4] * X[:, 5]
    return f


def seconds_of(function: Callable[[], object], repeats: int = 3) -> float:
    """The median of several."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


# One pass -------------------------------------------------------------------------------------------------------------


def passes(largest: int) -> None:
    print(f"one pass, m = {INDUCING}, {FEATURES} features, {THREADS} threads")
    print(f"{'n':>10} {'seconds':>9} {'µs for each row':>16} {'over product':>13} {'peak MB':>9}")
    for n in (10_000, 100_000, 1_000_000):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, product, peak = pool.apply(pass_in_memory, (n,))
        print(f"{n:>10} {seconds:>9.2f} {1e6 * seconds / n:>16.1f} {seconds / product:>13.2f} {peak / 1e6:>9.0f}")
    if largest:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, peak = pool.apply(pass_over_file, (largest,))
        print(
            f"{largest:>10} {seconds:>9.2f} {1e6 * seconds / largest:>16.1f} {'':>13} {peak / 1e6:>9.0f}  from a file"
        )


def sum_up(Z: Tensor) -> SumUp:
    """The task of a pass: statistics at fixed hyperparameters, with a constant weight."""
    kernel = default_kernel(torch.full((FEATURES,), 0.4, dtype=torch.float64), 1.0)
    mean = build_mean("zero", Z, Z[:, 0])
    L = Rows(kernel, Z, Z).L
    noise = torch.tensor(0.01, dtype=torch.float64)
    return SumUp(SparsePrior(mean, kernel.requires_grad_(False), Z, L), ByWeight(Constant(), noise))


def pass_in_memory(n: int) -> tuple[float, float, int]:
    """Seconds of the pass and of the product alone, the best of several, and the peak of memory above the data."""
    torch.set_num_threads(THREADS)
    X, y = table(n)
    chunks, task = chunks_of(X, y), sum_up(torch.from_numpy(X[:INDUCING].copy()))
    engine = engine_for(chunks)
    engine.reduce(task, chunks_of(X[:10_000], y[:10_000]))  # loads every library
    V = torch.rand(INDUCING, 4096, dtype=torch.float64)
    times = math.ceil(n / 4096)
    seconds, products, peak = [], [], 0
    # By turns and for as many rows, so that both see the machine in the same state.
    for _ in range(5 if n < 10**6 else 2):
        products.append(seconds_of(lambda: [V @ V.mT for _ in range(times)], 1) * n / (4096 * times))
        forget_peak()
        before = resident_bytes("VmRSS")
        seconds.append(seconds_of(lambda: engine.reduce(task, chunks), 1))
        peak = max(peak, resident_bytes("VmHWM") - before)
    return min(seconds), min(products), peak


def pass_over_file(n: int) -> tuple[float, int]:
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        X = np.lib.format.open_memmap(Path(folder) / "X.npy", mode="w+", dtype=np.float32, shape=(n, FEATURES))
        y = np.lib.format.open_memmap(Path(folder) / "y.npy", mode="w+", dtype=np.float32, shape=(n,))
        for start in range(0, n, 2**20):
            rows = slice(start, min(start + 2**20, n))
            X[rows], y[rows] = table(rows.stop - start, seed=start)
        X.flush()
        y.flush()
        del X, y
        X, y = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("X", "y"))
        task = sum_up(torch.from_numpy(np.array(X[:INDUCING], dtype=np.float64)))
        chunks = chunks_of(X, y)
        engine = engine_for(chunks)
        engine.reduce(task, chunks_of(np.array(X[:10_000]), np.array(y[:10_000])))
        forget_peak()
        before = resident_bytes("RssAnon")
        began = time.perf_counter()
        engine.reduce(task, chunks)
        # The pages of the file count as resident while there is room for them: only what is our own is counted.
        return time.perf_counter() - began, max(0, resident_bytes("VmHWM") - resident_bytes("RssFile") - before)


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")


# A whole fit ----------------------------------------------------------------------------------------------------------


def scale(n: int) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        steps, predicting, error, found, peak = pool.apply(fit_and_predict, (n,))
    print(f"{n} rows x {FEATURES}, 10 % outliers, m = {INDUCING}, {THREADS} threads")
    for step, seconds in steps.items():
        print(f"  {step:<18} {seconds:>7.1f} s")
    print(f"  {'predict 100 000':<18} {predicting:>7.1f} s")
    print(f"  {'together':<18} {sum(steps.values()) + predicting:>7.1f} s, peak {peak / 1e9:.2f} GB")
    print(f"  mean absolute error against the function {error:.4f}; precision and recall of flags {found}")


def fit_and_predict(n: int) -> tuple[dict[str, float], float, float, str, int]:
    torch.set_num_threads(THREADS)
    X, y = table(n)
    began = time.perf_counter()
    model = SparseRCGPRegressor(n_inducing=INDUCING, random_state=0).fit(X, y)
    steps = dict(model.model_.seconds)
    steps["row by row"] = time.perf_counter() - began - sum(steps.values())
    new = np.random.default_rng(1).uniform(0, 1, (100_000, FEATURES))
    began = time.perf_counter()
    mean, _ = model.predict(new, return_std=True)
    predicting = time.perf_counter() - began
    bad = np.abs(y - truth(X)) > 1.0
    flagged = model.outliers_
    hits = (flagged & bad).sum()
    return (
        steps,
        predicting,
        float(np.abs(mean - truth(new)).mean()),
        f"{hits / max(flagged.sum(), 1):.4f}, {hits / bad.sum():.4f}",
        resident_bytes("VmHWM"),
    )


# Peers ----------------------------------------------------------------------------------------------------------------


def peers(n: int) -> None:
    torch.set_num_threads(THREADS)
    X, y = (torch.from_numpy(part) for part in table(n))
    Z = X[:INDUCING].clone()
    ours = SparseRCGP(X, y, inducing=Z, weight=Constant(), mean="zero", noise=0.01)
    robust = SparseRCGP(X, y, inducing=Z, mean="zero", noise=0.01)
    contestants: dict[str, Callable[[], object]] = {
        "ours, bound": lambda: gradient_of(elbo(ours), ours),
        "ours, leave-one-out": lambda: gradient_of(leave_one_out(robust), robust),
        "GPyTorch SGPR": gpytorch_sgpr(ours, X, y, Z),
        "collapsed, autograd": lambda: gradient_of(collapsed(ours), ours),
    }
    agreement = float(elbo(ours).detach()) - float(collapsed(ours).detach())
    print(f"value and gradient of an objective, n = {n}, m = {INDUCING}; bounds differ by {agreement:.2e}")
    seconds = {name: seconds_of(function) for name, function in contestants.items()}
    for name, value in seconds.items():
        print(f"  {name:<20} {value:>7.2f} s   {value / seconds['ours, bound']:>5.2f} times our bound")


def gradient_of(value: Tensor, model: SparseRCGP) -> None:
    torch.autograd.grad(value, [parameter for parameter in model.parameters() if parameter.requires_grad])


def collapsed(model: SparseRCGP) -> Tensor:
    """Titsias' bound as GPflow computes it, differentiated by autograd."""
    X, e, Z, noise = model.train_X, model.residual(), model.inducing_points, model.noise
    K_uf, K_uu = model.kernel(Z, X).to_dense(), model.kernel(Z).to_dense()
    L = torch.linalg.cholesky(K_uu)
    A = torch.linalg.solve_triangular(L, K_uf, upper=False) / noise.sqrt()
    B = torch.eye(len(Z), dtype=X.dtype) + A @ A.mT
    L_B = torch.linalg.cholesky(B)
    c = torch.linalg.solve_triangular(L_B, (A @ e)[:, None], upper=False)[:, 0] / noise.sqrt()
    n = len(e)
    fit = -0.5 * n * (math.log(2 * math.pi) + noise.log()) - L_B.diagonal().log().sum()
    trace = model.kernel(X, diag=True).sum() / noise - A.square().sum()
    bound: Tensor = fit - 0.5 * e.square().sum() / noise + 0.5 * c.square().sum() - 0.5 * trace
    return bound


def gpytorch_sgpr(ours: SparseRCGP, X: Tensor, y: Tensor, Z: Tensor) -> Callable[[], object]:
    class SGPR(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=FEATURES))
            self.covar_module = gpytorch.kernels.InducingPointKernel(base, inducing_points=Z, likelihood=likelihood)

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    gp = SGPR().double()
    gp.covar_module.inducing_points.requires_grad_(False)
    gp.covar_module.base_kernel.base_kernel.lengthscale = ours.kernel.base_kernel.lengthscale.detach()
    likelihood.noise = torch.tensor(0.01, dtype=torch.float64)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, gp)
    gp.train()

    def evaluate() -> None:
        gp.zero_grad()
        (-objective(gp(X), y)).backward()

    return evaluate


# Errors in real tables ------------------------------------------------------------------------------------------------


def real_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and target of a table, in random order, in standard deviations of the target."""
    if name == "diamonds":
        home = Path(os.environ.get("RCGP_DATA_HOME", "../shared/data"))
        values = np.loadtxt(home / "suite" / "diamonds.csv", delimiter=",", skiprows=1)
        X, y = values[:, :-1], values[:, -1]
    else:
        data = load(name)
        X, y = data.X, data.y
    rows = np.random.default_rng(0).permutation(len(y))[:20_000]
    return X[rows], (y[rows] - y.mean()) / y.std()


def robust(tables: list[str], inducing: int, peer: bool) -> None:
    """Errors of 3 to 9 standard deviations in 15 % of the training rows; the test rows are clean."""
    torch.set_num_threads(THREADS)
    print(f"15 % errors of 3 to 9 sd, m = {inducing}; ratio of mean absolute errors to that of the fit without errors")
    print(f"  {'table':<9} {'errors':<10} {'MAE':>6} {'ratio':>6} {'recall':>7} {'false':>6} {'coverage':>9} {'s':>5}")
    for name in tables:
        X, y = real_table(name)
        test, train = np.split(np.arange(len(y)), [len(y) // 5])
        clean = 0.0
        for kind in ("none", "two-sided", "one-sided"):
            random = np.random.default_rng(1)
            bad = (random.random(len(train)) < 0.15) & (kind != "none")
            sign = random.choice([-1.0, 1.0], len(train)) if kind == "two-sided" else 1.0
            observed = y[train] + bad * sign * random.uniform(3, 9, len(train))
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = SparseRCGPRegressor(n_inducing=inducing, random_state=0).fit(X[train], observed)
            seconds = time.perf_counter() - began
            error = float(np.abs(model.predict(X[test]) - y[test]).mean())
            clean = clean or error
            lower, upper = model.predict_interval(X[test])
            coverage = ((lower < y[test]) & (upper > y[test])).mean()
            recall = f"{model.outliers_[bad].mean():.3f}" if bad.any() else ""
            print(
                f"  {name:<9} {kind:<10} {error:>6.3f} {error / clean:>6.3f} {recall:>7} "
                f"{model.outliers_[~bad].mean():>6.3f} {coverage:>9.3f} {seconds:>5.0f}",
                end="\n" if not peer else "",
                flush=True,
            )
            if peer:
                scale = X[train].std(0) + (X[train].std(0) == 0)
                theirs = svgp(X[train] / scale, observed, X[test] / scale, y[test], inducing, seconds)
                print(f"   SVGP {theirs:.3f}", flush=True)


def svgp(X: np.ndarray, y: np.ndarray, x: np.ndarray, truth: np.ndarray, m: int, budget: float) -> float:
    """GPyTorch's minibatch SVGP (batches of 1024, Adam at 0.01, as in its tutorial) for so many seconds."""
    torch.manual_seed(0)
    train_X, train_y = torch.from_numpy(X).float(), torch.from_numpy(y).float()

    class SVGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self, Z: Tensor) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1]))

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    began = time.perf_counter()
    model = SVGP(train_X[torch.randperm(len(train_X))[:m]].clone())
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(train_y))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    while time.perf_counter() - began < budget:
        for rows in torch.split(torch.randperm(len(train_y)), 1024):
            optimiser.zero_grad()
            (-objective(model(train_X[rows]), train_y[rows])).backward()
            optimiser.step()
            if time.perf_counter() - began > budget:
                break
    model.eval()
    with torch.no_grad():
        mean = model(torch.from_numpy(x).float()).mean.double().numpy()
    return float(np.abs(mean - truth).mean())


# Workers --------------------------------------------------------------------------------------------------------------


def workers(n: int) -> None:
    import dask.array as da
    from dask.distributed import Client, LocalCluster

    X, y = table(n)
    rows = n // 16
    task = sum_up(torch.from_numpy(X[:INDUCING].copy()))
    seconds = {}
    for count in (1, 2):
        with (
            LocalCluster(
                n_workers=count, threads_per_worker=1, processes=True, protocol="tcp", dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            chunks = chunks_of(da.from_array(X, chunks=(rows, FEATURES)), da.from_array(y, chunks=rows))
            engine = engine_for(chunks, client=client)
            engine.reduce(task, chunks)  # the data reach the workers, which load every library
            seconds[count] = seconds_of(lambda: engine.reduce(task, chunks))  # noqa: B023
    print(f"one pass over {n} rows: 1 worker {seconds[1]:.2f} s, 2 workers {seconds[2]:.2f} s, ", end="")
    print(f"{seconds[1] / seconds[2]:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="+", choices=("pass", "scale", "peers", "robust", "dask"))
    parser.add_argument("--rows", type=int, help="of scale (default 1 000 000), peers and dask (default 100 000)")
    parser.add_argument("--largest", type=int, default=10_000_000, help="rows of the file of pass; 0 for none")
    parser.add_argument("--inducing", type=int, default=INDUCING, help="inducing points of robust")
    parser.add_argument("--tables", nargs="+", default=["diamonds", "kin8nm", "protein"], help="of robust")
    parser.add_argument("--peer", action="store_true", help="fit the SVGP of robust, too")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part == "pass":
            passes(arguments.largest)
        elif part == "scale":
            scale(arguments.rows or 1_000_000)
        elif part == "peers":
            peers(arguments.rows or 100_000)
        elif part == "robust":
            robust(arguments.tables, arguments.inducing, arguments.peer)
        else:
            workers(arguments.rows or 100_000)


if __name__ == "__main__":
    main()
