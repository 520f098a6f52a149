"""A robust sparse GP fitted to rows that are gone through in pieces: more than memory holds, on whatever machines.

1. Count the rows, and fetch a random sample of them by their numbers, which do not depend on the pieces.
2. Choose the hyperparameters on that sample, by an exact model: n³ for a thousand rows is little.
3. Choose the inducing points among up to 20 000 rows by the fitted kernel.
4. Weigh all rows and sum up their statistics: :mod:`rcgp.training.weighing`.

Every pass is a sum, or a collection, of what a task (:mod:`rcgp.training.row_tasks`) makes of each piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rcgp.chunks import Chunks, Engine
from rcgp.models import RCGP, SparseRCGP
from rcgp.models.defaults import add_weak_priors
from rcgp.models.inducing import CANDIDATES, check_selection, choose_inducing
from rcgp.models.posterior import PosteriorProcess
from rcgp.models.validation import check_inducing
from rcgp.training.adaptive import centre_on, fit_adaptive
from rcgp.training.adaptive_report import AdaptiveReport
from rcgp.training.calibration import scale_variance
from rcgp.training.fit import FitError, FitReport, fit
from rcgp.training.memory import check_inducing_memory
from rcgp.training.row_tasks import Diagnose, View
from rcgp.training.rows import Prediction, leave_out_score_of, robust_spread_of
from rcgp.training.sampling import Sample, draw, take_all
from rcgp.training.search import Progress
from rcgp.training.stages import Stages
from rcgp.training.weighing import posterior_of_sample, weigh_all
from rcgp.weights import Constant

__all__ = ["ChunkedFit", "fit_chunks", "robust_model"]

# The weight of a row at its threshold is the root of a half.
_TRUSTED = 0.5**0.5

#: Builds the exact model of some rows, given X, y and factors on their precision, or none.
Build = Callable[[Tensor, Tensor, Tensor | None], RCGP]


@dataclass(frozen=True)
class ChunkedFit:
    """A sparse model of rows that are not kept.

    Attributes:
        diagnose: the task that says what the others think of each row of a chunk; it knows the posterior.
        report: how the hyperparameters were chosen, on the sample.
        polished: how they were then improved on all rows, if they were.
        rows: number of rows that count.
        fitted_rows: number of those that the hyperparameters were fitted to.
        spread: robust standard deviation of the standardised leave-one-out residuals, by their median size. Of all
            rows, or of 20 000 where there are more; then its relative error is 0.8 %.
        trusted_spread: the same of those rows that are trusted (weight above 0.71), which outliers do not raise: one
            where intervals are right, above one where they are too narrow, below where they are too wide.
        unseen: share of the variance of an observation that is prior variance which the inducing points do not see,
            in the median of the same rows: a half is as much as all else, noise included.
        seconds: what each step took.
    """

    diagnose: Diagnose = field(repr=False)
    report: FitReport
    polished: FitReport | None
    rows: int
    fitted_rows: int
    spread: float
    trusted_spread: float
    unseen: float
    seconds: dict[str, float]

    @property
    def process(self) -> PosteriorProcess:
        """The posterior, which predicts anywhere."""
        view = self.diagnose.view
        return PosteriorProcess(view.prior_mean, view.kernel, view.Z, self.diagnose.posterior)

    @property
    def noise(self) -> Tensor:
        """The noise variance σ², a scalar."""
        return self.diagnose.view.noise


def robust_model(X: Tensor, y: Tensor, precision: Tensor | None) -> RCGP:
    """The default kernel with weak priors, around the median of y."""
    model = RCGP(X, y, mean="median", sample_weight=precision)
    add_weak_priors(model)
    return model


def fit_chunks(
    chunks: Chunks,
    engine: Engine,
    *,
    build: Build = robust_model,
    adaptive: bool = True,
    inducing: int | Tensor = 500,
    selection: str = "greedy",
    fit_rows: int = 1000,
    polish: int = 0,
    max_iterations: int = 1000,
    seed: int = 0,
    progress: bool | Progress = False,
) -> ChunkedFit:
    """Fit a robust sparse GP to rows in pieces. The answer depends neither on the pieces nor on the engine.

    Args:
        chunks: the rows.
        engine: who goes through them.
        build: makes the exact model of the sample, whose kernel, mean, noise and (unless adaptive) weight are used.
        adaptive: centre the weights on what the other rows predict, by :func:`rcgp.fit_adaptive` on the sample; else
            they are those of the model, and :func:`rcgp.fit` chooses its hyperparameters by leave-one-out. A threshold
            by the paper's rule is then the quantile of the distances of all rows from the prior mean, exactly.
        inducing: number of inducing points, or ``m x d`` points.
        selection: how they are chosen; see :func:`rcgp.models.inducing.choose_inducing`.
        fit_rows: size of the sample on which hyperparameters are chosen.
        polish: iterations in which the hyperparameters are then improved by the leave-one-out score of all rows (with
            adaptive centring, of those that are trusted, and the factor of the sample's calibration is applied to the
            variances again). Takes all rows into memory, and O(nm²) for each iteration.
        max_iterations: limit on the iterations of each search on the sample.
        seed: of the sample and of the inducing points.
        progress: as in :func:`rcgp.fit`; see :class:`rcgp.training.stages.Stages` for how steps and passes are told of.

    Returns:
        The fit. Cost O(fit_rows³) for each evaluation on the sample, then O(nm²). Memory beside a chunk: O(fit_rows²),
        then ``m x min(n, 20 000)`` while points are chosen greedily, then O(m²).

    Raises:
        FitError: as :func:`rcgp.fit`; its row is counted among all.
        MemoryError: for more inducing points than there is memory for.
    """
    check_selection(selection)
    stages = Stages(progress)
    engine = stages.watched(engine)
    with stages.step("sample"):
        sample, candidates, rows = draw(chunks, engine, (fit_rows, max(fit_rows, CANDIDATES)), seed)
        points = _affordable(inducing, sample, rows)
    with stages.step("hyperparameters"), _rows_among_all(sample):
        model = build(sample.X, sample.y, sample.precision)
        report = _choose(model, adaptive, max_iterations, stages.progress)
    with stages.step("inducing points"):
        Z = _placed(points, model, candidates, selection, seed)
    polished = _polished(model, chunks, engine, Z, report, polish, stages) if polish else None
    with stages.step("all rows"):
        diagnose = weigh_all(model, Z, report, chunks, engine, rows)
        spread = _spread_of(diagnose, candidates)
    report, fitted = replace(report, hyperparameters=model.listed_hyperparameters()), rows if polish else len(sample.y)
    return ChunkedFit(diagnose, report, polished, rows, fitted, seconds=stages.seconds, **spread)


def _affordable(inducing: int | Tensor, sample: Sample, rows: int) -> int | Tensor:
    """The inducing points, or their number, checked: a MemoryError if there are too many."""
    points = check_inducing(inducing, sample.X)
    check_inducing_memory(len(points) if isinstance(points, Tensor) else points, rows)
    return points


def _placed(points: int | Tensor, model: RCGP, candidates: Sample, selection: str, seed: int) -> Tensor:
    """The inducing points as they were given, or so many chosen among the candidates."""
    if isinstance(points, Tensor):
        return points
    return choose_inducing(model.kernel, candidates.X, points, selection, seed)


def _spread_of(diagnose: Diagnose, some: Sample) -> dict[str, float]:
    """How far these rows lie from what the others predict, and what the points do not see: by the fit's attributes."""
    weights, mean, std = diagnose(some.chunk())
    score, trusted = (some.y - mean) / std, weights > _TRUSTED
    unseen = torch.cat([block.unseen for block in diagnose.view.blocks(some.chunk())])
    return {
        "spread": robust_spread_of(score),
        "trusted_spread": robust_spread_of(score[trusted] if bool(trusted.any()) else score),
        "unseen": float((unseen / std.square()).median()),
    }


