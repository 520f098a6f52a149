"""The robust fit: noise law, weights and hyperparameters, in turn. One loop for every model.

A model offers leave-one-out moments and an evidence with gradient; the loop learns everything else:

1. Starts: the paper's inverse multiquadric weights around the prior mean. Once at the given lengthscales, so wide that
   only gross outliers lose weight; once at three times the lengthscales, and narrow. A third start is quiet: three
   times the lengthscales with a tenth of the noise, weighed by expectation steps under the law before any data. It
   is left out where observations have each value twice or more, on average: equal ones agree without noise.
2. Expectation: leave-one-out predictions say which component of the noise law each row comes from, and so its weight
   and the law (:mod:`rcgp.core.noise_law`). The first time the law knows normal noise and outliers only. The noise
   variance is learned with it before the full searches of 5, whose evidence chooses it then.
3. Maximisation: hyperparameters θ by the evidence of the pseudo-data,

       ℓ(θ) − ½ log σ² Σ_i (1 − ρ_io) + log p(θ),

   in which an outlier takes no part. A few iterations from each start; the quiet one and the best of the others have,
   with new weights, as many again, and the one with the larger evidence F goes on.
4. The ordinary GP (:func:`rcgp.training.fit.fit_ordinary`) is the hypothesis that all noise is normal. Its search
   ends early where it clearly cannot win.
5. Full searches, each followed by expectation steps until F settles, and by noise that differs from place to place
   (:mod:`rcgp.models.local_noise`) where F grows by a nat or more; as long as F grows, or until it clearly cannot reach
   that of the ordinary GP. At the end all rows are weighed anew, if F grows by it.

The ordinary GP is kept where the law flags no row and does not have the larger F: clean data cost nothing. A law that
flags rows competes with "all rows have normal noise" under the same prior of the shares. That is one assignment of rows
to components among those that F sums up, and its evidence is less by log E[π_n^n], about 3 log(n / 10) nats: it wins
only where the law's search has ended lower. With few rows for each input both explain the data about as well, but an
ordinary GP that has taken in errors is wrong by a factor.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from rcgp.core.noise_law import evidence_of_all_normal
from rcgp.models import RCGP
from rcgp.training.fit import (
    FitError,
    FitReport,
    check_limits,
    fit_ordinary,
    in_double,
    limited_threads,
    reporter,
)
from rcgp.training.learning import Learning, Round
from rcgp.training.rows import cavity_by_law
from rcgp.training.search import Outcome, Progress, hyperparameters_of, restore_hyperparameters
from rcgp.weights import Constant, NoiseLaw

__all__ = ["RobustReport", "Round", "fit_robust", "weigh_by_law"]


@dataclass(frozen=True)
class RobustReport(FitReport):
    """What a robust fit did: a :class:`FitReport` of its last search; evaluations and iterations are those of all.

    Attributes:
        laws: the noise law of each output.
        starts: F of each start after a short search, on 250 rows where there are many; shorter lengthscales are
            tried beside these. ``-inf`` where one failed.
        rounds: each expectation step, in order; those named "start" and "search" on 250 rows where there are many.
        evidence: F of the learned law, priors of the hyperparameters included; ``-inf`` where it could not be learned.
        normal_evidence: that of normal noise, the log marginal likelihood of the ordinary GP; less where its search was
            given up, since it clearly could not win. A law that flags rows may be kept with less.
        local_noise: whether the noise differs from place to place, or over time.
    """

    laws: tuple[NoiseLaw, ...] = ()
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    evidence: float = -math.inf
    normal_evidence: float = -math.inf
    local_noise: bool = False

    @property
    def law(self) -> NoiseLaw:
        """The noise law of the only output."""
        if len(self.laws) > 1:
            raise TypeError(f"the model has {len(self.laws)} outputs with a noise law each: use laws")
        return self.laws[0]

    @property
    def is_normal(self) -> bool:
        """Whether all noise is normal: the model is the ordinary GP."""
        return all(law.is_normal for law in self.laws)

    def __str__(self) -> str:
        gain = self.evidence - self.normal_evidence
        verdict = f"log evidence {self.evidence:.6g}, {self.normal_evidence:.6g} if all noise were normal"
        if math.isfinite(gain):
            kept = "not kept" if self.is_normal else "kept"
            verdict += f": {kept}, {abs(gain):.3g} {'more' if gain > 0 else 'less'}"
            if gain < 0 and not self.is_normal:
                verdict += ", since it flags rows"
        steps = [
            f"  {r.name:<12} {r.kept:>8.1f} rows kept  {r.evaluations:>4} evaluations  log evidence {r.evidence:.6g}"
            for r in self.rounds
        ]
        local = ["noise differs from place to place"] if self.local_noise else []
        laws = [str(law) if len(self.laws) == 1 else f"output {i}: {law}" for i, law in enumerate(self.laws)]
        return "\n".join([super().__str__(), "noise law, " + verdict, *steps, *laws, *local])


def fit_robust(
    model: RCGP,
    *,
    restarts: int = 0,
    max_iterations: int = 1000,
    seed: int | None = None,
    local_noise: bool = True,
    progress: bool | Progress = False,
) -> RobustReport:
    """Learn the noise law, the weights and the hyperparameters of a model.

    The model's own weight function is replaced: by :class:`rcgp.weights.LawWeight`, or by ``Constant`` where all noise
    is normal; then the hyperparameters are those of an ordinary GP, by its marginal likelihood. It predicts in closed
    form as before. Parameters with ``requires_grad=False`` stay fixed. The result does not depend on the order of the
    rows or on units. If the fit is interrupted the model is as it was before.

    Args:
        model: the model, exact or sparse, changed in place.
        restarts: number of further starts at random hyperparameters, as in :func:`rcgp.fit`; the one with the largest
            evidence is kept.
        max_iterations: limit on the iterations of each search.
        seed: seed of the restarts.
        local_noise: let the noise differ from place to place if the evidence grows by a nat or more. For exact models
            and series.
        progress: as in :func:`rcgp.fit`.

    Returns:
        The report. Cost O(n³) for each evaluation; it takes three to four times as long as that of an ordinary GP.

    Raises:
        FitError: where neither an ordinary GP nor a robust one can be computed.
    """
    if not isinstance(model, RCGP):
        raise TypeError(f"model must be an RCGP, got {type(model).__name__}")
    check_limits(restarts, max_iterations)
    began = time.perf_counter()
    weight, local, parameters = model.weight, model.local_noise, hyperparameters_of(model)
    try:
        threads = limited_threads(len(model.train_y))
        with torch.inference_mode(False), in_double(model), reporter(progress) as report, threads:
            found = _fit(model, restarts, max_iterations, seed, local_noise, report)
    except BaseException:
        model.weight, model.local_noise = weight, local
        model.to(model.train_y.dtype)  # the weight was no part of the model when that was cast back
        restore_hyperparameters(model, parameters)
        raise
    return replace(found, seconds=time.perf_counter() - began, hyperparameters=model.listed_hyperparameters())


def _fit(
    model: RCGP, restarts: int, max_iterations: int, seed: int | None, local_noise: bool, report: Progress
) -> RobustReport:
    """Both hypotheses, and the better one in the model."""
    model.weight, model.local_noise = Constant(), None
    first = hyperparameters_of(model)
    learning = Learning(model, max_iterations, local_noise, report)
    best, starts = learning.explore(restarts, seed)
    restore_hyperparameters(model, first)
    normal: FitReport | FitError
    try:
        normal = fit_ordinary(
            model, restarts=restarts, max_iterations=max_iterations, seed=seed, progress=report, goal=best.evidence
        )
    except FitError as error:
        normal = error
    normal_evidence = -math.inf if isinstance(normal, FitError) else normal.value
    found = hyperparameters_of(model)
    best = learning.finish(best, normal_evidence + _shares_of_all_normal(model))
    restore_hyperparameters(model, found)
    last: FitReport | Outcome
    needed = normal_evidence + (_shares_of_all_normal(model) if best.flags_rows else 0.0)
    if best.learned and best.cavity is not None and best.search is not None and best.evidence > needed:
        restore_hyperparameters(model, best.parameters)
        model.weight, last = model.weight_by_law(best.laws, best.cavity, best.h), best.search
        model.local_noise = copy.deepcopy(best.local)  # its kernel is the model's, whose hyperparameters may change
    elif isinstance(normal, FitError):
        raise normal
    else:
        last = normal
    spent = (0, 0, 0) if isinstance(normal, FitError) else (normal.evaluations, normal.rejected, normal.iterations)
    return RobustReport(
        objective="robust",
        value=normal_evidence if isinstance(model.weight, Constant) else best.evidence,
        evaluations=spent[0] + learning.search.evaluations,
        rejected=spent[1] + learning.search.rejected,
        iterations=spent[2] + learning.iterations,
        seconds=0.0,
        converged=last.converged,
        message=last.message,
        starts=tuple(starts),
        hyperparameters={},
        laws=model.noise_laws,
        rounds=tuple(learning.rounds),
        evidence=best.evidence,
        normal_evidence=normal_evidence,
        local_noise=model.local_noise is not None,
    )


def weigh_by_law(model: RCGP, laws: Sequence[NoiseLaw]) -> None:
    """Weights for all rows of a model whose hyperparameters and noise laws are known. Cost O(n³).

    Args:
        model: its weight is replaced.
        laws: the law of each output; where all are normal all weights are one.
    """
    if all(law.is_normal for law in laws):
        model.weight = Constant()
        return
    with torch.no_grad(), in_double(model):
        h = model.local_factor(model.train_X)
        model.weight = model.weight_by_law(laws, cavity_by_law(model, laws, h), h)


def _shares_of_all_normal(model: RCGP) -> float:
    """What the evidence of normal noise loses under the prior of the shares of each output's law."""
    rows = [model.train_y[part].new_tensor(float(len(model.train_y[part]))) for part in model.output_rows()]
    return sum(float(evidence_of_all_normal(count)) for count in rows)
