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

import numpy as np
import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut, condition
from rcgp.core.noise_law import WORTH
from rcgp.models import RCGP
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.training.expectation import Expectation, State
from rcgp.training.objectives import weighed_evidence
from rcgp.training.rows import cavity_by_law
from rcgp.training.search import (
    NUMERICAL_ERRORS,
    SHORTER,
    Outcome,
    Progress,
    Search,
    Vector,
    hyperparameters_of,
    restore_hyperparameters,
    scale_lengthscales,
    shorter_starts,
)

__all__ = ["Learning", "Round", "State"]

# Threshold of the weights of the smooth start, in robust standard deviations: even many errors, or a cluster of them,
# stick out of a function with long lengthscales.
_NARROW = 1.0

# Noise variance of the quiet start, in units of the given one: errors stick out of a function with little noise, and
# with much of it both are taken for noise. Of random functions of 30 to 70 rows, a third misses fewer of the best
# optima than one, a tenth fewest, a hundredth more than one.
_QUIET = 0.1

# Iterations of a short search: one from each start and, with new weights, another one from the quiet start and from the
# best of the others. One of ten iterations misses the best optimum half again as often: hyperparameters follow the
# first weights too far. Little noise takes longer to fit: after one search that start may win or lose by mistake.
_ITERATIONS = 5

# Gain of an iteration for each row, in log evidence, below which a search ends: far below what matters.
_TOLERANCE = 1e-5

# Full searches at most: two or three but where there is hardly any noise, whose variance then falls step by step.
_FINISHES = 8


@dataclass(frozen=True)
class Round:
    """One expectation step of a robust fit.

    Attributes:
        name: "start", "search", "all rows", "local noise", "finish" or "reweigh".
        evaluations: of the objective, until then.
        evidence: F after it.
        kept: sum of the squared weights before any local scale, the number of rows that the model effectively keeps.
    """

    name: str
    evaluations: int
    evidence: float
    kept: float


