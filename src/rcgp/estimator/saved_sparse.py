"""Sparse models as JSON and tensors, and back.

A sparse model does not keep its rows, so it keeps its factors: a few m x m matrices. A model read from a file is
checked: a file with a good checksum may still hold nonsense.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rcgp.chunked.fit import ChunkedFit
from rcgp.chunked.passes import ByLaw, ByWeight, Diagnose, ExpectationStep, Noise, Rule, SparsePrior
from rcgp.core.sparse import SparsePosterior
from rcgp.estimator.output import ROW_ATTRIBUTES, RowDiagnosis
from rcgp.estimator.saved_parts import (
    as_json,
    check_local_noise,
    check_rows,
    collect,
    describe_local_noise,
    finite,
    rebuild_law,
    rebuild_local_noise,
    rebuild_part,
    rebuild_report,
    require,
    under,
)
from rcgp.saving import describe

__all__ = ["describe_sparse", "rebuild_sparse"]

_FACTORS = ("L_B", "root", "alpha")  # of a posterior, beside the L that all share
_NOISES = ("noise", "flags")  # of a Diagnose
_PLAIN = ("report", "polished", "rows", "fitted_rows", "doubts", "trusted_spread", "unseen", "seconds")


def describe_sparse(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted model of a ``SparseRCGPRegressor`` as JSON; its tensors join the others."""
    fitted: ChunkedFit = estimator.model_
    diagnose, prior, rule = fitted.diagnose, fitted.diagnose.prior, fitted.diagnose.rule
    held = {"Z": prior.Z, "L": prior.L, **_factors("posterior", diagnose.posterior)}
    description: dict[str, Any] = {name: _describe_noise(name, getattr(diagnose, name), held) for name in _NOISES}
    if isinstance(rule, ByLaw):
        description["links"] = [_describe_noise(f"link.{i}", link.noise, held) for i, link in enumerate(rule.steps)]
        for i, link in enumerate(rule.steps):
            held.update(_factors(f"link.{i}", link.posterior))
    elif isinstance(rule, ByWeight):
        description["weight"] = collect("weight", describe(rule.weight), held)
        held["weight_variance"] = rule.variance
    if hasattr(estimator, "weights_"):
        held.update({name: torch.from_numpy(getattr(estimator, f"{name}_")) for name in ROW_ATTRIBUTES})
    description.update(
        kernel=collect("kernel", describe(prior.kernel), held),
        mean=collect("mean", describe(prior.prior_mean), held),
        **describe_local_noise(prior.local_noise, held),
        **{name: as_json(getattr(fitted, name)) for name in _PLAIN},
    )
    return {"model": collect("model", (description, held), tensors)}


def rebuild_sparse(estimator: Any, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Set the fitted attributes of a ``SparseRCGPRegressor``."""
    model, held = description["model"], under("model", tensors)
    kernel, mean = rebuild_part("kernel", model, held), rebuild_part("mean", model, held)
    prior = SparsePrior(mean, kernel, held["Z"], held["L"], rebuild_local_noise(model, held))
    rule: Rule
    if "links" in model:
        laws = enumerate(model["links"])
        rule = ByLaw(
            tuple(
                ExpectationStep(_posterior(f"link.{i}", held), _rebuild_noise(f"link.{i}", law, held))
                for i, law in laws
            )
        )
    else:
        rule = ByWeight(rebuild_part("weight", model, held), held["weight_variance"])
    noise, flags = (_rebuild_noise(name, model[name], held) for name in _NOISES)
    fitted = ChunkedFit(
        diagnose=Diagnose(prior, rule, _posterior("posterior", held), noise, flags),
        report=rebuild_report(model["report"]),
        polished=None if model["polished"] is None else rebuild_report(model["polished"]),
        rows=int(model["rows"]),
        fitted_rows=int(model["fitted_rows"]),
        doubts=tuple(str(doubt) for doubt in model["doubts"]),
        trusted_spread=float(model["trusted_spread"]),
        unseen=float(model["unseen"]),
        seconds={str(step): float(value) for step, value in model["seconds"].items()},
    )
    rows = RowDiagnosis(0, *(held[name].numpy() for name in ROW_ATTRIBUTES)) if "weights" in held else None
    estimator._set_fitted(fitted, rows)
    _check_sparse(fitted.diagnose, estimator.n_features_in_)
    if rows is not None:
        check_rows(estimator, len(rows.weights))


def _check_sparse(diagnose: Diagnose, d: int) -> None:
    """Raise a SavedModelError for shapes and values that no fit gives."""
    prior, rule = diagnose.prior, diagnose.rule
    m, links = prior.Z.shape[0], rule.steps if isinstance(rule, ByLaw) else ()
    posteriors = [diagnose.posterior, *(link.posterior for link in links)]
    variances = [diagnose.noise.variance, diagnose.flags.variance, *(link.noise.variance for link in links)]
    if isinstance(rule, ByWeight):
        variances.append(rule.variance)
    require(isinstance(rule, ByWeight) or bool(links), "it has no rule for its weights")
    shapes = [(prior.Z, (m, d)), (prior.L, (m, m)), *((variance, ()) for variance in variances)]
    for posterior in posteriors:
        shapes += [(posterior.L_B, (m, m)), (posterior.root, (m,)), (posterior.alpha, (m,))]
    check_local_noise(prior.local_noise, d)
    require(m > 0 and all(tensor.shape == shape for tensor, shape in shapes), "its data do not fit together")
    numbers = [*(tensor for tensor, _ in shapes), *prior.kernel.parameters(), *prior.prior_mean.parameters()]
    require(finite(numbers, torch.float64), "a hyperparameter is not a finite number")
    diagonals = [factor.diagonal() for factor in (prior.L, *(posterior.L_B for posterior in posteriors))]
    require(all(bool((part > 0).all()) for part in (*variances, *diagonals)), "a variance in it is not positive")


def _describe_noise(place: str, noise: Noise, held: dict[str, Tensor]) -> dict[str, Any]:
    """A noise law as JSON; its variance joins the tensors."""
    held[f"{place}.variance"] = noise.variance
    law: dict[str, Any] = as_json(noise.law)
    return law


def _rebuild_noise(place: str, law: dict[str, Any], held: dict[str, Tensor]) -> Noise:
    return Noise(rebuild_law(law), held[f"{place}.variance"])


def _factors(place: str, posterior: SparsePosterior) -> dict[str, Tensor]:
    return {f"{place}.{name}": getattr(posterior, name) for name in _FACTORS}


def _posterior(place: str, held: dict[str, Tensor]) -> SparsePosterior:
    return SparsePosterior(held["L"], *(held[f"{place}.{name}"] for name in _FACTORS))
