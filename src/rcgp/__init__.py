"""rcgp: Gaussian process regression that outliers cannot break.

from rcgp import RCGPRegressor                # for a table: scikit-learn's contract

model = RCGPRegressor().fit(X, y)
model.predict(X_new, return_std=True), model.outliers_
model.save("model.rcgp")                      # rcgp.load("model.rcgp") reads it

from rcgp import RCGP, fit_robust             # for tensors: GPyTorch kernels, posterior distributions

model = RCGP(train_X, train_y)
print(fit_robust(model))                      # or fit(model), the paper's leave-one-out
model.posterior(test_X)
"""

from typing import TYPE_CHECKING, Any

from rcgp.models import RCGP, SparseRCGP, posterior_influence
from rcgp.training import FitError, FitReport, RobustReport, fit, fit_robust
from rcgp.weights import NoiseLaw

if TYPE_CHECKING:
    from rcgp.estimator import RCGPRegressor, SavedModelError, SparseRCGPRegressor, load

__all__ = [
    "RCGP",
    "FitError",
    "FitReport",
    "NoiseLaw",
    "RCGPRegressor",
    "RobustReport",
    "SavedModelError",
    "SparseRCGP",
    "SparseRCGPRegressor",
    "__version__",
    "fit",
    "fit_robust",
    "load",
    "posterior_influence",
]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import: only those who use the estimator wait for it.
    if name in ("RCGPRegressor", "SavedModelError", "SparseRCGPRegressor", "load"):
        import rcgp.estimator

        return getattr(rcgp.estimator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
