"""One adaptive fit on its way: what it does again and again, and how it went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.core.trimming import outlier_log_odds
from rcgp.models import RCGP
from rcgp.training.adaptive_report import LIMIT, Round
from rcgp.training.climbing import row_noise
from rcgp.training.fit import FitError, FitReport, fit
from rcgp.training.objectives import Objective
from rcgp.training.rows import Prediction, evidence_of
from rcgp.training.search import Progress
from rcgp.training.snapshots import hyperparameters_of, restore_hyperparameters
from rcgp.training.tails import Tail
from rcgp.weights import Plateau, WeightFunction

__all__ = ["MISSING", "REPEATS", "ROUGH", "Course", "Parts"]

# How often hyperparameters and weights follow each other at most; how often, if each time fewer rows are trusted; and
# the share of rows that may still change sides when that ends.
_ROUNDS, _SHRINKING, _SETTLED = 4, 12, 0.01

# Share of different rows with the observation of another one above which observations are held to be rounded.
_ROUNDED = 0.05

#: How often weights follow predictions at the same hyperparameters.
REPEATS = 2

#: Searches end early as long as who is trusted is not settled.
ROUGH = 1e-4

#: Log density of all rows that may be missing for each of them where a step is taken that may lead on. After one round
#: from the core at most 0.22 were, where outliers were found in the end, and 0.39 where the tail was real; where rows
#: came back beyond a wider line at most 0.19 were, and 1.4 where they were outliers.
MISSING = 0.3


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the recipe, each of which can be left out to see what it is good for.

    Attributes:
        neighbours: start again from the medians of neighbours where the rounds went wrong.
        shorter: try shorter lengthscales where hardly anything was learned.
        afar: start again from a wide window around the prior mean where many rows were rejected, with the heaviest of
            tails.
        core: start again from the half that is predicted best where residuals have the heaviest of tails.
        trimming: of few rows, start again from those that are trusted by evidence where that is more likely.
        tail: take the threshold from the tail of the residuals; without, it is three standard deviations.
        everyone: start again from an ordinary GP of all rows where no gap sets the rejected apart and that is better.
        contested: have rows outside judge rejected rows that crowd together.
        leave_one_out: choose the last hyperparameters by leave-one-out and the evidence of the trusted rows; without,
            by the evidence alone.
        afresh: choose them from the first ones, too, where a few steps from there show that it is worth it.
        calibration: check the standard deviations on halves of the data.
    """

    neighbours: bool = True
    shorter: bool = True
    afar: bool = True
    core: bool = True
    trimming: bool = True
    tail: bool = True
    everyone: bool = True
    contested: bool = True
    leave_one_out: bool = True
    afresh: bool = True
    calibration: bool = True


class Place(NamedTuple):
    """Where a fit is, to go back to."""

    weight: WeightFunction
    parameters: list[Tensor]
    settled: bool


