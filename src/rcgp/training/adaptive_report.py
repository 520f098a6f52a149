"""What an adaptive fit did, round by round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rcgp.training.fit import FitReport
from rcgp.training.tails import Tail

__all__ = ["LIMIT", "AdaptiveReport", "Round"]

#: Standard deviations within which a row is trusted while the rounds settle, and in the end where no tail was fitted.
LIMIT = 3.0


@dataclass(frozen=True)
class Round:
    """One choice of hyperparameters.

    Attributes:
        name: which step it belongs to.
        evaluations: of its objective.
        score: the objective at its end, priors included, for each trusted row.
        trusted: number of rows that it trusted.
    """

    name: str
    evaluations: int
    score: float
    trusted: int


@dataclass(frozen=True)
class AdaptiveReport(FitReport):
    """What an adaptive fit did: a :class:`FitReport` of its last search, over all rounds where it counts something.

    Attributes:
        rounds: each choice of hyperparameters, in order.
        settled: whether who is trusted changed little in the last round; else more rounds might change it again.
        tail: the distribution of standardised residuals that are no outliers, and the threshold it sets.
        contested: number of rows in a region that the rows outside decided on; zero where there was none.
        calibration: the factor on all variances.
        reach: the thresholds in standard deviations of the final model, as a rule (their median).
    """

    rounds: tuple[Round, ...] = field(default=(), repr=False)
    settled: bool = True
    tail: Tail = field(default_factory=lambda: Tail(math.inf, 1.0, LIMIT), repr=False)
    contested: int = 0
    calibration: float = 1.0
    reach: float = LIMIT

    def __str__(self) -> str:
        steps = [
            f"  {r.name:<12} {r.trusted:>6} rows trusted  {r.evaluations:>4} evaluations  score {r.score:.4g} for each"
            for r in self.rounds
        ]
        tail = "normal" if self.tail.degrees == math.inf else f"t with {self.tail.degrees:g} degrees of freedom"
        ends = [
            f"  residuals are {tail}; beyond {self.reach:.3g} standard deviations a row is not trusted",
            f"  variances times {self.calibration:.3g} for calibration",
        ]
        if not self.settled:
            ends.insert(0, "  who is trusted still changed in the last round: look at the rows that are not")
        if self.contested:
            ends.insert(0, f"  {self.contested} rows contested each other and were judged by the others")
        return "\n".join([super().__str__(), "rounds:", *steps, *ends])