@contextmanager
def _rows_among_all(sample: Sample) -> Iterator[None]:
    """The row of a FitError by its number among all rows: the model knows those of the sample only."""
    try:
        yield
    except FitError as error:
        raise FitError(error.reason, int(sample.numbers[error.row]), error.clue) from error


def _choose(model: RCGP, adaptive: bool, max_iterations: int, progress: bool | Progress) -> FitReport:
    """The hyperparameters by the sample."""
    if adaptive:
        return fit_adaptive(model, max_iterations=max_iterations, progress=progress)
    return fit(model, "loo", max_iterations=max_iterations, progress=progress)


def _polished(
    model: RCGP, chunks: Chunks, engine: Engine, Z: Tensor, report: FitReport, iterations: int, stages: Stages
) -> FitReport:
    """The hyperparameters improved on all rows, in a step of its own."""
    with stages.step("polish"):
        everyone = take_all(chunks, engine)
        with _rows_among_all(everyone):
            return _polish(model, everyone, Z, report, iterations, stages.progress)


def _polish(
    model: RCGP, everyone: Sample, Z: Tensor, report: FitReport, iterations: int, progress: bool | Progress
) -> FitReport:
    """Improve the hyperparameters of the sample's model by the leave-one-out score of all rows.

    Cost O(nm²) for each iteration. The search chooses the variances anew, by a leave-one-out score, which is
    optimistic. So they are multiplied again by the factor of the sample's calibration: the thresholds are in standard
    deviations of a calibrated model.
    """
    sparse = SparseRCGP(
        everyone.X,
        everyone.y,
        inducing=Z,
        kernel=model.kernel,
        mean=model.mean,
        weight=Constant(),  # a constructor starts a trainable threshold anew
        sample_weight=everyone.precision,
    )
    sparse.weight = model.weight
    # Noise with its constraint and priors.
    sparse.register_constraint("raw_noise", model.raw_noise_constraint)
    sparse.raw_noise = model.raw_noise
    for name, module, prior, closure, setting in model.named_priors():
        if module is model:  # those of its parts come with the parts
            sparse.register_prior(name, prior, closure, setting)
    if not isinstance(report, AdaptiveReport):
        return fit(sparse, "loo", max_iterations=iterations, progress=progress)
    with torch.no_grad():
        view = View.of(model, Z)
        first = PosteriorProcess(view.prior_mean, view.kernel, Z, posterior_of_sample(model, view))
        row_noise = view.noise if everyone.precision is None else view.noise / everyone.precision
        std = (first.variance(everyone.X) + row_noise).sqrt()
        centre_on(sparse, first.mean(everyone.X), std, report.reach)
        prediction = Prediction(*sparse.leave_one_out())
        trusted = prediction.score(everyone.y).abs() <= report.reach
    polished = fit(sparse, leave_out_score_of(trusted), max_iterations=iterations, progress=progress)
    scale_variance(model, report.calibration)  # whose kernel and noise are those of the sparse model
    return replace(polished, hyperparameters=sparse.listed_hyperparameters())
