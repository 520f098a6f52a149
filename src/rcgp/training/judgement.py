"""What a fitted model's noise law says of each row, and whether it can be relied on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.noise_law import PRIOR_COUNTS, LearnedLaw, learn_law
from rcgp.models import RCGP, SparseRCGP
from rcgp.models.defaults import robust_spread, spread_of
from rcgp.weights import LawWeight, NoiseLaw
from rcgp.weights.noise_law import FLAGGED, OUTLIER_WIDTH

__all__ = ["Judgement", "NoiseLawWarning", "doubts_of", "doubts_of_values", "judge_outputs", "judge_rows"]

# What raises a doubt, by convention: five points of coverage, and as large a share of rows that may be a heavy tail or
# a stuck value; a third of the rows that count less than half, are copies or have one value, and a correlation of a
# third of neighbouring residuals. Standard errors that chance explains: two of a share, four of what neighbours share.
_POINTS, _THIRD, _CHANCE, _BESIDE = 0.05, 1.0 / 3.0, 2.0, 4.0

# How often one observation is as common as any other where it is that of a stuck sensor or of many zeros.
_TIMES = 4.0

# Steps of the law at a time where predictions are given, and the change of a share by them below which it has settled.
# Ten alone find half of the mild errors that a settled law finds. With a limit, since a heavy tail takes many steps.
_STEPS, _SETTLED, _LIMIT = 10, 1e-3, 10


class NoiseLawWarning(UserWarning):
    """The fit cannot tell outliers from inliers, or its noise law does not fit the rows."""


@dataclass(frozen=True)
class Judgement:
    """What a noise law says of the rows of an output.

    Attributes:
        law: the law.
        noise: its noise variance σ², a scalar.
        outlier_probability: probability that each row is an outlier or has noise of the widest scale, ``n``.
        doubts: why the answer may be wrong, a sentence each.
    """

    law: NoiseLaw
    noise: Tensor
    outlier_probability: Tensor
    doubts: tuple[str, ...]


def judge_rows(model: RCGP, *, learn: bool) -> Judgement:
    """The law of a fitted model of one output and what it says of each row: see :func:`judge_outputs`."""
    (judgement,) = judge_outputs(model, learn=learn)
    return judgement


def judge_outputs(model: RCGP, *, learn: bool) -> tuple[Judgement, ...]:
    """The law of each output of a fitted model and what it says of its rows. Cost O(n³).

    Args:
        model: fitted.
        learn: learn the laws from the model's leave-one-out predictions; else they are the model's own.
    """
    with torch.no_grad():
        model = model.in_float64()
        cavity = model.latent_leave_one_out(model.training_terms().pseudo)
        return tuple(_judged(model, output, cavity, learn) for output in range(len(model.output_rows())))


def _judged(model: RCGP, output: int, cavity: LeaveOneOut, learn: bool) -> Judgement:
    """The law of one output."""
    rows, weight, noise = model.output_rows()[output], model.output_weights()[output], model.noise.reshape(-1)[output]
    residual, relative = model.residual()[rows], model.relative_noise()[rows]
    mean, variance = (part[rows] for part in cavity)
    precision = torch.ones_like(residual)  # a learned law only flags rows: the given weight is the user's choice
    if learn:
        if weight.constant_in_y:  # the noise of each row is known, up to σ²
            relative = relative / model.weights()[rows].square()
        learned = _settled_law(residual, LeaveOneOut(mean, variance), noise, relative)
        law, noise, probability = learned.law, learned.noise, learned.rows.outlier_probability
    else:
        law, probability = model.noise_laws[output], model.outlier_probability()[rows]
        if isinstance(weight, LawWeight):
            relative = relative * weight.local
            precision = weight.responsibilities(residual, noise).precision
    doubts = doubts_of(law, residual - mean, variance, noise * relative, probability, precision)
    flagged = torch.zeros_like(model.train_y, dtype=torch.bool)
    flagged[rows] = probability > FLAGGED
    table = torch.cat([model.train_X[rows], model.train_y[rows].unsqueeze(-1)], dim=-1)
    if not isinstance(model, SparseRCGP) and len(table) > 1:  # which has no matrix of all rows
        near, *_ = nearest = model.neighbours()
        cells = torch.cat([model.train_X, model.train_y.unsqueeze(-1)], dim=-1)
        beside = [flagged & flagged[other] & (cells != cells[other]).any(dim=-1) for other in nearest]
        doubts += _neighbours(int(flagged.sum()), max(int(found.sum()) for found in beside), len(table))
        if not learn:  # a given weight may inflate the noise
            scores = torch.zeros_like(model.train_y)
            scores[rows] = (residual - mean) / (variance.clamp_min(0.0) + noise * relative).sqrt()
            good = ~flagged & ~flagged[near] & (model.train_y != model.train_y[near])
            doubts += _structure(scores[rows], scores[near[rows]], good[rows])
    doubts += _rounding(table[:, -1], (noise * relative).median())
    doubts = (*_units(residual), *doubts, *doubts_of_values(table[:, :-1], table[:, -1], flagged[rows]))
    return Judgement(law, noise, probability, doubts)


def _settled_law(residual: Tensor, cavity: LeaveOneOut, noise: Tensor, relative: Tensor) -> LearnedLaw:
    """The law of given predictions, by steps until it settles; arguments as for ``learn_law``."""
    first, limits = OUTLIER_WIDTH * robust_spread(residual), (float(noise) * 1e-12, float(noise) * 1e12)
    step = partial(learn_law, residual, cavity, relative=relative, first_width=first, bounds=limits, steps=_STEPS)
    learned = step(noise)
    for _ in range(_LIMIT):
        before, learned = learned, step(learned.noise, counts=learned.counts, width=learned.law.width)
        if float((learned.counts - before.counts).abs().max()) < _SETTLED * len(residual):
            break
    return learned


def doubts_of(
    law: NoiseLaw, deviation: Tensor, variance: Tensor, row_noise: Tensor, probability: Tensor, precision: Tensor
) -> tuple[str, ...]:
    """Why a law may be wrong, a sentence each; none where all is well.

    Args:
        law: the law.
        deviation: ``n`` residuals from the leave-one-out predictions.
        variance: ``n`` variances of f in these predictions.
        row_noise: ``n`` noise variances σ² of the rows.
        probability: ``n`` probabilities that a row is an outlier or has noise of the widest scale.
        precision: ``n`` squared weights.
    """
    n = len(deviation)
    doubts = [*_few(n)]
    wide = float(((precision < 0.25) & (probability <= FLAGGED)).double().mean())
    if wide > _POINTS + _CHANCE * (_POINTS * (1.0 - _POINTS) / n) ** 0.5:
        doubts.append(
            f"errors and heavy-tailed noise cannot be told apart: {wide:.0%} of the rows count less than a quarter "
            "without being flagged"
        )
    if (down := float((precision < 0.5).double().mean())) > _THIRD:
        doubts.append(
            f"{down:.0%} of the rows count less than half: where more than a third does, a majority may be wrong"
        )
    good = 1.0 - probability
    below = law.unflagged.probability_below(deviation, variance.clamp_min(0.0), row_noise)
    covered = float((good * ((below - 0.5).abs() <= 0.475)).sum() / good.sum().clamp_min(1e-300))
    error = _CHANCE * (0.95 * 0.05 / max(float(good.sum()), 1.0)) ** 0.5
    if n >= sum(PRIOR_COUNTS) and abs(covered - 0.95) > max(_POINTS, error) + 1e-9:
        doubts.append(
            f"the noise law does not fit: {covered:.0%} of the good rows lie within their 95 % leave-one-out interval"
        )
    return tuple(doubts)


def doubts_of_values(X: Tensor, y: Tensor, flagged: Tensor) -> tuple[str, ...]:
    """Why rows that repeat values may deceive any law: observations that agree without noise, and copies of rows.

    Args:
        X: ``n x d`` inputs.
        y: ``n`` observations.
        flagged: ``n``, which rows are flagged.
    """
    return (*_ties(y, flagged), *_copies(torch.cat([X, y.unsqueeze(-1)], dim=-1)))


def _units(residual: Tensor) -> tuple[str, ...]:
    """Observations so small or large that their squares, the variances, leave the range of floating-point numbers."""
    spread = float(spread_of(residual))
    if spread == robust_spread(residual):
        return ()
    return (
        f"the observations differ by about {spread:.0e}, whose square is outside the range of floating-point numbers: "
        "nothing can be learned from them in these units, multiply them by a power of ten",
    )


def _few(rows: int) -> tuple[str, ...]:
    """Fewer rows than the law's prior stands for."""
    if rows >= sum(PRIOR_COUNTS):
        return ()
    return (f"{rows} {'row is' if rows == 1 else 'rows are'} too few to tell errors from good observations",)


