"""The robust GP for practitioners: scikit-learn's contract, kernels of either library, saved models."""

from rcgp.estimator.regressor import RCGPRegressor

__all__ = ["RCGPRegressor"]
