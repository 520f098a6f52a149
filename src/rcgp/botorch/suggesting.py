"""The next point of an optimisation: initial points fill the box, later ones are where the robust model expects most.

A point depends only on the seed, its number and the evaluations before it, so an interrupted optimisation resumes with
the points that it would have had.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning, OptimizationWarning
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import manual_seed
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from rcgp.botorch.defaults import RobustStandardize
from rcgp.botorch.fitting import fit_silently
from rcgp.botorch.model import SingleTaskRCGP
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.training import FitError
from rcgp.weights.noise_law import FLAGGED

__all__ = ["Surrogate", "fit_surrogate", "next_point", "sobol_point"]

# Samples of the posterior; points at which the acquisition function is evaluated, and from which it is maximised.
_SAMPLES, _RAW_SAMPLES, _RESTARTS = 128, 256, 6

# Half the side of the cube around a failed evaluation in which no other is made, in units of the box.
_APART = 1e-3

# Relative differences between values that are rounding errors.
_ROUNDING = 1e-14

# Largest standardised value: an outlier anywhere, yet finite.
_HUGE = 1e300

# Errors from matrices of neighbouring points. They must not end an optimisation: there are other points.
_NUMERICAL_ERRORS = (NotPositiveDefiniteError, NotPSDError, NanError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Surrogate:
    """The model fitted to the evaluations with values; larger is better.

    Attributes:
        model: the model, of standardised values: acquisition functions have tolerances in the units of their model.
        X: ``n x d`` points of the unit cube.
        mean, deviation: ``n``, of f at each point.
        expected, expected_deviation: ``n``, of f at each point given all other evaluations.
        weight, outlier_probability: ``n``.
    """

    model: SingleTaskRCGP
    X: Tensor
    mean: Tensor
    deviation: Tensor
    expected: Tensor
    expected_deviation: Tensor
    weight: Tensor
    outlier_probability: Tensor

    @property
    def best(self) -> int:
        """The row with the best mean among those that are not outliers."""
        good = self.outlier_probability <= FLAGGED
        return int(torch.where(good | ~good.any(), self.mean, -torch.inf).argmax())


def fit_surrogate(X: Tensor, y: Tensor) -> Surrogate | None:
    """Fit the model to evaluations, ``n x d`` and ``n``; None if there are fewer than two or the fit fails."""
    if len(y) < 2:
        return None
    # Values may have any units: a scale is too small only if it is a rounding error.
    standard = RobustStandardize(m=1, min_stdv=max(_ROUNDING * float(y.abs().median()), torch.finfo(y.dtype).tiny))
    targets = standard(y.unsqueeze(-1))[0].clamp(-_HUGE, _HUGE)
    model = SingleTaskRCGP(X, targets, outcome_transform=None)
    try:
        with _quiet():
            fit_silently(model)
    except (FitError, ModelFittingError, *_NUMERICAL_ERRORS):
        return None
    with torch.no_grad(), _quiet():
        posterior, left_out = model.posterior(X), model.latent_leave_one_out()
        # Deviations, not variances, in the units of y: of values of 1e200 these are infinite.
        scale = standard.stdvs.squeeze(-1)
        mean = standard.untransform(posterior.mean)[0]
        expected = standard.untransform(left_out.mean.unsqueeze(-1))[0]
        return Surrogate(
            model=model,
            X=X,
            mean=mean.squeeze(-1),
            deviation=posterior.variance.squeeze(-1).sqrt() * scale,
            expected=expected.squeeze(-1),
            expected_deviation=left_out.variance.sqrt() * scale,
            weight=model.weights().squeeze(-1),
            outlier_probability=model.outlier_probability().squeeze(-1),
        )


def sobol_point(dimension: int, number: int, seed: int) -> Tensor:
    """The point of that number, from 1, in a scrambled Sobol sequence."""
    sequence = torch.quasirandom.SobolEngine(dimension, True, seed)  # type: ignore[no-untyped-call]
    return sequence.draw(number, dtype=torch.double)[-1]


def next_point(surrogate: Surrogate, failed: Tensor, number: int, seed: int) -> Tensor:
    """The point that maximises log noisy expected improvement.

    The best value so far is not an observation but unknown, like f itself, so a lucky outlier cannot pass for it.

    Args:
        surrogate: the model and its data.
        failed: ``k x d`` points where evaluations failed. The acquisition function treats them as pending, and no point
            is proposed next to them.
        number: number of the evaluation, from 1.
        seed: seed of the optimisation.

    Returns:
        A point of the unit cube; the next Sobol point if the acquisition function proposes none.
    """
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    try:
        with manual_seed(own), _quiet():
            candidates = _candidates(surrogate, failed, own)
    except _NUMERICAL_ERRORS:
        candidates = surrogate.X[:0]
    for point in candidates:
        if not len(failed) or bool(((failed - point).abs().amax(dim=-1) > _APART).all()):
            return point  # type: ignore[no-any-return]
    return sobol_point(surrogate.X.shape[-1], number, seed)


def _candidates(surrogate: Surrogate, failed: Tensor, seed: int) -> Tensor:
    """Local maxima of the acquisition function, ``k x d``, the best first."""
    acquisition = qLogNoisyExpectedImprovement(
        surrogate.model,
        X_baseline=surrogate.X,
        X_pending=failed if len(failed) else None,
        sampler=SobolQMCNormalSampler(torch.Size([_SAMPLES]), seed=seed),
    )
    points, values = optimize_acqf(
        acquisition,
        torch.stack([torch.zeros_like(surrogate.X[0]), torch.ones_like(surrogate.X[0])]),
        q=1,
        num_restarts=_RESTARTS,
        raw_samples=_RAW_SAMPLES,
        options={"sample_around_best": True},
        return_best_only=False,
        retry_on_optimization_warning=False,  # a search that ends on a plateau is as good as others
    )
    best_first: Tensor = points.detach().squeeze(-2)[values.argsort(descending=True)]
    return best_first


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings of variances near zero, of jitter for neighbouring points and of searches that end early.

    All are expected in an optimisation: values may be exact, and points meet at the best one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        warnings.simplefilter("ignore", OptimizationWarning)
        warnings.filterwarnings("ignore", "Low-rank cholesky updates failed", BotorchWarning)  # it samples all again
        yield
