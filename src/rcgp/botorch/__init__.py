"""Bayesian optimisation that outliers cannot derail: the robust conjugate GP as a BoTorch model.

from rcgp.botorch import SingleTaskRCGP       # instead of botorch.models.SingleTaskGP
from rcgp.botorch import MultiTaskRCGP        # instead of botorch.models.MultiTaskGP

Importing this room imports BoTorch, which changes settings of linear_operator for the whole process; nothing else in
rcgp does.
"""

try:
    import botorch as _botorch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rcgp.botorch needs BoTorch: pip install 'rcgp[botorch]'; for rcgp.botorch.ax it is 'rcgp[ax]'"
    ) from error

import rcgp.botorch.pathwise as _pathwise  # noqa: F401  tells BoTorch's path-wise sampling of the models
from rcgp.botorch.defaults import RobustStandardize, RobustStratifiedStandardize
from rcgp.botorch.evaluations import Evaluation, OptimisationResult
from rcgp.botorch.fitting import LeaveOneOutObjective, fit
from rcgp.botorch.loop import EvaluationError, optimise
from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.multi_task import MultiTaskRCGP
from rcgp.training.judgement import NoiseLawWarning

__all__ = [
    "Evaluation",
    "EvaluationError",
    "LeaveOneOutObjective",
    "MultiTaskRCGP",
    "NoiseLawWarning",
    "OptimisationResult",
    "RobustStandardize",
    "RobustStratifiedStandardize",
    "SingleTaskRCGP",
    "fit",
    "optimise",
]
