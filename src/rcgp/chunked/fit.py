"""A robust sparse GP fitted to rows in chunks: more than memory holds, on one machine or many.

1. Count the rows, and read a random sample of them by their numbers, which do not depend on the chunks.
2. Choose hyperparameters, noise law and local noise on that sample, by an exact model.
3. Choose the inducing points among up to 20 000 rows by the fitted kernel.
4. Weigh all rows and sum up their statistics: :mod:`rcgp.chunked.weighing`.

Every pass is a sum, or a collection, of the results of a task (:mod:`rcgp.chunked.passes`) for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from rcgp.chunked.passes import ByLaw, Diagnose
from rcgp.chunked.resources import Stages, check_inducing_memory
from rcgp.chunked.weighing import Sample, all_rows, draw, weigh_all
from rcgp.chunks import Chunks, Engine
from rcgp.models import RCGP, SparseRCGP
from rcgp.models.defaults import NORMAL_MAD, add_weak_priors, kernel_of_all_columns
from rcgp.models.inducing import CANDIDATES, check_inducing, check_selection, choose_inducing
from rcgp.models.posterior import PosteriorProcess
from rcgp.training.fit import FitError, FitReport, fit, fit_ordinary
from rcgp.training.judgement import doubts_of, doubts_of_values, judge_rows
from rcgp.training.objectives import weighed_evidence
from rcgp.training.robust import fit_robust
from rcgp.training.search import Progress
from rcgp.weights import Constant, NoiseLaw
from rcgp.weights.noise_law import FLAGGED

__all__ = ["ChunkedFit", "Predictor", "fit_chunks", "robust_model"]

#: Builds the exact model of some rows, given X, y and factors on their precision or None.
Build = Callable[[Tensor, Tensor, Tensor | None], RCGP]


@dataclass(frozen=True)
class Predictor:
    """Predictions of a fitted sparse model at new inputs. Small: it holds no rows."""

    diagnose: Diagnose

    @property
    def process(self) -> PosteriorProcess:
        """The posterior of f."""
        prior = self.diagnose.prior
        return PosteriorProcess(prior.prior_mean, prior.kernel, prior.Z, self.diagnose.posterior)

    def mean(self, x: Tensor) -> Tensor:
        """Mean at ``q x d`` inputs: ``q``. Cost O(mq)."""
        return self.process.mean(x)

    def std(self, x: Tensor) -> Tensor:
        """Standard deviation of f: ``q``. Cost O(m²q)."""
        return self.process.variance(x).sqrt()

    def noisy_std(self, x: Tensor) -> Tensor:
        """Standard deviation of new inliers: ``q``."""
        return (self.process.variance(x) + self.noise_variance(x)).sqrt()

    def noise_scale(self, x: Tensor) -> Tensor:
        """σ² h(x), the squared scale of the noise law: ``q``."""
        return self.diagnose.noise.variance * self.diagnose.prior.local(x)

    def noise_variance(self, x: Tensor) -> Tensor:
        """Variance of the noise of inliers: ``q``."""
        return self.diagnose.noise.law.variance * self.noise_scale(x)

    def noise_std(self, x: Tensor) -> Tensor:
        """Standard deviation of the noise of inliers: ``q``."""
        return self.noise_variance(x).sqrt()

    def quantile(self, level: float, x: Tensor) -> Tensor:
        """Quantile of new inliers, by the noise law: ``q``."""
        variance = self.process.variance(x).clamp_min(0.0)
        law = self.diagnose.noise.law
        return self.mean(x) + law.quantile(x.new_tensor(level), variance, self.noise_scale(x))

    def log_density(self, x: Tensor, y: Tensor, outliers: bool) -> Tensor:
        """Log density of ``q`` observations, which may be outliers or are inliers: ``q``."""
        variance = self.process.variance(x).clamp_min(0.0)
        residual = y - self.diagnose.prior.prior_mean(x) if outliers else None
        return self.diagnose.noise.law.log_density(y - self.mean(x), variance, self.noise_scale(x), residual)


@dataclass(frozen=True)
class ChunkedFit:
    """A sparse model of rows that are not kept.

    Attributes:
        diagnose: the task that diagnoses each row of a chunk; it holds the posterior and the noise.
        report: the fit of the hyperparameters to the sample.
        polished: their fit to all rows, or None.
        rows: number of rows of positive weight.
        fitted_rows: number of rows that the hyperparameters were fitted to.
        doubts: why the noise law may be wrong, a sentence each, judged on at most 20 000 rows.
        trusted_spread: robust standard deviation of the standardised leave-one-out residuals of the rows that keep
            more than half of their weight: above 1 if intervals are too narrow, below 1 if they are too wide.
        unseen: median share of an observation's variance that is prior variance unseen by the inducing points.
        seconds: duration of each step.
    """

    diagnose: Diagnose = field(repr=False)
    report: FitReport
    polished: FitReport | None
    rows: int
    fitted_rows: int
    doubts: tuple[str, ...]
    trusted_spread: float
    unseen: float
    seconds: dict[str, float]

    @property
    def predictor(self) -> Predictor:
        """Predictions at new inputs."""
        return Predictor(self.diagnose)

    @property
    def process(self) -> PosteriorProcess:
        """The posterior of f."""
        return self.predictor.process

    @property
    def noise(self) -> Tensor:
        """The noise variance σ², a scalar."""
        return self.diagnose.noise.variance

    @property
    def noise_law(self) -> NoiseLaw:
        """The noise law by which rows are flagged."""
        return self.diagnose.flags.law


def robust_model(X: Tensor, y: Tensor, precision: Tensor | None) -> RCGP:
    """The default kernel with weak priors, around the median of y."""
    model = RCGP(X, y, mean="median", sample_weight=precision)
    model.kernel = kernel_of_all_columns(model)
    add_weak_priors(model)
    return model


def fit_chunks(
    chunks: Chunks,
    engine: Engine,
    *,
    build: Build = robust_model,
    learned: bool = True,
    local_noise: bool = True,
    inducing: int | Tensor = 500,
    selection: str = "greedy",
    fit_rows: int = 1000,
    polish: int = 0,
    max_iterations: int = 1000,
    seed: int = 0,
    progress: bool | Progress = False,
) -> ChunkedFit:
    """Fit a robust sparse GP to rows in chunks. The result depends neither on the chunks nor on the engine.

    Args:
        chunks: the rows.
        engine: runs the passes over them.
        build: makes the exact model of the sample, whose kernel, mean, noise and (unless learned) weight are used.
        learned: take the weights from a noise law, learned by :func:`rcgp.fit_robust` on the sample and then from all
            rows. Otherwise use the model's weight function, with hyperparameters by the evidence if it is constant in
            y, else by leave-one-out. A threshold by the paper's rule is then the exact quantile over all rows.
        local_noise: let a learned noise vary with the input, if the sample shows it.
        inducing: number of inducing points, or ``m x d`` points.
        selection: how they are chosen; see :func:`rcgp.models.inducing.choose_inducing`.
        fit_rows: size of the sample on which hyperparameters are chosen.
        polish: iterations of a further search on all rows: by the bound on the evidence with the weights of the rows,
            or for a given weight by leave-one-out. The rows are then weighed again. Reads all rows into memory and
            costs O(nm²) per iteration.
        max_iterations: limit on the iterations of each search on the sample.
        seed: of the sample and of the inducing points.
        progress: as in :func:`rcgp.fit`; see :class:`rcgp.chunked.resources.Stages` for steps and passes.

    Returns:
        The fit. Cost O(fit_rows³) per evaluation on the sample, then O(nm²). Memory besides a chunk: O(fit_rows²), then
        ``m x min(n, 20 000)`` for greedy selection, then O(m²).

    Raises:
        FitError: as :func:`rcgp.fit`; its row is counted among all rows.
        MemoryError: if the inducing points need more memory than is free.
    """
    check_selection(selection)
    stages = Stages(progress)
    engine = stages.watched(engine)
    with stages.step("sample"):
        sample, candidates, rows = draw(chunks, engine, (fit_rows, max(fit_rows, CANDIDATES)), seed)
        given = check_inducing(inducing, sample.X)
        check_inducing_memory(len(given) if isinstance(given, Tensor) else given, rows)
    with stages.step("hyperparameters"), _rows_among_all(sample):
        model = build(sample.X, sample.y, sample.sample_weight)
        report = _choose(model, learned, local_noise, max_iterations, stages.progress)
    with stages.step("inducing points"):
        Z = given if isinstance(given, Tensor) else choose_inducing(model.kernel, candidates.X, given, selection, seed)
    weigh = partial(weigh_all, model, Z, chunks, engine, rows, learned=learned)
    polished = None
    if polish:
        with stages.step("polish"):
            every = all_rows(chunks, engine)
            with _rows_among_all(every):
                polished = _polish(model, every, Z, weigh, learned, polish, stages.progress)
    with stages.step("all rows"):
        diagnose = weigh()
        doubts, spread, unseen = _quality(diagnose, model, candidates)
    report, fitted = replace(report, hyperparameters=model.listed_hyperparameters()), rows if polish else len(sample.y)
    return ChunkedFit(diagnose, report, polished, rows, fitted, doubts, spread, unseen, stages.seconds)


def _quality(diagnose: Diagnose, model: RCGP, some: Sample) -> tuple[tuple[str, ...], float, float]:
    """Doubts about the noise law, spread of residuals of inliers and share of unseen variance, from some rows."""
    found = diagnose(some.chunk)
    deviation, core = some.y - found.mean, (found.variance + found.row_noise).sqrt()
    kept = found.weights.square() * diagnose.prior.local(some.X) > 0.5
    scores = (deviation / core)[kept] if bool(kept.any()) else deviation / core
    if isinstance(diagnose.rule, ByLaw):
        law = diagnose.flags.law
        doubts = doubts_of(law, deviation, found.variance, found.row_noise, found.probability, found.precision)
        doubts += doubts_of_values(some.X, some.y, found.probability > FLAGGED)
    else:
        doubts = judge_rows(model, learn=not diagnose.flags.law.is_normal).doubts
    spread = float(scores.abs().quantile(0.5)) / NORMAL_MAD
    return doubts, spread, float((found.unseen / found.std.square()).median())


@contextmanager
def _rows_among_all(sample: Sample) -> Iterator[None]:
    """Count the row of a FitError among all rows instead of among the sample."""
    try:
        yield
    except FitError as error:
        raise FitError(error.reason, int(sample.numbers[error.row]), error.clue) from error


def _choose(model: RCGP, learned: bool, local_noise: bool, max_iterations: int, progress: bool | Progress) -> FitReport:
    """Fit the model of the sample: hyperparameters and, if learned, the noise law."""
    if learned:
        return fit_robust(model, local_noise=local_noise, max_iterations=max_iterations, progress=progress)
    if model.weight.constant_in_y:
        return fit_ordinary(model, max_iterations=max_iterations, progress=progress)
    return fit(model, "loo", max_iterations=max_iterations, progress=progress)


def _polish(
    model: RCGP,
    every: Sample,
    Z: Tensor,
    weigh: Callable[[], Diagnose],
    learned: bool,
    iterations: int,
    progress: bool | Progress,
) -> FitReport:
    """Improve the hyperparameters of the sample's model on all rows. Cost O(nm²) per iteration.

    With a noise law this is the maximisation step of :mod:`rcgp.training.robust`, with the weights of all rows.
    """
    sparse = SparseRCGP(
        every.X,
        every.y,
        inducing=Z,
        kernel=model.kernel,
        mean=model.mean,
        weight=Constant(),  # the constructor resets a trainable threshold
        sample_weight=every.sample_weight,
    )
    sparse.weight = model.weight if not learned else Constant()
    # Noise with its constraint and priors.
    sparse.register_constraint("raw_noise", model.raw_noise_constraint)
    sparse.raw_noise = model.raw_noise
    for name, module, prior, closure, setting in model.named_priors():
        if module is model:  # its parts bring their own
            sparse.register_prior(name, prior, closure, setting)
    options: dict[str, Any] = {"max_iterations": iterations, "progress": progress}
    if not learned:
        return fit(sparse, "elbo" if sparse.weight.constant_in_y else "loo", **options)
    found = weigh()(every.chunk)

    def evidence(model: SparseRCGP) -> Tensor:
        return weighed_evidence(model, found.weights, found.slope, 1.0 - found.probability)

    evidence.__name__ = "evidence of the weighed rows"  # reports and errors show it
    return fit(sparse, evidence, **options)
