"""Training: objectives that score a model's hyperparameters, and the searches that maximise them.

``fit`` follows one objective, as the paper does; ``fit_robust`` also learns the noise law, and with it the weights.
"""

from rcgp.training.fit import FitError, FitReport, fit
from rcgp.training.robust import RobustReport, Round, fit_robust, weigh_by_law

__all__ = ["FitError", "FitReport", "RobustReport", "Round", "fit", "fit_robust", "weigh_by_law"]
