"""Bayesian optimisation that outliers cannot derail: the robust conjugate GP as a BoTorch model.

from rcgp.botorch import SingleTaskRCGP       # in the place of botorch.models.SingleTaskGP

Importing this room imports BoTorch, which changes settings of linear_operator for the whole process; nothing else in
rcgp does.
"""

try:
    import botorch as _botorch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rcgp.botorch needs BoTorch: pip install 'rcgp[botorch]'; for rcgp.botorch.ax it is 'rcgp[ax]'"
    ) from error

from rcgp.botorch.fitting import fit
from rcgp.botorch.loop import EvaluationError, optimise
from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.objective import LeaveOneOutObjective
from rcgp.botorch.result import Evaluation, OptimisationResult
from rcgp.botorch.transforms import RobustStandardize

__all__ = [
    "Evaluation",
    "EvaluationError",
    "LeaveOneOutObjective",
    "OptimisationResult",
    "RobustStandardize",
    "SingleTaskRCGP",
    "fit",
    "optimise",
]
