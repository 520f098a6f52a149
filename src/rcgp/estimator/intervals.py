"""Whether the intervals of a sparse fit can be relied on, or its inducing points are too few for the function."""

from __future__ import annotations

import math

from rcgp.chunked.fit import ChunkedFit
from rcgp.models.inducing import CANDIDATES

__all__ = ["IntervalWarning", "doubt_of"]

# Errors this many times as large as expected are doubtful, and this many standard errors above that: few rows know
# their own spread less well. Its standard error is 1.17 over the root of the number of rows, for normal errors.
_LARGE, _SURE, _ERROR = 1.25, 4.0, 1.17

# Share of an observation's variance that the inducing points may leave unseen.
_UNSEEN = 0.5


class IntervalWarning(UserWarning):
    """The intervals of a sparse model are too narrow or wide: it has too few inducing points for the function."""


def doubt_of(fitted: ChunkedFit) -> str | None:
    """What is wrong with the intervals of a fit, as a sentence; ``None`` where nothing is.

    What the inducing points do not see of the prior variance is a part of every prediction's: the error of a function
    that is known at these points alone. The fit goes through all rows and errs less, by about half of that variance, so
    few points make wide intervals. But the weights hold rows for outliers that these points cannot follow, and the
    posterior is sure of what they say together: with far too few, errors are larger than any variance.
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
