"""The robust fit: noise law, weights and hyperparameters, in turn. One loop for every model.

A model offers leave-one-out moments and an evidence with gradient; the loop learns everything else:

1. Weights: the paper's inverse multiquadric around the prior mean, so wide that only gross outliers lose weight.
2. Expectation: leave-one-out predictions say which component of the noise law each row comes from, and so its weight
   and the law (:mod:`rcgp.core.noise_law`). The first time the law is the prior's.
3. Maximisation: hyperparameters θ by the evidence of the pseudo-data,

       ℓ(θ) − ½ log σ² Σ_i (1 − ρ_io) + log p(θ),

   in which an outlier takes no part. Steps 2 and 3 are repeated until the weights settle.
4. Noise that differs from place to place (:mod:`rcgp.models.local_noise`), if the evidence F grows by it.
5. The ordinary GP, fitted as ``fit(model, "marginal")`` does, is the hypothesis that all noise is normal. It is kept
   unless the learned law has the larger evidence F: clean data cost nothing. Its search is given up early where it
   clearly cannot win.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from rcgp.core.exact import condition
from rcgp.core.linalg import NotPositiveDefiniteError
from rcgp.core.loo import LeaveOneOut
from rcgp.core.noise_law import learn_law, local_squares, log_bound
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models import RCGP, SparseRCGP
from rcgp.models.defaults import robust_spread
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.models.local_noise import POWERS, LocalNoise
from rcgp.training.fit import FitError, FitReport, fit_ordinary, in_double, reporter, scipy_on_one_thread
from rcgp.training.objectives import log_prior
from rcgp.training.search import Outcome, Progress, Search
from rcgp.training.snapshots import SHORTER, hyperparameters_of, restore_hyperparameters, shorten_lengthscales
from rcgp.weights import Constant, InverseMultiquadric, LawWeight, NoiseLaw, NoShrinkage, WeightFunction
from rcgp.weights.noise_law import OUTLIER_WIDTH, Responsibilities

__all__ = ["START", "SWEEPS", "RobustReport", "Round", "cooling", "first_weight", "fit_robust", "weigh_by_law"]

#: Soft threshold of the first weights, in robust standard deviations of y − m(x): a row at five of them keeps half its
#: weight. Between three and ten, wider ones follow clusters of errors more often and narrower ones lose peaks.
START = 5.0

# Rounds at most, and the change of the mean squared weight below which they have settled. The last search makes a
# third one; eight change errors by less than 1 %.
_ROUNDS, _SETTLED = 2, 0.01

# Iterations and tolerance of the searches on the way, and tolerance of the last one: gains for each row in the log
# evidence, far below what matters.
_ITERATIONS, _ROUGH, _FINE = 10, 1e-4, 1e-6

# Rows on which the rounds are made where there are at least twice as many: an eighth of the cost, or less. All rows
# make the last search.
_SAMPLE = 250

# Turns of local noise and law: what looks like a heavy tail at first becomes loud places, and more turns change little.
_LOCAL_STEPS = 3

# Last searches at most, and the gain in log evidence for each row below which there is no other: one is enough but
# where there is hardly any noise, whose variance then falls step by step.
_FINISHES, _GAIN = 8, 0.01

# Loss of log evidence that takes a step back: a difference below one is not worth a mention (Kass and Raftery, 1995).
_LOSS = 1.0

# Noise variance at which models start, as a share of the squared spread.
_WARM = 0.1

#: Expectation steps by which all rows are weighed where law and hyperparameters are known.
SWEEPS = 5


@dataclass(frozen=True)
class Round:
    """One expectation step of a robust fit.

    Attributes:
        name: "start", "round", "all rows", "local noise", "finish" or, of a start with shorter lengthscales, "shorter".
        evaluations: of the objective, until then.
        evidence: F after it.
        kept: sum of the squared weights before any local scale, the number of rows that the model effectively keeps.
    """

    name: str
    evaluations: int
    evidence: float
    kept: float


@dataclass(frozen=True)
class RobustReport(FitReport):
    """What a robust fit did: a :class:`FitReport` of its last search, over all searches where it counts something.

    Attributes:
        law: the noise law.
        rounds: each expectation step, in order.
        evidence: F of the learned law, priors of the hyperparameters included; ``-inf`` where it could not be learned.
        normal_evidence: that of normal noise, the log marginal likelihood of the ordinary GP.
        local_noise: whether the noise differs from place to place.
    """

    law: NoiseLaw = field(default_factory=NoiseLaw.normal)
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    evidence: float = -math.inf
    normal_evidence: float = -math.inf
    local_noise: bool = False

    def __str__(self) -> str:
        gain = self.evidence - self.normal_evidence
        verdict = f"log evidence {self.evidence:.6g}, {self.normal_evidence:.6g} if all noise were normal"
        if math.isfinite(gain):
            verdict += f": {'kept' if gain > 0 else 'not kept'}, {abs(gain):.3g} {'more' if gain > 0 else 'less'}"
        steps = [
            f"  {r.name:<12} {r.kept:>8.1f} rows kept  {r.evaluations:>4} evaluations  log evidence {r.evidence:.6g}"
            for r in self.rounds
        ]
        local = ["noise differs from place to place"] if self.local_noise else []
        return "\n".join([super().__str__(), "noise law, " + verdict, *steps, str(self.law), *local])


@dataclass(frozen=True)
class _State:
    """Where a robust fit is: hyperparameters, and what each row counts."""

    parameters: list[Tensor]
    weight: Tensor  # n, w̃
    slope: Tensor  # n, ∂_y log w̃²
    good: float  # expected number of rows that are no outliers
    local: LocalNoise | None
    h: Tensor  # n, local factors on the noise variance
    counts: Tensor | None = None  # of the law; None before it has been learned
    law: NoiseLaw | None = None
    cavity: LeaveOneOut | None = None
    rows: Responsibilities | None = None  # under the law
    evidence: float = -math.inf


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
        local_noise: let the noise differ from place to place where the evidence grows by it. For exact models.
        progress: as in :func:`rcgp.fit`.

    Returns:
        The report. Cost O(n³) for each evaluation; two to three times as many as for an ordinary GP.

    Raises:
        FitError: where neither an ordinary GP nor a robust one can be computed.
    """
    if not isinstance(model, RCGP):
        raise TypeError(f"model must be an RCGP, got {type(model).__name__}")
    began = time.perf_counter()
    weight, local, parameters = model.weight, model.local_noise, hyperparameters_of(model)
    try:
        with torch.inference_mode(False), in_double(model), reporter(progress) as report, scipy_on_one_thread():
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
    learning = _Learning(model, max_iterations, local_noise, report)
    states = [learning.run(start) for start in learning.search.starts(restarts, seed)]
    best = max(states, key=lambda state: state.evidence)
    for factor in SHORTER:  # as fit_ordinary does
        restore_hyperparameters(model, first)
        shorten_lengthscales(model, factor)
        start = learning.search.read()
        if learning.glance() > best.evidence:
            best = max(best, learning.run(start), key=lambda state: state.evidence)
    restore_hyperparameters(model, first)
    normal: FitReport | FitError
    try:
        normal = fit_ordinary(
            model,
            restarts=restarts,
            max_iterations=max_iterations,
            seed=seed,
            progress=report,
            goal=best.evidence,
        )
    except FitError as error:
        normal = error
    ordinary = hyperparameters_of(model)
    normal_evidence = -math.inf if isinstance(normal, FitError) else normal.value
    if best.law is None or best.cavity is None or not best.evidence > normal_evidence:
        if isinstance(normal, FitError):
            raise normal
        restore_hyperparameters(model, ordinary)
        last = Outcome(normal.value, learning.search.read(), normal.iterations, normal.converged, normal.message)
        law = NoiseLaw.normal()
    else:
        restore_hyperparameters(model, best.parameters)
        model.weight = LawWeight(best.law, *best.cavity, best.h, learning.relative)
        model.local_noise, last, law = best.local, learning.last, best.law
    evaluations = 0 if isinstance(normal, FitError) else normal.evaluations
    return RobustReport(
        objective="robust",
        value=max(best.evidence, normal_evidence),
        evaluations=evaluations + learning.search.evaluations,
        rejected=learning.search.rejected,
        iterations=last.iterations,
        seconds=0.0,
        converged=last.converged,
        message=last.message,
        starts=tuple(state.evidence for state in states),
        hyperparameters={},
        law=law,
        rounds=tuple(learning.rounds),
        evidence=best.evidence,
        normal_evidence=normal_evidence,
        local_noise=model.local_noise is not None,
    )


