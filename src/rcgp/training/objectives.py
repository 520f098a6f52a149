"""Objectives: functions from a model to a scalar that a fit maximises, differentiable in the hyperparameters.

Each adds the log density of every prior registered on a GPyTorch module of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rcgp.core import exact
from rcgp.core.pseudo import pseudo_data
from rcgp.models import RCGP, SparseRCGP

__all__ = [
    "OBJECTIVES",
    "Objective",
    "elbo",
    "leave_one_out",
    "log_prior",
    "marginal",
    "not_chosen_by",
    "pseudo_marginal",
    "weighed_evidence",
]

Objective = Callable[[RCGP], Tensor]

_LOG_2PI = math.log(2.0 * math.pi)


def leave_one_out(model: RCGP) -> Tensor:
    """Σ_i log p(y_i | all other observations), the paper's objective: log N(e_i; μ_i, v_i + σ²/p_i). Cost O(n³).

    Well posed for every weight. It is not itself robust: an observation far out is scored like all others.
    """
    terms = model.training_terms()
    mean, variance = model.latent_leave_one_out(terms.pseudo)
    return exact.log_density(terms.residual - mean, variance + terms.row_noise).sum() + log_prior(model)


def marginal(model: RCGP) -> Tensor:
    """log p(y), the ordinary log marginal likelihood, where the weight does not depend on y. Cost O(n³).

    Raises:
        ValueError: for a weight that depends on y, for which there is no likelihood.
    """
    if not model.weight.constant_in_y:
        raise ValueError(
            f"the marginal likelihood needs a weight that does not depend on y, such as Constant(), not "
            f"{type(model.weight).__name__}; use the objective 'loo'"
        )
    if isinstance(model, SparseRCGP):
        raise TypeError(
            "the marginal likelihood of a sparse model has a bound, 'elbo': this is for RCGP, the exact model"
        )
    terms = model.training_terms()
    s = terms.pseudo.root_precision
    return model.signal_evidence(terms.pseudo) + s.log().sum() - 0.5 * s.shape[-1] * _LOG_2PI + log_prior(model)


def pseudo_marginal(model: RCGP) -> Tensor:
    """log ∫ p(f) exp(−n L(f)) df, the appendix's pseudo marginal likelihood. Cost O(n³).

    Offered for study, ill-posed as an objective: exp(−n L) is not a density over y and its missing normaliser depends
    on σ² and c, so that a fit drifts to implausible hyperparameters (the noise variance above all). Use 'loo' instead.
    """
    terms = model.training_terms()
    value = exact.log_pseudo_marginal(model.kernel_matrix(), terms.pseudo, terms.weight, terms.slope, terms.row_noise)
    return value + log_prior(model)


def elbo(model: RCGP) -> Tensor:
    """The paper's bound for the sparse model, corrected (errata 2 to 4). Cost O(nm²).

    For a weight that does not depend on y it is Titsias' bound on the log marginal likelihood. For others it bounds the
    pseudo marginal likelihood, which can choose neither σ² nor c: :func:`rcgp.fit` holds them fixed, as the paper does.

    Raises:
        ValueError: for an exact model, which has no bound.
    """
    if not isinstance(model, SparseRCGP):
        raise ValueError("the bound 'elbo' is for SparseRCGP; for an exact model use the objective 'loo'")
    terms = model.training_terms()
    signal = model.signal_evidence(terms.pseudo)
    if model.weight.constant_in_y:
        s = terms.pseudo.root_precision
        return signal + s.log().sum() - 0.5 * s.shape[-1] * _LOG_2PI + log_prior(model)
    return signal + exact.loss_terms(terms.weight, terms.slope, terms.row_noise) + log_prior(model)


def weighed_evidence(model: RCGP, weight: Tensor, slope: Tensor, good: Tensor) -> Tensor:
    """ℓ(θ) − ½ Σ_i (1 − ρ_io) log σ_i²: the evidence with weights held fixed, to which an outlier adds nothing.

    Args:
        model: exact or sparse.
        weight, slope: ``n`` weights w̃ and slopes ∂_y log w̃².
        good: ``n`` probabilities 1 − ρ_io that a row is no outlier.
    """
    row_noise = model.row_noise()
    pseudo = pseudo_data(model.residual(), weight, slope, row_noise)
    return model.signal_evidence(pseudo) - 0.5 * (good * row_noise.log()).sum() + log_prior(model)


def not_chosen_by(objective: Objective, model: RCGP) -> dict[str, torch.nn.Parameter]:
    """Parameters that an objective cannot choose, by their names: a fit holds them fixed.

    Those are the noise variance and the parameters of the weight for :func:`elbo`, unless the weight does not depend on
    y: the pseudo-likelihood that it bounds is no density over y, and grows without end as they do.
    """
    if objective is not elbo or model.weight.constant_in_y:
        return {}
    return {"raw_noise": model.raw_noise, **dict(model.weight.named_parameters(prefix="weight"))}


def log_prior(model: RCGP) -> Tensor:
    """Sum of the log densities of all priors registered on the model and its modules, zero where there are none.

    Minus infinity where a value lies outside the support of its prior.
    """
    total = model.train_y.new_zeros(())
    for _, module, prior, closure, _ in model.named_priors():
        value = closure(module)
        if not bool(prior.support.check(value).all()):
            return total - torch.inf
        total = total + prior.log_prob(value).sum()
    return total


#: The names that ``fit(objective=...)`` knows.
OBJECTIVES: dict[str, Objective] = {
    "loo": leave_one_out,
    "marginal": marginal,
    "pseudo_marginal": pseudo_marginal,
    "elbo": elbo,
}
