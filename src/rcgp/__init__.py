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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rcgp.estimator import DeepRCGPRegressor, RCGPRegressor, SavedModelError, SparseRCGPRegressor, load
    from rcgp.estimator.series import RCGPSeries
    from rcgp.models import (
        RCGP,
        AverageRCGP,
        GradientRCGP,
        MultiOutputRCGP,
        SparseMultiOutputRCGP,
        SparseRCGP,
        posterior_influence,
    )
    from rcgp.series import SpaceTimeRCGP, StateSpaceRCGP
    from rcgp.training import FitError, FitReport, RobustReport, fit, fit_robust
    from rcgp.weights import NoiseLaw

__all__ = [
    "RCGP",
    "AverageRCGP",
    "DeepRCGPRegressor",
    "FitError",
    "FitReport",
    "GradientRCGP",
    "MultiOutputRCGP",
    "NoiseLaw",
    "RCGPRegressor",
    "RCGPSeries",
    "RobustReport",
    "SavedModelError",
    "SpaceTimeRCGP",
    "SparseMultiOutputRCGP",
    "SparseRCGP",
    "SparseRCGPRegressor",
    "StateSpaceRCGP",
    "__version__",
    "fit",
    "fit_robust",
    "load",
    "posterior_influence",
]

__version__ = "0.2.0"

# torch, GPyTorch and scikit-learn take seconds to import: each name is imported when it is first used.
_ROOMS = {
    "estimator": ("DeepRCGPRegressor", "RCGPRegressor", "SavedModelError", "SparseRCGPRegressor", "load"),
    "estimator.series": ("RCGPSeries",),
    "models": (
        "RCGP",
        "AverageRCGP",
        "GradientRCGP",
        "MultiOutputRCGP",
        "SparseMultiOutputRCGP",
        "SparseRCGP",
        "posterior_influence",
    ),
    "series": ("SpaceTimeRCGP", "StateSpaceRCGP"),
    "training": ("FitError", "FitReport", "RobustReport", "fit", "fit_robust"),
    "weights": ("NoiseLaw",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Called only when normal lookup fails."""
    if name in _ROOMS or name in ("core", "gpytorch"):
        return import_module(f"rcgp.{name}")
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"rcgp.{_ROOM_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