class _Learning:
    """Expectation and maximisation steps on one model."""

    def __init__(self, model: RCGP, max_iterations: int, local_noise: bool, report: Progress) -> None:
        self.model, self.max_iterations = model, max_iterations
        self.local_noise = local_noise and not isinstance(model, SparseRCGP)
        with torch.no_grad():
            residual = model.residual()
        self.width = OUTLIER_WIDTH * robust_spread(residual)
        self.relative = torch.ones_like(residual) if model.sample_weight is None else model.sample_weight.reciprocal()
        self.search = Search(model, self._objective, report)
        self.rounds: list[Round] = []
        self.last = Outcome(-math.inf, self.search.read())
        self.state = self._first(residual)

    def run(self, start: object) -> _State:
        """The whole loop from one start: the state with the largest evidence."""
        self.search.write(start)  # type: ignore[arg-type]
        sample = self._sample()
        try:
            best = self._rounds() if sample is None else self._from_sample(sample)
        except NotPositiveDefiniteError:  # as where a search cannot be computed from its start
            return replace(self.state, evidence=-math.inf)
        if self.local_noise:
            best = self._localise(best)
        for _ in range(_FINISHES):
            before = best.evidence
            self._search(_FINE, self.max_iterations)
            best = self._better(best, self._expect("finish"))
            if not best.evidence > before + _GAIN * len(self.relative):
                break
        return best

    def glance(self) -> float:
        """F at the present hyperparameters, before any search."""
        with torch.no_grad():
            self.state = self._first(self.model.residual())
        self._expect("shorter", learn=False)
        return self._expect("shorter").evidence

    def _rounds(self) -> _State:
        """Weights, then hyperparameters and weights in turn until they settle."""
        with torch.no_grad():
            self.state = self._first(self.model.residual())
        best = self._expect("start", learn=False)
        for _ in range(_ROUNDS):
            before = self.state.weight.square()
            self._search(_ROUGH, min(_ITERATIONS, self.max_iterations))
            best = self._better(best, self._expect("round"))
            if float((self.state.weight.square() - before).abs().mean()) < _SETTLED:
                break
        return best

    def _from_sample(self, sample: Tensor) -> _State:
        """Rounds on a sample; then all rows are weighed by what it predicts, its own rows without themselves."""
        model = self.model
        with self._only(sample):
            sampled = self._rounds()
            with torch.no_grad():
                restore_hyperparameters(model, sampled.parameters)
                self.state, X = sampled, model.train_X
                posterior = condition(model.kernel_matrix(), self._pseudo())
        with torch.no_grad():
            cross = dense_kernel(model.kernel, model.train_X, X)
            mean, variance = posterior.mean(cross), posterior.variance(cross, model.kernel(model.train_X, diag=True))
            if sampled.cavity is not None:
                mean[sample], variance[sample] = sampled.cavity
            self.state = replace(self._first(model.residual()), counts=sampled.counts)
            self._weigh(LeaveOneOut(mean, variance.clamp_min(0.0)), learn=False)
        return self._expect("all rows")

    def _sample(self) -> Tensor | None:
        """Rows on which the rounds are made where there are many: every k-th in the order of y. ``None`` for all.

        The sample has the outliers and the noise of the table, and does not depend on the order of its rows.
        """
        model, n = self.model, len(self.model.train_y)
        if n < 2 * _SAMPLE or isinstance(model, SparseRCGP):
            return None
        with torch.no_grad():
            residual = model.residual()
        order = np.lexsort((*model.train_X.T.cpu().numpy(), residual.cpu().numpy()))
        kept = np.linspace(0.0, n - 1.0, _SAMPLE).round().astype(np.int64)
        return torch.from_numpy(order[kept]).to(model.train_X.device)

    @contextmanager
    def _only(self, rows: Tensor) -> Iterator[None]:
        """The model with some of its rows, for as long as it takes."""
        model, relative = self.model, self.relative
        data = model.train_X, model.train_y, model.sample_weight
        model.train_X, model.train_y = model.train_X[rows], model.train_y[rows]
        model.sample_weight = None if model.sample_weight is None else model.sample_weight[rows]
        self.relative = relative[rows]
        try:
            yield
        finally:
            model.train_X, model.train_y, model.sample_weight = data
            self.relative = relative

    def _first(self, residual: Tensor) -> _State:
        """Weights around the prior mean that only gross outliers lose, at the present hyperparameters."""
        model = self.model
        weight: Tensor = first_weight(residual)(residual, model.train_X, model.noise)
        nothing, ones = torch.zeros_like(weight), torch.ones_like(weight)
        return _State(hyperparameters_of(model), weight, nothing, float(weight.square().sum()), None, ones)

    def _objective(self, model: RCGP) -> Tensor:
        """What the maximisation step maximises, weights held fixed."""
        return model.signal_evidence(self._pseudo()) - 0.5 * self.state.good * model.noise.log() + log_prior(model)

    def _pseudo(self) -> PseudoData:
        model, state = self.model, self.state
        return pseudo_data(model.residual(), state.weight, state.slope, model.noise, model.sample_weight)

    def _search(self, tolerance: float, iterations: int) -> None:
        """Hyperparameters from where they are; as they were where the objective cannot be computed."""
        start = self.search.read()
        self.last = self.search.run(start, iterations, tolerance)
        self.search.write(start if self.last.value == -math.inf else self.last.x)

    def _expect(self, name: str, *, learn: bool = True) -> _State:
        """Weights and law from leave-one-out predictions. Leaves all as it is where these cannot be computed."""
        before = self.state
        try:
            with torch.no_grad():
                cavity, _ = self.model.cavity(self._pseudo())
                self._weigh(cavity, learn=learn)
                value = self._bound()
        except NotPositiveDefiniteError:
            value = -math.inf
        if not math.isfinite(value):
            self.state = before
            restore_hyperparameters(self.model, before.parameters)
            return replace(before, evidence=-math.inf)
        self.state = replace(self.state, evidence=value)
        assert self.state.rows is not None
        self.rounds.append(Round(name, self.search.evaluations, value, float(self.state.rows.precision.sum())))
        return self.state

    def _better(self, before: _State, after: _State) -> _State:
        """The later state, unless the evidence fell, as where a search ran away: then back to the earlier one."""
        if not after.evidence < before.evidence - _LOSS:
            return after
        self.state = before
        restore_hyperparameters(self.model, before.parameters)
        return before

    def _weigh(self, cavity: LeaveOneOut, *, learn: bool) -> None:
        """Law and weights from predictions of each row without itself."""
        model, state = self.model, self.state
        learned = learn_law(
            model.residual(),
            cavity,
            model.noise.detach(),
            self.relative * state.h,
            self.width,
            bounds=_noise_bounds(model) if learn else None,
            counts=state.counts,
            **({} if learn else {"steps": 0}),
        )
        if learn and model.raw_noise.requires_grad:
            model.noise = learned.noise
        rows = learned.rows
        self.state = replace(
            state,
            parameters=hyperparameters_of(model),
            weight=(rows.precision / state.h).sqrt(),
            slope=rows.slope * state.h,
            good=float((1.0 - rows.outlier).sum()),
            rows=rows,
            counts=learned.counts,
            law=learned.law,
            cavity=cavity,
        )

    def _bound(self) -> float:
        """F of the present state. Cost n³/3."""
        model, state = self.model, self.state
        residual = model.residual()
        plain = pseudo_data(residual, state.weight, torch.zeros_like(residual), model.noise, model.sample_weight)
        row_noise = model.noise * self.relative * state.h
        assert state.rows is not None
        assert state.counts is not None
        bound = log_bound(model.signal_evidence(plain), residual, row_noise, state.rows, state.counts)
        return float(bound + log_prior(model))

    def _localise(self, best: _State) -> _State:
        """Let the noise differ from place to place, if the evidence grows by it."""
        model, state = self.model, self.state
        if state.cavity is None or state.rows is None:
            return best
        with torch.no_grad():
            K = model.kernel_matrix()
            found = [self._local(state, state.cavity, state.rows, K, power) for power in POWERS]
        local, h, density = max(found, key=lambda part: part[2])
        if not math.isfinite(density):
            return best
        self.state = replace(state, local=local, h=h, weight=state.weight * (state.h / h).sqrt())
        tried = self._expect("local noise")
        if tried.evidence > best.evidence:
            return tried
        self.state = best
        restore_hyperparameters(model, best.parameters)
        return best

    def _local(
        self, state: _State, cavity: LeaveOneOut, rows: Responsibilities, K: Tensor, power: float
    ) -> tuple[LocalNoise, Tensor, float]:
        """Local noise and law in turn, predictions held fixed: the noise, its factors, log density of the rows."""
        model, h = self.model, state.h
        residual, noise, counts = model.residual(), model.noise.detach(), state.counts
        for _ in range(_LOCAL_STEPS):
            own = noise * self.relative
            squares, good = local_squares(rows, own * h, own)
            local = LocalNoise.of(model.kernel, model.train_X, squares, good, power)
            h = local.at_rows(K)
            learned = learn_law(
                residual, cavity, noise, self.relative * h, self.width, bounds=_noise_bounds(model), counts=counts
            )
            noise, counts, rows = learned.noise, learned.counts, learned.rows
        return local, h, float(rows.log_density.sum())