class Learning:
    """Expectation and maximisation steps on one model."""

    def __init__(self, model: RCGP, max_iterations: int, local_noise: bool, report: Progress) -> None:
        self.model, self.max_iterations = model, max_iterations
        self.local_noise = local_noise and model.has_local_noise
        self.expectation = Expectation(model)
        self.search = Search(model, self._objective, report)
        self.rounds: list[Round] = []
        self.iterations = 0
        self.last, self.state = Outcome(-math.inf, self.search.read()), self.expectation.first()

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
        return self.expectation.first(), found

    def finish(self, best: State, goal: float = -math.inf) -> State:
        """Searches of all rows, each with its expectation steps, as long as the evidence grows by them.

        Args:
            best: where to start.
            goal: evidence to be reached; given up early where it clearly cannot be.
        """
        best = self._climb(self._back_to(best), goal)
        while best.evidence > -math.inf:
            before, best = best.evidence, self._reweighed()
            if not best.evidence > before + WORTH:
                break
            best = self._climb(best, goal)
        return replace(best, search=self.last)

    def _climb(self, best: State, goal: float) -> State:
        """Searches of all rows and expectation steps, in turn, as long as the evidence grows by them."""
        for _ in range(_FINISHES if best.evidence > -math.inf else 0):
            before = best.evidence
            self._search(self.max_iterations, goal - before)
            best = self._better(best, self._settle(before))
            best = self._localised(best)
            if not best.evidence > before + WORTH:
                break
        return best

    def _best_start(self, restarts: int, seed: int | None) -> tuple[State, list[float]]:
        """The best state after short searches from all starts (quiet, smooth, given and random ones), and F of each.

        The quiet start, for data whose observations are mostly distinct, meets the best of the others after a second
        search from each. Shorter lengthscales are tried where these are better before any search than all that was
        found, as for an ordinary GP; there rows are weighed as in the best state.
        """
        model, first = self.model, hyperparameters_of(self.model)
        given, *random = self.search.starts(restarts, seed)
        scale_lengthscales(model, 1.0 / SHORTER)
        smooth = self.search.read()
        self._quieten()
        quiet = self.search.read()
        wide, narrow = self.expectation.first(), self.expectation.first(_NARROW)
        # Observations that are equal agree without noise: from little noise they would look like the only good ones.
        repeated = 2 * len(np.unique(model.train_y.numpy(force=True))) <= len(model.train_y)
        quiet_ones = [] if repeated else [self._try(quiet)]
        others = [self._try(smooth, narrow), *(self._try(start, wide) for start in (given, *random))]
        by_evidence = attrgetter("evidence")
        best = max(map(self._improved, [*quiet_ones, max(others, key=by_evidence)]), key=by_evidence)
        restore_hyperparameters(model, first)
        for _ in shorter_starts(model):
            start = self.search.read()
            if self._bound(best) > best.evidence:
                best = max(best, self._improved(self._try(start, best)), key=by_evidence)
        return best, [state.evidence for state in (*quiet_ones, *others)]

    def _quieten(self) -> None:
        """Lower the noise variances that are learned."""
        model = self.model
        noise = zip(model.noise.detach().reshape(-1), model.noise_bounds(), strict=True)
        model.noise = torch.stack([own if limits is None else (_QUIET * own).clamp(*limits) for own, limits in noise])

    def _try(self, start: Vector, weighed: State | None = None) -> State:
        """Weights at a start, by those of a state or anew by the first law, then a short search."""
        self.search.write(start)
        try:
            with torch.no_grad():
                state = self.expectation.by_first_law() if weighed is None else weighed
        except NUMERICAL_ERRORS:
            return replace(self.expectation.first(), evidence=-math.inf)
        self.state = replace(state, parameters=hyperparameters_of(self.model))
        return self._improved(self._expect("start", learn=False))

    def _improved(self, best: State) -> State:
        """Hyperparameters by a short search, then weights and law; the state as it was where they are worse."""
        if best.evidence == -math.inf:
            return best
        self._back_to(best)
        self._search(min(_ITERATIONS, self.max_iterations))
        return self._better(best, self._expect("search"))

    def _bound(self, state: State) -> float:
        """F at the present hyperparameters with the responsibilities of a state, for any of which it is a bound."""
        try:
            with torch.no_grad():
                value = self.expectation.bound(state)
        except NUMERICAL_ERRORS:
            return -math.inf
        return value if math.isfinite(value) else -math.inf

    def _lifted(self, sampled: State, sample: Tensor) -> State:
        """From a sample to all rows: these are weighed by what it predicts, its own rows without themselves.

        Where an evaluation costs O(n), by expectation steps on all rows under the sample's law.
        """
        model = self.model
        self._back_to(sampled)
        state = replace(self.expectation.first(), learned=sampled.learned)
        with torch.no_grad():
            if model.linear_cost:
                cavity = cavity_by_law(model, sampled.laws, state.h)
            else:
                with self._only(sample):
                    posterior, X = condition(model.kernel_matrix(), self.expectation.pseudo(sampled)), model.train_X
                cross, prior_variance = (
                    dense_kernel(model.kernel, model.train_X, X),
                    model.kernel(model.train_X, diag=True),
                )
                mean, variance = posterior.mean(cross), posterior.variance(cross, prior_variance)
                if sampled.cavity is not None:
                    mean[sample], variance[sample] = sampled.cavity
                cavity = LeaveOneOut(mean, variance.clamp_min(0.0))
            self.state = self.expectation.weighed(state, cavity, learn=False)
        return self._expect("all rows")

    @contextmanager
    def _only(self, rows: Tensor) -> Iterator[None]:
        """The model with some of its rows, for as long as it takes."""
        model = self.model
        data = model.train_X, model.train_y, model.sample_weight
        try:
            model.train_X, model.train_y = model.train_X[rows], model.train_y[rows]
            model.sample_weight = None if model.sample_weight is None else model.sample_weight[rows]
            yield
        finally:
            model.train_X, model.train_y, model.sample_weight = data

    def _objective(self, model: RCGP) -> Tensor:
        """What the maximisation step maximises, weights held fixed."""
        return weighed_evidence(model, self.state.weight, self.state.slope, self.state.good)

    def _search(self, iterations: int, gain: float = -math.inf) -> None:
        """Hyperparameters from where they are; as they were where the objective cannot be computed.

        The gain is the one to be reached: the search ends early where it clearly cannot be.
        """
        start = self.search.read()
        self.last = self.search.run(start, iterations, _TOLERANCE, gain=gain)
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
                cavity = self.model.latent_leave_one_out(self.expectation.pseudo(before))
                self.state = self.expectation.weighed(before, cavity, learn=learn, noise=noise)
            value = self._bound(self.state)
        except NUMERICAL_ERRORS:
            value = -math.inf
        if value == -math.inf:
            return replace(self._back_to(before), evidence=-math.inf)
        self.state = replace(self.state, evidence=value)
        self.rounds.append(Round(name, self.search.evaluations, value, self.state.kept))
        return self.state

    def _settle(self, evidence: float, name: str = "finish") -> State:
        """Expectation steps as long as the evidence clearly grows by them, or has yet to recover.

        After a search that moved far one step is not enough: rows were predicted by weights that no longer fit.
        """
        state = self._expect(name, noise=False)
        while state.evidence > evidence + WORTH or -math.inf < state.evidence < evidence - WORTH:
            before, state = state, self._expect(name, noise=False)
            if not state.evidence > before.evidence:
                return self._back_to(before)
            evidence = before.evidence
        return state

    def _better(self, best: State, after: State) -> State:
        """The later state, whose search has converged, unless it lost much: then the loop goes back to the best."""
        return self._back_to(best) if after.evidence < best.evidence - WORTH else after

    def _back_to(self, state: State) -> State:
        self.state = state
        restore_hyperparameters(self.model, state.parameters)
        return state

    def _reweighed(self) -> State:
        """Weigh all rows anew at the present hyperparameters and law, if the evidence grows by it.

        Good rows that lost their weight together, before the hyperparameters were good, cannot be predicted without
        each other, and would stay lost.
        """
        model, state = self.model, self.state
        if not any(bool((learned.rows.precision < 0.5).any()) for learned in state.learned):
            return state  # none has lost its weight
        try:
            with torch.no_grad():
                cavity = cavity_by_law(model, state.laws, state.h)
                self.state = self.expectation.weighed(state, cavity, learn=False)
        except NUMERICAL_ERRORS:
            return self._back_to(state)
        tried = self._expect("reweigh", noise=False)
        return tried if tried.evidence > state.evidence else self._back_to(state)

    def _localised(self, best: State) -> State:
        """Let the noise differ from place to place, if the evidence clearly grows by it."""
        state = self._back_to(best)
        if not self.local_noise or state.local is not None or state.cavity is None:
            return best
        with torch.no_grad():
            found = self.expectation.with_local_noise(state)
        if found is None:
            return best
        self.state = found
        tried = self._settle(best.evidence, "local noise")
        return tried if tried.evidence > best.evidence + WORTH else self._back_to(best)
