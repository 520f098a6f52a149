"""The expectation step of a robust fit: from leave-one-out predictions to noise law, local noise and weights.

A :class:`State` is where a fit is. Each step returns a new one for the present hyperparameters of the model. Of the
model it changes nothing but the noise variance, where that is learned along with the law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.noise_law import (
    FIRST_COUNTS,
    LearnedLaw,
    first_weights,
    learn_law,
    local_squares,
    log_bound,
    without_tail,
)
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.models.local_noise import LocalFactor, choose_average, learn_local_noise
from rcgp.training.objectives import log_prior
from rcgp.training.rows import cavity_by_law, joined, spreads_of
from rcgp.training.search import Outcome, hyperparameters_of
from rcgp.weights import NoiseLaw
from rcgp.weights.noise_law import FLAGGED, OUTLIER_WIDTH

__all__ = ["Expectation", "State"]

# Noise variance, in units of its lower limit, up to which there is none anywhere.
_NO_NOISE = 2.0


@dataclass(frozen=True)
class State:
    """Where a robust fit is: hyperparameters, and what each row counts."""

    parameters: list[Tensor]
    weight: Tensor  # n, w̃
    slope: Tensor  # n, ∂_y log w̃²
    good: Tensor  # n, probability that a row is no outlier
    h: Tensor  # n, local factors on the noise variance
    local: LocalFactor | None = None
    averages: tuple[int | None, ...] = ()  # which of the model's averages local noise is, for each output
    learned: tuple[LearnedLaw, ...] = ()  # law of each output, and its rows; none before the first step
    cavity: LeaveOneOut | None = None
    search: Outcome | None = None
    evidence: float = -math.inf

    @property
    def flags_rows(self) -> bool:
        """Whether any row is flagged."""
        return any(bool((learned.rows.outlier_probability > FLAGGED).any()) for learned in self.learned)

    @property
    def laws(self) -> tuple[NoiseLaw, ...]:
        """The noise law of each output; none before the first step."""
        return tuple(learned.law for learned in self.learned)

    @property
    def kept(self) -> float:
        """Sum of the squared weights before any local scale, the number of rows that the model effectively keeps."""
        return sum(float(learned.rows.precision.sum()) for learned in self.learned)


class Expectation:
    """Expectation steps on the rows that a model has."""

    def __init__(self, model: RCGP) -> None:
        self.model = model
        residual = model.residual().detach()
        self.widths = [OUTLIER_WIDTH * robust_spread(residual[rows]) for rows in model.output_rows()]

    def first(self, threshold: float = OUTLIER_WIDTH) -> State:
        """The first weights, at the present hyperparameters."""
        residual = self.model.residual().detach()
        weight = first_weights(residual, spreads_of(self.model, residual), threshold)
        nothing, ones = torch.zeros_like(weight), torch.ones_like(weight)
        return State(hyperparameters_of(self.model), weight, nothing, weight.square(), ones)

    def by_first_law(self) -> State:
        """Weights by the law before any data, at the present hyperparameters, by steps with falling σ²."""
        state, counts = self.first(), self.model.residual().new_tensor(FIRST_COUNTS)
        laws = [NoiseLaw.of_counts(counts, width) for width in self.widths]
        return self.weighed(state, cavity_by_law(self.model, laws, state.h), learn=False)

    def pseudo(self, state: State) -> PseudoData:
        """Pseudo-data by the weights of a state, at the present hyperparameters."""
        model = self.model
        return pseudo_data(model.residual(), state.weight, state.slope, model.row_noise())

    def weighed(self, state: State, cavity: LeaveOneOut, *, learn: bool, noise: bool = False) -> State:
        """Law, local noise and weights from predictions of each row without itself.

        Args:
            state: the one before.
            cavity: leave-one-out moments of f(x_i).
            learn: whether to learn law and local noise, or to weigh rows by those of the state.
            noise: whether to learn the noise variance with the law. Local noise changes its unit: it is learned then.
        """
        model = self.model
        local = learn and state.local is not None
        followed = [average is not None for average in state.averages] if local else [False] * len(self.widths)
        limits = [
            bounds if learn and (noise or own) else None
            for bounds, own in zip(model.noise_bounds(), followed, strict=True)
        ]
        variances = model.noise.detach().reshape(-1)
        state = replace(state, cavity=cavity)
        learned = tuple(
            self._law(state, output, before, variances[output], limits[output], learn)
            for output, before in enumerate(state.learned or [None] * len(limits))
        )
        state = replace(state, learned=learned)
        if local:
            state = self._with_averages(state)
        return self._by_law(state, learn and (noise or local))

    def with_local_noise(self, state: State) -> State | None:
        """A state whose noise differs from place to place; ``None`` where it is the same, or where there is none.

        Its law begins without a tail: what looks like a heavy tail may be local noise.
        """
        learned = tuple(
            self._law(state, output, replace(law, counts=without_tail(law.counts)), law.noise, None, learn=False)
            for output, law in enumerate(state.learned)
        )
        found = self._with_averages(replace(state, learned=learned))
        return None if found.local is None else self._by_law(found, noise=True)

    def bound(self, state: State) -> float:
        """F of a state at the present hyperparameters. Cost n³/3."""
        model, residual = self.model, self.model.residual()
        row_noise = model.row_noise().expand_as(residual)
        plain = pseudo_data(residual, state.weight, torch.zeros_like(residual), row_noise)
        bound = model.signal_evidence(plain) + log_prior(model)
        for rows, learned, width in zip(model.output_rows(), state.learned, self.widths, strict=True):
            bound = bound + log_bound((row_noise * state.h)[rows], learned.rows, width)
        return float(bound)

    def _law(
        self,
        state: State,
        output: int,
        before: LearnedLaw | None,
        noise: Tensor,
        limits: tuple[float, float] | None,
        learn: bool = True,
    ) -> LearnedLaw:
        """The law of an output from the predictions and the local noise of a state, and from the law before."""
        rows, cavity = self.model.output_rows()[output], state.cavity
        assert cavity is not None
        return learn_law(
            self.model.residual()[rows],
            LeaveOneOut(cavity.mean[rows], cavity.variance[rows]),
            noise,
            (self.model.relative_noise() * state.h)[rows],
            self.widths[output],
            bounds=limits,
            counts=None if before is None else before.counts,
            width=None if before is None else before.law.width,
            learn=learn,
        )

    def _with_averages(self, state: State) -> State:
        """Local noise and law of each output, by the average that is chosen the first time."""
        model, bounds, relative = self.model, self.model.noise_bounds(), self.model.relative_noise()
        outputs, noiseless, found, chosen = model.output_rows(), self._noiseless(), [], list[int | None]()
        for output, (rows, law, averages) in enumerate(
            zip(outputs, state.learned, model.noise_averages(), strict=True)
        ):
            squares, counts = local_squares(law.rows, law.noise * relative[rows])
            if state.averages:
                chosen.append(state.averages[output])
            else:
                free = bounds[output] is not None
                chosen.append(None if noiseless[output] else choose_average(averages, squares, counts, free))
            if (choice := chosen[-1]) is None:
                nothing = torch.zeros_like(squares)
                found.append((*averages[0](nothing, nothing), law))
                continue

            def learn(h: Tensor, before: LearnedLaw, output: int = output, rows: Tensor | slice = rows) -> LearnedLaw:
                factors = state.h.clone()
                factors[rows] = h
                return self._law(replace(state, h=factors), output, before, before.noise, bounds[output])

            found.append(learn_local_noise(averages[choice], learn, law, relative[rows], bounds[output]))
        local, h, learned = zip(*found, strict=True)
        return replace(
            state,
            local=None if chosen == [None] * len(chosen) else model.local_noise_of(local),
            averages=tuple(chosen),
            h=joined(outputs, list(h)),
            learned=learned,
        )

    def _noiseless(self) -> list[bool]:
        """Whether each output has hardly any noise."""
        variances, bounds = self.model.noise.detach().reshape(-1), self.model.noise_bounds()
        return [
            limits is not None and float(variance) <= _NO_NOISE * limits[0]
            for variance, limits in zip(variances, bounds, strict=True)
        ]

    def _by_law(self, state: State, noise: bool) -> State:
        """A state with the weights of its laws, and the model with their noise variances if these were learned."""
        model, outputs, learned = self.model, self.model.output_rows(), state.learned
        if noise and model.raw_noise.requires_grad:
            model.noise = torch.stack(
                [
                    law.noise if limits is None else law.noise.clamp(*limits)
                    for law, limits in zip(learned, model.noise_bounds(), strict=True)
                ]
            )
        return replace(
            state,
            parameters=hyperparameters_of(model),
            weight=(joined(outputs, [law.rows.precision for law in learned]) / state.h).sqrt(),
            slope=joined(outputs, [law.rows.slope for law in learned]) * state.h,
            good=joined(outputs, [1.0 - law.rows.outlier for law in learned]),
        )
