"""Training of a deep GP: minibatches, a learning rate that falls, and early stopping by a robust held-out score.

Responsibilities of the components of the noise law are first held at those of an exact GP, and free in the finish.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.gpytorch.deep import DeepModel, base_samples, random_samples
from rcgp.gpytorch.deep_start import start_from_exact
from rcgp.gpytorch.noise_law import NoiseLawLikelihood
from rcgp.training.status_line import StatusLine

__all__ = ["DeepReport", "fit_deep", "held_out_score"]

# Steps between two looks at the held-out rows.
_LOOK = 50

# Share of the steps in which the rate rises from zero, so that no first step is too long; and of the finish, in which
# all rows train and their responsibilities are free, with its share of the rate.
_WARM_UP, _FINISH, _FINISH_RATE = 0.03, 0.2, 0.25

# Least number of held-out rows: fewer tell nothing.
_LEAST_HELD_OUT = 10


@dataclass(frozen=True)
class DeepReport:
    """How the training of a deep GP went.

    Attributes:
        iterations: steps of the optimiser, with those of the finish.
        best: step before the finish whose state was kept by early stopping.
        scores: held-out score after every 50 steps and the last, the mean log density; empty without held-out rows.
        bound: last value of the variational bound, per row.
    """

    iterations: int
    best: int
    scores: tuple[float, ...]
    bound: float


def fit_deep(
    model: DeepModel,
    likelihood: gpytorch.likelihoods.Likelihood,
    X: Tensor,
    y: Tensor,
    *,
    steps: int = 1000,
    rate: float = 0.02,
    batch: int = 256,
    samples: int = 3,
    held_out: float = 0.1,
    patience: int = 300,
    seed: int = 0,
    progress: bool | Callable[[int, float], Any] = False,
    objective: Callable[..., Any] = gpytorch.mlls.VariationalELBO,
) -> DeepReport:
    """Train a deep GP and its likelihood by the doubly stochastic bound, after :func:`start_from_exact`.

    Args:
        model, likelihood: to train, in place.
        X, y: ``n x d`` standardised inputs and ``n`` targets.
        steps: steps of Adam, at most.
        rate: its learning rate, which falls to zero over the steps.
        batch: rows of a minibatch.
        samples: samples of the hidden layers in each step.
        held_out: share of rows by which training stops early; they train in the finish, a fifth of all steps. 0: no
            early stopping.
        patience: steps without a better held-out score after which training stops.
        seed: of samples and batches.
        progress: ``True`` shows the steps on standard error; or a function of step and bound.
        objective: ``VariationalELBO`` or another approximate objective of GPyTorch.

    Raises:
        RuntimeError: where the bound is no finite number any more.
    """
    line = StatusLine() if progress is True else None
    show = progress if callable(progress) else (lambda step, bound: _show(line, steps, step, bound))
    count = round(held_out * len(y))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        run = _Run(model, likelihood, X, y, batch, samples, objective, show)
        run.share = start_from_exact(model, likelihood, X, y)
        most, rows = max(1, round((1.0 - _FINISH) * steps)), torch.arange(len(y))
        scores: tuple[float, ...] = ()
        if count < _LEAST_HELD_OUT:
            run.train(rows, most, rate)
            best = most
        else:
            order = torch.randperm(len(y))
            best, scores = run.train_with_look(order[count:], order[:count], most, rate, patience)
        run.share = None
        finish = max(1, round(_FINISH / (1.0 - _FINISH) * best))
        run.train(rows, min(finish, steps - most), _FINISH_RATE * rate)
    if line is not None:
        line.end()
    return DeepReport(run.steps, best, scores, run.bound)


class _Run:
    """State of one training."""

    def __init__(
        self,
        model: DeepModel,
        likelihood: Any,
        X: Tensor,
        y: Tensor,
        batch: int,
        samples: int,
        objective: Callable[..., Any],
        show: Callable[[int, float], Any],
    ) -> None:
        self.model, self.likelihood, self.X, self.y = model, likelihood, X, y
        self.batch, self.samples, self.show = batch, samples, show
        self.steps, self.bound = 0, math.nan
        self.share: Tensor | None = None
        self.modules = torch.nn.ModuleList([model, likelihood])
        self.mll = gpytorch.mlls.DeepApproximateMLL(objective(likelihood, model, num_data=len(y)))

    def optimiser(self, steps: int, rate: float) -> tuple[torch.optim.Optimizer, Any]:
        optimiser = torch.optim.Adam([p for p in self.modules.parameters() if p.requires_grad], lr=rate)
        steps = max(steps, 1)

        def factor(step: int) -> float:
            rise = min(1.0, (step + 1) / (_WARM_UP * steps))
            return rise * 0.5 * (1.0 + math.cos(math.pi * step / steps))

        return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)

    def train(self, rows: Tensor, steps: int, rate: float) -> None:
        """All steps."""
        optimiser, schedule = self.optimiser(steps, rate)
        for _ in range(steps):
            self.step(rows, optimiser, schedule)

    def train_with_look(
        self, rows: Tensor, held_out: Tensor, steps: int, rate: float, patience: int
    ) -> tuple[int, tuple[float, ...]]:
        """Steps until the held-out score has not grown for long: the best step, whose state is kept, and all scores."""
        optimiser, schedule = self.optimiser(steps, rate)
        best, scores, state = 0, [-torch.inf], self.state()
        while self.steps < steps and (best == 0 or self.steps - best < patience):
            for _ in range(min(_LOOK, steps - self.steps)):
                self.step(rows, optimiser, schedule)
            score = held_out_score(self.model, self.likelihood, self.X[held_out], self.y[held_out])
            if score > max(scores):
                best, state = self.steps, self.state()
            scores.append(score)
        self.modules.load_state_dict(state)
        return best, tuple(scores[1:])

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(self.modules.state_dict())

    def step(self, rows: Tensor, optimiser: torch.optim.Optimizer, schedule: Any) -> None:
        self.modules.train()
        chosen = rows if len(rows) <= self.batch else rows[torch.randint(len(rows), (self.batch,))]
        optimiser.zero_grad()
        base = random_samples(len(self.model.hidden) + 1, self.samples, len(chosen), self.X)
        given = {} if self.share is None else {"share": self.share[chosen]}
        bound: Tensor = self.mll(self.model(self.X[chosen], base), self.y[chosen], **given)
        self.steps, self.bound = self.steps + 1, float(bound.detach())
        if not math.isfinite(self.bound):
            raise RuntimeError(
                f"training diverged: the bound is {self.bound} in step {self.steps}; lower the learning rate"
            )
        (-bound).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        self.show(self.steps, self.bound)


def held_out_score(model: DeepModel, likelihood: Any, X: Tensor, y: Tensor, samples: int = 20) -> float:
    """Mean log density of rows, outliers included, under the mixture over samples of the hidden layers.

    With the noise law it is robust: an outlier costs what its broad density says, however far away.
    """
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        q = model(X, base_samples(len(model.hidden) + 1, samples, X))
        if isinstance(likelihood, NoiseLawLikelihood):
            density = likelihood.log_marginal(y, q)  # s x n
        else:
            density = torch.distributions.Normal(q.mean, (q.variance + likelihood.noise).sqrt()).log_prob(y)  # type: ignore[no-untyped-call]
        return float(density.logsumexp(dim=0).mean()) - math.log(len(density))


def _show(line: StatusLine | None, most: int, step: int, bound: float) -> None:
    if line is not None:
        line.show(f"step {step} of at most {most}, bound {bound:.4g} per row")
