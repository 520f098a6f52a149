"""Models: modules that own hyperparameters, and the only place where GPyTorch objects are called."""

from rcgp.models.averages import AverageRCGP
from rcgp.models.exact import RCGP, TrainingTerms, posterior_influence
from rcgp.models.gradients import GradientRCGP
from rcgp.models.outputs import MultiOutputRCGP
from rcgp.models.sparse import SparseMultiOutputRCGP, SparseRCGP

__all__ = [
    "RCGP",
    "AverageRCGP",
    "GradientRCGP",
    "MultiOutputRCGP",
    "SparseMultiOutputRCGP",
    "SparseRCGP",
    "TrainingTerms",
    "posterior_influence",
]
