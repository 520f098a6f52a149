"""The flash crash within two days, minute by minute: a plain GP and three robust ones on the same series.

At its lowest the index is where it was at the end of the day before, close to the mean of both days: weights centred
on a prior mean cannot recognise the crash. It takes four minutes, so that each minute has a neighbour like it.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcgp.models import RCGP
from rcgp.training import fit
from rcgp_paper.data import load

if TYPE_CHECKING:
    from rcgp import RCGPSeries

__all__ = ["DATA", "two_days"]

DATA = "flash_crash_two_days"

Numbers = NDArray[np.float64]

_DAY = 1440.0


def two_days() -> dict[str, Any]:
    """Curves and weights of each method on the DJIA of 22 and 23 April 2013, in minutes since the first midnight.

    ``gp`` is the ordinary GP with a Matérn-3/2 kernel and the mean of the prices as prior mean. ``rcgp`` is the paper's
    method with that kernel and mean by leave-one-out, and with the GP's noise variance, as in the authors' run on the
    second day. ``st_rcgp`` is ST-RCGP's rule at the hyperparameters of the GP. ``learned`` is ``RCGPSeries()``, whose
    kernel is a trend and a Matérn-3/2 process.

    Two further runs test the sensitivity: ST-RCGP's rule at the hyperparameters of ``learned``, and ``learned`` with
    the night taken out of the times, which makes the opening of the second day a jump within one minute.
    """
    # numba is imported here only.
    from rcgp import StateSpaceRCGP
    from rcgp_paper.baselines.filter_centred import FilterCentredGP

    data = load(DATA)
    minute = _minutes(data.X[:, 0])
    t, y = torch.from_numpy(minute), torch.from_numpy(data.y)
    gp = StateSpaceRCGP(t, y, mean="constant")
    fit(gp, "marginal")
    rcgp = RCGP(t.unsqueeze(-1), y, mean="constant", kernel=copy.deepcopy(gp.kernel), noise=gp.noise.item())
    rcgp.raw_noise.requires_grad_(False)
    fit(rcgp)
    centred = FilterCentredGP(t, y, mean="constant", kernel=copy.deepcopy(gp.kernel), noise=gp.noise.item())
    learned = _learned(minute, data.y)
    own = learned.models_[0]
    same = FilterCentredGP(
        own.train_X, own.train_y, mean="median", kernel=copy.deepcopy(own.kernel), noise=own.noise.item()
    )
    models = {"gp": gp, "rcgp": rcgp, "st_rcgp": centred, "learned": own}
    mean, std = learned.predict(minute, return_std=True)
    return {
        "minute": minute.tolist(),
        "price": data.y.tolist(),
        **{name: _curve(model, t) for name, model in models.items() if name != "learned"},
        "learned": {"mean": mean.tolist(), "std": std.tolist(), "weight": learned.weights_.tolist()},
        "flagged": learned.outliers_.tolist(),
        "outlier_probability": learned.outlier_probability_.tolist(),
        "doubts": list(learned.doubts_),
        "hyperparameters": {name: model.listed_hyperparameters() for name, model in models.items()},
        "st_rcgp_at_learned": {"weight": same.weights().tolist()},
        "flagged_without_night": _learned(_without_night(minute), data.y).outliers_.tolist(),
    }


def _minutes(minute_of_day: Numbers) -> Numbers:
    """Minutes since the first midnight: those of a day start again on the next."""
    day = np.concatenate([[0.0], np.cumsum(np.diff(minute_of_day) < 0.0)])
    minutes: Numbers = minute_of_day + _DAY * day
    return minutes


def _without_night(minute: Numbers) -> Numbers:
    """Times at which the second day opens a minute after the first one ends."""
    night = np.diff(minute, prepend=minute[0])
    shifted: Numbers = minute - np.cumsum(np.where(night > 60.0, night - 1.0, 0.0))
    return shifted


def _learned(minute: Numbers, y: Numbers) -> RCGPSeries:
    """``RCGPSeries`` with default settings, fitted."""
    from rcgp import RCGPSeries
    from rcgp.estimator import NoiseLawWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLawWarning)  # its text is in the record
        return RCGPSeries().fit(minute, y)


def _curve(model: RCGP, t: Tensor) -> dict[str, list[float]]:
    """Mean and standard deviation of f, and the weight, in each minute."""
    with torch.no_grad():
        posterior = model.posterior(t.unsqueeze(-1))
        return {
            "mean": posterior.mean.tolist(),
            "std": posterior.stddev.tolist(),
            "weight": model.weights().tolist(),
        }
