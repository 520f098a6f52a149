"""All rows weighed and summed up: the posterior of a sparse model, by a few passes.

Centred on the prior mean that is one pass, and for a threshold by the paper's rule four cheap ones. Adaptive centring
takes two: weights centred on what the sample predicts give a first posterior of all rows; weights centred on its
leave-one-out predictions give the last.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rcgp.chunks import Chunks, Engine
from rcgp.core.sparse import SparsePosterior, condition_sparse
from rcgp.models import RCGP
from rcgp.models.sparse_rows import Rows
from rcgp.training.adaptive_report import AdaptiveReport
from rcgp.training.fit import FitReport
from rcgp.training.quantiles import order_statistics, quantiles
from rcgp.training.row_tasks import Chain, Diagnose, Distances, Given, Rule, SumUp, View
from rcgp.weights import ThresholdWeight, WeightFunction

__all__ = ["posterior_of_sample", "weigh_all"]


def weigh_all(model: RCGP, Z: Tensor, report: FitReport, chunks: Chunks, engine: Engine, rows: int) -> Diagnose:
    """The posterior of all rows, and the rule by which they are weighed. Cost (2.3 + links) m²n for each pass.

    Args:
        model: the model of the sample, fitted. Unless weights are adaptive, its thresholds become those of all rows.
        Z: ``m x d`` inducing points.
        report: of its fit.
        chunks, engine: the rows, and who goes through them.
        rows: number of rows that count.
    """
    view = View.of(model, Z)

    def posterior_by(rule: Rule) -> SparsePosterior:
        return _settled(condition_sparse(view.L, engine.reduce(SumUp(view, rule), chunks)))

    if not isinstance(report, AdaptiveReport):
        model.weight = _with_thresholds(model, chunks, engine, rows)
        given = Given(model.weight)
        return Diagnose(view, given, posterior_by(given))
    chain = Chain(report.reach, (_settled(posterior_of_sample(model, view)),))
    chain = chain.then(posterior_by(chain))
    return Diagnose(view, chain, posterior_by(chain))


def _settled(posterior: SparsePosterior) -> SparsePosterior:
    """With its matrices in the order of rows: as they come back from a file, so that the same bits come of them."""
    return SparsePosterior(
        posterior.L, posterior.L_B.contiguous(), posterior.root.contiguous(), posterior.alpha.contiguous()
    )


def posterior_of_sample(model: RCGP, view: View) -> SparsePosterior:
    """The posterior of the sample alone, with the weights it has."""
    with torch.no_grad():
        return condition_sparse(
            view.L, Rows(view.kernel, model.train_X, view.Z).statistics(model.training_terms().pseudo)
        )


def _with_thresholds(model: RCGP, chunks: Chunks, engine: Engine, rows: int) -> WeightFunction:
    """The model's weight with thresholds by the paper's rule fixed at the quantiles of all rows. Four passes, or none.

    As :func:`rcgp.weights.thresholds.quantile_threshold` has it, also where the quantile is zero. What else of a
    weight depends on all residuals follows those of the sample.
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
