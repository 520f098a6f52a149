"""Expectation and maximisation on one model: weights and noise law, then hyperparameters, in turn.

The loop of :mod:`rcgp.training.robust`, which describes the steps. A model offers leave-one-out moments
(``latent_leave_one_out``) and an evidence with gradient (``signal_evidence``). Each method returns a state; the model
is left where the last step was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut, condition
from rcgp.core.noise_law import WIDE, LearnedLaw, first_weights, learn_law, log_bound
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.models.local_noise import LocalFactor, LocalNoise, learn_local_noise
from rcgp.training.objectives import log_prior, weighed_evidence
from rcgp.training.rows import cavity_by_law, joined, spreads_of
from rcgp.training.search import (
    NUMERICAL_ERRORS,
    Outcome,
    Progress,
    Search,
    Vector,
    hyperparameters_of,
    restore_hyperparameters,
    scale_lengthscales,
    shorter_starts,
)
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import FLAGGED, OUTLIER_WIDTH

__all__ = ["Learning", "Round", "State"]

# The second start of every fit: three times the given lengthscales, and weights that fall from one robust standard
# deviation on. Even many errors, or a cluster of them, stick out of a smooth function.
_LONG, _NARROW = 3.0, 1.0

# Rounds from each start, and iterations of the search in each. One round of ten iterations misses the best optimum half
# again as often: hyperparameters follow the first weights too far. Three rounds, or six of two, change little.
_ROUNDS, _ITERATIONS = 2, 5

# Tolerances of these searches and of the last one: gains for each row in the log evidence, far below what matters.
_ROUGH, _FINE = 1e-4, 1e-6

# Last searches at most, and the gain in log evidence for each row below which there is no other: one is enough but
# where there is hardly any noise, whose variance then falls step by step.
_FINISHES, _GAIN = 8, 0.01

# Noise variance, in units of its lower limit, up to which there is none anywhere; and the difference of log evidence
# that is worth a mention (Kass and Raftery, 1995): a larger loss takes a step back, a larger gain lets the noise differ
# from place to place.
_NO_NOISE, _WORTH = 2.0, 1.0


@dataclass(frozen=True)
class Round:
    """One expectation step of a robust fit.

    Attributes:
        name: "start", "search", "all rows", "local noise", "finish" or "afresh".
        evaluations: of the objective, until then.
        evidence: F after it.
        kept: sum of the squared weights before any local scale, the number of rows that the model effectively keeps.
    """

    name: str
    evaluations: int
    evidence: float
    kept: float


@dataclass(frozen=True)
class State:
    """Where a robust fit is: hyperparameters, and what each row counts."""

    parameters: list[Tensor]
    weight: Tensor  # n, w̃
    slope: Tensor  # n, ∂_y log w̃²
    good: Tensor  # n, probability that a row is no outlier
    local: LocalFactor | None
    h: Tensor  # n, local factors on the noise variance
    learned: tuple[LearnedLaw, ...] | None = None  # law of each output, and its rows; None before the first step
    cavity: LeaveOneOut | None = None
    search: Outcome | None = None
    evidence: float = -math.inf

    @property
    def flags_rows(self) -> bool:
        """Whether any row is flagged."""
        return self.learned is not None and any(
            bool((learned.rows.outlier_probability > FLAGGED).any()) for learned in self.learned
        )

    @property
    def laws(self) -> tuple[NoiseLaw, ...]:
        """The noise law of each output; none before the first step."""
        return tuple(learned.law for learned in self.learned or ())


class Learning:
    """Expectation and maximisation steps on one model."""

    def __init__(self, model: RCGP, max_iterations: int, local_noise: bool, report: Progress) -> None:
        self.model, self.max_iterations = model, max_iterations
        self.local_noise = local_noise and model.has_local_noise
        residual = model.residual().detach()
        self.widths = [OUTLIER_WIDTH * robust_spread(residual[rows]) for rows in model.output_rows()]
        self.relative = model.relative_noise()
        self.worth = _GAIN * len(self.relative)  # what another search or expectation step has to gain
        self.search = Search(model, self._objective, report)
        self.rounds: list[Round] = []
        self.iterations = 0
        self.last, self.state = Outcome(-math.inf, self.search.read()), self._first(WIDE)

    def explore(self, restarts: int, seed: int | None) -> tuple[State, list[float]]:
        """A short search from each start, on a sample where rows are many: the best state, and F of each start."""
        sample = self.model.start_rows()
        if sample is None:
            return self._best_start(restarts, seed)
        with self._only(sample):
            best, found = self._best_start(restarts, seed)
        try:
            if best.evidence > -math.inf:
                return self._lifted(best, sample), found
        except NUMERICAL_ERRORS:
            pass
        return self._first(WIDE), found

    def finish(self, best: State, goal: float = -math.inf) -> State:
        """Searches of all rows, each with its expectation steps, as long as the evidence grows by them.

        Args:
            best: where to start.
            goal: evidence to be reached; given up early where it clearly cannot be.
        """
        self._back_to(best)
        for _ in range(_FINISHES if best.evidence > -math.inf else 0):
            before = best.evidence
            self._search(_FINE, self.max_iterations, goal - before)
            best = self._better(best, self._settle(before))
            best = self._better(best, self._afresh())
            best = self._localised(best)
            if not best.evidence > before + self.worth:
                break
        return replace(best, search=self.last)

    def _best_start(self, restarts: int, seed: int | None) -> tuple[State, list[float]]:
        """The best state after short searches from longer lengthscales, the given start and random ones, and F of each.

        And from shorter ones, where these are better before any search than all that was found, as for an ordinary GP;
        there rows are weighed as in the best state.
        """
        model, first = self.model, hyperparameters_of(self.model)
        given, *random = self.search.starts(restarts, seed)
        scale_lengthscales(model, _LONG)
        smooth = self.search.read()
        wide, narrow = self._first(WIDE), self._first(_NARROW)
        states = [self._try(smooth, narrow), *(self._try(start, wide) for start in (given, *random))]
        best = max(states, key=attrgetter("evidence"))
        restore_hyperparameters(model, first)
        for _ in shorter_starts(model):
            start = self.search.read()
            if self._glance(best) > best.evidence:
                best = max(best, self._try(start, best), key=attrgetter("evidence"))
        return best, [state.evidence for state in states]

    def _glance(self, weighed: State) -> float:
        """F at the present hyperparameters, before any search, with weights to begin with."""
        reported = len(self.rounds)
        self.state = replace(weighed, parameters=hyperparameters_of(self.model))
        self._expect("glance", learn=False)
        value = self._expect("glance").evidence
        del self.rounds[reported:]
        return value

    def _try(self, start: Vector, weighed: State) -> State:
        """Weights; then hyperparameters by a short search, and weights and law, in turn."""
        self.search.write(start)
        self.state = replace(weighed, parameters=hyperparameters_of(self.model))
        best = self._expect("start", learn=False)
        for _ in range(_ROUNDS):
            self._search(_ROUGH, min(_ITERATIONS, self.max_iterations))
            best = self._better(best, self._expect("search"))
        return best

    def _lifted(self, sampled: State, sample: Tensor) -> State:
        """From a sample to all rows: these are weighed by what it predicts, its own rows without themselves.

        Where an evaluation costs O(n), by expectation steps on all rows under the sample's law.
        """
        model = self.model
        if model.linear_cost and sampled.learned is not None:
            self._back_to(sampled)
            self.state = replace(self._first(WIDE), learned=sampled.learned)
            with torch.no_grad():
                self._weigh(cavity_by_law(model, sampled.laws, self.state.h), learn=False)
            return self._expect("all rows")
        with torch.no_grad():
            with self._only(sample):
                self._back_to(sampled)
                posterior, X = condition(model.kernel_matrix(), self._pseudo()), model.train_X
            cross = dense_kernel(model.kernel, model.train_X, X)
            mean, variance = posterior.mean(cross), posterior.variance(cross, model.kernel(model.train_X, diag=True))
            if sampled.cavity is not None:
                mean[sample], variance[sample] = sampled.cavity
            self.state = replace(self._first(WIDE), learned=sampled.learned)
            self._weigh(LeaveOneOut(mean, variance.clamp_min(0.0)), learn=False)
        return self._expect("all rows")

    @contextmanager
    def _only(self, rows: Tensor) -> Iterator[None]:
        """The model with some of its rows, for as long as it takes."""
        model, relative = self.model, self.relative
        data = model.train_X, model.train_y, model.sample_weight
        try:
            model.train_X, model.train_y = model.train_X[rows], model.train_y[rows]
            model.sample_weight = None if model.sample_weight is None else model.sample_weight[rows]
            self.relative = relative[rows]
            yield
        finally:
            model.train_X, model.train_y, model.sample_weight = data
            self.relative = relative

    def _first(self, threshold: float) -> State:
        """The first weights, at the present hyperparameters."""
        residual = self.model.residual().detach()
        weight = first_weights(residual, spreads_of(self.model, residual), threshold)
        nothing, ones = torch.zeros_like(weight), torch.ones_like(weight)
        return State(hyperparameters_of(self.model), weight, nothing, weight.square(), None, ones)

    def _objective(self, model: RCGP) -> Tensor:
        """What the maximisation step maximises, weights held fixed."""
        return weighed_evidence(model, self.state.weight, self.state.slope, self.state.good)

    def _pseudo(self) -> PseudoData:
        model, state = self.model, self.state
        return pseudo_data(model.residual(), state.weight, state.slope, model.row_noise())

    def _search(self, tolerance: float, iterations: int, gain: float = -math.inf) -> None:
        """Hyperparameters from where they are; as they were where the objective cannot be computed.

        The gain is the one to be reached: the search ends early where it clearly cannot be.
        """
        start = self.search.read()
        self.last = self.search.run(start, iterations, tolerance, gain=gain)
        self.iterations += self.last.iterations
        self.search.write(start if self.last.value == -math.inf else self.last.x)

    def _expect(self, name: str, *, learn: bool = True, noise: bool = True) -> State:
        """Weights and law from leave-one-out predictions; all stays as it is where these cannot be computed.

        The noise variance is learned with the law while searches are short, and with local noise, which changes its
        unit. Else the evidence alone chooses it after full ones: leave-one-out asks for less noise, and each would undo
        the other's step.
        """
        before = self.state
        try:
            with torch.no_grad():
                self._weigh(self.model.latent_leave_one_out(self._pseudo()), learn=learn, noise=noise)
                value = self._bound()
        except NUMERICAL_ERRORS:
            value = -math.inf
        if not math.isfinite(value):
            return replace(self._back_to(before), evidence=-math.inf)
        self.state = replace(self.state, evidence=value)
        kept = sum(float(learned.rows.precision.sum()) for learned in self.state.learned or ())
        self.rounds.append(Round(name, self.search.evaluations, value, kept))
        return self.state

    def _settle(self, evidence: float) -> State:
        """Expectation steps after a search, as long as the evidence is clearly below what it was, and grows.

        After a search that moved far one step is not enough: rows were predicted by weights that no longer fit.
        """
        state = self._expect("finish", noise=False)
        while -math.inf < state.evidence < evidence - _WORTH:
            before, state = state, self._expect("finish", noise=False)
            if not state.evidence > before.evidence + self.worth:
                return state if state.evidence > before.evidence else self._back_to(before)
        return state

    def _better(self, best: State, after: State) -> State:
        """The later state, whose search has converged, unless it lost much: then the loop goes back to the best."""
        return self._back_to(best) if after.evidence < best.evidence - _WORTH else after

    def _back_to(self, state: State) -> State:
        self.state = state
        restore_hyperparameters(self.model, state.parameters)
        return state

    def _afresh(self) -> State:
        """Weigh all rows anew at the present hyperparameters and law, if the evidence grows by it.

        Good rows that lost their weight together, before the hyperparameters were good, cannot be predicted without
        each other, and would stay lost.
        """
        model, state = self.model, self.state
        if not any(bool((learned.rows.precision < 0.5).any()) for learned in state.learned or ()):
            return state  # none has lost its weight
        try:
            with torch.no_grad():
                self._weigh(cavity_by_law(model, state.laws, state.h), learn=False)
        except NUMERICAL_ERRORS:
            return self._back_to(state)
        tried = self._expect("afresh", noise=False)
        return tried if tried.evidence > state.evidence else self._back_to(state)

    def _weigh(self, cavity: LeaveOneOut, *, learn: bool, noise: bool = False) -> None:
        """Law and weights from predictions of each row without itself; see :meth:`_expect`."""
        model, state, residual = self.model, self.state, self.model.residual()
        outputs, variances, bounds = model.output_rows(), model.noise.detach().reshape(-1), model.noise_bounds()
        learned = []
        for output, rows in enumerate(outputs):
            before = None if state.learned is None else state.learned[output]
            learned.append(
                learn_law(
                    residual[rows],
                    LeaveOneOut(cavity.mean[rows], cavity.variance[rows]),
                    variances[output],
                    (self.relative * state.h)[rows],
                    self.widths[output],
                    bounds=bounds[output] if noise else None,
                    counts=None if before is None else before.counts,
                    width=None if before is None else before.law.width,
                    learn=learn,
                )
            )
        if learn and noise and model.raw_noise.requires_grad:
            model.noise = torch.stack([found.noise for found in learned])
        self.state = replace(
            state,
            parameters=hyperparameters_of(model),
            weight=(joined(outputs, [found.rows.precision for found in learned]) / state.h).sqrt(),
            slope=joined(outputs, [found.rows.slope for found in learned]) * state.h,
            good=joined(outputs, [1.0 - found.rows.outlier for found in learned]),
            learned=tuple(learned),
            cavity=cavity,
        )

    def _bound(self) -> float:
        """F of the present state. Cost n³/3."""
        model, state, residual = self.model, self.state, self.model.residual()
        row_noise = model.row_noise().expand_as(residual)
        plain = pseudo_data(residual, state.weight, torch.zeros_like(residual), row_noise)
        bound = model.signal_evidence(plain) + log_prior(model)
        for rows, learned, width in zip(model.output_rows(), state.learned or (), self.widths, strict=True):
            bound = bound + log_bound((row_noise * state.h)[rows], learned.rows, width)
        return float(bound)

    def _localised(self, best: State) -> State:
        """Let the noise differ from place to place, if there is any and the evidence clearly grows by it."""
        state = self._back_to(best)
        model, variances, bounds = self.model, self.model.noise.detach().reshape(-1), self.model.noise_bounds()
        noiseless = [
            limits is not None and float(variance) <= _NO_NOISE * limits[0]
            for variance, limits in zip(variances, bounds, strict=True)
        ]
        if not self.local_noise or all(noiseless) or state.learned is None or state.cavity is None:
            return best
        outputs, found = model.output_rows(), list[tuple[LocalFactor, Tensor, LearnedLaw]]()
        with torch.no_grad():
            averages, residual = model.noise_averages(), model.residual()
            for output, rows in enumerate(outputs):
                limits, variance = bounds[output], variances[output]
                known = replace(state.learned[output], noise=variance if limits is None else variance.clamp(*limits))
                if noiseless[output]:
                    nowhere = LocalNoise.nowhere(model.kernel, model.train_X[rows])
                    found.append((nowhere, torch.ones_like(residual[rows]), known))
                    continue
                found.append(
                    learn_local_noise(
                        averages[output],
                        residual[rows],
                        LeaveOneOut(state.cavity.mean[rows], state.cavity.variance[rows]),
                        self.relative[rows],
                        known,
                        self.widths[output],
                        limits,
                    )
                )
            local, h, learned = zip(*found, strict=True)
            if model.raw_noise.requires_grad:
                model.noise = torch.stack([law.noise for law in learned])
            factors = joined(outputs, list(h))
            if bool((factors == 1.0).all()):
                return self._back_to(best)
            self.state = replace(state, local=model.local_noise_of(local), h=factors, learned=learned)
            self._weigh(state.cavity, learn=False)
        tried = self._expect("local noise")
        return tried if tried.evidence > best.evidence + _WORTH else self._back_to(best)
