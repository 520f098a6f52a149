"""Some of a model's rows at a time: objectives that see only them, and what they say of the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rcgp.core import evidence, loo
from rcgp.core.exact import condition
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models import RCGP
from rcgp.models.kernel_matrix import dense_kernel, kernel_matrix
from rcgp.training.objectives import Objective, log_prior

__all__ = [
    "Prediction",
    "evidence_of",
    "joint_score_of",
    "leave_out_score_of",
    "ordinary_score_of",
    "predict_from",
    "robust_spread_of",
]


class Prediction(loo.LeaveOneOut):
    """Mean and variance of each of the ``n`` observations, noise included, in the units of y."""

    def score(self, y: Tensor) -> Tensor:
        """How far each observation lies from its prediction, in standard deviations: ``n``."""
        return (y - self.mean) / self.variance.sqrt()


def robust_spread_of(residual: Tensor) -> float:
    """Median size of residuals over that of a standard normal variable; zero where most of them are."""
    return float(residual.abs().quantile(0.5)) / 0.6745


def evidence_of(rows: Tensor) -> Objective:
    """log p(y of these rows) under an ordinary GP that knows no others, plus priors.

    Args:
        rows: ``n`` flags.

    Returns:
        An objective. Cost m³ for m rows.
    """

    def evidence_of_rows(model: RCGP) -> Tensor:
        return evidence.log_marginal(_kernel(model, rows), _ordinary(model, rows)[0]) + log_prior(model)

    evidence_of_rows.__name__ = "evidence of the trusted rows"  # for people: reports and errors show it
    return evidence_of_rows


def leave_out_score_of(rows: Tensor) -> Objective:
    """Σ log p(y_i | all other observations, with their weights) over these rows, plus priors.

    The other rows have their say in the predictions, as far as their weights let them, but are not scored: the score
    of an observation that no prediction can meet says nothing of the hyperparameters.

    Args:
        rows: ``n`` flags.

    Returns:
        An objective. Cost n³.
    """

    def leave_out_score(model: RCGP) -> Tensor:
        terms = model.training_terms()
        mean, variance = model.latent_leave_one_out(terms)
        spread = (variance + terms.row_noise)[rows]
        return loo.log_density((terms.residual[rows] - mean[rows]), spread).sum() + log_prior(model)

    leave_out_score.__name__ = "leave-one-out score of the trusted rows"
    return leave_out_score


def joint_score_of(rows: Tensor) -> Objective:
    """The leave-one-out score of these rows and their evidence, with the weights that they have, plus priors.

    Σ log p(y_i | the other ones of these rows) + log N(z; 0, K + R), z and R of these rows. The others have no say: the
    evidence knows only how unlikely they are, and those just beyond their threshold would be explained by more noise.

    Args:
        rows: ``n`` flags.

    Returns:
        An objective. Cost m³ for m rows, no more than that of the leave-one-out score alone.
    """

    def joint_score(model: RCGP) -> Tensor:
        terms = model.training_terms()
        pseudo = PseudoData(terms.pseudo.target[rows], terms.pseudo.root_precision[rows])
        noise = terms.row_noise if model.sample_weight is None else terms.row_noise[rows]
        return _joint(_kernel(model, rows), pseudo, terms.residual[rows], noise) + log_prior(model)

    joint_score.__name__ = "leave-one-out score and evidence of the trusted rows"
    return joint_score


def ordinary_score_of(rows: Tensor) -> Objective:
    """The same score of these rows under an ordinary GP, whose rows all have full weight, plus priors. Cost m³."""

    def ordinary_score(model: RCGP) -> Tensor:
        pseudo, noise = _ordinary(model, rows)
        return _joint(_kernel(model, rows), pseudo, pseudo.target, noise) + log_prior(model)

    ordinary_score.__name__ = "leave-one-out score and evidence of some rows"
    return ordinary_score


def predict_from(model: RCGP, rows: Tensor) -> Prediction:
    """What an ordinary GP that knows only these rows says of every observation; of its own with their help.

    Args:
        model: the hyperparameters.
        rows: ``n`` flags.

    Returns:
        ``n`` means and variances. Cost m³/3 + m²n for m rows.
    """
    with torch.no_grad():
        X = model.train_X
        posterior = condition(_kernel(model, rows), _ordinary(model, rows)[0])
        cross = dense_kernel(model.kernel, X, X[rows])
        prior = model.kernel(X, diag=True)
        row_noise = model.noise if model.sample_weight is None else model.noise / model.sample_weight
        return Prediction(posterior.mean(cross) + model.mean(X), posterior.variance(cross, prior) + row_noise)


def _joint(K: Tensor, pseudo: PseudoData, residual: Tensor, noise: Tensor) -> Tensor:
    """Leave-one-out score and evidence of rows, from one factorisation."""
    latent, signal = loo.leave_one_out_and_evidence(K, pseudo)
    score = loo.log_density(residual - latent.mean, latent.variance + noise).sum()
    s = pseudo.root_precision
    return score + signal + s.log().sum() - 0.5 * s.shape[-1] * math.log(2.0 * math.pi)


def _kernel(model: RCGP, rows: Tensor) -> Tensor:
    return kernel_matrix(model.kernel, model.train_X[rows])


def _ordinary(model: RCGP, rows: Tensor) -> tuple[PseudoData, Tensor]:
    """The rows as observations of an ordinary GP, and their noise variances."""
    residual, precision = model.residual()[rows], None if model.sample_weight is None else model.sample_weight[rows]
    pseudo = pseudo_data(residual, torch.ones_like(residual), torch.zeros_like(residual), model.noise, precision)
    return pseudo, model.noise if precision is None else model.noise / precision