def _structure(score: Tensor, nearest: Tensor, good: Tensor) -> tuple[str, ...]:
    """Residuals that go together with those of the nearest rows: a part of the function was taken for noise.

    Where the hyperparameters are right, scores of neighbours are uncorrelated or, as each is predicted by the other,
    negatively correlated.

    Args:
        score: ``n`` standardised leave-one-out residuals; beyond three they count as three.
        nearest: ``n``, those of the nearest rows.
        good: ``n``, whether neither is flagged and the two observations differ: equal ones agree without noise.
    """
    one, other = (part[good].clamp(-3.0, 3.0) for part in (score, nearest))
    # At least that of unit variances: of data without noise, residuals far below the learned one do not matter.
    size = (one.square().sum() * other.square().sum()).sqrt().clamp_min(len(one))
    together = float((one * other).sum() / size) if bool(size > 0.0) else 0.0
    if not (together > _THIRD and together > _BESIDE / len(one) ** 0.5):
        return ()
    return (
        f"residuals of neighbouring rows go together (correlation {together:.2f}): the fit takes part of the function "
        "for noise, try further restarts or a kernel with shorter lengthscales",
    )


def _neighbours(count: int, beside: int, n: int) -> tuple[str, ...]:
    """More flagged rows lie next to another one than those of scattered errors.

    Args:
        count: number of flagged rows.
        beside: of those whose nearest row is flagged too, and no copy.
        n: of all rows.
    """
    if count < 2:
        return ()
    chance = (count - 1.0) / (n - 1.0)
    if not beside > count * chance + _BESIDE * (count * chance * (1.0 - chance)) ** 0.5 or not 2 * beside > count:
        return ()
    return (
        f"{beside} of {count} flagged rows lie next to another one: errors in one place, or something that the "
        "function does there (weight='constant' shows what an ordinary GP makes of it)",
    )