def weigh_by_law(model: RCGP, law: NoiseLaw) -> None:
    """Weights for all rows of a model whose hyperparameters and noise law are known. Cost O(n³).

    Args:
        model: its weight is replaced.
        law: the law; where it is normal all weights are one.
    """
    if law.is_normal:
        model.weight = Constant()
        return
    with torch.no_grad():
        residual, noise = model.residual(), model.noise.detach()
        ones = torch.ones_like(residual)
        h = ones if model.local_noise is None else model.local_noise(model.train_X)
        relative = ones if model.sample_weight is None else model.sample_weight.reciprocal()
        weight, slope = first_weight(residual)(residual, model.train_X, noise), torch.zeros_like(residual)
        for factor in cooling(noise, residual.new_tensor(robust_spread(residual))):
            warm = noise * factor
            cavity, _ = model.cavity(pseudo_data(residual, weight, slope, warm, model.sample_weight))
            found = LawWeight(law, *cavity, h, relative)
            weight, slope = (part(residual, model.train_X, warm) for part in (found, found.slope))
        model.weight = found


def cooling(noise: Tensor, spread: Tensor) -> list[Tensor]:
    """Factors on the noise variance for the sweeps that weigh all rows, ``...`` each: from a model's start to one.

    With the little noise that a smooth function may have in the end, rows would look like outliers to each other as
    long as the true ones have their weight.

    Args:
        noise: ``...`` noise variances.
        spread: ``...`` robust standard deviations of the residuals.
    """
    first = (_WARM * spread.square() / noise).clamp_min(1.0)
    return [first ** max(0.0, 1.0 - step / (SWEEPS - 2)) for step in range(SWEEPS)]


def first_weight(residual: Tensor) -> WeightFunction:
    """Weights around the prior mean that only gross outliers lose: the paper's, with a wide threshold and no slope."""
    return NoShrinkage(InverseMultiquadric(c=START * robust_spread(residual)))


def _noise_bounds(model: RCGP) -> tuple[float, float] | None:
    """Limits of the noise variance, a little inside its constraint; ``None`` where it is held fixed."""
    if not model.raw_noise.requires_grad:
        return None
    constraint = model.raw_noise_constraint
    lower = float(constraint.lower_bound) * (1.0 + 1e-6) or torch.finfo(torch.float64).tiny
    return lower, max(float(constraint.upper_bound), lower)
