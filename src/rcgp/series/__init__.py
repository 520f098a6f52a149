"""Series in linear time: the robust conjugate GP as a state-space model.

from rcgp import StateSpaceRCGP, fit_robust

model = StateSpaceRCGP(times, y)
fit_robust(model)
model.posterior(new_times)
"""

try:
    import numba as _numba  # noqa: F401
except ImportError as error:
    raise ModuleNotFoundError('rcgp.series needs numba: pip install "rcgp[series]"', name="numba") from error

from rcgp.series.kernels import harmonic_error
from rcgp.series.model import StateSpaceRCGP
from rcgp.series.space_time import FieldPosterior, SpaceTimeRCGP
from rcgp.series.stream import Stream, StreamResult, StreamResults

__all__ = [
    "FieldPosterior",
    "SpaceTimeRCGP",
    "StateSpaceRCGP",
    "Stream",
    "StreamResult",
    "StreamResults",
    "harmonic_error",
]