def _rounding(y: Tensor, noise: Tensor) -> tuple[str, ...]:
    """Repeated values on a grid, where less than half the noise was learned that rounding alone makes, step/√12."""
    values = torch.unique(y)
    if not 2 < len(values) <= len(y) // 2:  # two always lie on a grid
        return ()
    step = float(values.diff().min())
    steps, learned, rounded = values.diff() / step, float(noise) ** 0.5, step / 12.0**0.5
    if not learned < 0.5 * rounded or bool(((steps - steps.round()).abs() > 1e-6 * steps).any()):
        return ()
    return (
        f"the observations are multiples of {step:.6g}, and less noise was learned ({learned:.2g}) than rounding to "
        f"these makes ({rounded:.2g}): intervals may be too narrow, and flagged rows right",
    )


def _ties(y: Tensor, flagged: Tensor) -> tuple[str, ...]:
    """Observations without a flag that have one and the same value, which agree without noise."""
    values, counts = torch.unique(y[~flagged], return_counts=True)
    if len(y) < sum(PRIOR_COUNTS) or not len(values):
        return ()
    first, second = [*counts.sort(descending=True).values.tolist(), 0][:2]
    share, common = first / len(y), f"{float(values[counts.argmax()]):.6g}"
    if first == len(y):
        return (f"all observations have the same value, {common}: nothing is known of their noise",)
    if first > (1.0 - _POINTS) * float(counts.sum()):
        return (
            f"nearly all rows that are not flagged have the same value, {common}: the fit takes it for the function "
            "without noise, try weight='imq'",
        )
    if not (share > _THIRD or (share > _POINTS and first > _TIMES * max(second, 1))):
        return ()
    return (
        f"{share:.0%} of the observations have the same value, {common}: they agree without noise, be they right or "
        "wrong",
    )


def _copies(table: Tensor) -> tuple[str, ...]:
    """Rows of inputs and observation that repeat another one exactly, which predicts them without error."""
    rows = table.numpy(force=True)
    rows = rows[np.lexsort(rows.T)]  # np.unique and torch.unique take ten times as long
    copies = float((rows[1:] == rows[:-1]).all(axis=1).sum()) / len(table)
    if not copies > _THIRD:
        return ()
    return (
        f"{copies:.0%} of the rows repeat another one exactly, which leave-one-out cannot judge: drop them, or give "
        "sample_weight",
    )
