"""Robust likelihoods for GPyTorch: a script for variational or deep GPs becomes robust by one line.

from rcgp.gpytorch import NoiseLawLikelihood   # instead of gpytorch.likelihoods.GaussianLikelihood

likelihood = NoiseLawLikelihood(train_y)
"""

from rcgp.gpytorch.loss import RCGPLikelihood
from rcgp.gpytorch.noise_law import NoiseLawLikelihood, NoiseMixture

__all__ = ["NoiseLawLikelihood", "NoiseMixture", "RCGPLikelihood"]
