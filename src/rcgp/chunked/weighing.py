"""All rows weighed and summed up: the posterior of a sparse model and the noise law of all rows, in a few passes.

For a given weight function that is one pass, and for a threshold by the paper's rule four cheap ones before it. By the
noise law of the sample each pass is an expectation step: all rows are predicted, by the sample first and then by all
other rows, and their responsibilities add up to the law of all rows. If the noise of the sample is normal, one such
pass decides whether that holds for all rows; if so, all weights are one. There a law has to earn its shares, also one
that flags rows: rows are many, and the evidence is clear.

The noise variance stays that of the sample. Expected squares of all rows would understate it: variance that inducing
points do not see is part of every prediction, but the posterior errs less.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rcgp.chunked.passes import ByLaw, Diagnose, Distances, Given, LawSums, Link, SumUp
from rcgp.chunked.quantiles import order_statistics, quantiles
from rcgp.chunked.views import Noise, View
from rcgp.chunks import Chunks, Engine
from rcgp.core.noise_law import PRIOR_COUNTS, evidence_of_shares
from rcgp.core.sparse import SparsePosterior, condition_sparse
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.models.sparse_rows import Rows
from rcgp.training.judgement import judge_rows
from rcgp.weights import Constant, NoiseLaw, ThresholdWeight, WeightFunction
from rcgp.weights.noise_law import OUTLIER_WIDTH

__all__ = ["weigh_all"]

# Expectation steps over all rows: one by what the sample predicts, two by what all other rows do.
_LINKS = 3


def weigh_all(model: RCGP, Z: Tensor, chunks: Chunks, engine: Engine, rows: int, *, learned: bool) -> Diagnose:
    """The posterior of all rows, the rule by which they are weighed and their noise law.

    Cost (2.3 + links) m²n for each pass.

    Args:
        model: the model of the sample, fitted. With a given weight, thresholds by the paper's rule become those of all
            rows.
        Z: ``m x d`` inducing points.
        chunks, engine: the rows, and what goes through them.
        rows: number of rows that count.
        learned: whether weights come from the model's noise law.
    """
    view, variance = View.of(model, Z), model.noise.detach().clone()
    normal = Noise(NoiseLaw.normal(), variance)
    if not learned:
        model.weight = _with_thresholds(model, chunks, engine, rows)
        judged = judge_rows(model, learn=True)
        return _weighed_by(Given(model.weight, variance), view, normal, Noise(judged.law, judged.noise), chunks, engine)
    law = model.noise_law
    is_normal = law.is_normal
    if is_normal:  # is it, for all rows? The law before any data, to begin with.
        with torch.no_grad():
            width = OUTLIER_WIDTH * robust_spread(model.residual())
        law = NoiseLaw.of_counts(variance.new_tensor(PRIOR_COUNTS), width)
    rule = ByLaw((Link(_contiguous(_posterior_of_sample(model, view)), Noise(law, variance)),))
    while True:
        sums = engine.reduce(SumUp(view, rule), chunks)
        if is_normal and not _law_gain(sums.law) > 0.0:
            return _weighed_by(Given(Constant(), variance), view, normal, normal, chunks, engine)
        is_normal = False
        posterior = _contiguous(condition_sparse(view.L, sums.statistics))
        counts = variance.new_tensor(PRIOR_COUNTS) + sums.law.counts
        noise = Noise(NoiseLaw.of_counts(counts, law.width), variance)
        if len(rule.links) == _LINKS:
            return Diagnose(view, rule, posterior, noise, noise)
        rule = rule.then(Link(posterior, noise))


def _weighed_by(rule: Given, view: View, noise: Noise, flags: Noise, chunks: Chunks, engine: Engine) -> Diagnose:
    """All rows weighed by a function that needs no other rows, in one pass."""
    sums = engine.reduce(SumUp(view, rule), chunks)
    return Diagnose(view, rule, _contiguous(condition_sparse(view.L, sums.statistics)), noise, flags)


def _law_gain(sums: LawSums) -> float:
    """Log evidence of the law over that of normal noise, given predictions of all rows: a lower bound."""
    return float(sums.gain + evidence_of_shares(sums.counts))


def _contiguous(posterior: SparsePosterior) -> SparsePosterior:
    """With matrices stored by rows, as they are read from a file: so the same bits come of them."""
    return SparsePosterior(
        posterior.L, posterior.L_B.contiguous(), posterior.root.contiguous(), posterior.alpha.contiguous()
    )


def _posterior_of_sample(model: RCGP, view: View) -> SparsePosterior:
    """The posterior of the sample alone, with its weights."""
    with torch.no_grad():
        return condition_sparse(
            view.L, Rows(view.kernel, model.train_X, view.Z).statistics(model.training_terms().pseudo)
        )


def _with_thresholds(model: RCGP, chunks: Chunks, engine: Engine, rows: int) -> WeightFunction:
    """The model's weight with thresholds by the paper's rule fixed at the quantiles of all rows. Four passes, or none.

    As :func:`rcgp.weights.functions.quantile_threshold`, also where the quantile is zero. Whatever else of a weight
    depends on all residuals follows those of the sample.
    """
    weight = copy.deepcopy(model.weight)
    by_rule = [part for part in weight.modules() if isinstance(part, ThresholdWeight) and part.log_c is None]
    if by_rule:
        distances = Distances(copy.deepcopy(model.mean).requires_grad_(False))
        found = quantiles(distances, chunks, engine, [1.0 - part.epsilon for part in by_rule], rows)
        if min(found) == 0.0:
            largest = order_statistics(distances, chunks, engine, [rows - 1])[0]
            found = [c or largest * torch.finfo(torch.float64).eps or 1.0 for c in found]
        for part, c in zip(by_rule, found, strict=True):
            part.log_c = torch.tensor(c, dtype=torch.float64).log()
    with torch.no_grad():
        return weight.frozen(model.residual()).requires_grad_(False)
