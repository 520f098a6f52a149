"""Training: objectives that score a model's hyperparameters, and the optimiser that maximises them."""

from rcgp.training.fit import FitError, FitReport, fit

__all__ = ["FitError", "FitReport", "fit"]
