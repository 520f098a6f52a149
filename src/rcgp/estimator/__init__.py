"""The robust GP for practitioners: scikit-learn's contract, kernels of either library, saved models."""

from rcgp.estimator.regressor import RCGPRegressor
from rcgp.estimator.saved import load

__all__ = ["RCGPRegressor", "load"]
