"""Training: objectives that score a model's hyperparameters, and the searches that maximise them.

``fit`` follows one objective, as the paper does; ``fit_adaptive`` also finds out which rows to trust.
"""

from rcgp.training.adaptive import Parts, centre_on, fit_adaptive
from rcgp.training.adaptive_report import AdaptiveReport, Round
from rcgp.training.fit import FitError, FitReport, fit
from rcgp.training.trimmed import (
    find_trusted,
    fit_as_botorch,
    fit_to_rows,
    fit_trimmed,
    judge_rows,
)

__all__ = [
    "AdaptiveReport",
    "FitError",
    "FitReport",
    "Parts",
    "Round",
    "centre_on",
    "find_trusted",
    "fit",
    "fit_adaptive",
    "fit_as_botorch",
    "fit_to_rows",
    "fit_trimmed",
    "judge_rows",
]