class Course:
    """One adaptive fit on its way: the model, what was done, and how it went."""

    def __init__(self, model: RCGP, parts: Parts, max_iterations: int, report: Progress) -> None:
        self.model, self.parts, self.max_iterations, self.report = model, parts, max_iterations, report
        self.y = model.train_y
        self.distinct = _no_copies(model)
        self.first: list[Tensor] = []
        self.rounds: list[Round] = []
        self.evaluations = self.rejected = self.contested = 0
        self.tail = Tail(math.inf, 1.0, LIMIT)
        self.calibration, self.reach = 1.0, LIMIT
        self.settled = False

    def settle(self, name: str, trusted: Tensor) -> Tensor:
        """Hyperparameters and weights in turn. Returns the rows that are trusted in the end."""
        few = self.few()
        for done in range(1, _SHRINKING + 1):
            before, trusted = trusted, self.follow(name, trusted)
            self.settled = int((trusted != before).sum()) <= few
            # Many outliers that are not far out hide behind the noise that they make, and lose trust little by little.
            if self.settled or (done >= _ROUNDS and int(before.sum()) - int(trusted.sum()) <= few):
                break
        return trusted

    def follow(self, name: str, trusted: Tensor) -> Tensor:
        """One round: hyperparameters by the rows that are trusted, weights by these. Returns who is trusted then."""
        self.search(name, self.evidence_of(trusted), trusted, ROUGH)
        for _ in range(REPEATS):
            prediction = self.predict()
            self.expect(prediction.mean, LIMIT * prediction.variance.sqrt())
            trusted = self.within(prediction.score(self.y), LIMIT)
        return trusted

    def attempt(
        self, name: str, objective: Objective, trusted: Tensor, tolerance: float, limit: int | None = None
    ) -> FitReport | None:
        """A search that may fail: then there is nothing to be had from these hyperparameters."""
        try:
            return self.search(name, objective, trusted, tolerance, limit)
        except FitError:
            return None

    def search(
        self, name: str, objective: Objective, trusted: Tensor | None, tolerance: float, limit: int | None = None
    ) -> FitReport:
        so_far = self.evaluations
        report = fit(
            self.model,
            objective,
            max_iterations=min(self.max_iterations, limit or self.max_iterations),
            tolerance=tolerance,
            progress=lambda evaluations, best: self.report(so_far + evaluations, best),
        )
        self.evaluations += report.evaluations
        self.rejected += report.rejected
        if trusted is not None:
            count = int(trusted.sum())
            self.rounds.append(Round(name, report.evaluations, report.value / count, count))
        return report

    def evidence_of(self, rows: Tensor) -> Objective:
        """The evidence of rows, of each only once.

        A copy of a row, inputs and observation, is no second observation. Taken for one it says that there is no noise,
        and the more so the smaller the noise is: the evidence has no maximum.
        """
        return evidence_of(rows & self.distinct)

    def evidence(self, rows: Tensor) -> float:
        """The evidence of rows at the present hyperparameters, for each of them; minus infinity where there is none."""
        try:
            with torch.no_grad():
                return float(self.evidence_of(rows)(self.model)) / int(rows.sum())
        except NotPositiveDefiniteError:
            return -math.inf

    def log_density(self, trusted: Tensor) -> float:
        """Log density of all rows, of those that are not trusted as outliers; minus infinity where there is none.

        At the present hyperparameters. Cost m³ for m trusted rows.
        """
        log_odds = outlier_log_odds(self.model.residual().detach(), row_noise(self.model))
        return self.evidence(trusted) * int(trusted.sum()) + float(log_odds[~trusted & self.distinct].sum())

    def few(self) -> float:
        """So many rows may change sides without a word."""
        return _SETTLED * len(self.y)

    def place(self) -> Place:
        """Where the fit is now."""
        return Place(self.model.weight, hyperparameters_of(self.model), self.settled)

    def go_back(self, place: Place) -> None:
        """As if nothing had been tried since."""
        self.model.weight, self.settled = place.weight, place.settled
        restore_hyperparameters(self.model, place.parameters)

    def predict(self) -> Prediction:
        """Each observation from all others."""
        return Prediction(*self.model.leave_one_out())

    def expect(self, mean: Tensor, threshold: Tensor) -> None:
        """Centre the weights on expected observations."""
        with torch.no_grad():
            self.model.weight = Plateau(mean - self.model.mean(self.model.train_X), threshold)

    def within(self, residual: Tensor, limit: float) -> Tensor:
        """The rows within a limit, and at least half of all."""
        size = residual.abs()
        return size <= max(limit, float(size.quantile(0.5)))


def _no_copies(model: RCGP) -> Tensor:
    """Flags of the rows that no earlier one is equal to, in inputs, observation and sample weight. Cost O(n log n).

    All rows, where observations are equal elsewhere, too, as rounded ones are: then equal rows are nothing special.
    """
    columns = [model.train_X, model.train_y.unsqueeze(-1)]
    if model.sample_weight is not None:
        columns.append(model.sample_weight.unsqueeze(-1))
    first = np.unique(torch.cat(columns, dim=-1).detach().cpu().numpy(), axis=0, return_index=True)[1]
    flags = torch.zeros_like(model.train_y, dtype=torch.bool)
    flags[torch.from_numpy(first).to(flags.device)] = True
    values = model.train_y[flags].detach().cpu().numpy()
    return flags if len(np.unique(values)) >= (1.0 - _ROUNDED) * len(values) else torch.ones_like(flags)
