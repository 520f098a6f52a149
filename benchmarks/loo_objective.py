"""Value and gradient of the leave-one-out objective, against what it could cost and what peers take.

Run it with ``make benchmark`` or ``python benchmarks/loo_objective.py``. Everything is timed in the same run, in turn,
and reported as ratios: absolute times depend on the machine and its mood. Compared are

- ``autograd``: the same formula, by Cholesky, written with torch operations and differentiated by autograd;
- ``inverse``: the paper's formula through ``torch.linalg.inv(K + R)``, also by autograd: the cheapest way to have it
  done, without a check of positive definiteness and without accuracy for large noises;
- ``gpytorch``: ``gpytorch.mlls.LeaveOneOutPseudoLikelihood`` of an ``ExactGP`` with the same kernel, at equal noises
  (it knows no weights);
- ``floor``: one Cholesky factorisation, one inverse from it and one n x n product, the work that nobody can avoid.

Peak memory is measured in processes of their own, as the peak of the resident set over its size after the data are made
(Linux only).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable

import gpytorch
import torch
from torch import Tensor

from rcgp import RCGP
from rcgp.core.exact import log_density
from rcgp.training.objectives import leave_one_out

DIMENSIONS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[270, 500, 1000, 2000, 3000])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"{arguments.threads} threads, medians of {arguments.repeats} runs taken in turn; {DIMENSIONS} inputs, float64"
    )
    print(
        f"{'n':>6} {'rcgp ms':>9} {'autograd/rcgp':>14} {'inverse/rcgp':>13} {'gpytorch/rcgp':>14} {'rcgp/floor':>11} "
        f"{'peak n x n':>11}"
    )
    for n in arguments.sizes:
        seconds = time_in_turn(contenders(n), arguments.repeats)
        ours = seconds["rcgp"]
        print(
            f"{n:>6} {1e3 * ours:>9.1f} {seconds['autograd'] / ours:>14.2f} {seconds['inverse'] / ours:>13.2f} "
            f"{seconds['gpytorch'] / ours:>14.2f} "
            f"{ours / seconds['floor']:>11.2f} {peak_matrices(n, arguments.threads):>11.1f}"
        )


def data(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, DIMENSIONS, generator=generator, dtype=torch.float64)
    y = torch.sin(X.sum(dim=-1)) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    y[::10] += 5.0
    return X, y


def contenders(n: int) -> dict[str, Callable[[], None]]:
    X, y = data(n)
    model = RCGP(X, y)
    parameters = list(model.parameters())
    peer = gpytorch_objective(X, y, model)

    def rcgp() -> None:
        torch.autograd.grad(leave_one_out(model), parameters)

    def autograd() -> None:
        torch.autograd.grad(autograd_objective(model), parameters)

    def inverse() -> None:
        torch.autograd.grad(inverse_objective(model), parameters)

    with torch.no_grad():
        M = model.kernel_matrix() + torch.eye(n, dtype=X.dtype)

    def floor() -> None:
        P = torch.cholesky_inverse(torch.linalg.cholesky(M))
        torch.mm(P, P)

    return {"rcgp": rcgp, "autograd": autograd, "inverse": inverse, "gpytorch": peer, "floor": floor}


def autograd_objective(model: RCGP) -> Tensor:
    """The formula of rcgp.core.exact in its direct form, differentiated by autograd, the kernel too."""
    e, noise = model.residual(), model.noise
    w, slope = model.weight(e, model.train_X, noise), model.weight.slope(e, model.train_X, noise)
    z, scale = e - noise * slope, w / noise.sqrt()
    K = model.kernel(model.train_X).to_dense()
    M = torch.eye(len(e), dtype=e.dtype) + scale.unsqueeze(-1) * K * scale
    P = torch.cholesky_inverse(torch.linalg.cholesky(M))
    mean = z - P @ (scale * z) / (scale * P.diagonal())
    variance = (1.0 / P.diagonal() - 1.0) / scale.square()
    return log_density(e - mean, variance + noise).sum()


def inverse_objective(model: RCGP) -> Tensor:
    """The paper's formula through a general inverse."""
    e, noise = model.residual(), model.noise
    w, slope = model.weight(e, model.train_X, noise), model.weight.slope(e, model.train_X, noise)
    z, r = e - noise * slope, noise / w.square()
    A = torch.linalg.inv(model.kernel(model.train_X).to_dense() + torch.diag(r))
    return log_density(e - z + A @ z / A.diagonal(), 1.0 / A.diagonal() - r + noise).sum()


def gpytorch_objective(X: Tensor, y: Tensor, model: RCGP) -> Callable[[], None]:
    class ExactGP(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=DIMENSIONS))

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    peer = ExactGP().double()
    peer.covar_module.base_kernel.lengthscale = model.kernel.base_kernel.lengthscale.detach()
    peer.covar_module.outputscale = model.kernel.outputscale.detach()
    likelihood.noise = model.noise.detach()
    peer.train()
    objective = gpytorch.mlls.LeaveOneOutPseudoLikelihood(likelihood, peer)
    parameters = list(peer.parameters())

    def value_and_gradient() -> None:
        torch.autograd.grad(objective(peer(X), y), parameters)

    return value_and_gradient


def time_in_turn(functions: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each function, run in turn so that a busy moment of the machine hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + 2):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if repeat >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_matrices(n: int, threads: int) -> float:
    """Peak memory of one value and gradient, in n x n float64 matrices, measured in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_matrices, (n, threads))


def _peak_matrices(n: int, threads: int) -> float:
    torch.set_num_threads(threads)
    X, y = data(n)
    small = RCGP(X[:100], y[:100])
    torch.autograd.grad(leave_one_out(small), list(small.parameters()))  # loads every library
    model = RCGP(X, y)
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # resets the peak
    before = resident_bytes("VmRSS")
    torch.autograd.grad(leave_one_out(model), list(model.parameters()))
    return (resident_bytes("VmHWM") - before) / (8 * n * n)


def resident_bytes(field: str) -> int:
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
