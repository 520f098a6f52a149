"""rcgp: Gaussian process regression that outliers cannot break.

from rcgp import RCGP, fit

model = RCGP(train_X, train_y)
print(fit(model))
model.posterior(test_X)
"""

from rcgp.models import RCGP, posterior_influence
from rcgp.training import FitError, FitReport, fit

__all__ = ["RCGP", "FitError", "FitReport", "__version__", "fit", "posterior_influence"]

__version__ = "0.1.0"
