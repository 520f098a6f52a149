"""Doubts about a fit: warnings that the noise law, or the intervals of a sparse model, may be wrong."""

from __future__ import annotations

import math

from rcgp.chunked.fit import ChunkedFit
from rcgp.models.inducing import CANDIDATES

__all__ = ["FLAG_RULE", "IntervalWarning", "NoiseLawWarning", "doubt_of"]

#: The rule in words, for wherever flags are shown.
FLAG_RULE = "flagged: rows that are more likely outliers than not (probability above 0.5) by the learned noise law"

# The spread of standardised errors is 1 for correct intervals. A spread above 1.25 is doubtful, by four standard
# errors: 1.17 over the root of the number of rows, for normal errors.
_LARGE, _SURE, _ERROR = 1.25, 4.0, 1.17

# Share of an observation's variance that the inducing points may leave unexplained.
_UNSEEN = 0.5


class NoiseLawWarning(UserWarning):
    """The fit cannot tell outliers from inliers, or its noise law does not fit the rows."""


class IntervalWarning(UserWarning):
    """The intervals of a sparse model are too narrow or too wide: it has too few inducing points."""


def doubt_of(fitted: ChunkedFit) -> str | None:
    """What is wrong with the intervals of a sparse fit, as a sentence; ``None`` if nothing is.

    Every predictive variance includes the prior variance that the inducing points do not explain. The fit goes through
    all rows and errs by about half of that variance, so too few points make wide intervals. With far too few points
    the weights flag rows that the model cannot follow, and errors exceed any variance.
    """
    allowed = _LARGE + _SURE * _ERROR / math.sqrt(min(fitted.rows, CANDIDATES))
    points = len(fitted.diagnose.view.Z)
    if fitted.trusted_spread > allowed:
        return (
            f"{points} inducing points are too few, or the sample that the noise was fitted to: leave-one-out errors "
            f"of trusted rows are typically {fitted.trusted_spread:.2g} times what the model expects, so that "
            "intervals are too narrow, and good rows may be flagged"
        )
    if fitted.unseen > _UNSEEN:
        return (
            f"{points} inducing points are few: {fitted.unseen:.0%} of the variance of a typical prediction is what "
            "they do not see of the function, so that intervals are wide (leave-one-out errors of trusted rows are "
            f"typically {fitted.trusted_spread:.2g} times what the model expects) and predictions less exact than with "
            "more points"
        )
    return None
