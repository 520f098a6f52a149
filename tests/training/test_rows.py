from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from problems import LENGTHSCALE, NOISE, VARIANCE, make_data, set_hyperparameters
from rcgp import RCGP
from rcgp.models.defaults import add_weak_priors
from rcgp.training.objectives import leave_one_out, log_prior, marginal
from rcgp.training.rows import (
    Prediction,
    evidence_of,
    joint_score_of,
    leave_out_score_of,
    ordinary_score_of,
    predict_from,
    robust_spread_of,
)
from rcgp.weights import Constant, Plateau

N = 30
COUNTS = np.where(np.arange(N) % 3 == 0, 4.0, 0.5)
ROWS = np.arange(N) % 4 != 1


class Problem:
    """A model with a Plateau weight and, as plain numbers, all that a dense transcription of it needs."""

    def __init__(self, weighted, weight=None):
        random = np.random.default_rng(3)
        self.X, self.y = make_data(N)
        self.p = COUNTS if weighted else np.ones(N)
        self.centre, self.threshold = np.sin(self.X.sum(-1)), random.uniform(0.5, 1.5, N)
        self.model = RCGP(self.X, self.y, mean="median", noise=NOISE, sample_weight=COUNTS if weighted else None)
        add_weak_priors(self.model)
        set_hyperparameters(self.model)
        self.m = np.full(N, np.median(self.y))
        self.model.weight = weight or Plateau(torch.tensor(self.centre - self.m), torch.tensor(self.threshold))
        self.K = reference.se_kernel(self.X, self.X, LENGTHSCALE, VARIANCE)
        self.noise = NOISE / self.p
        u = (self.y - self.centre) / self.threshold
        # Observations and noises of the ordinary GP that is equivalent to the robust one.
        self.z = self.y + self.noise * 8 * u**7 / (self.threshold * (1 + u**8))
        self.r = self.noise * (1 + u**8)

    def predict(self, rows, targets, noise, at):
        """Mean and variance of the observation of one row from others, by inverting a matrix."""
        A = np.linalg.inv(self.K[np.ix_(rows, rows)] + np.diag(noise[rows]))
        k = self.K[rows, at]
        return self.m[at] + k @ A @ (targets - self.m)[rows], self.K[at, at] - k @ A @ k + self.noise[at]

    def joint_score(self, targets, noise):
        """Evidence of ROWS by its formula, and their leave-one-out score by refits that know no other rows."""
        rows = np.flatnonzero(ROWS)
        H = self.K[np.ix_(rows, rows)] + np.diag(noise[rows])
        refits = [self.predict(rows[rows != i], targets, noise, i) for i in rows]
        score = sum(reference.log_normal(self.y[i], *moments) for i, moments in zip(rows, refits, strict=True))
        return reference.log_marginal(H, targets[rows], self.m[rows], 0.0) + score

    def prior(self):
        return log_prior(self.model).item()


@pytest.fixture(params=[False, True], ids=["plain", "weighted"])
def problem(request):
    return Problem(request.param)


def test_the_evidence_is_the_density_of_these_rows(problem):
    rows = np.flatnonzero(ROWS)
    H = problem.K[np.ix_(rows, rows)] + np.diag(problem.noise[rows])
    expected = reference.log_marginal(H, problem.y[rows], problem.m[rows], 0.0)
    value = evidence_of(torch.tensor(ROWS))(problem.model).item()
    assert value == pytest.approx(expected + problem.prior(), abs=1e-8)


def test_the_leave_out_score_equals_refits_without_each_row(problem):
    expected = 0.0
    for i in np.flatnonzero(ROWS):
        mean, variance = problem.predict(np.delete(np.arange(N), i), problem.z, problem.r, i)
        expected += reference.log_normal(problem.y[i], mean, variance)
    value = leave_out_score_of(torch.tensor(ROWS))(problem.model).item()
    assert value == pytest.approx(expected + problem.prior(), abs=1e-7)


def test_the_ordinary_score_equals_refits_that_know_no_other_rows(problem):
    value = ordinary_score_of(torch.tensor(ROWS))(problem.model).item()
    assert value == pytest.approx(problem.joint_score(problem.y, problem.noise) + problem.prior(), abs=1e-8)


def test_predictions_from_some_rows_equal_an_ordinary_gp(problem):
    prediction = predict_from(problem.model, torch.tensor(ROWS))
    expected = [problem.predict(np.flatnonzero(ROWS), problem.y, problem.noise, i) for i in range(N)]
    np.testing.assert_allclose(prediction.mean.numpy(), [mean for mean, _ in expected], atol=1e-9)
    np.testing.assert_allclose(prediction.variance.numpy(), [variance for _, variance in expected], atol=1e-9)
    assert not prediction.mean.requires_grad


def test_the_joint_score_knows_these_rows_with_their_weights(problem):
    value = joint_score_of(torch.tensor(ROWS))(problem.model).item()
    expected = problem.joint_score(problem.z, problem.r) + problem.prior()
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("objective", [evidence_of, joint_score_of, leave_out_score_of, ordinary_score_of])
def test_gradients_match_central_differences(problem, objective):
    model, function = problem.model, objective(torch.tensor(ROWS))
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(function(model), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for index in np.ndindex(*parameter.shape):
            values = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter[index] += step
                    values.append(function(model).item())
                    parameter[index] -= step
            assert gradient[index].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-6)


def test_with_all_rows_they_are_the_objectives_of_a_plain_fit():
    everyone = torch.ones(N, dtype=torch.bool)
    robust, plain = Problem(True).model, Problem(True, Constant()).model
    assert leave_out_score_of(everyone)(robust).item() == pytest.approx(leave_one_out(robust).item(), abs=1e-10)
    assert evidence_of(everyone)(robust).item() == pytest.approx(marginal(plain).item(), abs=1e-10)
    both = leave_one_out(plain) + marginal(plain) - log_prior(plain)
    assert ordinary_score_of(everyone)(robust).item() == pytest.approx(both.item(), rel=1e-12)
    assert joint_score_of(everyone)(plain).item() == pytest.approx(both.item(), rel=1e-12)


def test_rows_that_are_left_out_have_no_say():
    """An observation of 1e150 that is not among the rows changes nothing, nor gradients."""
    problem = Problem(True)
    rows = torch.tensor(ROWS)
    functions = [evidence_of(rows), joint_score_of(rows), ordinary_score_of(rows)]
    before = [function(problem.model).item() for function in functions]
    prediction = predict_from(problem.model, rows)
    problem.model.train_y[1] = 1e150
    assert [function(problem.model).item() for function in functions] == before
    assert torch.equal(predict_from(problem.model, rows).mean, prediction.mean)


def test_a_score_counts_standard_deviations():
    prediction = Prediction(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.25]))
    assert prediction.score(torch.tensor([5.0, 1.0])).tolist() == [2.0, -2.0]


def test_the_robust_spread_is_that_of_a_normal_sample_and_zero_where_most_are():
    sample = torch.tensor(np.random.default_rng(0).standard_normal(4001) * 3.0)
    assert robust_spread_of(sample) == pytest.approx(3.0, rel=0.05)
    sample[:800] = 1e300
    assert robust_spread_of(sample) < 5.0
    assert robust_spread_of(torch.tensor([0.0, 0.0, 0.0, 7.0, -1.0])) == 0.0
