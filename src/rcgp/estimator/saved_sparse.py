"""The fitted model of a :class:`SparseRCGPRegressor` as JSON and tensors.

Its rows are not kept, so its factors are: a few m x m matrices, to the bit.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.chunked.fit import ChunkedFit
from rcgp.chunked.passes import ByLaw, Diagnose, Given, Link, Rule
from rcgp.chunked.views import Noise, View
from rcgp.core.sparse import SparsePosterior
from rcgp.estimator.row_answers import RowDiagnosis
from rcgp.estimator.saved_parts import (
    check_local,
    check_per_row,
    describe_law,
    describe_local,
    describe_report,
    rebuild_law,
    rebuild_local,
    rebuild_part,
    rebuild_report,
    under,
    with_text,
)
from rcgp.estimator.sparse import SparseRCGPRegressor
from rcgp.saving import SavedModelError, describe
from rcgp.weights import WeightFunction

__all__ = ["check_sparse", "describe_sparse", "rebuild_sparse"]

_PER_ROW = RowDiagnosis._fields[1:]
_FLAGS = "outliers"  # the one of them that is not a number
_FACTORS = ("L_B", "root", "alpha")  # of a posterior, beside the L that all share


def describe_sparse(estimator: SparseRCGPRegressor, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What was fitted; its tensors go among the others."""
    fitted = estimator.model_
    diagnose = fitted.diagnose
    view, rule = diagnose.view, diagnose.rule
    held = {"Z": view.Z, "L": view.L, **_factors("posterior", diagnose.posterior)}
    parts: dict[str, torch.nn.Module] = {"kernel": view.kernel, "mean": view.prior_mean}
    description: dict[str, Any] = {name: _describe_noise(name, getattr(diagnose, name), held) for name in _NOISES}
    if isinstance(rule, ByLaw):
        description["links"] = []
        for i, link in enumerate(rule.links):
            held.update(_factors(f"link.{i}", link.posterior))
            description["links"].append(_describe_noise(f"link.{i}", link.noise, held))
    elif isinstance(rule, Given):
        parts["weight"], held["weight_variance"] = rule.weight, rule.variance
    description.update(describe_local(view.local_noise, held))
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
        doubts=list(fitted.doubts),
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
    local = rebuild_local(model, held)
    rule: Rule
    if "links" in model:
        rule = ByLaw(
            tuple(
                Link(_posterior(f"link.{i}", held), _noise(f"link.{i}", law, held))
                for i, law in enumerate(model["links"])
            )
        )
    else:
        rule = Given(rebuild_part("weight", WeightFunction, model, held), held["weight_variance"])
    noise, flags = (_noise(name, model[name], held) for name in _NOISES)
    fitted = ChunkedFit(
        diagnose=Diagnose(
            View(mean, kernel, held["Z"], held["L"], local), rule, _posterior("posterior", held), noise, flags
        ),
        report=rebuild_report(model["report"]),
        polished=None if model["polished"] is None else rebuild_report(model["polished"]),
        rows=int(model["rows"]),
        fitted_rows=int(model["fitted_rows"]),
        doubts=tuple(str(doubt) for doubt in model["doubts"]),
        trusted_spread=float(model["trusted_spread"]),
        unseen=float(model["unseen"]),
        seconds={str(step): float(value) for step, value in model["seconds"].items()},
    )
    rows = [RowDiagnosis(0, *(held[name].numpy() for name in _PER_ROW))] if "weights" in held else None
    estimator._keep(fitted, rows)


def check_sparse(estimator: SparseRCGPRegressor) -> None:
    """Refuse what no estimator that was fitted can be."""
    estimator._recipe()
    if estimator.client is not None:
        raise SavedModelError("it names a client, which is never saved")
    diagnose, d = estimator.model_.diagnose, estimator.n_features_in_
    view, rule = diagnose.view, diagnose.rule
    m = view.Z.shape[0]
    links = rule.links if isinstance(rule, ByLaw) else ()
    posteriors = [diagnose.posterior, *(link.posterior for link in links)]
    variances = [diagnose.noise.variance, diagnose.flags.variance, *(link.noise.variance for link in links)]
    if isinstance(rule, Given):
        variances.append(rule.variance)
    elif not links:
        raise SavedModelError("its weights come from nowhere")
    shapes = [(view.Z, (m, d)), (view.L, (m, m)), *((variance, ()) for variance in variances)]
    for posterior in posteriors:
        shapes += [(posterior.L_B, (m, m)), (posterior.root, (m,)), (posterior.alpha, (m,))]
    check_local(view.local_noise, d)
    if m == 0 or any(tensor.shape != shape for tensor, shape in shapes):
        raise SavedModelError("its data do not fit together")
    numbers = [*(tensor for tensor, _ in shapes), *view.kernel.parameters(), *view.prior_mean.parameters()]
    if not all(value.dtype == torch.float64 and bool(value.isfinite().all()) for value in numbers):
        raise SavedModelError("a hyperparameter is not a finite number")
    factors = (view.L, *(posterior.L_B for posterior in posteriors))
    if not all(float(variance) > 0 for variance in variances) or not all(
        bool((factor.diagonal() > 0).all()) for factor in factors
    ):
        raise SavedModelError("a variance in it is not positive")
    if hasattr(estimator, "weights_"):
        check_per_row(estimator, tuple(name for name in _PER_ROW if name != _FLAGS), len(estimator.weights_))
        flags = estimator.outliers_
        if flags.shape != estimator.weights_.shape or flags.dtype.kind != "b":
            raise SavedModelError(f"its {_FLAGS} are not what a fit gives")


# Attributes of a Diagnose that are noises.
_NOISES = ("noise", "flags")


def _describe_noise(place: str, noise: Noise, held: dict[str, Tensor]) -> dict[str, Any]:
    """A noise law as JSON; its variance goes among the tensors."""
    held[f"{place}.variance"] = noise.variance
    return describe_law(noise.law)


def _noise(place: str, law: dict[str, Any], held: dict[str, Tensor]) -> Noise:
    return Noise(rebuild_law(law), held[f"{place}.variance"])


def _factors(place: str, posterior: SparsePosterior) -> dict[str, Tensor]:
    return {f"{place}.{name}": getattr(posterior, name) for name in _FACTORS}


def _posterior(place: str, held: dict[str, Tensor]) -> SparsePosterior:
    return SparsePosterior(held["L"], *(held[f"{place}.{name}"] for name in _FACTORS))
