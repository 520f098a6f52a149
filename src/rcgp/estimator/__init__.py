"""The robust GP for practitioners: scikit-learn's contract, kernels of either library, saved models."""

from rcgp.estimator.regressor import RCGPRegressor
from rcgp.estimator.saved import load
from rcgp.estimator.sparse import SparseRCGPRegressor
from rcgp.saving import SavedModelError

__all__ = ["RCGPRegressor", "SavedModelError", "SparseRCGPRegressor", "load"]
