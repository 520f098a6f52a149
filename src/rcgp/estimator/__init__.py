"""The robust GP for practitioners: scikit-learn's contract, kernels of either library, saved models."""

from rcgp.estimator.deep import DeepRCGPRegressor
from rcgp.estimator.output import FLAG_RULE, NoiseLawWarning
from rcgp.estimator.regressor import RCGPRegressor
from rcgp.estimator.saved import load
from rcgp.estimator.sparse import IntervalWarning, SparseRCGPRegressor
from rcgp.saving import SavedModelError

__all__ = [
    "FLAG_RULE",
    "DeepRCGPRegressor",
    "IntervalWarning",
    "NoiseLawWarning",
    "RCGPRegressor",
    "SavedModelError",
    "SparseRCGPRegressor",
    "load",
]
