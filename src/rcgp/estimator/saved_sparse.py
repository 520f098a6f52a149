"""The fitted model of a :class:`SparseRCGPRegressor` as JSON and tensors.

Its rows are not kept, so its factors are: a few m x m matrices, to the bit.
"""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.core.sparse import SparsePosterior
from rcgp.estimator.row_answers import RowDiagnosis
from rcgp.estimator.saved_parts import (
    check_per_row,
    describe_report,
    rebuild_part,
    rebuild_report,
    under,
    with_text,
)
from rcgp.estimator.sparse import SparseRCGPRegressor
from rcgp.saving import SavedModelError, describe
from rcgp.training.chunked import ChunkedFit
from rcgp.training.row_tasks import Chain, Diagnose, Given, Rule, View
from rcgp.weights import WeightFunction

__all__ = ["check_sparse", "describe_sparse", "rebuild_sparse"]

_PER_ROW = RowDiagnosis._fields[1:]
_FACTORS = ("L_B", "root", "alpha")  # of a posterior, beside the L that all share


def describe_sparse(estimator: SparseRCGPRegressor, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What was fitted; its tensors go among the others."""
    fitted = estimator.model_
    view, rule = fitted.diagnose.view, fitted.diagnose.rule
    held = {"Z": view.Z, "L": view.L, "noise": view.noise, **_factors("posterior", fitted.diagnose.posterior)}
    parts = {"kernel": view.kernel, "mean": view.prior_mean}
    description: dict[str, Any] = {}
    if isinstance(rule, Chain):
        description["chain"] = {"threshold": rule.threshold, "links": len(rule.posteriors)}
        for i, posterior in enumerate(rule.posteriors):
            held.update(_factors(f"link.{i}", posterior))
    elif isinstance(rule, Given):
        parts["weight"] = rule.weight
    for name, part in parts.items():
        description[name], inner = describe(part)
        held.update({f"{name}.{key}": tensor for key, tensor in inner.items()})
    if hasattr(estimator, "weights_"):
        held.update({name: torch.from_numpy(getattr(estimator, f"{name}_")) for name in _PER_ROW})
    tensors.update({f"model.{key}": tensor for key, tensor in held.items()})
    description.update(
        report=describe_report(fitted.report),
        polished=None if fitted.polished is None else describe_report(fitted.polished),
        rows=fitted.rows,
        fitted_rows=fitted.fitted_rows,
        spread=with_text(fitted.spread),
        trusted_spread=with_text(fitted.trusted_spread),
        unseen=with_text(fitted.unseen),
        seconds=fitted.seconds,
    )
    return {"model": description}


def rebuild_sparse(estimator: SparseRCGPRegressor, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give an estimator what was fitted."""
    model, held = description["model"], under("model", tensors)
    kernel = rebuild_part("kernel", gpytorch.kernels.Kernel, model, held)
    mean = rebuild_part("mean", gpytorch.means.Mean, model, held)
    view = View(mean, kernel, held["Z"], held["L"], held["noise"])
    rule: Rule
    if "chain" in model:
        links = tuple(_posterior(f"link.{i}", held) for i in range(model["chain"]["links"]))
        rule = Chain(float(model["chain"]["threshold"]), links)
    else:
        rule = Given(rebuild_part("weight", WeightFunction, model, held))
    fitted = ChunkedFit(
        diagnose=Diagnose(view, rule, _posterior("posterior", held)),
        report=rebuild_report(model["report"]),
        polished=None if model["polished"] is None else rebuild_report(model["polished"]),
        rows=int(model["rows"]),
        fitted_rows=int(model["fitted_rows"]),
        spread=float(model["spread"]),
        trusted_spread=float(model["trusted_spread"]),
        unseen=float(model["unseen"]),
        seconds={str(step): float(value) for step, value in model["seconds"].items()},
    )
    told = [RowDiagnosis(0, *(held[name].numpy() for name in _PER_ROW))] if "weights" in held else None
    estimator._keep(fitted, told)


def check_sparse(estimator: SparseRCGPRegressor) -> None:
    """Refuse what no estimator that was fitted can be."""
    estimator._recipe()
    if estimator.client is not None:
        raise SavedModelError("it names a client, which is never saved")
    diagnose = estimator.model_.diagnose
    view, rule = diagnose.view, diagnose.rule
    m = view.Z.shape[0]
    posteriors = [diagnose.posterior, *(rule.posteriors if isinstance(rule, Chain) else ())]
    shapes = [(view.Z, (m, estimator.n_features_in_)), (view.L, (m, m)), (view.noise, ())]
    for posterior in posteriors:
        shapes += [(posterior.L_B, (m, m)), (posterior.root, (m,)), (posterior.alpha, (m,))]
    if m == 0 or any(tensor.shape != shape for tensor, shape in shapes):
        raise SavedModelError("its data do not fit together")
    numbers = [*(tensor for tensor, _ in shapes), *view.kernel.parameters(), *view.prior_mean.parameters()]
    if not all(value.dtype == torch.float64 and bool(value.isfinite().all()) for value in numbers):
        raise SavedModelError("a hyperparameter is not a finite number")
    factors = (view.L, *(posterior.L_B for posterior in posteriors))
    if not float(view.noise) > 0 or not all(bool((factor.diagonal() > 0).all()) for factor in factors):
        raise SavedModelError("a variance in it is not positive")
    if isinstance(rule, Chain) and not (len(rule.posteriors) > 0 and 0.0 < rule.threshold < math.inf):
        raise SavedModelError("its weights have no threshold")
    if hasattr(estimator, "weights_"):
        check_per_row(estimator, _PER_ROW, len(estimator.weights_))


def _factors(place: str, posterior: SparsePosterior) -> dict[str, Tensor]:
    return {f"{place}.{name}": getattr(posterior, name) for name in _FACTORS}


def _posterior(place: str, held: dict[str, Tensor]) -> SparsePosterior:
    return SparsePosterior(held["L"], *(held[f"{place}.{name}"] for name in _FACTORS))
